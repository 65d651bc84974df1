"""Selection inside Lightning: within a step, by a callback; before reading, by a data module.

Needs ``pip install siftback[lightning]``.
"""

import copy
import functools
import math
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from siftback.batches import tree
from siftback.batches.stats import Stats
from siftback.errors import ConfigError
from siftback.frameworks.lightning_loader import TrainLoader, as_datamodule
from siftback.frameworks.training_step import TrainingStep
from siftback.loader.face import SelectiveLoader
from siftback.losses.per_example import Losses
from siftback.processes.distributed import own_state, rank_and_world, states_of_ranks
from siftback.rules.rule import EpochRule
from siftback.schedule import Schedule, check_schedule
from siftback.scorers.fresh import Fresh
from siftback.seeding import Stream, generator_of
from siftback.selectors.in_batch import InBatch, exact_selector
from siftback.selectors.selection import Selection, Selector
from siftback.state import check_digest, seal

try:
    from lightning.fabric.utilities.data import _auto_add_worker_init_fn
    from lightning.pytorch import Callback, LightningDataModule
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise ImportError("siftback.frameworks.lightning: pip install siftback[lightning]") from error

_FLAGS = ("prepare_data_per_node", "allow_zero_length_dataloader_with_multiple_devices")
_TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_GIVE_LOSSES = (
    "give SelectiveBackprop(losses=fn), where fn(module, batch) returns one loss per example"
)
_RECORD_LOSSES = (
    "compute one loss per example in training_step, and have it return "
    "self.trainer.datamodule.loss(losses), which records them and is their mean"
)
_HOOKS = ("prepare_data", "test_dataloader", "predict_dataloader", *_TRANSFER)


