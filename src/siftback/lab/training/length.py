"""How long a run trains: by its epochs, its cost, or the clock."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from siftback.errors import ConfigError
from siftback.lab.settings import Run, Settings

# Costs of one example, in forwards: the unit of every budget and of `cost_forward_units`.
FORWARD, BACKWARD = 1, 2

Kind = Literal["epochs", "cost", "seconds"]


class Spent(NamedTuple):
    """What a run has used up.

    Attributes:
        epochs: Epochs of source examples, with fractions.
        cost: Forwards of one example.
        seconds: Seconds of training.
    """

    epochs: float
    cost: float
    seconds: float


NOTHING = Spent(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Length:
    """How long a run trains.

    Attributes:
        kind: What the length is counted in.
        amount: How much of it there is.
        most_cost: The most that it may cost, where that is not its length; None is any.
        most_seconds: The longest that it may take, likewise.

    >>> length = Length("epochs", 10.0, most_seconds=60.0)
    >>> length.done(Spent(4.0, 1e6, 59.0)), length.is_over(Spent(4.0, 1e6, 61.0))
    (0.4, True)
    """

    kind: Kind
    amount: float
    most_cost: float | None = None
    most_seconds: float | None = None

    @classmethod
    def of(cls, run: Run, settings: Settings, examples: int, scoring: Spent = NOTHING) -> Self:
        """That of a run.

        Args:
            run: Which run; one with a budget of its own has that length.
            settings: What was asked.
            examples: Those of an epoch of the whole data set.
            scoring: What scores of the whole set took before training; a budget includes it.

        Raises:
            ConfigError: If that was all of a budget.
        """
        cost, seconds = settings.cost_budget, settings.time_budget
        if settings.budget is not None:
            cost = (FORWARD + BACKWARD) * examples * settings.budget
        if run.cost_budget is not None:
            cost = run.cost_budget
        for what, budget, taken in (
            ("forwards", cost, scoring.cost),
            ("seconds", seconds, scoring.seconds),
        ):
            if budget is not None and budget <= taken:
                raise ConfigError(
                    f"{run.strategy} has a budget of {budget:.0f} {what}, and its scores cost "
                    f"{taken:.0f}: give more, or fewer models or epochs to score by "
                    "(--score-models, --score-epochs)"
                )
        cost = None if cost is None else cost - scoring.cost
        if run.cost_budget is None and settings.epochs is not None:
            return cls("epochs", settings.epochs, cost, seconds)
        if cost is not None:
            return cls("cost", cost, most_seconds=seconds)
        assert seconds is not None  # settings make sure that there is a length
        return cls("seconds", seconds)

    def done(self, spent: Spent) -> float:
        """Share of the training done, in [0, 1]."""
        return min(float(getattr(spent, self.kind)) / self.amount, 1.0)

    def is_over(self, spent: Spent) -> bool:
        """Whether the training ends: it is done, or has used up what it may."""
        return (
            self.done(spent) >= 1
            or (self.most_cost is not None and spent.cost >= self.most_cost)
            or (self.most_seconds is not None and spent.seconds >= self.most_seconds)
        )
