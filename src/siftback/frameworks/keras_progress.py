"""For `siftback.frameworks.keras`: how far training has come, saved with the weights."""

import warnings
from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError
from siftback.frameworks.keras_dataset import SelectiveDataset, keras
from siftback.state import (
    MOST_EPOCHS,
    anything,
    check_digest,
    check_entries,
    dict_of,
    generator_state,
    integer,
    optional,
    seal,
    tensor,
    tuple_of,
)

__all__ = ["Progress", "callbacks_with_progress", "check_settings"]

_NONE = -1  # in a state: the epoch is not begun


class Progress:
    """Which epoch a training is in, and how many of its batches were trained on.

    Args:
        model: The wrapper, in whose files it is saved.

    Attributes:
        dataset: The one that is trained on, where its position is known.
        is_training: Whether ``fit()`` is under way.
        done: Epochs trained in all calls of ``fit()`` together.
        loaded: The state of a file, from which the next epoch goes on.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._epoch, self._batches = 0, _NONE
        self._random: dict[str, Any] | None = None  # to be restored before the next step
        self.is_training = False
        self.done = 0
        self.dataset: SelectiveDataset | None = None
        self.loaded: dict[str, Any] | None = None

    def begin_training(self, data: Any) -> None:
        """Begins a ``fit()``."""
        self.dataset = data if isinstance(data, SelectiveDataset) else None
        self._epoch, self._batches, self.is_training = 0, _NONE, True

    def end_training(self) -> None:
        """Ends it, where it stands."""
        self.is_training, self._random = False, None
        if self.dataset is not None:
            self.dataset.end_training()

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, or goes on within the one of the loaded state.

        Raises:
            StateError: If the loaded state is of another data set, or within another epoch.
        """
        resumes = self.loaded is not None and self._take_up(self.loaded, epoch)
        self.loaded = None
        if not resumes:
            self.begin_step()
            self._batches = 0
            if self.dataset is not None:
                self.dataset.begin_epoch(epoch)
        self._epoch = epoch
        if self.dataset is not None:
            self._model.epoch_begins(self.dataset, resumes)

    def begin_step(self) -> None:
        """Restores random states, if the step is the first of an epoch or of its rest."""
        if self._random is not None:
            _restore(self._random, self._model)
            self._random = None

    def end_step(self) -> None:
        """Counts a batch."""
        self._batches += 1
        if self.dataset is not None and self.dataset.is_over(self._batches):
            self.end_epoch()  # what is saved after its last step is not within it

    def end_epoch(self) -> None:
        """Ends the epoch, however many of its batches were trained on."""
        if self._batches != _NONE:
            self._epoch, self._batches = self._epoch + 1, _NONE
            self.done += 1
            if self.dataset is not None:
                self.dataset.end_epoch()
                # Keras draws other numbers of random seeds after the rest of an epoch.
                self._random = _random_state(self._model)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the batches of it, and the states of the data set and of random numbers."""
        if self.loaded is not None:
            return self.loaded
        state = {
            "epoch": self._epoch,
            "done": self.done,
            "batches": self._batches,
            "dataset": None if self.dataset is None else self.dataset.state_dict(),
            "random": self._random or _random_state(self._model),
        }
        return seal(state)

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
        check_digest(self, state)
        random = dict_of({"seeds": anything, "cpu": generator_state, "cuda": optional(anything)})
        epochs = integer(most=MOST_EPOCHS)
        places = {"epoch": epochs, "done": epochs, "batches": integer(_NONE)}
        check_entries(self, state, {**places, "dataset": anything, "random": random})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state as the next epoch begins.

        Raises:
            StateError: As for `check_state`.
        """
        self.check_state(state)
        self.loaded = state

    def _take_up(self, state: dict[str, Any], epoch: int) -> bool:
        """Takes up a state for an epoch; gives whether it is within that epoch."""
        # Of a model that is built by now, and may not have been as the file was loaded.
        seeds = tuple_of(*[tensor(seed.dtype, *seed.shape) for seed in _seeds(self._model)])
        check_entries(self, state["random"], {"seeds": seeds})
        batches, dataset, self.done = state["batches"], self.dataset, state["done"]
        resumes = dataset is not None and batches != _NONE and epoch == state["epoch"]
        if dataset is None:
            self._warn_of_repeats(state, epoch)
        elif batches > 0 and (state["dataset"] is None or not resumes):
            raise StateError(
                f"the weights were saved after {batches} batches of epoch {state['epoch']} "
                f"{_of(state['dataset'])}, and fit() begins epoch {epoch} of a SelectiveDataset: "
                f"give that data set and fit(initial_epoch={state['epoch']}), or begin another "
                "training, of a new wrapper round its model"
            )
        elif state["dataset"] is not None:
            dataset.load_state_dict(state["dataset"])
            if resumes:
                dataset.resume_epoch(epoch, batches)
                self._batches = batches
        follows = batches == _NONE and epoch == state["epoch"] > 0
        if resumes or follows:
            self._random = state["random"]
            if batches == 0:  # before Keras asks for a batch, as when it was saved
                self.begin_step()
        return resumes

    def _warn_of_repeats(self, state: dict[str, Any], epoch: int) -> None:
        if state["batches"] > 0:
            warnings.warn(
                f"the weights were saved after {state['batches']} batches of epoch "
                f"{state['epoch']}, and fit() begins epoch {epoch} with its first batch, so that "
                "examples may be trained on twice: train on a SelectiveDataset, which goes on "
                "with the next batch, or save between epochs",
                UserWarning,
                stacklevel=2,
            )


