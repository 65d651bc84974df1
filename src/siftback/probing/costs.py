"""The cost of an epoch by strategy, computed from the seconds of its parts."""

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

TRADITIONAL, SB, STALE, MEMORY, RANDOM, SINGLE_PASS = (
    "traditional", "sb", "stale-sb", "sb-memory", "random", "sb-single-pass",
)  # fmt: skip

STALE_EVERY = 3
"""n of Stale-SB: every n-th epoch has a scoring pass. The value in the paper."""

MEMORY_WARMUP = 0.15
"""Share of a training in which `Memory` leaves nothing out, its default."""

EPOCHS = 10
"""Length of the training whose speed-up is given, unless another is asked for."""

Cost = Callable[[float], float]
"""Maps the share kept to seconds, or to shares of a training step."""


@dataclass(frozen=True)
class Seconds:
    """Seconds of each part of training, for one batch of N examples.

    Attributes:
        loading: Getting a batch from the loader, and moving it to the device.
        forward: The training forward, including the losses.
        backward: The backward pass.
        optimizer: The optimizer's step.
        choosing: The loader's own part of a selection by scores: ranking, random numbers, taking
            rows, pooling.
        choosing_uniformly: The same for a uniform selection, which needs no scores.
        drawing: The draw of an epoch's examples from memory, divided by the number of batches.
        recording: The loader's own part of giving N drawn examples and recording their losses.
        scores: Scoring a batch, by scorer; the exact one is "sb".
        refreshes: Each scorer's work after a training step.
        single_pass: A step of the single pass, without the optimizer's, by share kept. Empty
            if it was not measured.
        loads_ahead: Whether worker processes load in parallel to training, so that only the
            longer one of loading and computing counts.
        reads_chosen_only: Whether examples that are left out before reading are not read, as with
            a map-style data set.
    """

    loading: float
    forward: float
    backward: float
    optimizer: float
    choosing: float
    choosing_uniformly: float
    drawing: float
    recording: float
    scores: Mapping[str, float]
    refreshes: Mapping[str, float]
    single_pass: Mapping[float, float]
    loads_ahead: bool = False
    reads_chosen_only: bool = True

    @property
    def forward_share(self) -> float:
        """Returns f, the forward's share of a forward and a backward."""
        return self.forward / (self.forward + self.backward)

    @property
    def training(self) -> float:
        """Returns the seconds of a training step on N examples: forward, backward and optimizer."""
        return self.forward + self.backward + self.optimizer

    @property
    def loading_share(self) -> float:
        """Returns the share of loading in the work on a batch."""
        return self.loading / (self.loading + self.training)


@dataclass(frozen=True)
class CostRow:
    """The cost of a strategy at one share kept.

    Attributes:
        strategy: Its name.
        keep: Share of the examples that it trains on.
        ideal: Speed-up of an epoch that selects over one of plain training, if only forwards and
            backwards took time.
        measured: Speed-up of such an epoch with all parts as they were measured.
        training: Speed-up of a whole training, whose first epochs are on all examples.
        seconds: Seconds per N source examples.
        break_even: The share kept below which it takes less time than plain training; None if it
            never does.
    """

    strategy: str
    keep: float
    ideal: float
    measured: float
    training: float
    seconds: float
    break_even: float | None


def cost_rows(took: Seconds, keeps: Sequence[float], epochs: int = EPOCHS) -> tuple[CostRow, ...]:
    """Computes the cost of each strategy at each share kept, plain training first.

    With s the share kept, L loading, S scoring, C choosing, T a training step, A a scorer's work
    after one, D memory's draw, R giving and recording drawn examples, O the optimizer's part of a
    step, n = 3, and f the forward's share of forward and backward, N source examples take::

        strategy         seconds                                     ideal, in forward + backward
        traditional      L + T                                       1
        sb               L + S + C + s (T + A)                       f S / S_exact + s
        stale-sb         (sb's + R) / n + (1 - 1/n) sb-memory's      f / n + s
        sb-memory        D + s (L + T + R)                           s
        random           L + C_uniform + s T                         s
        sb-single-pass   L + P(s) + s O                              f + (1 - f) s

    The ideal may be exceeded: a scoring forward, which saves nothing for a backward, can be cheaper
    than training's, and the single pass's traced graphs cheaper than the model's own code.
    P(s) is a measured single-pass step of N examples without the optimizer's. Only sb-memory, and
    stale-sb between its scoring passes, choose before reading: all others read every example, and
    so do these two if the data set cannot be read by index (``L + D + s (T + R)``). If workers load
    ahead, loading and computing run in parallel, and only the longer one counts.

    A training of E epochs begins with w of them on all examples (see `warmup_of`), and takes
    ``w * traditional + (E - w) * strategy``.

    >>> parts = Seconds(1.0, 2.0, 4.0, 0.0, 0.5, 0.1, 0.02, 0.1, {"sb": 1.5}, {}, {})
    >>> for row in cost_rows(parts, [0.5]):
    ...     even = row.break_even or 0
    ...     faster = f"{row.ideal:.2f} {row.measured:.2f} {row.training:.2f}"
    ...     print(f"{row.strategy} {faster} {even:.2f}")
    traditional 1.00 1.00 1.00 1.00
    sb 1.20 1.17 1.15 0.67
    stale-sb 1.64 1.59 1.50 0.88
    sb-memory 2.00 1.96 1.64 0.98
    random 2.00 1.71 1.59 0.98
    """
    costs = strategy_costs(took)
    base = costs[TRADITIONAL][0](1.0)
    table = [CostRow(TRADITIONAL, 1.0, 1.0, 1.0, 1.0, base, 1.0)]
    for name, (measured, ideal) in costs.items():
        even, share = break_even(measured, base), warmup_of(name, epochs) / epochs
        for keep in keeps if name != TRADITIONAL else ():
            cost = measured(keep)
            training = base / (share * base + (1 - share) * cost)
            table.append(CostRow(name, keep, 1 / ideal(keep), base / cost, training, cost, even))
    return tuple(table)


