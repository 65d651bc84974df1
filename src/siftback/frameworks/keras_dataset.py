"""For `siftback.frameworks.keras`: a data set of known order, and the progress of its training."""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from siftback.installation import naming_extra

with naming_extra("keras", "Keras 3", "keras"):  # not the package of another backend
    import keras as keras

from siftback.arguments import check_integer
from siftback.batches import tree
from siftback.batches.collating import REORDERS, Reordered, with_test
from siftback.batches.stats import Stats
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import BatchError, ConfigError, StateError
from siftback.frameworks.step_selection import count_drawn
from siftback.losses.per_example import check_finite
from siftback.rules.rule import EpochRule, checked_rule
from siftback.state import (
    MOST_EPOCHS,
    Check,
    Stateful,
    anything,
    check_entries,
    dict_of,
    generator_state,
    integer,
    optional,
    raise_damaged,
    tensor,
    tuple_of,
)

_NONE = -1  # in a state: the epoch is not begun
INDEX, OWN = "sift_index", "sample_weight"


class SelectiveDataset(keras.utils.PyDataset, Stateful):
    """Batches in an order that is known, so that training goes on within an epoch.

    The order is a function of the seed and the epoch; ``fit(shuffle=...)`` has no part in it. How
    far training has come is saved with the weights, and goes on with the next batch.

    With ``memory=``, an epoch consists of passes over the data, see `SelectiveSampler`: it has as
    many batches as without, and what the rule leaves out of a pass is not read. It is then trained
    on by ``LossRecorder(model).fit(dataset, epochs=...)``, which records the loss of each example
    for the draws that follow. A pass is drawn when all batches before its first one were trained
    on, however many workers read ahead. Each batch carries the indices of its examples, so that
    they cannot mix losses up. Without ``memory=`` it is for
    ``SelectiveModel(model, ...).fit(dataset, epochs=...)``.

    Args:
        data: A tuple of arrays or tensors, ``(x, y)`` or ``(x, y, sample_weight)``, each of which
            may be nested; or a map-style data set of examples that are such tuples.
        batch_size: Examples of a batch; the last one of an epoch may be smaller.
        memory: An `EpochRule` that needs no scoring passes, such as `Memory`. Its loss weights, if
            it has any, are applied. None leaves no example out.
        epochs: Of the whole training, which ``fit`` must agree with.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders and the draws.
        collate_fn: Makes a batch of examples of a map-style data set; by default that of PyTorch.
        settings: ``workers``, ``use_multiprocessing`` and ``max_queue_size`` of ``PyDataset``.

    Raises:
        BatchError: If the data is a loader, or not of two or three arrays.
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
    (24, 24, 288)
    """

    setting_names = ("batch_size",)

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
        self._data, self._collate = data, with_test(collate_fn) if self.memory else collate_fn
        self._is_arrays = isinstance(data, tuple | list)
        is_loader = isinstance(data, DataLoader | keras.utils.PyDataset)
        if is_loader or (self._is_arrays and len(data) not in (2, 3)):
            raise BatchError(
                f"the data is a {type(data).__name__} of "
                f"{'batches' if is_loader else f'{len(data)} parts'}: give arrays, (x, y) or "
                "(x, y, sample_weight), or a map-style data set of examples"
            )
        # By position: a tuple of two without rows, such as data frames, is no two examples.
        arrays = dict(enumerate(data)) if self._is_arrays else {}
        self._lists = tree.lists_of(arrays) if arrays else frozenset()
        examples = range(tree.size(arrays)) if arrays else data
        self._sampler = SelectiveSampler(
            examples, memory, shuffle=shuffle, seed=seed, epochs=epochs, rank=0, world=1
        )
        self._sampler.batch_size = self.batch_size
        self._draw: Any = self._sampler.draw  # wherever there is a rule
        # The order of the epoch in training, int64[n], and how much of it is known, more with each
        # pass, and -1 between epochs; where worker processes read, in memory that they share.
        self._order = torch.empty(self.examples, dtype=torch.int64)
        self._known = torch.tensor([_NONE])
        if self.use_multiprocessing:
            for shared in (self._order, self._known):
                cast(Any, shared).share_memory_()
        self._blocks: Iterator[Tensor] = iter(())
        self._first = 0  # the batch of it that fit() begins with

    @property
    def examples(self) -> int:
        """The number of examples."""
        return self._sampler.examples

    @property
    def reweights(self) -> bool:
        """Whether the rule may give examples weights other than 1."""
        return bool(self.memory and (self.memory.reweights or self._draw.reweights))

    @property
    def share(self) -> float:
        """Share of the examples that the pass in training has; 1 without ``memory=``."""
        return self._draw.share if self.memory else 1.0

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return math.ceil(self.examples / self.batch_size)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch; of one that training goes on in, those that were left."""
        return self.batches - self._first

    @property
    def total_steps(self) -> int:
        """Batches of the whole training, for learning-rate schedules."""
        return self.epochs * self.batches

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_blocks": iter(())}  # worker processes that are spawned draw nothing

    def __len__(self) -> int:
        return self.num_batches

    def __bool__(self) -> bool:
        return True  # not by its length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """A batch of the epoch in training: inputs, targets, and sample weights or indices."""
        start = (self._first + index) * self.batch_size
        end = min(start + self.batch_size, self.examples)
        while 0 <= self._known[0] < end:  # of a pass that is drawn when training comes to it
            time.sleep(1e-3)
        if self._known[0] < 0:
            raise ConfigError(
                "a SelectiveDataset has batches only in the training that draws them: train "
                "SelectiveModel(model) on it, or with memory= LossRecorder(model), and evaluate "
                "or predict with the data itself"
            )
        indices = self._order[start:end].clone()
        x, y, sample_weight = self._read(indices)
        if not self.memory:
            return (x, y) if sample_weight is None else (x, y, sample_weight)
        carried = {INDEX: indices}
        return x, y, carried if sample_weight is None else {**carried, OWN: sample_weight}

    def first_examples(self) -> tuple[Any, Any, Any]:
        """One batch of the data in its own order: inputs, targets and sample weights."""
        return self._read(torch.arange(min(self.batch_size, self.examples)))

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, in which the last pass goes on or another is drawn."""
        self._sampler.set_epoch(epoch)
        self._sampler.begin()
        self._set_order(epoch, 0)

    def resume_epoch(self, epoch: int, batches: int) -> None:
        """Goes on within an epoch, as it was drawn before the state that was loaded was saved.

        Args:
            epoch: Which one.
            batches: How many of it were trained on.

        Raises:
            StateError: If it does not have more.
        """
        if batches >= self.batches:
            raise_damaged("batches", batches, f"less than the {self.batches} of the epoch")
        self._set_order(epoch, batches)

    def draw_batch(self, batch: int) -> None:
        """Draws the passes that have examples of a batch of the epoch in training."""
        known = int(self._known[0])
        while known < min((batch + 1) * self.batch_size, self.examples):
            indices = next(self._blocks)
            self._order[known : known + len(indices)] = indices
            known += len(indices)
        self._known[0] = known

    def end_epoch(self) -> None:
        """Ends the epoch that was begun; its batches may still be asked for."""
        if self._known[0] == self.examples:  # else it was left, and its last pass with it
            self._sampler.end()

    def end_training(self) -> None:
        """Has no batches until the next epoch is begun."""
        self._known[0], self._first = _NONE, 0

    def take_batch(self, indices: Tensor, stats: Stats) -> Tensor:
        """Counts the examples of the next batch, and returns their loss weights.

        Args:
            indices: int64[n], its examples.
            stats: The counts.

        Returns:
            float32[n].
        """
        count_drawn(stats, self._draw, len(indices))
        return cast(Tensor, self._draw.weights_of(indices))

    def update(self, indices: Tensor, losses: Tensor) -> None:
        """Gives the rule the losses of examples of the epoch in training.

        Raises:
            LossError: If one is not finite, in a later step where losses are of a device.
        """
        note = partial(check_finite, name=lambda row: f"{int(indices[row])}")
        self._draw.losses.reads.add(note, losses)
        self._sampler.update(indices, losses, passes=self._draw.pass_sizes(len(losses)))

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"sampler": self._sampler}

    def _set_order(self, epoch: int, first: int) -> None:
        self._blocks, self._first, self._known[0] = self._sampler.order(epoch), first, 0
        self.draw_batch(first)

    def _read(self, indices: Tensor) -> tuple[Any, Any, Any]:
        if self._is_arrays:
            batch = tree.take(tuple(self._data), indices, self._lists)
        else:
            batch = self._collate([self._data[index] for index in indices.tolist()])
        if isinstance(batch, Reordered):
            raise ConfigError(f"collate_fn {REORDERS}")
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise BatchError(
                f"a batch is a {type(batch).__name__}: give examples that are (x, y) or "
                "(x, y, sample_weight), or a collate_fn that makes such batches"
            )
        return (*batch, None)[:3]


