"""Scores for pruning against one example at a time."""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    ChainDataset,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
)

from siftback import RS2, Indexed, SelectiveLoader, pruning, sequence_losses
from siftback.errors import BatchError, ConfigError, LossError
from siftback.pruning import el2n, entropy, grand, margin
from toys import CLASSES, Writing, dataset, network, train

COUNT = 23


def models(count=2):
    """Networks with different weights and running statistics, and in training mode."""
    made = []
    for number in range(count):
        model = network()
        torch.manual_seed(number)
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.7)
        train(DataLoader(dataset(16), 8), model, epochs=1)
        made.append(model)
    return made


def one_at_a_time(score, of):
    """Mean over models of a score of each example alone: slow and obvious."""
    means = []
    for inputs, label in dataset(COUNT):
        values = []
        for model in of:
            model.eval()
            values.append(score(model, inputs[None], int(label)))
            model.train()
        means.append(sum(values) / len(values))
    return torch.tensor(means)


def el2n_of_one(model, inputs, label):
    sizes = [math.exp(logit) for logit in model(inputs)[0].tolist()]
    total = sum(sizes)
    errors = [size / total - (c == label) for c, size in enumerate(sizes)]
    return math.sqrt(sum(error * error for error in errors))


def margin_of_one(model, inputs, label):
    *_, second, first = sorted(model(inputs)[0].softmax(0).tolist())
    return 1 - (first - second)


def entropy_of_one(model, inputs, label):
    return -sum(p * math.log(p) for p in model(inputs)[0].softmax(0).tolist())


def grand_of_one(model, inputs, label):
    model.zero_grad()
    F.cross_entropy(model(inputs), torch.tensor([label])).backward()
    norm = math.sqrt(sum(float((w.grad**2).sum()) for w in model.parameters()))
    model.zero_grad()
    return norm


SCORES = {
    "el2n": (el2n, el2n_of_one),
    "margin": (margin, margin_of_one),
    "entropy": (entropy, entropy_of_one),
    "grand": (grand, grand_of_one),
}


def test_every_public_score_has_a_row():
    public = {getattr(pruning, name) for name in pruning.__all__}
    made = {each for each in public if inspect.isfunction(each)}
    assert made - {pruning.prune} == {score for score, _ in SCORES.values()}


@pytest.mark.parametrize("name", SCORES)
def test_scores_follow_their_examples_and_one_alone_has_its_own(name):
    score, _ = SCORES[name]
    of, order = models(1), torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    found = score(of, dataset(COUNT))
    permuted = Subset(dataset(COUNT), order.tolist())
    torch.testing.assert_close(score(of, permuted), found[order])
    torch.testing.assert_close(score(of, Subset(dataset(COUNT), [4])), found[4:5])


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_that_of_each_example_alone(name):
    score, of_one = SCORES[name]
    of = models()
    expected = one_at_a_time(of_one, of)
    found = score(of, dataset(COUNT), batch_size=5)
    assert found.dtype == torch.float32
    assert found.std() > 0.01
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", SCORES)
def test_models_are_averaged_and_left_as_they_were(name):
    score, _ = SCORES[name]
    of = models()
    before = [{k: v.clone() for k, v in model.state_dict().items()} for model in of]
    random = torch.get_rng_state()
    columns = torch.stack([score(model, dataset(COUNT)) for model in of], 1)
    assert not columns[:, 0].allclose(columns[:, 1])
    torch.testing.assert_close(score(of, dataset(COUNT)), columns.mean(1))
    assert torch.get_rng_state().equal(random)
    for model, state in zip(of, before, strict=True):
        assert model.training
        assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())
        assert all(value.equal(state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", SCORES)
def test_a_model_that_writes_to_its_inputs_changes_no_other_score(name):
    score, _ = SCORES[name]
    writing = [Writing(model) for model in models()]
    batches = [default_collate([example]) for example in dataset(COUNT)]
    before = [inputs.clone() for inputs, _ in batches]
    columns = torch.stack([score(model, dataset(COUNT)) for model in writing], 1)
    torch.testing.assert_close(score(writing, batches), columns.mean(1))
    assert all(inputs.equal(same) for (inputs, _), same in zip(batches, before, strict=True))


@pytest.mark.parametrize("name", SCORES)
def test_any_batches_give_the_order_of_the_data_set(name):
    score, _ = SCORES[name]
    of, data = models(1), dataset(COUNT)
    expected = score(of, data)
    generator = torch.Generator().manual_seed(3)
    loaders = [
        DataLoader(data, 4),
        DataLoader(data, 4, shuffle=True, generator=generator),
        DataLoader(Indexed(data), 4, shuffle=True, generator=generator),
        Indexed(data),
        list(DataLoader(data, 7)),
    ]
    for loader in loaders:
        torch.testing.assert_close(score(of, loader), expected)


def test_gradients_are_those_of_trained_weights_in_chunks_of_any_size():
    (model,) = models(1)
    expected = grand(model, dataset(COUNT))
    for chunk_size in (1, 3, 100):
        torch.testing.assert_close(grand(model, dataset(COUNT), chunk_size=chunk_size), expected)
    for weight in model[1].parameters():
        weight.requires_grad_(False)
    frozen = grand(model, dataset(COUNT))
    assert (frozen < expected).all()
    model.zero_grad(set_to_none=True)
    torch.testing.assert_close(frozen, one_at_a_time(_trained_alone, [model]))


def _trained_alone(model, inputs, label):
    model.zero_grad()
    F.cross_entropy(model(inputs), torch.tensor([label])).backward()
    norm = math.sqrt(sum(float((w.grad**2).sum()) for w in model.parameters() if w.requires_grad))
    model.zero_grad(set_to_none=True)
    return norm


def test_other_batches_and_other_losses():
    (model,) = models(1)
    data = dataset(COUNT)
    batches = [{"x": x, "y": y} for x, y in DataLoader(data, 6)]
    by_name = el2n(model, batches, outputs=lambda model, batch: (model(batch["x"]), batch["y"]))
    torch.testing.assert_close(by_name, el2n(model, data))
    norms = grand(
        model,
        batches,
        losses=lambda model, batch: F.cross_entropy(
            model(batch["x"]), batch["y"], reduction="none"
        ),
    )
    torch.testing.assert_close(norms, grand(model, data))
    linear = nn.Linear(5, 1)
    regression = TensorDataset(data.tensors[0], torch.randn(COUNT, 1))
    inputs, targets = regression[:]
    errors = (linear(inputs) - targets).detach()  # gradient 2 e (x, 1)
    expected = 2 * errors[:, 0].abs() * (inputs.square().sum(1) + 1).sqrt()
    torch.testing.assert_close(grand(linear, regression, F.mse_loss), expected)


class LinearForTokenClassification(nn.Linear):
    def forward(self, input_ids):
        return SimpleNamespace(logits=super().forward(input_ids))


def test_losses_of_a_hugging_face_model_know_its_kind():
    model = LinearForTokenClassification(5, 3)
    batch = {"input_ids": torch.randn(4, 7, 5), "labels": torch.randint(3, (4, 7))}
    batch["labels"][1, 3:] = -100
    expected = []
    for index in range(4):
        alone = {name: rows[index : index + 1] for name, rows in batch.items()}
        gradients = torch.autograd.grad(sequence_losses(model, alone).sum(), [*model.parameters()])
        expected.append(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    torch.testing.assert_close(grand(model, [batch], losses=sequence_losses), torch.stack(expected))
    with pytest.raises(ConfigError, match="the logits of function are compared with is not known"):
        sequence_losses(lambda input_ids: None, batch)


def test_half_precision_is_scored_in_single():
    logits = torch.randn(9, CLASSES).half()
    batch = [(logits, torch.zeros(9, dtype=torch.int64))]
    for score in (el2n, margin, entropy):
        torch.testing.assert_close(
            score(nn.Identity(), batch), score(nn.Identity(), [(logits.float(), batch[0][1])])
        )


def test_extreme_logits_have_finite_scores():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4], [0.0, 0.0]])
    batch = [(logits, torch.zeros(3, dtype=torch.int64))]
    torch.testing.assert_close(el2n(nn.Identity(), batch), torch.tensor([0.0, 2**0.5, 0.5**0.5]))
    torch.testing.assert_close(entropy(nn.Identity(), batch), torch.tensor([0, 0, math.log(2)]))
    torch.testing.assert_close(margin(nn.Identity(), batch), torch.tensor([0.0, 0.0, 1.0]))


