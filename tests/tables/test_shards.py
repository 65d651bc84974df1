"""Draws and orders of a data set in shards, in one process."""

import pytest
import torch

from siftback import Epochs, Memory, NoiseGuard, ScoreTable, SelectiveSampler
from siftback.draws.histogram_draw import (
    buckets_of,
    draw_in_shards,
    histogram,
    shared_probabilities,
)
from siftback.draws.percentile_draw import draw_probabilities
from siftback.errors import ConfigError
from siftback.selectors.sampling import inclusion_probabilities
from siftback.tables.shards import Shards
from toys import seeded

NAN, INFINITE = torch.nan, torch.inf


def scores_of(count, kind):
    scores = torch.randn(count, generator=seeded(0)).exp()
    if kind == "rounded":
        scores = scores.mul(4).round() / 4
    elif kind == "narrow":  # far more examples than buckets
        scores = 1 + scores / 1e4
    elif kind == "infinite":
        scores[::7] = INFINITE
    return scores


@pytest.mark.parametrize("kind", ["spread", "rounded", "narrow", "infinite"])
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_percentiles_are_off_by_at_most_the_share_of_a_bucket(kind, beta):
    scores, floor = scores_of(20_000, kind), 0.1
    buckets = buckets_of(scores)
    found = shared_probabilities(scores, beta, floor)[buckets]
    exact = draw_probabilities(scores, beta, floor)
    share = histogram(scores)[0][buckets] / len(scores)
    slope = (1 - floor) * max(beta, 1.0)  # of the probability by the percentile
    assert ((found - exact).abs() <= slope * share + 1e-12).all()
    assert found.sum().item() == pytest.approx(exact.sum().item(), rel=1e-9)


@pytest.mark.parametrize("unknown", [0, 3_000, 9_000])
def test_each_shard_draws_its_quota_by_the_percentiles_among_all(unknown):
    count, draws, examples, group = 3, 4, 15_011, 250
    shards, generator = Shards(count, examples), seeded(1)
    by_example = scores_of(examples, "spread").index_fill(0, torch.arange(unknown), NAN)
    rows = shards.rows_of(torch.arange(examples))
    scores = torch.full((shards.rows,), NAN).index_copy(0, rows, by_example)
    each = [draw_in_shards(scores, shards, 1.0, 0.1, 8000, generator)[rows] for _ in range(draws)]
    drawn, quota = torch.stack(each), 8000 // count
    assert ((drawn == 0) | (drawn == 1)).all()
    known = ~by_example.isnan()
    probabilities = torch.full((examples,), 1.0, dtype=torch.float64)
    probabilities[known] = draw_probabilities(by_example[known], 1.0, 0.1)
    for own in (slice(shard, None, count) for shard in range(count)):
        assert (drawn[:, own].sum(1) == quota).all()
        new = int((~known[own]).sum())
        expected = torch.full_like(probabilities[own], min(1.0, quota / max(new, 1)))
        rest = quota - new
        expected[known[own]] = 0.0
        if rest > 0:
            left = probabilities[own][known[own]]
            expected[known[own]] = inclusion_probabilities(left, rest)
        # Of groups of like examples, as there are few draws.
        order = by_example[own].sort().indices
        shares, means = (
            part[order][: len(order) // group * group].view(-1, group).mean(1)
            for part in (drawn[:, own].double().mean(0), expected)
        )
        error = 4.5 * (means * (1 - means) / (draws * group)).clamp(min=0).sqrt() + 1e-3
        assert ((shares - means).abs() <= error).all()


def test_a_draw_is_a_function_of_seed_and_scores():
    memory = Memory(keep=0.5, shards=4)
    memory.grow(30)
    memory.update(torch.arange(30), scores_of(30, "spread"), 0)
    assert memory.count(1) == 12  # 15 // 4 of each
    assert memory.draw(1, seeded(2)).equal(memory.draw(1, seeded(2)))
    assert not memory.draw(1, seeded(2)).equal(memory.draw(1, seeded(3)))


class Uneven(Memory):
    """Draws another number of the first shard."""

    def draw(self, epoch, generator):
        weights = super().draw(epoch, generator)
        weights[: self.shards.height] = 1.0
        return weights


class Longer(Memory):
    """Draws for another number of rows."""

    def draw(self, epoch, generator):
        return torch.ones(self.rows + 1)


@pytest.mark.parametrize("kind", [Uneven, Longer])
def test_a_rule_of_ones_own_that_draws_unequally_is_refused(kind):
    sampler = SelectiveSampler(range(20), kind(keep=0.5, warmup=Epochs(0), shards=4), epochs=2)
    with pytest.raises(ConfigError, match=r"shards of this process, .*count means 2"):
        list(sampler)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "shards=0: give an integer, at least 1"),
        ({"shards": 4, "guard": NoiseGuard(10)}, r"guard=NoiseGuard\(...\) and shards=4: give one"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        Memory(**arguments)
    with pytest.raises(ConfigError, match=r"shards=4 and a table in .*: give one of them"):
        Memory(shards=4, table=ScoreTable(path=tmp_path / "scores.table"))


@pytest.mark.parametrize("examples", [1000, 1003])
@pytest.mark.parametrize("whole", [True, False])
def test_orders_have_every_drawn_example_once_in_any_place(examples, whole, monkeypatch):
    shards, epochs = Shards(5, examples), 40
    if not whole:  # as for very many examples
        monkeypatch.setattr("siftback.tables.shards.WHOLE", 0)
        monkeypatch.setattr("siftback.tables.shards._BLOCK", 64)
    weights = torch.zeros(shards.rows)
    for _, rows in shards.shards():
        weights[rows][::2] = 1.0
    expected = shards.indices_of(weights.nonzero().squeeze(1))
    places = torch.empty(epochs, 1003)
    for epoch in range(epochs):
        quota = len(expected) // 5
        parts = list(shards.order(weights, quota, seed=0, epoch=epoch, shuffle=True))
        order = torch.cat(parts)
        assert len(order) == 5 * quota
        assert len(order.unique()) == len(order)
        assert torch.isin(order, expected).all()
        assert (order[:50] % 5).bincount().min() > 0  # of all shards
        places[epoch].fill_(NAN)[order] = torch.arange(len(order)) / len(order)
    middle = places[:, expected].nanmean(0)
    assert ((middle - 0.5).abs() < 5 / (12 * 0.8 * epochs) ** 0.5).all()
