"""Algorithms 1 and 2 of Jiang et al. 2019 as the paper prints them: slow, obvious, one by one.

The fast paths of the library are compared with these.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import scipy

Probability = Callable[[Sequence[float], float, float], float]
"""``(history, loss, beta) -> P``."""


def percentile(history: Sequence[float], loss: float) -> float:
    """Share of the history below the loss, ties at mid-rank."""
    return float(scipy.stats.percentileofscore(list(history), loss, kind="mean")) / 100


def mid_rank_probability(history: Sequence[float], loss: float, beta: float) -> float:
    """Eq. 1 as printed: ``percentile ** beta``."""
    return percentile(history, loss) ** beta


def shared_probability(history: Sequence[float], loss: float, beta: float) -> float:
    """Eq. 1 on average over all percentiles that the loss shares with those equal to it."""
    below = sum(seen < loss for seen in history) / len(history)
    up_to = sum(seen <= loss for seen in history) / len(history)
    area, _ = scipy.integrate.quad(lambda share: share**beta, below, up_to)
    return area / (up_to - below)


def order_probabilities(examples: int, subset: int, count: int) -> list[float]:
    """OrderDP's gamma_j, from the highest loss on, as Jin et al. 2026 print it."""
    return [
        sum(
            math.comb(j - 1, place - 1) * math.comb(examples - j, subset - place)
            for place in range(max(1, subset - examples + j), min(count, j) + 1)
        )
        / math.comb(examples, subset)
        for j in range(1, examples + 1)
    ]


def inclusion_probabilities(probabilities: Sequence[float], count: int) -> list[float]:
    """min(1, c p), which sum to k: the highest are set to 1 until the next one is below it."""
    rest = sorted(probabilities)
    while rest[-1] * count > sum(rest):
        rest.pop()
        count -= 1
    return [min(1.0, value * count / sum(rest)) for value in probabilities]


def one_at_a_time(
    losses: Iterable[float],
    history: deque[float],
    beta: float,
    probability: Probability = mid_rank_probability,
) -> list[float]:
    """Algorithm 2: each loss joins the history, then is ranked in it."""
    probabilities = []
    for loss in losses:
        history.append(loss)
        probabilities.append(probability(history, loss, beta))
    return probabilities


def batch_first(
    losses: Sequence[float],
    history: deque[float],
    beta: float,
    probability: Probability = mid_rank_probability,
) -> list[float]:
    """Algorithm 2 where the whole batch joins the history before any of its losses is ranked.

    A batch larger than the history is ranked among itself.
    """
    joined = [*history, *losses][-max(history.maxlen or 0, len(losses)) :]
    history.extend(losses)
    return [probability(joined, loss, beta) for loss in losses]


def algorithm_1(
    batches: Iterable[tuple[Sequence[int], Sequence[float]]],
    probabilities: Callable[[Sequence[float]], list[float]],
    choose: Callable[[float], bool],
    size: int,
) -> tuple[list[list[int]], list[int]]:
    """Algorithm 1: the batches that are trained on, and what is left in the pool.

    Args:
        batches: Examples and their losses, in the order of ``data.getBatches``.
        probabilities: Algorithm 2 for the losses of a batch.
        choose: Whether an example of this probability is chosen.
        size: Examples per trained batch, ``bSize``.
    """
    trained, batch_bp = [], []
    for examples, losses in batches:
        for example, prob in zip(examples, probabilities(losses), strict=True):
            if choose(prob):
                batch_bp.append(example)
            if len(batch_bp) == size:
                trained.append(batch_bp)
                batch_bp = []
    return trained, batch_bp
