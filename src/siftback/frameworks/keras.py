"""Selection inside Keras 3, on its torch backend.

`SelectiveModel` wraps a model and selects within each training step. `SelectiveDataset` goes on
within an epoch, and with a rule leaves examples out before they are read, by the losses that
`LossRecorder`, round the model, records.
Set ``KERAS_BACKEND=torch`` before Keras is imported.
"""

from typing import Any

import torch

from siftback.arguments import check_integer
from siftback.batches import tree
from siftback.batches.stats import Stats
from siftback.errors import ConfigError, LossError
from siftback.frameworks.keras_dataset import INDEX, OWN, WEIGHT, SelectiveDataset, keras
from siftback.frameworks.keras_wrapper import KerasWrapper, without_traces
from siftback.losses.per_example import check_losses
from siftback.selectors.in_batch import InBatch
from siftback.selectors.selection import Selector

__all__ = ["LossRecorder", "SelectiveDataset", "SelectiveModel"]


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
        self._in_batch = InBatch(keep, beta, selector, seed=check_integer("seed", seed, 0))
        self._own_selector = selector is not None
        self._tried = False  # whether the losses of a batch were computed
        self.stats = Stats()

    def check_data(self, data: Any) -> None:
        """Makes sure that examples can be chosen in each step.

        Raises:
            ConfigError: If the data is a `SelectiveDataset` with a rule, which chooses them.
        """
        if isinstance(data, SelectiveDataset) and data.memory is not None:
            raise ConfigError(
                "the SelectiveDataset has memory=, whose losses LossRecorder(model) records: train "
                "that on it, or leave memory= out"
            )

    def train_step(self, data: Any) -> Any:
        """Keras's step, on the rows of the batch that are chosen by their losses."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        count = tree.size((x, y, sample_weight))
        self.stats.seen += count
        warms = self.progress.is_training and self.progress.done < self._warmup
        tries, self._tried = not self._tried, True
        if tries or not warms:
            with without_traces(self):
                losses = self.losses_of(y, self(x, training=False), sample_weight)
        if tries:  # what is wrong with a batch or its losses tells before an epoch of warm-up
            check_losses(losses, count)
            tree.take((x, y, sample_weight), torch.zeros(1, dtype=torch.int64))
            if self._in_batch.selector.reweights:
                self.check_weights()
        if warms:
            self.stats.released += count
            return super().train_step((x, y, sample_weight))
        rows, weights = self._in_batch.select(losses)
        stats, count_kept = self.stats, len(rows)
        stats.considered, stats.scored = stats.considered + count, stats.scored + count
        stats.kept, stats.released = stats.kept + count_kept, stats.released + count_kept
        if count_kept < count:
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
        """See `InBatch.state_dict`."""
        return self._in_batch.state_dict()

    def load_selection_state(self, state: dict[str, Any]) -> None:
        """See `InBatch.load_state_dict`."""
        self._in_batch.load_state_dict(state)


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

    def __init__(self, model: Any, name: str | None = None) -> None:
        super().__init__(model, name)
        self.stats = Stats()
        self._current: tuple[Any, Any] | None = None  # the step's indices and sample weights

    def epoch_begins(self, dataset: SelectiveDataset, resumes: bool) -> None:
        """Counts what an epoch, or the rest of one, has."""
        stats, read = self.stats, dataset.remaining
        whole = read if resumes else dataset.examples
        stats.seen, stats.considered = stats.seen + whole, stats.considered + whole
        stats.unread, stats.kept = stats.unread + whole - read, stats.kept + read

    def check_data(self, data: Any) -> None:
        """Makes sure that losses can be recorded.

        Raises:
            ConfigError: If the data is not a `SelectiveDataset` with a rule.
        """
        if not isinstance(data, SelectiveDataset) or data.memory is None:
            without = " without memory=" if isinstance(data, SelectiveDataset) else ""
            raise ConfigError(
                f"LossRecorder.fit() trains on a SelectiveDataset with memory=, and was given a "
                f"{type(data).__name__}{without}: make one of it, or train the wrapped model, "
                "recorder.model"
            )

    def train_step(self, data: Any) -> Any:
        """Keras's step, which records the losses of the batch."""
        x, y, carried = keras.utils.unpack_x_y_sample_weight(data)
        if not (isinstance(carried, dict) and INDEX in carried):
            raise ConfigError(
                "LossRecorder trains on batches that carry the indices of their examples: call "
                "fit() with a SelectiveDataset, or train the wrapped model, recorder.model"
            )
        weights, sample_weight = carried[WEIGHT], carried.get(OWN)
        self._current = carried[INDEX], sample_weight
        self.factors = weights if bool((weights != 1).any()) else None
        try:
            return super().train_step((x, y, sample_weight))
        finally:
            self._current = self.factors = None

    def test_step(self, data: Any) -> Any:
        """Keras's step; nothing is recorded."""
        if isinstance(keras.utils.unpack_x_y_sample_weight(data)[2], dict):
            raise ConfigError(
                "a SelectiveDataset holds what an epoch trains on: evaluate with the data itself"
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
            dataset = self.progress.dataset
            assert dataset is not None
            indices, weights = self._current
            losses = self.losses_of(y, y_pred, weights)
            if dataset.reweights:  # also in epochs whose weights are 1
                self.check_weights()
            wrong = ~losses.isfinite()
            if wrong.any():
                row = int(wrong.nonzero()[0])
                raise LossError(
                    f"the loss of example {int(indices[row])} is {float(losses[row])}: lower the "
                    "learning rate or fix the example"
                )
            dataset.update(indices.cpu(), losses)
            self.stats.released += len(losses)
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)
