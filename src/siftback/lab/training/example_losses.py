"""The loss of each example, as the laboratory trains and scores by it."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.data.data_set import IGNORED
from siftback.lab.data.stream import Batch

ExampleLosses = Callable[[nn.Module, Batch], Tensor]
Weigh = Callable[[Tensor, Tensor | None], Tensor]


def example_losses(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """float[B], the cross-entropy of each example of a batch.

    Of a language model's windows it is the mean over the valid tokens, in nats.
    """
    inputs, labels = batch
    return losses_of(model(inputs), labels, smoothing)


def losses_of(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """float[B], the cross-entropy of each example.

    Args:
        logits: float [B, K] or [B, T, K].
        labels: int64 [B] or [B, T], `IGNORED` where there is none.
        smoothing: Share of each target that is spread over all classes.
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return token_losses(logits, labels, smoothing).sum(1) / (labels != IGNORED).sum(1)


def token_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """float[B, T], the cross-entropy of each token, 0 where there is no label."""
    each = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    return each.view(labels.shape)


def mean_loss(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """The mean of the losses of the examples of a batch."""
    inputs, labels = batch
    logits = model(inputs)
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    return losses_of(logits, labels, smoothing).mean()


def weighted_example_loss(weigh: Weigh, logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the examples of a batch of each one's loss times its weight.

    Args:
        weigh: From losses and a mask to their weights.
        logits: float [B, K] or [B, T, K].
        labels: int64 [B] or [B, T].
    """
    losses = losses_of(logits, labels)
    return (losses * weigh(losses, None)).mean()


def weighted_token_loss(weigh: Weigh, logits: Tensor, labels: Tensor) -> Tensor:
    """As `weighted_example_loss`, but of a language model the mean over the tokens of a batch."""
    if labels.ndim == 1:
        return weighted_example_loss(weigh, logits, labels)
    losses, mask = token_losses(logits, labels), labels != IGNORED
    return (losses * weigh(losses, mask)).sum() / mask.sum()
