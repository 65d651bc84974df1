"""Losses predicted from those that an example had before.

Jiang et al. 2019, section 3.3, "Using predicted losses". On top the mathematics, pure functions;
below, the scorers that remember what these need.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError
from siftback.loading.score_table import ScoreTable
from siftback.rules.remembered import Periodic, record_average
from siftback.scorers.fresh import Scorer
from siftback.selectors.percentile import is_number

Predict = Literal["loss", "chance"]

_RECENT = 1024  # losses that the threshold is a quantile of: R, as of the paper's CDF_R
_CHUNK = 1 << 16  # examples that are predicted at a time
_MISSING = -1  # in place of an epoch
_LEAST_SD = 1e-12  # where all losses are the same
_EPOCH_MOST = torch.iinfo(torch.int16).max


class Posterior(NamedTuple):
    """What a Gaussian process knows of each example's loss.

    Attributes:
        mean: float32[N]; NaN for an example never observed.
        sd: float32[N], the standard deviation of a new observation, its noise included.
    """

    mean: Tensor
    sd: Tensor


class _Prior(NamedTuple):
    """What is known of an example's loss before any was seen."""

    mean: float
    variance: float


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

    Rasmussen and Williams 2006, eq. 2.25 and 2.26. With an example's observations ``y_i`` of
    epochs ``e_i`` and the kernel ``k(e, e') = exp(-(e - e')^2 / (2 length_scale^2))``::

        K_ij = k(e_i, e_j) + noise * [i = j],   w = K^-1 k(e, epoch)
        mean + sum_i w_i (y_i - mean),   variance * (1 + noise - sum_i w_i k(e_i, epoch))

    The kernel is the same for all, so w depends on the epochs alone: it is solved once for
    examples that were observed in the same epochs, of which there are few, by Cholesky
    decompositions in float64, 65,536 examples at a time.

    Args:
        losses: float[N, h], the observations.
        epochs: int16[N, h], when they were made; -1 where there is none.
        epoch: The epoch to predict.
        length_scale: In epochs, above 0.
        noise: The variance of an observation's noise, in units of ``variance``, above 0.
        mean: The prior's mean, the same for all examples and epochs.
        variance: The prior's variance.

    >>> losses, epochs = torch.tensor([[1.0, 2.0]]), torch.tensor([[0, 1]], dtype=torch.int16)
    >>> posterior(losses, epochs, 2, length_scale=2.0, noise=0.1, mean=1.5, variance=1.0)
    Posterior(mean=tensor([2.1344]), sd=tensor([0.6048]))
    """
    parts = []
    for start in range(0, len(losses), _CHUNK):
        seen = epochs[start : start + _CHUNK]
        groups, examples = _same_rows(seen)
        times, there = seen[examples].double(), seen[examples] != _MISSING
        pairs = there[:, :, None] & there[:, None, :]
        kernel = _kernel(times[:, :, None] - times[:, None, :], length_scale) * pairs
        diagonal = torch.where(there, noise, 1.0)  # 1 for those missing, which nothing weighs
        cross = (_kernel(times - epoch, length_scale) * there)[:, :, None]
        lower = torch.linalg.cholesky(kernel + torch.diag_embed(diagonal))
        weights = torch.cholesky_solve(cross, lower)
        shares = 1 + noise - (weights * cross).sum((1, 2))
        shares[~there.any(1)] = torch.nan
        residuals = losses[start : start + _CHUNK].double() - mean
        means = mean + (weights[:, :, 0][groups] * residuals).sum(1)
        sds = (variance * shares).clamp(min=0).sqrt()[groups]
        parts.append((torch.where(sds.isnan(), torch.nan, means).float(), sds.float()))
    if not parts:
        return Posterior(losses.new_empty(0), losses.new_empty(0))
    return Posterior(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _kernel(distances: Tensor, length_scale: float) -> Tensor:
    return torch.exp(-0.5 * (distances / length_scale) ** 2)


def _same_rows(epochs: Tensor) -> tuple[Tensor, Tensor]:
    """int64[N], which group of equal rows each is of, and int64[groups], an example of each."""
    # A group's number and three epochs of 16 bits fit one int64; much faster than unique(dim=0).
    packed = epochs.long() & 0xFFFF
    groups = torch.zeros(len(epochs), dtype=torch.int64, device=epochs.device)
    for start in range(0, epochs.shape[1], 3):
        for column in packed[:, start : start + 3].unbind(1):
            groups = (groups << 16) | column
        found, groups = torch.unique(groups, return_inverse=True)
    examples = torch.empty_like(found)
    examples[groups] = torch.arange(len(epochs), device=epochs.device)
    return groups, examples


class _Predictor(Periodic):
    """What the predictors share: what is predicted, and the threshold of selection."""

    def __init__(
        self,
        predict: Predict,
        threshold_share: float,
        optimism: float,
        every: int,
        scorer: Scorer | None,
        refresh_from_training: bool,
    ) -> None:
        super().__init__(every, scorer, refresh_from_training)
        if predict not in ("loss", "chance"):
            raise ConfigError(f'predict={predict!r}: give "loss" or "chance"')
        if not is_number(threshold_share) or not 0 < threshold_share < 1:
            raise ConfigError(f"threshold_share={threshold_share!r}: give a share in (0, 1)")
        if not is_number(optimism) or optimism < 0:
            raise ConfigError(f"optimism={optimism!r}: give a number, at least 0")
        self.predict = predict
        self.threshold_share = threshold_share
        self.optimism = optimism
        self._recent = torch.empty(0)

    @property
    def threshold(self) -> float:
        """The loss above which an example would be selected; NaN before any loss was seen."""
        if not len(self._recent):
            return torch.nan
        return float(self._recent.quantile(1 - self.threshold_share))

    def scored(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Remembers the losses of a selection pass; they move the threshold."""
        self._join_recent(scores)
        super().scored(indices, scores, epoch)

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers training's losses; they move the threshold until there was a pass."""
        if self._last_pass is None:
            self._join_recent(losses)
        super().trained(indices, losses, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The recent losses, when the last selection pass was, and the inner scorer's state."""
        return {"recent": self._recent.clone(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        super().load_state_dict(state)
        self._recent = state["recent"].clone()

    def _join_recent(self, losses: Tensor) -> None:
        if self.predict == "chance":
            losses = losses.detach().float().cpu()
            self._recent = torch.cat((self._recent, losses[losses.isfinite()]))[-_RECENT:]


class Ewma(_Predictor):
    """Predicts an example's loss by the average of those it had, older ones counting less.

    Jiang et al. 2019, section 3.3, "exponentially weighted average of historical losses". As in
    `Stale`, selection passes are made every n-th epoch, and the examples of the n - 1 epochs
    after one are drawn before they are read: by this average, which each loss seen moves, one
    after the other::

        average = decay * average + (1 - decay) * loss

    Args:
        decay: In [0, 1); 0 remembers the last loss alone.
        every: n, the epochs from one selection pass to the next, at least 1.
        predict: "loss"; or "chance", the paper's easier problem: the average is of
            ``loss > threshold``, 1 or 0, and so the chance that the loss crosses the threshold.
        threshold_share: Share of the losses above the threshold, in (0, 1): what selection keeps.
            The threshold is that quantile of the last 1,024 losses of selection passes; those
            of training come from chosen examples, and count only before the first pass.
        optimism: c, at least 0: how much is added for an old average, ``c * sd * sqrt(age)``. Age
            is in epochs since the example's last loss, and sd the standard deviation of the
            averages over all examples; a loss that walks at random gets less sure in this way.
            By default 0, as a selection pass scores every example anew; give more, such as 1,
            where those are rare.
        scorer: What makes the selection passes; by default a `Fresh` forward.
        refresh_from_training: Whether the losses of training, which ``loader.remember(losses)``
            must then be told, are averaged too.
        table: Where averages are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> ewma = Ewma(decay=0.5)
    >>> ewma.grow(3)
    >>> ewma.scored(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]), epoch=0)
    >>> ewma.trained(torch.tensor([1]), torch.tensor([1.0]), epoch=0)
    >>> ewma.predicted(epoch=1)
    tensor([1.0000, 1.5000,    nan])
    """

    def __init__(
        self,
        decay: float = 0.5,
        every: int = 3,
        *,
        predict: Predict = "loss",
        threshold_share: float = 1 / 3,
        optimism: float = 0.0,
        scorer: Scorer | None = None,
        refresh_from_training: bool = True,
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(predict, threshold_share, optimism, every, scorer, refresh_from_training)
        if not is_number(decay) or not 0 <= decay < 1:
            raise ConfigError(f"decay={decay!r}: give a number in [0, 1)")
        self.decay = decay
        self.table = ScoreTable() if table is None else table  # an empty one is false

    def grow(self, examples: int) -> None:
        """See `Remembering.grow`."""
        self.table.grow(examples)

    def predicted(self, epoch: int) -> Tensor:
        """The average of each, raised with its age where ``optimism`` says so."""
        scores = self.table.scores()
        finite = scores[scores.isfinite()]
        if self.optimism and len(finite) > 1:
            ages = self.table.ages(epoch).clamp_(min=0).float()
            scores += self.optimism * finite.std() * ages.sqrt()
        return scores

    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Averages the losses, or whether they cross the threshold, into the table."""
        if self.predict == "chance":
            losses = (~(losses <= self.threshold)).float()  # one that is no number crosses it
        record_average(self.table, indices, losses, epoch, self.decay)

    def state_dict(self) -> dict[str, Any]:
        """The table, and what the threshold and the passes depend on."""
        return {"table": self.table.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        self.table.load_state_dict(state["table"])
        super().load_state_dict(state)


class GaussianProcess(_Predictor):
    """Predicts an example's loss from its last few by a Gaussian process over epochs.

    Jiang et al. 2019, section 3.3, "using historical losses to train a Gaussian process". As in
    `Stale`, selection passes are made every n-th epoch, and the examples of the n - 1 epochs
    after one are drawn before they are read: by the loss that is predicted for the epoch.

    One squared-exponential kernel over epochs is shared by all examples, see `posterior`. The
    prior's mean and variance are those of all examples' latest losses, so that they follow
    training; what an example lost long ago fades to that mean, and gets as unsure as if it had
    never been seen. Of the losses an example has in one epoch, the last one counts. One that is
    not finite is no observation.

    Args:
        length_scale: Epochs over which losses go together, above 0.
        noise: The variance of a single loss's noise (of dropout, of augmentation, of the batch's
            company) in units of the prior's variance, above 0.
        every: n, the epochs from one selection pass to the next, at least 1.
        history: How many losses of an example are kept, at least 1: 6 bytes each, on the CPU.
        predict: "loss"; or "chance", the paper's easier problem: the chance that the loss
            crosses the threshold, ``Phi((mean - threshold) / sd)``.
        threshold_share: Share of the losses above the threshold, in (0, 1): what selection keeps.
            The threshold is that quantile of the last 1,024 losses of selection passes; those
            of training come from chosen examples, and count only before the first pass.
        optimism: c, at least 0: how much is added for what is unsure, ``mean + c * sd``. To a
            chance ``c * sd / (sd without observations)`` is added. By default 0, as a selection
            pass scores every example anew; give more, such as 1, where those are rare.
        scorer: What makes the selection passes; by default a `Fresh` forward.
        refresh_from_training: Whether the losses of training, which ``loader.remember(losses)``
            must then be told, are observations too.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> process = GaussianProcess(length_scale=4.0, noise=0.1)
    >>> process.grow(3)
    >>> process.scored(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]), epoch=0)
    >>> process.scored(torch.tensor([0, 1]), torch.tensor([1.5, 2.5]), epoch=1)
    >>> process.predicted(epoch=2)
    tensor([1.4947, 2.5053,    nan])
    """

    def __init__(
        self,
        length_scale: float = 8.0,
        noise: float = 0.3,
        every: int = 3,
        history: int = 6,
        *,
        predict: Predict = "loss",
        threshold_share: float = 1 / 3,
        optimism: float = 0.0,
        scorer: Scorer | None = None,
        refresh_from_training: bool = True,
    ) -> None:
        super().__init__(predict, threshold_share, optimism, every, scorer, refresh_from_training)
        for name, value in (("length_scale", length_scale), ("noise", noise)):
            if not is_number(value) or value <= 0:
                raise ConfigError(f"{name}={value!r}: give a number above 0")
        if not isinstance(history, int) or isinstance(history, bool) or history < 1:
            raise ConfigError(f"history={history!r}: give a whole number of losses, at least 1")
        self.length_scale, self.noise, self.history = length_scale, noise, history
        # Oldest first, the last in the last place; those missing are on the left.
        self._losses = torch.empty(0, history)
        self._epochs = torch.empty(0, history, dtype=torch.int16)

    def grow(self, examples: int) -> None:
        """See `Remembering.grow`."""
        more = examples - len(self._losses)
        if more > 0:
            self._losses = torch.cat((self._losses, torch.zeros(more, self.history)))
            missing = torch.full((more, self.history), _MISSING, dtype=torch.int16)
            self._epochs = torch.cat((self._epochs, missing))

    def posterior(self, epoch: int) -> Posterior:
        """What is known of each example's loss in an epoch."""
        mean, variance = self._prior()
        return posterior(
            self._losses, self._epochs, min(epoch, _EPOCH_MOST),
            length_scale=self.length_scale, noise=self.noise, mean=mean, variance=variance,
        )  # fmt: skip

    def predicted(self, epoch: int) -> Tensor:
        """The loss of each, or its chance to cross the threshold; raised for what is unsure."""
        mean, sd = self.posterior(epoch)
        if self.predict == "loss":
            return mean + self.optimism * sd
        sd = sd.clamp(min=_LEAST_SD)
        chance: Tensor = torch.special.ndtr((mean - self.threshold) / sd)
        if self.optimism:
            # In the chance itself a mean of c * sd more would move all alike, and no rank.
            prior_sd = math.sqrt(self._prior().variance * (1 + self.noise))
            chance += self.optimism * sd / max(prior_sd, _LEAST_SD)
        return chance

    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Adds to the examples' histories; the oldest loss leaves a full one."""
        losses = losses.detach().to(self._losses)
        finite = losses.isfinite()
        indices, losses = indices.cpu()[finite], losses[finite]
        self._append(indices, losses, min(epoch, _EPOCH_MOST))

    def state_dict(self) -> dict[str, Any]:
        """The histories, and what the threshold and the passes depend on."""
        histories = {"losses": self._losses.clone(), "epochs": self._epochs.clone()}
        return {**histories, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state.

        Raises:
            StateError: Where it has histories of another length, or of fewer examples.
        """
        examples, history = state["losses"].shape
        if history != self.history or examples < len(self._losses):
            raise StateError(
                f"{examples} histories of {history} losses do not fit {len(self._losses)} of "
                f"{self.history}: resume with the data set and the history= it was saved with"
            )
        super().load_state_dict(state)
        self._losses, self._epochs = state["losses"].clone(), state["epochs"].clone()

    def _prior(self) -> _Prior:
        latest = self._losses[:, -1][self._epochs[:, -1] != _MISSING].double()
        if not len(latest):
            return _Prior(0.0, 1.0)
        return _Prior(float(latest.mean()), float(latest.var(correction=0)))

    def _append(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        old_losses, old_epochs = self._losses[indices], self._epochs[indices]
        # An example that this epoch has a loss of already has that one replaced.
        again = (old_epochs[:, -1:] == epoch).expand_as(old_losses)
        new_losses = torch.where(again, old_losses, old_losses.roll(-1, 1))
        new_epochs = torch.where(again, old_epochs, old_epochs.roll(-1, 1))
        new_losses[:, -1], new_epochs[:, -1] = losses, epoch
        self._losses[indices], self._epochs[indices] = new_losses, new_epochs
