"""Every selection that a method can make, with its probability: written from its paper, slow.

An outcome is ``(probability, {row: weight})``. Equal probabilities are not merged, and nothing is
shared with the library.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import scipy
import torch
from torch import Tensor

Outcome = tuple[float, dict[int, float]]
Scores = Sequence[float]


def shares(scores: Scores) -> list[tuple[float, float]]:
    """The percentiles (a, b] that each score holds among all of them."""
    size = len(scores)
    return [(sum(o < s for o in scores) / size, sum(o <= s for o in scores) / size) for s in scores]


def power_probabilities(scores: Scores, beta: float) -> list[float]:
    """Jiang et al. 2019, eq. 1: percentile^beta, on average over the percentiles held."""
    return [scipy.integrate.quad(lambda u: u**beta, a, b)[0] / (b - a) for a, b in shares(scores)]


def quantile_probabilities(scores: Scores, keep: float) -> list[float]:
    """The share of the percentiles held that is above 1 - keep."""
    steps = 2000
    return [
        sum(a + (b - a) * (i + 0.5) / steps > 1 - keep for i in range(steps)) / steps
        for a, b in shares(scores)
    ]


def in_proportion(sizes: Scores, count: int) -> list[float]:
    """Chances that sum to k in proportion to the sizes, those above 1 cut off and the rest raised.

    Where fewer than k sizes are above 0, the others share what is left.
    """
    sizes = [max(size, 1e-12) for size in sizes]
    certain: set[int] = set()
    while True:
        left = sum(size for row, size in enumerate(sizes) if row not in certain)
        probabilities = [
            1.0 if row in certain else (count - len(certain)) * size / left
            for row, size in enumerate(sizes)
        ]
        over = {
            row
            for row, probability in enumerate(probabilities)
            if probability > 1 and row not in certain
        }
        if not over:
            return probabilities
        certain.add(max(over, key=lambda row: probabilities[row]))


def independent(probabilities: Scores, weights: Scores) -> Iterator[Outcome]:
    """Each row by itself."""
    for kept in itertools.product((False, True), repeat=len(probabilities)):
        probability = math.prod(p if k else 1 - p for p, k in zip(probabilities, kept, strict=True))
        yield probability, {row: weights[row] for row, k in enumerate(kept) if k}


def normalised(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Hájek 1971: weights of a mean of 1."""
    for probability, kept in outcomes:
        mean = sum(kept.values()) / len(kept) if kept else 1.0
        yield probability, {row: weight / mean for row, weight in kept.items()}


def systematic(probabilities: Scores, weights: Scores) -> Iterator[Outcome]:
    """Madow 1949: stretches end to end in a random order, hit by u, u + 1, ..."""
    orders = list(itertools.permutations(range(len(probabilities))))
    for order in orders:
        ends = list(itertools.accumulate(probabilities[row] for row in order))
        cuts = sorted({0.0, 1.0, *(end % 1.0 for end in ends)})
        for low, high in itertools.pairwise(cuts):
            start, kept = (low + high) / 2, {}
            for row, end in zip(order, ends, strict=True):
                before = max(0, math.ceil(end - probabilities[row] - start - 1e-9))
                if max(0, math.ceil(end - start - 1e-9)) > before:
                    kept[row] = weights[row]
            yield (high - low) / len(orders), kept


def with_replacement(scores: Scores, count: int, reweight: bool) -> Iterator[Outcome]:
    """Katharopoulos & Fleuret 2018, Algorithm 1: b draws with w = 1/(B g), rows merged.

    The mean over the rows is that over the draws.
    """
    probabilities = [score / sum(scores) for score in scores]
    size = len(scores)
    for draws in itertools.product(range(size), repeat=count):
        kept = dict.fromkeys(draws, 0.0)
        for row in draws:
            kept[row] += 1 / (size * probabilities[row]) if reweight else 1.0
        scale = len(kept) / count
        yield (
            math.prod(probabilities[row] for row in draws),
            {r: w * scale for r, w in kept.items()},
        )


def uniform_draw(size: int, count: int) -> Iterator[Outcome]:
    """k of N, all sets alike."""
    sets = list(itertools.combinations(range(size), count))
    for rows in sets:
        yield 1 / len(sets), dict.fromkeys(rows, 1.0)


def highest(scores: Scores, count: int) -> Iterator[Outcome]:
    """The k highest, in all orders that equals can have."""
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        rows = sorted(order, key=lambda row: -scores[row])[:count]  # stable
        yield 1 / len(orders), dict.fromkeys(rows, 1.0)


def successive(sizes: Scores, count: int) -> Iterator[Outcome]:
    """One draw after the other without replacement, in proportion among those that are left."""
    for draws in itertools.permutations(range(len(sizes)), count):
        probability, left = 1.0, sum(sizes)
        for row in draws:
            probability *= sizes[row] / left
            left -= sizes[row]
        yield probability, dict.fromkeys(draws, 1.0)


def check_shares(drawn: Tensor, expected: Tensor | Scores) -> None:
    """Checks how often each row was drawn; see `check_deviations`.

    Args:
        drawn: [trials, N], above 0 where a row was drawn.
        expected: Its probability, [N].
    """
    expected = torch.as_tensor(expected, dtype=torch.float64)
    deviations = (drawn > 0).double().mean(0) - expected
    check_deviations(deviations, expected * (1 - expected) / len(drawn))


def check_deviations(deviations: Tensor, variances: Tensor) -> None:
    """Checks means of draws, each by itself and all together: a thousand trials are enough.

    A bias of many rows shows in the mean of their squared deviations, which is 1 without one, long
    before it shows in a single row.

    Args:
        deviations: [N], of each row's mean from what is expected.
        variances: [N], of these, in draws of rows that are hardly correlated.
    """
    assert (deviations.abs() <= 4.5 * variances.sqrt() + 1e-6).all()
    is_certain = variances < 1e-9
    squares = (deviations.square() / variances)[~is_certain]
    assert squares.sum() <= len(squares) + 6 * (2 * len(squares)) ** 0.5


def moment(outcomes: Sequence[Outcome], row: int, power: int, about: float = 0.0) -> float:
    """``E[(w - about)^power]`` of a row's weight, 0 where it is not kept."""
    return sum(p * (kept.get(row, 0.0) - about) ** power for p, kept in outcomes)
