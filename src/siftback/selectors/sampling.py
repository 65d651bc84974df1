"""Random sampling by probabilities: each example independently, or exactly k of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from siftback.arguments import check_share
from siftback.host_reads import move
from siftback.selectors.selection import Selection, check_call, unweighted
from siftback.state import Stateful

LEAST_PROBABILITY = 1e-12
"""Used in place of a probability of 0, so that k examples can always be kept."""

# Of more values than these, the error of sums in float32 is not far below a single value.
_FEW = 1 << 16

# As many are sorted faster by NumPy.
_MANY = 1 << 10


def count_of(keep: float, size: int) -> int:
    """Returns the number of examples that a share of N is: ``round(keep * N)``, at least 1 of any.

    >>> count_of(1 / 3, 128), count_of(0.1, 3), count_of(0.1, 0)
    (43, 1, 0)
    """
    return min(max(1, round(keep * size)), size)


def precise(values: Tensor) -> Tensor:
    """Returns values in float64 where sums of float32 would lose some of them.

    >>> precise(torch.ones(3)).dtype, precise(torch.ones(1 << 17)).dtype
    (torch.float32, torch.float64)
    """
    return values.double() if len(values) > _FEW else values


def choose(probabilities: Tensor, generator: Generator, count: int | None = None) -> Selection:
    """Keeps each example at random, independently of the others: Algorithm 1's ``choose``.

    Args:
        probabilities: float[N] in [0, 1].
        generator: On the CPU. N numbers are drawn, however many examples are kept.
        count: k, to keep exactly k by `choose_exactly`; None for independent draws.

    Returns:
        The kept examples, each with weight 1.

    >>> choose(torch.tensor([0.0, 1.0, 1.0]), torch.Generator()).positions
    tensor([1, 2])
    """
    if count is not None:
        return unweighted(choose_exactly(probabilities, count, generator))
    dtype = torch.promote_types(probabilities.dtype, torch.float32)
    draws = torch.rand(len(probabilities), generator=generator, dtype=dtype)
    return unweighted((move(draws, probabilities.device) < probabilities).nonzero().squeeze(1))


def choose_exactly(probabilities: Tensor, count: int, generator: Generator) -> Tensor:
    """Keeps exactly k examples, each in proportion to its probability.

    Systematic sampling (Madow 1949) in a random order: the probabilities of
    `inclusion_probabilities`, which sum to k, are laid end to end as intervals, in the order of
    a random permutation, and an example is kept if its interval contains one of the points
    ``u, u + 1, ..., u + k - 1``, with u uniform in [0, 1). An interval is at most 1 long, so no
    example is kept twice, and the probability of an example is exactly the length of its interval.

    Compared with independent draws: those keep ``sum(p)`` examples on average, with a standard
    deviation of ``sqrt(sum(p (1 - p)))``. Here the number is fixed, so the probabilities are
    scaled down in a batch that is harder than the history, and up in an easier one; within a
    batch they stay in proportion, except those that reach 1. If ``sum(p) = k``, as on average
    over batches for ``keep = k / N``, the probabilities are those of the independent draws.

    Args:
        probabilities: float[N], at least 0.
        count: k, in [1, N].
        generator: On the CPU. Nothing is drawn if k = N.

    Returns:
        int64[k], ascending, on the device of the probabilities, without synchronizing with it.

    >>> choose_exactly(torch.tensor([0.0, 1.0, 0.0, 0.5, 0.5]), 2, torch.Generator().manual_seed(1))
    tensor([1, 4])
    """
    device, size = probabilities.device, len(probabilities)
    if count == size:
        return torch.arange(size, device=device)
    order = move(torch.randperm(size, generator=generator), device)
    lengths = inclusion_probabilities(probabilities, count)[order]
    dtype = torch.promote_types(lengths.dtype, torch.float32)  # of u, near 1 without it
    start = torch.rand((), generator=generator, dtype=dtype)  # operations take it from the CPU
    ends = lengths.cumsum(0)
    points = torch.ceil((ends * (count / ends[-1]) - start).clamp(min=0))  # left of each end
    hits = torch.cat((points[:1], points.diff()))
    # By rounding, an interval of about 1 may hold no point or two: `topk` still keeps exactly k.
    return sort_values(order[hits.topk(count, sorted=False).indices])[0]


def inclusion_probabilities(probabilities: Tensor, count: int) -> Tensor:
    """Scales probabilities so that they sum to k: ``min(1, c p)``, with c chosen accordingly.

    Args:
        probabilities: float[N], at least 0.
        count: k, in [1, N]. If fewer than k are above 0, the others share the remainder.

    Returns:
        float[N] in [0, 1], of the same dtype; of more than 65,536 in float64 (`precise`).

    >>> inclusion_probabilities(torch.tensor([0.1, 0.2, 0.9]), 2)
    tensor([0.3333, 0.6667, 1.0000])
    """
    values = precise(probabilities).clamp(min=LEAST_PROBABILITY)
    sums = sort_values(values)[0].cumsum(0)[-count:]
    # With the j highest values at 1, the others are scaled by (k - j) / (their sum). With too few
    # or too many at 1 that is less, so that c is the largest.
    scale = (torch.arange(1, count + 1, device=values.device) / sums).amax()
    return (values * scale).clamp_(max=1.0)


def share_out(sizes: Tensor, limits: Tensor, count: float) -> Tensor:
    """Shares out k in proportion to sizes, none more than its limit: ``min(n, c a)``.

    Args:
        sizes: float64[C], a, at least 0.
        limits: [C], n.
        count: k, at most the sum of the limits.

    Returns:
        float64[C], whose sum is k.

    >>> share_out(torch.tensor([1.0, 1.0, 2.0]).double(), torch.tensor([1, 9, 9]), 7)
    tensor([1., 2., 4.], dtype=torch.float64)
    """
    shares = torch.zeros_like(sizes)
    is_open = limits > 0
    while is_open.any():
        left = count - float(shares[~is_open].sum())
        # Where nothing is left to tell them apart, they share alike.
        parts = sizes[is_open] if sizes[is_open].any() else torch.ones_like(sizes[is_open])
        shares[is_open] = left * (parts / parts.sum())
        above = is_open & (shares > limits)
        if not above.any():
            break
        shares[above] = limits[above].double()
        is_open &= ~above
    return shares


def sort_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts values, with their order, as ``values.sort()`` does; the order of ties may differ.

    Many on the CPU are sorted by NumPy, which uses its vector instructions: 50,000 about six times
    as fast.

    Args:
        values: [n], none NaN, without a gradient.

    Returns:
        The values in ascending order; and int64[n], where each was.

    >>> sort_values(torch.tensor([0.5, 0.1, 0.3]))
    (tensor([0.1000, 0.3000, 0.5000]), tensor([1, 2, 0]))
    """
    is_few = len(values) < _MANY or values.dtype == torch.bfloat16  # which NumPy does not have
    if is_few or values.device.type != "cpu":
        ordered, order = values.sort()
        return ordered, order
    order = torch.from_numpy(values.numpy().argsort())
    return values[order], order


class ShareSelector(Stateful):
    """The base of selectors that keep a share of the examples, by default by their probabilities.

    Args:
        keep: Share of the examples to keep, in (0, 1].

    Raises:
        ConfigError: If it is outside its range.
    """

    needs_scores = True
    reweights = False
    probabilities: Callable[[Tensor], Tensor]

    def __init__(self, *, keep: float) -> None:
        self.set_keep(keep)
        self._first_keep = self.keep  # a schedule may change `keep`

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (0, 1]."""
        self.keep = check_share("keep", keep, least=False, most=True)

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`."""
        check_call(scores, generator, count)
        return choose(self.probabilities(scores), generator, count)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        first = {"selector": type(self).__name__, "keep": self._first_keep}
        return {**first, **super().settings()}
