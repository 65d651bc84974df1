"""The loss of each example, as the laboratory trains and scores by it."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.data.batch_stream import Batch

ExampleLosses = Callable[[nn.Module, Batch], Tensor]


def example_losses(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """float[B], the cross-entropy of each example of a batch."""
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none", label_smoothing=smoothing)
