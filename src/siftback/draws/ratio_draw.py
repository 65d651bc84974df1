"""Probabilities by the loss over the mean loss, and examples drawn by them: exactly k, or each."""

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from siftback.draws.exact_draw import draw_exactly
from siftback.draws.histogram_draw import BLOCK, NO_ROWS, draw_in_blocks
from siftback.draws.percentile_draw import SORTED
from siftback.selectors.sampling import LEAST_PROBABILITY

# Where labels seem to be wrong, the shares that misfits have at the least, of the examples and of
# the loss, and the mean loss at the most, over that of chance (`benchmarks/misfits.py`).
MISFITS, MISFIT_LOSS, LEARNED = 0.05, 0.45, 0.7


def ratio_probabilities(losses: Tensor, floor: float, mean: float | None = None) -> Tensor:
    """Computes probabilities by the loss over the mean of all: ``max(floor, min(1, loss / mean))``.

    A loss that is not finite is not part of the mean, and its example is certain to be drawn. If
    the mean is not above 0, all are.

    Args:
        losses: float[N].
        floor: The minimum probability, in [0, 1).
        mean: That of all losses, where these are a block of them; by default of these.

    Returns:
        float64[N].

    >>> ratio_probabilities(torch.tensor([0.0, 0.5, 0.5, 3.0]), floor=0.1)
    tensor([0.1000, 0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    mean = finite_mean([losses]) if mean is None else mean
    losses = losses.double()
    if not mean > 0:
        return torch.ones_like(losses)
    return (losses / mean).clamp(floor, 1).where(losses.isfinite(), 1.0)


def finite_mean(blocks: Iterable[Tensor]) -> float:
    """Computes the mean of the finite losses in tensors, float[n], in float64; NaN of none.

    >>> finite_mean([torch.tensor([1.0, torch.inf]), torch.tensor([2.0])])
    1.5
    """
    total, count = 0.0, 0
    for losses in blocks:
        finite = losses[losses.isfinite()]
        total += float(finite.double().sum())
        count += len(finite)
    return total / count if count else math.nan


def warn_of_negative(losses: Tensor, name: str) -> None:
    """Warns where losses are negative, whose ratios say nothing: of which is hard, or how many are.

    A thousandth of the sum of their sizes may be negative, as by rounding.

    Args:
        losses: float[N]; those that are not finite do not count.
        name: What draws by ratios of losses, in words.
    """
    blocks = torch.split(losses, BLOCK)
    below = finite_mean(block.clamp(max=0) for block in blocks)
    if -below > finite_mean(block.abs() for block in blocks) / 1000:
        warnings.warn(
            f"losses are negative, and {name} draws by their ratios, which say nothing of such "
            "losses: below a mean of 0 Memory() leaves nothing out. Give Memory(keep=0.5), which "
            "draws by ranks, or record losses of at least 0",
            stacklevel=3,
        )


def are_mislabelled(losses: Tensor, chance: float) -> bool:
    """Returns whether much of the loss is of misfits: examples whose labels may be wrong.

    A network that has learned predicts few right labels worse than by chance, hard as they may be,
    and nearly all wrong ones. So misfits are the examples whose loss is above that of chance, and
    labels seem to be wrong where these are `MISFITS` of the examples or more, and have more than
    `MISFIT_LOSS` of the loss, once the mean loss is below `LEARNED` of that of chance.

    Args:
        losses: float[N]; those that are not finite do not count.
        chance: The loss of predictions by chance, log C of C classes; 0 where it is not known.

    >>> right, wrong = torch.full((90,), 0.1), torch.full((10,), 4.0)
    >>> are_mislabelled(torch.cat((right, wrong)), 2.3), are_mislabelled(wrong, 2.3)
    (True, False)
    """
    blocks = torch.split(losses, BLOCK)
    mean = finite_mean(blocks)
    of_misfits = finite_mean(block * (block > chance) for block in blocks)
    misfits = finite_mean(0 * block + (block > chance) for block in blocks)
    return 0 < mean < chance * LEARNED and misfits >= MISFITS and of_misfits > MISFIT_LOSS * mean


def draw_independently(
    losses: Tensor, floor: float, generator: torch.Generator, excluded: Tensor = NO_ROWS
) -> Tensor:
    """Draws each example with its probability of `ratio_probabilities`, a block at a time.

    Besides the losses and the result, memory is constant.

    Args:
        losses: float32[N].
        floor: The minimum probability, in [0, 1).
        generator: On the CPU; gives one number for each example that is not excluded.
        excluded: int64[n], examples that are not drawn, and whose losses do not count.

    Returns:
        float32[N], 1 for those drawn and 0 for the others.

    >>> losses = torch.tensor([0.0, 0.0, torch.nan, 4.0, 9.0])
    >>> generator = torch.Generator().manual_seed(0)
    >>> draw_independently(losses, 0.1, generator, excluded=torch.tensor([4]))
    tensor([0., 0., 1., 1., 0.])
    """
    included = None
    if len(excluded):
        included = torch.ones(len(losses), dtype=torch.bool).index_fill_(0, excluded, False)

    def rows(start: int) -> Any:  # a slice is a view, and an index copies
        whole = slice(start, start + BLOCK)
        return whole if included is None else included[whole].nonzero().squeeze(1) + start

    starts, weights = range(0, len(losses), BLOCK), torch.zeros(len(losses), dtype=torch.float32)
    mean = finite_mean(losses[rows(start)] for start in starts)
    for start in starts:
        probabilities = ratio_probabilities(losses[rows(start)], floor, mean)
        # Numbers of float64 come one by one, so that blocks of them are those of one call.
        draws = torch.rand(len(probabilities), dtype=torch.float64, generator=generator)
        weights[rows(start)] = (draws < probabilities).float()
    return weights


def draw_by_ratio(
    losses: Tensor, floor: float, count: int, generator: torch.Generator, excluded: Tensor = NO_ROWS
) -> Tensor:
    """Draws exactly k examples, with probabilities in proportion to `ratio_probabilities`.

    Examples without a loss are kept, as far as there are not more than k of them. The probability
    of the others is ``min(1, c * max(floor, min(1, loss / mean)))``, with c such that exactly k are
    drawn; see `draw_exactly`. Of more than `SORTED` losses, those of one bucket of a histogram
    count as equal; see `draw_in_blocks`.

    Args:
        losses: float32[N], NaN where unknown.
        floor: The minimum probability before it is scaled by c, in [0, 1).
        count: k, from 0 to the number of examples that are not excluded.
        generator: On the CPU.
        excluded: int64[n], examples that are not drawn, and whose losses do not count; ascending.

    Returns:
        float32[N], 1 for the k drawn and 0 for the others.

    >>> losses = torch.tensor([0.0, 5.0, torch.nan, 0.0, 9.0])
    >>> generator = torch.Generator().manual_seed(0)
    >>> draw_by_ratio(losses, 0.0, 2, generator, excluded=torch.tensor([4]))
    tensor([0., 1., 1., 0., 0.])
    """

    def of_buckets(values: Tensor, sizes: Tensor) -> Tensor:
        finite = values.isfinite()
        examples = int(sizes[finite].sum())
        mean = float((values * sizes.double())[finite].sum()) / examples if examples else math.nan
        return ratio_probabilities(values, floor, mean).clamp(min=LEAST_PROBABILITY)

    if len(losses) > SORTED:
        return draw_in_blocks(losses, of_buckets, count, generator, excluded=excluded)
    if not len(excluded):
        return draw_exactly(losses, lambda s: ratio_probabilities(s, floor), count, generator)
    included = torch.ones(len(losses), dtype=torch.bool).index_fill_(0, excluded, False)
    weights = torch.zeros(len(losses), dtype=torch.float32)
    weights[included] = draw_by_ratio(losses[included], floor, count, generator)
    return weights
