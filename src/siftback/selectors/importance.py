"""Importance sampling: k of a larger batch in proportion to a score, once that pays."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_number, checked_share
from siftback.selectors.sampling import choose_exactly, count_of, inclusion_probabilities
from siftback.selectors.selection import Selection


def importance_distribution(scores: Tensor) -> Tensor:
    """The probability of each example in a single draw: ``g_i = G_i / sum of G_j``.

    Katharopoulos & Fleuret 2018.

    Args:
        scores: float[N]. One below 0 counts as 0; where none is above 0 the draw is uniform.

    Returns:
        float32[N], summing to 1.

    >>> importance_distribution(torch.tensor([1.0, 3.0, 0.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000, 0.0000])
    """
    scores = scores.detach().float().clamp(min=0).nan_to_num()
    largest = scores.max()
    shares = torch.where(largest > 0, scores / largest, 1.0)  # which cannot overflow in the sum
    return shares / shares.sum()


def variance_reduction(distribution: Tensor) -> Tensor:
    """How many uniform draws one draw by importance is worth in variance, tau.

    Katharopoulos & Fleuret 2018, with u the uniform distribution::

        1 / tau = sqrt(1 - |g - u|^2 / sum of g_i^2)

    As ``|g - u|^2 = sum of g_i^2 - 1/N``, that is ``tau = sqrt(N * sum of g_i^2)``, computed so.

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
    """The least tau for which scoring N to train on k pays: ``(N + 3k) / 3k``.

    Katharopoulos & Fleuret 2018: scoring costs N forwards and training 3k, and
    uniform draws of as little variance would cost ``3 tau k``.

    >>> break_even_tau(384, 128)
    2.0
    """
    return (size + 3 * count) / (3 * count)


def draws_with_replacement(distribution: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """How often each example comes up in k independent draws.

    Args:
        distribution: float32[N], the probabilities of a single draw, summing to 1.
        count: k.
        generator: On the CPU; k numbers are drawn.

    Returns:
        float32[N], integers that sum to k, on the device of the distribution.

    >>> draws_with_replacement(torch.tensor([0.0, 0.5, 0.5]), 4, torch.Generator().manual_seed(0))
    tensor([0., 3., 1.])
    """
    device = distribution.device
    places = torch.rand(count, generator=generator).to(device, non_blocking=True)
    ends = distribution.cumsum(0)
    # Below the last end also where the product is rounded up to it.
    places = torch.minimum(places * ends[-1], torch.nextafter(ends[-1], ends.new_zeros(())))
    rows = torch.searchsorted(ends, places, right=True)  # whose stretches are never empty
    return torch.zeros_like(distribution).scatter_add_(0, rows, torch.ones_like(places))


class Kath18:
    """Importance sampling: k of a batch, drawn in proportion to their scores.

    Katharopoulos & Fleuret 2018, *Not All Samples Are Created Equal*. The batches of
    the wrapped loader are the large ones (their B), of which ``k = max(1, round(keep * N))`` (their
    b) are drawn; give the loader ``batch_size=k`` to train on just these. The scores are losses,
    the baseline of Jiang et al. 2019, section 5.1, or, with ``scorer=GradientBound()``, the upper
    bound of the gradient's norm that the paper proposes.

    The start is variable. Of each batch the variance reduction tau is computed
    (`variance_reduction`), and its moving average, ``a * average + (1 - a) * tau``, from 0. A batch
    before which the average is not above the threshold is drawn from uniformly, without
    replacement, each with weight 1. (The batch is scored in any case, as the loader cannot know.)

    With replacement, an example that comes up n times is one row that counts n times. Rows
    weigh ``n / (N g) * d / k``, with d the number of distinct rows, so that their weighted mean is
    that of the k draws, whose expectation is the mean of the batch. Without replacement the
    probabilities are those of `inclusion_probabilities`, p, in proportion to the scores as far as
    none is above 1; rows weigh ``k / (N p)``, the 1/(B p) of the paper, with the same expectation.

    Args:
        keep: Share of the examples to draw, in (0, 1].
        replace: Whether to draw with replacement, as the paper does. Fewer than k distinct
            examples are then kept.
        reweight: Whether to weigh as above. Without, each draw weighs 1, so that hard examples
            count for more: the baseline of Jiang et al. 2019 does so.
        threshold: What the average of tau must be above; by default `break_even_tau` of the batch.
            It is at least 1, so 0 starts after the first batch.
        momentum: a, how much of the average stays, in [0, 1).

    Raises:
        ConfigError: If one of them is outside its range.

    Where exactly k are asked for (``count=``), with replacement too k distinct rows are kept: those
    that did not come up fill the number, with weight 0, and the others weigh ``n / (N g)``.

    >>> selector = Kath18(keep=1 / 2, threshold=0, momentum=0)
    >>> scores, generator = torch.tensor([8.0, 1.0, 1.0, 1.0]), torch.Generator().manual_seed(0)
    >>> selector.select(scores, generator).weights  # uniform at first
    tensor([1., 1.])
    >>> round(selector.tau, 3)
    1.488
    >>> selector.select(scores, generator)
    Selection(positions=tensor([0]), weights=tensor([0.3438]))
    """

    needs_scores = True

    def __init__(
        self,
        *,
        keep: float,
        replace: bool = True,
        reweight: bool = True,
        threshold: float | None = None,
        momentum: float = 0.9,
    ) -> None:
        self.set_keep(keep)
        self.replace, self.reweight = replace, reweight
        self.reweights = reweight or replace
        self.threshold = (
            None if threshold is None else checked_number("threshold", threshold, least=0)
        )
        self.momentum = checked_share("momentum", momentum)
        self._tau = torch.zeros(())

    @property
    def tau(self) -> float:
        """The moving average of the variance reduction, 0 before the first batch."""
        return float(self._tau)

    def set_keep(self, keep: float) -> None:
        """Changes the share to draw, in (0, 1]."""
        self.keep = checked_share("keep", keep, least=False, most=True)

    def probabilities(self, scores: Tensor) -> Tensor:
        """float32[N], of each one's being drawn at all; moves the average of tau on."""
        count = count_of(self.keep, len(scores))
        on, drawn = self._next(scores, count)
        if not self.replace:
            return inclusion_probabilities(drawn, count)
        missed = torch.exp(count * torch.log1p(-drawn))
        return torch.where(on, 1 - missed, count / len(scores))

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; moves the average of tau on."""
        size = len(scores)
        asked = count_of(self.keep, size) if count is None else count
        on, drawn = self._next(scores, asked)
        if not self.replace:
            positions = choose_exactly(drawn, asked, generator)
            weights = asked / (size * inclusion_probabilities(drawn, asked)[positions])
            return Selection(positions, weights if self.reweight else torch.ones_like(weights))
        uniform = torch.zeros_like(drawn)
        uniform[choose_exactly(torch.ones_like(drawn), asked, generator)] = 1
        times = torch.where(on, draws_with_replacement(drawn, asked, generator), uniform)
        if count is None:
            positions = times.nonzero().squeeze(1)
            scale = len(positions) / asked
        else:  # without waiting for the device to know how many came up
            positions = times.topk(count).indices.sort().values
            scale = 1.0
        weights = times[positions] * scale
        if self.reweight:  # a filler, drawn 0 times, may be of probability 0
            weights = weights / (size * drawn[positions]).clamp(min=torch.finfo(drawn.dtype).tiny)
        return Selection(positions, weights)

    def state_dict(self) -> dict[str, Any]:
        """The average of tau."""
        return {"tau": self._tau.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's average."""
        self._tau = state["tau"].clone()

    def _next(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Whether the start has come, and a draw's probabilities; all on the scores' device."""
        distribution = importance_distribution(scores)
        average = self._tau.to(scores.device)
        threshold = self.threshold
        if threshold is None:
            threshold = break_even_tau(len(scores), count)
        on = average > threshold
        new = variance_reduction(distribution)
        self._tau = self.momentum * average + (1 - self.momentum) * new
        return on, torch.where(on, distribution, 1 / len(scores))
