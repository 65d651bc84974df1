"""Selection inside Keras 3, on its torch backend.

`SelectiveBackprop` wraps a model and selects within each training step; `MemoryDataset` leaves
examples out before they are read, by the losses that `LossRecorder`, round the model, records.
Set ``KERAS_BACKEND=torch`` before Keras is imported.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from siftback.arguments import checked_integer
from siftback.errors import BatchError, ConfigError, LossError
from siftback.frameworks.keras_wrapper import KerasWrapper, keras, to_tensor, without_traces
from siftback.loading import tree
from siftback.loading.stats import Stats
from siftback.rules.rule import EpochRule
from siftback.rules.sampler import SelectiveSampler
from siftback.selectors.in_batch import InBatch
from siftback.selectors.selection import Selector
from siftback.states import check_state, integer

__all__ = ["LossRecorder", "MemoryDataset", "SelectiveBackprop"]

_INDEX, _WEIGHT, _OWN = "sift_index", "sift_weight", "sample_weight"


@keras.saving.register_keras_serializable(package="siftback")
class SelectiveBackprop(KerasWrapper):
    """Wraps a Keras model so that each step trains on the examples of its batch that are worth it.

    Selective-Backprop (Jiang et al. 2019) within Keras's own training step: a forward pass without
    side effects gives the loss of each of the N examples of a batch, `InBatch` chooses exactly
    ``max(1, round(keep * N))`` of them, and Keras's step trains on those. So steps, bars,
    schedules and callbacks are as without it. ``compile()``, ``fit()``, ``evaluate()``,
    ``predict()`` and ``save()`` are used as with the wrapped model. Ideal cost per example of an
    epoch, in forwards (1) and backwards (2): ``1 + 3 * keep``, instead of 3.

    The loss that is chosen by is the compiled one times the example's sample or class weight: what
    training would minimise. Losses of ``add_loss`` and regularizers are of the batch or the model
    and no part of it; training has them as always. Metrics of training, the loss included, are
    those of the chosen examples, which are the harder ones; those of validation are unchanged.

    The state of the selection is saved with the weights: training that goes on from ``save``,
    ``save_weights`` or ``BackupAndRestore`` between two epochs selects as if it had not stopped.

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

    >>> import keras
    >>> x, y = np.random.rand(96, 8).astype("float32"), np.arange(96) % 4
    >>> net = keras.Sequential([keras.Input([8]), keras.layers.Dense(4, activation="softmax")])
    >>> model = SelectiveBackprop(net, keep=1 / 3)
    >>> model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    >>> history = model.fit(x, y, batch_size=24, epochs=2, verbose=0)
    >>> model.stats.seen, model.stats.backwards, int(model.optimizer.iterations)
    (192, 128, 8)
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
        self._settings = {"keep": keep, "beta": beta, "seed": seed, "warmup": warmup}
        self._warmup = checked_integer("warmup", warmup, 0)
        self._epochs, self._fits = 0, False
        self._in_batch = InBatch(keep, beta, selector, seed=checked_integer("seed", seed, 0))
        self._own_selector = selector is not None
        self.stats = Stats()

    def fit(self, *args: Any, **settings: Any) -> Any:
        """Trains, as Keras does, and counts the epochs."""
        counts = keras.callbacks.LambdaCallback(on_epoch_end=self._count_epoch)  # before any saves
        settings["callbacks"] = [counts, *keras.tree.flatten(settings.get("callbacks") or [])]
        self._fits = True
        try:
            return super().fit(*args, **settings)
        finally:
            self._fits = False

    def _count_epoch(self, epoch: int, logs: Any) -> None:
        self._epochs += 1

    def train_step(self, data: Any) -> Any:
        """Keras's step, on the rows of the batch that are chosen by their losses."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        count = tree.size((x, y, sample_weight))
        self.stats.seen += count
        if self._fits and self._epochs < self._warmup:
            self.stats.released += count
            return super().train_step((x, y, sample_weight))
        with without_traces(self):
            losses = self.losses_of(y, self(x, training=False), sample_weight)
        rows, weights = self._in_batch.select(losses)
        stats, kept = self.stats, len(rows)
        stats.considered, stats.scored = stats.considered + count, stats.scored + count
        stats.kept, stats.released = stats.kept + kept, stats.released + kept
        if kept < count:
            x, y, sample_weight = tree.take((x, y, sample_weight), rows)
        self.factors = weights if self._in_batch.selector.reweights else None
        try:
            return super().train_step((x, y, sample_weight))
        finally:
            self.factors = None

    def get_config(self) -> dict[str, Any]:
        """The wrapped model's configuration and the arguments, for ``keras.saving``.

        Raises:
            ConfigError: With a selector, which Keras cannot write.
        """
        if self._own_selector:
            raise ConfigError(
                "a model with selector= cannot be saved as a whole: save its weights, "
                "save_weights(...), or the wrapped model, wrapped.model.save(...)"
            )
        return {**super().get_config(), **self._settings}

    def selection_state(self) -> dict[str, Any]:
        """That of `InBatch`, and the epochs done."""
        return {"epochs": self._epochs, **self._in_batch.state_dict()}

    def load_selection_state(self, state: dict[str, Any]) -> None:
        """See `InBatch.load_state_dict`."""
        check_state(self, state, {"epochs": integer()})
        self._in_batch.load_state_dict(state)
        self._epochs = state["epochs"]


class MemoryDataset(keras.utils.PyDataset):
    """Batches of the examples that a rule such as `Memory` draws for each epoch; no other is read.

    It is trained on by ``LossRecorder(model).fit(dataset, epochs=...)``, which records the loss of
    each example for the draws that follow. Each batch carries the indices of its examples, so
    that worker threads and reading ahead cannot mix losses up. The order is a function of the seed
    and the epoch; ``fit(shuffle=...)`` has no part in it.

    Args:
        data: A tuple of arrays or tensors, ``(x, y)`` or ``(x, y, sample_weight)``, each of which
            may be nested; or a map-style data set of examples that are such tuples.
        batch_size: Examples of a batch; the last one of an epoch may be smaller.
        memory: An `EpochRule` that needs no scoring passes, such as `Memory`. Its loss weights, if
            it has any, are applied.
        epochs: Of the whole training, which ``fit`` must agree with.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders and the draws.
        collate_fn: Makes a batch of examples of a map-style data set; by default that of PyTorch.
        settings: ``workers``, ``use_multiprocessing`` and ``max_queue_size`` of ``PyDataset``.

    Raises:
        ConfigError: If an argument is out of its range, or the rule needs scoring passes.

    >>> import keras
    >>> from siftback import Memory
    >>> x, y = np.random.rand(96, 8).astype("float32"), np.arange(96) % 4
    >>> dataset = MemoryDataset((x, y), batch_size=16, memory=Memory(keep=0.5), epochs=4)
    >>> net = keras.Sequential([keras.Input([8]), keras.layers.Dense(4, activation="softmax")])
    >>> model = LossRecorder(net)
    >>> rate = keras.optimizers.schedules.CosineDecay(0.1, dataset.total_steps)
    >>> model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    >>> history = model.fit(dataset, epochs=4, verbose=0)
    >>> dataset.total_steps, int(model.optimizer.iterations), model.stats.unread
    (15, 15, 144)
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 32,
        *,
        memory: EpochRule,
        epochs: int,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.batch_size = checked_integer("batch_size", batch_size, 1)
        self.epochs = checked_integer("epochs", epochs, 1)
        if not isinstance(memory, EpochRule):
            raise ConfigError(
                f"memory={memory!r} is not an EpochRule: give an instance, such as memory=Memory()"
            )
        self._data, self._collate = data, collate_fn
        self._is_arrays = isinstance(data, tuple | list)
        if self._is_arrays and len(data) not in (2, 3):
            raise BatchError(
                f"the data is a {type(data).__name__} of {len(data)} parts: give (x, y), "
                "(x, y, sample_weight) or a map-style data set"
            )
        examples = range(tree.size(data) if self._is_arrays else len(data))
        self._sampler = SelectiveSampler(
            examples, memory, shuffle=shuffle, seed=seed, epochs=epochs, rank=0, world=1
        )
        self._order: Tensor | None = None  # int64[n], that of the epoch in training

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return self._sampler.examples

    @property
    def num_batches(self) -> int:
        """Batches of the epoch in training; outside of training those of a whole epoch."""
        count = self.examples if self._order is None else len(self._order)
        return math.ceil(count / self.batch_size)

    def __len__(self) -> int:
        return self.num_batches

    def steps(self, epoch: int) -> int:
        """Batches of an epoch, from 0.

        Raises:
            TypeError: If the rule cannot know before it has drawn.
        """
        assert self._sampler.draw is not None
        count = self._sampler.draw.count(epoch)
        if count is None:
            rule = type(self._sampler.draw.rule).__name__
            raise TypeError(
                f"how many examples {rule} draws is not known before an epoch begins: take a rule "
                "of a fixed count, such as Memory"
            )
        return math.ceil(count / self.batch_size)

    @property
    def total_steps(self) -> int:
        """Batches of the whole training, for learning-rate schedules.

        Raises:
            TypeError: As `steps`.
        """
        return sum(self.steps(epoch) for epoch in range(self.epochs))

    def __getitem__(self, index: int) -> tuple[Any, Any, dict[str, Any]]:
        """A batch of the epoch in training: inputs, targets, and its weights and indices."""
        if self._order is None:
            raise ConfigError(
                "a MemoryDataset has batches only in the training that draws them: train "
                "LossRecorder(model) on it, and evaluate or predict with the data itself"
            )
        assert self._sampler.draw is not None
        indices = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        x, y, own = self._read(indices)
        carried = {_INDEX: indices, _WEIGHT: self._sampler.draw.weights_of(indices)}
        return x, y, carried if own is None else {**carried, _OWN: own}

    def first_examples(self) -> tuple[Any, Any, Any]:
        """One batch of the data in its own order: inputs, targets and sample weights."""
        return self._read(torch.arange(min(self.batch_size, self.examples)))

    def begin_epoch(self, epoch: int) -> None:
        """Draws the examples of an epoch."""
        self._sampler.set_epoch(epoch)
        self._order = torch.from_numpy(np.fromiter(self._sampler, np.int64))

    def end_training(self) -> None:
        """Has no batches until the next epoch is begun."""
        self._order = None

    def update(self, indices: Tensor, losses: Tensor) -> None:
        """Gives the rule the losses of examples of the epoch in training."""
        self._sampler.update(indices, losses)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered of the examples, and what the draws depend on."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state, between two epochs.

        Raises:
            StateError: If that one was made with other arguments.
        """
        self._sampler.load_state_dict(state)

    def _read(self, indices: Tensor) -> tuple[Any, Any, Any]:
        if self._is_arrays:
            batch = tree.take(tuple(self._data), indices)
        else:
            batch = self._collate([self._data[index] for index in indices.tolist()])
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise BatchError(
                f"a batch is a {type(batch).__name__}: give examples that are (x, y) or "
                "(x, y, sample_weight), or a collate_fn that makes such batches"
            )
        x, y, *own = batch
        return x, y, own[0] if own else None


@keras.saving.register_keras_serializable(package="siftback")
class LossRecorder(KerasWrapper):
    """Wraps a Keras model so that its training records each example's loss in a `MemoryDataset`.

    The loss is that of training's own forward pass, times the example's sample weight; there is no
    other pass. What is remembered is saved with the weights, and training goes on from
    ``save``, ``save_weights`` or ``BackupAndRestore`` between two epochs as if it had not stopped.

    Args:
        model: The model; it has one output, and does not override Keras's training step.
        name: As for every Keras model.

    Attributes:
        model: The wrapped model, with the trained weights.
        stats: What was done so far, a `Stats`.

    Raises:
        ConfigError: If the backend is not torch, or the model has a training step of its own.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        super().__init__(model, name)
        self.stats = Stats()
        self._dataset: MemoryDataset | None = None
        self._loaded: dict[str, Any] | None = None  # of a file, for the data set to come
        self._current: tuple[Any, Any] | None = None  # the step's indices and sample weights

    def fit(self, x: Any = None, **settings: Any) -> Any:
        """Trains on a `MemoryDataset`.

        Args:
            x: The data set.
            settings: Those of ``fit()``. ``epochs`` is that of the data set.

        Raises:
            ConfigError: If the data set is another, or a setting does not go with one.
            StateError: If a loaded state is of a data set with other arguments.
        """
        _check_settings(x, settings)
        self._dataset = x
        if self._loaded is not None:
            x.load_state_dict(self._loaded)
            self._loaded = None
        # Builds what is not built. Keras would read batches for it, of an epoch not yet begun.
        self.test_on_batch(*keras.tree.map_structure(to_tensor, x.first_examples()))
        verbose = settings.get("verbose", "auto")
        begins = _EpochBegins(x, self.stats)
        callbacks = begins.callbacks = keras.callbacks.CallbackList(
            [begins, *keras.tree.flatten(settings.pop("callbacks", None) or [])],
            add_history=True,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=x.epochs,
            steps=x.num_batches,
            model=self,
        )
        settings["epochs"], settings["shuffle"] = x.epochs, False
        try:
            with warnings.catch_warnings():
                # As Keras says where an epoch has fewer batches than the first one.
                warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
                return super().fit(x, callbacks=callbacks, **settings)
        finally:
            x.end_training()

    def train_step(self, data: Any) -> Any:
        """Keras's step, which records the losses of the batch."""
        x, y, carried = keras.utils.unpack_x_y_sample_weight(data)
        if self._dataset is None or not (isinstance(carried, dict) and _INDEX in carried):
            raise ConfigError(
                "LossRecorder trains on batches that carry the indices of their examples: call "
                "fit() with a MemoryDataset, or train the wrapped model, recorder.model"
            )
        weights, own = carried[_WEIGHT], carried.get(_OWN)
        self._current = carried[_INDEX], own
        self.factors = weights if bool((weights != 1).any()) else None
        try:
            return super().train_step((x, y, own))
        finally:
            self._current = self.factors = None

    def test_step(self, data: Any) -> Any:
        """Keras's step; nothing is recorded."""
        if isinstance(keras.utils.unpack_x_y_sample_weight(data)[2], dict):
            raise ConfigError(
                "a MemoryDataset holds what an epoch trains on: evaluate with the data itself"
            )
        return super().test_step(data)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """As Keras does, after recording the losses of a training step's batch."""
        if training and self._current is not None:
            assert self._dataset is not None
            indices, own = self._current
            losses = self.losses_of(y, y_pred, own)
            wrong = ~losses.isfinite()
            if wrong.any():
                row = int(wrong.nonzero()[0])
                raise LossError(
                    f"the loss of example {int(indices[row])} is {float(losses[row])}: lower the "
                    "learning rate or fix the example"
                )
            self._dataset.update(indices.cpu(), losses)
            self.stats.released += len(losses)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def selection_state(self) -> dict[str, Any]:
        """The state of the data set trained on; None where there is none yet."""
        return {"dataset": self._loaded if self._dataset is None else self._dataset.state_dict()}

    def load_selection_state(self, state: dict[str, Any]) -> None:
        """Goes on from another's state, at the latest as ``fit()`` is called."""
        if self._dataset is None:
            self._loaded = state["dataset"]
        elif state["dataset"] is not None:
            self._dataset.load_state_dict(state["dataset"])


