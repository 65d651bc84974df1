"""Observations of a training are right, and do not change it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from siftback.errors import ConfigError
from siftback.lab.data.load import limit, load
from siftback.lab.data.stream import BatchStream, evaluation_batches
from siftback.lab.records.observations import folder_of, kinds_of, looks
from siftback.lab.run.observer import BATCHES, Observer, similarity
from siftback.lab.settings import Settings

CPU = torch.device("cpu")
RECORD = "records/a.jsonl"


@pytest.fixture
def data():
    return limit(load("digits"), 160)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(144, 10),
    )  # fmt: skip


def observer(data, folder, kinds, **more):
    observe = ",".join(kinds)
    asked = Settings(data="digits", epochs=1.0, batch_size=16, device="cpu", observe=observe)
    return Observer(folder_of(folder, RECORD), data, asked, **more)


def state(model):
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    return kept, [module.training for module in model.modules()], torch.get_rng_state()


def test_model_and_random_state_are_left_as_they_were(data, model, tmp_path):
    watching = observer(data, tmp_path, ("losses", "gradients", "confidence"))
    model.train()
    model[1].eval()
    before = state(model)
    watching.evaluation(model, 1.0, 10, torch.zeros(160))
    after = state(model)
    for name, value in before[0].items():
        assert value.equal(after[0][name]), name
    assert before[1] == after[1]
    assert before[2].equal(after[2])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(seconds > 0 for seconds in watching.seconds.values())


def one_at_a_time(model, batches):
    model.eval()
    with torch.no_grad():
        for images, labels in batches:
            for image, label in zip(images, labels, strict=True):
                logits = model(image[None])[0]
                yield float(-logits.log_softmax(0)[label]), bool(logits.argmax() == label)


def test_losses_and_uses(data, model, tmp_path):
    watching = observer(data, tmp_path, ("losses",))
    uses = torch.zeros(160)
    uses[[3, 5]] = torch.tensor([1.0, 2.0])
    watching.evaluation(model, 1.0, 10, uses)
    uses[7] = 3
    watching.evaluation(model, 2.5, 20, uses)
    first, second = looks(tmp_path, RECORD, "losses")
    assert (first.epoch, second.epoch) == (1.0, 2.5)
    assert first.columns["index"].tolist() == list(range(160))
    expected = [loss for loss, _ in one_at_a_time(model, BatchStream(data, 16, 0).plain(160))]
    assert first.columns["loss"] == pytest.approx(expected, abs=1e-5)
    assert np.flatnonzero(first.columns["uses"]).tolist() == [3, 5]
    assert second.columns["uses"][[3, 5, 7]].tolist() == [1, 2, 3]


def test_confidence_of_both_splits(data, model, tmp_path):
    observer(data, tmp_path, ("confidence",)).evaluation(model, 1.0, 10, torch.zeros(160))
    (look,) = looks(tmp_path, RECORD, "confidence")
    columns = look.columns
    for split, batches in (
        ("train", BatchStream(data, 16, 0).plain(160)),
        ("test", evaluation_batches(data, 50)),
    ):
        rows = columns["split"] == split
        loss, correct = zip(*one_at_a_time(model, batches), strict=True)
        assert columns["confidence"][rows] == pytest.approx(np.exp(-np.array(loss)), abs=1e-5)
        assert columns["correct"][rows].tolist() == list(correct)
        assert columns["index"][rows].tolist() == list(range(len(correct)))


def test_examples_left_by_pruning_keep_their_places(data, model, tmp_path):
    places = torch.arange(7, 167)
    observer(data, tmp_path, ("losses",), indices=places).evaluation(
        model, 1.0, 10, torch.zeros(160)
    )
    (look,) = looks(tmp_path, RECORD, "losses")
    assert look.columns["index"].tolist() == places.tolist()


def test_similarity_by_hand():
    # 3-4-5 triangles: the cosine is (3*4 + 4*3) / (5 * 5).
    assert similarity(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])) == (0.96, 1.0)
    assert similarity(torch.tensor([3.0, -4.0]), torch.tensor([-3.0, 4.0])) == (-1.0, 0.0)
    # A component that is 0 agrees with none but 0.
    found = similarity(torch.tensor([1.0, 0.0, 0.0, 2.0]), torch.tensor([1.0, 0.0, 5.0, -1.0]))
    assert found[1] == 0.5
    assert similarity(torch.zeros(2), torch.ones(2)) == (0.0, 0.0)


def test_gradient_similarity_by_hand(tmp_path):
    # Two classes and a linear model without weights: every example's gradient is known. With
    # logits of 0 the gradient of class 1's weights is (p - y) x = (1/2 - y) x, that of class 0's
    # its negative.
    data = load("digits")
    chosen = (data.train_labels < 2).nonzero()[:10, 0]
    data = replace(
        data, train_inputs=data.train_inputs[chosen], train_labels=data.train_labels[chosen],
        names=("a", "b"),
    )  # fmt: skip
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    observer(data, tmp_path, ("gradients",)).evaluation(model, 1.0, 10, torch.zeros(160))
    (look,) = looks(tmp_path, RECORD, "gradients")
    columns = look.columns
    ((images, labels),) = BatchStream(data, 10, 0).plain(10)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    x, y = images.flatten(1)[order], labels[order]
    each = (0.5 - y.float())[:, None] * x
    whole = each.mean(0)
    # All losses are log 2, so that the stable order is that of the batch.
    high = each[-5:].mean(0)
    rows = (columns["subset"] == "high") & (columns["share"] == 0.5)
    cosine = float(whole @ high / whole.norm() / high.norm())
    signs = float((whole.sign() == high.sign()).float().mean())
    assert columns["cosine"][rows] == pytest.approx([cosine], abs=1e-6)
    assert columns["same_sign"][rows] == pytest.approx([signs])


def test_gradients_are_those_of_parts_of_batches_in_training(data, model, tmp_path):
    chance = torch.get_rng_state()  # each gradient has the same dropout
    observer(data, tmp_path, ("gradients",)).evaluation(model, 1.0, 10, torch.zeros(160))
    (look,) = looks(tmp_path, RECORD, "gradients")
    columns = look.columns
    assert len(columns["cosine"]) == BATCHES * 3 * 3
    order = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:16]
    images, labels = BatchStream(data, 16, 0).batch_of(order)

    def gradient(rows):
        torch.set_rng_state(chance)
        model.train()
        losses = F.cross_entropy(model(images[rows]), labels[rows], reduction="none")
        parts = torch.autograd.grad(losses.mean(), list(model.parameters()))
        return torch.cat([part.flatten() for part in parts]), losses.detach()

    whole, losses = gradient(torch.arange(16))
    for subset, rows in (
        ("low", losses.argsort()[:4]),
        ("high", losses.argsort()[-4:]),
    ):
        part, _ = gradient(rows)
        row = (columns["batch"] == 0) & (columns["subset"] == subset) & (columns["share"] == 0.25)
        expected = float(F.cosine_similarity(part.double(), whole.double(), dim=0))
        assert columns["cosine"][row] == pytest.approx([expected], abs=1e-5)


def test_goes_on_from_a_saved_state(data, model, tmp_path):
    watching = observer(data, tmp_path, ("confidence",))
    watching.evaluation(model, 1.0, 10, None)
    saved = watching.state_dict()
    watching.evaluation(model, 2.0, 20, None)  # lost as the run was broken off
    resumed = observer(data, tmp_path, ("confidence",))
    resumed.load_state_dict(saved)
    assert [look.epoch for look in looks(tmp_path, RECORD, "confidence")] == [1.0]
    resumed.evaluation(model, 2.5, 25, None)
    assert [look.epoch for look in looks(tmp_path, RECORD, "confidence")] == [1.0, 2.5]
    assert resumed.seconds["confidence"] > saved["seconds"]["confidence"]
    resumed.forget()
    assert not [*folder_of(tmp_path, RECORD).iterdir()]


def test_what_was_looked_at_before_a_break_is_readable(data, model, tmp_path):
    watching = observer(data, tmp_path, ("losses",))
    for step in (10, 20, 30):
        watching.evaluation(model, step / 10, step, torch.zeros(160))
    last = max(folder_of(tmp_path, RECORD).iterdir())
    last.write_bytes(last.read_bytes()[:100])
    assert [look.epoch for look in looks(tmp_path, RECORD, "losses")] == [1.0, 2.0]
    assert not list(last.parent.glob("*.tmp"))


def test_unknown_kinds():
    with pytest.raises(ConfigError, match="observe weights: give one of losses, gradients"):
        kinds_of("losses,weights")
