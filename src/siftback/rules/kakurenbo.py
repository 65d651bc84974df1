"""KAKURENBO: hide what is learnt for sure."""

from typing import Any

import torch
from torch import Tensor

from siftback.loading.score_table import ScoreTable
from siftback.rules.every_epoch import ByLastLoss, Columns, checked_share, count_of
from siftback.schedule import Moment


def hidden_examples(
    losses: Tensor, correct: Tensor, confidence: Tensor, ratio: float, threshold: float
) -> Tensor:
    """Which examples an epoch hides.

    Nguyen et al. 2023: the share F of lowest loss is to be hidden, and of those move
    back the ones that were not predicted right with a confidence of tau or more.

    Args:
        losses: float32[N].
        correct: bool[N], whether each was predicted right.
        confidence: float32[N], the probability of what was predicted.
        ratio: F, the largest share to hide, rounded down to examples.
        threshold: tau.

    Returns:
        bool[N]. Of equal losses the first ones are the lowest.

    >>> losses, right = torch.tensor([0.1, 0.2, 0.3, 2.0]), torch.tensor([True, False, True, True])
    >>> hidden_examples(losses, right, torch.tensor([0.9, 0.8, 0.6, 0.9]), 0.75, 0.7)
    tensor([ True, False, False, False])
    """
    lowest = torch.zeros_like(losses, dtype=torch.bool)
    lowest[losses.argsort(stable=True)[: count_of(ratio, len(losses))]] = True
    return lowest & correct & (confidence >= threshold)


class Kakurenbo(ByLastLoss):
    """KAKURENBO: hides the examples of lowest loss that are confidently right.

    Nguyen et al. 2023, *KAKURENBO: Adaptively Hiding Samples in Deep Neural Network Training*. At
    the start of each epoch the share F of lowest remembered loss is hidden, but for those that
    were not predicted right, or with a confidence below tau, which move back; see
    `hidden_examples`. As there are fewer steps, the learning rate is scaled by
    ``1 / (1 - hidden share)``: the loop multiplies with ``loader.lr_scale``, which is 1 in epochs
    that hide nothing.

    The training loop tells how its predictions were::

        for x, y in loader:
            outputs = model(x)
            losses = F.cross_entropy(outputs, y, reduction="none")
            confidence, guess = outputs.softmax(1).max(1)
            loader.remember(losses, correct=guess == y, confidence=confidence)
            for group in optimizer.param_groups:
                group["lr"] = scheduled_rate * loader.lr_scale
            losses.mean().backward()

    In the paper, hidden examples are forwarded at the end of their epoch, so that what is
    remembered of them is of the model as it then is. Here that is the loop's choice: ``loader
    .left_out`` says who they were, and ``loader.remember(losses, indices=..., ...)`` takes what a
    forward pass in eval mode finds. Ideal cost of an epoch with share s trained on, in forwards (1)
    and backwards (2): ``1 + 2s`` with those passes, 3s without, where a hidden example comes back
    only as others' losses fall below what it had.

    Args:
        ratio: F, the largest share to hide, in [0, 1).
        threshold: tau, the least confidence, in [0, 1].
        warmup: How long everything is trained on at first. Nothing is known in the first epoch,
            so that one is whole in any case.
        tail: The last part of training in which everything is trained on, a share. (The paper
            lowers F in steps instead.)
        table: Where losses are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example. Correctness and confidence take 8 more.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> hiding = Kakurenbo(ratio=0.5)
    >>> hiding.grow(4)
    >>> hiding.trained(torch.arange(3), torch.tensor([0.1, 0.2, 1.5]), epoch=0)
    >>> right, sure = torch.tensor([True, True, False]), torch.tensor([0.9, 0.6, 0.4])
    >>> hiding.judged(torch.arange(3), right, sure)
    >>> hiding.draw(1, torch.Generator())
    tensor([0., 1., 1., 1.])
    """

    judges = True
    scales_rate = True

    def __init__(
        self,
        ratio: float = 0.3,
        threshold: float = 0.7,
        *,
        warmup: Moment = 0,
        tail: float = 0.0,
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, warmup, tail)
        self.ratio = checked_share("ratio", ratio)
        self.threshold = checked_share("threshold", threshold, most=True)
        self._judgements = Columns(2)  # whether it was right, and how confidently

    def grow(self, examples: int) -> None:
        """See `Remembering.grow`."""
        super().grow(examples)
        self._judgements.grow(len(self.table))  # a table in a file may hold more

    def judged(self, indices: Tensor, correct: Tensor, confidence: Tensor) -> None:
        """Remembers what was right, and how confidently."""
        both = torch.stack((correct.float(), confidence.float()), 1)
        self._judgements.values[indices.cpu()] = both.cpu()

    def weigh(self, scores: Tensor, known: Tensor, generator: torch.Generator) -> Tensor:
        """0 for the hidden, see `hidden_examples`; what was never judged counts as wrong."""
        correct, confidence = self._judgements.values.to(scores.device)[known].unbind(1)
        hidden = hidden_examples(scores, correct == 1, confidence, self.ratio, self.threshold)
        return (~hidden).float()

    def state_dict(self) -> dict[str, Any]:
        """The losses and the judgements."""
        return {"judgements": self._judgements.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        super().load_state_dict(state)
        self._judgements.load_state_dict(state["judgements"])
