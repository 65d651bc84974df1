"""Selection inside Keras 3, on its torch backend.

`SelectiveModel` wraps a model and selects within each training step. `SelectiveDataset` goes on
within an epoch, and with a rule leaves examples out before they are read, by the losses that
`LossRecorder`, round the model, records.
Set ``KERAS_BACKEND=torch`` before Keras is imported.
"""

import inspect
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from siftback.arguments import check_integer
from siftback.batches.stats import Stats
from siftback.errors import ConfigError, LossError, StateError
from siftback.frameworks.keras_dataset import (
    INDEX,
    OWN,
    Progress,
    SelectiveDataset,
    callbacks_with_progress,
    check_settings,
    keras,
)
from siftback.frameworks.step_selection import StepSelection
from siftback.losses.per_example import check_losses
from siftback.processes.distributed import rank_and_world
from siftback.schedule import Epochs, Schedule
from siftback.scorers.selection_pass import untouched
from siftback.selectors.in_batch import InBatch
from siftback.selectors.selection import Selector
from siftback.state import Stateful

# What is above says what to install where there is no Keras.
# isort: split
from keras.src.trainers.compile_utils import get_loss  # has no public name

__all__ = ["LossRecorder", "SelectiveDataset", "SelectiveModel"]

_STATE = "siftback"  # the name of the selection's state among the saved variables
_STEPS = ("fit", "train_step", "test_step", "compute_loss", "compute_metrics")


