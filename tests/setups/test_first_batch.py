"""The first batch shows mistakes that showed after the warm-up before, and changes nothing else."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from siftback import (
    Ema,
    Epochs,
    Fresh,
    GradientBound,
    Indexed,
    InfoBatch,
    Memory,
    Pool,
    Reduced,
    Schedule,
    Scorer,
    SelectiveLoader,
    Stale,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.contrib import Ewma
from siftback.errors import BatchError, ConfigError, LossError
from toys import assert_same, network, optimizer_of, shuffled

SELECTING = {
    "keep": lambda: {"keep": 0.5},
    "exact": lambda: {"keep": 0.5, "exact": True},
    "schedule": lambda: {"keep": 0.5, "schedule": Schedule(), "epochs": 3},
    "stale": lambda: {"memory": Stale(0.5), "epochs": 4},
    "ewma": lambda: {"memory": Ewma(0.5), "epochs": 4},
}


class Outputs(nn.Module):
    """Of another kind than a tensor."""

    def __init__(self, make):
        super().__init__()
        self.make, self.layer = make, nn.Linear(5, 3)

    def forward(self, x):
        return self.make(self.layer(x))


def dicts(batch_size=8):
    rows = [{"x": x, "y": y} for x, y in shuffled().dataset]
    return DataLoader(rows, batch_size)


def triplets():
    return DataLoader(TensorDataset(*[torch.randn(44, 5)] * 3), 8)


def labelled(labels):
    return DataLoader(TensorDataset(torch.randn(44, 5), labels), 8)


PAIR = {"loss_fn": F.cross_entropy}
MISTAKES = {
    "a reducing loss": (
        {"loss_fn": lambda outputs, targets: F.cross_entropy(outputs, targets)},
        LossError, "the loss is reduced to one number",
    ),
    "a reducing loss of any batch": (
        {"losses": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])},
        LossError, "the loss is reduced to one number",
    ),
    "losses of a part": (
        {"losses": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1],
                                                        reduction="none")[:5]},
        LossError, r"losses=float32\[5\]: give .*float\[8\]",
    ),
    "losses without a reduction over positions": (
        {"losses": lambda model, batch: model(batch[0]) ** 2}, LossError, r"float32\[8, 3\]: give",
    ),
    "integers": (
        {"losses": lambda model, batch: model(batch[0]).argmax(1)}, LossError, "losses=int64",
    ),
    "a list": (
        {"losses": lambda model, batch: [0.0] * 8}, LossError, r"losses=\[0.0, .*: give a dense",
    ),
    "a model of a tuple": ({"model": Outputs(lambda y: (y, y)), **PAIR}, Exception, "."),
    "a model of a dict": ({"model": Outputs(lambda y: {"logits": y}), **PAIR}, Exception, "."),
    "a dict for a batch": (
        {"loader": dicts(), **PAIR}, BatchError, r"a dict of 2 parts is not an \(inputs, targets\)",
    ),
    "a triplet": ({"loader": triplets(), **PAIR}, BatchError, r"of 3 parts is not an \(inputs, t"),
    "float targets": ({"loader": labelled(torch.rand(44)), **PAIR}, RuntimeError, "."),
    "targets of another width": (
        {"loader": labelled(torch.rand(44, 4)), **PAIR}, Exception, ".",
    ),
    "classes that are not there": (
        {"loader": labelled(torch.full((44,), 9)), **PAIR}, IndexError, ".",
    ),
    "pairs of examples": (
        {"loader": labelled(torch.rand(44, 1)), "model": Outputs(lambda y: y[:, 0]),
         "loss_fn": F.mse_loss}, LossError, "were broadcast to losses of shape",
    ),
    "a wrong width": ({"model": nn.Linear(7, 3), **PAIR}, RuntimeError, "shapes cannot be multip"),
    "another type": ({"model": nn.Linear(5, 3).double(), **PAIR}, RuntimeError, "dtype"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@pytest.mark.parametrize("selecting", SELECTING.values(), ids=SELECTING)
@pytest.mark.parametrize(("arguments", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_shows_at_the_first_batch(arguments, error, message, selecting):
    arguments = {"loader": shuffled(), "model": nn.Linear(5, 3), **arguments}
    loader = SelectiveLoader(**arguments, **selecting())
    for _ in range(2):  # as where the cell of a notebook is run again
        with pytest.raises(error, match=message) as caught:
            next(iter(loader))
        assert any(
            "while batch 0 of epoch 0 was scored, once" in note for note in caught.value.__notes__
        )
        assert loader.stats.released == loader.stats.scored == 0


def padded(rows):
    return {"ids": pad_sequence([torch.ones(1 + row // 8) for row in rows], batch_first=True),
            "row": torch.tensor(rows)}  # fmt: skip


JOINING = {
    "keep": lambda loader, **more: SelectiveLoader(
        loader, nn.Identity(), losses=lambda model, batch: batch["row"].float(), keep=0.5, **more
    ),
    "chance": lambda loader, **more: SelectiveLoader(loader, selector=Uniform(keep=0.5), **more),
    "stale": lambda loader, **more: SelectiveLoader(
        loader, nn.Identity(), losses=lambda model, batch: batch["row"].float(),
        memory=Stale(0.5), epochs=4, **more,
    ),
    "memory of a stream": lambda loader, **more: SelectiveLoader(
        Indexed(list(loader), index_of=lambda batch: batch["row"]), memory=Memory(), epochs=4,
        **{"pool": Pool(8)} | more,
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", JOINING.values(), ids=JOINING)
def test_batches_of_several_lengths_need_a_pad_from_the_second_on(make):
    plain = DataLoader(range(44), 8, collate_fn=padded)
    loader = make(plain)
    with pytest.raises(BatchError, match=r"\['ids'\] has rows of several .*=Pool\("):
        list(loader)
    assert loader.stats.seen == 16
    loader = make(plain, pool=Pool(8, pad={"ids": 0}))
    for _ in range(2):
        for batch in loader:
            assert batch["ids"].sum(1).tolist() == [1 + row // 8 for row in batch["row"].tolist()]
            if loader.memory is not None:
                loader.loss(batch["row"].float())


def test_a_function_that_pads_is_tried_too():
    def pad(batches):
        raise KeyError("labels")

    loader = JOINING["keep"](DataLoader(range(44), 8, collate_fn=padded), pool=Pool(8, pad=pad))
    with pytest.raises(KeyError, match="labels") as caught:
        next(iter(loader))
    assert caught.value.__notes__ == ["while examples of batch 0 of epoch 0 were pooled on trial"]


def test_batches_that_are_never_joined_need_no_pad():
    plain = DataLoader(range(44), 8, collate_fn=padded)
    for loader in (
        SelectiveLoader(plain, memory=Memory(), epochs=3),
        SelectiveLoader(plain, nn.Identity(), losses=lambda m, b: b["row"].float(), keep=1),
    ):
        for _ in range(3):
            for batch in loader:
                if loader.memory is not None:
                    loader.loss(batch["row"].float())


class Noisy(nn.Module):
    """Whose forward uses every kind of random number, and writes to buffers in both modes."""

    def __init__(self):
        super().__init__()
        self.inner, self.register = network(), self.register_buffer("calls", torch.zeros(()))
        self.frozen = nn.BatchNorm1d(5).eval()

    def forward(self, x):
        self.calls += 1
        noise = float(torch.rand(())) + np.random.rand() + random.random()
        return self.inner(self.frozen(x)) + noise * 1e-3


class Counting(Scorer):
    """With a state of its own, that it does not save."""

    def __init__(self):
        self.calls, self.losses = 0, [torch.zeros(())]
        self.mean, self.generator = torch.zeros(()), torch.Generator().manual_seed(4)
        self.random = np.random.default_rng(5)

    def score(self, losses, model, batch, indices):
        found = Fresh().score(losses, model, batch, indices)
        self.calls += 1
        self.mean += found.mean()
        self.losses.append(found.mean())
        noise = torch.rand(len(found), generator=self.generator)
        return found + noise + float(self.random.random()) + float(self.mean)


SCORERS = {
    "fresh": Fresh,
    "fresh in train mode": lambda: Fresh("train"),
    "gradient bound": GradientBound,
    "reduced": Reduced,
    "reduced, kept for long": lambda: Reduced(refresh=100),
    "ema": lambda: Ema(0.9),
    "of one's own": Counting,
}


def trained(make, monkeypatch=None):
    """Everything that a training of three epochs leaves, with or without the score of a batch."""
    if monkeypatch is not None:
        scored = "siftback.loader.selection.BatchSelection.try_scores"
        monkeypatch.setattr(scored, lambda *arguments: None)
        monkeypatch.setattr("siftback.batches.pool.Pool.try_batch", lambda *arguments: None)
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    model = Noisy()
    optimizer = optimizer_of(model)
    scorer = make()
    loader = SelectiveLoader(
        shuffled(), model, nn.CrossEntropyLoss(), keep=0.5, scorer=scorer, seed=3
    )
    batches, numbers = [], []
    for _ in range(3):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            batches.append((x, y))
            numbers.append((loss.detach(), model.training, model.frozen.training))
    state = loader.state_dict()
    del state["stats"]["seconds_selection"], state["digest"]  # which covers the seconds
    own = {key: value for key, value in vars(scorer).items() if key in ("calls", "mean", "losses")}
    own["refreshes"] = getattr(scorer, "refreshes", 0)
    randoms = torch.get_rng_state(), np.random.rand(), random.random()
    return batches, numbers, model.state_dict(), state, own, randoms


@pytest.mark.parametrize("make", SCORERS.values(), ids=SCORERS)
def test_a_training_is_bit_for_bit_the_one_without_it(make, monkeypatch):
    assert_same(trained(make), trained(make, monkeypatch))


def test_it_scores_once_and_counts_nothing():
    calls = []

    def losses(model, batch):
        calls.append(len(batch[0]))
        assert not torch.is_grad_enabled()
        assert not model.training
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def make():
        return SelectiveLoader(shuffled(), network(), losses=losses, keep=0.5)

    loader = make()
    batches = iter(loader)
    next(batches)
    assert (calls, loader.stats.scored, loader.stats.seen) == ([8], 0, 8)
    assert len(list(batches)) == 5
    assert calls == [8]
    list(loader)
    assert calls == [8, 8, 8, 8, 8, 8, 4][:0] + [8] + [8] * 5 + [4]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    before = len(calls)
    list(resumed)
    assert len(calls) == before + 6
    assert resumed.stats.scored == 88


class Centring(nn.Module):
    """Writes to its inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return self.layer(x.sub_(1))


