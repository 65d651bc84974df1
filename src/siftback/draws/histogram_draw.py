"""Draws by the percentiles of a histogram, from tables too large to sort, or shared in shards."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from siftback.processes.distributed import sum_over_processes
from siftback.seeding import generator_from
from siftback.selectors.percentile import percentile_probabilities
from siftback.selectors.sampling import LEAST_PROBABILITY, share_out
from siftback.tables.shards import Shards

BLOCK = 1 << 20
"""Examples whose draw is decided together."""

BUCKETS = 1 << 22
"""Of a float32 score, the sign, the exponent and the first 13 bits of the fraction."""

NO_ROWS = torch.zeros(0, dtype=torch.int64)

_SHIFT = 10  # the bits of a score that are left out


def buckets_of(scores: Tensor) -> Tensor:
    """Returns the bucket of each score; buckets are in the order of the scores.

    Scores in one bucket differ by less than a share of 2^-13 of their size.

    Args:
        scores: float32[n], none NaN.

    Returns:
        int64[n] in [0, `BUCKETS`).

    >>> buckets_of(torch.tensor([-1.0, -0.0, 0.0, 1.0])).diff().sign()
    tensor([1, 0, 1])
    """
    bits = (scores + 0.0).view(torch.int32)  # of -0.0 those of 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # those of negative numbers descend
    return (ascending >> _SHIFT).long() + BUCKETS // 2


def values_of(buckets: Tensor) -> Tensor:
    """Returns the score nearest to 0 in each bucket; see `buckets_of`.

    Args:
        buckets: int64[n] in [0, `BUCKETS`).

    Returns:
        float32[n].

    >>> values_of(buckets_of(torch.tensor([-torch.inf, 0.0, 1.00001, torch.inf])))
    tensor([-inf, 0., 1., inf])
    """
    ascending = (buckets - BUCKETS // 2) << _SHIFT
    ascending += torch.where(ascending < 0, (1 << _SHIFT) - 1, 0)
    bits = ascending.to(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)


def histogram(scores: Tensor) -> tuple[Tensor, int]:
    """Counts the scores in each bucket, and the scores that are NaN.

    Args:
        scores: float32[N].

    Returns:
        int64[BUCKETS], and an integer.
    """
    counts, unknown = torch.zeros(BUCKETS, dtype=torch.int64), 0
    for chunk in torch.split(scores, 4 * BLOCK):
        known = chunk[~chunk.isnan()]
        unknown += len(chunk) - len(known)
        counts += torch.bincount(buckets_of(known), minlength=BUCKETS)
    return counts, unknown


def tied_probabilities(sizes: Tensor, beta: float, floor: float = 0.0) -> Tensor:
    """Computes `draw_probabilities`, from the number of examples of each score.

    Args:
        sizes: int64[M], how many examples have the lowest score, the next one, and so on.
        beta: Exponent, at least 0.
        floor: The least probability, in [0, 1).

    Returns:
        float64[M], that of each example of a score.

    >>> tied_probabilities(torch.tensor([1, 1, 2]), beta=1.0, floor=0.2)
    tensor([0.3000, 0.5000, 0.8000], dtype=torch.float64)
    """
    ends = sizes.cumsum(0)
    below, up_to = (ends - sizes).double() / ends[-1], ends.double() / ends[-1]
    return floor + (1 - floor) * percentile_probabilities(below, up_to, beta)


def scale_to_count(count: int, probabilities: Tensor, sizes: Tensor) -> Tensor:
    """Computes ``min(1, c p)``, with c such that the probabilities of all examples sum to k.

    As `inclusion_probabilities`, for examples in groups of one probability.

    Args:
        count: k, at most the number of examples.
        probabilities: float64[M], above 0: p of each group.
        sizes: int64[M], the number of examples of each group.

    Returns:
        float64[M].

    >>> scale_to_count(4, torch.tensor([0.1, 0.2, 0.9]).double(), torch.tensor([2, 2, 2]))
    tensor([0.3333, 0.6667, 1.0000], dtype=torch.float64)
    """
    ordered, order = probabilities.sort(descending=True)
    counts = sizes[order].double()
    certain = counts.cumsum(0) - counts  # examples of the groups before
    scales = (count - certain) / (ordered * counts).flip(0).cumsum(0).flip(0)
    fits = (scales * ordered <= 1) | (certain + counts >= count)
    return (scales[fits.int().argmax()] * probabilities).clamp(min=0.0, max=1.0)


def draw_in_blocks(
    scores: Tensor,
    proportions: Callable[[Tensor, Tensor], Tensor],
    count: int,
    generator: torch.Generator,
    *,
    excluded: Tensor = NO_ROWS,
    block: int = BLOCK,
) -> Tensor:
    """Draws exactly k examples, as `draw_exactly`, without sorting all scores.

    Scores in one bucket count as equal, so that the percentile of an example is off by at most the
    share of the examples that are in its bucket, and a score by 2^-13 of itself; the sum of the
    probabilities is exact. Each block of examples is shuffled by a generator of its own, and all of
    them are one systematic sample (Madow 1949), in the order of the blocks. Rounding may change
    the draw of a few examples, so that there are exactly k.

    Besides the scores and the result, memory is constant: about 0.2 GB.

    Args:
        scores: float32[N], NaN where unknown.
        proportions: From the scores of the buckets that are not empty, float32[M], ascending, and
            the number of examples in each, int64[M], to float64[M], above 0.
        count: k, from 0 to the number of examples that are not excluded.
        generator: On the CPU.
        excluded: int64[n], examples that are not drawn, and whose scores do not count; ascending.
        block: Examples whose draw is decided together.

    Returns:
        float32[N], 1 for the k drawn and 0 for the others.
    """
    table, of_unknown = _probabilities(scores, excluded, proportions, count)
    weights = torch.zeros(len(scores), dtype=torch.float32)
    seed = int(torch.randint(1 << 62, (), generator=generator))
    start = float(torch.rand((), generator=generator, dtype=torch.float64))
    position, drawn = 0.0, 0
    for number, block_scores in enumerate(torch.split(scores, block)):
        first = number * block
        unknown = block_scores.isnan()
        probabilities = table[buckets_of(block_scores.masked_fill(unknown, 0.0))]
        probabilities[unknown] = of_unknown
        begin, end = torch.searchsorted(excluded, torch.tensor([first, first + block])).tolist()
        probabilities[excluded[begin:end] - first] = 0.0
        order = torch.randperm(len(block_scores), generator=generator_from(seed, number))
        ends = probabilities[order].cumsum(0) + position
        points = torch.ceil(ends - start)
        hit = points.diff(prepend=points.new_full((1,), np.ceil(position - start))) > 0
        position = float(ends[-1]) % 1.0
        drawn += int(hit.sum())
        if first + block >= len(scores):
            _correct_count(hit, probabilities[order], count - drawn)
        weights[first + order[hit]] = 1.0
    return weights


def _probabilities(
    scores: Tensor, excluded: Tensor, proportions: Callable[[Tensor, Tensor], Tensor], count: int
) -> tuple[Tensor, float]:
    """float64[BUCKETS], the probability of each bucket, and that of an unknown score."""
    counts, unknown = histogram(scores)
    if len(excluded):
        excluded_counts, excluded_unknown = histogram(scores[excluded])
        counts -= excluded_counts
        unknown -= excluded_unknown
    table = torch.zeros(BUCKETS, dtype=torch.float64)
    if unknown >= count:
        return table, count / max(unknown, 1)
    buckets = counts.nonzero().squeeze(1)
    sizes = counts[buckets]
    table[buckets] = scale_to_count(count - unknown, proportions(values_of(buckets), sizes), sizes)
    return table, 1.0


def draw_in_shards(
    scores: Tensor,
    shards: Shards,
    beta: float,
    floor: float,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Draws ``k // S`` examples of each shard, by their percentiles among all examples.

    Percentiles are those of a histogram that is summed over all processes (32 MB): scores in one
    of its buckets count as equal, so that the percentile of an example is off by at most the share
    of the examples that are in its bucket; see `buckets_of`. Within a shard, probabilities are
    proportional to those of `draw_probabilities`, scaled so that they sum to its quota, and the
    draw is a systematic sample (Madow 1949) in a random order.

    The draw is a function of the generator, the shard and the scores, so it does not depend on the
    number of processes. All of them must call it.

    Args:
        scores: float32[rows], of this process, NaN where unknown.
        shards: Which examples they are of.
        beta: Exponent, at least 0.
        floor: The minimum probability, in [0, 1).
        count: k, of all examples.
        generator: On the CPU, in the same state in all processes.

    Returns:
        float32[rows], 1 for those drawn and 0 for the others.

    >>> scores = torch.tensor([0.1, 5.0, 6.0, 0.2])  # of examples 0, 2, 1 and 3
    >>> generator = torch.Generator().manual_seed(0)
    >>> draw_in_shards(scores, Shards(2, examples=4), 9.0, 0.0, 2, generator)
    tensor([0., 1., 1., 0.])
    """
    table = shared_probabilities(scores, beta, floor)
    seed, quota = int(torch.randint(1 << 62, (), generator=generator)), shards.quota(count)
    weights = torch.zeros(len(scores), dtype=torch.float32)
    for shard, rows in shards.shards():
        weights[rows][_draw_shard(scores[rows], table, quota, generator_from(seed, shard))] = 1.0
    return weights