class SelectiveBackprop(Callback):
    """Selective-Backprop within each training step: scores the batch, and trains on k rows of it.

    Each batch is scored by a forward pass in eval mode, without gradients, under the autocast of
    training; exactly ``round(keep * N)`` of its N rows, at least two, are chosen (see `InBatch`),
    and the module's own ``training_step`` runs on those. Steps, schedules, accumulation, logging,
    sharding and resuming remain Lightning's own::

        Trainer(callbacks=[SelectiveBackprop(keep=1 / 3)])

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

    >>> callback = SelectiveBackprop(keep=1 / 3)  # Trainer(callbacks=[callback])
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
        self.stats = Stats()
        self._selector = exact_selector(selector, keep, beta)
        self._when = check_schedule(schedule, by_losses=self._selector.needs_scores)
        self._losses, self._seed = losses, seed
        if losses is not None and self._selector.reweights:
            raise ConfigError(
                f"{type(self._selector).__name__} gives weights, which are applied to the loss "
                "that training_step computes, and with losses= that one is not known: leave "
                "losses= out, or take a selector without weights"
            )
        self._in_batch: InBatch | None = None
        self._trainer: Any = None  # of this fit
        self._saved: list[Any] | None = None
        self._tried = False  # whether a batch was scored
        self._step: TrainingStep | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuses what would be wrong, before anything is trained."""
        if stage != "fit":
            return
        kind = type(trainer.strategy)  # not its base classes: a DeepSpeedStrategy is a DDPStrategy
        if kind not in (DDPStrategy, SingleDeviceStrategy):
            raise ConfigError(
                f"SelectiveBackprop scores batches within a step, which was not tried with "
                f"{kind.__name__}: use a single device or DDPStrategy"
            )
        if self._trainer is not trainer:  # another training
            self._trainer, self._in_batch, self._tried = trainer, None, False
            self.stats = Stats()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Puts selection in front of ``training_step``."""
        if isinstance(trainer.train_dataloader, SelectiveLoader | TrainLoader):
            raise ConfigError(
                "both SelectiveBackprop and a loader that selects, by a SelectiveDataModule or "
                "SelectiveLoader: give the trainer one of them"
            )
        if self._in_batch is None or self._saved is not None:
            self._in_batch = self._made(trainer)
        if self._saved is not None:
            state, self._saved = own_state(self._saved), None
            self._in_batch.load_state_dict(state["in_batch"])
            self.stats = Stats(**state["stats"])
        fit_loop = trainer.fit_loop
        if fit_loop.restarting and getattr(fit_loop, "_combined_loader_states_to_load", None):
            # Lightning 2.6 does not load the state of the train dataloader if
            # estimated_stepping_batches asked for that before the state of the loops was there.
            fit_loop._load_combined_loader_states()
            iter(fit_loop._data_fetcher)
        self._step = TrainingStep(pl_module, self._run, _GIVE_LOSSES)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Puts ``training_step`` back."""
        if self._step is not None:
            self._step.put_back()
            self._step = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Puts ``training_step`` back."""
        self.teardown(trainer, pl_module, "fit")

    def state_dict(self) -> dict[str, Any]:
        """The state of every process, by rank. All must call it, as Lightning does."""
        ranks = self._saved
        if self._in_batch is not None and ranks is None:
            state = {"in_batch": self._in_batch.state_dict(), "stats": asdict(self.stats)}
            ranks = states_of_ranks(seal(state))
        return {"ranks": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this process's own of the states of all, or raises a `StateError`."""
        self._saved = state_dict["ranks"]
        if self._saved is not None:
            check_digest(self, own_state(self._saved))

    def _made(self, trainer: Any) -> InBatch:
        """The choice of rows, with random numbers of this process's own."""
        steps, epochs = trainer.num_training_batches, trainer.max_epochs
        if not self._when.is_always_on and steps == math.inf:
            raise ConfigError(
                f"{self._when!r} needs the number of batches of an epoch, which the train "
                "dataloader does not say: give a loader with a length, "
                "Trainer(limit_train_batches=...), or schedule=Schedule(warmup=Epochs(0)), which "
                "selects at once"
            )
        if epochs == -1:
            batches = trainer.max_steps * trainer.accumulate_grad_batches
            epochs = None if trainer.max_steps == -1 else batches / steps
        seed = generator_of(self._seed, rank_and_world()[0], Stream.SELECTION).initial_seed()
        per_epoch, selector = None if steps == math.inf else steps, copy.deepcopy(self._selector)
        when: dict[str, Any] = {"schedule": self._when, "steps_per_epoch": per_epoch}
        return InBatch(selector=selector, epochs=epochs, seed=seed, **when)

    def _run(self, step: TrainingStep, batch: Any, *arguments: Any, **kwargs: Any) -> Any:
        """A training step on the chosen rows of a batch."""
        assert self._in_batch is not None  # made as training started
        count, started = tree.size(batch), time.perf_counter()
        self.stats.seen += count
        selection = self._select(self._in_batch, step, batch, count, (arguments, kwargs))
        weights = None
        if selection is not None:
            if len(selection.positions) < count:
                batch = tree.take(batch, selection.positions)
            count = len(selection.positions)
            self.stats.kept += count
            weights = selection.weights if self._in_batch.selector.reweights else None
        self.stats.released += count
        self.stats.seconds_selection += time.perf_counter() - started
        from_step = self._losses is None and self._in_batch.selector.needs_scores
        checks = (from_step or weights is not None) and count > 1 and step.times.is_due()
        if weights is None and not checks:
            return step.own(batch, *arguments, **kwargs)
        output, catch = step.catching(weights, (batch, *arguments), kwargs, count, checks=checks)
        catch.check_only(weights)
        return output

    def _select(
        self, in_batch: InBatch, step: TrainingStep, batch: Any, count: int, call: tuple[Any, Any]
    ) -> Selection | None:
        """Chooses rows; None if the schedule is off."""
        tries, self._tried = not self._tried, True
        skips, by_losses = in_batch.skips(), in_batch.selector.needs_scores
        if tries:  # what is wrong with a batch tells before an epoch of warm-up
            tree.take(batch, torch.zeros(1, dtype=torch.int64))
        losses = torch.zeros(count, device=tree.device(batch), dtype=torch.float32)
        if by_losses and (tries or not skips):
            reweights = {"reweights": in_batch.selector.reweights and tries}
            of_step = self._losses or (
                lambda _, rows: step.losses((rows, *call[0]), call[1], count, **reweights)
            )
            losses = Fresh().score(of_step, step.module, batch, None)
        if skips:
            return None
        self.stats.considered += count
        self.stats.scored += count * by_losses
        return in_batch.select(losses, step.valid if by_losses else None)


