"""Models of texts: two classifiers, and a language model.

Padding, token `PAD` at the end of a text, is no part of any of them: a padded text has the logits
that it has alone.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.data.data_set import PAD
from siftback.lab.models.layers import AttentionBlock, ModelSpec

HEAD = 32
CLASSIFIER_DEPTH, GPT_DEPTH = 2, 4

# Bigrams share this many embeddings; on average a few hundred of them each have the same one.
BUCKETS = 1 << 14
_FACTOR = 8191

_SPREAD = 0.02  # standard deviation of new embeddings


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
            AttentionBlock(spec.width, HEAD) for _ in range(CLASSIFIER_DEPTH)
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
        logits: Tensor = self.head(mean_of_valid(self.norm(features), valid))
        return logits


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
        logits: Tensor = self.head(mean_of_valid(self.words(tokens) + pairs, valid))
        return logits


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
            *(AttentionBlock(spec.width, HEAD, causal=True) for _ in range(GPT_DEPTH))
        )
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits of the token after each."""
        logits: Tensor = self.head(self.hidden(tokens))
        return logits

    def hidden(self, tokens: Tensor) -> Tensor:
        """Returns the features before the head: float [B, T, width]."""
        features = self.embeddings(tokens) + self.places.weight[: tokens.shape[1]]
        normalised: Tensor = self.norm(self.blocks(features))
        return normalised


def embed(count: int, width: int) -> nn.Embedding:
    """Returns new embeddings, as in GPT-2."""
    embedding = nn.Embedding(count, width)
    nn.init.normal_(embedding.weight, std=_SPREAD)
    return embedding


def mean_of_valid(features: Tensor, valid: Tensor) -> Tensor:
    """Computes the mean over the valid positions: float [B, T, F] and bool [B, T] to [B, F]."""
    weights = valid / valid.sum(1, keepdim=True)
    return torch.einsum("btf,bt->bf", features, weights.to(features.dtype))
