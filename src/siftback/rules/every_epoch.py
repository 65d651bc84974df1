"""The base of methods that choose each epoch's examples by a rule of their own."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError
from siftback.loading.score_table import ScoreTable
from siftback.rules.remembered import Remembering
from siftback.schedule import Moment, Schedule
from siftback.selectors.percentile import All, is_number


class EveryEpoch(Remembering):
    """Chooses an epoch's examples at its start, among all, by a rule of its own.

    No selection pass is ever made. A rule turns what is remembered of the examples into their
    loss weights, 0 for those that are to be left out; what nothing is known of is kept.

    Args:
        store: What is remembered of each example.
        warmup: How long everything is trained on: epochs (an int), or a share of training (a
            float), which needs the loader's ``epochs=``.
        tail: The last part of training in which everything is trained on, a share.

    Attributes:
        reweights: Whether weights other than 1 are given, which training must then apply.

    Raises:
        ConfigError: Where ``tail`` is no share of training.
    """

    learns = True
    makes_passes = False
    reweights = False

    def __init__(
        self, store: "ScoreTable | Columns", warmup: Moment = 0, tail: float = 0.0
    ) -> None:
        if not is_number(tail) or not 0 <= tail < 1:
            raise ConfigError(f"tail={tail!r}: give a share of training in [0, 1)")
        self.schedule = Schedule(warmup=warmup, end=float(1 - tail) if tail else None)
        self.store = store

    def selector(self) -> "Ruled":
        """One that chooses nothing: the rule does."""
        return Ruled(self.reweights)

    def grow(self, examples: int) -> None:
        """See `Remembering.grow`."""
        self.store.grow(examples)

    def draws(self, epoch: int) -> bool:
        """Always, as long as selection is on."""
        return True

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """float32[examples], each one's loss weight by the rule; 1 where nothing is known."""
        scores = self.predicted(epoch)
        weights = torch.ones_like(scores)
        known = (~scores.isnan()).nonzero().squeeze(1)
        if len(known):
            weights[known] = self.weigh(scores[known], known, generator)
        return weights

    @abstractmethod
    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """The rule.

        Args:
            scores: float32[n], those `predicted` of the examples that something is known of.
                One may be infinite.
            known: int64[n], which examples they are of.
            generator: Where chance comes from, on the CPU.

        Returns:
            float32[n], the loss weights, 0 for what is to be left out.
        """

    def scored(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Never called: there is no selection pass."""

    def state_dict(self) -> dict[str, Any]:
        """What is remembered."""
        return {"store": self.store.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        self.store.load_state_dict(state["store"])


class ByLastLoss(EveryEpoch):
    """A rule over the losses that examples had when they were last trained on.

    Args:
        table: Where losses are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example.
        warmup: As for `EveryEpoch`.
        tail: As for `EveryEpoch`.
    """

    def __init__(self, table: ScoreTable | None, warmup: Moment = 0, tail: float = 0.0) -> None:
        self.table = ScoreTable() if table is None else table  # an empty one is false
        super().__init__(self.table, warmup, tail)

    def predicted(self, epoch: int) -> Tensor:
        """The remembered loss of each."""
        return self.table.scores()

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers the losses."""
        self.table.record(indices, losses, epoch)


class Ruled(All):
    """Stands for the selector of a loader whose scorer draws by a rule of its own."""

    def __init__(self, reweights: bool) -> None:
        self.reweights = reweights


class Columns:
    """Some numbers of each example: float32[examples, width], NaN where nothing is known.

    Args:
        width: How many an example has.

    >>> columns = Columns(2)
    >>> columns.grow(2)
    >>> columns.values[1] = torch.tensor([0.5, 2.0])
    >>> columns.values
    tensor([[   nan,    nan],
            [0.5000, 2.0000]])
    """

    def __init__(self, width: int) -> None:
        self._room = torch.empty(0, width)
        self.values = self._room

    def __len__(self) -> int:
        return len(self.values)

    def grow(self, examples: int) -> None:
        """Makes room for so many examples; never takes any away."""
        if examples <= len(self.values):
            return
        if examples > len(self._room):
            # Twice what there was, as a data set without a length grows batch by batch.
            size = max(examples, 2 * len(self.values))
            room = torch.full((size, self._room.shape[1]), torch.nan)
            room[: len(self.values)] = self.values
            self._room = room
        self.values = self._room[:examples]

    def state_dict(self) -> dict[str, Any]:
        """A copy of the numbers."""
        return {"values": self.values.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the numbers of others.

        Raises:
            StateError: Where they are of fewer examples, or not so many each.
        """
        values = state["values"]
        if len(values) < len(self.values) or values.shape[1] != self._room.shape[1]:
            raise StateError(
                f"a state of {values.shape[1]} numbers for {len(values)} examples does not fit "
                f"{self._room.shape[1]} for {len(self.values)}: resume with the data set and the "
                "arguments that it was saved with"
            )
        self.values = self._room = values.clone()


def checked_share(name: str, share: float, *, least: bool = True, most: bool = False) -> float:
    """A share between 0 and 1.

    Args:
        name: Of the argument, for the error.
        share: What was given.
        least: Whether 0 is allowed.
        most: Whether 1 is.

    Raises:
        ConfigError: Where it is out of that range.

    >>> checked_share("ratio", 0)
    0.0
    """
    fits = is_number(share) and 0 <= share <= 1
    if not fits or (share == 0 and not least) or (share == 1 and not most):
        interval = f"{'[' if least else '('}0, 1{']' if most else ')'}"
        raise ConfigError(f"{name}={share!r}: give a share in {interval}")
    return float(share)


def count_of(share: float, examples: int) -> int:
    """How many a share of some examples are, at most: rounded down, but for float's own error.

    >>> count_of(0.29, 100), count_of(0.5, 5)
    (29, 2)
    """
    return int(share * examples + 1e-9)
