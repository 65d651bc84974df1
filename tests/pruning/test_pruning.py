"""Scores for pruning against one example at a time, and what is kept by them."""

import inspect
import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import siftback
from siftback import (
    AUM,
    BatchError,
    ConfigError,
    Forgetting,
    Indexed,
    LossError,
    StateError,
    el2n,
    entropy,
    grand,
    margin,
    prune,
)
from toys import CLASSES, dataset, network, train

COUNT = 23


def models(count=2):
    """Networks with unlike weights and running statistics, and in training mode."""
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
    chances = [math.exp(logit) for logit in model(inputs)[0].tolist()]
    total = sum(chances)
    errors = [chance / total - (c == label) for c, chance in enumerate(chances)]
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
    public = {getattr(siftback, name) for name in siftback.__all__}
    made = {f for f in public if inspect.isfunction(f) and f.__module__ == prune.__module__}
    assert made - {prune} == {score for score, _ in SCORES.values()}
    recorders = {c for c in public if hasattr(c, "scores") and hasattr(c, "update")}
    assert recorders == set(RECORDERS)


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
def test_any_batches_give_the_order_of_the_data_set(name):
    score, _ = SCORES[name]
    of, data = models(1), dataset(COUNT)
    expected = score(of, data)
    generator = torch.Generator().manual_seed(3)
    loaders = [
        DataLoader(data, 4),
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
            lambda: el2n(nn.Identity(), DataLoader(Unsized(), 3, shuffle=True)),
            ConfigError,
            "order of its own.*shuffle=False",
        ),
        (
            lambda: el2n(nn.Identity(), DataLoader(Unsized(), 3, drop_last=True)),
            ConfigError,
            "gave 6 examples of 8",
        ),
        (lambda: el2n(nn.Identity(), [torch.zeros(4, 2)]), BatchError, "no .inputs, targets. pair"),
        (
            lambda: el2n(nn.Identity(), [(torch.zeros(4, 2), torch.full((4,), 2))]),
            BatchError,
            "labels are from 2 to 2.*from 0 to 1",
        ),
        (
            lambda: el2n(nn.Identity(), [(torch.zeros(4, 2), torch.zeros(4))]),
            BatchError,
            r"labels are torch.float32.*int64\[4\]",
        ),
        (
            lambda: margin(nn.Identity(), [(torch.zeros(4, 1), torch.zeros(4).long())]),
            BatchError,
            "one class",
        ),
        (
            lambda: entropy(nn.Identity(), [(torch.zeros(4), torch.zeros(4).long())]),
            BatchError,
            r"shape \[4\]: give floats, a row",
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


# -- recorders


def forgetting_of_one(looks):
    """Toneva et al. 2019, as told: a count of falls, and the highest where never learnt."""
    if True not in looks:
        return float(len(looks))
    return float(sum(a and not b for a, b in pairwise(looks)))


def test_forgetting_counts_falls():
    generator = torch.Generator().manual_seed(0)
    looks = torch.rand(7, 40, generator=generator) < 0.4
    looks[:, 0], looks[:, 1] = False, True
    recorder = Forgetting(40)
    for look in looks:  # in batches, in another order each time
        for part in torch.randperm(40, generator=generator).split(16):
            recorder.update(part, look[part])
    expected = [forgetting_of_one(column) for column in looks.T.tolist()]
    assert recorder.scores().tolist() == expected
    assert recorder.scores()[:2].tolist() == [7.0, 0.0]
    assert (recorder.scores()[1:] < 7).sum() > 30


RECORDERS = {Forgetting: lambda look: (look.argmax(1) == 0,), AUM: lambda look: (look, ZEROS)}
ZEROS = torch.zeros(12, dtype=torch.int64)


@pytest.mark.parametrize("kind", RECORDERS)
def test_records_follow_their_examples_and_go_on_from_a_state(kind):
    generator = torch.Generator().manual_seed(2)
    looks = torch.randn(6, 12, 3, generator=generator)
    order = torch.randperm(12, generator=generator)
    one, permuted, resumed = kind(12), kind(12), kind(12)
    for turn, look in enumerate(looks):
        one.update(torch.arange(12), *RECORDERS[kind](look))
        permuted.update(torch.arange(12), *RECORDERS[kind](look[order]))
        if turn == 2:
            resumed.load_state_dict(one.state_dict())
        elif turn > 2:
            resumed.update(torch.arange(12), *RECORDERS[kind](look))
    assert one.scores()[order].equal(permuted.scores())
    assert one.scores().equal(resumed.scores())
    assert one.scores().std() > 0
    with pytest.raises(StateError, match="a state of 12 examples does not fit 5"):
        kind(5).load_state_dict(one.state_dict())


def test_aum_is_minus_the_mean_margin():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 30, 4, generator=generator)
    labels = torch.randint(4, (30,), generator=generator)
    recorder = AUM(30)
    for look in logits:
        for part in torch.randperm(30, generator=generator).split(11):
            recorder.update(part, look[part].half().float(), labels[part])
    expected = []
    for i, label in enumerate(labels.tolist()):
        margins = []
        for look in logits[:, i].half().float().tolist():
            margins.append(look[label] - max(z for c, z in enumerate(look) if c != label))
        expected.append(-sum(margins) / len(margins))
    torch.testing.assert_close(recorder.scores(), torch.tensor(expected))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Forgetting(0), ConfigError, "examples=0"),
        (lambda: AUM(2.0), ConfigError, "examples=2.0"),
        (lambda: Forgetting(3).scores(), StateError, "3 of 3 examples were never looked at"),
        (lambda: AUM(3).scores(), StateError, "3 of 3 examples were never looked at"),
        (
            lambda: Forgetting(3).update(torch.tensor([1, 3]), torch.tensor([True, True])),
            BatchError,
            "from 1 to 3: give those of the data set, from 0 to 2",
        ),
        (
            lambda: Forgetting(3).update(torch.tensor([1, 1]), torch.tensor([True, True])),
            BatchError,
            "comes twice",
        ),
        (
            lambda: Forgetting(3).update(torch.tensor([1]), torch.tensor([1.0])),
            BatchError,
            "give one bool for each",
        ),
        (
            lambda: Forgetting(3).update(torch.tensor([1.0]), torch.tensor([True])),
            BatchError,
            r"give int64\[n\]",
        ),
        (
            lambda: AUM(3).update(torch.tensor([1]), torch.zeros(1, 2), torch.tensor([2])),
            BatchError,
            "give labels from 0 to 1",
        ),
    ],
)
def test_bad_records_say_so(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -- prune


def ranked(scores):
    """Example indices from the easiest to the hardest, of distinct scores."""
    return sorted(range(len(scores)), key=lambda i: float(scores[i]))


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("count", [6, 7, 40])
def test_prune_keeps_one_end(drop, count):
    scores = torch.randn(count, generator=torch.Generator().manual_seed(count))
    order, dropped = ranked(scores), math.floor(drop * count + 0.5)
    kept = prune(scores, drop)
    assert kept.dtype == torch.int64
    assert kept.tolist() == sorted(order[dropped:])
    assert prune(scores, drop, keep="easiest").tolist() == sorted(order[: count - dropped])
    assert prune(-scores, drop).equal(prune(scores, drop, keep="easiest"))


def test_prune_keeps_a_window():
    scores = torch.randn(20, generator=torch.Generator().manual_seed(1))
    order = ranked(scores)
    assert prune(scores, window=(0.25, 0.9)).tolist() == sorted(order[5:18])
    assert prune(scores, window=(0.3, 1.0)).equal(prune(scores, drop=0.3))
    assert prune(scores, window=(0, 1)).tolist() == list(range(20))


def test_prune_within_each_class():
    generator = torch.Generator().manual_seed(2)
    classes = torch.tensor([0] * 8 + [5] * 16 + [2] * 4)[torch.randperm(28, generator=generator)]
    scores = torch.randn(28, generator=generator) + 9 * classes  # one class is harder throughout
    kept = prune(scores, 0.25, per_class=classes)
    assert classes[kept].bincount().tolist() == [6, 0, 3, 0, 0, 12]
    expected = []
    for each in (0, 2, 5):
        own = [i for i in ranked(scores) if classes[i] == each]
        expected += own[len(own) // 4 :]
    assert kept.tolist() == sorted(expected)
    assert classes[prune(scores, 0.25)].bincount().tolist() == [1, 0, 4, 0, 0, 16]


def test_ties_are_drawn_by_the_seed_and_no_place_is_favoured():
    scores = torch.zeros(1000)
    scores[0], scores[1] = 1, -1
    kept = prune(scores, 0.5)
    assert len(kept) == 500
    assert 0 in kept
    assert 1 not in kept
    assert kept.float().mean() == pytest.approx(500, abs=40)  # 3 standard errors
    assert prune(scores, 0.5).equal(kept)
    assert not prune(scores, 0.5, seed=1).equal(kept)


def test_infinite_scores_have_a_rank_and_one_example_can_be_kept():
    assert prune(torch.tensor([1.0, math.inf, -math.inf]), 0.34).tolist() == [0, 1]
    assert prune(torch.tensor([1.0]), 0.4).tolist() == [0]
    assert prune(torch.tensor([3, 1, 2]), 0.3).tolist() == [0, 2]


def test_a_subset_trains_on_what_is_kept():
    data = dataset(40)
    model = network()
    kept = prune(el2n(model, data), drop=0.25)
    batches = train(DataLoader(Subset(data, kept), 10), model, epochs=1)
    assert torch.cat([inputs for inputs, _ in batches]).equal(data.tensors[0][kept])


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (torch.zeros(4), {}, "drop=None and window=None: give one"),
        (torch.zeros(4), {"drop": 0.2, "window": (0, 1)}, "give one"),
        (torch.zeros(4), {"drop": 1.0}, "drop=1.0 is not a share"),
        (torch.zeros(4), {"drop": -0.1}, "drop=-0.1 is not a share"),
        (torch.zeros(4), {"drop": 0.2, "keep": "best"}, "keep='best'"),
        (torch.zeros(4), {"window": (0.5, 0.5)}, "0 <= a < b <= 1"),
        (torch.zeros(4), {"window": (0.5, 0.51)}, "keeps none of 4 examples"),
        (torch.zeros(4), {"drop": 0.9}, "drop=0.9 keeps none of 4"),
        (torch.zeros(0), {"drop": 0.2}, r"scores of \[0\]"),
        (torch.zeros(4, 2), {"drop": 0.2}, r"scores of \[4, 2\]"),
        ([0.1, 0.2], {"drop": 0.2}, "scores of list"),
        (torch.tensor([0, math.nan]), {"drop": 0.2}, "1 of 2 scores are no numbers.*example 1"),
        (torch.zeros(4), {"drop": 0.2, "per_class": torch.zeros(3)}, r"per_class=\[3\] for 4"),
        (torch.zeros(4), {"drop": 0.2, "per_class": torch.zeros(4)}, "per_class is torch.float32"),
        (torch.zeros(4), {"drop": 0.2, "per_class": True}, "per_class=True for 4"),
    ],
)
def test_bad_requests_to_prune_say_so(scores, options, message):
    with pytest.raises(ConfigError, match=message):
        prune(scores, **options)
