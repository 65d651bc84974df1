"""The block that transformers here are made of."""

from torch import Tensor, nn
from torch.nn import functional as F


class AttentionBlock(nn.Module):
    """Attention among the tokens, then two layers for each, both after a LayerNorm.

    Args:
        width: Features of a token.
        head: Features of a head; there are as many heads as of so many or more divide the width.
        causal: Whether a token sees none after it.

    Shape:
        float [B, T, width] to the same.
    """

    def __init__(self, width: int, head: int, causal: bool = False) -> None:
        super().__init__()
        most = max(1, width // head)
        self.heads = next(heads for heads in range(most, 0, -1) if width % heads == 0)
        self.causal = causal
        self.before = nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
        """The tokens, changed.

        Args:
            tokens: float [B, T, width].
            seen: bool [B, 1, 1, T], which tokens the others see; all where None.
        """
        parts = self.projections(self.before(tokens)).unflatten(2, (3, self.heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, is_causal=self.causal
        )
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        changed: Tensor = tokens + self.mlp(tokens)
        return changed
