"""Selection inside Lightning: within a step, by a callback; before reading, by a data module.

Needs the extra ``lightning``.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from siftback.batches.collating import REORDERS, are_reordered, row_keys
from siftback.batches.stats import Stats
from siftback.errors import ConfigError
from siftback.frameworks.step_selection import (
    AT_ONCE,
    StepSelection,
    count_schedule,
    epochs_of_steps,
    rank_seed,
)
from siftback.frameworks.training_step import TrainingStep
from siftback.installation import naming_extra
from siftback.loader.face import SelectiveLoader
from siftback.losses.per_example import Losses
from siftback.processes.distributed import own_state, rank_and_world, states_of_ranks
from siftback.rules.rule import EpochRule
from siftback.schedule import Epochs, Schedule, check_schedule
from siftback.scorers.selection_pass import Fresh
from siftback.selectors.in_batch import InBatch, exact_selector
from siftback.selectors.selection import Selector
from siftback.state import MOST_EPOCHS, check_digest, seal

with naming_extra("lightning", "Lightning"):
    from lightning.fabric.utilities.data import _auto_add_worker_init_fn
    from lightning.pytorch import Callback, LightningDataModule, Trainer
    from lightning.pytorch.callbacks import GradientAccumulationScheduler
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden

__all__ = ["SelectiveCallback", "SelectiveDataModule"]

_TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_GIVE_LOSSES = (
    "give SelectiveCallback(losses=fn), where fn(module, batch) returns one loss per example"
)
_RECORD_LOSSES = (
    "compute one loss per example in training_step, and have it return "
    "self.trainer.datamodule.loss(losses), which records them and is their mean"
)
_GIVE_LENGTH = (
    "which the train dataloader does not say: give a loader with a length, "
    f"Trainer(limit_train_batches=...), or {AT_ONCE}"
)
_LOG_EVERY = 50  # steps, of the progress bar where nothing else is logged
_LOADERS = ("val_dataloader", "test_dataloader", "predict_dataloader")
_HOOKS = ("prepare_data", *_LOADERS, *_TRANSFER)


class SelectiveCallback(Callback):
    """Selective-Backprop within each training step: scores the batch, and trains on k rows of it.

    Each batch is scored by a forward pass in eval mode, without gradients, under the autocast of
    training; exactly ``round(keep * N)`` of its N rows, at least two, are chosen (see `InBatch`),
    and the module's own ``training_step`` runs on those. Steps, schedules, accumulation, logging,
    sharding and resuming remain Lightning's own::

        Trainer(callbacks=[SelectiveCallback(keep=1 / 3)])

    The losses are by default those of ``training_step`` itself, which runs on the whole batch up to
    its first call of a loss function of ``torch.nn.functional``, and no further. What it logs, adds
    to metrics or sets on its module before that call is undone. The loss that is trained on is
    compared with those in the first eight steps, and in steps 16, 32 and so on: a constant factor,
    and a term without the examples, such as a penalty of the weights, choose the same examples;
    anything else is refused.

    Args:
        keep: As for `InBatch`, like ``beta``, ``selector`` and ``schedule``.
        beta: In place of ``keep``.
        selector: In place of both.
        schedule: When to select, and how much to keep; by default after one epoch if it is by
            losses, for which the train dataloader must have a length.
        losses: ``losses(module, batch) -> float[N]``, in place of those of ``training_step``.
        seed: Of what is left to chance; each process has random numbers of its own.

    Attributes:
        stats: What was done so far, a `Stats`; of this process.

    Raises:
        ConfigError: If an argument is out of its range; at the start of `fit`, if the strategy is
            not a single device or DDP; at the first batch, if ``training_step`` calls no loss
            function or several; there or later, if it trains on another loss than that of the one
            it calls.
        LossError: If there is not one finite loss per example.

    >>> callback = SelectiveCallback(keep=1 / 3)  # Trainer(callbacks=[callback])
    """

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        selector: Selector | None = None,
        schedule: Schedule | None = None,
        losses: Losses | None = None,
        seed: int = 0,
    ) -> None:
        self._selector = exact_selector(selector, keep, beta)
        self._schedule = check_schedule(schedule, by_losses=self._selector.needs_scores)
        self._losses, self._seed = losses, seed
        if losses and self._selector.reweights:
            raise ConfigError(
                f"{type(self._selector).__name__} gives weights, which are applied to the loss "
                "that training_step computes, and with losses= that one is not known: leave "
                "losses= out, or take a selector without weights"
            )
        self._trainer: Any = None  # of this fit
        self._trains = True  # unlike a test or a validation, which select nothing
        self._selection: StepSelection | None = None
        self._saved: list[Any] = []  # the states of all processes, until training starts
        self._taken: Any = None  # the rows of a batch that are trained on, and their weights
        self._replaced = ExitStack()

    @property
    def stats(self) -> Stats:
        """See the class."""
        return self._selection.stats if self._selection else Stats()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuses what would be wrong, before anything is trained."""
        self._trains = stage == "fit"
        if not self._trains:
            return
        kind = type(trainer.strategy)  # not its base classes: a DeepSpeedStrategy is a DDPStrategy
        if kind not in (DDPStrategy, SingleDeviceStrategy):
            raise ConfigError(
                f"SelectiveCallback scores batches within a step, which was not tried with {kind}: "
                "use a single device or DDPStrategy, of the Trainer of lightning.pytorch"
            )
        if self._trainer is not trainer:  # another training
            self._trainer, self._selection = trainer, None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Puts selection in front of ``training_step``."""
        if isinstance(trainer.train_dataloader, SelectiveLoader | TrainLoader):
            raise ConfigError(
                "both SelectiveCallback and a loader that selects, by a SelectiveDataModule or "
                "SelectiveLoader: give the trainer one of them"
            )
        if self._saved or not self._selection:
            count = trainer.num_training_batches
            batches = None if count == math.inf else count
            epochs = count_training(trainer, trainer.max_steps, batches)
            counted = count_schedule(self._schedule, batches, epochs=epochs, advice=_GIVE_LENGTH)
            selector = copy.deepcopy(self._selector)
            seed = rank_seed(self._seed, rank_and_world()[0])
            in_batch = InBatch(selector=selector, seed=seed, **counted)
            self._selection = StepSelection(in_batch, scores=selector.needs_scores)
        if self._saved:
            self._selection.load_state_dict(own_state(self._saved))
            self._saved = []
        fit_loop = trainer.fit_loop
        waits = fit_loop.restarting and getattr(fit_loop, "_combined_loader_states_to_load", None)
        if waits and not fit_loop.epoch_loop.batch_progress.is_last_batch:
            # Lightning 2.6 does not load the state of the train dataloader if
            # estimated_stepping_batches asked for that before the state of the loops was there.
            fit_loop._load_combined_loader_states()
            iter(fit_loop._data_fetcher)
        step = TrainingStep(pl_module, _GIVE_LOSSES)
        run = partial(self._run_on_rows, self._selection, step)
        self._replaced.enter_context(step.replaced_by(run))

    def on_train_batch_start(self, *_: Any) -> None:
        """Has the rows of the batch chosen anew."""
        self._taken = None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restores ``training_step``."""
        self._replaced.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restores ``training_step``."""
        self._replaced.close()

    def state_dict(self) -> dict[str, Any]:
        """The state of every process, by rank. All must call it, as Lightning does."""
        if self._selection and not self._saved:
            return {"ranks": states_of_ranks(self._selection.state_dict())}
        return {"ranks": self._saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the states of all processes for the start of training, or raises a `StateError`."""
        if self._trains:
            self._saved = checked_ranks(self, state_dict)

    def _run_on_rows(
        self, selection: StepSelection, step: TrainingStep, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """A training step on the chosen rows of a batch."""
        in_batch = selection.in_batch
        from_step = not self._losses and in_batch.selector.needs_scores

        def score(tries: bool, count: int) -> tuple[Tensor, Tensor | None]:
            def losses_of_step(_: Any, batch: Any) -> Tensor:
                reweights = tries and in_batch.selector.reweights
                return step.losses((batch, *args), kwargs, count, reweights=reweights)

            losses = Fresh().score(self._losses or losses_of_step, step.module, batch, None)
            return losses, step.valid

        # An optimizer such as LBFGS has the step of a batch run several times.
        if not self._taken:
            # What StochasticWeightAveraging updates at the end are statistics of all examples.
            skips = in_batch.skips() or self._trainer.fit_loop._skip_backward
            self._taken = selection.take(batch, score, skips=skips)
        rows, weights = self._taken
        count, is_weighted = selection.count, weights is not None
        log_selection(step.module, partial(selection.stats.log_entries, selection.share))
        checks = (from_step or is_weighted) and count > 1 and step.times.is_due()
        if not checks and not is_weighted:
            return step.own(rows, *args, **kwargs)
        output, catch = step.catch_losses(weights, (rows, *args), kwargs, count, checks=checks)
        catch.check_only(weights)
        return output


class SelectiveDataModule(LightningDataModule):
    """Memory in Lightning: a data module whose train loader leaves examples out before reading.

    Wraps the train dataloader of another data module in a `SelectiveLoader`. The losses are those
    of ``training_step``: its one call of a loss function of ``torch.nn.functional`` is computed per
    example too, and the rule's weights, if it has any, are applied to its mean. Or a step records
    them itself: ``loss = self.trainer.train_dataloader.loss(losses)``. None of validation are.

    Epochs have the batches of the wrapped dataloader, so that ``estimated_stepping_batches``,
    schedules and validations are those without it. All other attributes are those of the wrapped
    data module: setting its ``batch_size`` here, as Lightning's ``Tuner`` does, sets it there. What
    was learned in a search by a ``Tuner`` is undone when the search is over.

    Args:
        datamodule: The data module; or a ``DataLoader``, or a `SelectiveLoader` with ``memory=``.
        memory: The rule; None if the train dataloader is a `SelectiveLoader`.
        epochs: Epochs of the whole training; by default ``trainer.max_epochs``, or those of
            ``trainer.max_steps`` where they are fewer.
        schedule: When the rule draws, in place of its own.
        seed: Seed of the orders and draws, the same in all processes.
        val_dataloaders: The validation dataloaders, if ``datamodule`` is a loader.

    Attributes:
        datamodule: The data module that is wrapped.
        loader: The `SelectiveLoader`; None before the trainer asked for it.

    Raises:
        ConfigError: If the rule needs scoring passes; at the start of `fit`, if the loader, the
            rule or the trainer excludes a memory; at a batch, if the losses are not known.

    >>> from siftback.rules.memory import Memory
    >>> data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randint(2, (8,)))
    >>> selective = SelectiveDataModule(DataLoader(data, 4, shuffle=True), memory=Memory())

    Then ``trainer.fit(model, datamodule=selective)``.
    """

    def __init__(
        self,
        datamodule: Any,
        memory: EpochRule | None = None,
        *,
        epochs: float | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        val_dataloaders: Any = None,
    ) -> None:
        if memory is not None and memory.needs_passes:
            raise ConfigError(
                f"{type(memory).__name__} is refreshed by scoring passes, which a data module does "
                "not make: give a rule such as Memory, or SelectiveCallback as a callback"
            )
        inner = as_datamodule(datamodule, val_dataloaders)
        # Without super().__init__(), whose flags and hyperparameters are those of the inner module.
        self.loader: SelectiveLoader | None = None
        self._memory, self._epochs, self._schedule, self._seed = memory, epochs, schedule, seed
        self._remembered: Any = None  # the trainer whose losses the memory has
        self._untrained: Any = None  # the state of the memory before that
        self._max_steps = -1  # of that trainer, which a search changes
        self._step: TrainingStep | None = None
        self.rows: dict[str, list[bytes]] = {}  # of the first batch, as the loader gave it
        self._saved: list[Any] = []  # the states of all processes, until the loader is wanted
        self._replaced = ExitStack()
        self.datamodule = inner  # from here on, other attributes are set on it
        for name in _HOOKS:
            if is_overridden(name, inner):
                setattr(self, name, getattr(inner, name))

    def __getattr__(self, name: str) -> Any:
        if name == "datamodule":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.datamodule, name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in vars(self) or "datamodule" not in vars(self) or hasattr(type(self), name)
        if is_own or not hasattr(self.datamodule, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.datamodule, name, value)

    @property
    def trainer(self) -> Any:
        """The trainer, also of the data module that is wrapped."""
        return self.datamodule.trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        if not isinstance(trainer, Trainer | None):
            raise ConfigError(
                f"the Trainer is that of {type(trainer).__module__}: import all classes from "
                "lightning.pytorch, of which a SelectiveDataModule is one"
            )
        self.datamodule.trainer = trainer

    @property
    def stats(self) -> Stats:
        """Counts of this process so far."""
        return self.loader.stats if self.loader else Stats()

    @property
    def trains(self) -> bool:
        """False in validation, and in the last epoch of ``StochasticWeightAveraging``.

        That one updates the statistics of BatchNorm alone, which are of all examples.
        """
        return not (self._memory and self.trainer.fit_loop._skip_backward) and self.trainer.training

    def loss(self, losses: Tensor, **settings: Any) -> Tensor:
        """See `SelectiveLoader.loss`; outside of training, the mean, and nothing is recorded."""
        if not (self.loader and self._step and self.trains):
            return losses.mean()
        self._step.is_recorded = True
        return self.loader.loss(losses, **settings)

    def setup(self, stage: str) -> None:
        """Sets up the data module, and refuses what would be wrong before anything is trained."""
        trainer = self.trainer
        if stage == "fit":
            if self._remembered not in (None, trainer):
                raise ConfigError(
                    "a SelectiveDataModule remembers the losses of one training, and this is "
                    "another trainer: make a new one, with a new memory"
                )
            if trainer.overfit_batches or trainer.reload_dataloaders_every_n_epochs:
                raise ConfigError(
                    "overfit_batches and reload_dataloaders_every_n_epochs of the Trainer replace "
                    "the train dataloader, whose examples a memory knows by index: leave them out"
                )
            self._remembered, self._max_steps = trainer, trainer.max_steps
        self.datamodule.setup(stage)

    def teardown(self, stage: str) -> None:
        """Tears down the data module; restores ``training_step``."""
        self._replaced.close()
        self.datamodule.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """Restores ``training_step``."""
        self._replaced.close()
        self.datamodule.on_exception(exception)

    def train_dataloader(self) -> Any:
        """The wrapped train dataloader, the same for the whole training."""
        if not self._remembered:
            raise ConfigError("the trainer makes the train dataloader: call trainer.fit first")
        if self.loader and self._memory:
            size = self.datamodule.train_dataloader().batch_size
            if size not in (None, self.loader.batch_size):  # as a search for one sets it
                self._memory.load_state_dict(self._untrained)
                self.loader = None
        loader = self.ready_loader()
        try:
            len(loader)
        except TypeError as error:
            raise ConfigError(
                "Lightning reads a batch ahead of a loader without a length, which a checkpoint "
                f"would lack: {error}; or, for selection in a batch, give SelectiveCallback"
            ) from error
        if not self._step:
            self._step = TrainingStep(self.trainer.lightning_module, _RECORD_LOSSES)
            run = partial(self._run_and_record, self._step)
            self._replaced.enter_context(self._step.replaced_by(run))
            self._replaced.callback(setattr, self, "_step", None)
        return TrainLoader(self)

    def ready_loader(self) -> SelectiveLoader:
        """Returns the loader, made if there is none, with the state that was loaded last."""
        state = own_state(self._saved) if self._saved else {}
        self._saved = []
        if self._memory and "memory" in state:  # of before training, as after a search
            self._memory.load_state_dict(state["memory"])
            self.loader = None
        if not self.loader:
            self.loader = self._select_from(self.datamodule.train_dataloader())
            self._untrained = self._memory and self._memory.state_dict()
        if "loader" in state:
            self.loader.load_state_dict(state["loader"])
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """The loader's state in every process, by rank. All must call it, as Lightning does.

        Before training it is the memory's alone, so that a search for a batch size can go back.
        """
        ranks = self._saved
        if self._remembered and not ranks:
            loader = self.ready_loader()
            name, part = "loader", cast(Any, loader)
            if self._memory and not loader.stats.seen:
                name, part = "memory", self._memory
            ranks = states_of_ranks(seal({name: part.state_dict()}))
        return {"datamodule": self.datamodule.state_dict(), "ranks": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the states of all processes for the loader, or raises a `StateError`."""
        self.datamodule.load_state_dict(state_dict["datamodule"])
        if not self.trainer or self.trainer.state.fn == "fit":
            self._saved = checked_ranks(self, state_dict)

    def _select_from(self, loader: Any) -> SelectiveLoader:
        """The train loader, wrapped."""
        if isinstance(loader, SelectiveLoader):
            if not loader.memory or self._memory not in (None, loader.memory):
                raise ConfigError(
                    "the train dataloader is a SelectiveLoader already: give the rule to it, by "
                    "its memory=, and nothing else; for selection in a batch, use SelectiveCallback"
                )
            world, processes = getattr(loader.sampler, "world", 1), self.trainer.world_size
            if processes > 1 and world != processes:
                raise ConfigError(
                    f"the SelectiveLoader shares its examples among {world} processes, and there "
                    f"are {processes}: make it in train_dataloader(), when they have started, or "
                    "give SelectiveDataModule the DataLoader itself"
                )
            return loader
        if not isinstance(loader, DataLoader) or not self._memory:
            raise ConfigError(
                f"train_dataloader() returned a {type(loader).__name__}, and memory="
                f"{self._memory!r}: a memory needs one DataLoader over a map-style data set, and "
                "a rule, such as memory=Memory()"
            )
        trainer, epochs = self.trainer, self._epochs
        _auto_add_worker_init_fn(loader, trainer.global_rank)  # as the trainer does itself
        settings: Any = {"memory": self._memory, "schedule": self._schedule, "seed": self._seed}
        if epochs is None:
            epochs = count_training(trainer, 0, None)
            if self._max_steps > 0:
                with suppress(TypeError):  # of a loader without a length, which is refused later
                    # One epoch has as many batches whatever their number, and whenever it draws.
                    counted = settings | {"schedule": Schedule(warmup=Epochs(0))}
                    batches = len(SelectiveLoader(loader, epochs=epochs or MOST_EPOCHS, **counted))
                    limit = trainer.limit_train_batches
                    batches = min(limit, batches) if type(limit) is int else int(limit * batches)
                    epochs = count_training(trainer, self._max_steps, batches)
        return SelectiveLoader(loader, epochs=epochs, **settings)

    def _run_and_record(self, step: TrainingStep, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """A training step, whose losses are recorded unless it records them itself."""
        if not self.trains:
            return step.own(batch, *args, **kwargs)
        loader = cast(SelectiveLoader, self.loader)
        if self.rows and are_reordered(row_keys(batch), self.rows):
            raise ConfigError(f"a hook such as on_after_batch_transfer {REORDERS}")
        self.rows = {}
        applied, count = loader.weights if loader.reweights else None, len(loader.indices)
        checks = count > 1 and step.times.is_due()
        output, catch = step.catch_losses(applied, (batch, *args), kwargs, count, checks=checks)
        if not step.is_recorded:
            catch.check_only(applied)
            if checks and not loader.reweights and loader.memory and loader.memory.reweights:
                step.try_weights(catch)  # of epochs to come
            (call,) = catch.calls
            if loader.memory and loader.memory.guard:
                call.form.check_cross_entropy()
            loader.record(call.losses)
        log_selection(step.module, loader.log_entries)
        return output


class TrainLoader:
    """Iterates the loader of a data module at the trainer's epoch.

    Its state is in the data module's: of a loader, Lightning saves the state of one process, and
    loads none between epochs.

    Args:
        module: The data module.

    Attributes:
        dataset: That of the loader, whose length bounds a search for a batch size.
        batch_size: That of the loader.
    """

    def __init__(self, module: SelectiveDataModule) -> None:
        loader = module.ready_loader()
        self.loss, self.dataset, self.batch_size = module.loss, loader.dataset, loader.batch_size
        self._module, self._tests_order = module, True

    def __iter__(self) -> Iterator[Any]:
        # With the first batch, not before: Lightning asks for iterators before it knows the epoch.
        if not self._module.trains:
            yield from self._module.datamodule.train_dataloader()
            return
        loader = self._module.ready_loader()
        loader.set_epoch(self._module.trainer.current_epoch)
        for batch in loader:
            if self._tests_order:
                self._module.rows, self._tests_order = row_keys(batch), False
            yield batch

    def __len__(self) -> int:
        return len(self._module.ready_loader())

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing, see the class."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads nothing."""


def log_selection(module: Any, entries: Callable[[], dict[str, float]]) -> None:
    """Logs `Stats.log_entries` by a module's own ``log``, the share in the bar too.

    At each ``log_every_n_steps``-th step, when Lightning passes them to its loggers, and at the
    last of an epoch; the share at the first too. A call costs more than the rest of selection.
    """
    trainer = module.trainer
    if trainer.barebones:  # which logs nothing, and would warn
        return
    loop = trainer.fit_loop.epoch_loop
    is_due = (loop._batches_that_stepped + 1) % (trainer.log_every_n_steps or _LOG_EVERY) == 0
    is_due |= loop.batch_progress.is_last_batch
    if is_due or loop.batch_idx == 0:
        # As tensors of the CPU: Lightning would put numbers on the accelerator, and wait for each.
        values = {key: torch.tensor(value, dtype=torch.double) for key, value in entries().items()}
        module.log("sift/share", values.pop("sift/share"), on_epoch=False, prog_bar=True)
        module.log_dict(values if is_due else {}, on_epoch=False)


def count_training(trainer: Any, max_steps: int, batches: int | None) -> float | None:
    """Returns the epochs of a training; None if it has no end, or any number of them its steps.

    Args:
        trainer: The trainer.
        max_steps: Steps that end it too; not above 0 where it has none.
        batches: Of an epoch; None where they are not known.
    """
    epochs = None if trainer.max_epochs == -1 else trainer.max_epochs
    if max_steps <= 0:
        return epochs
    # Steps by hand, and those of a scheduler of accumulation, may be of any number of batches.
    by_hand = not trainer.lightning_module.automatic_optimization
    if by_hand or GradientAccumulationScheduler in map(type, trainer.callbacks) or not batches:
        return None
    of_steps = epochs_of_steps(max_steps, batches, trainer.accumulate_grad_batches)
    return min(epochs or of_steps, of_steps)


def as_datamodule(loader: Any, val_dataloaders: Any) -> Any:
    """Returns a data module as it is, or one of a loader."""
    if isinstance(loader, LightningDataModule) and val_dataloaders is None:
        return loader
    if not isinstance(loader, DataLoader | SelectiveLoader):
        raise ConfigError(
            f"SelectiveDataModule({type(loader).__name__}): give a LightningDataModule of "
            "lightning.pytorch with its validation dataloaders, a DataLoader or a SelectiveLoader"
        )
    datamodule = LightningDataModule()
    datamodule.train_dataloader = partial(give_loader, loader)  # unlike a lambda it can be pickled
    if val_dataloaders is not None:
        datamodule.val_dataloader = partial(give_loader, val_dataloaders)
    return datamodule


def give_loader(loader: Any) -> Any:
    """Returns a loader."""
    return loader


def checked_ranks(owner: object, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the states of all processes in a checkpoint, after checking this process's own.

    Raises:
        StateError: If it is damaged, or there are not as many as processes.
    """
    ranks: list[dict[str, Any]] = state["ranks"]
    if ranks:
        check_digest(owner, own_state(ranks))
    return ranks