class KerasWrapper(keras.Model):
    """A model round another one, which it calls; the base of those that change its training step.

    Args:
        model: Any built or unbuilt Keras model that leaves the training step to Keras.
        name: As for every Keras model.

    Attributes:
        model: The wrapped model.
        progress: How far training has come.
        stats: What was done so far, a `Stats`.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        check_model(type(self).__name__, model)
        # The losses' scaling under mixed_float16 goes by the dtype policy of the compiled model.
        super().__init__(name=name, dtype=model.dtype_policy, autocast=False)
        self.model, self.stats = model, Stats()
        self.progress = Progress(self)
        self._saved_state = WrapperState(progress=self.progress)
        self._loss_of_each: Any = None  # a `LossOfEach`, of the loss that was compiled last
        self.built = model.built

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """The outputs of the wrapped model, which alone does what Keras does in each call."""
        return (self.model if self.built else super().__call__)(*args, **settings)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The outputs of the wrapped model."""
        return self.model(inputs, training=training)

    # Those of the wrapped model, where it has any.
    inputs = property(attrgetter("model.inputs"))
    outputs = property(attrgetter("model.outputs"))
    output_names = property(attrgetter("model.output_names"))
    layers = property(attrgetter("model.layers"))
    summary = property(attrgetter("model.summary"))

    @property
    def share(self) -> float:
        """Share of the examples that is kept now; 1 while all are."""
        return self.progress.dataset.share if self.progress.dataset else 1.0

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
        del arguments["self"]
        data, progress = arguments.get("x"), self.progress
        self.check_data(data)
        arguments["callbacks"] = callbacks_with_progress(
            progress, arguments.get("callbacks"), arguments.get("verbose", "auto")
        )
        progress.begin_training(data)
        try:
            with warnings.catch_warnings():
                if progress.dataset:
                    check_settings(progress.dataset, arguments)
                    arguments["shuffle"] = False
                    # As Keras says of the rest of an epoch.
                    warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
                    # Builds what is not built. Keras would read batches for it, of an epoch not
                    # yet begun.
                    batch = progress.dataset.first_examples()
                    self.test_on_batch(*keras.tree.map_structure(to_tensor, batch))
                return super().fit(**arguments)
        finally:
            progress.end_training()

    def check_data(self, data: Any) -> None:
        """Checks that ``fit()`` was given data for this wrapper."""
        raise NotImplementedError

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
            raise ConfigError(several_error(name, f"{len(self.loss)} losses"))
        return super().make_train_function(force)

    def losses_of(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        """The compiled loss of each example, times its sample weight.

        Args:
            y: The targets of N examples; like the others, also alone in a list or dict.
            y_pred: The model's output for them.
            sample_weight: One weight per example, or one for each of its positions.

        Returns:
            float[N]. Of several positions it is the mean over those that are not masked, ignored or
            of weight 0.

        Raises:
            ConfigError: If there are several outputs.
            LossError: If the loss is not one per example.
        """
        targets, outputs, weights = map(keras.tree.flatten, (y, y_pred, sample_weight))
        if max(len(targets), len(outputs)) > 1:
            raise ConfigError(several_error(type(self).__name__, "several outputs"))
        y, y_pred, sample_weight = targets[0], outputs[0], weights[0]
        if y is None or self.loss is None:
            raise LossError(
                f"{type(self).__name__} needs one loss per example: give targets to fit(), and a "
                "loss to compile(), not add_loss() alone"
            )
        if not self._loss_of_each or self._loss_of_each.compiled is not self.loss:
            self._loss_of_each = LossOfEach(self.loss, y, y_pred)
        with torch.no_grad():
            return cast(Tensor, self._loss_of_each(y, y_pred, sample_weight))

    def train_on(
        self, batch: Any, factors: Tensor | None, record: Callable[[Any, Any], None] | None = None
    ) -> Any:
        """Keras's own training step.

        Args:
            batch: Inputs, targets and sample weights of b examples.
            factors: float32[b], the weights of their losses, besides their own; None are all 1.
            record: Is called with the targets, and the outputs of training's forward.
        """
        self.progress.step = factors, record
        try:
            return super().train_step(batch)
        finally:
            self.progress.step = None, None

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """As Keras does, with the loss weights of the selection in a training step."""
        factors, record = self.progress.step
        if training and record:
            record(y, y_pred)
        if training and factors is not None:
            sample_weight = self._loss_of_each.weighted(sample_weight, factors)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def get_config(self) -> dict[str, Any]:
        """The wrapped model's configuration, for ``keras.saving``."""
        return {"model": keras.saving.serialize_keras_object(self.model), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Makes one of `get_config`'s result."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(**{**config, "model": model})

    def save_own_variables(self, store: Any) -> None:
        """Saves the states of the selection and of the training's progress with the weights."""
        buffer = io.BytesIO()
        torch.save(self._saved_state.state_dict(), buffer)
        store[_STATE] = np.frombuffer(buffer.getvalue(), dtype=np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Loads the states that were saved with the weights.

        Raises:
            StateError: If there is none, or one of other settings.
        """
        if _STATE not in store.keys():  # noqa: SIM118, as a store is not a mapping
            raise StateError(
                f"the file has no state of a {type(self).__name__}: load the weights of a bare "
                "model into its model attribute, wrapped.model.load_weights(...)"
            )
        saved = io.BytesIO(np.asarray(store[_STATE]).tobytes())
        self._saved_state.load_state_dict(torch.load(saved, weights_only=True))


class WrapperState(Stateful):
    """The states of objects that a wrapper saves with its weights, by name."""

    def __init__(self, **members: Any) -> None:
        self._members = members

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return self._members


@keras.saving.register_keras_serializable(package="siftback")
class SelectiveModel(KerasWrapper):
    """Wraps a Keras model so that each step trains on the examples of its batch that are worth it.

    Selective-Backprop (Jiang et al. 2019) within Keras's own training step: a forward pass without
    side effects gives the loss of each of the N examples of a batch, `InBatch` chooses exactly
    ``round(keep * N)`` of them, at least two, and Keras's step trains on those. So steps, bars,
    schedules and callbacks are as without it. ``compile()``, ``fit()``, ``evaluate()``,
    ``predict()`` and ``save()`` are used as with the wrapped model. Ideal cost per example of an
    epoch, in forwards (1) and backwards (2): ``1 + 3 * keep``, instead of 3.

    The loss that is chosen by is the compiled one times the example's sample or class weight: what
    training would minimise. Losses of ``add_loss`` and regularizers are of the batch or the model
    and no part of it; training has them as always. Metrics of training, the loss included, are
    those of the chosen examples, which are the harder ones; those of validation are unchanged.

    The states of the selection and of random numbers are saved with the weights, so that training
    that goes on from ``save``, ``save_weights`` or ``BackupAndRestore`` is as if it had not
    stopped: with a `SelectiveDataset` anywhere, with other data between two epochs.

    Args:
        model: The model; it has one output, and does not override Keras's training step.
        keep: Share of each batch to train on, in (0, 1]; ``keep = 1 / (beta + 1)``.
        beta: In place of ``keep``: the exponent, at least 0.
        selector: In place of both: any selector that can keep exactly k. The whole model can then
            not be saved, only its weights.
        warmup: Epochs of ``fit()``, of all calls together, that all examples are trained on at
            first. ``train_on_batch()`` knows no epochs, and selects at once.
        seed: Of what is left to chance in the selection.
        name: As for every Keras model.

    Attributes:
        model: The wrapped model, with the trained weights.
        stats: What was done so far, a `Stats`.

    Raises:
        ConfigError: If an argument is out of its range, the backend is not torch, or the model
            has a training step of its own.

    In the first training step:

    Raises:
        ConfigError: With several outputs or processes, or ``jit_compile=True``.
        LossError: If the loss is not one per example.

    >>> import keras, numpy as np
    >>> x, y = np.random.rand(96, 8).astype("float32"), np.arange(96) % 4
    >>> net = keras.Sequential([keras.Input([8]), keras.layers.Dense(4, activation="softmax")])
    >>> model = SelectiveModel(net, keep=1 / 3)
    >>> model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    >>> history = model.fit(x, y, batch_size=24, epochs=2, verbose=0)
    >>> model.stats.seen, model.stats.backwards, int(model.optimizer.iterations)
    (192, 128, 8)
    >>> model.predict(x, verbose=0).shape
    (96, 4)
    """

    def __init__(
        self,
        model: Any,
        keep: float | None = None,
        *,
        beta: float | None = None,
        selector: Selector | None = None,
        warmup: int = 1,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(model, name)
        self._settings = {"keep": keep, "beta": beta, "warmup": warmup, "seed": seed}
        self._warmup = check_integer("warmup", warmup, 0)
        in_batch = InBatch(
            *(keep, beta, selector),
            schedule=Schedule(warmup=Epochs(0)),  # the warm-up is counted here, in Keras's epochs
            seed=check_integer("seed", seed, 0),
        )
        self._selection, self._can_be_written = StepSelection(in_batch), selector is None
        self._saved_state = WrapperState(progress=self.progress, selection=in_batch)
        self.stats = self._selection.stats

    def check_data(self, data: Any) -> None:
        """Makes sure that examples can be chosen in each step.

        Raises:
            ConfigError: If the data is a `SelectiveDataset` with a rule, which chooses them.
        """
        if isinstance(data, SelectiveDataset) and data.memory:
            raise ConfigError(
                "the SelectiveDataset has memory=, whose losses LossRecorder(model) records: train "
                "that on it, or leave memory= out"
            )

    @property
    def share(self) -> float:
        """Share of the rows that the last batch was to keep; 1 where all were trained on."""
        return self._selection.share

    def train_step(self, data: Any) -> Any:
        """Keras's step, on the rows of the batch that are chosen by their losses."""
        x, y, sample_weight = batch = keras.utils.unpack_x_y_sample_weight(data)

        def score(tries: bool, count: int) -> tuple[Tensor, None]:
            with without_traces(self):
                losses = self.losses_of(y, self(x, training=False), sample_weight)
            if tries and self._selection.in_batch.selector.reweights:
                self._loss_of_each.check_weights()
            return check_losses(losses, count), None

        warms = self.progress.is_training and self.progress.done < self._warmup
        rows, weights = self._selection.take(batch, score, skips=warms)
        return self.train_on(rows, weights)

    def get_config(self) -> dict[str, Any]:
        """The wrapped model's configuration and the arguments, for ``keras.saving``.

        Raises:
            ConfigError: With a selector, which Keras cannot write.
        """
        if not self._can_be_written:
            raise ConfigError(
                "a model with selector= cannot be saved as a whole: save its weights, "
                "save_weights(...), or the wrapped model, wrapped.model.save(...)"
            )
        return {**super().get_config(), **self._settings}


@keras.saving.register_keras_serializable(package="siftback")
class LossRecorder(KerasWrapper):
    """Wraps a Keras model so that its training records each example's loss in a `SelectiveDataset`.

    The loss is that of training's own forward pass, times the example's sample weight; there is no
    other pass. What is remembered is saved with the weights, as are the batches of the epoch that
    were trained on and the states of random numbers, and training goes on from ``save``,
    ``save_weights`` or ``BackupAndRestore``, also within an epoch, as if it had not stopped.

    Args:
        model: The model; it has one output, and does not override Keras's training step.
        name: As for every Keras model.

    Attributes:
        model: The wrapped model, with the trained weights.
        stats: What was done so far, a `Stats`.

    Raises:
        ConfigError: If the backend is not torch, or the model has a training step of its own.

    For an example see `SelectiveDataset`.
    """

    def check_data(self, data: Any) -> None:
        """Makes sure that losses can be recorded.

        Raises:
            ConfigError: If the data is not a `SelectiveDataset` with a rule.
        """
        if not isinstance(data, SelectiveDataset) or not data.memory:
            without = " without memory=" if isinstance(data, SelectiveDataset) else ""
            raise ConfigError(
                f"LossRecorder.fit() trains on a SelectiveDataset with memory=, and was given a "
                f"{type(data).__name__}{without}: make one of it, or train recorder.model"
            )

    def train_step(self, data: Any) -> Any:
        """Keras's step, which records the losses of the batch."""
        x, y, carried = keras.utils.unpack_x_y_sample_weight(data)
        if not (isinstance(carried, dict) and INDEX in carried):
            raise ConfigError(
                "LossRecorder trains on batches that carry the indices of their examples: call "
                "fit() with a SelectiveDataset, or train the wrapped model, recorder.model"
            )
        assert self.progress.dataset
        indices, sample_weight = carried[INDEX].cpu(), carried.get(OWN)
        weights = self.progress.dataset.take_batch(indices, self.stats)
        factors = weights.to(carried[INDEX].device) if bool((weights != 1).any()) else None
        record = partial(self._record_losses, indices, sample_weight)
        return self.train_on((x, y, sample_weight), factors, record)

    def _record_losses(self, indices: Tensor, sample_weight: Any, y: Any, y_pred: Any) -> None:
        dataset = self.progress.dataset
        assert dataset
        losses = self.losses_of(y, y_pred, sample_weight)
        if dataset.reweights:  # also in epochs whose weights are 1
            self._loss_of_each.check_weights()
        dataset.update(indices, losses)

    def test_step(self, data: Any) -> Any:
        """Keras's step; nothing is recorded."""
        if isinstance(keras.utils.unpack_x_y_sample_weight(data)[2], dict):
            raise ConfigError(
                "a SelectiveDataset holds what an epoch trains on: evaluate with the data itself"
            )
        return super().test_step(data)


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
        resolved = get_loss(keras.tree.flatten(loss)[0], y, y_pred)
        if type(resolved).__call__ is not keras.losses.Loss.__call__:
            raise LossError(
                f"the loss {resolved.name} overrides __call__, so that it cannot be computed for "
                "each example: override call(y_true, y_pred), which gives one loss per example"
            )
        # Keras's own copy() would write the loss to a file.
        self._resolved, self._each = resolved, object.__new__(type(resolved))
        vars(self._each).update(vars(resolved), reduction="none", call=self.call)
        self._check(y, y_pred)

    def __call__(self, y: Any, y_pred: Any, sample_weight: Any) -> Tensor:
        """float[N], of targets, outputs and the examples' own weights."""
        # What a loop changes of the loss, such as a gamma, is changed here too.
        vars(self._each).update(vars(self._resolved), reduction="none")
        values: Tensor = self._each(y, y_pred)
        candidates = getattr(y_pred, "_keras_mask", None), self._mask, sample_weight
        factors = [factor for factor in candidates if factor is not None]
        if values.ndim == 1 and not factors:
            return values
        weights = torch.ones_like(values)
        for factor in factors:
            weights = weights * fit_dimensions(to_tensor(factor).to(values), values.ndim)
        valid = (weights != 0).reshape(len(values), -1).sum(1).clamp(min=1)
        return (values * weights).reshape(len(values), -1).sum(1) / valid

    def call(self, y: Any, y_pred: Any) -> Any:
        """As the loss's own; notes their shape, and which positions the loss does not ignore."""
        losses = type(self._each).call(self._each, y, y_pred)
        self._shape, self._mask = losses.shape, getattr(losses, "_keras_mask", None)
        return losses

    def weighted(self, sample_weight: Any, factors: Tensor) -> Tensor:
        """An example's own weights times those of the selection, for each of its positions."""
        self.check_weights()
        factors = fit_dimensions(factors, len(self._shape))
        if sample_weight is not None:
            weights = to_tensor(keras.tree.flatten(sample_weight)[0])
            factors = fit_dimensions(weights, len(self._shape)) * factors.to(weights)
        # Keras multiplies them in place with a mask of the positions.
        return factors.expand(len(factors), *self._shape[1:]).clone()

    def check_weights(self) -> None:
        """Makes sure that the reduction does not undo weights.

        Raises:
            ConfigError: If it does.
        """
        if self._resolved.reduction == "mean_with_sample_weight":
            raise ConfigError(
                f'the loss {self._resolved.name} has reduction="mean_with_sample_weight", which '
                "would undo the loss weights of the selection: leave reduction= out"
            )

    def _check(self, y: Any, y_pred: Any) -> None:
        """Compares the losses of a batch with that of its first example."""
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
                f"the loss {self._resolved.name} does not give one loss per example (its shape is "
                f"{list(values.shape)} for {count} examples): give a loss whose value for an "
                "example depends on that example alone, without a mean over the batch"
            )


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


def check_model(name: str, model: Any) -> None:
    """Checks that a wrapper can be put round a model.

    Raises:
        ConfigError: If the backend is not torch, or it is no model that leaves its steps to Keras.
    """
    if keras.backend.backend() != "torch":
        raise ConfigError(
            f"{name} needs Keras's torch backend, and this is {keras.backend.backend()}: set the "
            "environment variable KERAS_BACKEND=torch before keras is imported"
        )
    if not isinstance(model, keras.Model) or isinstance(model, KerasWrapper):
        raise ConfigError(f"{name} wraps a Keras model, and was given a {type(model).__name__}")
    changed = [step for step in _STEPS if getattr(type(model), step) != getattr(keras.Model, step)]
    if changed:
        raise ConfigError(
            f"{type(model).__name__} overrides {' and '.join(changed)}, which {name} would "
            "bypass: use siftback.InBatch in that method"
        )


def several_error(name: str, problem: str) -> str:
    """Returns the message of an error about a model or loss of several outputs."""
    return (
        f"{name} chooses by one loss per example, and there are {problem}: give the model one "
        "output, and combine its parts in the loss"
    )


def to_tensor(value: Any) -> Any:
    """A value as a tensor on Keras's device; None as it is."""
    return None if value is None else keras.ops.convert_to_tensor(value)


def fit_dimensions(weights: Tensor, ndim: int) -> Tensor:
    """Weights with as many dimensions as the losses, of which the last ones may be 1."""
    while weights.ndim > ndim and weights.shape[-1] == 1:
        weights = weights.squeeze(-1)
    return weights.reshape(*weights.shape, *[1] * (ndim - weights.ndim))
