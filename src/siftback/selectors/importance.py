"""Importance sampling: k of a larger batch in proportion to a score, once that pays off."""

import torch
from torch import Generator, Tensor

from siftback.arguments import check_flag, check_number, check_share
from siftback.host_reads import move
from siftback.selectors.sampling import (
    ShareSelector,
    choose_exactly,
    count_of,
    inclusion_probabilities,
    precise,
)
from siftback.selectors.selection import Selection, check_call, check_scores
from siftback.state import Check, tensor


def importance_distribution(scores: Tensor) -> Tensor:
    """Computes the probability of each example in a single draw: ``g_i = G_i / sum of G_j``.

    Katharopoulos & Fleuret 2018.

    Args:
        scores: float[N]. Negative scores count as 0; if none is above 0 the draw is uniform.

    Returns:
        float32[N], summing to 1.

    >>> importance_distribution(torch.tensor([1.0, 3.0, 0.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000, 0.0000])
    """
    scores = scores.detach().float().clamp(min=0).nan_to_num()
    largest = scores.max()
    shares = torch.where(largest > 0, scores / largest, 1.0)  # the sum cannot overflow
    return shares / shares.sum()


def variance_reduction(distribution: Tensor) -> Tensor:
    """Computes tau, the number of uniform draws that an importance draw is worth in variance.

    Katharopoulos & Fleuret 2018, with u the uniform distribution::

        1 / tau = sqrt(1 - |g - u|^2 / sum of g_i^2)

    As ``|g - u|^2 = sum of g_i^2 - 1/N``, this is computed as ``tau = sqrt(N * sum of g_i^2)``.

    Args:
        distribution: float32[N], g, summing to 1.

    Returns:
        float32, from 1 for the uniform distribution to ``sqrt(N)`` for a single example.

    >>> variance_reduction(torch.tensor([0.25, 0.25, 0.25, 0.25]))
    tensor(1.)
    >>> variance_reduction(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    tensor(2.)
    """
    return (len(distribution) * distribution.square().sum()).sqrt()


def break_even_tau(size: int, count: int) -> float:
    """Returns the smallest tau for which scoring N to train on k pays off: ``(N + 3k) / 3k``.

    Katharopoulos & Fleuret 2018: scoring costs N forwards and training 3k, and
    uniform draws with the same variance would cost ``3 tau k``.

    >>> break_even_tau(384, 128)
    2.0
    """
    return (size + 3 * count) / (3 * count)


def draws_with_replacement(distribution: Tensor, count: int, generator: Generator) -> Tensor:
    """Draws the number of times that each example is drawn in k independent draws.

    Args:
        distribution: float32[N], the probabilities of a single draw, summing to 1.
        count: k.
        generator: On the CPU; k numbers are drawn.

    Returns:
        float32[N], integers that sum to k, on the device of the distribution.

    >>> draws_with_replacement(torch.tensor([0.0, 0.5, 0.5]), 4, torch.Generator().manual_seed(0))
    tensor([0., 3., 1.])
    """
    device, ends = distribution.device, precise(distribution).cumsum(0)
    places = move(torch.rand(count, generator=generator, dtype=ends.dtype), device)
    if ends.dtype == torch.float64:  # in order, as each search is then near the one before
        places = places.sort().values
    # Kept below the last end, to which the product may be rounded up.
    places = torch.minimum(places * ends[-1], torch.nextafter(ends[-1], ends.new_zeros(())))
    rows = torch.searchsorted(ends, places, right=True)  # never one of probability 0
    drawn = torch.ones_like(rows, dtype=distribution.dtype)
    return torch.zeros_like(distribution).scatter_add_(0, rows, drawn)


