"""One run: a model trained from its seed to its length, tested on the way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from siftback.errors import ConfigError
from siftback.lab import rates
from siftback.lab.data.data_set import IGNORED, DataSet
from siftback.lab.data.stream import BatchStream, test_batches
from siftback.lab.forward import (
    autocast_context,
    build_model,
    cross_entropies,
    evaluation_batch_size,
    training_device,
)
from siftback.lab.records.comparison_record import RecordWriter
from siftback.lab.records.observations import kinds_of
from siftback.lab.records.run_summary import Evaluation, RunSummary
from siftback.lab.run import suspects
from siftback.lab.run.checkpoints import Checkpoints
from siftback.lab.run.observer import Observer
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import LENGTHS, Run, Settings
from siftback.lab.training.length import Length, Spent
from siftback.lab.training.phase_clock import PhaseClock
from siftback.lab.training.stepper import Stepper
from siftback.lab.training.training_batches import TrainingBatches


class Scored(NamedTuple):
    """What a strategy that has all examples scored before training trains on.

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


class Stage(NamedTuple):
    """A model on its way.

    Attributes:
        model: As it is now.
        stream: The batches that it is trained on.
        cost: What its training cost so far, in forwards of one example.
        seconds: What it took.
        uses: float32[N], how often it was trained on each example, where that was counted.
    """

    model: nn.Module
    stream: BatchStream
    cost: float
    seconds: float
    uses: Tensor | None


def train(
    run: Run,
    settings: Settings,
    data: DataSet,
    record: RecordWriter,
    reporter: Reporter,
    scored: Scored | None = None,
    checkpoints: Checkpoints | None = None,
    state: dict[str, Any] | None = None,
    observer: Observer | None = None,
    score_cost: float = 1.0,
) -> tuple[RunSummary, nn.Module]:
    """Trains and tests one model.

    Args:
        run: Which run.
        settings: What it shares with the others of its comparison.
        data: The data set of ``settings``.
        record: Gets each evaluation as it is made.
        reporter: Reports how far the run has come.
        scored: For a strategy that has all examples scored first, what came of it.
        checkpoints: Get the run's state every so often; None keeps none.
        state: One of those, of the same run, to go on from; ``record`` is then that run's.
        observer: Looks at the model whenever it is tested; None where nothing is asked for.
        score_cost: What scoring an example costs in forwards, where it is no fresh one.

    Returns:
        The summary, and the trained model: the averaged one, where an average is asked for.

    Raises:
        ConfigError: If so few examples were kept that no step was made.
    """
    training = _Training(run, settings, data, scored, False, observer, score_cost)

    def evaluate() -> Evaluation:
        made = training.evaluate()
        record.evaluation(made)
        reporter.evaluation(made)
        return made

    def is_enough(made: Evaluation) -> bool:
        limits = ((made.test_error, settings.stop_at), (made.test_loss, settings.stop_at_loss))
        return any(limit is not None and value <= limit for value, limit in limits)

    try:
        if state is not None:
            training.load_state_dict(state)
        elif observer is not None:
            observer.forget()
        for due in training.steps(reporter.update):
            if due and is_enough(evaluate()):
                break
            if checkpoints is not None and training.is_due(checkpoints):
                found = training.state_dict() | {"record": record.mark()}
                with training.clock.paused():
                    checkpoints.save(found, training.made)
        if training.made > training.evaluated:
            evaluate()
    finally:
        training.batches.close()
    if not training.made:
        raise ConfigError(
            f"{run.name} ended before it had kept a batch of {settings.batch_size} examples: give "
            "a longer training, a larger --keep or a smaller --batch-size"
        )
    summary = training.summary(record.evaluations)
    batches = training.batches
    if batches.guard is not None:
        path = record.path.with_suffix(suspects.SUFFIX)
        suspects.write(path, batches.guard, training.model, batches.stream, training.data, settings)
    return summary, training.stepper.tested


def stages(
    seed: int,
    settings: Settings,
    data: DataSet,
    epochs: float,
    update: Callable[[float], None] = lambda done: None,
    strategy: str = "traditional",
    keep: float = 1.0,
) -> Iterator[Stage]:
    """Trains a model, and gives it after each epoch; it is never tested.

    Args:
        seed: Of its initial weights and data order.
        settings: How to train, but for the length.
        data: What to train on.
        epochs: How long; 0 gives the initial weights.
        update: Called with the share of it that is done.
        strategy: What chooses the examples; by default it is trained on everything.
        keep: The share that it keeps.
    """
    asked: dict[str, Any] = dict.fromkeys((*LENGTHS, "evaluations", "evaluate_at", "ema"))
    settings = replace(settings, **asked | {"epochs": epochs or 1.0, "observe": ""})
    training = _Training(Run(strategy, keep, seed), settings, data, counts_uses=keep < 1)
    if not epochs:
        yield training.stage()
        return
    for due in training.steps(update):
        if due:
            with training.clock.paused():
                yield training.stage()
    if training.made > training.evaluated:
        yield training.stage()


