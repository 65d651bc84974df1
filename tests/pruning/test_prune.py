"""Pruning keeps examples by their scores."""

import math
from fractions import Fraction

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from siftback.errors import ConfigError
from siftback.pruning import el2n, prune
from toys import dataset, network, train


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


def test_halves_are_rounded_up_as_decimals_are_written():
    for n, percent in ((50, 29), (50, 57), (25, 58), (10, 25), (1000, 12)):
        dropped = math.floor(Fraction(percent, 100) * n + Fraction(1, 2))
        scores, share = torch.arange(float(n)), percent / 100
        assert len(prune(scores, drop=share)) == n - dropped
        assert len(prune(scores, drop=share, keep="easiest")) == n - dropped
        assert len(prune(scores, window=(share, 1.0))) == n - dropped


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
        (torch.zeros(4), {"drop": 1.0}, r"drop=1.0: give a share in \[0, 1\)"),
        (torch.zeros(4), {"drop": -0.1}, "drop=-0.1: give a share"),
        (torch.zeros(4), {"drop": 0.2, "keep": "best"}, "keep='best'"),
        (torch.zeros(4), {"window": (0.5, 0.5)}, "0 <= a < b <= 1"),
        (torch.zeros(4), {"window": (0.5, 0.51)}, "keeps none of 4 examples"),
        (torch.zeros(4), {"drop": 0.9}, "drop=0.9 keeps none of 4"),
        (torch.zeros(0), {"drop": 0.2}, r"scores=float32\[0\]: give one score"),
        (torch.zeros(4, 2), {"drop": 0.2}, r"scores=float32\[4, 2\]: give one score"),
        ([0.1, 0.2], {"drop": 0.2}, r"scores=\[0.1, 0.2\]: give one score"),
        (torch.tensor([0, math.nan]), {"drop": 0.2}, "1 of 2 scores are NaN.*example 1"),
        (
            torch.zeros(4),
            {"drop": 0.2, "per_class": torch.zeros(3)},
            r"per_class=float32\[3\]: give .* int64\[4\]",
        ),
        (
            torch.zeros(4),
            {"drop": 0.2, "per_class": torch.zeros(4)},
            r"per_class=float32\[4\]: give .* int64\[4\]",
        ),
        (torch.zeros(4), {"drop": 0.2, "per_class": True}, "per_class=True: give"),
    ],
)
def test_bad_requests_to_prune_say_so(scores, options, message):
    with pytest.raises(ConfigError, match=message):
        prune(scores, **options)
