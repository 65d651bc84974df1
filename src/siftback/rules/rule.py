"""The base of rules: they choose the examples of each epoch before any is read."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_integer
from siftback.errors import ConfigError, StateError
from siftback.rules.percentile_draw import drawn_by_percentile
from siftback.rules.score_table import ScoreTable
from siftback.schedule import Epochs, Moment, Schedule, Share
from siftback.scorers.fresh import Fresh
from siftback.scorers.scorer import Scorer
from siftback.selectors.percentile import Percentile
from siftback.selectors.sampling import count_of


class EpochRule(ABC):
    """Chooses the examples of each epoch before any is read, by what training taught.

    A loader calls `grow` with the number of examples, `draw` as an epoch begins in which the
    schedule is on, and `update` with the losses of each batch trained on. A rule of your own
    defines `draw`; one that learns from training also overrides `update`, and then the loader
    requires the losses.

    Args:
        table: What is remembered of each example; by default nothing. A table in a file may
            have more rows than there are examples.
        warmup: How long everything is trained on at first.
        tail: How long everything is trained on at the end.

    Attributes:
        schedule: When the rule leaves examples out.
        table: What is remembered of each example.

    Raises:
        ConfigError: If ``warmup`` or ``tail`` is not `Epochs` or a `Share`, or the tail is the
            whole of training.

    >>> class Alternating(EpochRule):
    ...     def draw(self, epoch, generator):
    ...         return ((torch.arange(self.examples) + epoch) % 2).float()
    >>> rule = Alternating()
    >>> rule.grow(4)
    >>> rule.draw(0, torch.Generator()), rule.draw(1, torch.Generator())
    (tensor([0., 1., 0., 1.]), tensor([1., 0., 1., 0.]))
    """

    def __init__(
        self,
        table: ScoreTable | None = None,
        *,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
    ) -> None:
        self.schedule = Schedule(warmup=warmup, tail=tail)
        if tail == Share(1.0):
            raise ConfigError(f"tail={tail!r} is the whole of training: give a smaller share")
        self.table = ScoreTable(columns=0) if table is None else table
        self._examples = 0

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return self._examples

    @property
    def values(self) -> Tensor:
        """float32[examples, columns], what is remembered of them; NaN where nothing is."""
        return self.table.values[: self._examples]

    def grow(self, examples: int) -> None:
        """Makes room for so many examples; never takes any away."""
        self.table.grow(examples)
        self._examples = max(self._examples, examples)

    @abstractmethod
    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Chooses the examples of an epoch. Called once an epoch, while the schedule is on.

        Args:
            epoch: Which one, from 0.
            generator: Where randomness comes from, on the CPU.

        Returns:
            float32[examples], the weight of each one's loss, 0 for those left out. Examples
            that nothing is known of are kept, as far as `count` allows.
        """

    def count(self, epoch: int) -> int | None:
        """How many examples the draw of an epoch keeps; None where that is not known before."""
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
        """Learns from training; here nothing.

        Args:
            indices: int64[n], distinct examples, on the CPU.
            losses: float32[n], their losses; finite, on the CPU.
            epoch: The epoch in which they were trained on.
            correct: bool[n], whether each was predicted right, where the loop passes that.
            confidence: float32[n], the probability of each prediction, where the loop passes it.
        """

    def lr_scale(self, weights: Tensor) -> float:
        """What the learning rate is to be multiplied by in an epoch of such a draw; here 1.

        Args:
            weights: float32[examples], what `draw` gave.
        """
        return 1.0

    def settings(self) -> dict[str, Any]:
        """The arguments, by name, that a state must have been saved with to fit."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The name of the rule, its settings, and what is remembered."""
        own = {"rule": type(self).__name__, "settings": self.settings()}
        return {**own, "examples": self._examples, "table": self.table.state_dict()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Makes sure that a state fits.

        Raises:
            StateError: If it is of another rule, of other settings or of fewer examples.
        """
        theirs, own = _described(state), _described(self.state_dict())
        if theirs != own:
            raise StateError(
                f"the state is of {theirs}, and this rule is {own}: resume with the rule that it "
                "was saved with"
            )
        if state["examples"] < self._examples:
            raise StateError(
                f"a state of {state['examples']} examples does not fit {self._examples}: resume "
                "with the data set that it was saved with"
            )
        self.table.check_state(state["table"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.table.load_state_dict(state["table"])
        self._examples = state["examples"]


class RefreshedRule(EpochRule):
    """A rule that a scoring pass refreshes every n-th epoch.

    In an epoch with a pass the loader does Selective-Backprop with `scorer` and `selector`, and
    gives `rescore` every score; the n - 1 epochs after it are drawn by the scores `predicted`.
    Exactly ``round(keep * N)`` of N examples are drawn (see `drawn_by_percentile`).

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        every: n, the epochs from one scoring pass to the next, at least 1.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: What is remembered of each example.

    Attributes:
        every: n.
        scorer: Scores the examples in a pass.
        selector: Selects in an epoch with a pass; its share is also that of the draws.

    Raises:
        ConfigError: If an argument is out of its range, both or neither of ``keep`` and
            ``beta`` are given, or ``scorer`` is a rule.

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
    ) -> None:
        super().__init__(table)
        if isinstance(scorer, EpochRule):
            raise ConfigError(
                f"scorer={type(scorer).__name__}(...) is a rule: give {type(self).__name__} a "
                "scorer, which computes scores of a batch, such as Fresh()"
            )
        self.every = checked_integer("every", every, 1)
        self.scorer = Fresh() if scorer is None else scorer
        self.selector = Percentile(keep=keep, beta=beta)
        self._keep = self.selector.keep  # which a schedule may change in the selector
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
        """Remembers losses, wherever they come from: int64[n] and float32[n], none NaN."""

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Exactly `count` examples, by `predicted`."""
        scores, count = self.predicted(epoch), self.count(epoch)
        return drawn_by_percentile(scores, self.selector.beta, 0.0, count, generator)

    def count(self, epoch: int) -> int:
        """How many examples the draw of an epoch without a pass keeps: ``round(keep * N)``."""
        return min(count_of(self.keep, self.examples), self.examples)

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Remembers the scores of a scoring pass.

        Args:
            indices: int64[n], distinct examples, on the CPU.
            scores: float32[n], on the CPU. NaN is unknown and not remembered; infinity is the
                highest score.
            epoch: The epoch of the pass.
        """
        self._last_pass = epoch
        known = ~scores.isnan()
        self.observe(indices[known], scores[known], epoch)

    def settings(self) -> dict[str, Any]:
        """See `EpochRule.settings`."""
        return {"keep": self._keep, "every": self.every, "scorer": type(self.scorer).__name__}

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, when the last pass was, and the scorer's state."""
        own = {"last_pass": self._last_pass, "scorer": self.scorer.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state.

        Raises:
            StateError: As for `check_state`, or where the scorer refuses its state, before
                anything is changed.
        """
        self.check_state(state)
        self.scorer.load_state_dict(state["scorer"])
        super().load_state_dict(state)
        self._last_pass = state["last_pass"]


def checked_table(rule: str, table: ScoreTable | None, columns: int) -> ScoreTable:
    """The table given, or a new one in memory.

    Args:
        rule: The name of the rule, for the error.
        table: What was given.
        columns: How many numbers the rule remembers of each example.

    Raises:
        ConfigError: If the table has another number of columns.
    """
    if table is None:
        return ScoreTable(columns=columns)
    if table.columns != columns:
        raise ConfigError(
            f"{rule} remembers {columns} numbers of each example, and the table has "
            f"{table.columns} columns: give it ScoreTable(columns={columns}, path=...)"
        )
    return table


def record_average(table: ScoreTable, indices: Tensor, losses: Tensor, decay: float) -> None:
    """Puts ``decay * old + (1 - decay) * new`` in the first column of a table.

    Where there is no old loss, or it is not finite, the new one itself.
    """
    column, indices = table.values[:, 0], indices.cpu()
    losses = losses.detach().to(column)
    if decay:
        old = column[indices]
        losses = torch.where(old.isfinite(), decay * old + (1 - decay) * losses, losses)
    column[indices] = losses


def weights_of_known(scores: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Loss weights: 1 where a score is NaN, and of the other scores what a function gives.

    Args:
        scores: float32[N].
        weigh: Turns float32[n], the known scores in their order, into float32[n]; not called
            where there are none.

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
    """How many examples a share is, rounded down but for the error of floating-point numbers.

    >>> rounded_down(0.29, 100), rounded_down(0.5, 5)
    (29, 2)
    """
    return int(share * examples + 1e-9)


def _described(state: dict[str, Any]) -> str:
    settings = state["settings"].items()
    return f"{state['rule']}({', '.join(f'{name}={value!r}' for name, value in settings)})"
