"""A small vision transformer (Dosovitskiy et al. 2021)."""

import torch
from torch import Tensor, nn

from siftback.lab.models.layers import AttentionBlock, ModelSpec

PATCH, DEPTH, HEAD = 4, 6, 64


class Vit(nn.Module):
    """Patches of 4x4 pixels, six blocks of attention, and the mean over the patches.

    The simplified form of Beyer et al. 2022: fixed sines and cosines encode the patches' positions,
    so that images may have any size, and the mean stands for a token of its own.

    Args:
        spec: Its width is the number of a patch's features; a head has 64 of them where that
            divides.

    Shape:
        float [B, channels, H, W] to float [B, classes]. Rows and columns that fill no patch are
        not seen.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.patches = nn.Conv2d(spec.channels, spec.width, PATCH, PATCH)
        self.blocks = nn.Sequential(*(AttentionBlock(spec.width, HEAD) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits."""
        patches: Tensor = self.patches(images)
        height, width = patches.shape[2:]
        tokens = patches.flatten(2).transpose(1, 2)
        tokens = tokens + encode_positions(height, width, tokens.shape[2], tokens.device)
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


def encode_positions(
    height: int, width: int, features: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Encodes the position of each patch of a grid by sines and cosines of its row and column.

    A quarter of the features each are ``sin(y w_i)``, ``cos(y w_i)``, ``sin(x w_i)`` and
    ``cos(x w_i)``, with ``w_i = 10000^(-i / n)`` for i from 0 to n - 1 (Vaswani et al. 2017,
    section 3.5, in two dimensions).

    Returns:
        float32 [height * width, features].

    >>> encode_positions(1, 2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.0000, 1.0000, 0.8415, 0.5403]])
    """
    quarter = -(-features // 4)
    frequencies = 10_000 ** (-torch.arange(quarter, device=device) / quarter)
    rows = torch.arange(height, device=device)[:, None, None] * frequencies
    columns = torch.arange(width, device=device)[:, None] * frequencies
    waves = [rows.sin(), rows.cos(), columns.sin(), columns.cos()]
    grid = torch.cat([wave.expand(height, width, quarter) for wave in waves], 2)
    return grid[..., :features].flatten(0, 1)