class _Begins(keras.callbacks.Callback):
    """The first callback: reports to the progress what training does, before others save it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self.others: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._progress.begin_epoch(epoch)
        if self._progress.dataset is not None:
            params = {**self.params, "steps": self._progress.dataset.num_batches}
            for callback in self.others:
                callback.set_params(params)  # the length that the progress bar shows

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._progress.begin_step()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._progress.end_step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.end_epoch()


class _Starts(keras.callbacks.Callback):
    """The last callback: has ``fit()`` begin with the epoch of the weights that were restored.

    Keras 3.15 saves epoch 0 within the first epoch after a restart, and the epoch that is over
    after its last batch.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress, self._before = progress, progress.loaded

    def on_train_begin(self, logs: Any = None) -> None:
        restored = self._progress.loaded
        if restored is not None and restored is not self._before:
            self.model._initial_epoch = restored["epoch"]


def callbacks_with_progress(progress: Progress, callbacks: Any, verbose: Any) -> list[Any]:
    """Callbacks of ``fit()``, among those that a training's progress needs.

    Raises:
        ConfigError: If they are a ``CallbackList``.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise ConfigError("callbacks= is a CallbackList: give a list of callbacks")
    kinds, callbacks = keras.callbacks, keras.tree.flatten(callbacks or [])
    if verbose != 0 and not any(
        isinstance(callback, kinds.ProgbarLogger) for callback in callbacks
    ):
        callbacks.append(kinds.ProgbarLogger())
    begins = _Begins(progress)
    restores = any(isinstance(callback, kinds.BackupAndRestore) for callback in callbacks)
    begins.others = [begins, *callbacks, *([_Starts(progress)] if restores else [])]
    return begins.others


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
    if settings.get("validation_data") is dataset:
        raise ConfigError(
            "validation_data= is the SelectiveDataset: give data that is not selected"
        )
    for name, instead in (
        ("class_weight", "give the data set a third part, sample weights"),
        ("steps_per_epoch", "the data set knows how many batches an epoch has"),
        ("validation_split", "give validation_data="),
        ("y", "the data set has the targets"),
        ("sample_weight", "give the data set a third part, sample weights"),
        ("batch_size", "the data set has one"),
    ):
        if settings.get(name) is not None and settings[name] != 0.0:
            raise ConfigError(f"{name}= does not go with a SelectiveDataset: {instead}")


def _of(dataset: dict[str, Any] | None) -> str:
    return "of other data" if dataset is None else "of a SelectiveDataset"


def _seeds(model: Any) -> list[Tensor]:
    """The states of the model's seed generators, which Keras does not save."""
    return [variable.value for variable in _seed_variables(model)]


def _seed_variables(model: Any) -> list[Any]:
    weights = {id(weight) for weight in model.model.weights}
    return [variable for variable in model.model.variables if id(variable) not in weights]


def _random_state(model: Any) -> dict[str, Any]:
    has_cuda = torch.cuda.is_available()
    return {
        "seeds": [seed.detach().cpu().clone() for seed in _seeds(model)],
        "cpu": torch.get_rng_state(),  # of dropout without a seed, and of fit(shuffle=True)
        "cuda": torch.cuda.get_rng_state() if has_cuda else None,
    }


def _restore(random: dict[str, Any], model: Any) -> None:
    for variable, seed in zip(_seed_variables(model), random["seeds"], strict=True):
        variable.assign(seed)
    torch.set_rng_state(random["cpu"])
    if random["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])
