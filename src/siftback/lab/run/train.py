"""One run: a model trained from its seed to its length, tested on the way."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from siftback import NoiseGuard
from siftback.errors import ConfigError
from siftback.lab import forward, rates
from siftback.lab.data.data_set import COLOUR_RANGE, IGNORED, DataSet, Kind
from siftback.lab.data.load import rare_classes
from siftback.lab.length import Length, PhaseClock
from siftback.lab.records.columns import write_columns
from siftback.lab.records.comparison_record import RecordWriter
from siftback.lab.records.observations import kinds_of
from siftback.lab.records.run_summary import Evaluation, MetricName, RunSummary
from siftback.lab.run.checkpoints import Checkpoints
from siftback.lab.run.observer import Observer
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import LENGTHS, Run, Settings
from siftback.lab.strategies.strategy import Job
from siftback.lab.strategies.table import find_strategy

SUSPECTS_SUFFIX = ".suspects.parquet"

JUDGED_BY: dict[Kind, MetricName] = {"language": "loss", "pixels": "rmse"}
"""What runs are judged by, where it is not the error."""


class Scored(NamedTuple):
    """The data of a strategy that has all examples scored before training.

    Attributes:
        data: The data set, or what pruning left of it.
        cost: What the scores cost, in forwards of one example.
        seconds: What they took.
        scores: float32[N], those of the data; None where they were for pruning alone.
        kept: int64[N], where the data were in the whole set; None where nothing was pruned.
    """

    data: DataSet
    cost: float
    seconds: float
    scores: Tensor | None = None
    kept: Tensor | None = None


def train(
    training: "Training",
    record: RecordWriter,
    reporter: Reporter,
    checkpoints: Checkpoints,
    state: dict[str, Any] | None = None,
) -> RunSummary:
    """Trains and tests one model.

    Args:
        training: The run, not begun.
        record: Gets each evaluation as it is made.
        reporter: Reports how far the run has come.
        checkpoints: Get the run's state every so often.
        state: One of those, of the same run, to go on from; ``record`` is then that run's.

    Raises:
        ConfigError: If so few examples were kept that no step was made.
    """
    batches, settings = training.batches, training.settings

    def evaluate() -> bool:
        """Tests the model, and returns whether that is enough."""
        evaluation = training.evaluate()
        record.evaluation(evaluation)
        reporter.evaluation(evaluation)
        error, loss = evaluation.test_error, evaluation.test_loss
        limits = (error, settings.stop_at), (loss, settings.stop_at_loss)
        return any(limit is not None and value <= limit for value, limit in limits)

    try:
        if state:
            training.load_state_dict(state)
        elif training.observer:
            training.observer.forget()
        for is_due in training.steps(reporter.update):
            if is_due and evaluate():
                break
            if checkpoints.due(training.done) and not batches.is_over():
                checkpoint = training.state_dict() | {"record": record.mark()}
                with training.clock.paused():
                    checkpoints.save(checkpoint, training.made)
        if training.made > training.evaluated:
            evaluate()
    finally:
        batches.close()
    if not training.made:
        raise ConfigError(
            f"{training.run.name} ended before it had kept a batch of {settings.batch_size} "
            "examples: give a longer training, a larger --keep or a smaller --batch-size"
        )
    summary = training.summary(record.evaluations)
    if batches.guard:
        write_suspect_table(record.path.with_suffix(SUSPECTS_SUFFIX), training, batches.guard)
    return summary


class Training:
    """A run's model, steps, batches, tally and clock.

    Args:
        run: The run.
        settings: Those that it shares with the others of its comparison.
        data: The data set of ``settings``.
        scored: Data and scores of a strategy that has all examples scored first.
        observer: Looks at the model whenever it is tested.
        score_cost: What scoring an example costs in forwards, where it is no fresh one.
        counts_uses: Whether to count how often each example is trained on.

    Attributes:
        made: How many steps.
        evaluated: How many at the last evaluation.
    """

    def __init__(
        self,
        run: Run,
        settings: Settings,
        data: DataSet,
        scored: Scored | None = None,
        observer: Observer | None = None,
        score_cost: float = 1.0,
        counts_uses: bool = False,
    ) -> None:
        self.scoring = scored or Scored(data, 0.0, 0.0)
        whole, size = len(data.train_labels), settings.batch_size
        data = self.scoring.data
        self.left = len(data.train_labels) / whole  # by pruning
        self.run, self.settings, self.data = run, settings, data
        self.observer = observer
        self.rate = rates.find_rate(settings.rate, settings.epochs or settings.budget)
        self.device = forward.training_device(settings)
        # The one place that seeds: equal weights and dropout for every strategy of a seed.
        torch.manual_seed(run.seed)
        self.model = forward.build_model(settings, data)
        self.stepper = forward.Stepper(self.model, settings, self.device)
        self.clock = PhaseClock(self.device, self.scoring.seconds)
        scoring = self.scoring.cost, self.scoring.seconds
        strategy = find_strategy(run.strategy)
        self.batches = strategy.moment(
            Job(
                run,
                strategy,
                strategy.warmed(settings),
                data,
                self.model,
                self.device,
                Length.of(run, settings, whole // size * size, *scoring),
                self.clock,
                self.scoring.scores,
                counts_uses or "losses" in kinds_of(settings.observe),
                score_cost,
            )
        )
        # Seconds of it that the clock has counted, and of refreshing copies.
        self._selection = self.batches.selecting
        self._syncing = self.batches.refreshing
        self.made = self.evaluated = 0
        self.done = self._rate_progress = 0.0  # shares of the training
        self.metric: MetricName = JUDGED_BY.get(data.kind, "error")
        self._wrong_by_class = torch.zeros(data.classes, dtype=torch.float64, device=self.device)
        self._losses = torch.zeros((), device=self.device)  # summed since the last evaluation
        self._trained = 0

    def steps(self, update: Callable[[float], None]) -> Iterator[bool]:
        """Trains, telling the share that is done; yields after each step whether a test is due."""
        wanted, shares = self.settings.wanted_evaluations, self.settings.evaluate_at or ()
        self.clock.start("loading")
        for inputs, labels in self.batches:
            self._move_selection("loading")
            before = self.done
            self._step(inputs, labels)
            self.done = done = self.batches.done()
            update(done)
            yield int(done * wanted) > int(before * wanted) or any(
                before < share <= done for share in shares
            )
            self.clock.mark("loading")

    def _step(self, inputs: Tensor, labels: Tensor) -> None:
        self.clock.mark("forward")
        with forward.autocast_context(self.settings, self.device):
            loss = self.batches.loss(inputs, labels)
        self._move_selection("forward")
        self.clock.mark("other")
        self.batches.count_uses()
        # The rate of a step is that of the middle of the share of training it stands for.
        before, self._rate_progress = self._rate_progress, self.batches.rate_progress()
        rate = self.rate((before + self._rate_progress) / 2)
        self.stepper.set_rate(rate * self.batches.lr_scale)
        self.clock.mark("backward")
        self.stepper.backward(loss)
        self.clock.mark("optimizer")
        self.stepper.step()
        self.clock.mark("other")
        self.made += 1
        self._losses += loss.detach() * len(labels)
        self._trained += len(labels)

    def _move_selection(self, phase: str) -> None:
        """Moves the seconds that selection took within a phase to selection's own."""
        batches = self.batches
        self.clock.move(batches.selecting - self._selection, phase, "selection")
        self.clock.move(batches.refreshing - self._syncing, "selection", "syncing")
        self._selection, self._syncing = batches.selecting, batches.refreshing

    def evaluate(self) -> Evaluation:
        """Tests the model."""
        batches = self.batches
        self.evaluated = self.made
        with self.clock.paused():
            test_loss, test_error = self._test()
            agreement = batches.agreement()
            phases = {phase: round(spent, 6) for phase, spent in self.clock.phases.items()}
            train_loss = float(self._losses) / self._trained
            self._losses.zero_()
            self._trained = 0
            if self.observer:
                self.observer.evaluation(self.model, batches.epochs, self.made, batches.uses)
        return Evaluation(
            epoch=batches.epochs,
            examples=batches.stats.seen,
            steps=self.made,
            seconds=round(sum(phases.values()), 6),
            cost=batches.cost + self.scoring.cost,
            train_loss=train_loss,
            test_loss=test_loss,
            test_error=test_error,
            phases=phases,
            agreement=agreement,
        )

    def _test(self) -> tuple[float, float]:
        """Returns mean loss and error in percent over the test set, of language over its tokens.

        Of pixels the error is the root of the mean loss, in percent of the range of colours.
        """
        data, settings = self.data, self.settings
        loss = torch.zeros((), device=self.device)
        wrong, count = torch.zeros(2, dtype=torch.int64, device=self.device)
        self._wrong_by_class.zero_()
        batches = forward.batches_to_test_on(settings, data)
        for logits, labels in forward.predictions(self.stepper.tested, batches, settings):
            loss += forward.losses_of_outputs(logits, labels).sum()
            valid = labels != IGNORED
            is_wrong = ~forward.are_right(logits, labels) & valid
            wrong += is_wrong.sum()
            count += valid.sum()
            if self.metric == "error":
                self._wrong_by_class += labels.bincount(is_wrong.double(), minlength=data.classes)
        mean = float(loss) / len(data.test_labels)
        if data.kind == "pixels":
            return mean, 100 * math.sqrt(mean) / COLOUR_RANGE
        return mean, 100 * float(wrong) / float(count)

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the rest of the run depends on."""
        self.clock.mark("loading")
        batches = self.batches.state_dict()  # which may work on selection, as the next batch would
        self._move_selection("loading")
        with self.clock.paused():
            clock = self.clock.phases, self.clock.joules
        on_cuda = self.device.type == "cuda"
        return {
            "model": self.model.state_dict(),
            "stepper": self.stepper.state_dict(),
            "batches": batches,
            "observer": self.observer and self.observer.state_dict(),
            "clock": clock,
            "counts": [self.made, self.evaluated, self.done, self._rate_progress, self._trained],
            "losses": self._losses,
            "wrong_by_class": self._wrong_by_class,  # in the last test
            # The only global random state that is used: NumPy's and Python's are not.
            "random": torch.get_rng_state(),
            "random_device": torch.cuda.get_rng_state(self.device) if on_cuda else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same run, settings and data."""
        self.model.load_state_dict(state["model"])
        self.stepper.load_state_dict(state["stepper"])
        self.batches.load_state_dict(state["batches"])
        if self.observer:
            self.observer.load_state_dict(state["observer"])
        self.clock.load(*state["clock"])
        self._selection, self._syncing = self.batches.selecting, self.batches.refreshing
        self.made, self.evaluated, self.done, self._rate_progress, self._trained = state["counts"]
        self._losses = state["losses"].to(self.device)
        self._wrong_by_class = state["wrong_by_class"].to(self.device)
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None:
            torch.cuda.set_rng_state(state["random_device"], self.device)

    def summary(self, evaluations: list[Evaluation]) -> RunSummary:
        """Returns the run's entry in ``summary.json``."""
        batches, data, last = self.batches, self.data, evaluations[-1]  # training ended with it
        measured: dict[str, Any] = {}
        if batches.guard:
            measured["suspects"] = len(batches.guard.suspects)
            if data.true_labels is not None:
                measured["suspects_wrong"] = int(data.flipped[batches.guard.suspects].sum())
                measured["labels_wrong"] = int(data.flipped.sum())
        if self.metric == "error":
            counts = data.test_labels.bincount(minlength=data.classes)
            errors = 100 * self._wrong_by_class.cpu() / counts
            measured["test_error_worst"] = float(errors[~errors.isnan()].max())
        if self.settings.rare > 1:
            rare = rare_classes(data.classes)
            for name, group in (("rare", errors[:rare]), ("common", errors[rare:])):
                if not group.isnan().all():  # which is so of classes without rows to test on
                    measured[f"test_error_{name}"] = float(group.nanmean())
        return RunSummary(
            strategy=self.run.strategy,
            matched_to=self.run.matched_to,
            seed=self.run.seed,
            data=data.name,
            model=self.settings.model_name,
            keep_asked=self.run.keep,
            keep_measured=batches.kept_share * self.left,
            epochs=batches.epochs,
            steps=self.made,
            examples_forwarded=batches.stats.forwards,
            examples_backpropped=batches.stats.backwards,
            seconds_train=last.seconds,
            seconds_selection=round(batches.selecting, 6),
            cost_forward_units=batches.cost + self.scoring.cost,
            test_error_final=last.test_error,
            test_error_best=min(evaluation.test_error for evaluation in evaluations),
            record=self.run.record,
            seconds_by_phase=last.phases,
            joules=self.clock.joules,
            score_cost=batches.job.score_cost,
            cost_scoring=self.scoring.cost,
            seconds_scoring=round(self.scoring.seconds, 6),
            seconds_observing=self.observer.seconds if self.observer else {},
            metric=self.metric,
            test_loss_final=last.test_loss,
            test_loss_best=min(evaluation.test_loss for evaluation in evaluations),
            tokens_per_character=data.tokens_per_character,
            **measured,
        )


