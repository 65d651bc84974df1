"""Selectors by the rank of the scores, or by a threshold."""

from typing import Any

import torch
from torch import Generator, Tensor

from siftback.arguments import check_either, check_number
from siftback.errors import ConfigError
from siftback.host_reads import move
from siftback.selectors.percentile import (
    LossHistory,
    beta_of_keep,
    percentile_probabilities,
    rank_shares,
)
from siftback.selectors.sampling import (
    ShareSelector,
    choose,
    choose_exactly,
    count_of,
    inclusion_probabilities,
    precise,
)
from siftback.selectors.selection import Selection, check_call, check_scores, unweighted


def top_probabilities(scores: Tensor, count: int) -> Tensor:
    """Computes the probability of being among the k highest, with ties broken at random.

    1 above the k-th highest score and 0 below it; the t examples with exactly that score have
    ``(k - a) / t`` each, where a examples are above it.

    Args:
        scores: float[N].
        count: k, in [1, N].

    Returns:
        float32[N] in [0, 1], summing to k.

    >>> top_probabilities(torch.tensor([1.0, 3.0, 2.0, 2.0]), 2)
    tensor([0.0000, 1.0000, 0.5000, 0.5000])
    """
    last = scores.topk(count).values[-1]
    above, equal = scores > last, scores == last
    return torch.where(equal, (count - above.sum()).float() / equal.sum(), above.float())


def choose_top(scores: Tensor, count: int, generator: Generator) -> Tensor:
    """Chooses the k highest scores, ties broken at random.

    Args:
        scores: float[N].
        count: k, in [1, N].
        generator: On the CPU.

    Returns:
        int64[k], ascending, on the device of the scores, without synchronizing with it.

    >>> choose_top(torch.tensor([1.0, 3.0, 2.0]), 2, torch.Generator())
    tensor([1, 2])
    """
    # `topk` may take any of equal scores: in random order, each is equally likely.
    order = move(torch.randperm(len(scores), generator=generator), scores.device)
    return order[scores[order].topk(count).indices].sort().values


def threshold_probabilities(below: Tensor, up_to: Tensor, keep: float) -> Tensor:
    """Computes the probability of being in the highest share, for percentiles (a, b].

    The share of (a, b] above ``1 - keep``::

        P = (b - max(a, 1 - keep)) / (b - a), within [0, 1]

    It is 1 above the quantile and 0 below it; for losses equal to it, it makes the probabilities
    over a whole history of R sum to ``keep * R``, for any number of ties.

    Args:
        below: float32[N], a, share of the history less than each loss.
        up_to: float32[N], b, share less than or equal to it.
        keep: The share, in (0, 1].

    Returns:
        float32[N] in [0, 1].

    >>> threshold_probabilities(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 1.0]), keep=0.6)
    tensor([0.2000, 1.0000])
    """
    return ((up_to - below.clamp(min=1 - keep)) / (up_to - below)).clamp(0, 1)


def rank_probabilities(scores: Tensor, keep: float) -> Tensor:
    """Computes probabilities by rank: ``((r + 1/2) / N)^(1/keep - 1)`` for ranks from 0.

    The in-batch form of eq. 1 of Jiang et al. 2019 in Composer's ``select_using_loss``; here
    averaged over the percentiles that a score shares with those equal to it, see
    `percentile_probabilities`, so that the probabilities sum to exactly ``keep * N``.

    >>> rank_probabilities(torch.tensor([5.0, 1.0]), keep=0.5)
    tensor([0.7500, 0.2500])
    """
    scores = scores.detach().float()
    return percentile_probabilities(*rank_shares(scores, scores), beta_of_keep(keep))


class TopK(ShareSelector):
    """The ``k = max(1, round(keep * N))`` highest scores of each batch.

    Ordered SGD (Kawaguchi & Lu 2020), and the selection of RHO-loss (Mindermann et al. 2022; see
    `Irreducible`). Only ties are random.

    Args:
        keep: Share of the examples to keep, in (0, 1].

    Raises:
        ConfigError: If it is outside its range.

    >>> TopK(keep=1 / 2).select(torch.tensor([4.0, 1.0, 3.0, 2.0]), torch.Generator()).positions
    tensor([0, 2])
    """

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], 1 or 0, and between for ties; see `top_probabilities`."""
        check_scores(scores)
        return top_probabilities(scores, count_of(self.keep, len(scores)))

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`."""
        check_call(scores, generator, count)
        return unweighted(choose_top(scores, count or count_of(self.keep, len(scores)), generator))