class SelectiveDataModule(LightningDataModule):
    """Memory in Lightning: a data module whose train loader leaves examples out before reading.

    Wraps the train dataloader of another data module in a `SelectiveLoader`. The losses are those
    of ``training_step``: its one call of a loss function of ``torch.nn.functional`` is computed per
    example too, and the rule's weights, if it has any, are applied to its mean. Or a step records
    them itself: ``loss = self.trainer.train_dataloader.loss(losses)``. None of validation are.

    As epochs have different lengths, the trainer asks for the loader in each one, and
    ``trainer.estimated_stepping_batches`` is the sum over the epochs.

    Args:
        datamodule: The data module; or a ``DataLoader``, or a `SelectiveLoader` with ``memory=``.
        memory: The rule; None if the train dataloader is a `SelectiveLoader`.
        epochs: Epochs of the whole training; by default ``trainer.max_epochs``.
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
                "not make: give a rule such as Memory, or SelectiveBackprop as a callback"
            )
        inner = self.datamodule = as_datamodule(datamodule, val_dataloaders)
        super().__init__()
        self.loader: SelectiveLoader | None = None
        self._memory, self._epochs, self._schedule, self._seed = memory, epochs, schedule, seed
        self._fitted: Any = None  # the trainer that the memory is of
        self._kind: Any = None  # the class of the trainer, while it has another one
        self._saved: list[Any] | None = None
        self._recorded = False
        self._step: TrainingStep | None = None
        hooks = [name for name in _HOOKS if is_overridden(name, inner)]
        for name in (*_FLAGS, *hooks, *(name for name in vars(inner) if "hparams" in name)):
            setattr(self, name, getattr(inner, name))
        self._log_hyperparams = inner._log_hyperparams
        if is_overridden("val_dataloader", inner):
            self.val_dataloader = functools.cache(inner.val_dataloader)  # not in each epoch

    @property
    def trainer(self) -> Any:
        """The trainer, also of the data module that is wrapped."""
        return self.datamodule.trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self.datamodule.trainer = trainer

    @property
    def stats(self) -> Stats:
        """Counts of this process so far."""
        return Stats() if self.loader is None else self.loader.stats

    def loss(self, losses: Tensor, **settings: Any) -> Tensor:
        """See `SelectiveLoader.loss`; outside of training, the mean, and nothing is recorded."""
        if self.loader is None or not self.trainer.training:
            return losses.mean()
        self._recorded = True
        if self._step is not None:
            self._step.checks = False  # what is recorded is what is trained on
        return self.loader.loss(losses, **settings)

    def setup(self, stage: str) -> None:
        """Sets up the data module, and the trainer for epochs of different lengths."""
        if stage == "fit":
            self._prepare(self.trainer)
        self.datamodule.setup(stage)

    def teardown(self, stage: str) -> None:
        """Tears down the data module; puts ``training_step`` and the trainer back."""
        self._put_back()
        self.datamodule.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """Puts ``training_step`` and the trainer back."""
        self._put_back()
        self.datamodule.on_exception(exception)

    def train_dataloader(self) -> Any:
        """The wrapped train dataloader, the same in each epoch."""
        if self._fitted is None:
            raise ConfigError("the trainer makes the train dataloader: call trainer.fit first")
        if self.loader is None:
            self.loader = self._made(self.datamodule.train_dataloader())
        if self._saved is not None:
            self.loader.load_state_dict(own_state(self._saved))
            self._saved = None
        if self._step is None:
            self._check_counts(self.trainer)
            self._step = TrainingStep(self.trainer.lightning_module, self._run, _RECORD_LOSSES)
        return TrainLoader(self, self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state in every process, by rank. All must call it, as Lightning does."""
        loader, ranks = self.loader, self._saved
        if loader is not None and ranks is None:
            ranks = states_of_ranks(loader.state_dict())
        return {"datamodule": self.datamodule.state_dict(), "ranks": ranks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this process's own of the states of all, or raises a `StateError`."""
        self.datamodule.load_state_dict(state_dict["datamodule"])
        self._saved = state_dict["ranks"]
        if self._saved is not None:
            check_digest(self, own_state(self._saved))

    def _prepare(self, trainer: Any) -> None:
        if self._fitted not in (None, trainer):
            raise ConfigError(
                "a SelectiveDataModule remembers the losses of one training, and this is another "
                "trainer: make a new one, with a new memory"
            )
        if trainer.overfit_batches or trainer.reload_dataloaders_every_n_epochs:
            raise ConfigError(
                "overfit_batches and reload_dataloaders_every_n_epochs of the Trainer replace the "
                "train dataloader, whose examples a memory knows by index: leave them out"
            )
        self._fitted, self._kind = trainer, type(trainer)
        trainer.reload_dataloaders_every_n_epochs = 1
        # A property, which no value of the instance can take the place of.
        estimated = {"estimated_stepping_batches": property(self._stepping_batches)}
        trainer.__class__ = type(self._kind.__name__, (self._kind,), estimated)

    def _put_back(self) -> None:
        if self._step is not None:
            self._step.put_back()
        if self._kind is not None:
            self.trainer.__class__, self.trainer.reload_dataloaders_every_n_epochs = self._kind, 0
        self._step = self._kind = None

    def _made(self, source: Any) -> SelectiveLoader:
        """The train loader, wrapped."""
        loader = source if isinstance(source, SelectiveLoader) else self._wrapped(source)
        if loader.memory is None or self._memory not in (None, loader.memory):
            raise ConfigError(
                "the train dataloader is a SelectiveLoader already: give the rule to it, by its "
                "memory=, and nothing else; for selection in a batch, use SelectiveBackprop"
            )
        world, processes = getattr(loader.sampler, "world", 1), self.trainer.world_size
        if processes > 1 and world != processes:
            raise ConfigError(
                f"the SelectiveLoader shares its examples among {world} processes, and there are "
                f"{processes}: make it in train_dataloader(), when they have started, or give "
                "SelectiveDataModule the DataLoader itself"
            )
        return loader

    def _wrapped(self, loader: Any) -> SelectiveLoader:
        if not isinstance(loader, DataLoader) or self._memory is None:
            raise ConfigError(
                f"train_dataloader() returned a {type(loader).__name__}, and memory="
                f"{self._memory!r}: a memory needs one DataLoader over a map-style data set, and "
                "a rule, such as memory=Memory()"
            )
        epochs = self._epochs
        if epochs is None and self.trainer.max_epochs != -1:
            epochs = self.trainer.max_epochs
        _auto_add_worker_init_fn(loader, self.trainer.global_rank)  # as the trainer does itself
        return SelectiveLoader(
            loader, memory=self._memory, epochs=epochs, schedule=self._schedule, seed=self._seed
        )

    def _check_counts(self, trainer: Any) -> None:
        """Makes sure that each epoch's number of batches is known, and allows its validation."""
        epochs = range(trainer.max_epochs if trainer.max_epochs > 0 else 2)
        try:
            least = min((self._limited(epoch) for epoch in epochs), default=math.inf)
        except TypeError as error:
            raise ConfigError(
                "Lightning reads a batch ahead if a loader has no length, which a checkpoint would "
                f"lack, so that each epoch's batches must be known before it: {error}; or, for "
                "selection in a batch, give SelectiveBackprop"
            ) from error
        if least < 1:
            raise ConfigError(
                f"limit_train_batches={trainer.limit_train_batches} leaves no batch of the "
                "shortest epoch: give more, or keep more examples"
            )
        interval = trainer.val_check_interval
        by_epoch = trainer.check_val_every_n_epoch is not None and trainer.enable_validation
        if by_epoch and isinstance(interval, int) and interval > least:
            raise ConfigError(
                f"val_check_interval={interval} batches, and the shortest epoch has {least}: give "
                "a share of an epoch, or check_val_every_n_epoch=None"
            )

    def _limited(self, epoch: int) -> int:
        loader: Any = self.loader
        steps, limit = loader.steps(epoch), self.trainer.limit_train_batches
        return min(steps, limit) if isinstance(limit, int) else int(steps * limit)

    def _stepping_batches(self, trainer: Any) -> Any:
        """``estimated_stepping_batches``, with each epoch's own number of batches."""
        total = self._kind.estimated_stepping_batches.fget(trainer)
        if trainer.max_epochs == -1 or self.loader is None:
            return total
        counts = (self._limited(epoch) for epoch in range(trainer.max_epochs))
        steps = sum(math.ceil(batches / trainer.accumulate_grad_batches) for batches in counts)
        return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)

    def _run(self, step: TrainingStep, batch: Any, *arguments: Any, **kwargs: Any) -> Any:
        """A training step, whose losses are recorded unless it records them itself."""
        assert self.loader is not None
        self._recorded, weights = False, self.loader.weights
        applied = weights if bool((weights != 1).any()) else None
        count = len(weights)
        checks = count > 1 and step.times.is_due()
        args = (batch, *arguments)
        output, catch = step.catching(applied, args, kwargs, count, checks=checks, strict=False)
        if not self._recorded:
            catch.check_only(applied)
            self.loader.record(catch.calls[0].losses)
        return output