def shared_probabilities(scores: Tensor, beta: float, floor: float) -> Tensor:
    """Computes the probability of each bucket by its percentile among the scores of all processes.

    Args:
        scores: float32[n], of this process, NaN where unknown.
        beta: Exponent, at least 0.
        floor: The minimum probability, in [0, 1).

    Returns:
        float64[BUCKETS], 0 for empty ones.
    """
    counts = sum_over_processes(histogram(scores)[0])
    buckets = counts.nonzero().squeeze(1)
    table = torch.zeros(BUCKETS, dtype=torch.float64)
    if len(buckets):
        table[buckets] = tied_probabilities(counts[buckets], beta, floor)
    return table


def _draw_shard(scores: Tensor, table: Tensor, quota: int, generator: torch.Generator) -> Tensor:
    """Returns int64[quota], rows of a shard. Unknown scores come first, as `draw_by_percentile`."""
    unknown = scores.isnan()
    new, known = unknown.nonzero().squeeze(1), (~unknown).nonzero().squeeze(1)
    if len(new) >= quota:
        return new[torch.randperm(len(new), generator=generator)[:quota]]
    # As `choose_exactly` draws, in time that grows with the number only.
    sizes, count = table[buckets_of(scores[known])].clamp(min=LEAST_PROBABILITY), quota - len(new)
    order = torch.randperm(len(sizes), generator=generator)
    start = float(torch.rand((), generator=generator, dtype=torch.float64))
    ordered = share_out(sizes, torch.ones_like(sizes), count)[order]
    points = torch.ceil(ordered.cumsum(0) - start).clamp(min=0)
    hit = points.diff(prepend=points.new_zeros(1)) > 0
    _correct_count(hit, ordered, count - int(hit.sum()))
    return torch.cat((new, known[order[hit]]))


def _correct_count(hit: Tensor, probabilities: Tensor, missing: int) -> None:
    """Draws as many more as are missing, or fewer where too many were: changes bool[n]."""
    if missing > 0:
        hit[(~hit & (probabilities > 0)).nonzero().squeeze(1)[:missing]] = True
    elif missing < 0:
        free = (hit & (probabilities < 1)).nonzero().squeeze(1)
        hit[(free if len(free) >= -missing else hit.nonzero().squeeze(1))[:-missing]] = False
