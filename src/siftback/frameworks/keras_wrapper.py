"""For `siftback.frameworks.keras`: a model round another one, and the loss of each example."""

import inspect
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from keras.src.trainers.compile_utils import get_loss  # has no public name
from torch import Tensor

from siftback.errors import ConfigError, LossError, StateError
from siftback.frameworks.keras_dataset import SelectiveDataset, keras
from siftback.frameworks.keras_progress import Progress, callbacks_with_progress, check_settings
from siftback.processes.distributed import rank_and_world
from siftback.scorers.selection_pass import untouched
from siftback.state import anything, check_digest, check_entries, seal

__all__ = ["KerasWrapper", "LossOfEach", "keras", "to_tensor", "without_traces"]

_STATE = "siftback"  # the name of the selection's state among the saved variables
_STEPS = ("fit", "train_step", "test_step", "compute_loss", "compute_metrics")


class KerasWrapper(keras.Model):
    """A model round another one, which it calls; the base of those that change its training step.

    Args:
        model: Any built or unbuilt Keras model that leaves the training step to Keras.
        name: As for every Keras model.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        _check_model(type(self).__name__, model)
        # The losses' scaling under mixed_float16 goes by the dtype policy of the compiled model.
        super().__init__(name=name, dtype=model.dtype_policy, autocast=False)
        self.model = model
        self._loss_of_each: LossOfEach | None = None  # for the loss that was compiled last
        self.factors: Tensor | None = None  # float32[b], the loss weights of the current step
        self.progress = Progress(self)
        self.built = model.built

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The outputs of the wrapped model."""
        return self.model(inputs, training=training)

    @property
    def output_names(self) -> Any:
        """Those of the wrapped model, where it has any."""
        return self.model.output_names

    def fit(self, *args: Any, **settings: Any) -> Any:
        """Trains as Keras does; on a `SelectiveDataset` it goes on within an epoch.

        Args:
            args: Those of ``keras.Model.fit``.
            settings: Likewise. With a `SelectiveDataset`, ``epochs`` is that of the data set.

        Raises:
            ConfigError: If the data is not for this wrapper, or a setting does not go with it.
            StateError: If a loaded state is of a data set with other arguments, or within another
                epoch than ``initial_epoch``.
        """
        arguments = inspect.signature(keras.Model.fit).bind(self, *args, **settings).arguments
        data = arguments.get("x")
        self.check_data(data)
        progress, verbose = self.progress, arguments.get("verbose", "auto")
        arguments["callbacks"] = callbacks_with_progress(
            progress, arguments.get("callbacks"), verbose
        )
        progress.begin_training(data)
        try:
            with warnings.catch_warnings():
                if isinstance(data, SelectiveDataset):
                    self._prepare(data, arguments)
                return super().fit(
                    **{name: arguments[name] for name in arguments if name != "self"}
                )
        finally:
            progress.end_training()

    def _prepare(self, dataset: SelectiveDataset, settings: dict[str, Any]) -> None:
        check_settings(dataset, settings)
        settings["shuffle"] = False
        # As Keras says where an epoch has fewer batches than the first one.
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        # Builds what is not built. Keras would read batches for it, of an epoch not yet begun.
        self.test_on_batch(*keras.tree.map_structure(to_tensor, dataset.first_examples()))

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras does, after making sure that a step can be selected in.

        Raises:
            ConfigError: If it cannot.
        """
        name = type(self).__name__
        if self.jit_compile:
            raise ConfigError(
                f"{name} chooses rows in every step, which jit_compile=True would compile away: "
                "leave jit_compile out of compile()"
            )
        if rank_and_world()[1] > 1:
            raise ConfigError(
                f"fit() of Keras trains in one process on the torch backend, and there are "
                f"{rank_and_world()[1]}: train {name} in one, or the model in a "
                "DistributedDataParallel, in a loop with a SelectiveLoader"
            )
        if isinstance(self.loss, dict | list | tuple) and len(self.loss) != 1:
            raise ConfigError(_several(name, f"{len(self.loss)} losses"))
        return super().make_train_function(force)

    def losses_of(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        """The compiled loss of each example, times its sample weight.

        Args:
            y: The targets of N examples.
            y_pred: The model's output for them.
            sample_weight: One weight per example, or one for each of its positions.

        Returns:
            float[N]. Of several positions it is the mean over those that are neither masked nor
            of weight 0.

        Raises:
            ConfigError: If there are several outputs.
            LossError: If the loss is not one per example.
        """
        if keras.tree.is_nested(y_pred) or keras.tree.is_nested(y):
            raise ConfigError(_several(type(self).__name__, "several outputs"))
        if y is None or self.loss is None:
            raise LossError(
                f"{type(self).__name__} needs one loss per example: give targets to fit(), and a "
                "loss to compile(), not add_loss() alone"
            )
        if self._loss_of_each is None or self._loss_of_each.compiled is not self.loss:
            self._loss_of_each = LossOfEach(self.loss, y, y_pred)
        with torch.no_grad():
            return self._loss_of_each(y, y_pred, sample_weight)

    def check_weights(self) -> None:
        """Makes sure that loss weights can be applied to the losses computed last.

        Raises:
            ConfigError: If the loss's reduction would undo them.
        """
        assert self._loss_of_each is not None
        self._loss_of_each.check_weights()

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """As Keras does, with the loss weights of the selection in a training step."""
        if training and self.factors is not None:
            assert self._loss_of_each is not None
            sample_weight = self._loss_of_each.weighted(sample_weight, self.factors)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def get_config(self) -> dict[str, Any]:
        """The wrapped model's configuration, for ``keras.saving``."""
        return {"model": keras.saving.serialize_keras_object(self.model), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Makes one of `get_config`'s result."""
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**{**config, "model": model})

    def save_own_variables(self, store: Any) -> None:
        """Saves the states of the selection and of the training's progress with the weights."""
        buffer = io.BytesIO()
        state = {"selection": self.selection_state(), "progress": self.progress.state_dict()}
        torch.save(seal(state), buffer)
        store[_STATE] = np.frombuffer(buffer.getvalue(), dtype=np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Takes on the states that were saved with the weights.

        Raises:
            StateError: If there is none, or one of other settings.
        """
        if _STATE not in store.keys():  # noqa: SIM118, as a store is not a mapping
            raise StateError(
                f"the file has no state of a {type(self).__name__}: load the weights of a bare "
                "model into its model attribute, wrapped.model.load_weights(...)"
            )
        saved = io.BytesIO(np.asarray(store[_STATE]).tobytes())
        state = torch.load(saved, weights_only=True)
        check_digest(self, state)
        check_entries(self, state, {"selection": anything, "progress": anything})
        self.progress.check_state(state["progress"])
        self.load_selection_state(state["selection"])
        self.progress.load_state_dict(state["progress"])

    def check_data(self, data: Any) -> None:
        """Makes sure that ``fit()`` was given data for this wrapper."""

    def epoch_begins(self, dataset: SelectiveDataset, resumes: bool) -> None:
        """Is called as an epoch of a `SelectiveDataset` begins, or its rest does."""

    def selection_state(self) -> dict[str, Any]:
        """All that the selections in a step depend on, besides the weights."""
        return {}

    def load_selection_state(self, state: dict[str, Any]) -> None:
        """Goes on from another's `selection_state`."""


class LossOfEach:
    """The compiled loss without reduction.

    Args:
        loss: As given to ``compile()``.
        y: Targets of a first batch, by which Keras resolves names such as "crossentropy".
        y_pred: Outputs for it.

    Attributes:
        compiled: The loss, as given.

    Raises:
        LossError: If it does not give one loss per example.
    """

    def __init__(self, loss: Any, y: Any, y_pred: Any) -> None:
        self.compiled = loss
        flat = keras.tree.flatten(loss)
        resolved = get_loss(flat[0], y, y_pred)
        self._name, self._reduction = resolved.name, resolved.reduction
        if type(resolved).__call__ is not keras.losses.Loss.__call__:
            raise LossError(
                f"the loss {self._name} overrides __call__, so that it cannot be had for each "
                "example: override call(y_true, y_pred), which gives one loss per example"
            )
        # Keras's own copy() would write the loss to a file.
        self._each = object.__new__(type(resolved))
        vars(self._each).update(vars(resolved), reduction="none")
        self._ndim = 1
        self._check(y, y_pred)

    def __call__(self, y: Any, y_pred: Any, sample_weight: Any) -> Tensor:
        """float[N], of targets, outputs and the examples' own weights."""
        values = self._each(y, y_pred)
        weights = torch.ones_like(values)
        for factor in (getattr(y_pred, "_keras_mask", None), sample_weight):
            if factor is not None:
                weights = weights * _fitted(to_tensor(factor).to(values), self._ndim)
        valid = (weights != 0).reshape(len(values), -1).sum(1).clamp(min=1)
        losses: Tensor = (values * weights).reshape(len(values), -1).sum(1) / valid
        return losses

    def weighted(self, sample_weight: Any, factors: Tensor) -> Tensor:
        """An example's own weights times those of the selection."""
        self.check_weights()
        factors = _fitted(factors, self._ndim)
        if sample_weight is None:
            return factors
        weights = to_tensor(sample_weight)
        return _fitted(weights, self._ndim) * factors.to(weights)

    def check_weights(self) -> None:
        """Makes sure that the reduction does not undo weights.

        Raises:
            ConfigError: If it does.
        """
        if self._reduction == "mean_with_sample_weight":
            raise ConfigError(
                f'the loss {self._name} has reduction="mean_with_sample_weight", which would '
                "undo the loss weights of the selection: leave reduction= out"
            )

    def _check(self, y: Any, y_pred: Any) -> None:
        """Compares the losses of a batch with the loss of its first example alone."""
        with torch.no_grad():
            values = self._each(y, y_pred)
            count = len(y_pred)
            fits = values.ndim > 0 and len(values) == count
            if fits and count > 1 and not hasattr(y_pred, "_keras_mask"):
                alone = self._each(y[:1], y_pred[:1])
                fits = alone.shape == values[:1].shape and bool(
                    torch.isclose(alone, values[:1], 1e-2, 1e-4, equal_nan=True).all()
                )
        if not fits:
            raise LossError(
                f"the loss {self._name} does not give one loss per example (its shape is "
                f"{list(values.shape)} for {count} examples): give a loss whose value for an "
                "example depends on that example alone, without a mean over the batch"
            )
        self._ndim = values.ndim


@contextmanager
def without_traces(model: Any) -> Iterator[None]:
    """A forward pass in eval mode that leaves the model, and all chance, as they were."""
    # Of BatchNorm, seed generators and metrics; Keras keeps them as variables, not as buffers.
    variables = [*model.non_trainable_variables, *model.metrics_variables]
    values = [(variable, variable.value.clone()) for variable in variables]
    device = next((v.value.device for v in model.trainable_variables), torch.device("cpu"))
    with torch.no_grad(), untouched(model, "eval", device):
        try:
            yield
        finally:
            for variable, value in values:
                variable.assign(value)


def _check_model(name: str, model: Any) -> None:
    if keras.backend.backend() != "torch":
        raise ConfigError(
            f"{name} needs Keras's torch backend, and this is {keras.backend.backend()}: set the "
            "environment variable KERAS_BACKEND=torch before keras is imported"
        )
    if not isinstance(model, keras.Model) or isinstance(model, KerasWrapper):
        raise ConfigError(f"{name} wraps a Keras model, and was given a {type(model).__name__}")
    overridden = [
        step for step in _STEPS if getattr(type(model), step) != getattr(keras.Model, step)
    ]
    if overridden:
        raise ConfigError(
            f"{type(model).__name__} overrides {' and '.join(overridden)}, which {name} would "
            "bypass: use siftback.InBatch in that method"
        )


def _several(name: str, problem: str) -> str:
    return (
        f"{name} chooses by one loss per example, and there are {problem}: give the model one "
        "output, and combine its parts in the loss"
    )


def to_tensor(value: Any) -> Any:
    """A value as a tensor on Keras's device; None as it is."""
    return None if value is None else keras.ops.convert_to_tensor(value)


def _fitted(weights: Tensor, ndim: int) -> Tensor:
    """Weights with as many dimensions as the losses, of which the last ones may be 1."""
    while weights.ndim > ndim and weights.shape[-1] == 1:
        weights = weights.squeeze(-1)
    return weights.reshape(*weights.shape, *[1] * (ndim - weights.ndim))
