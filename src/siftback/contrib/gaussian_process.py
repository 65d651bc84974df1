"""A Gaussian process over epochs that predicts each example's loss from its last few.

Jiang et al. 2019, section 3.3, "Using predicted losses". First the formulas, as pure functions;
then the rule, which holds the histories.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_number
from siftback.contrib.predicting import Predict, PredictingRule
from siftback.schedule import Epochs, Moment
from siftback.scorers.scorer import Scorer
from siftback.tables.score_table import ScoreTable

_CHUNK = 1 << 16  # examples that are predicted at a time
_MISSING = -1  # marks a missing epoch
_LEAST_SD = 1e-12  # if all losses are the same
_EPOCH_MOST = torch.iinfo(torch.int16).max


class Posterior(NamedTuple):
    """The posterior distribution of each example's loss.

    Attributes:
        mean: float32[N]; NaN for an example never observed.
        sd: float32[N], the standard deviation of a new observation, including its noise.
    """

    mean: Tensor
    sd: Tensor


def posterior(
    losses: Tensor,
    epochs: Tensor,
    epoch: int,
    *,
    length_scale: float,
    noise: float,
    mean: float,
    variance: float,
) -> Posterior:
    """Gaussian-process regression of each example's loss over epochs, all examples at once.

    Rasmussen and Williams 2006, eq. 2.25 and 2.26. With an example's observations ``y_i`` in
    epochs ``e_i`` and the kernel ``k(e, e') = exp(-(e - e')^2 / (2 length_scale^2))``::

        K_ij = k(e_i, e_j) + noise * [i = j],   w = K^-1 k(e, epoch)
        mean + sum_i w_i (y_i - mean),   variance * (1 + noise - sum_i w_i k(e_i, epoch))

    The kernel is the same for all, so w depends on the epochs alone: it is solved once for all
    examples that were observed in the same epochs, by Cholesky decompositions in float64, 65,536
    examples at a time.

    Args:
        losses: float[N, h], the observations.
        epochs: int16[N, h], their epochs; -1 for a missing observation.
        epoch: The epoch to predict.
        length_scale: In epochs, above 0.
        noise: The variance of an observation's noise, in units of ``variance``, above 0.
        mean: The prior's mean, the same for all examples and epochs.
        variance: The prior's variance.

    >>> losses, epochs = torch.tensor([[1.0, 2.0]]), torch.tensor([[0, 1]], dtype=torch.int16)
    >>> posterior(losses, epochs, 2, length_scale=2.0, noise=0.1, mean=1.5, variance=1.0)
    Posterior(mean=tensor([2.1344]), sd=tensor([0.6048]))
    """
    chunks = []
    for start in range(0, len(losses), _CHUNK):
        seen = epochs[start : start + _CHUNK]
        groups, examples = group_rows(seen)
        times, is_seen = seen[examples].double(), seen[examples] != _MISSING
        pairs = is_seen[:, :, None] & is_seen[:, None, :]
        kernel = kernel_of(times[:, :, None] - times[:, None, :], length_scale) * pairs
        # 1 for missing ones, whose weights are 0.
        diagonal = torch.ones_like(times).masked_fill_(is_seen, noise)
        cross = (kernel_of(times - epoch, length_scale) * is_seen)[:, :, None]
        lower = torch.linalg.cholesky(kernel + torch.diag_embed(diagonal))
        weights = torch.cholesky_solve(cross, lower)
        shares = 1 + noise - (weights * cross).sum((1, 2))
        shares[~is_seen.any(1)] = torch.nan
        residuals = losses[start : start + _CHUNK].double() - mean
        means = mean + (weights[:, :, 0][groups] * residuals).sum(1)
        sds = (variance * shares).clamp(min=0).sqrt()[groups]
        chunks.append((torch.where(sds.isnan(), torch.nan, means).float(), sds.float()))
    if not chunks:
        return Posterior(losses.new_empty(0), losses.new_empty(0))
    return Posterior(*(torch.cat(values) for values in zip(*chunks, strict=True)))


def kernel_of(distances: Tensor, length_scale: float) -> Tensor:
    """Computes the kernel of distances in epochs."""
    return torch.exp(-0.5 * (distances / length_scale) ** 2)


def group_rows(epochs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int64[N], the group of each row, and int64[groups], an example of each group."""
    # A group's number and three epochs of 16 bits fit one int64; much faster than unique(dim=0).
    packed = epochs.long() & 0xFFFF
    groups = torch.zeros(len(epochs), dtype=torch.int64, device=epochs.device)
    for start in range(0, epochs.shape[1], 3):
        for column in packed[:, start : start + 3].unbind(1):
            groups = (groups << 16) | column
        numbers, groups = torch.unique(groups, return_inverse=True)
    examples = torch.empty_like(numbers)
    examples[groups] = torch.arange(len(epochs), device=epochs.device)
    return groups, examples