def warmup_of(strategy: str, epochs: int) -> int:
    """Returns the number of first epochs that train on all examples by default.

    It is one; of memory it is that of the epochs that begin in the first 15 % of the training.

    >>> [warmup_of("sb", 20), warmup_of("sb-memory", 4), warmup_of("sb-memory", 20)]
    [1, 1, 3]
    """
    return math.ceil(MEMORY_WARMUP * epochs) if strategy == MEMORY else 1


def strategy_costs(seconds: Seconds) -> dict[str, tuple[Cost, Cost]]:
    """Returns the costs of N source examples by strategy; see `cost_rows` for the formulas.

    Returns:
        The seconds, and the shares of a forward and a backward if only these took time.
    """
    s, f = seconds, seconds.forward_share
    total: Callable[[float, float], float] = max if s.loads_ahead else operator.add

    def scoring(name: str) -> tuple[Cost, Cost]:
        fixed, step = s.scores[name] + s.choosing, s.training + s.refreshes.get(name, 0.0)
        price = f * s.scores[name] / s.scores[SB]
        return lambda keep: total(s.loading, fixed + keep * step), lambda keep: price + keep

    def remembered(keep: float) -> float:
        read = keep if s.reads_chosen_only else 1
        return total(read * s.loading, s.drawing + keep * (s.training + s.recording))

    def stale(keep: float) -> float:
        step = s.training + s.refreshes.get(SB, 0.0)
        computing = s.scores[SB] + s.choosing + s.recording + keep * step
        return (total(s.loading, computing) + (STALE_EVERY - 1) * remembered(keep)) / STALE_EVERY

    def uniform(keep: float) -> float:
        return total(s.loading, s.choosing_uniformly + keep * s.training)

    costs = {TRADITIONAL: (lambda keep: total(s.loading, s.training), lambda keep: 1.0)}
    costs |= {name: scoring(name) for name in s.scores}
    costs[STALE] = stale, lambda keep: f / STALE_EVERY + keep
    costs[MEMORY] = remembered, lambda keep: keep
    costs[RANDOM] = uniform, lambda keep: keep
    if s.single_pass:
        line = _line(s.single_pass, s.backward)

        def single_pass(keep: float) -> float:
            return total(s.loading, s.single_pass.get(keep, line(keep)) + keep * s.optimizer)

        costs[SINGLE_PASS] = single_pass, lambda keep: f + (1 - f) * keep
    return costs


def break_even(cost: Cost, base: float) -> float | None:
    """Finds the largest share kept below which a strategy costs less than ``base``.

    Args:
        cost: Seconds by share kept, never falling as the share grows.
        base: Seconds of plain training.

    Returns:
        In (0, 1], to six digits; None if no share is small enough.

    >>> break_even(lambda keep: 1 + 3 * keep, 3.0)
    0.666667
    >>> break_even(lambda keep: 3 + keep, 3.0) is None
    True
    """
    low, high = 1e-7, 1.0
    if cost(low) >= base:
        return None
    while high - low > 1e-8:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) < base else (low, middle)
    return round(high, 6)


def _line(points: Mapping[float, float], slope: float) -> Cost:
    """Returns the least-squares line through some points; with one point, ``slope`` is used."""
    middle, height = statistics.fmean(points), statistics.fmean(points.values())
    if len(points) > 1:
        slope = statistics.linear_regression([*points], [*points.values()]).slope
    slope = max(slope, 0.0)  # noise must not make a larger share cheaper
    return lambda x: height + slope * (x - middle)
