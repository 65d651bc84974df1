"""Selection in the ``Trainer`` of Hugging Face's transformers, and in trainers derived from it."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from siftback.batches import tree
from siftback.batches.collating import REORDERS, Reordered, replaced
from siftback.batches.indices import Indexed, testing_order
from siftback.batches.stats import SinglePassStats, Stats
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import BatchError, ConfigError, StateError
from siftback.frameworks.huggingface_refusals import (
    GIVE_LOSSES,
    Method,
    check_loss,
    check_trainer,
    check_unweighted,
    count_epochs,
    faster_pass,
    find_trainer_head,
    needs_own_losses,
    observe_outputs,
    resolve_selection,
)
from siftback.frameworks.huggingface_weights import (
    EXAMPLE_WEIGHT,
    SELECTION_WEIGHT,
    WeightCollate,
    count_items,
    weighted_losses,
    weighted_mean,
)
from siftback.frameworks.step_selection import (
    AT_ONCE,
    StepSelection,
    check_leaves_out,
    count_drawn,
    count_schedule,
    epochs_of_steps,
    rank_seed,
)
from siftback.frameworks.trained_loss import CheckTimes
from siftback.losses.sequences import find_labels, has_loss, head_losses, sequence_losses
from siftback.processes.distributed import all_gather
from siftback.rules.rule import EpochRule
from siftback.schedule import Schedule, check_schedule
from siftback.scorers.selection_pass import Fresh
from siftback.selectors.in_batch import InBatch
from siftback.selectors.selection import Selector
from siftback.state import check_digest, check_entries, seal

# What is above says what to install where there is no transformers.
# isort: split
from transformers.trainer_utils import get_last_checkpoint, has_length

from transformers import Trainer

__all__ = ["SelectiveTrainerMixin"]

# Of a batch, the data set's indices of its examples, and `EpochDraw.pass_sizes`, int64[p, 2].
_KEY, _PASSES = "sift_index", "sift_passes"


class SelectiveTrainerMixin(Trainer):
    """Trains a ``Trainer`` on the examples worth it; everything else of it stays its own.

    With ``keep=``, ``beta=`` or ``selector=``, rows are chosen within each step, by ``method``:

    - ``"two_pass"``: every batch is scored by a forward without gradients and without side
      effects, in eval mode and the training's precision, and exactly ``round(keep * B)`` of its B
      rows are trained on. They are chosen before the Trainer counts the items of a step, so that
      the loss, reported and optimized, is that of the kept rows, with gradient accumulation too.
    - ``"single_pass"``: one forward over the batch, and a backward over the kept rows, by
      `SinglePass`. The loss is the mean of the kept rows' own losses, each of which is a mean over
      tokens; in several processes, the mean of theirs.
    - ``"auto"``: that of both which takes less time, measured for ten seconds as training begins
      (see `probe`); where a single pass would be refused, ``"two_pass"``.

    With ``memory=``, examples are chosen before they are read, by the losses that they had when
    they were last trained on: an epoch consists of passes over the data, see `SelectiveSampler`.

    Epochs, steps, evaluations and schedules are those without selection; evaluation is not
    affected. Each entry of ``log_history`` with a training loss, which is that of the chosen rows,
    has the statistics of `Stats.log_entries` too. A checkpoint has the selection's state of each
    process beside its random state, and resumes within an epoch with the same batches.

    Where examples have weights w, of ``weight_column`` or of a rule or selector, the loss of a step
    is ``sum of w_i n_i l_i / N``, for rows with n_i labels, of which l_i is the mean loss, and N
    labels in the step: with weights of 1 the Trainer's own loss. Of a classifier it is the mean of
    ``w_i l_i``, as it is with ``losses`` and in a single pass.

    Args:
        args: Of the Trainer, as all arguments besides those below.
        method: "two_pass", "single_pass" or "auto".
        keep: Share of the rows of a batch to keep, in (0, 1].
        beta: In place of ``keep``, the exponent of Selective-Backprop.
        selector: In place of both: a selector that can keep exactly k rows.
        memory: In place of all of these: an `EpochRule`, such as ``Memory()``.
        schedule: When rows are chosen within a step, and how much is kept; by default after one
            epoch, for which the data set must have a length. A rule has its own.
        losses: ``losses(model, batch) -> Tensor[B]``; with ``memory`` it is called with the outputs
            of training's forward in place of the model. By default `sequence_losses`, and rows
            without any label are then never kept.
        weight_column: Name of a column of the data set, whose finite values of at least 0 multiply
            each example's loss: the one that is trained on, and the one that is chosen by. Neither
            the collate function nor the model gets to see it.
        seed: Seed of all that is drawn here; by default ``data_seed`` or ``seed`` of the
            Trainer's arguments.
        kwargs: Of the Trainer.

    Attributes:
        method: As passed; of "auto", once training has begun, the one that it took; "memory"
            with ``memory``.
        stats: Counts of what this process did, a `Stats`; in a single pass a `SinglePassStats`.

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
    >>> result.global_step, trainer.stats.seen, trainer.stats.backwards
    (6, 48, 30)
    """

    stats: Stats | SinglePassStats
    _selection: Any  # in training a StepSelection, a SinglePass or, with a rule, its sampler
    _order: Any  # with a rule, the sampler of the loader that was made last
    _indices: Tensor | None  # the examples of the batch in training
    _passes: Any  # its passes

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
        weight_column: str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._rule, self._selector = resolve_selection(
            method, memory, selector=selector, keep=keep, beta=beta, schedule=schedule
        )
        self._first_method: str = "memory" if self._rule else method
        self._method = "two_pass" if method == "auto" else self._first_method
        self._losses, self._weight_column = losses, weight_column
        by_losses = self._selector is not None and self._selector.needs_scores
        self._schedule = check_schedule(schedule, by_losses=by_losses)
        self._counted: dict[str, Any] = {}  # the schedule, and the batches and epochs it counts
        super().__init__(*args, **kwargs)
        seeds = (seed, self.args.data_seed, self.args.seed)
        self._seed = next(number for number in seeds if number is not None)
        self._reset()

    def _reset(self) -> None:
        """Resets the selection at the beginning of training."""
        self._times, self.stats = CheckTimes(), Stats()
        self._indices = self._selection = self._order = None
        self._is_begun = self._is_watched = False

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Trains, as ``Trainer.train``, from the first selection on."""
        if self._first_method == "auto":
            self._method = self._choose_method(resume_from_checkpoint)
        check_trainer(self, SelectiveTrainerMixin, trial)
        self._reset()
        # Before what any derived class makes of it, such as a loader of its own.
        begin = partial(self._begin_selection, self.get_train_dataloader)
        with replaced(self, "get_train_dataloader", begin):
            return super().train(resume_from_checkpoint, trial, *args, **kwargs)

    @property
    def method(self) -> str:
        """See the class."""
        return self._method if self._selection else self._first_method

    def _choose_method(self, checkpoint: str | bool | None) -> str:
        """Returns what "auto" takes: the checkpoint's method, or the faster on process 0."""
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if isinstance(checkpoint, str) and (path := self._state_path(checkpoint)).is_file():
            return cast(str, torch.load(path, weights_only=True)["settings"]["method"])
        self._method, keep = "two_pass", cast(Any, self._selector).keep
        method = faster_pass(self, keep) if self.args.process_index == 0 else ""
        return method if self.args.world_size == 1 else cast(str, all_gather(method)[0])

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> Any:
        """The batches of a step, of the rows to train on, and the items in them."""
        if self._method != "single_pass":
            if self._is_begun and not self._is_watched:
                raise ConfigError(
                    f"training_step of {type(self).__name__} did not call its compute_loss, by "
                    "which losses are recorded and compared: have it call super().training_step()"
                )
            select = self._attach_indices if self._rule else self._take_rows
            epoch_iterator = map(select, epoch_iterator)
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._is_begun |= bool(batches)  # none of a stream that is resumed after its end
        return batches, items

    def _take_rows(self, batch: Any) -> Any:
        """Returns the rows of a batch to train on."""
        batch = self._prepare_inputs(batch)
        head = find_trainer_head(self)

        def score(*_: Any) -> tuple[Tensor, Tensor | None]:
            losses = partial(weighted_losses, self._losses)
            with self.compute_loss_context_manager():
                scores = Fresh().score(losses, self.model, batch, None)
            return scores, has_loss(head, batch) if head else None

        selection = self._selection
        rows, weights = selection.take(batch, score, skips=selection.in_batch.skips())
        if self._weight_column or selection.in_batch.selector.reweights:
            rows[SELECTION_WEIGHT] = torch.ones(selection.count) if weights is None else weights
        return rows

    def _attach_indices(self, pair: Any) -> Any:
        """Returns a batch of a rule, with the indices of its examples in it, and counts these."""
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2  # pinned memory makes a list
        if not (is_pair and isinstance(pair[1], Mapping | Reordered)):
            raise ConfigError(
                f"a training batch is a {type(pair).__name__} without the indices of its examples: "
                "memory= needs the Trainer's own get_train_dataloader, and mappings as batches"
            )
        indices, batch = pair
        if isinstance(batch, Reordered):
            raise ConfigError(f"the data_collator {REORDERS}")
        draw = self._selection.draw
        count_drawn(cast(Stats, self.stats), draw, len(indices))
        batch.update({_KEY: indices, _PASSES: torch.tensor(draw.pass_sizes(len(indices)))})
        if self._weight_column or draw.rule.reweights or draw.reweights:
            batch[SELECTION_WEIGHT] = draw.weights_of(indices)
        return batch

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None, **kwargs: Any
    ) -> Tensor:
        """A forward and a backward; see ``Trainer.training_step``."""
        self._indices, self._passes = inputs.pop(_KEY, None), inputs.pop(_PASSES, None)
        if self._method == "single_pass":
            with replaced(self, "compute_loss", self._single_pass_loss):
                # The loss is a mean, for the Trainer to divide.
                return cast(Tensor, super().training_step(model, inputs, None, **kwargs))
        has_weights, count = SELECTION_WEIGHT in inputs, num_items_in_batch
        is_known = find_trainer_head(self) is not None
        checks = is_known if has_weights else needs_own_losses(self)
        checks = checks and len(find_labels(inputs)) > 1 and self._times.is_due()
        if has_weights and not is_known:
            count = None  # the loss is a mean, for the Trainer to divide
        step = partial(super().training_step, model, inputs, count, **kwargs)
        if not (checks or has_weights or self._rule):
            self._is_watched = True
            return cast(Tensor, step())
        # An attribute of this object, which stands before what any derived class computes.
        watched = partial(self._compute_watched, self.compute_loss, checks)
        with replaced(self, "compute_loss", watched):
            return cast(Tensor, step())

    def _single_pass_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
        """Computes the loss of a step with a single pass, which is the model that is called."""
        head = find_trainer_head(self)
        if not self.stats.seen:
            check_leaves_out(cast(Any, self._selector).keep, tree.size(inputs))
        if head and not has_loss(head, inputs).all():
            raise BatchError(
                "a row of a batch has no label, and so no loss: leave it out of the data set, or "
                'give method="two_pass", which never keeps such rows'
            )
        return model(dict(inputs))

    def _compute_watched(
        self, compute_loss: Any, checks: bool, model: Any, inputs: Any, **options: Any
    ) -> Any:
        """A training step's loss; records, checks or weighs the losses of its rows."""
        self._is_watched = True
        has_weights, head = SELECTION_WEIGHT in inputs, find_trainer_head(self)
        inputs = copy.copy(inputs)  # of which a step may compute its loss again
        of_examples = inputs.pop(EXAMPLE_WEIGHT, 1.0)
        weights = of_examples * inputs.pop(SELECTION_WEIGHT, 1.0)
        labelled = dict(inputs)  # from which the Trainer may take the labels

        def compute(model: Any, inputs: Any) -> tuple[Any, list[Any]]:
            return observe_outputs(self, partial(compute_loss, **options), model, inputs)

        if has_weights and not (head or self._rule):
            losses, outputs = observe_outputs(self, self._losses, model, inputs)
            loss = (losses * weights).mean()
            return (loss, *outputs) if options.get("return_outputs") else loss
        result, calls = compute(model, inputs)
        if checks and not has_weights:
            check_loss(self, compute, result, calls, labelled)
            self._times.reset()
        if not (has_weights or self._rule):
            return result
        if len(calls) != 1:
            raise ConfigError(
                f"a training step called the model {len(calls)} times with gradients, and the "
                "losses of its rows, which memory= and weights need, are those of one call: give "
                f'method="two_pass" without weights, and {GIVE_LOSSES}'
            )
        (outputs,) = calls
        # A guard looks at the graph of the losses.
        with torch.set_grad_enabled(has_weights or bool(self._rule and self._rule.guard)):
            losses_of = partial(head_losses, head) if head else self._losses
            losses = losses_of(outputs, labelled)
        if self._rule and self._indices is not None:  # of the first loss that a step computes
            passes = self._passes.tolist()
            self._selection.update(self._indices, losses * of_examples, passes=passes)
            self._indices = None
        if not has_weights:
            return result
        loss, *others = result if isinstance(result, tuple) else (result,)
        if head:
            items, count = count_items(head, labelled), options.get("num_items_in_batch")
            averages = count is not None and self.args.average_tokens_across_devices
            processes = self.args.world_size if averages else 1  # whose gradients are averaged
            if checks:
                check_unweighted(self, loss / processes, losses, items, count)
                self._times.reset()
            loss = processes * weighted_mean(losses, items, weights, count)
        else:
            loss = (losses * weights).mean()
        return (loss, *others) if others else loss

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
        losses = partial(weighted_losses, self._losses)
        self._selection = SinglePass(self.model, losses=losses, **self._counted)
        self.stats = self._selection.stats
        return self.accelerator.prepare_model(self._selection)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """The order of examples; with a rule that of its passes, a function of the seed."""
        if not self._rule:
            return super()._get_train_sampler(*args, **kwargs)
        settings = self.args
        self._order = SelectiveSampler(
            cast(Any, self.train_dataset),
            self._rule,
            shuffle=settings.train_sampling_strategy != "sequential",
            seed=self._seed,
            epochs=count_epochs(settings, self._batches_of_epoch()),
            rank=settings.process_index,
            world=settings.world_size,
        )
        return self._order

    def _batches_of_epoch(self) -> int:
        """Returns how many batches an epoch has in each process, for a rule."""
        order = range(len(cast(Any, self.train_dataset)) // self.args.world_size)
        return len(BatchSampler(order, self._train_batch_size, self.args.dataloader_drop_last))

    def get_train_dataloader(self) -> Any:
        """The Trainer's own; with a rule its batches come with their examples' indices."""
        settings, column = self.args, self._weight_column
        with ExitStack() as stack:
            if column:
                self._set_signature_columns_if_needed()
                columns = [*self._signature_columns, column]
                collate = WeightCollate(self.data_collator, column)
                stack.enter_context(replaced(self, "_signature_columns", columns))
                stack.enter_context(replaced(self, "data_collator", collate))
            loader = super().get_train_dataloader()
        if order := self._order:
            # What accelerate wraps. Its sharding would repeat examples; the order is shared.
            base, size = loader.base_dataloader, self._train_batch_size
            batches = order.batches(size, settings.dataloader_drop_last)
            base.__dict__.update(batch_sampler=batches, sampler=order)
            base.__dict__["dataset"] = Indexed(base.dataset)
            base.__dict__["collate_fn"] = testing_order(base).collate_fn
        return loader

    def _begin_selection(self, get_loader: Callable[[], Any]) -> Any:
        """Returns the loader that is trained on, after making the selection for it."""
        # Another loader, which a callback may ask for meanwhile, has no part in the selection.
        self.__dict__["get_train_dataloader"] = get_loader
        settings, loader = self.args, get_loader()
        if self._rule:
            if not self._order:
                raise ConfigError(
                    f"{type(self).__name__} makes a training loader or sampler of its own, and "
                    'memory= needs that of super(): call it, or give method="two_pass"'
                )
            self._selection = self._order
            return loader
        count = len(loader) if has_length(loader) else None
        counted = count_schedule(
            self._schedule,
            count,
            epochs=count_epochs(settings, count),
            advice=f"and the train data set has no length: give {AT_ONCE}",
        )
        seed = rank_seed(self._seed, settings.process_index)
        self._counted = {**counted, "selector": copy.deepcopy(self._selector), "seed": seed}
        if self._method == "two_pass":
            self._selection = StepSelection(InBatch(**self._counted))
            self.stats = self._selection.stats
        return loader

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs values; beside a training loss, the statistics of the selection."""
        # Of training: the losses of evaluation and of the whole have other names.
        if "loss" in logs and self._selection:
            logs |= self.stats.log_entries(self._share())
        super().log(logs, *args, **kwargs)

    def _share(self) -> float:
        """Returns the share of the examples that are kept now; 1 while all are."""
        if self._rule:
            return float(self._selection.draw.share)
        if self._method == "single_pass":
            return len(self._selection.selection.positions) / max(len(self._selection.losses), 1)
        return float(self._selection.share)

    def _state_path(self, folder: str) -> Path:
        rank = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
        return Path(folder, f"sift_state{rank}.pth")

    def _settings(self) -> dict[str, Any]:
        return {
            "version": 4,
            "method": self._method,
            "processes": self.args.world_size,
            "seed": self._seed,
            "weight_column": self._weight_column,
            "batch_size": self._train_batch_size,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
        }

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        is_single = self._method == "single_pass"
        save = self._selection.get_extra_state if is_single else self._selection.state_dict
        state = {"settings": self._settings(), "selection": save()}
        if self._rule:
            state["stats"] = asdict(self.stats)
        torch.save(seal(state), self._state_path(output_dir))

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
        state = torch.load(path, weights_only=True)
        check_digest(self, state)
        check_entries(self, state, {}, self._settings())
        is_single = self._method == "single_pass"
        load = self._selection.set_extra_state if is_single else self._selection.load_state_dict
        load(state["selection"])
        if self._rule:
            if self.args.ignore_data_skip:
                raise ConfigError("memory= resumes within an epoch: leave ignore_data_skip out")
            batches, accumulation = self._batches_of_epoch(), self.args.gradient_accumulation_steps
            done = epochs_of_steps(self.state.global_step, batches, accumulation)
            if abs(done - (epochs := self.state.epoch or done)) > 1e-6:
                raise StateError(
                    f"{checkpoint} is of epoch {epochs:g}, and the Trainer goes on from {done:g}, "
                    "by its steps, as a callback ended an epoch early: give a checkpoint before it"
                )
            if done % 1:  # the Trainer skips what it trained on
                self._selection.resume(int(done))
            vars(self.stats).update(state["stats"])