class Kath18(ShareSelector):
    """Importance sampling: k of a batch, drawn in proportion to their scores.

    Katharopoulos & Fleuret 2018, *Not All Samples Are Created Equal*. The batches of
    the wrapped loader are the large ones (their B), of which ``k = max(1, round(keep * N))`` (their
    b) are drawn; give the loader ``pool=Pool(k)`` to train on exactly these. The scores are losses,
    the baseline of Jiang et al. 2019, section 5.1, or, with ``scorer=GradientBound()``, the upper
    bound of the gradient norm that the paper proposes.

    Importance sampling starts once it pays off. The variance reduction tau of each batch is
    computed (`variance_reduction`), and its moving average, ``a * average + (1 - a) * tau``,
    starting at 0. As long as the average before a batch is not above the threshold, the batch is
    sampled uniformly, without replacement, with weights of 1. (It is still scored.)

    With replacement, an example drawn n times is one row that counts n times. The weight of a row
    is ``n / (N g) * d / k``, with d the number of distinct rows, so that the weighted mean is that
    of the k draws, and its expectation the mean of the batch. Without replacement the
    probabilities p are those of `inclusion_probabilities`, in proportion to the scores except those
    that reach 1; weights are ``k / (N p)``, the 1/(B p) of the paper, with the same expectation.

    With ``count=k``, k distinct rows are kept, with replacement too: rows that were not drawn fill
    up the number, with weight 0, and the weights of the others are ``n / (N g)``.

    Args:
        keep: Share of the examples to draw, in (0, 1].
        replace: Whether to draw with replacement, as the paper does. Fewer than k distinct
            examples may then be kept.
        reweight: Whether to weight as above. If False, each draw has weight 1, so that hard
            examples count more, as in the baseline of Jiang et al. 2019.
        threshold: Value that the average of tau must exceed; by default `break_even_tau` of the
            batch. Tau is at least 1, so 0 starts after the first batch.
        momentum: a, the share of the average that is kept at each batch, in [0, 1).

    Raises:
        ConfigError: If one of them is out of range.

    >>> selector = Kath18(keep=1 / 2, threshold=0, momentum=0)
    >>> scores, generator = torch.tensor([8.0, 1.0, 1.0, 1.0]), torch.Generator().manual_seed(0)
    >>> selector.select(scores, generator).weights  # uniform at first
    tensor([1., 1.])
    >>> round(selector.tau, 3)
    1.488
    >>> selector.select(scores, generator)
    Selection(positions=tensor([0]), weights=tensor([0.3438]))
    """

    setting_names = ("replace", "reweight", "threshold", "momentum")

    def __init__(
        self,
        *,
        keep: float,
        replace: bool = True,
        reweight: bool = True,
        threshold: float | None = None,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(keep=keep)
        self.replace = check_flag("replace", replace)
        self.reweight = check_flag("reweight", reweight)
        self.reweights = reweight or replace
        self.threshold = (
            None if threshold is None else check_number("threshold", threshold, least=0)
        )
        self.momentum = check_share("momentum", momentum)
        self._tau = torch.zeros((), dtype=torch.float32)

    @property
    def tau(self) -> float:
        """The moving average of the variance reduction, 0 before the first batch."""
        return float(self._tau)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], of being drawn at least once; updates the average of tau."""
        check_scores(scores)
        count = count_of(self.keep, len(scores))
        on, drawn = self._next(scores, count)
        if not self.replace:
            return inclusion_probabilities(drawn, count)
        missed = torch.exp(count * torch.log1p(-drawn))
        return torch.where(on, 1 - missed, count / len(scores))

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`; updates the average of tau."""
        check_call(scores, generator, count)
        size, draws = len(scores), count or count_of(self.keep, len(scores))
        on, drawn = self._next(scores, draws)
        if not self.replace:
            positions = choose_exactly(drawn, draws, generator)
            weights = draws / (size * inclusion_probabilities(drawn, draws)[positions])
            weights = weights if self.reweight else torch.ones_like(weights)
            return Selection(positions, weights.float())
        uniform = torch.zeros_like(drawn)
        uniform[choose_exactly(torch.ones_like(drawn), draws, generator)] = 1
        times = torch.where(on, draws_with_replacement(drawn, draws, generator), uniform)
        if count is None:
            positions = times.nonzero().squeeze(1)
        else:  # without synchronizing to know how many were drawn
            positions = times.topk(count).indices.sort().values
        weights = times[positions] * (len(positions) / draws)
        if self.reweight:  # a row that fills up, drawn 0 times, may have probability 0
            weights = weights / (size * drawn[positions]).clamp(min=torch.finfo(drawn.dtype).tiny)
        return Selection(positions, weights)

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"_tau": tensor(torch.float32, least=0)}

    def _next(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Returns whether importance sampling is on, and a draw's probabilities."""
        distribution, average = importance_distribution(scores), move(self._tau, scores.device)
        threshold = break_even_tau(len(scores), count) if self.threshold is None else self.threshold
        on = average > threshold
        new = variance_reduction(distribution)
        self._tau = self.momentum * average + (1 - self.momentum) * new
        return on, torch.where(on, distribution, 1 / len(scores))
