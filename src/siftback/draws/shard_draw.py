"""Draws by percentile from a table that is shared among processes, each with shards of its own."""

import torch
from torch import Tensor

from siftback.draws.block_draw import (
    BUCKETS,
    buckets_of,
    correct_count,
    histogram,
    tied_probabilities,
)
from siftback.processes.distributed import sum_over_processes
from siftback.seeding import generator_from
from siftback.tables.shards import Shards

_LEAST = 1e-12  # in place of a probability of 0, so that k examples can always be drawn


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
        chance = generator_from(seed, shard)
        weights[rows][_draw_shard(scores[rows], table, quota, chance)] = 1.0
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
    probabilities = table[buckets_of(scores[known])]
    return torch.cat((new, known[_systematic(probabilities, quota - len(new), generator)]))


def _systematic(probabilities: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Returns int64[count], the draw of `choose_exactly`, in time that grows with the number only.

    Args:
        probabilities: float64[n].
        count: From 1 to n.
        generator: On the CPU.
    """
    scaled = probabilities.clamp(min=_LEAST)
    certain = torch.zeros(len(scaled), dtype=torch.bool)
    while True:  # a few times, as what is certain makes the others more probable
        left = count - int(certain.sum())
        uncertain = scaled.masked_fill(certain, 0.0)
        uncertain *= left / max(float(uncertain.sum()), _LEAST)
        now_certain = uncertain >= 1
        if not left or not now_certain.any():
            break
        certain |= now_certain
    order = torch.randperm(len(scaled), generator=generator)
    start = float(torch.rand((), generator=generator, dtype=torch.float64))
    ordered = torch.where(certain, 1.0, uncertain)[order]
    points = torch.ceil(ordered.cumsum(0) - start).clamp(min=0)
    hit = points.diff(prepend=points.new_zeros(1)) > 0
    correct_count(hit, ordered, count - int(hit.sum()))
    return order[hit]