class SoftTopK(ShareSelector):
    """The k highest of the scores plus noise: a random top-k.

    ``s_i / T + n_i`` with n_i from the standard Gumbel distribution. Its k highest are k draws
    without replacement, each in proportion to ``exp(s_i / T)`` among the remaining examples (Kool
    et al. 2019, *Stochastic Beams and Where to Find Them*, section 2.3; the "softmax" form of
    Kirsch et al. 2023, *Stochastic Batch Acquisition*). A small T approaches `TopK`, a large T
    `Uniform`. The probability of being among the k has no closed form, so there is no method
    ``probabilities``.

    Args:
        keep: Share of the examples to keep, in (0, 1]; ``k = max(1, round(keep * N))``.
        temperature: T, above 0, in the unit of the scores.

    Raises:
        ConfigError: If one is outside its range.

    >>> selector = SoftTopK(keep=1 / 2, temperature=2.0)
    >>> scores, generator = torch.tensor([4.0, 1.0, 3.0, 2.0]), torch.Generator().manual_seed(1)
    >>> [selector.select(scores, generator).positions.tolist() for _ in range(3)]
    [[0, 2], [0, 2], [0, 3]]
    """

    setting_names = ("temperature",)

    def __init__(self, *, keep: float, temperature: float = 1.0) -> None:
        super().__init__(keep=keep)
        self.temperature = check_number("temperature", temperature, above=0)

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`."""
        check_call(scores, generator, count)
        scores = scores.detach().float().nan_to_num()
        # The highest of many are rare, and coarse in float32.
        noise = torch.empty(len(scores), dtype=precise(scores).dtype)
        noise = noise.exponential_(generator=generator).log_().neg_()
        # Relative to the highest score; scores of -inf stay in random order.
        highest = ((scores - scores.max()) / self.temperature).nan_to_num()
        keys = highest + move(noise, scores.device)
        return unweighted(choose_top(keys, count or count_of(self.keep, len(scores)), generator))


class InBatchRank(ShareSelector):
    """Exactly k of each batch, by the rank within it; no history.

    The form of Selective-Backprop in Composer (``select_using_loss``): k of N without replacement,
    in proportion to `rank_probabilities`. Two details differ: k is ``max(1, round(keep * N))``,
    where Composer rounds down; and examples are kept exactly in proportion to the probabilities
    (`choose_exactly`), unlike with NumPy's successive draws without replacement.

    Args:
        keep: Share of the examples to keep, in (0, 1].

    Raises:
        ConfigError: If it is outside its range.

    >>> selector, scores = InBatchRank(keep=1 / 2), torch.tensor([4.0, 1.0, 3.0, 2.0])
    >>> selector.probabilities(scores)
    tensor([0.8750, 0.1250, 0.6250, 0.3750])
    >>> selector.select(scores, torch.Generator().manual_seed(0)).positions
    tensor([0, 3])
    """

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], summing to k."""
        check_scores(scores)
        count = count_of(self.keep, len(scores))
        return inclusion_probabilities(rank_probabilities(scores, self.keep), count)

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`."""
        check_call(scores, generator, count)
        count = count or count_of(self.keep, len(scores))
        return unweighted(choose_exactly(rank_probabilities(scores, self.keep), count, generator))


class Threshold(ShareSelector):
    """The examples whose score is above a threshold, fixed or moving with the scores.

    Fixed (``above``): all with ``score > above``, which may be none. Moving (``keep``): those in
    the highest share of the last R scores, including the batch's own; a score equal to the
    quantile is kept with the probability that makes the share exact (`threshold_probabilities`).

    With ``count=k``, the k highest are kept.

    Args:
        above: The fixed threshold, a finite number.
        keep: In its place: the share to keep on average, in (0, 1].
        history: R, for the moving threshold.

    Attributes:
        keep: The share; 1 with a fixed threshold, for which it is unknown.

    Raises:
        ConfigError: If both or neither of ``above`` and ``keep`` are given, or one is out of
            range.

    >>> scores = torch.tensor([4.0, 1.0, 3.0, 2.0])
    >>> Threshold(above=1.5).select(scores, torch.Generator()).positions
    tensor([0, 2, 3])
    >>> Threshold(keep=1 / 2).select(scores, torch.Generator()).positions
    tensor([0, 2])
    """

    setting_names = ("above",)

    def __init__(
        self, *, above: float | None = None, keep: float | None = None, history: int = 1024
    ) -> None:
        advice = "a fixed threshold or the share that a moving one keeps"
        check_either(advice, above=above, keep=keep)
        self.above = None if above is None else check_number("above", above)
        self.keep = self._first_keep = 1.0
        if keep is not None:
            super().__init__(keep=keep)
        self.history = LossHistory(history)

    def set_keep(self, keep: float) -> None:
        """Changes the share of a moving threshold, in (0, 1].

        Raises:
            ConfigError: If the threshold is fixed, or the share is out of range.
        """
        if self.above is not None:
            raise ConfigError(
                f"the threshold is fixed at {self.above} and has no share to "
                "change: give Threshold(keep=...)"
            )
        super().set_keep(keep)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N]; with a moving threshold, adds the scores to the history."""
        check_scores(scores)
        if self.above is not None:
            return (scores > self.above).float()
        return threshold_probabilities(*self.history.rank(scores), self.keep)

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`; with a moving threshold, adds the scores to the history."""
        check_call(scores, generator, count)
        probabilities = self.probabilities(scores)
        if count is None:
            return choose(probabilities, generator)
        return unweighted(choose_top(scores, count, generator))

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"history": self.history}
