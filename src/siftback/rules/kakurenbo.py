"""KAKURENBO: hides examples that are predicted correctly and confidently."""

import torch
from torch import Tensor

from siftback.arguments import check_share
from siftback.errors import ConfigError
from siftback.rules.rule import LastLossRule, check_predictions, round_down, weigh_known
from siftback.schedule import Epochs, Moment, Share
from siftback.tables.score_table import ScoreTable


def hidden_examples(
    losses: Tensor, correct: Tensor, confidence: Tensor, ratio: float, threshold: float
) -> Tensor:
    """Returns the examples that an epoch hides.

    Nguyen et al. 2023: the share F of lowest loss, except those that were not predicted correctly
    with a confidence of at least tau, which move back.

    Args:
        losses: float32[N].
        correct: bool[N], whether each was predicted correctly.
        confidence: float32[N], the probability of each prediction.
        ratio: F, the largest share to hide, rounded down to examples.
        threshold: tau.

    Returns:
        bool[N]. Among equal losses, earlier examples count as lower.

    >>> losses, right = torch.tensor([0.1, 0.2, 0.3, 2.0]), torch.tensor([True, False, True, True])
    >>> hidden_examples(losses, right, torch.tensor([0.9, 0.8, 0.6, 0.9]), 0.75, 0.7)
    tensor([ True, False, False, False])
    """
    lowest = torch.zeros_like(losses, dtype=torch.bool)
    lowest[losses.argsort(stable=True)[: round_down(ratio, len(losses))]] = True
    return lowest & correct & (confidence >= threshold)


class Kakurenbo(LastLossRule):
    """KAKURENBO: hides the examples of lowest loss that are predicted correctly and confidently.

    Nguyen et al. 2023, *KAKURENBO: Adaptively Hiding Samples in Deep Neural Network Training*. At
    the start of each epoch the share F of lowest remembered loss is hidden, except those that
    were predicted wrongly, or with a confidence below tau, which move back; see
    `hidden_examples`. As there are fewer steps, the learning rate is scaled by
    ``1 / (1 - hidden share)``: the loop multiplies it by ``loader.lr_scale``, which is 1 in epochs
    that hide nothing.

    The training loop passes its predictions::

        for x, y in loader:
            outputs = model(x)
            losses = F.cross_entropy(outputs, y, reduction="none")
            confidence, guess = outputs.softmax(1).max(1)
            loss = loader.loss(losses, correct=guess == y, confidence=confidence)
            for group in optimizer.param_groups:
                group["lr"] = scheduled_rate * loader.lr_scale
            loss.backward()

    In the paper, hidden examples are forwarded at the end of each epoch, so that their losses are
    those of the current model. Here the training loop may do that, with ``shorter_epochs=True``,
    by which an epoch is one pass: ``loader.left_out`` gives their indices, and
    ``loader.record(losses, indices=..., ...)`` records the losses of a forward pass in eval mode.
    Ideal cost per example of an epoch with share s trained on, in forwards (1) and
    backwards (2): ``1 + 2s`` with those passes; 3s without, and a hidden example then comes back
    only when other losses fall below its own. The number of examples hidden depends on the
    predictions, and is not known in advance.

    Args:
        ratio: F, the largest share to hide, in [0, 1).
        threshold: tau, the minimum confidence, in [0, 1].
        warmup: How long all examples are trained on at first. The first epoch is always whole, as
            no losses are known yet.
        tail: How long all examples are trained on at the end. (The paper lowers F in steps
            instead.)
        table: Stores losses, correctness and confidence, such as a `ScoreTable` in a file, of
            three columns; by default in memory, 12 bytes per example.

    Raises:
        ConfigError: If one of them is out of range.

    >>> hiding = Kakurenbo(ratio=0.5)
    >>> hiding.grow(4)
    >>> losses = torch.tensor([0.1, 0.2, 1.5])
    >>> right, sure = torch.tensor([True, True, False]), torch.tensor([0.9, 0.6, 0.4])
    >>> hiding.update(torch.arange(3), losses, epoch=0, correct=right, confidence=sure)
    >>> weights = hiding.draw(1, torch.Generator())
    >>> weights, round(hiding.lr_scale(weights), 4)
    (tensor([0., 1., 1., 1.]), 1.3333)
    """

    needs_predictions = True
    setting_names = ("ratio", "threshold")

    def __init__(
        self,
        ratio: float = 0.3,
        threshold: float = 0.7,
        *,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        # Loss, correctness and confidence.
        super().__init__(table, columns=3, warmup=warmup, tail=tail)
        self.ratio = check_share("ratio", ratio)
        self.threshold = check_share("threshold", threshold, most=True)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns 0 for hidden examples, see `hidden_examples`."""
        losses, correct, confidence = self.values.unbind(1)
        known = ~losses.isnan()
        right, confidence = correct[known] == 1, confidence[known]

        def weigh(losses: Tensor) -> Tensor:
            hidden = hidden_examples(losses, right, confidence, self.ratio, self.threshold)
            return (~hidden).float()

        return weigh_known(losses, weigh)

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
        **_: Tensor | None,
    ) -> None:
        """Remembers the losses, correctness and confidence.

        Raises:
            ConfigError: If ``correct`` or ``confidence`` is missing.
            LossError: If they are not bool[n] and probabilities, float[n].
        """
        if correct is None or confidence is None:
            missing = "correct" if correct is None else "confidence"
            raise ConfigError(
                f"Kakurenbo was passed no {missing}=: call loader.loss(losses, correct=guess == y, "
                "confidence=confidence), with confidence, guess = outputs.softmax(1).max(1)"
            )
        check_predictions(correct, confidence, losses)
        columns = [column.detach().to(self.values) for column in (losses, correct, confidence)]
        self.table.record(indices, torch.stack(columns, 1))

    def lr_scale(self, weights: Tensor) -> float:
        """Returns the examples divided by those drawn: ``1 / (1 - hidden share)``."""
        return len(weights) / max(int((weights != 0).sum()), 1)
