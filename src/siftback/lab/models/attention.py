"""Models with attention, of images and of texts, and a bag of words.

Padding, token `PAD` at the end of a text, is no part of any of them: a padded text has the logits
that it has alone.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.data.data_set import PAD
from siftback.lab.models.layers import ModelSpec

PATCH, VIT_DEPTH, VIT_HEAD = 4, 6, 64
TEXT_HEAD, CLASSIFIER_DEPTH, GPT_DEPTH = 32, 2, 4

# Bigrams share this many embeddings; on average a few hundred of them each have the same one.
BUCKETS = 1 << 14
_FACTOR = 8191

_SPREAD = 0.02  # standard deviation of new embeddings


class AttentionBlock(nn.Module):
    """Attention among the tokens, then two layers for each, both after a LayerNorm.

    Args:
        width: Features of a token.
        head: The fewest features of a head; the number of heads divides the width.
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
        """Returns the tokens, changed.

        Args:
            tokens: float [B, T, width].
            seen: bool [B, 1, 1, T], the tokens that the others see; all where None.
        """
        projected = self.projections(self.before(tokens)).unflatten(2, (3, self.heads, -1))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, is_causal=self.causal
        )
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        return cast(Tensor, tokens + self.mlp(tokens))


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
        self.blocks = nn.Sequential(
            *(AttentionBlock(spec.width, VIT_HEAD) for _ in range(VIT_DEPTH))
        )
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits."""
        patches: Tensor = self.patches(images)
        height, width = patches.shape[2:]
        tokens = patches.flatten(2).transpose(1, 2)
        tokens = tokens + encode_positions(height, width, tokens.shape[2], tokens.device)
        return cast(Tensor, self.head(self.norm(self.blocks(tokens)).mean(1)))


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


class Transformer(nn.Module):
    """A pre-norm encoder that classifies a text by the mean of its tokens.

    Learned embeddings of tokens and places, two blocks of attention, a LayerNorm, and the mean
    over the valid tokens (Vaswani et al. 2017; Xiong et al. 2020 for the order of norms).

    Args:
        spec: Its width is the number of a token's features; a head has 32 of them where that
            divides.

    Shape:
        int64 [B, T], T up to ``spec.length``, to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embeddings = embed(spec.vocabulary, spec.width)
        self.places = embed(spec.length, spec.width)
        self.blocks = nn.ModuleList(
            AttentionBlock(spec.width, TEXT_HEAD) for _ in range(CLASSIFIER_DEPTH)
        )
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits."""
        valid = tokens != PAD
        features = self.embeddings(tokens) + self.places.weight[: tokens.shape[1]]
        seen = valid[:, None, None]
        for block in self.blocks:
            features = block(features, seen)
        return cast(Tensor, self.head(mean_of_valid(self.norm(features), valid)))


class Ngrams(nn.Module):
    """A bag of words and pairs of words: a linear layer on the mean of their embeddings.

    As Joulin et al. 2017: pairs of neighbours share `BUCKETS` embeddings by a hash.

    Args:
        spec: Its width is the embeddings'.

    Shape:
        int64 [B, T] to float [B, classes].
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.words = embed(spec.vocabulary, spec.width)
        self.pairs = embed(BUCKETS, spec.width)
        self.head = nn.Linear(spec.width, spec.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits."""
        valid = tokens != PAD
        first = F.pad(tokens[:, :-1], (1, 0))  # the word before each
        pairs = self.pairs((first * _FACTOR + tokens) % BUCKETS)
        return cast(Tensor, self.head(mean_of_valid(self.words(tokens) + pairs, valid)))


class Gpt(nn.Module):
    """A causal transformer that predicts each next token (Radford et al. 2019).

    Learned embeddings of tokens and places, four pre-norm blocks of causal attention, a LayerNorm
    and a linear layer.

    Args:
        spec: Its width is the number of a token's features; a head has 32 of them where that
            divides.

    Shape:
        int64 [B, T], T up to ``spec.length``, to float [B, T, classes], the classes being tokens.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embeddings = embed(spec.vocabulary, spec.width)
        self.places = embed(spec.length, spec.width)
        self.blocks = nn.Sequential(
            *(AttentionBlock(spec.width, TEXT_HEAD, causal=True) for _ in range(GPT_DEPTH))
        )
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits of the token after each."""
        return cast(Tensor, self.head(self.hidden(tokens)))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Returns the features before the head: float [B, T, width]."""
        features = self.embeddings(tokens) + self.places.weight[: tokens.shape[1]]
        return cast(Tensor, self.norm(self.blocks(features)))


def embed(count: int, width: int) -> nn.Embedding:
    """Returns new embeddings, as in GPT-2."""
    embedding = nn.Embedding(count, width)
    nn.init.normal_(embedding.weight, std=_SPREAD)
    return embedding


def mean_of_valid(features: Tensor, valid: Tensor) -> Tensor:
    """Computes the mean over the valid positions: float [B, T, F] and bool [B, T] to [B, F]."""
    weights = valid / valid.sum(1, keepdim=True)
    return torch.einsum("btf,bt->bf", features, weights.to(features.dtype))