class Progress(keras.callbacks.Callback, Stateful):
    """Which epoch a training is in, and how many of its batches were trained on.

    It is the first callback of a training, and so up to date before others save it.

    Args:
        model: The wrapper, in whose files it is saved.

    Attributes:
        dataset: The one that is trained on, where its position is known.
        is_training: Whether ``fit()`` is under way.
        done: Epochs trained in all calls of ``fit()`` together.
        loaded: The state of a file, from which the next epoch goes on; else empty.
        step: Of the current step float32[b], its loss weights, None where all are 1, and what is
            called with its targets and outputs. Keras would track attributes of the model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self._epoch, self._batches = 0, _NONE
        self._random: dict[str, Any] = {}  # to be restored before the next step
        self.is_training = False
        self.done = 0
        self.dataset: SelectiveDataset | None = None
        self.loaded: dict[str, Any] = {}
        self.step: tuple[Tensor | None, Callable[[Any, Any], None] | None] = None, None

    def begin_training(self, data: Any) -> None:
        """Begins a ``fit()``."""
        self.dataset = data if isinstance(data, SelectiveDataset) else None
        self._epoch, self._batches, self.is_training = 0, _NONE, True

    def end_training(self) -> None:
        """Ends it, where it stands."""
        self.is_training, self._random = False, {}
        if self.dataset:
            self.dataset.end_training()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins an epoch, or goes on within the one of the loaded state.

        Raises:
            ConfigError: If the memory of the data set has learned in the training of another model.
            StateError: If the loaded state is of another data set, or within another epoch.
        """
        resumes = bool(self.loaded) and self._load(self.loaded, epoch)
        self.loaded = {}
        if not resumes:
            self.restore_random_state()
            self._batches = 0
            if self.dataset:
                memory = self.dataset.memory
                if memory and memory.learns and memory.table.turn and not (epoch or self.done):
                    raise ConfigError(
                        f"this {type(memory).__name__} has learned in another training: make a new "
                        "SelectiveDataset for this one, with a new memory"
                    )
                self.dataset.begin_epoch(epoch)
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins a step."""
        self.restore_random_state()

    def restore_random_state(self) -> None:
        """Restores random states, if the step is the first of an epoch or of its rest."""
        if self._random:
            restore_random_state(self._random, self._model)
            self._random = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts a batch, and logs the share of the examples that is kept now."""
        logs["sift/share"] = self._model.share  # before another pass is drawn
        self._batches += 1
        if self.dataset and self._batches == self.dataset.batches:
            self.end_epoch()  # what is saved after its last step is not within it
        elif self.dataset:
            self.dataset.draw_batch(self._batches)

    def end_epoch(self) -> None:
        """Ends the epoch, however many of its batches were trained on."""
        if self._batches != _NONE:
            self._epoch, self._batches = self._epoch + 1, _NONE
            self.done += 1
            if self.dataset:
                self.dataset.end_epoch()
                # Keras draws other numbers of random seeds after the rest of an epoch.
                self._random = random_state_of(self._model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the epoch, and logs the share of the examples that is kept now."""
        self.end_epoch()
        logs["sift/share"] = self._model.share

    def begin_restored(self, before: dict[str, Any], _: Any) -> None:
        """Has ``fit()`` begin with the epoch of weights that a callback has restored.

        Keras 3.15 saves epoch 0 within the first epoch after a restart, and the epoch that is over
        after its last batch.

        Args:
            before: The state that was loaded before ``fit()``.
        """
        if self.loaded and self.loaded is not before:
            self._model._initial_epoch = self.loaded["epoch"]

    def log_statistics(self, _: int, logs: dict[str, Any]) -> None:
        """Adds the statistics of the selection to what is logged."""
        logs.update(self._model.stats.log_entries(logs["sift/share"]))

    @property
    def dataset_state(self) -> dict[str, Any] | None:
        """The state of the data set, if there is one."""
        return self.dataset.state_dict() if self.dataset else None

    @property
    def random_state(self) -> dict[str, Any]:
        """The states of random numbers with which training goes on."""
        return self._random or random_state_of(self._model)

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        epochs = integer(most=MOST_EPOCHS)
        random = {"seeds": anything, "cpu": generator_state, "cuda": optional(anything)}
        fields = {"_epoch": epochs, "done": epochs, "_batches": integer(_NONE)}
        return {**fields, "dataset_state": anything, "random_state": dict_of(random)}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, or the one that was loaded and no epoch has gone on from yet."""
        return self.loaded or super().state_dict()

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits, as far as that is known before ``fit()``.

        Raises:
            StateError: If it does not, or training is within an epoch.
        """
        if self.is_training and self._batches != _NONE:
            raise StateError(
                f"weights with the state of a training are loaded within epoch {self._epoch}: load "
                "them before fit(), or between two epochs"
            )
        super().check_state(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state as the next epoch begins.

        Raises:
            StateError: As for `check_state`.
        """
        self.check_state(state)
        self.loaded = state

    def _load(self, state: dict[str, Any], epoch: int) -> bool:
        """Loads a state for an epoch, and returns whether it is within that epoch."""
        # Of a model that is built by now, and may not have been as the file was loaded.
        seeds = [variable.value for variable in seed_variables(self._model)]
        shapes = tuple_of(*[tensor(seed.dtype, *seed.shape) for seed in seeds])
        check_entries(self, state["random_state"], {"seeds": shapes})
        batches, saved, self.done = state["batches"], state["dataset_state"], state["done"]
        resumes = bool(self.dataset) and batches != _NONE and epoch == state["epoch"]
        if not self.dataset:
            if batches > 0:
                warnings.warn(
                    f"the weights were saved after {batches} batches of epoch {state['epoch']}, "
                    f"and fit() begins epoch {epoch} with its first batch, so that examples may "
                    "be trained on twice: train on a SelectiveDataset, which goes on with the "
                    "next batch, or save between epochs",
                    UserWarning,
                    stacklevel=2,
                )
        elif batches > 0 and not (saved and resumes):
            data = "a SelectiveDataset" if saved else "other data"
            raise StateError(
                f"the weights were saved after {batches} batches of epoch {state['epoch']} of "
                f"{data}, and fit() begins epoch {epoch} of a SelectiveDataset: give that data set "
                f"and fit(initial_epoch={state['epoch']}), or begin anew, in a new wrapper"
            )
        elif saved:
            self.dataset.load_state_dict(saved)
            if resumes:
                self.dataset.resume_epoch(epoch, batches)
                self._batches = batches
        follows = batches == _NONE and epoch == state["epoch"] > 0
        if resumes or follows:
            self._random = state["random_state"]
            if batches == 0:  # before Keras asks for a batch, as when it was saved
                self.restore_random_state()
        return resumes


def callbacks_with_progress(progress: Progress, callbacks: Any, verbose: Any) -> list[Any]:
    """Callbacks of ``fit()``, among those that a training's progress needs.

    Raises:
        ConfigError: If they are a ``CallbackList``.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise ConfigError("callbacks= is a CallbackList: give a list of callbacks")
    kinds, callbacks = keras.callbacks, keras.tree.flatten(callbacks or [])
    shows = any(isinstance(callback, kinds.ProgbarLogger) for callback in callbacks)
    # Each callback sees what those before it logged: a bar of Keras's own the share alone.
    first = [progress] if shows or verbose == 0 else [progress, kinds.ProgbarLogger()]
    log = progress.log_statistics
    first.append(kinds.LambdaCallback(on_train_batch_end=log, on_epoch_end=log))
    if any(isinstance(callback, kinds.BackupAndRestore) for callback in callbacks):
        begin = partial(progress.begin_restored, progress.loaded)
        callbacks.append(kinds.LambdaCallback(on_train_begin=begin))  # after it has restored
    return [*first, *callbacks]


def check_settings(dataset: SelectiveDataset, settings: dict[str, Any]) -> None:
    """Makes sure that ``fit()`` was called with what goes with a `SelectiveDataset`.

    Raises:
        ConfigError: If it was not.
    """
    epochs = settings.get("epochs", 1)
    if epochs != dataset.epochs:
        raise ConfigError(
            f"fit(epochs={epochs}) and SelectiveDataset(epochs={dataset.epochs}): give both the "
            "length of the whole training"
        )
    if isinstance(settings.get("validation_data"), SelectiveDataset):
        raise ConfigError("validation_data= is a SelectiveDataset: give data that is unselected")
    for name, instead in (
        ("class_weight", "give the data set a third part, sample weights"),
        ("steps_per_epoch", "the data set knows how many batches an epoch has"),
        ("validation_split", "give validation_data="),
        ("y", "the data set has the targets"),
        ("sample_weight", "give the data set a third part, sample weights"),
        ("batch_size", "the data set has one"),
    ):
        if settings.get(name) is not None and (name, settings[name]) != ("validation_split", 0.0):
            raise ConfigError(f"{name}= does not go with a SelectiveDataset: {instead}")


def seed_variables(model: Any) -> list[Any]:
    """Returns the states of the wrapped model's seed generators, which Keras does not save."""
    weights = {id(weight) for weight in model.model.weights}
    return [variable for variable in model.model.variables if id(variable) not in weights]


def random_state_of(model: Any) -> dict[str, Any]:
    """Returns the states of a wrapper's seed generators and of PyTorch's random numbers."""
    return {
        "seeds": [variable.value.detach().cpu().clone() for variable in seed_variables(model)],
        "cpu": torch.get_rng_state(),  # of dropout without a seed, and of fit(shuffle=True)
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(state: dict[str, Any], model: Any) -> None:
    """Restores what `random_state_of` returned."""
    for variable, seed in zip(seed_variables(model), state["seeds"], strict=True):
        variable.assign(seed)
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
