"""The base classes of rules, which choose the examples of each epoch before any is read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_integer, shown
from siftback.draws.percentile_draw import drawn_by_percentile
from siftback.errors import ConfigError, LossError, StateError
from siftback.schedule import Epochs, Moment, Schedule, Share
from siftback.scorers.fresh import checked_scorer
from siftback.scorers.scorer import Scorer
from siftback.selectors.percentile import Percentile
from siftback.selectors.sampling import count_of
from siftback.state import (
    MOST_EPOCHS,
    check_digest,
    check_entries,
    integer,
    load_all_or_none,
    raise_damaged,
    seal,
    state_of,
)
from siftback.tables.score_table import ScoreTable
from siftback.tables.shards import Shards


class EpochRule(ABC):
    """Chooses the examples of each epoch before any is read, by their losses in earlier epochs.

    A loader calls `grow` with the number of examples, `draw` at the beginning of each epoch in
    which the schedule is on, and `update` with the losses of each training batch. A rule of your
    own defines `draw`; if it learns from training it also overrides `update`, and the loader then
    requires the losses.

    Where a sampler of the user's gives some of the examples alone, an epoch is drawn among those:
    `examples`, `rows` and `values` are then theirs while `draw` and `count` are called. A rule that
    has state per example besides its table indexes that by `candidates`.

    Args:
        table: Values remembered per example; by default none. A table in a file may have more
            rows than there are examples.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        shards: S, where each process remembers only the examples that it reads, which are those of
            its share of S `Shards`. By default every process remembers all examples.

    Attributes:
        schedule: When the rule leaves examples out.
        table: Values remembered per example.
        shards: Which examples are this process's, once their number is known; None where all are.
        reweights: Whether its draws have weights other than 0 and 1, which training must then
            apply. A rule of your own whose draws have some should say so in its class.

    Raises:
        ConfigError: If ``warmup`` or ``tail`` is not `Epochs` or a `Share`, the tail is the whole
            of training, or a table in a file is to have shards.

    >>> class Alternating(EpochRule):
    ...     def draw(self, epoch, generator):
    ...         return ((torch.arange(self.examples) + epoch) % 2).float()
    >>> rule = Alternating()
    >>> rule.grow(4)
    >>> rule.draw(0, torch.Generator()), rule.draw(1, torch.Generator())
    (tensor([0., 1., 0., 1.]), tensor([1., 0., 1., 0.]))
    """

    reweights = False

    def __init__(
        self,
        table: ScoreTable | None = None,
        *,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        shards: int | None = None,
    ) -> None:
        self.schedule = Schedule(warmup=warmup, tail=tail)
        if tail == Share(1.0):
            raise ConfigError(f"tail={tail!r} is the whole of training: give a smaller share")
        self.table = ScoreTable(columns=0) if table is None else table
        self._examples = 0
        self._candidates: Tensor | None = None
        self._shards = None if shards is None else checked_integer("shards", shards, 1)
        self.shards: Shards | None = None
        if shards is not None and self.table.path is not None:
            raise ConfigError(
                f"shards={shards} and a table in {self.table.path}: give one of them, as a state "
                "of shards holds their values, and that of a file does not"
            )

    @property
    def candidates(self) -> Tensor | None:
        """int64[n], the examples that a draw is among, ascending; None where it is among all."""
        return self._candidates

    @property
    def examples(self) -> int:
        """Number of examples, of all processes."""
        return self._examples if self._candidates is None else len(self._candidates)

    @property
    def rows(self) -> int:
        """Number of rows of `values`: one per example, of which shards have this process's."""
        return self.examples if self.shards is None else self.shards.rows

    @property
    def values(self) -> Tensor:
        """float32[rows, columns], the values remembered; NaN where nothing is known."""
        if self._candidates is not None:
            return self.table.values[self._candidates]
        return self.table.values[: self.rows]

    @property
    def has_value(self) -> Tensor:
        """bool[rows], the examples with a value; all of them where the rule remembers none."""
        if not self.table.columns:
            return torch.ones(self.rows, dtype=torch.bool)
        return ~self.values.isnan().all(1)

    @contextmanager
    def among(self, candidates: Tensor | None) -> Iterator[None]:
        """Has draws be among some examples alone, as long as the context lasts.

        Args:
            candidates: int64[n], their indices, ascending; None for all.
        """
        self._candidates = candidates
        try:
            yield
        finally:
            self._candidates = None

    def grow(self, examples: int) -> None:
        """Makes room for a number of examples; never removes any.

        Raises:
            ConfigError: If they are not an integer, at least 0; or in shards, and their number is
                not known or changes.
        """
        examples = checked_integer("examples", examples, 0)
        if self._shards is not None and (self.shards is None or examples != self._examples):
            if self.shards is not None:
                raise ConfigError(
                    f"shards={self._shards} of {self._examples} examples, and there are "
                    f"{examples} now: give another rule for another data set"
                )
            self.shards = Shards(self._shards, examples)
        self._examples = max(self._examples, examples)
        self.table.grow(self.rows)

    @abstractmethod
    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Chooses the examples of an epoch. Called once per epoch, while the schedule is on.

        Args:
            epoch: The epoch, from 0.
            generator: Source of random numbers, on the CPU.

        Returns:
            float32[examples], the weight of each example's loss, 0 for those left out; of
            `candidates` one for each of those. Examples without a known loss are kept, as far as
            `count` allows.
        """

    def count(self, epoch: int) -> int | None:
        """Number of examples that the draw of an epoch keeps; None if not known in advance."""
        return None

    def update(  # noqa: B027
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Learns from training; the base class does nothing.

        Args:
            indices: int64[n], distinct examples, on the CPU.
            losses: float32[n], their losses; finite, on the CPU.
            epoch: The epoch in which they were trained on.
            correct: bool[n], whether each was predicted correctly, if the loop passes it.
            confidence: float32[n], the probability of each prediction, if the loop passes it.
        """

    def lr_scale(self, weights: Tensor) -> float:
        """Factor of the learning rate in an epoch with this draw; 1 in the base class.

        Args:
            weights: float32[examples], the result of `draw`.
        """
        return 1.0

    def settings(self) -> dict[str, Any]:
        """The arguments, by name, that a state must have been saved with to fit."""
        return {}

    def members(self) -> dict[str, Any]:
        """The objects, by name, whose states are parts of this one's, besides the table."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The name of the rule, its settings, the values remembered, and each member's state."""
        table = self.table.state_dict() if not self.shards else self.shards.state_of(self.values)
        members = {name: own.state_dict() for name, own in self.members().items()}
        own = {"settings": self._named_settings(), "examples": self._examples, "table": table}
        return seal(own | members)

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another rule, other settings or fewer examples; or of other
                shards, or another number of examples in shards; or a member's does not fit.
        """
        check_digest(self, state)
        check_entries(self, state, {"examples": integer()}, self._named_settings())
        unlike = self._shards is not None and state["examples"] != self._examples
        if unlike or state["examples"] < self._examples:
            raise StateError(
                f"a state of {state['examples']} examples does not fit {self._examples}: resume "
                "with the data set that it was saved with"
            )
        check_entries(self, state, {"table": self._check_table})
        if self.shards is None:
            rows = self.table.rows_of_state(state["table"])
            if rows < state["examples"]:
                raise_damaged("table", rows, f"of {state['examples']} examples")
        check_entries(self, state, {name: state_of(own) for name, own in self.members().items()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another rule's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        load_all_or_none(
            *((own, state[name]) for name, own in self.members().items()),
            finish=lambda: self.table.load_state_dict(self._table_of(state)),
        )
        self._examples = state["examples"]

    def _table_of(self, state: dict[str, Any]) -> dict[str, Any]:
        """The table's part of a state; of shards, this process's."""
        table: dict[str, Any] = state["table"]
        return table if self.shards is None else seal({"values": self.shards.own(table)})

    def _check_table(self, name: str, value: Any) -> None:
        if self.shards is None:
            state_of(self.table)(name, value)
            return
        self.shards.check(name, value, torch.float32, self.shards.height, self.table.columns)

    def _named_settings(self) -> dict[str, Any]:
        when = {"warmup": repr(self.schedule.warmup), "tail": repr(self.schedule.tail)}
        return {"rule": type(self).__name__, **self.settings(), **when}


class LastLossRule(EpochRule):
    """A rule that remembers the loss that each example had when it was last trained on.

    It is in the first column of the table. A rule of this kind defines `draw`.

    Attributes:
        decay: Weight of the old loss in the remembered one, in [0, 1).
    """

    decay = 0.0

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Remembers the losses, averaged with the old ones if ``decay`` is above 0."""
        record_average(self.table, indices, losses, self.decay)


