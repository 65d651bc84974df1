"""Selection in the ``Trainer`` of Hugging Face's transformers, and in trainers derived from it."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from siftback.batches import tree
from siftback.batches.indices import Indexed, collating
from siftback.batches.stats import SinglePassStats, Stats
from siftback.epochs.epoch_draw import EpochDraw
from siftback.epochs.epoch_plan import EpochPlan, plan_of
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import BatchError, ConfigError, StateError
from siftback.frameworks.huggingface_loss import check_loss, observe_outputs
from siftback.frameworks.huggingface_refusals import (
    GIVE_LOSSES,
    Method,
    check_trainer,
    faster_pass,
    head_by,
    needs_own_losses,
    resolve_method,
)
from siftback.frameworks.trained_loss import CheckTimes
from siftback.losses.sequences import Head, has_loss, head_losses, sequence_losses
from siftback.processes.distributed import all_gather
from siftback.rules.rule import EpochRule
from siftback.schedule import Schedule, check_schedule
from siftback.scorers.fresh import Fresh
from siftback.seeding import Stream, generator_of
from siftback.selectors.in_batch import InBatch
from siftback.selectors.selection import Selector
from siftback.state import check_digest, seal

# What is above says what to install where there is no transformers.
# isort: split
from transformers.trainer_utils import get_last_checkpoint

from transformers import Trainer

__all__ = ["SelectiveTrainerMixin"]

_KEY = "sift_index"  # of a batch, the data set's indices of its examples


class SelectiveTrainerMixin(Trainer):
    """Trains a ``Trainer`` on the examples worth it; everything else of it stays its own.

    - ``"two_pass"``: every batch is scored by a forward without gradients and without side
      effects, in eval mode and the training's precision, and exactly ``round(keep * B)`` of its B
      rows are trained on. They are chosen before the Trainer counts the items of a step, so that
      the loss, reported and optimized, is that of the kept rows, with gradient accumulation too.
    - ``"single_pass"``: one forward over the batch, and a backward over the kept rows, by
      `SinglePass`. The loss is the mean of the kept rows' own losses, each of which is a mean over
      tokens; in several processes, the mean of theirs.
    - ``"auto"``: that of both which takes less time, measured for ten seconds as training begins
      (see `probe`); where a single pass would be refused, ``"two_pass"``.
    - ``"memory"``: the examples of an epoch are chosen before they are read, by their losses in
      earlier epochs, with `Memory` or another rule whose number of examples is known. Epochs then
      differ in length; the learning rate's schedule and ``max_steps`` follow.

    Steps, evaluations, logging and schedules are those of a Trainer of as many steps; evaluation
    is not affected. A checkpoint has the selection's state of each process beside its random
    state, and resumes within an epoch with the same batches.

    Args:
        args: Of the Trainer, as all arguments besides those below.
        method: "two_pass", "single_pass", "auto" or "memory".
        keep: Share of the rows of a batch to keep, in (0, 1]; with "memory" that of the examples
            of an epoch.
        beta: In place of ``keep``, the exponent of Selective-Backprop.
        selector: In place of both, for all but "memory": a selector that can keep
            exactly k rows.
        memory: In place of both, for "memory": an `EpochRule`; by default ``Memory()``.
        schedule: When "two_pass" and "single_pass" select, and how much they keep; by default
            after one epoch, for which the data set must have a length. A rule has its own.
        losses: ``losses(model, batch) -> Tensor[B]``; with "memory" it is called with the outputs
            of training's forward in place of the model. By default `sequence_losses`, and rows
            without any label are then never kept.
        seed: Of all that is left to chance here; by default ``data_seed`` or ``seed`` of the
            Trainer's arguments.
        kwargs: Of the Trainer.

    Attributes:
        sift_method: The method; of "auto", once training has begun, the one that it took.
        sift_stats: What this process did, a `Stats`; with "single_pass" a `SinglePassStats`.

    Raises:
        ConfigError: If an argument is out of range or excludes another one, or, when training
            begins, one of the Trainer's own.
        BatchError: On a step, if a batch cannot be split into rows, or none has a label.
        LossError: On a step, if there is not one finite loss per row.
        StateError: If a checkpoint is of other arguments.

    >>> import tempfile
    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> class MyTrainer(SelectiveTrainerMixin, Trainer):
    ...     pass
    >>> sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=9, hidden_size=8, **sizes))
    >>> data = [{"input_ids": [row % 9, 1, 2], "labels": row % 2} for row in range(24)]
    >>> quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
    >>> args = TrainingArguments(tempfile.mkdtemp(), num_train_epochs=2, **quiet)
    >>> trainer = MyTrainer(model, args, train_dataset=data, keep=1 / 4)
    >>> result = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    >>> result.global_step, trainer.sift_stats.seen, trainer.sift_stats.backwards
    (6, 48, 30)
    """

    sift_stats: Stats | SinglePassStats
    _selection: Any  # an InBatch or a SinglePass
    _indices: Tensor | None  # the examples of the batch in training
    _tried: bool  # whether a batch was scored

    def __init__(
        self,
        *args: Any,
        method: Method = "two_pass",
        keep: float | None = None,
        beta: float | None = None,
        selector: Selector | None = None,
        memory: EpochRule | None = None,
        schedule: Schedule | None = None,
        losses: Callable[[Any, Any], Tensor] = sequence_losses,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._asked, self._losses = method, losses
        self._method: Method = "two_pass" if method == "auto" else method
        self._rule, self._selector = resolve_method(method, memory, selector, keep, beta)
        by_losses = self._selector is not None and self._selector.needs_scores
        if schedule is not None and self._rule is not None:
            raise ConfigError(
                'both method="memory" and schedule= given: give the rule warmup= and tail= in '
                "place of a schedule"
            )
        self._when = check_schedule(schedule, by_losses=by_losses)
        self._counted: dict[str, Any] = {}  # the schedule, and the batches and epochs it counts
        super().__init__(*args, **kwargs)
        seeds = (seed, self.args.data_seed, self.args.seed)
        self._seed = next(number for number in seeds if number is not None)
        self._plan: EpochPlan | None = None
        self._order: SelectiveSampler | None = None
        self._reset()

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Trains, as ``Trainer.train``, from the first selection on."""
        if self._asked == "auto":
            self._method = self._decided(resume_from_checkpoint)
        check_trainer(self, SelectiveTrainerMixin, trial)
        self._reset()
        return super().train(resume_from_checkpoint, trial, *args, **kwargs)

    @property
    def sift_method(self) -> Method:
        """See the class."""
        return self._method if self._selection is not None or self._rule else self._asked

    def _decided(self, checkpoint: str | bool | None) -> Method:
        """Returns what "auto" takes: the checkpoint's method, or the faster on process 0."""
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if isinstance(checkpoint, str) and (path := self._state_path(checkpoint)).is_file():
            return cast(Method, torch.load(path, weights_only=True)["method"])
        self._method, keep = "two_pass", cast(Any, self._selector).keep
        method: Any = None
        if self.args.process_index == 0:
            method = faster_pass(self, SelectiveTrainerMixin, keep)
        return cast(Method, method if self.args.world_size == 1 else all_gather(method)[0])

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> Any:
        """The batches of a step, of the rows to train on, and the items in them."""
        if self._method == "two_pass":
            epoch_iterator = map(self._kept, epoch_iterator)
        elif self._method == "memory":
            epoch_iterator = map(self._with_indices, epoch_iterator)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None, **kwargs: Any
    ) -> Tensor:
        """A forward and a backward; see ``Trainer.training_step``."""
        self._indices = inputs.pop(_KEY, None)
        if self._method == "single_pass":
            return self._single_pass_step(model, inputs, **kwargs)
        step = partial(super().training_step, model, inputs, num_items_in_batch, **kwargs)
        checks = needs_own_losses(self) and tree.size(inputs) > 1 and self._times.is_due()
        if self._method == "two_pass" and not checks:
            return cast(Tensor, step())
        # An attribute of this object, which stands before what any derived class computes.
        variables = self.__dict__
        before = variables.get("compute_loss")
        variables["compute_loss"] = partial(self._watched, self.compute_loss, checks)
        try:
            return cast(Tensor, step())
        finally:
            del variables["compute_loss"]
            if before is not None:
                variables["compute_loss"] = before

    def _single_pass_step(self, model: Any, inputs: Any, **kwargs: Any) -> Tensor:
        self._trains, self._computes, cause = True, True, None
        try:  # the loss is a mean, for the Trainer to divide
            loss: Tensor = super().training_step(model, inputs, None, **kwargs)
        except TypeError as error:
            if not self._computes:
                raise
            cause = error  # of a single pass that was called as the model is
        finally:
            self._trains = False
        if self._computes:
            raise ConfigError(
                f"{type(self).__name__}.compute_loss does not call super().compute_loss, where "
                f'method="single_pass" computes the loss: leave compute_loss out, and {GIVE_LOSSES}'
            ) from cause
        return loss

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch; see ``Trainer.compute_loss``."""
        if not self._trains:
            return super().compute_loss(model, inputs, *args, **kwargs)
        self._trains = self._computes = False
        return self._sifted(model, inputs)

    def _watched(
        self, compute_loss: Any, checks: bool, model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """A training step's loss by ``compute_loss``; records or checks the losses of its rows."""
        labelled = dict(inputs)  # from which the Trainer may take the labels
        compute = partial(
            observe_outputs, self, lambda *batch: compute_loss(*batch, *args, **kwargs)
        )
        result, calls = compute(model, inputs)
        if checks:
            check_loss(self, compute, result, calls, labelled)
            self._times.reset()
        if self._method == "memory":
            self._remember(calls, labelled)
        return result

    def _kept(self, batch: Any) -> Any:
        """The rows of a batch to train on."""
        batch = self._prepare_inputs(batch)
        tries, self._tried = not self._tried, True
        skips, count = self._selection.skips(), tree.size(batch)
        if tries:  # what is wrong with a batch tells before an epoch of warm-up
            tree.take(batch, torch.zeros(1, dtype=torch.int64))
        if tries or not skips:
            with self.compute_loss_context_manager():
                losses = Fresh().score(self._losses, self.model, batch, None)
        if skips:
            self._count(seen=count, released=count)
            return batch
        head = self.head()
        mask = None if head is None else has_loss(head, batch)
        rows = self._selection.select(losses, mask).positions
        self._count(seen=count, considered=count, scored=count)
        self._count(kept=len(rows), released=len(rows))
        return tree.take(batch, rows)

    def head(self) -> Head | None:
        """Returns the head of the model; None with losses of the user's own."""
        return head_by(self._losses, self.model, self._method)

    def _sifted(self, step_loss: Any, inputs: Any) -> Tensor:
        head = self.head()
        if head is not None and not has_loss(head, inputs).all():
            raise BatchError(
                "a row of a batch has no label, and so no loss: leave it out of the data set, or "
                'give method="two_pass", which never keeps such rows'
            )
        return cast(Tensor, step_loss(dict(inputs)))

    def _wrap_model(self, model: Any, training: bool = True, *args: Any, **kwargs: Any) -> Any:
        """Returns what training calls: for a single pass, a module whose forward is a step's loss.

        In several processes Accelerate wraps that module, not the model, in
        ``DistributedDataParallel``. ``self.model`` stays the model itself, which is what the
        Trainer evaluates, saves, loads and optimizes.
        """
        if self._method != "single_pass" or not training:
            return super()._wrap_model(model, training, *args, **kwargs)
        from siftback.single_pass.single_pass import SinglePass  # imports the compiler

        # Evaluation has the model without the single pass, and needs its precision too.
        self.accelerator.prepare_model(self.model, evaluation_mode=True)
        selector = copy.deepcopy(self._selector)
        sift = SinglePass(
            self.model,
            losses=self._losses,
            selector=selector,
            seed=self._rank_seed(),
            **self._counted,
        )
        self._selection, self.sift_stats = sift, sift.stats
        return self.accelerator.prepare_model(sift)

    def _with_indices(self, pair: Any) -> Any:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2  # pinned memory makes a list
        if not (is_pair and isinstance(pair[1], Mapping)):
            raise ConfigError(
                f"a training batch is a {type(pair).__name__} without the indices of its "
                'examples: method="memory" needs the Trainer\'s own get_train_dataloader, and '
                "batches that are mappings"
            )
        if cast(EpochDraw, cast(SelectiveSampler, self._order).draw).reweights:
            raise ConfigError(
                f"{type(self._rule).__name__} gives losses weights, which the loss of a Trainer "
                "cannot take: give a rule without weights, such as Memory()"
            )
        indices, batch = pair
        batch[_KEY] = indices
        return batch

    def _remember(self, calls: list[Any], inputs: Mapping[str, Any]) -> None:
        """Records the losses of a training batch, from what its forward returned."""
        if len(calls) != 1 or self._indices is None:
            raise ConfigError(
                f"a training step called the model {len(calls)} times with gradients, and "
                'method="memory" takes the losses from one call: give method="two_pass", and '
                f"{GIVE_LOSSES}"
            )
        order = cast(SelectiveSampler, self._order)
        head, (outputs,) = self.head(), calls
        with torch.no_grad():
            if head is None:
                losses = self._losses(outputs, inputs)
            else:
                losses = head_losses(head, outputs, inputs)
        order.update(self._indices, losses)
        draw = cast(EpochDraw, order.draw)
        passed = draw.advance(len(losses))
        self._count(seen=passed, unread=passed - len(losses), released=len(losses))
        if draw.draws:
            self._count(considered=passed, kept=len(losses))

    def _count_epochs(self, loader: Any) -> None:
        """Sets what the schedule counts: the batches that this process has in an epoch."""
        try:
            batches: int | None = len(loader)
        except TypeError:  # of data without a length
            batches = None
        if batches is None and not self._when.is_always_on:
            raise ConfigError(
                f"{self._when!r} needs the number of batches of an epoch, and the train data set "
                "has no length: give schedule=Schedule(warmup=Epochs(0)), which selects at once"
            )
        epochs = float(self.args.num_train_epochs)
        if self.args.max_steps > 0 and batches is not None:
            epochs = self.args.max_steps * self.args.gradient_accumulation_steps / batches
        self._counted = {"schedule": self._when, "epochs": epochs, "steps_per_epoch": batches}
        if self._method == "two_pass":
            selector = copy.deepcopy(self._selector)
            self._selection = InBatch(selector=selector, seed=self._rank_seed(), **self._counted)

    def _count(self, **examples: int) -> None:
        for name, count in examples.items():
            setattr(self.sift_stats, name, getattr(self.sift_stats, name) + count)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """The order of examples; with "memory" a function of the seed and the epoch."""
        if self._rule is None:
            return super()._get_train_sampler(*args, **kwargs)
        settings, count = self.args, len(self.train_dataset)
        self._rule.grow(count)
        self._plan = plan_of(
            self._rule,
            self._train_batch_size,
            epochs=float(settings.num_train_epochs),
            max_steps=settings.max_steps if settings.max_steps > 0 else None,
            accumulation=settings.gradient_accumulation_steps,
            world=settings.world_size,
            drop_last=settings.dataloader_drop_last,
        )
        shuffle, epochs = settings.train_sampling_strategy != "sequential", self._plan.epochs
        ranks = {"rank": settings.process_index, "world": settings.world_size}
        self._order = SelectiveSampler(
            cast(Any, self.train_dataset),
            self._rule,
            shuffle=shuffle,
            seed=self._seed,
            epochs=epochs,
            **ranks,
        )
        return self._order

    def get_train_dataloader(self) -> Any:
        """The Trainer's own; with "memory" its batches come with their examples' indices."""
        loader = super().get_train_dataloader()
        if self._rule is None:
            self._count_epochs(loader)
            return loader
        # What accelerate wraps. Its sharding would repeat examples; the order is shared already.
        base = loader.base_dataloader
        order, drop_last = cast(SelectiveSampler, self._order), self.args.dataloader_drop_last
        batches = order.batches(self._train_batch_size, drop_last)
        base.__dict__.update(batch_sampler=batches, sampler=self._order)
        base.__dict__["dataset"] = Indexed(base.dataset)
        base.__dict__["collate_fn"] = collating(base).collate_fn
        return loader

    def set_initial_training_values(self, *args: Any) -> Any:
        """The numbers of epochs, steps and examples; with "memory" those of its epochs."""
        values = super().set_initial_training_values(*args)
        if self._plan is None:
            return values
        _, _, examples, _, size, _, _ = values
        plan, first = self._plan, self._plan.batches[0]
        return len(plan.batches), plan.updates(0), examples, plan.read, size, first, plan.steps

    def _init_training_state(self, *args: Any) -> Any:
        """Where training begins, in epochs and in batches of the first of them."""
        trained = super()._init_training_state(*args)
        if self._plan is None or self._order is None:
            return trained
        *_, checkpoint, _ = args
        if checkpoint is not None and self.args.ignore_data_skip:
            raise ConfigError(
                'method="memory" resumes at its place in an epoch: leave ignore_data_skip out'
            )
        epoch, steps = self._plan.place(self.state.global_step)
        if steps:
            self._order.resume(epoch)
        return epoch, steps * self.args.gradient_accumulation_steps

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        if self._plan is not None:
            epoch = kwargs["epoch"]
            kwargs["steps_in_epoch"] = self._plan.batches[epoch]
            kwargs["num_update_steps_per_epoch"] = self._plan.updates(epoch)
        return super()._run_epoch(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        torch.save(self._state(), self._state_path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = self._state_path(checkpoint)
        if not path.is_file():
            raise StateError(
                f"{checkpoint} has no {path.name}: resume with as many processes as "
                "saved it, from a checkpoint of a trainer with selection and its optimizer's state"
            )
        self._load_state(torch.load(path, weights_only=True))

    def _reset(self) -> None:
        """Resets the selection at the beginning of training."""
        self._trains = self._computes = self._tried = False
        self._times = CheckTimes()
        self._indices = self._selection = None
        self.sift_stats = Stats()

    def _rank_seed(self) -> int:
        """The seed of this process's own random numbers."""
        rank = self.args.process_index
        return generator_of(self._seed, rank, Stream.SELECTION).initial_seed()

    def _state_path(self, folder: str) -> Path:
        rank = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
        return Path(folder, f"sift_state{rank}.pth")

    def _settings(self) -> dict[str, Any]:
        return {
            "version": 2,
            "method": self._method,
            "processes": self.args.world_size,
            "seed": self._seed,
            "batch_size": self._train_batch_size,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
        }

    def _state(self) -> dict[str, Any]:
        source: Any = self._selection if self._order is None else self._order
        source = source.get_extra_state() if self._method == "single_pass" else source.state_dict()
        plan = None if self._plan is None else self._plan.batches
        stats = asdict(self.sift_stats)
        return seal({**self._settings(), "source": source, "stats": stats, "plan": plan})

    def _load_state(self, state: dict[str, Any]) -> None:
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise StateError(
                    f"the checkpoint was saved with {name}={state.get(name)!r}, and this trainer "
                    f"has {name}={value!r}: resume with the same"
                )
        check_digest(self, state)
        if self._method == "single_pass":
            self._selection.set_extra_state(state["source"])
            return
        if self._plan is not None:
            self._plan.check(state["plan"], self.state.global_step)
        source: Any = self._selection if self._order is None else self._order
        source.load_state_dict(state["source"])
        self.sift_stats = Stats(**state["stats"])
