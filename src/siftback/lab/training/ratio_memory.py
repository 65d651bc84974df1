"""Memory that draws by the loss over the mean of all, so that its share follows the losses."""

import torch
from torch import Tensor

from siftback import Epochs, Memory


class RatioMemory(Memory):
    """`Memory` without a share to keep.

    Each example is drawn independently, with probability::

        max(floor, min(1, loss / mean loss))

    While all losses are alike nearly all are drawn; once a few examples have most of the loss,
    little more than these. Examples of which no finite loss is known are drawn, and are not part of
    the mean.

    Args:
        floor: The minimum probability.

    >>> memory = RatioMemory()
    >>> memory.grow(5)
    >>> memory.update(torch.arange(4), torch.tensor([0.01, 0.01, 0.02, 3.96]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(0))
    tensor([0., 0., 1., 1., 1.])
    """

    def __init__(self, floor: float = 0.1) -> None:
        super().__init__(1.0, floor=floor, warmup=Epochs(0))

    def count(self, epoch: int) -> None:  # type: ignore[override]
        """Nobody knows before the draw."""

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """float32[N], 1 for the examples that are drawn."""
        losses = self.values[:, 0].double()
        known = losses.isfinite()
        ratios = torch.where(known, losses / losses[known].mean(), 1.0).nan_to_num(1.0)
        draws = torch.rand(len(losses), generator=generator)
        return (draws < ratios.clamp(min=self.floor)).float()
