"""Budget ratios: what plain training would have to spend for the same error, over what was spent.

A difference of errors at one budget says little of what it is worth: a tenth of a point is much
where a doubled budget brings a twentieth, and nothing where it brings two points. The ratio says it
in one unit, that of the budget: ``R = b_T(e) / b``, where a method of budget b ends at error e, and
``b_T(e)`` is the budget at which plain training's own curve of error against budget comes to e.
"""

import math
import random
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from siftback.errors import ConfigError
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.frame import CONFIDENCE

RESAMPLES = 4000

Side = Literal["below", "at", "above"]

Ends = Mapping[int, float]
"""Final error or loss by seed."""


@dataclass(frozen=True)
class Bounded:
    """A number, or what it is below or above, where nothing was measured beyond.

    Attributes:
        value: The number, or the bound.
        side: Where what is meant lies.

    >>> str(Bounded(1.5)), str(Bounded(4.0, "above")), str(Bounded(0.25, "below"))
    ('1.50', '> 4.00', '< 0.25')
    >>> str(Bounded(1.0)), str(Bounded(1.004))  # which side of 1 it is on can be seen
    ('1.00', '1.004')
    """

    value: float
    side: Side = "at"

    @property
    def rank(self) -> tuple[int, float]:
        """Orders what may lie anywhere below, numbers, and what may lie anywhere above."""
        return ("below", "at", "above").index(self.side), self.value

    def exceeds(self, number: float) -> bool:
        """Whether it is above a number for sure.

        >>> Bounded(1.5, "above").exceeds(1), Bounded(1.5, "below").exceeds(1)
        (True, False)
        """
        return self.side != "below" and self.value > number

    def reaches(self, number: float) -> bool:
        """Whether it is a number for sure, or more."""
        return self.side != "below" and self.value >= number

    def __str__(self) -> str:
        sign = {"below": "< ", "at": "", "above": "> "}[self.side]
        return f"{sign}{self.value:.{3 if round(self.value, 2) == 1 != self.value else 2}f}"


@dataclass(frozen=True)
class BudgetRatio:
    """A budget ratio with its interval over the seeds.

    Attributes:
        ratio: That of the mean errors of the seeds.
        low: The lower end of the interval; of a single seed below anything.
        high: The upper end; of a single seed above anything.
        seeds: How many seeds both have.
        flat: Whether plain training's own errors at the budgets compared lie within the spread of
            its seeds, as `is_flat` says. Then the ratio is noise, and not shown.
    """

    ratio: Bounded
    low: Bounded
    high: Bounded
    seeds: int
    flat: bool = False

    @property
    def interval(self) -> str:
        """The ends of its interval in words; a dash for a single seed and a flat curve."""
        return f"{self.low} to {self.high}" if self.seeds > 1 and not self.flat else NOT_REACHED

    def __str__(self) -> str:
        return "flat" if self.flat else str(self.ratio)


def budget_for(budgets: Sequence[float], values: Sequence[float], end: float) -> Bounded:
    """The least budget at which a curve comes to an end, on straight lines over log budget.

    Where a curve rises later, by overfitting or the seeds' noise, that takes nothing back: a budget
    that would do was there. So a method that ends no lower than plain training of the same budget
    has a ratio of 1 at most.

    Args:
        budgets: Ascending, each once.
        values: The error or loss at each.
        end: The error or loss to come to.

    Returns:
        A budget; beyond what was measured a bound, as nothing is extrapolated.

    >>> curve = [1, 2, 4, 8, 16], [20, 16, 12, 10, 9]
    >>> str(budget_for(*curve, end=14)), str(budget_for(*curve, end=8))
    ('2.83', '> 16.00')
    """
    index = next((index for index, value in enumerate(values) if value <= end), None)
    if index is None:
        return Bounded(budgets[-1], "above")
    if values[index] == end:
        return Bounded(budgets[index])
    if index == 0:
        return Bounded(budgets[0], "below")
    share = (values[index - 1] - end) / (values[index - 1] - values[index])
    low, high = math.log(budgets[index - 1]), math.log(budgets[index])
    return Bounded(math.exp(low + share * (high - low)))