def stages(
    seed: int,
    settings: Settings,
    data: DataSet,
    epochs: float,
    update: Callable[[float], None] = lambda done: None,
    strategy: str = "traditional",
    keep: float = 1.0,
) -> Iterator[Training]:
    """Trains a model, and yields its training after each epoch; it is never tested.

    Args:
        seed: Of its initial weights and data order.
        settings: How to train, apart from the length.
        data: What to train on.
        epochs: How long; 0 gives the initial weights.
        update: Called with the share of it that is done.
        strategy: What chooses the examples; by default it is trained on everything.
        keep: The share that it keeps.
    """
    changes: dict[str, Any] = dict.fromkeys((*LENGTHS, "evaluations", "evaluate_at", "ema"))
    settings = replace(settings, **changes | {"epochs": epochs or 1.0, "observe": ""})
    training = Training(Run(strategy, keep, seed), settings, data, counts_uses=keep < 1)
    for is_due in training.steps(update) if epochs else ():
        if is_due:
            training.evaluated = training.made
            yield training
    if not epochs or training.made > training.evaluated:
        yield training


def write_suspect_table(path: Path, training: Training, guard: NoiseGuard) -> None:
    """Writes the training examples that seem mislabelled, by a run with a noise guard.

    The table has one row per example, with its ``index`` in the training set, its ``label``, the
    model's ``guess``, as ``score`` the loss that the guard saw last, whether it is a ``suspect``,
    which may be held back, and a ``label_issue``, which is worth a look, the model's probabilities
    ``p_0`` and on, and ``true_label`` where labels were flipped. The probabilities are those of the
    trained model on images that are not augmented.

    Args:
        path: ``records/NAME.suspects.parquet``.
        training: The run, at its end.
        guard: Its noise guard.
    """
    data, stream = training.data, training.batches.stream
    logits = forward.predictions(training.model, stream.plain(stream.examples), training.settings)
    probabilities = torch.cat([rows.softmax(1).cpu() for rows, _ in logits])
    guard.grow(len(data.train_labels))
    none = torch.zeros(len(data.train_labels), dtype=torch.bool)
    columns = {
        "index": torch.arange(len(data.train_labels)),
        "label": data.train_labels,
        "guess": probabilities.argmax(1),
        "score": guard.losses,
        "suspect": none.index_fill(0, guard.suspects, True),
        "label_issue": none.index_fill(0, guard.label_issues, True),
    }
    if data.true_labels is not None:
        columns["true_label"] = data.true_labels
    columns |= {f"p_{number}": column for number, column in enumerate(probabilities.unbind(1))}
    write_columns(path, columns, {"run": path.name.removesuffix(SUSPECTS_SUFFIX)})
