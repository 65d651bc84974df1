"""For `siftback.frameworks.keras`: a data set whose order and position are known and saved."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":  # such as the package of another backend
        raise
    raise ImportError(
        "siftback.frameworks.keras needs Keras 3: pip install siftback[keras]"
    ) from error

from siftback.arguments import check_integer
from siftback.batches import tree
from siftback.batches.last_batches import count_batches, find_start
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import BatchError, ConfigError
from siftback.rules.rule import EpochRule, checked_rule
from siftback.state import check_digest, check_entries, raise_damaged, seal, state_of

__all__ = ["INDEX", "OWN", "WEIGHT", "SelectiveDataset", "keras"]

INDEX, WEIGHT, OWN = "sift_index", "sift_weight", "sample_weight"


class SelectiveDataset(keras.utils.PyDataset):
    """Batches in an order that is known, so that training goes on within an epoch.

    The order is a function of the seed and the epoch; ``fit(shuffle=...)`` has no part in it. How
    far training has come is saved with the weights, and goes on with the next batch.

    With ``memory=``, an epoch has only the examples that the rule draws for it, and no other is
    read. It is then trained on by ``LossRecorder(model).fit(dataset, epochs=...)``, which records
    the loss of each example for the draws that follow. Each batch carries the indices of its
    examples, so that worker threads and reading ahead cannot mix losses up. Without ``memory=``
    it is for ``SelectiveModel(model, ...).fit(dataset, epochs=...)``.

    Args:
        data: A tuple of arrays or tensors, ``(x, y)`` or ``(x, y, sample_weight)``, each of which
            may be nested; or a map-style data set of examples that are such tuples.
        batch_size: Examples of a batch; the last one of an epoch may be smaller. Where it would be
            a single one of those that a rule draws, the last two batches share theirs.
        memory: An `EpochRule` that needs no scoring passes, such as `Memory`. Its loss weights, if
            it has any, are applied. None leaves no example out.
        epochs: Of the whole training, which ``fit`` must agree with.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders and the draws.
        collate_fn: Makes a batch of examples of a map-style data set; by default that of PyTorch.
        settings: ``workers``, ``use_multiprocessing`` and ``max_queue_size`` of ``PyDataset``.

    Raises:
        ConfigError: If an argument is out of its range, or the rule needs scoring passes.

    >>> import keras, numpy as np
    >>> from siftback import Memory
    >>> from siftback.frameworks.keras import LossRecorder
    >>> x, y = np.random.rand(96, 8).astype("float32"), np.arange(96) % 4
    >>> dataset = SelectiveDataset((x, y), batch_size=16, memory=Memory(keep=0.5), epochs=4)
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
        memory: EpochRule | None = None,
        epochs: int,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.epochs = check_integer("epochs", epochs, 1)
        self.memory = None if memory is None else checked_rule("memory", memory)
        self._data, self._collate = data, collate_fn
        self._is_arrays = isinstance(data, tuple | list)
        if self._is_arrays and len(data) not in (2, 3):
            raise BatchError(
                f"the data is a {type(data).__name__} of {len(data)} parts: give (x, y), "
                "(x, y, sample_weight) or a map-style data set"
            )
        examples = range(tree.size(data)) if self._is_arrays else data
        self._sampler = SelectiveSampler(
            examples, memory, shuffle=shuffle, seed=seed, epochs=epochs, rank=0, world=1
        )
        self._order: Tensor | None = None  # int64[n], that of the epoch in training
        self._first = 0  # the batch of it that fit() begins with

    @property
    def examples(self) -> int:
        """The number of examples."""
        return self._sampler.examples

    @property
    def reweights(self) -> bool:
        """Whether the rule may give examples weights other than 1."""
        return self._sampler.draw is not None and self._sampler.draw.reweights

    @property
    def num_batches(self) -> int:
        """Batches that the epoch in training still had as fit() began it; else of all examples."""
        if self._order is None:
            return self._batches_of(self.examples)
        return self._batches_of(len(self._order)) - self._first

    @property
    def remaining(self) -> int:
        """Examples of those batches."""
        whole = self.examples if self._order is None else len(self._order)
        return whole - self._start_of(self._first)

    def __len__(self) -> int:
        return self.num_batches

    def steps(self, epoch: int) -> int:
        """Batches of an epoch, from 0.

        Raises:
            TypeError: If the rule cannot know before it has drawn.
        """
        draw = self._sampler.draw
        count = self.examples if draw is None else draw.count(epoch)
        if count is None:
            raise TypeError(
                f"how many examples {type(self.memory).__name__} draws is not known "
                "before an epoch begins: take a rule of a fixed count, such as Memory"
            )
        return self._batches_of(count)

    @property
    def total_steps(self) -> int:
        """Batches of the whole training, for learning-rate schedules.

        Raises:
            TypeError: As `steps`.
        """
        return sum(self.steps(epoch) for epoch in range(self.epochs))

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """A batch of the epoch in training: inputs, targets, and its weights and indices."""
        if self._order is None:
            raise ConfigError(
                "a SelectiveDataset has batches only in the training that draws them: train "
                "SelectiveModel(model) on it, or with memory= LossRecorder(model), and evaluate "
                "or predict with the data itself"
            )
        batch = self._first + index
        indices = self._order[self._start_of(batch) : self._start_of(batch + 1)]
        x, y, sample_weight = self._read(indices)
        if self._sampler.draw is None:
            return (x, y) if sample_weight is None else (x, y, sample_weight)
        carried = {INDEX: indices, WEIGHT: self._sampler.draw.weights_of(indices)}
        return x, y, carried if sample_weight is None else {**carried, OWN: sample_weight}

    def first_examples(self) -> tuple[Any, Any, Any]:
        """One batch of the data in its own order: inputs, targets and sample weights."""
        return self._read(torch.arange(min(self.batch_size, self.examples)))

    def begin_epoch(self, epoch: int) -> None:
        """Draws the examples of an epoch."""
        self._sampler.set_epoch(epoch)
        self._sampler.begin()
        self._set_order(epoch)

    def resume_epoch(self, epoch: int, batches: int) -> None:
        """Goes on within an epoch, as it was drawn before the state that was loaded was saved.

        Args:
            epoch: Which one.
            batches: How many of it were trained on.

        Raises:
            StateError: If it does not have more.
        """
        self._set_order(epoch)
        if batches >= self.num_batches:
            raise_damaged("batches", batches, f"less than the {self.num_batches} of the epoch")
        self._first = batches

    def is_over(self, batches: int) -> bool:
        """Whether an epoch that was begun has no more batches than these."""
        assert self._order is not None
        return batches == self._batches_of(len(self._order))

    def end_epoch(self) -> None:
        """Ends the epoch that was begun; its batches may still be asked for."""
        self._sampler.end()

    def end_training(self) -> None:
        """Has no batches until the next epoch is begun."""
        self._order, self._first = None, 0

    def update(self, indices: Tensor, losses: Tensor) -> None:
        """Gives the rule the losses of examples of the epoch in training."""
        self._sampler.update(indices, losses)

    def state_dict(self) -> dict[str, Any]:
        """Returns the rule's memory, and all that the orders and draws depend on."""
        return seal({"settings": self._settings(), "sampler": self._sampler.state_dict()})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If that of a data set with other arguments, or damaged.
        """
        check_digest(self, state)
        check_entries(self, state, {"sampler": state_of(self._sampler)}, self._settings())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self._sampler.load_state_dict(state["sampler"])

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    def _set_order(self, epoch: int) -> None:
        self._order, self._first = torch.cat([*self._sampler.order(epoch)]), 0

    def _batches_of(self, count: int) -> int:
        return count_batches(count, self.batch_size, whole=self.examples)

    def _start_of(self, batch: int) -> int:
        """The place in the epoch's order of a batch's first example."""
        examples = self.examples if self._order is None else len(self._order)
        return find_start(batch, examples, self.batch_size, whole=self.examples)

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
        x, y, *weights = batch
        return x, y, weights[0] if weights else None
