"""Losses on smaller images."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.arguments import check_number, check_object
from siftback.batches import tree
from siftback.errors import BatchError, ConfigError
from siftback.losses.per_example import Losses, split_pair
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import WrappingScorer

Shrink = Callable[[Tensor], Tensor]


class Downsampled(WrappingScorer):
    """Scores a batch by the losses on downsampled images.

    A forward pass of a convolutional network costs about ``1 / factor^2`` of that on full images,
    unless its last feature maps become too small to use the kernels well. The model must accept
    the smaller size, as networks with a pooling to a fixed size before their last layer do.

    Args:
        factor: Divisor of height and width, more than 1; 2 averages squares of 2x2.
        scorer: Scores the smaller batch; by default `Fresh`.
        inputs: ``inputs(batch, shrink) -> batch``, which returns the batch with its images
            [N, C, H, W] replaced by ``shrink(images)``. By default the images are the first part
            of an (inputs, targets) pair.

    Raises:
        ConfigError: If ``factor`` is out of range. While scoring: if the model does not accept
            the smaller images.
        BatchError: While scoring: if there is no image tensor.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses = pair_losses(nn.functional.mse_loss)
    >>> mean, images = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False)), torch.eye(2)
    >>> _ = nn.init.ones_(mean[1].weight)
    >>> Downsampled(2).score(losses, mean, (images.view(1, 1, 2, 2), torch.zeros(1, 1)), None)
    tensor([0.2500])
    """

    setting_names = ("factor",)

    def __init__(
        self,
        factor: float = 2,
        scorer: Scorer | None = None,
        *,
        inputs: Callable[[Any, Shrink], Any] | None = None,
    ) -> None:
        super().__init__(scorer)
        self.factor = check_number("factor", factor, above=1)
        self._inputs: Callable[[Any, Shrink], Any] = shrink_pair
        if inputs is not None:
            self._inputs = check_object("inputs", inputs, "inputs=fn(batch, shrink)", "__call__")

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Returns one score per example, float32[N], by the inner scorer on the smaller batch."""
        sizes: list[str] = []

        def shrink(images: Tensor) -> Tensor:
            smaller = downsample(images, self.factor)
            sizes.append(f"{list(smaller.shape)} (from {list(images.shape)})")
            return smaller

        smaller = self._inputs(batch, shrink)
        if tree.size(smaller) != tree.size(batch):
            raise BatchError(
                f"inputs= returned {tree.size(smaller)} examples for {tree.size(batch)}: "
                "return the same examples, smaller"
            )
        try:
            return self.scorer.score(losses, model, smaller, indices)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ConfigError(
                f"the {type(model).__name__} fails on images of {', '.join(sizes)}: {error}. "
                "Give a smaller factor, or a model that accepts any size, such as one with "
                "nn.AdaptiveAvgPool2d before its last layer"
            ) from error


def downsample(images: Tensor, factor: float) -> Tensor:
    """Downsamples images.

    Args:
        images: [N, C, H, W].
        factor: Divisor of H and W.

    Returns:
        [N, C, round(H / factor), round(W / factor)]: means of squares if the sizes divide evenly,
        else antialiased bilinear interpolation.

    >>> downsample(torch.arange(4.0).view(1, 1, 2, 2), 2)
    tensor([[[[1.5000]]]])

    Raises:
        BatchError: If they are not such images, or the result would be empty.
    """
    if not isinstance(images, Tensor) or images.ndim != 4:
        kind = f"of {list(images.shape)}" if isinstance(images, Tensor) else f"a {type(images)}"
        raise BatchError(
            f"inputs {kind} are not images [N, C, H, W]: give inputs=fn(batch, shrink), which "
            "shrinks the images of the batch"
        )
    height, width = images.shape[2:]
    smaller = round(height / factor), round(width / factor)
    if min(smaller) < 1:
        raise BatchError(f"factor={factor} leaves nothing of images of {height}x{width}: lower it")
    evenly = height % factor == 0 and width % factor == 0 and factor == int(factor)
    if evenly and images.is_floating_point():
        return F.avg_pool2d(images, int(factor))
    return F.interpolate(images, smaller, mode="bilinear", antialias=True)


def shrink_pair(batch: Any, shrink: Shrink) -> Any:
    """Returns a batch of (images, targets) with smaller images."""
    images, targets = split_pair(batch)
    return shrink(images), targets