class GaussianProcess(PredictingRule):
    """Predicts an example's loss from its last few by a Gaussian process over epochs.

    Jiang et al. 2019, section 3.3, "using historical losses to train a Gaussian process". As in
    `Stale`, scoring passes are made every n-th epoch, and the examples of the n - 1 epochs after
    one are drawn before they are read, by the loss predicted for the epoch. Losses of training are
    observations too. Ideal cost per example of n epochs with share s kept, in forwards (1) and
    backwards (2): ``1 + 3ns``.

    All examples share one squared-exponential kernel over epochs, see `posterior`. The prior's
    mean and variance are those of the latest losses of all examples, so that they follow
    training; the prediction from an old loss approaches that mean, and its uncertainty that of an
    example never seen. If an example has several losses in one epoch, the last one counts. Losses
    that are not finite are ignored.

    Args:
        keep: Share of the examples to keep, in (0, 1].
        beta: In place of ``keep``, the exponent, ``keep = 1 / (beta + 1)``.
        length_scale: Epochs over which losses are correlated, above 0.
        noise: The noise variance of a single loss (from dropout, augmentation, or the other
            examples in its batch) in units of the prior's variance, above 0.
        every: n, the epochs from one scoring pass to the next, at least 1.
        history: Number of losses kept per example, at least 1: 8 bytes each.
        predict: "loss"; or "probability", the paper's easier problem: the probability that the
            loss exceeds the threshold, ``Phi((mean - threshold) / sd)``.
        threshold_share: Share of the losses above the threshold, in (0, 1). The threshold is that
            quantile of the last 1,024 losses of scoring passes; losses of training are of selected
            examples, and are used only before the first pass.
        optimism: c, at least 0, the bonus for uncertainty: ``mean + c * sd``, or for a probability
            ``c * sd / (sd without observations)``. By default 0, as a scoring pass scores every
            example again; give more, such as 1, if passes are rare.
        scorer: Scores the examples in a pass; by default a `Fresh` forward.
        table: Stores the losses and their epochs: a `ScoreTable` of ``2 * history`` columns, such
            as one in a file; by default in memory.
        warmup: How long all examples are trained on before the first pass; `Epochs` or a `Share`.

    Raises:
        ConfigError: If one of them is out of range, or both or neither of ``keep`` and ``beta``
            are given.

    >>> process = GaussianProcess(keep=0.5, length_scale=4.0, noise=0.1)
    >>> process.grow(3)
    >>> process.rescore(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]), epoch=0)
    >>> process.update(torch.tensor([0, 1]), torch.tensor([1.5, 2.5]), epoch=1)
    >>> process.predicted(epoch=2)
    tensor([1.4947, 2.5053,    nan])
    >>> process.draw(2, torch.Generator().manual_seed(1))  # examples never scored are kept
    tensor([0., 1., 1.])
    """

    setting_names = ("length_scale", "noise", "history")

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        *,
        length_scale: float = 8.0,
        noise: float = 0.3,
        every: int = 3,
        history: int = 6,
        predict: Predict = "loss",
        threshold_share: float = 1 / 3,
        optimism: float = 0.0,
        scorer: Scorer | None = None,
        table: ScoreTable | None = None,
        warmup: Moment = Epochs(1),
    ) -> None:
        self.history = check_integer("history", history, 1)
        # Losses and then their epochs, each oldest first; missing ones are on the left.
        super().__init__(
            keep, beta, every=every, predict=predict, threshold_share=threshold_share,
            optimism=optimism, scorer=scorer, table=table, columns=2 * self.history,
            warmup=warmup,
        )  # fmt: skip
        self.length_scale = check_number("length_scale", length_scale, above=0)
        self.noise = check_number("noise", noise, above=0)

    def posterior(self, epoch: int) -> Posterior:
        """Computes the posterior of each example's loss in an epoch."""
        losses, epochs = self.values[:, : self.history], self.values[:, self.history :]
        mean, variance = self._prior()
        return posterior(
            losses.nan_to_num(0.0), epochs.nan_to_num(_MISSING).to(torch.int16),
            min(epoch, _EPOCH_MOST), length_scale=self.length_scale, noise=self.noise,
            mean=mean, variance=variance,
        )  # fmt: skip

    def predicted(self, epoch: int) -> Tensor:
        """Predicts float32[examples], the losses, or their probability of exceeding the threshold.

        If ``optimism`` is above 0, uncertain ones are raised.
        """
        mean, sd = self.posterior(epoch)
        if self.predict == "loss":
            return mean + self.optimism * sd
        sd = sd.clamp(min=_LEAST_SD)
        probability: Tensor = torch.special.ndtr((mean - self.threshold) / sd)
        if self.optimism:
            # Added to the mean within ndtr, c * sd would raise all equally and change no rank.
            _, variance = self._prior()
            prior_sd = math.sqrt(variance * (1 + self.noise))
            probability += self.optimism * sd / max(prior_sd, _LEAST_SD)
        return probability

    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Adds losses to the examples' histories; a full history drops its oldest loss."""
        losses = losses.detach().to(self.values)
        finite = losses.isfinite()
        indices, losses = indices.cpu()[finite], losses[finite]
        epoch = min(epoch, _EPOCH_MOST)
        old = self.values[indices]
        old_losses, old_epochs = old[:, : self.history], old[:, self.history :]
        # An earlier loss of the same epoch is replaced.
        replaced = (old_epochs[:, -1:] == epoch).expand_as(old_losses)
        new_losses = torch.where(replaced, old_losses, old_losses.roll(-1, 1))
        new_epochs = torch.where(replaced, old_epochs, old_epochs.roll(-1, 1))
        new_losses[:, -1], new_epochs[:, -1] = losses, epoch
        self.table.record(indices, torch.cat((new_losses, new_epochs), 1))

    def _prior(self) -> tuple[float, float]:
        """Returns mean and variance of an example's loss, as of those recorded last."""
        latest = self.values[:, self.history - 1]
        latest = latest[~latest.isnan()].double()
        if not len(latest):
            return 0.0, 1.0
        return float(latest.mean()), float(latest.var(correction=0))
