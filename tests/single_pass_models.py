"""Models of the kinds that single-pass promises to train, as small as they can be."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.models.convolutional import basic_layers, resnet
from siftback.lab.models.layers import ModelSpec

N, CLASSES, SIDE, TOKENS, WIDTH, VOCABULARY = 12, 4, 8, 3, 8, 11


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(3 * SIDE**2, 16),
            nn.LayerNorm(16),
            nn.Tanh(),
            nn.Linear(16, CLASSES),
        )


def small_resnet() -> nn.Module:
    """A block with each of the two shortcuts: a trace takes as long as there are layers."""
    return resnet(ModelSpec(4, CLASSES, norm="group"), basic_layers, blocks=(1, 1))


class WideBlock(nn.Module):
    """Pre-activation, with dropout between the convolutions (Zagoruyko & Komodakis 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(2, channels) for _ in range(2))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)
        )
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.convolutions[0](F.relu(self.norms[0](x)))
        return x + self.convolutions[1](self.dropout(F.relu(self.norms[1](inner))))


def wide_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        WideBlock(8),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


class InvertedResidual(nn.Module):
    """Depthwise convolutions between pointwise ones (Sandler et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.InstanceNorm2d(wide, affine=True),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.GroupNorm(4, wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, channels, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def mobilenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        InvertedResidual(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(causal)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 1 + (SIDE // 4) ** 2, WIDTH))
        self.block = Block(causal=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(x), -1, -1), patches), 1) + self.places
        return self.head(self.block(tokens)[:, 0])


class Gpt(nn.Module):
    """A causal language model whose last layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.block = Block(causal=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.places(places)
        return self.head(self.norm(self.block(x)))


class Lstm(nn.Module):
    """An LSTM, cell by cell: Dynamo does not trace `nn.LSTM`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        steps = self.embedding(tokens).unbind(1)
        state = None
        outputs = []
        for step in steps:
            state = self.cell(step, state)
            outputs.append(state[0])
        return self.head(torch.stack(outputs, 1))


class SequenceFirst(nn.Module):
    """A transformer's layer with the batch in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mix = nn.Parameter(torch.randn(TOKENS, TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(0, 1).contiguous()
        flat = F.gelu(self.first(x.reshape(-1, WIDTH)))  # tokens vary slower than examples
        mixed = torch.einsum("st,tnw->snw", self.mix, flat.view(x.shape))
        return self.second(mixed).transpose(0, 1)


class TwoHeads(nn.Module):
    """Dictionaries in and out, with a part that is frozen and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.extra = nn.Linear(3 * SIDE**2, WIDTH), nn.Linear(2, WIDTH)
        self.image.requires_grad_(False)
        self.heads = nn.ModuleDict(
            {"label": nn.Linear(WIDTH, CLASSES), "size": nn.Linear(WIDTH, 1)}
        )
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        self.calls += 1
        features = torch.relu(self.image(batch["image"].flatten(1)) + self.extra(batch["extra"]))
        return {name: head(features) for name, head in self.heads.items()}


class TwoViews(nn.Module):
    """Two views of each image, one after the other in one large batch."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, WIDTH, 3), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.features(torch.cat((x, x.flip(-1)))))
        first, second = self.head(features.mean((2, 3))).chunk(2)
        return first + second


def two_head_losses(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    outputs = model(batch)
    labels = F.cross_entropy(outputs["label"], batch["label"], reduction="none")
    return labels + (outputs["size"].squeeze(1) - batch["extra"].sum(1)).square()


def token_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    flat = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(len(tokens), -1).mean(1)


def image_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


def images(count: int = N) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, SIDE, SIDE), torch.randint(CLASSES, (count,))


def tokens(count: int = N) -> Tensor:
    return torch.randint(VOCABULARY, (count, TOKENS + 1))


def dictionaries(count: int = N) -> dict[str, Tensor]:
    image, label = images(count)
    return {"image": image, "label": label, "extra": torch.rand(count, 2)}


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    batch: Callable[..., Any]
    losses: Callable[[nn.Module, Any], Tensor]


CASES = {
    "mlp": Case(Mlp, images, image_losses),
    "resnet": Case(small_resnet, images, image_losses),
    "wide_resnet": Case(wide_resnet, images, image_losses),
    "mobilenet": Case(mobilenet, images, image_losses),
    "vit": Case(Vit, images, image_losses),
    "gpt": Case(Gpt, tokens, token_losses),
    "lstm": Case(Lstm, tokens, token_losses),
    "sequence_first": Case(SequenceFirst, tokens, token_losses),
    "two_views": Case(TwoViews, images, image_losses),
    "two_heads": Case(TwoHeads, dictionaries, two_head_losses),
}


def make(case: Case, seed: int = 0) -> tuple[nn.Module, Any]:
    """A model and a batch for it, from a seed."""
    torch.manual_seed(seed)
    model, batch = case.make(), case.batch()
    with torch.no_grad():
        case.losses(model, batch)  # lazy layers learn their sizes
    return model, batch