def popped(model, batch):
    return F.cross_entropy(model(batch["x"]), batch.pop("y"), reduction="none")


@pytest.mark.parametrize("warmup", [0, 1])
def test_training_gets_batches_as_they_were_before_scoring(warmup):
    examples = shuffled().dataset
    schedule = Schedule(warmup=Epochs(warmup))
    options = {"losses": popped, "keep": 0.5, "schedule": schedule, "attach": True}
    for batch in SelectiveLoader(dicts(), Centring(), **options):
        x, y = examples[batch["sift_index"]]
        assert batch["x"].equal(x)
        assert batch["y"].equal(y)


def test_a_lazy_model_is_left_to_training():
    model = nn.Sequential(nn.LazyLinear(3))
    loader = SelectiveLoader(shuffled(), model, F.cross_entropy, keep=0.5)
    for _ in range(2):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
    assert loader.stats.scored == 44


WEIGHING = {
    "a rule": lambda: {"memory": InfoBatch(), "epochs": 4},
    "a selector": lambda: {
        "model": network(), "loss_fn": F.cross_entropy, "selector": Unbiased(TopK(keep=0.5)),
    },
}  # fmt: skip


@pytest.mark.parametrize("make", WEIGHING.values(), ids=WEIGHING)
def test_one_loss_of_a_batch_is_refused_where_weights_will_come(make):
    model = network()
    loader = SelectiveLoader(shuffled(), **make())
    x, y = next(iter(loader))
    assert loader.weights.tolist() == [1] * 8
    with pytest.raises(ConfigError, match="have weights, which cannot be applied"):
        loader.loss(F.cross_entropy(model(x), y), reduced=True)
