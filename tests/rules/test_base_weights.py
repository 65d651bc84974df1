"""Base weights: who is drawn how often, in closed form, and what loss weights undo."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler

from reference import shared_probability
from remembering import Numbered, by_rule, plain, selective, spread
from resuming import check_resumes
from selections import check_shares, in_proportion
from siftback import RS2, InfoBatch, Memory, NoiseGuard, SelectiveLoader, Stale
from siftback.draws import percentile_draw
from siftback.errors import ConfigError, StateError
from siftback.rules.base_weights import normalize_weights, resolve_weights
from siftback.schedule import Epochs
from toys import dataset, network, optimizer_of, seeded

TRIALS, SIZE, FLOOR = 1000, 24, 0.1
LOSSES = spread(SIZE).tolist()
NEW = [math.nan] * 3 + LOSSES[3:]  # of which three have no loss yet
EVEN = [1 + 0.5 * math.sin(row) for row in range(SIZE)]
STEEP = [40.0 if row % 6 == 0 else 1.0 for row in range(SIZE)]  # some of which are certain


def percentiles(losses):
    return [FLOOR + (1 - FLOOR) * shared_probability(losses, loss, 1.25) for loss in losses]


def ratios(losses):
    mean = sum(losses) / len(losses)
    return [max(FLOOR, min(1.0, loss / mean)) for loss in losses]


def exactly(proportions):
    """The probabilities of a draw of half of the examples, of which those without a loss are."""

    def probabilities(losses, weights, count=None):
        known = [row for row, loss in enumerate(losses) if not math.isnan(loss)]
        sizes = proportions([losses[row] for row in known])
        sizes = [size * weights[row] for size, row in zip(sizes, known, strict=True)]
        count = round(0.5 * len(losses)) if count is None else count
        drawn = in_proportion(sizes, count - len(losses) + len(known))
        return [
            drawn[known.index(row)] if row in known else 1.0 for row in range(len(losses))
        ]  # fmt: skip

    return probabilities


def independently(losses, weights):
    known = [loss for loss in losses if not math.isnan(loss)]
    sizes = iter(ratios(known))
    mean = sum(weights) / len(weights)
    return [
        1.0 if math.isnan(loss) else min(1.0, weight / mean * next(sizes))
        for loss, weight in zip(losses, weights, strict=True)
    ]


WAYS = {
    "a fixed share": (lambda **own: Memory(0.5, **own), exactly(percentiles)),
    "an adaptive share": (lambda **own: Memory(**own), independently),
    "random": (
        lambda **own: RS2(0.5, replacement=True, **own),
        lambda losses, weights: in_proportion(weights, len(losses) // 2),
    ),
}
MEMORIES = {name: way for name, way in WAYS.items() if name != "random"}


def taught(rule, losses):
    rule.grow(len(losses))
    known = torch.tensor(losses).isnan().logical_not().nonzero().squeeze(1)
    rule.update(known, torch.tensor(losses)[known], 0)
    return rule


def draws_of(rule, candidates=None, trials=TRIALS):
    generator = seeded(5)
    with rule.among(candidates):
        return torch.stack([rule.draw(1, generator) for _ in range(trials)])


@pytest.mark.parametrize("weights", [EVEN, STEEP], ids=["even", "steep"])
@pytest.mark.parametrize("losses", [LOSSES, NEW], ids=["all known", "some unknown"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sampled(5)
def test_probabilities_are_those_of_the_formula(way, losses, weights):
    make, probabilities = WAYS[way]
    rule = taught(make(weights=weights), losses)
    drawn = draws_of(rule)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert not rule.reweights
    check_shares(drawn, probabilities(losses, weights))
    if way != "an adaptive share":
        assert (drawn.sum(1) == rule.count(1)).all()


@pytest.mark.parametrize("way", WAYS)
def test_equal_weights_change_no_probability(way):
    make, probabilities = WAYS[way]
    check_shares(draws_of(taught(make(weights=[7.0] * SIZE), LOSSES)),
                 probabilities(LOSSES, [1.0] * SIZE))  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_users_sampler_has_the_weights_of_its_own_examples(way):
    make, probabilities = WAYS[way]
    rows = [*range(0, SIZE, 2), 1, 5]
    rows.sort()
    rule = taught(make(weights=EVEN), LOSSES)
    drawn = draws_of(rule, torch.tensor(rows))
    check_shares(drawn, probabilities([LOSSES[row] for row in rows], [EVEN[row] for row in rows]))


@pytest.mark.parametrize("keep", [0.5, None])
def test_a_guard_admits_suspects_alike_and_the_others_are_drawn_by_weights(keep):
    guard = NoiseGuard(4, cap=0.25, visits=1)
    rule = taught(Memory(keep, guard=guard, weights=EVEN), [0.1 + loss / 50 for loss in LOSSES])
    rule.update(torch.arange(8), torch.full((8,), 9.0), 1)
    suspects = guard.held.tolist()
    assert suspects == list(range(8))
    losses, others = rule.scores(1)[8:].tolist(), EVEN[8:]
    drawn = draws_of(rule)
    assert (drawn[:, :8].sum(1) == 2).all()  # a quarter of eight
    by_ratio = (
        independently(losses, others) if keep is None else exactly(ratios)(losses, others, 10)
    )
    check_shares(drawn, [0.25] * 8 + by_ratio)


@pytest.mark.parametrize("weights", [None, EVEN, STEEP], ids=["none", "even", "steep"])
@pytest.mark.parametrize("losses", [LOSSES, NEW], ids=["all known", "some unknown"])
@pytest.mark.parametrize("way", MEMORIES)
@pytest.mark.sampled(5)
def test_unbiased_weights_make_the_mean_over_a_draw_that_of_the_base_weights(way, losses, weights):
    make, probabilities = MEMORIES[way]
    rule, base = taught(make(weights=weights, unbiased=True), losses), weights or [1.0] * SIZE
    assert rule.reweights
    expected, drawn = probabilities(losses, base), draws_of(rule)
    check_shares(drawn, expected)
    values = torch.linspace(-1, 3, SIZE).exp()  # of anything that the mean is taken of
    means = (drawn * values).sum(1) / sum(expected)
    target = sum(b * value for b, value in zip(base, values.tolist(), strict=True)) / sum(base)
    error = 4.5 * float(means.std()) / len(means) ** 0.5
    assert abs(float(means.mean()) - target) < error < 0.1 * target


@pytest.mark.parametrize("rule", [Memory(0.4), RS2(0.4, replacement=True)], ids=["memory", "rs2"])
def test_classes_are_drawn_alike_where_none_is_certain(rule):
    labels = torch.tensor([0] * 40 + [1] * 12 + [2] * 38)
    rule.set_base_weights(resolve_weights(None, labels))
    drawn = draws_of(taught(rule, [2.0] * 90))
    by_class = torch.stack([drawn[:, labels == label].sum(1) for label in range(3)]).mean(1)
    assert (by_class - 12).abs().max() < 4.5 * 3 / TRIALS**0.5  # 36 in all


@pytest.mark.parametrize(
    "labels",
    [[5, 5, -1, 5], (5, 5, -1, 5), np.array([5, 5, -1, 5]), torch.tensor([5, 5, -1, 5])],
    ids=["list", "tuple", "array", "tensor"],
)
def test_a_label_weighs_1_over_the_examples_of_its_class(labels):
    weights = normalize_weights(resolve_weights(None, labels))
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2 / 3, 2, 2 / 3]).double())
    assert torch.equal(weights, normalize_weights([1 / 3, 1 / 3, 1, 1 / 3]))
    assert Memory(balance=labels).settings() == Memory(weights=weights * 8).settings()


@pytest.mark.parametrize("keep", [0.11, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 2, 5, 97])
@pytest.mark.parametrize("unknown", [0, 1, 60])
def test_exactly_k_are_drawn(keep, size, unknown):
    losses = [math.nan] * min(unknown, size) + spread(97).tolist()
    weights = torch.logspace(200, 208, size, dtype=torch.float64)
    for rule in (Memory(keep, weights=weights), RS2(keep, replacement=True, weights=weights)):
        drawn = draws_of(taught(rule, losses[:size]), trials=20)
        assert (drawn.sum(1) == rule.count(1)).all()


def test_more_examples_than_are_sorted_without_weights(monkeypatch):
    monkeypatch.setattr(percentile_draw, "SORTED", 1 << 17)
    size = percentile_draw.SORTED + 1000
    labels = (torch.arange(size) % 100 == 0).long()
    rule = Memory(keep=0.4, floor=0.2, balance=labels)
    rule.grow(size)
    rule.table.record(torch.arange(size), torch.rand(size, generator=seeded(1)))
    drawn = rule.draw(1, seeded(2))
    assert int(drawn.sum()) == rule.count(1)
    assert int(drawn[labels == 1].sum()) == int(labels.sum())  # all, and still fewer than half


REFUSED = {
    "both": (lambda: Memory(weights=[1.0], balance=[1]), "weights= and balance= given"),
    "zero": (lambda: Memory(weights=[1.0, 0.0]), r"weights\[1\] is 0.0: give finite .* above 0"),
    "negative": (lambda: Memory(weights=[-1, 1]), r"weights\[0\] is -1"),
    "a range without bounds": (
        lambda: Memory(weights=[1e-5, 1e5]), "weights from 1e-05 to 100000: .* at most 1e\\+09",
    ),
    "nan": (lambda: Memory(weights=[1.0, math.nan]), r"weights\[1\] is nan"),
    "infinite": (lambda: RS2(replacement=True, weights=[math.inf]), r"weights\[0\] is inf"),
    "empty": (lambda: Memory(weights=[]), r"weights=\[\]: give float\[N\]"),
    "a matrix": (lambda: Memory(weights=torch.ones(2, 2)), r"give float\[N\]"),
    "a number": (lambda: Memory(weights=2.0), r"weights=2.0: give float\[N\]"),
    "words": (lambda: Memory(balance=["cat", "dog"]), r"balance=.*: give int\[N\]"),
    "flags": (lambda: Memory(weights=[True, False]), r"give float\[N\]"),
    "labels of floats": (lambda: Memory(balance=[0.0, 1.0]), r"give int\[N\], the label"),
    "shards": (lambda: Memory(0.5, shards=2, balance=[0, 1]), "without shards="),
    "parts of a permutation": (lambda: RS2(0.5, balance=[0, 1]), r"RS2\(..., replacement=True\)"),
    "unbiased": (lambda: Memory(unbiased=1), "unbiased=1"),
    "unbiased with a guard": (
        lambda: Memory(unbiased=True, guard=NoiseGuard(2)), "unbiased=True with a guard",
    ),
    "unbiased shards": (lambda: Memory(0.5, unbiased=True, shards=2), "unbiased=True .* shards=2"),
    "unbiased without a floor": (lambda: Memory(unbiased=True, floor=0), "unbiased=True .*floor=0"),
    "another length": (lambda: taught(Memory(weights=[1.0, 2.0]), [0.1] * 3), "2 .* there are 3"),
    "a rule that takes none": (
        lambda: InfoBatch().set_base_weights([1.0]), "InfoBatch cannot draw by weights",
    ),
    "a rule of passes": (
        lambda: Stale(0.5).set_base_weights([1.0]), "Stale cannot draw by weights",
    ),
    "a rule that has others": (
        lambda: Memory(weights=[1.0, 2.0]).set_base_weights([1.0, 1.0]), "has other weights",
    ),
    "after the number is known": (
        lambda: taught(Memory(), [0.1] * 3).set_base_weights([1.0, 2.0]), "2 .* there are 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_weights_that_do_not_fit_change_nothing():
    rule = taught(Memory(), [0.1] * 3)
    with pytest.raises(ConfigError, match="there are 3"):
        rule.set_base_weights([1.0, 2.0])
    assert rule.base_weights is None
    rule.set_base_weights([1.0, 2.0, 3.0])
    rule.set_base_weights([1.0, 2.0, 3.0])  # the same again


def test_a_state_of_other_weights_is_refused():
    state = taught(Memory(0.5, weights=EVEN), LOSSES).state_dict()
    Memory(0.5, weights=EVEN).load_state_dict(state)
    for weights in (STEEP, None):
        with pytest.raises(StateError, match=r"weights='crc32 .* of 24', and this Memory has w"):
            Memory(0.5, weights=weights).load_state_dict(state)
    with pytest.raises(StateError, match="saved with weights='nothing', and this RS2"):
        RS2(replacement=True, weights=EVEN).load_state_dict(RS2(replacement=True).state_dict())
    with pytest.raises(StateError, match=r"unbiased='nothing', .*Memory has unbiased=True"):
        Memory(unbiased=True).load_state_dict(Memory().state_dict())


@pytest.mark.parametrize("keep", [0.5, None])
def test_a_training_applies_the_weights_of_an_unbiased_draw(keep):
    data, model = dataset(120), network()
    labels = [int(target) for _, target in data]
    rule = Memory(keep, balance=labels, unbiased=True, warmup=Epochs(1))
    loader = SelectiveLoader(DataLoader(data, 12, shuffle=True), memory=rule, epochs=3)
    optimizer, means = optimizer_of(model), []
    for _ in range(3):
        for inputs, targets in loader:
            losses = F.cross_entropy(model(inputs), targets, reduction="none")
            loss = loader.loss(losses)
            torch.testing.assert_close(loss, (losses * loader.weights).mean())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            means.append(loader.weights)
    assert (torch.cat(means[:10]) == 1).all()  # everything, in warm-up
    assert torch.cat(means[10:]).unique().numel() > 20


def test_a_sampler_of_a_subset_draws_by_the_weights_of_its_examples():
    losses = spread(60)
    weights = torch.ones(60)
    weights[40:45] = 1e6
    rule = Memory(keep=0.5, weights=weights, warmup=Epochs(1))
    source = DataLoader(Numbered(losses), 6, sampler=SubsetRandomSampler(range(30, 60)))
    loader = selective(source, memory=rule, epochs=5, shorter_epochs=True)
    for epoch in range(5):
        numbers = []
        for batch in loader:
            loader.record(batch["loss"])
            numbers += batch["number"].tolist()
        assert len(numbers) == (15 if epoch else 30)
        assert {40, 41, 42, 43, 44} <= set(numbers)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Memory(0.5, weights=STEEP, unbiased=True, warmup=Epochs(1)),
        lambda: Memory(weights=EVEN, warmup=Epochs(1)),
        lambda: RS2(0.5, replacement=True, weights=EVEN),
    ],
    ids=["fixed", "adaptive", "random"],
)
def test_stopping_anywhere_equals_never_stopping(make):
    check_resumes(by_rule(make, lambda: plain(Numbered(spread(SIZE)), 5), epochs=4))


def test_a_data_set_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="weights or labels of 24 examples, and there are 60"):
        selective(plain(Numbered(spread(60))), memory=Memory(weights=EVEN), epochs=4)
