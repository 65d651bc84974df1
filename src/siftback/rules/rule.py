"""The base classes of rules, which choose the examples of each epoch before any is read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_share, format_value
from siftback.draws.percentile_draw import draw_by_percentile
from siftback.errors import ConfigError, LossError, StateError
from siftback.rules.base_weights import normalize_weights
from siftback.rules.noise_guard import NoiseGuard
from siftback.schedule import Epochs, Moment, Schedule, Share
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import check_scorer
from siftback.selectors.percentile import Percentile
from siftback.selectors.sampling import count_of
from siftback.selectors.selection import Selector
from siftback.state import (
    MOST_EPOCHS,
    Check,
    Stateful,
    check_entries,
    integer,
    load_all_or_none,
    raise_damaged,
    seal,
    state_of,
    tensor_checksum,
)
from siftback.tables.score_table import ScoreTable
from siftback.tables.shards import Shards
from siftback.tensor_arguments import check_tensor


class EpochRule(Stateful, ABC):
    """Chooses the examples of each epoch before any is read, by their losses in earlier epochs.

    A loader calls `grow` with the number of examples, `draw` at the beginning of each epoch in
    which the schedule is on, and `update` with the losses of each training batch. A rule of your
    own defines `draw`; if it learns from training it also overrides `update`, and the loader then
    requires the losses.

    Where a user's sampler gives some of the examples alone, an epoch is drawn among those:
    `examples`, `rows` and `values` are then theirs while `draw` and `count` are called. A rule that
    has state per example besides its table indexes that by `candidates`. A state of the table, of
    `settings`, `members` and `state_fields` is saved, see `Stateful`.

    Args:
        table: Values remembered per example; by default one in memory. A table in a file may have
            more rows than there are examples.
        columns: Number of values that the rule remembers per example; 0 takes those of the table.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        shards: S, where each process remembers only the examples that it reads, which are those of
            its share of S `Shards`. By default every process remembers all examples.

    Attributes:
        schedule: When the rule leaves examples out.
        table: Values remembered per example.
        candidates: int64[n], the examples that a draw is among, ascending; None where it is among
            all.
        shards: Which examples are this process's, once their number is known; None where all are.
        setting_names: Names of the attributes that are `settings`, besides those of base classes.
        reweights: Whether its draws have weights other than 0 and 1, which training must then
            apply. A rule of your own whose draws have some should say so in its class.
        needs_predictions: Whether `update` needs to know which examples were predicted correctly,
            and with which confidence; likewise.
        needs_passes: Whether scoring passes refresh it, see `RefreshedRule`.
        learns: Whether it learns from the losses of training: it overrides `update`.
        updates_by_example: Whether `update` treats each example by itself, so that it may be called
            with the losses of several batches at once. The class that defines it says so.
        updates_by_batch: Whether `update` compares the losses of a batch with each other. It is
            then always given all of them, and in several processes a second time, among those of
            the others in the order of the steps; likewise.
        needs_labels: Whether `draw` needs the label of each example, see `set_labels`; likewise.
        takes_weights: Whether its draws can have base weights; of an instance.
        guard: Holds back examples whose label is probably wrong; None in most rules.
        selector: Selects in a scoring pass; None where there are none.
        scorer: Scores the examples in a scoring pass; likewise.

    Raises:
        ConfigError: If ``warmup`` or ``tail`` is not `Epochs` or a `Share`, the tail is the whole
            of training, the table has other columns, or a table in a file is to have shards.

    >>> class Alternating(EpochRule):
    ...     def draw(self, epoch, generator):
    ...         return ((torch.arange(self.examples) + epoch) % 2).float()
    >>> rule = Alternating()
    >>> rule.grow(4)
    >>> rule.draw(0, torch.Generator()), rule.draw(1, torch.Generator())
    (tensor([0., 1., 0., 1.]), tensor([1., 0., 1., 0.]))
    """

    reweights = False
    updates_by_example = False
    updates_by_batch = False
    needs_predictions = False
    needs_passes = False
    needs_labels = False
    takes_weights = False
    guard: NoiseGuard | None = None
    selector: Selector | None = None
    scorer: Scorer | None = None

    def __init__(
        self,
        table: ScoreTable | None = None,
        *,
        columns: int = 0,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        shards: int | None = None,
    ) -> None:
        self.schedule = Schedule(warmup=warmup, tail=tail)
        if tail == Share(1.0):
            raise ConfigError(f"tail={tail!r} is the whole of training: give a smaller share")
        self.learns = type(self).update is not EpochRule.update
        self.table = checked_table(type(self).__name__, table, columns)
        self._examples = 0
        self._base_weights: Tensor | None = None
        self.candidates: Tensor | None = None
        self.shard_count = None if shards is None else check_integer("shards", shards, 1)
        self.shards: Shards | None = None
        if shards is not None and self.table.path:
            raise ConfigError(
                f"shards={shards} and a table in {self.table.path}: give one of them, as a state "
                "of shards holds their values, and a state of a file does not"
            )

    @property
    def joins_updates(self) -> bool:
        """Whether a single call of `update` may have the losses of several batches of a pass."""
        owner = next(kind for kind in type(self).__mro__ if "update" in vars(kind))
        return self.guard is None and bool(vars(owner).get("updates_by_example"))

    @property
    def examples(self) -> int:
        """Number of examples, of all processes."""
        return self._examples if self.candidates is None else len(self.candidates)

    @property
    def rows(self) -> int:
        """Number of rows of `values`: one per example, of which shards have this process's."""
        return self.shards.rows if self.shards else self.examples

    @property
    def values(self) -> Tensor:
        """float32[rows, columns], the values remembered; NaN where nothing is known."""
        values = self.table.values
        return values[: self.rows] if self.candidates is None else values[self.candidates]

    @property
    def has_value(self) -> Tensor:
        """bool[rows], the examples with a value; all of them where the rule remembers none."""
        if not self.table.columns:
            return torch.ones(self.rows, dtype=torch.bool)
        return ~self.values.isnan().all(1)

    @property
    def drawn_among(self) -> Tensor:
        """int64[examples], the examples that a draw is among: the candidates, or all."""
        return torch.arange(self.examples) if self.candidates is None else self.candidates

    def set_base_weights(self, weights: Any) -> None:
        """Has the probability of each example to be drawn be multiplied by a weight.

        Call it before the first draw. Rules that take weights as an argument call it themselves.

        Args:
            weights: float[N], finite and above 0, of any scale; a tensor, an array or a list.

        Raises:
            ConfigError: If the rule cannot draw by them or has others already, or they are not as
                above, or not of as many examples.

        >>> from siftback import Memory
        >>> memory = Memory()
        >>> memory.set_base_weights([1, 2, 3])
        >>> memory.base_weights
        tensor([0.5000, 1.0000, 1.5000], dtype=torch.float64)
        """
        if not self.takes_weights:
            raise ConfigError(
                f"{type(self).__name__} cannot draw by weights of examples, as it is: give "
                "Memory(...) without shards=, or RS2(..., replacement=True)"
            )
        weights = normalize_weights(weights)
        if self._base_weights is not None and not torch.equal(self._base_weights, weights):
            raise ConfigError(
                f"{type(self).__name__} has other weights of examples already: give them once, as "
                "weights= or balance= of the rule, or by a sampler that draws by weights"
            )
        self._check_length(weights, self._examples or len(weights))
        self._base_weights = weights

    def set_labels(self, labels: Any) -> None:
        """Says the label of each example, to a rule that needs them.

        Args:
            labels: int[N], a tensor, an array or a list.

        Raises:
            ConfigError: If the rule draws without labels.
        """
        raise ConfigError(f"{type(self).__name__} draws without labels: give none")

    def _check_length(self, weights: Tensor, examples: int) -> None:
        if examples != len(weights):
            raise ConfigError(
                f"{type(self).__name__} has weights or labels of {len(weights)} examples, and "
                f"there are {examples}: give the weight or the label of each example of the data "
                "set, whose length has to be known; of a Subset, labels[subset.indices]"
            )

    @property
    def base_weights(self) -> Tensor | None:
        """float64[examples], which multiply the probabilities of a draw; None without any."""
        if self._base_weights is None or self.candidates is None:
            return self._base_weights
        return self._base_weights[self.candidates]

    @contextmanager
    def among(self, candidates: Tensor | None) -> Iterator[None]:
        """Has draws be among some examples alone, as long as the context lasts.

        Args:
            candidates: int64[n], their indices, ascending; None for all.
        """
        self.candidates = candidates
        try:
            yield
        finally:
            self.candidates = None

    def grow(self, examples: int) -> None:
        """Makes room for a number of examples; never removes any.

        Raises:
            ConfigError: If they are not an integer, at least 0; or in shards, and their number is
                not known or changes.
        """
        examples = check_integer("examples", examples, 0)
        if self.shards and examples != self._examples:
            raise ConfigError(
                f"shards={self.shard_count} of {self._examples} examples, and there are "
                f"{examples} now: give another rule for another data set"
            )
        if self._base_weights is not None:
            self._check_length(self._base_weights, examples)
        if self.shard_count and not self.shards:
            self.shards = Shards(self.shard_count, examples)
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
        """Returns how many examples the draw of an epoch keeps; None if not known in advance."""
        return None

    def scores(self, epoch: int) -> Tensor | None:
        """Returns float32[rows], by which it draws an epoch, NaN where unknown; None without any.

        Args:
            epoch: The epoch.
        """
        return None

    def is_pass(self, epoch: int) -> bool:
        """Returns whether an epoch, in which its schedule is on, has a scoring pass."""
        return False

    def update(
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
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        values = super().settings()
        values |= {name: v.settings() for name, v in values.items() if isinstance(v, Stateful)}
        when = {"warmup": repr(self.schedule.warmup), "tail": repr(self.schedule.tail)}
        if self._base_weights is not None:
            checksum = tensor_checksum(self._base_weights)
            values["weights"] = f"crc32 {checksum:08x} of {len(self._base_weights)}"
        return {"rule": type(self).__name__, **values, **when}

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {"_examples": integer()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the settings, the values remembered, each member's state and each field."""
        self.table.finish()  # before the members, which learn from the same losses
        table = self.shards.state_of(self.values) if self.shards else self.table.state_dict()
        return seal({**super().state_dict(), "table": table})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another rule, other settings or fewer examples; or of other
                shards, or another number of examples in shards; or a member's does not fit.
        """
        super().check_state(state)
        examples, shards = state["examples"], self.shards
        if examples < self._examples or (shards and examples != self._examples):
            raise StateError(
                f"a state of {examples} examples does not fit {self._examples}: resume with the "
                "data set that it was saved with"
            )
        if shards:
            table = shards.table_check(torch.float32, shards.height, self.table.columns)
        else:
            table = state_of(self.table)
        check_entries(self, state, {"table": table})
        rows = examples if shards else self.table.rows_of_state(state["table"])
        if rows < examples:
            raise_damaged("table", rows, f"of {examples} examples")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another rule's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.table.finish()  # what is on its way is of before
        table = state["table"]
        if self.shards:
            table = seal({"values": self.shards.rows_of_state(table)})
        # The table is the last to be loaded, so that no copy of it is needed to go back to.
        members = self.members().items()
        load_all_or_none(
            *((member, state[name]) for name, member in members),
            finish=lambda: self.table.load_state_dict(table),
        )
        self.load_fields(state)


class LastLossRule(EpochRule):
    """A rule that remembers the loss that each example had when it was last trained on.

    A rule of this kind defines `draw`, and leaves to the guard, if it has one, how many of the
    examples that it holds back (`suspects`) are admitted all the same.

    Args:
        table: Values remembered per example.
        decay: Weight of the old loss in the remembered one, in [0, 1).
        guard: Holds back examples whose label is probably wrong.
        options: Others of `EpochRule`; of ``columns``, by default 1, the first is the last loss.

    Raises:
        ConfigError: If one of them is out of range, or both ``shards`` and a guard are given.
    """

    updates_by_example = True

    def __init__(
        self,
        table: ScoreTable | None = None,
        *,
        decay: float = 0.0,
        guard: NoiseGuard | None = None,
        **options: Any,
    ) -> None:
        super().__init__(table, **{"columns": 1, **options})
        self.decay, self.guard = check_share("decay", decay), guard
        if not isinstance(guard, NoiseGuard | None):
            raise ConfigError(f"guard={format_value(guard)}: give a NoiseGuard(classes), or None")
        if guard and self.shard_count:
            raise ConfigError(
                f"guard=NoiseGuard(...) and shards={self.shard_count}: give one of them, as a "
                "guard ranks the examples of all processes"
            )

    @property
    def suspects(self) -> Tensor:
        """int64[n], the rows of the examples that the guard holds back; none without a guard."""
        is_held = self.guard.is_held if self.guard else torch.zeros(0, dtype=torch.bool)
        suspects = is_held.nonzero().squeeze(1)
        if self.candidates is not None:
            return torch.isin(self.candidates, suspects).nonzero().squeeze(1)
        return suspects[suspects < self.examples]

    def grow(self, examples: int) -> None:
        """Makes room for a number of examples, in the guard too; see `EpochRule.grow`."""
        super().grow(examples)
        if self.guard:
            self.guard.grow(self._examples)

    def scores(self, epoch: int) -> Tensor:
        """Returns float32[rows], the remembered losses."""
        return self.values[:, 0]

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Remembers the losses, averaged with the old ones by ``decay``; the guard sees them."""
        self.table.record(indices, losses, 0, decay=self.decay)
        if self.guard:
            self.guard.observe(indices, losses)

    def members(self) -> dict[str, Any]:
        """Returns the guard, if there is one."""
        return {"guard": self.guard} if self.guard else {}


class RefreshedRule(EpochRule):
    """A rule that a scoring pass refreshes every n-th epoch.

    In an epoch with a pass the loader runs Selective-Backprop with `scorer` and `selector`, and
    passes every score to `rescore`; the n - 1 epochs after it are drawn by the scores `predicted`.
    Exactly ``round(keep * N)`` of N examples are drawn (see `draw_by_percentile`).

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        every: n, the epochs from one scoring pass to the next, at least 1.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: Values remembered per example; None is one in memory.
        columns: Number of values remembered per example; 0 takes those of the table.
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

    needs_passes = True
    selector: Percentile
    scorer: Scorer
    setting_names: ClassVar[tuple[str, ...]] = ("every",)

    def __init__(
        self,
        keep: float | None,
        beta: float | None,
        *,
        every: int,
        scorer: Scorer | None,
        table: ScoreTable | None,
        columns: int = 0,
        warmup: Moment = Epochs(1),
    ) -> None:
        super().__init__(table, columns=columns, warmup=warmup)
        if isinstance(scorer, EpochRule):
            raise ConfigError(
                f"scorer={type(scorer).__name__}(...) is a rule: give {type(self).__name__} a "
                "scorer, which computes scores of a batch, such as Fresh()"
            )
        self.every = check_integer("every", every, 1)
        self.scorer = check_scorer(scorer)
        self.selector = Percentile(keep=keep, beta=beta)
        self._keep = self.selector.keep  # a schedule may change it in the selector
        self._last_pass = -self.every  # so that the first epoch has one

    @property
    def last_pass(self) -> int | None:
        """The epoch of the last scoring pass; None before the first."""
        return self._last_pass if self._last_pass >= 0 else None

    @property
    def keep(self) -> float:
        """The share of the examples to keep."""
        return self.selector.keep

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (0, 1]; a `Schedule` that anneals needs it."""
        self.selector.set_keep(keep)

    def is_pass(self, epoch: int) -> bool:
        """Returns whether an epoch has a scoring pass: the first one, and then every n-th."""
        return not 0 < epoch - self._last_pass < self.every

    def scores(self, epoch: int) -> Tensor:
        """Returns float32[rows], see `predicted`."""
        return self.predicted(epoch)

    @abstractmethod
    def predicted(self, epoch: int) -> Tensor:
        """Returns float32[examples], the scores to draw by; NaN for an example never scored."""

    @abstractmethod
    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers losses of a pass or of training: int64[n] and float32[n], none NaN."""

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Draws exactly `count` examples, by `predicted`."""
        scores, count = self.predicted(epoch), self.count(epoch)
        return draw_by_percentile(scores, self.selector.beta, 0.0, count, generator)

    def count(self, epoch: int) -> int:
        """Returns how many examples an epoch without a pass keeps: ``round(keep * N)``."""
        return count_of(self.keep, self.examples)

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
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        return {**super().settings(), "keep": self._keep, "scorer": type(self.scorer).__name__}

    def members(self) -> dict[str, Any]:
        """Returns the scorer."""
        return {"scorer": self.scorer}

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {**super().state_fields(), "_last_pass": integer(-self.every, MOST_EPOCHS)}


def checked_rule(name: str, rule: Any) -> EpochRule:
    """Returns a rule, after checking that it is one.

    Args:
        name: Name of the argument, for the error.
        rule: Value that was passed.

    Raises:
        ConfigError: If it is anything else.
    """
    if not isinstance(rule, EpochRule):
        raise ConfigError(
            f"{name}={format_value(rule)} is not an EpochRule: give an instance, such as "
            f"{name}=Memory()"
        )
    return rule


def checked_table(rule: str, table: ScoreTable | None, columns: int) -> ScoreTable:
    """Returns the table, after checking it, or a new one in memory.

    Args:
        rule: Name of the rule, for the error.
        table: Table that was passed, or None.
        columns: Number of values that the rule remembers per example; 0 takes those of the table.

    Raises:
        ConfigError: If the table has another number of columns.
    """
    if table is None:
        return ScoreTable(columns=columns)
    if not isinstance(table, ScoreTable):
        raise ConfigError(
            f"table={format_value(table)}: give a ScoreTable, such as ScoreTable(path=...)"
        )
    if columns and table.columns != columns:
        raise ConfigError(
            f"{rule} remembers {columns} numbers per example, and the table has "
            f"{table.columns} columns: give it ScoreTable(columns={columns}, path=...)"
        )
    return table


def check_prediction_types(correct: Any, confidence: Any, count: int) -> None:
    """Checks the types and shapes of what a loop says of the predictions of n examples.

    Args:
        correct: bool[n], whether each was predicted correctly; None where it was not passed.
        confidence: float[n], the probability of each prediction, likewise.
        count: n.

    Raises:
        LossError: If they are of another type or shape.
    """
    if correct is not None:
        advice = ", whether each example was predicted correctly"
        check_tensor("correct", correct, "bool", count, advice=advice, error=LossError)
    if confidence is not None:
        advice = ", the probability of each prediction"
        check_tensor("confidence", confidence, "float", count, advice=advice, error=LossError)


def check_predictions(correct: Any, confidence: Any, losses: Tensor) -> None:
    """Checks what a loop says of the predictions of some examples.

    Args:
        correct: bool[n], whether each was predicted correctly; None where it was not passed.
        confidence: float[n], the probability of each prediction, likewise.
        losses: float[n]; where one is not finite, neither may its probability be.

    Raises:
        LossError: If they are of another type or shape, or a probability is outside [0, 1].
    """
    check_prediction_types(correct, confidence, len(losses))
    if confidence is None:
        return
    fits = (confidence >= 0) & (confidence <= 1 + 1e-2)  # rounded in half precision
    fits |= ~losses.isfinite().to(fits.device)
    if not bool(fits.all()):
        row = int((~fits).nonzero()[0])
        raise LossError(
            f"confidence[{row}] is {float(confidence[row])}: give the probability of each "
            "prediction, such as outputs.softmax(1).amax(1)"
        )


def weigh_known(scores: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns loss weights: 1 where a score is NaN, elsewhere the result of a function.

    Args:
        scores: float32[N].
        weigh: Maps float32[n], the known scores in their order, to float32[n]; not called if
            there are none.

    Returns:
        float32[N].

    >>> weigh_known(torch.tensor([2.0, torch.nan, 1.0]), lambda known: (known > 1).float())
    tensor([1., 1., 0.])
    """
    weights, known = torch.ones_like(scores), ~scores.isnan()
    if known.any():
        weights[known] = weigh(scores[known])
    return weights


def round_down(share: float, examples: int) -> int:
    """Returns the number of examples that a share is, rounded down except for floating-point error.

    >>> round_down(0.29, 100), round_down(0.5, 5)
    (29, 2)
    """
    return int(share * examples + 1e-9)