class _Training:
    """A run's model, steps, batches, tally and clock.

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
        counts_uses: bool = False,
        observer: Observer | None = None,
        score_cost: float = 1.0,
    ) -> None:
        self._observer = observer
        size = settings.batch_size
        whole = len(data.train_labels)
        self.scoring = scored or Scored(data, 0.0, 0.0)
        data = self.scoring.data
        self.left = len(data.train_labels) / whole  # by pruning
        self.run, self.settings, self.data = run, settings, data
        self.rate = rates.find_rate(settings.rate, settings.epochs or settings.budget)
        self.device = training_device(settings)
        # The one place that seeds: equal weights and dropout for every strategy of a seed.
        torch.manual_seed(run.seed)
        self.model = build_model(settings, data)
        self.stepper = Stepper(self.model, settings, self.device)
        self.clock = PhaseClock(self.device)
        self.clock.add(self.scoring.seconds, "scoring")
        scoring = Spent(0.0, self.scoring.cost, self.scoring.seconds)
        length = Length.of(run, settings, whole // size * size, scoring)
        self.batches = TrainingBatches(
            run,
            settings,
            data,
            self.model,
            self.device,
            length,
            self.clock,
            self.scoring.scores,
            counts_uses or "losses" in kinds_of(settings.observe),
            score_cost,
        )
        # Seconds of it that the clock has counted, and of refreshing copies.
        self._selection = self.batches.selecting
        self._syncing = self.batches.refreshing
        self.made = self.evaluated = 0
        self._done = self._moved = 0.0
        self._losses = torch.zeros((), device=self.device)  # summed since the last evaluation
        self._trained = 0

    def steps(self, update: Callable[[float], None]) -> Iterator[bool]:
        """Trains, telling what share is done; says after each step whether a test is due."""
        wanted, others = self.settings.wanted_evaluations, self.settings.evaluate_at or ()
        self.clock.start("loading")
        for inputs, labels in self.batches:
            self._move_selection("loading")
            before = self._done
            self._step(inputs, labels)
            now = self._done = self.batches.done
            update(now)
            yield int(now * wanted) > int(before * wanted) or any(
                before < share <= now for share in others
            )
            self.clock.mark("loading")

    def stage(self) -> Stage:
        """The model as it is now, in place of a test."""
        self.evaluated = self.made
        batches, seconds = self.batches, self.clock.seconds
        return Stage(self.model, batches.stream, batches.cost, seconds, batches.uses)

    def is_due(self, checkpoints: Checkpoints) -> bool:
        """Whether to save a checkpoint now; none is saved of a training that is over."""
        return checkpoints.due(self._done) and not self.batches.is_over

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on."""
        self.clock.mark("loading")
        batches = self.batches.state_dict()  # which may work on selection, as the next batch would
        self._move_selection("loading")
        return {
            "model": self.model.state_dict(),
            "stepper": self.stepper.state_dict(),
            "batches": batches,
            "observer": None if self._observer is None else self._observer.state_dict(),
            "phases": self.clock.phases,
            "made": self.made,
            "evaluated": self.evaluated,
            "done": self._done,
            "moved": self._moved,
            "losses": self._losses,
            "trained": self._trained,
            # The only global random state that is used: NumPy's and Python's are not.
            "random": torch.get_rng_state(),
            "random_device": _device_random(self.device),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same run, settings and data."""
        self.model.load_state_dict(state["model"])
        self.stepper.load_state_dict(state["stepper"])
        self.batches.load_state_dict(state["batches"])
        if self._observer is not None:
            self._observer.load_state_dict(state["observer"])
        self.clock.load(state["phases"])
        self._selection, self._syncing = self.batches.selecting, self.batches.refreshing
        self.made, self.evaluated = state["made"], state["evaluated"]
        self._done, self._moved = state["done"], state["moved"]
        self._losses, self._trained = state["losses"].to(self.device), state["trained"]
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None:
            torch.cuda.set_rng_state(state["random_device"], self.device)

    def summary(self, evaluations: list[Evaluation]) -> RunSummary:
        """The run's entry in ``summary.json``."""
        errors = [evaluation.test_error for evaluation in evaluations]
        losses = [evaluation.test_loss for evaluation in evaluations]
        phases = evaluations[-1].phases  # training ended with it
        return RunSummary(
            strategy=self.run.strategy,
            matched_to=self.run.matched_to,
            seed=self.run.seed,
            data=self.data.name,
            model=self.settings.model_name,
            keep_asked=self.run.keep,
            keep_measured=self.batches.kept_share * self.left,
            epochs=self.batches.epochs,
            steps=self.made,
            examples_forwarded=self.batches.stats.forwards,
            examples_backpropped=self.batches.stats.backwards,
            seconds_train=evaluations[-1].seconds,
            seconds_selection=round(self.batches.selecting, 6),
            cost_forward_units=self.batches.cost + self.scoring.cost,
            test_error_final=errors[-1],
            test_error_best=min(errors),
            record=self.run.record,
            seconds_by_phase=phases,
            score_cost=self.batches.score_cost,
            cost_scoring=self.scoring.cost,
            seconds_scoring=round(self.scoring.seconds, 6),
            seconds_observing={} if self._observer is None else self._observer.seconds,
            metric="loss" if self.data.kind == "language" else "error",
            test_loss_final=losses[-1],
            test_loss_best=min(losses),
            tokens_per_character=self.data.tokens_per_character,
            **self._suspected(),
        )

    def _suspected(self) -> dict[str, int]:
        """How many examples the guard suspects, and how many of them rightly."""
        if self.batches.guard is None:
            return {}
        suspects, data = self.batches.guard.suspects, self.data
        found = {"suspects": len(suspects)}
        if data.true_labels is not None:
            found |= {
                "suspects_wrong": int(data.flipped[suspects].sum()),
                "labels_wrong": int(data.flipped.sum()),
            }
        return found

    def _step(self, inputs: Tensor, labels: Tensor) -> None:
        self.clock.mark("forward")
        with autocast_context(self.settings, self.device):
            loss = self.batches.loss(inputs, labels)
        self._move_selection("forward")
        self.clock.mark("other")
        self.batches.count_uses()
        # The rate of a step is that of the middle of the share of training it stands for.
        before, self._moved = self._moved, self.batches.moved
        rate = self.rate((before + self._moved) / 2)
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
        """Seconds that selection took within a phase are selection's own."""
        taken = self.batches.selecting - self._selection
        self.clock.move(taken, phase, "selection")
        self._selection += taken
        syncing = self.batches.refreshing - self._syncing
        self.clock.move(syncing, "selection", "syncing")
        self._syncing += syncing

    def evaluate(self) -> Evaluation:
        """Tests the model."""
        self.evaluated = self.made
        with self.clock.paused():
            test_loss, test_error = self._test()
            agreed = self.batches.agreement()
            phases = {phase: round(spent, 6) for phase, spent in self.clock.phases.items()}
            train_loss = float(self._losses) / self._trained
            self._losses.zero_()
            self._trained = 0
            if self._observer is not None:
                self._observer.evaluation(
                    self.model, self.batches.epochs, self.made, self.batches.uses
                )
        return Evaluation(
            epoch=self.batches.epochs,
            examples=self.batches.stats.seen,
            steps=self.made,
            seconds=round(sum(phases.values()), 6),
            cost=self.batches.cost + self.scoring.cost,
            train_loss=train_loss,
            test_loss=test_loss,
            test_error=test_error,
            phases=phases,
            agreement=agreed,
        )

    @torch.no_grad()
    def _test(self) -> tuple[float, float]:
        """Mean loss and error in percent over the test set, of language over its tokens."""
        model = self.stepper.tested
        was_training = model.training
        model.eval()
        loss = torch.zeros((), device=self.device)
        wrong, count = torch.zeros(2, dtype=torch.int64, device=self.device)
        size = evaluation_batch_size(self.settings, self.data)
        for inputs, labels in test_batches(
            self.data, size, self.device, self.settings.channels_last
        ):
            with autocast_context(self.settings, self.device):
                logits = model(inputs).float()
            loss += cross_entropies(logits, labels).sum()
            valid = labels != IGNORED
            wrong += ((logits.argmax(-1) != labels) & valid).sum()
            count += valid.sum()
        model.train(was_training)
        return float(loss) / len(self.data.test_labels), 100 * float(wrong) / float(count)


def _device_random(device: torch.device) -> Tensor | None:
    """The state of an accelerator's own random numbers."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None