def is_flat(curve: Mapping[float, Sequence[float]], budget: float, needed: float) -> bool:
    """Whether plain training's errors at the budgets compared lie within the spread of its seeds.

    The budgets compared are those that were measured from the method's to the one that plain
    training needs for its error; where that is fewer than two, the two between which the needed one
    lies.
    Where the mean errors there differ by no more than the standard deviation over the seeds, as
    root mean square over these budgets, or above the method's budget fall by no more than that, the
    curve says nothing of what a budget buys.

    Args:
        curve: Plain training's errors at each budget, one per seed. Of a single seed no spread is
            known, and nothing is flat.
        budget: The method's.
        needed: That of plain training for the same error.

    >>> curve = {1: [20, 22], 2: [9, 11], 4: [10.5, 9], 8: [10, 9]}
    >>> is_flat(curve, 2, needed=8), is_flat(curve, 2, needed=1.5), is_flat(curve, 8, needed=1.5)
    (True, False, True)
    """
    budgets, (low, high) = sorted(curve), sorted((budget, needed))
    compared = [measured for measured in budgets if low <= measured <= high]
    if len(compared) < 2:
        above = min(max(bisect_left(budgets, needed), 1), len(budgets) - 1)
        compared = budgets[above - 1 : above + 1]
    ends = [curve[measured] for measured in compared]
    if len(ends[0]) < 2:
        return False
    means = [statistics.fmean(by_seed) for by_seed in ends]
    spread = math.sqrt(statistics.fmean(statistics.variance(by_seed) for by_seed in ends))
    # A budget above the method's may be one to which the error only rises.
    return (means[0] if needed > budget else max(means)) - min(means) <= spread


def budget_ratio(curve: Mapping[float, Ends], budget: float, ends: Ends) -> BudgetRatio:
    """The budget ratio of a method, with a bootstrap interval over the seeds.

    Seeds are drawn with replacement, for the method and all of the curve together, as a seed's
    runs share initial weights and order: all draws there are where they are few, and
    `RESAMPLES` of them otherwise. The interval is from the 2.5th to the 97.5th percentile.

    Args:
        curve: Plain training's ends by budget.
        budget: The method's.
        ends: Where the method ends. Only seeds that it shares with all of the curve count, one at
            least.

    Raises:
        ConfigError: If an end is not finite.
    """
    budgets = sorted(curve)
    seeds = sorted(set(ends).intersection(*(curve[budget] for budget in budgets)))
    for ends_by_seed in (ends, *curve.values()):
        if wrong := [seed for seed in seeds if not math.isfinite(ends_by_seed[seed])]:
            raise ConfigError(f"the end of seed {wrong[0]} is {ends_by_seed[wrong[0]]}: drop it")

    # A row for each seed: the curve's ends, then the method's.
    table = np.array([[*(curve[at][seed] for at in budgets), ends[seed]] for seed in seeds])

    def ratio(means: Sequence[float]) -> Bounded:
        needed = budget_for(budgets, means[:-1], means[-1])
        return Bounded(needed.value / budget, needed.side)

    middle = ratio(table.mean(0).tolist())
    if len(seeds) == 1:
        return BudgetRatio(middle, Bounded(0.0, "below"), Bounded(math.inf, "above"), 1)
    errors = dict(zip(budgets, table.T.tolist(), strict=False))
    flat = is_flat(errors, budget, middle.value * budget)
    means = table[_resamples(len(seeds))].mean(1).tolist()
    ratios = sorted(map(ratio, means), key=lambda bound: bound.rank)
    tail = (1 - CONFIDENCE) / 2
    low = ratios[math.floor(tail * (len(ratios) - 1))]
    high = ratios[math.ceil((1 - tail) * (len(ratios) - 1))]
    return BudgetRatio(middle, low, high, len(seeds), flat)


def _resamples(seeds: int) -> list[list[int]]:
    """Returns draws of as many rows as there are seeds, with replacement."""
    rows = range(seeds)
    if seeds**seeds <= RESAMPLES:
        return list(map(list, product(rows, repeat=seeds)))
    chance = random.Random(0)
    return [chance.choices(rows, k=seeds) for _ in range(RESAMPLES)]
