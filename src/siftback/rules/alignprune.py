"""AlignPrune: prunes by how the losses of an example go along with those of the others."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_share
from siftback.errors import ConfigError
from siftback.rules.base_weights import labels_tensor
from siftback.rules.infobatch import infobatch_weights
from siftback.rules.rule import EpochRule, weigh_known
from siftback.schedule import Epochs, Moment, Share
from siftback.state import tensor_checksum
from siftback.tables.score_table import ScoreTable

_LEAST = 3  # losses of an example; of two the correlation is 1 or -1, whatever they are


def alignment_scores(losses: Tensor, reference: Tensor) -> Tensor:
    """Computes the Pearson correlation of each example's losses with those of a reference.

    Qin et al. 2026, the Dynamic Alignment Score: ``rho(v_i, v_ref)`` over the last n passes.

    Args:
        losses: float32[N, n], v; NaN where an example was not trained on in a pass.
        reference: float32[n], v_ref.

    Returns:
        float32[N]; NaN for an example with fewer than three losses, or with equal ones.

    >>> losses = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]])
    >>> alignment_scores(losses, torch.tensor([5.0, 3.0, 1.0]))
    tensor([ 1., -1., nan])
    """
    wide, target = losses.double(), reference.double().expand(losses.shape)
    is_known = wide.isfinite() & target.isfinite()
    number = is_known.sum(1, keepdim=True)

    def centred(values: Tensor) -> Tensor:
        values = values.masked_fill(~is_known, 0.0)
        return (values - values.sum(1, keepdim=True) / number).masked_fill(~is_known, 0.0)

    low = wide.masked_fill(~is_known, torch.inf).amin(1)
    high = wide.masked_fill(~is_known, -torch.inf).amax(1)
    own, other = centred(wide), centred(target)
    norms = own.square().sum(1).sqrt() * other.square().sum(1).sqrt()
    score: Tensor = (own * other).sum(1) / norms
    return score.masked_fill((number.squeeze(1) < _LEAST) | (low == high), torch.nan).float()


class AlignPrune(EpochRule):
    """AlignPrune: prunes by how the losses of an example go along with those of the others.

    Qin et al. 2026, *Beyond Loss Values: Robust Dynamic Pruning via Loss Trajectory Alignment*
    (arXiv:2604.07306): `InfoBatch` with `alignment_scores` in place of losses. The losses of a
    wrong label do not fall with those of right ones, so that its score is low: an example below
    the mean score is pruned with probability r, and one below it that remains has the weight
    1 / (1 - r), see `infobatch_weights`. Until ``window`` passes are done draws go by losses,
    as those of InfoBatch. Ideal cost per example of an epoch in which a share b of the examples was
    below the mean, in forwards (1) and backwards (2): ``3 (1 - r b)``. Examples are drawn
    independently, so their number is not known in advance.

    The paper itself could not be read, but a summary of it and its reviews; its code was not
    found. The paper's reference is a small set with labels known to be right, forwarded apart. Here
    it is the mean over examples of the training set, in each pass over those that were trained on:
    all by default, or those of ``reference``. An example with fewer than three losses within the
    window, or equal ones, is trained on: our reading, as is that r and the last epochs on
    everything are InfoBatch's.

    Args:
        ratio: r, in [0, 1).
        window: n, the passes that are compared, at least 3; by default the paper's.
        delta: The share of training, in (0, 1], after which all examples are trained on.
        reference: int[m], the indices of examples whose labels are known to be right; None takes
            all examples.
        warmup: How long all examples are trained on at first.
        table: Stores the losses, such as a `ScoreTable` in a file, of ``window`` columns; by
            default in memory, 4 bytes per loss.

    Raises:
        ConfigError: If one of them is out of range.

    >>> rule = AlignPrune(ratio=0.9, window=3)
    >>> rule.grow(4)
    >>> for epoch, losses in enumerate([[3.0, 2.0, 1.0, 4.0], [2.0, 1.5, 1.5, 3.0], [1, 1, 2, 2]]):
    ...     rule.update(torch.arange(4), torch.tensor(losses), epoch)
    >>> rule.scores(3)
    tensor([ 1.,  1., -1.,  1.])
    >>> rule.draw(3, torch.Generator().manual_seed(0))
    tensor([1., 1., 0., 1.])
    """

    reweights = True
    updates_by_example = True
    setting_names = ("ratio", "window", "delta")

    def __init__(
        self,
        ratio: float = 0.5,
        window: int = 10,
        delta: float = 0.875,
        *,
        reference: Tensor | Sequence[int] | None = None,
        warmup: Moment = Epochs(0),
        table: ScoreTable | None = None,
    ) -> None:
        self.ratio = check_share("ratio", ratio)
        self.window = check_integer("window", window, _LEAST)
        self.delta = check_share("delta", delta, least=False, most=True)
        super().__init__(table, columns=self.window, warmup=warmup, tail=Share(1 - self.delta))
        self.reference = None if reference is None else labels_tensor("reference", reference)

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        if self.reference is None:
            return super().settings()
        return super().settings() | {"reference": f"crc32 {tensor_checksum(self.reference):08x}"}

    def grow(self, examples: int) -> None:
        """Makes room for a number of examples, which has to be known with a reference."""
        if isinstance(self.reference, Tensor) and not examples:
            raise ConfigError("reference= has indices: give a data set whose length is known")
        super().grow(examples)

    def scores(self, epoch: int) -> Tensor:
        """Returns float32[examples]: `alignment_scores`, or the last losses in the first passes."""
        last = epoch % self.window  # the column of the oldest pass, which this one will overwrite
        if epoch < self.window:
            losses = self.values.roll(-last, 1)  # the latest pass comes last
            latest = (~losses.isnan() * torch.arange(1, self.window + 1)).argmax(1, keepdim=True)
            return losses.gather(1, latest).squeeze(1)
        means = self.table.values[: self._examples]
        if self.reference is not None:
            means = means[self.reference]
        means = means.double().masked_fill(~means.isfinite(), torch.nan).nanmean(0)
        return alignment_scores(self.values, means)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns `infobatch_weights` of the scores, and makes room for the losses of the pass.

        Raises:
            ConfigError: If the reference is not of indices of examples.
        """
        for index in [] if self.reference is None else self.reference.aminmax():
            if not 0 <= int(index) < self._examples:
                raise ConfigError(
                    f"reference= has {int(index)}, of {self._examples} examples: give their indices"
                )
        weights = weigh_known(
            self.scores(epoch), lambda scores: infobatch_weights(scores, self.ratio, generator)
        )
        rows = self.drawn_among
        self.table.record(rows, torch.full((len(rows),), torch.nan), epoch % self.window)
        return weights

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Tensor | None) -> None:
        """Remembers the losses of a pass."""
        self.table.record(indices, losses, epoch % self.window)
