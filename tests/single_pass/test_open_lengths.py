"""Sequences of changing lengths: compiled twice, and right at any length."""

from collections import deque

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from siftback import SinglePass, per_example
from siftback.errors import TraceError
from single_pass_models import VOCABULARY, WIDTH

LENGTHS = (7, 4, 8, 3, 8, 12, 5)
each_loss = per_example(F.cross_entropy)


class Attention(nn.Module):
    """Attention under a causal mask, with learned positions and tied weights."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        count, length = ids.shape
        x = self.tokens(ids) + self.positions.weight[:length]
        q, k, v = self.qkv(x).view(count, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return (x @ self.tokens.weight.T).transpose(1, 2)


class Flattened(nn.Module):
    """The tokens of all sequences as the rows of one matrix."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        rows = torch.tanh(self.tokens(ids).flatten(0, 1))
        return self.head(F.layer_norm(rows, (WIDTH,))).view(*ids.shape, -1).transpose(1, 2)


class TimeFirst(Flattened):
    """The same, with the sequences side by side: a row of the matrix is not next to its own."""

    def forward(self, ids):
        rows = torch.tanh(self.tokens(ids.T).reshape(-1, WIDTH))
        return self.head(rows).view(ids.shape[1], len(ids), -1).permute(1, 2, 0)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(
            nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv1d(WIDTH, VOCABULARY, 1)
        )

    def forward(self, ids):
        return self.layers(self.tokens(ids).transpose(1, 2))


def losses_of(model, batch):
    return each_loss(model(batch["ids"]), batch["labels"])


def sequences(count, length):
    ids = torch.randint(VOCABULARY, (count, length))
    valid = torch.arange(length) < torch.randint(1, length + 1, (count, 1))
    return {"ids": ids, "labels": ids.roll(-1, 1).where(valid, -100)}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")
@pytest.mark.parametrize(
    ("network", "backend"),
    [
        (Attention, "graph"),
        (Flattened, "graph"),
        (TimeFirst, "graph"),
        (Convolution, "graph"),
        (Attention, "inductor"),
    ],
)
@pytest.mark.sampled(3)
def test_gradients_are_those_of_the_kept_sequences_at_any_length(network, backend):
    torch.manual_seed(0)
    model = network()
    sift = SinglePass(model, losses=losses_of, keep=1 / 2, backend=backend, check=False)
    for length in LENGTHS:
        batch = sequences(6 if length == 5 else 8, length)  # as many as tokens, once
        model.zero_grad()
        sift(batch).backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        rows = sift.selection.positions
        assert len(rows) == len(batch["ids"]) // 2
        model.zero_grad()
        losses_of(model, {name: part[rows] for name, part in batch.items()}).mean().backward()
        expected = [parameter.grad for parameter in model.parameters()]
        torch.testing.assert_close(found, expected)
    assert sift.stats.compilations == 2  # for the first length, and for any


class Unrolled(Convolution):
    """A step for each token, as in a recurrent network written as a loop."""

    def forward(self, ids):
        state = torch.zeros(len(ids), WIDTH)
        for token in range(ids.shape[1]):
            state = torch.tanh(state + self.tokens(ids[:, token]))
        return state


def test_a_model_that_fixes_lengths_is_an_error_once_there_are_many():
    sift = SinglePass(Unrolled(), F.cross_entropy, keep=1 / 2, check=False)
    targets = torch.randint(WIDTH, (8,))
    batches = (torch.randint(VOCABULARY, (8, size)) for size in range(2, 8))
    with (
        torch._dynamo.config.patch(recompile_limit=3),  # of eight, each takes seconds
        pytest.raises(TraceError, match=r"pad sequences to a few lengths"),
    ):
        deque(sift(batch, targets) for batch in batches)
    assert sift.stats.compilations > 2


class Both(nn.Module):
    """Lengths of two sequences, one of which is before and one after the example."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, one, other):
        table = (one[:, :, None] * other[:, None] * self.weight).transpose(0, 1)
        return table.flatten().tanh().view(one.shape[1], len(one), -1).mean((0, 2))


def test_lengths_on_both_sides_of_the_batch_are_an_error():
    def losses(model, batch):
        return model(*batch)

    sift = SinglePass(Both(), losses=losses, keep=1 / 2, check=False)
    sift((torch.randn(8, 3), torch.randn(8, 5))).backward()
    with pytest.raises(TraceError, match="so its examples cannot be separated"):
        sift((torch.randn(8, 4), torch.randn(8, 6))).backward()