class _EpochBegins(keras.callbacks.Callback):
    """Draws an epoch's examples as it begins, whichever one Keras says that it is."""

    def __init__(self, dataset: MemoryDataset, stats: Stats) -> None:
        super().__init__()
        self.callbacks: Any = None  # the list of all callbacks, this one included
        self._dataset, self._stats = dataset, stats

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._dataset.begin_epoch(epoch)
        assert self._dataset._order is not None
        unread = self._dataset.examples - len(self._dataset._order)
        self._stats.seen += self._dataset.examples
        self._stats.considered += self._dataset.examples
        self._stats.unread += unread
        self._stats.kept += len(self._dataset._order)
        params = {**self.callbacks.params, "steps": self._dataset.num_batches}
        self.callbacks.set_params(params)  # the length that the progress bar shows


def _check_settings(dataset: Any, settings: dict[str, Any]) -> None:
    """Makes sure that ``fit()`` was called with what goes with a `MemoryDataset`."""
    if not isinstance(dataset, MemoryDataset):
        raise ConfigError(
            f"LossRecorder.fit() trains on a MemoryDataset, and was given a "
            f"{type(dataset).__name__}: make one of it, or train the wrapped model, recorder.model"
        )
    epochs = settings.get("epochs", 1)
    if epochs != dataset.epochs:
        raise ConfigError(
            f"fit(epochs={epochs}) and MemoryDataset(epochs={dataset.epochs}): give both the "
            "length of the whole training"
        )
    if isinstance(settings.get("callbacks"), keras.callbacks.CallbackList):
        raise ConfigError("callbacks= is a CallbackList: give a list of callbacks")
    if settings.get("validation_data") is dataset:
        raise ConfigError("validation_data= is the MemoryDataset: give data that is not selected")
    for name, instead in (
        ("class_weight", "give the data set a third part, sample weights"),
        ("steps_per_epoch", "the rule says how many examples an epoch has"),
        ("validation_split", "give validation_data="),
        ("y", "the data set has the targets"),
        ("sample_weight", "give the data set a third part, sample weights"),
        ("batch_size", "the data set has one"),
    ):
        if settings.get(name) is not None and settings[name] != 0.0:
            raise ConfigError(f"{name}= does not go with a MemoryDataset: {instead}")
