"""Two small transformers, as plain as they come: for images, and for text."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, DEPTH, HEADS = 192, 6, 6


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes the tokens of each example."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a wide layer, each behind a norm and beside a shortcut."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(causal)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The tokens, changed."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Vit(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021) on patches of 4x4 pixels of 32x32."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 65, WIDTH))
        self.blocks = nn.Sequential(*(Block(causal=False) for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, 32, 32] to logits [N, classes]."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(images), -1, -1), patches), 1) + self.places
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


class Gpt(nn.Module):
    """A causal language model with its embedding as its last layer (Radford et al. 2019)."""

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.Sequential(*(Block(causal=True) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, vocabulary]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.embedding(tokens) + self.places(places)))
        return F.linear(x, self.embedding.weight)