class Unsized(Dataset):
    """A data set whose loader leaves some out."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(2), 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: el2n([], Unsized()), ConfigError, "no model given"),
        (lambda: el2n(nn.Identity(), []), ConfigError, "gave no batch"),
        (
            lambda: el2n(nn.Identity(), DataLoader(Unsized(), None, shuffle=True)),
            ConfigError,
            "order of the loader may differ.*a loader with a batch size",
        ),
        (
            lambda: el2n(nn.Identity(), DataLoader(ChainDataset([]), 4, num_workers=2)),
            ConfigError,
            r"order of the loader may differ.*of Indexed\(dataset\)",
        ),
        (
            lambda: el2n(
                nn.Identity(),
                SelectiveLoader(DataLoader(dataset(8), 4, shuffle=True), memory=RS2(0.5)),
            ),
            ConfigError,
            "order of the loader may differ.*give the data set itself",
        ),
        (
            lambda: el2n(
                nn.Identity(),
                DataLoader(Unsized(), 3, collate_fn=lambda rows: default_collate(rows[1:])),
            ),
            ConfigError,
            "batch 0 has other examples than those sampled",
        ),
        (
            lambda: el2n(nn.Identity(), DataLoader(Unsized(), 3, drop_last=True)),
            ConfigError,
            "gave 6 examples of 8",
        ),
        (
            lambda: el2n(nn.Identity(), [torch.zeros(4, 2)]),
            BatchError,
            "not an .inputs, targets. pair",
        ),
        (
            lambda: el2n(nn.Identity(), [(torch.zeros(4, 2), torch.full((4,), 2))]),
            BatchError,
            r"labels range from 2 to 2, outside of \[0, 2\)",
        ),
        (
            lambda: el2n(nn.Identity(), [(torch.zeros(4, 2), torch.zeros(4))]),
            BatchError,
            r"labels=float32\[4\]: give int64\[4\]",
        ),
        (
            lambda: margin(nn.Identity(), [(torch.zeros(4, 1), torch.zeros(4).long())]),
            BatchError,
            "one class",
        ),
        (
            lambda: entropy(nn.Identity(), [(torch.zeros(4), torch.zeros(4).long())]),
            BatchError,
            r"logits=float32\[4\]: give float\[4, C\]",
        ),
        (
            lambda: el2n(nn.Identity(), [(torch.full((1, 2), math.nan), torch.tensor([0]))]),
            LossError,
            "batch 0 has scores that are not finite",
        ),
        (lambda: grand(nn.Identity(), Unsized()), ConfigError, "requires a gradient"),
        (
            lambda: grand(nn.Linear(2, 2), Unsized(), chunk_size=0),
            ConfigError,
            "chunk_size=0",
        ),
        (
            lambda: grand(nn.Linear(2, 2), Unsized(), losses=lambda m, b: m(b[0]).sum()),
            LossError,
            'reduction="none"',
        ),
    ],
)
def test_bad_data_and_models_say_so(call, error, message):
    with pytest.raises(error, match=message):
        call()