class RefreshedRule(EpochRule):
    """A rule that a scoring pass refreshes every n-th epoch.

    In an epoch with a pass the loader runs Selective-Backprop with `scorer` and `selector`, and
    passes every score to `rescore`; the n - 1 epochs after it are drawn by the scores `predicted`.
    Exactly ``round(keep * N)`` of N examples are drawn (see `drawn_by_percentile`).

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        every: n, the epochs from one scoring pass to the next, at least 1.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: Values remembered per example.
        warmup: How long all examples are trained on before the first pass; by default one epoch.

    Attributes:
        every: n.
        scorer: Scores the examples in a pass.
        selector: Selects in an epoch with a pass; its share is also that of the draws.

    Raises:
        ConfigError: If an argument is out of range, both or neither of ``keep`` and ``beta`` are
            given, or ``scorer`` is a rule.

    >>> class LastScore(RefreshedRule):
    ...     def predicted(self, epoch):
    ...         return self.values[:, 0]
    ...     def observe(self, indices, losses, epoch):
    ...         self.table.record(indices, losses)
    >>> rule = LastScore(0.5, None, every=2, scorer=None, table=ScoreTable())
    >>> rule.grow(4)
    >>> rule.rescore(torch.arange(4), torch.tensor([0.1, 0.2, 2.0, 3.0]), epoch=0)
    >>> rule.is_pass(1), rule.is_pass(2), rule.draw(1, torch.Generator().manual_seed(0))
    (False, True, tensor([1., 0., 0., 1.]))
    """

    def __init__(
        self,
        keep: float | None,
        beta: float | None,
        *,
        every: int,
        scorer: Scorer | None,
        table: ScoreTable | None,
        warmup: Moment = Epochs(1),
    ) -> None:
        super().__init__(table, warmup=warmup)
        if isinstance(scorer, EpochRule):
            raise ConfigError(
                f"scorer={type(scorer).__name__}(...) is a rule: give {type(self).__name__} a "
                "scorer, which computes scores of a batch, such as Fresh()"
            )
        self.every = checked_integer("every", every, 1)
        self.scorer = checked_scorer(scorer)
        self.selector = Percentile(keep=keep, beta=beta)
        self._keep = self.selector.keep  # a schedule may change it in the selector
        self._last_pass: int | None = None

    @property
    def last_pass(self) -> int | None:
        """The epoch of the last scoring pass; None before the first."""
        return self._last_pass

    @property
    def keep(self) -> float:
        """The share of the examples to keep."""
        return self.selector.keep

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (0, 1]; a `Schedule` that anneals needs it."""
        self.selector.set_keep(keep)

    def is_pass(self, epoch: int) -> bool:
        """Whether an epoch has a scoring pass: the first one, and then every n-th."""
        return self._last_pass is None or not 0 < epoch - self._last_pass < self.every

    @abstractmethod
    def predicted(self, epoch: int) -> Tensor:
        """float32[examples], the scores to draw by; NaN for an example never scored."""

    @abstractmethod
    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers losses of a pass or of training: int64[n] and float32[n], none NaN."""

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Exactly `count` examples, by `predicted`."""
        scores, count = self.predicted(epoch), self.count(epoch)
        return drawn_by_percentile(scores, self.selector.beta, 0.0, count, generator)

    def count(self, epoch: int) -> int:
        """Number of examples that a draw in an epoch without a pass keeps: ``round(keep * N)``."""
        return min(count_of(self.keep, self.examples), self.examples)

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Remembers the scores of a scoring pass.

        Args:
            indices: int64[n], distinct examples, on the CPU.
            scores: float32[n], on the CPU. NaN means unknown and is not remembered; infinity is
                the highest score.
            epoch: The epoch of the pass.
        """
        self._last_pass = epoch
        known = ~scores.isnan()
        self.observe(indices[known], scores[known], epoch)

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"keep": self._keep, "every": self.every, "scorer": type(self.scorer).__name__}

    def members(self) -> dict[str, Any]:
        """The scorer."""
        return {"scorer": self.scorer}

    def state_dict(self) -> dict[str, Any]:
        """The values remembered, the epoch of the last pass, and the scorer's state."""
        last = -1 if self._last_pass is None else self._last_pass
        return seal({**super().state_dict(), "last_pass": last})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: As for `EpochRule.check_state`, or if the epoch is damaged.
        """
        super().check_state(state)
        check_entries(self, state, {"last_pass": integer(-1, MOST_EPOCHS)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another rule's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        super().load_state_dict(state)
        self._last_pass = None if state["last_pass"] < 0 else state["last_pass"]


def checked_table(rule: str, table: ScoreTable | None, columns: int) -> ScoreTable:
    """Returns the table, after checking it, or a new one in memory.

    Args:
        rule: Name of the rule, for the error.
        table: Table that was passed, or None.
        columns: How many values the rule remembers per example.

    Raises:
        ConfigError: If the table has another number of columns.
    """
    if table is None:
        return ScoreTable(columns=columns)
    if not isinstance(table, ScoreTable):
        raise ConfigError(f"table={shown(table)}: give a ScoreTable, such as ScoreTable(path=...)")
    if table.columns != columns:
        raise ConfigError(
            f"{rule} remembers {columns} numbers per example, and the table has "
            f"{table.columns} columns: give it ScoreTable(columns={columns}, path=...)"
        )
    return table


def check_guesses(correct: Tensor | None, confidence: Tensor | None, losses: Tensor) -> None:
    """Checks what a loop found of the predictions of some examples.

    Args:
        correct: bool[n], whether each was predicted correctly; None where it was not passed.
        confidence: float[n], the probability of each prediction, likewise.
        losses: float[n]; where one is not finite, neither may its probability be.

    Raises:
        LossError: If they are of another type or shape, or a probability is outside [0, 1].
    """
    count = len(losses)
    if correct is not None and (correct.shape != (count,) or correct.dtype != torch.bool):
        raise LossError(
            f"correct is {correct.dtype} of shape {list(correct.shape)}: give whether each "
            f"example was predicted correctly, bool[{count}]"
        )
    if confidence is None:
        return
    if confidence.shape != (count,) or not confidence.is_floating_point():
        raise LossError(
            f"confidence is {confidence.dtype} of shape {list(confidence.shape)}: give the "
            f"probability of each prediction, float[{count}]"
        )
    fits = (confidence >= 0) & (confidence <= 1 + 1e-2)  # rounded in half precision
    fits |= ~losses.isfinite().to(fits.device)
    if not bool(fits.all()):
        row = int((~fits).nonzero()[0])
        raise LossError(
            f"confidence[{row}] is {float(confidence[row])}: give the probability of each "
            "prediction, such as outputs.softmax(1).amax(1)"
        )


def record_average(table: ScoreTable, indices: Tensor, losses: Tensor, decay: float) -> None:
    """Records ``decay * old + (1 - decay) * new`` in the first column of a table.

    If there is no old loss, or it is not finite, records the new loss.
    """
    column, indices = table.values[:, 0], indices.cpu()
    losses = losses.detach().to(column)
    if decay:
        old = column[indices]
        losses = torch.where(old.isfinite(), decay * old + (1 - decay) * losses, losses)
    table.record(indices, losses, column=0)


def weights_of_known(scores: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Loss weights: 1 where a score is NaN, elsewhere the result of a function.

    Args:
        scores: float32[N].
        weigh: Maps float32[n], the known scores in their order, to float32[n]; not called if
            there are none.

    Returns:
        float32[N].

    >>> weights_of_known(torch.tensor([2.0, torch.nan, 1.0]), lambda known: (known > 1).float())
    tensor([1., 1., 0.])
    """
    weights, known = torch.ones_like(scores), ~scores.isnan()
    if known.any():
        weights[known] = weigh(scores[known])
    return weights


def rounded_down(share: float, examples: int) -> int:
    """The number of examples that a share is, rounded down except for floating-point error.

    >>> rounded_down(0.29, 100), rounded_down(0.5, 5)
    (29, 2)
    """
    return int(share * examples + 1e-9)
