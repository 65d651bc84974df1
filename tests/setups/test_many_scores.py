"""More scores in one call than float32 can count: the share, and the share of each tenth."""

import pytest
import torch

from siftback import (
    InBatch,
    InBatchRank,
    Kath18,
    Percentile,
    SoftTopK,
    Threshold,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.selectors.percentile import LossHistory, percentile_probabilities, rank_shares
from siftback.selectors.ranking import threshold_probabilities
from toys import All, seeded

MANY = 17_000_000  # above 2^24, from which on float32 does not tell neighbours apart
ALWAYS = ("percentile", "percentile, exact")  # of all others fewer, unless more are asked for
KEEP = 0.55
BETA = 1 / KEEP - 1
TENTHS = torch.linspace(0, 1, 11, dtype=torch.float64)


def by_power(scores, keep=KEEP, floor=0.0):
    """The share of each tenth, lowest first: the integral of ``percentile^beta`` over it."""
    beta = (1 - floor) / (keep - floor) - 1
    return floor + (1 - floor) * TENTHS.pow(beta + 1).diff() / (beta + 1) * 10


def floored(scores):
    return by_power(scores, floor=0.1)


def highest(scores):
    return torch.tensor([0.0] * 4 + [0.5] + [1.0] * 5, dtype=torch.float64)


def even(scores):
    return torch.full((10,), KEEP, dtype=torch.float64)


def in_proportion(scores):
    """Without replacement: ``min(1, c s)`` with c such that the mean is the share."""
    scores, low, high = scores.double(), 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((middle * scores).clamp(max=1).mean()) < KEEP else (
            low, middle,
        )  # fmt: skip
    return (low * scores).clamp(max=1).view(10, -1).mean(1)


def at_least_once(scores):
    """With replacement: ``1 - (1 - g)^k`` for a score of share g."""
    scores, count = scores.double(), KEEP * len(scores)
    return -torch.expm1(count * torch.log1p(-scores / scores.sum())).view(10, -1).mean(1)


def started(**arguments):
    selector = Kath18(keep=KEEP, threshold=0, **arguments)
    selector.select(torch.ones(8), seeded())  # importance sampling is on from the second batch on
    return selector


def in_batch():
    chosen = InBatch(keep=KEEP)
    chosen.select_from = lambda scores, generator, count=None: chosen.select(scores)
    return chosen


ROWS = {
    "percentile": (lambda: Percentile(keep=KEEP), False, by_power),
    "percentile, exact": (lambda: Percentile(keep=KEEP), True, by_power),
    "percentile with a floor": (
        lambda: Percentile(keep=KEEP, floor=0.1), False, floored,
    ),
    "uniform": (lambda: Uniform(keep=KEEP), False, even),
    "uniform, exact": (lambda: Uniform(keep=KEEP), True, even),
    "all, exact": (All, True, even),
    "top-k": (lambda: TopK(keep=KEEP), False, highest),
    "soft top-k, of little noise": (lambda: SoftTopK(keep=KEEP, temperature=1e-9), False, highest),
    "soft top-k, of much noise": (lambda: SoftTopK(keep=KEEP, temperature=1e9), True, even),
    "in-batch rank": (lambda: InBatchRank(keep=KEEP), False, by_power),
    "moving threshold": (lambda: Threshold(keep=KEEP), False, highest),
    "moving threshold, exact": (lambda: Threshold(keep=KEEP), True, highest),
    "fixed threshold": (lambda: Threshold(above=4.5), False, highest),
    "unbiased": (
        lambda: Unbiased(Percentile(keep=0.5), floor=0.1), False, floored,
    ),
    "unbiased, exact": (
        lambda: Unbiased(Percentile(keep=0.5), floor=0.1), True, floored,
    ),
    "kath18": (started, False, at_least_once),
    "kath18 without replacement": (
        lambda: started(replace=False), False, in_proportion,
    ),
    "kath18 before its start": (lambda: Kath18(keep=KEEP), False, even),
    "in a step": (in_batch, False, by_power),
}  # fmt: skip


def scores_of(count):
    """From 0 to 10, ascending, so that tenths lie one after another."""
    return torch.linspace(0, 10, count, dtype=torch.float64).float()


@pytest.mark.sampled(3)
@pytest.mark.red
@pytest.mark.parametrize("name", ROWS)
def test_a_selector_keeps_its_share_of_each_tenth(name, asked):
    make, is_exact, expected = ROWS[name]
    size = max(MANY if name in ALWAYS else 0, asked("scores") // 10 * 10)
    scores, count = scores_of(size), round(KEEP * size)
    selector = make()
    select = getattr(selector, "select_from", selector.select)
    positions, weights = select(scores, seeded(), count if is_exact else None)
    assert positions.dtype == torch.int64
    assert weights.dtype == torch.float32
    assert bool((positions.diff() > 0).all()), "each at most once, ascending"
    shares = torch.bincount(positions // (size // 10), minlength=10).double() / (size // 10)
    by_chance = 5 / (size / 10) ** 0.5  # ten standard deviations
    torch.testing.assert_close(shares, expected(scores), rtol=0, atol=by_chance)
    if is_exact or name in ("top-k", "in-batch rank", "in a step"):
        assert len(positions) == count
    if "unbiased" in name or name == "kath18 without replacement":
        # The weighted mean over the kept is the mean over all.
        mean = (scores[positions].double() * weights).sum() / count
        torch.testing.assert_close(mean, scores.double().mean(), rtol=2 * by_chance, atol=0)


def test_ranks_in_a_long_history_are_told_apart():
    history = scores_of(1 << 25)
    places = torch.tensor([0, 1, 12345, (1 << 24) + 3, (1 << 25) - 2, (1 << 25) - 1])
    below, up_to = rank_shares(history[places], history)
    expected = torch.tensor([[float((history < x).sum()), float((history <= x).sum())]
                             for x in history[places]], dtype=torch.float64)  # fmt: skip
    assert torch.equal(torch.stack((below, up_to), 1) * (1 << 25), expected)
    assert bool(percentile_probabilities(below, up_to, BETA).isfinite().all())
    assert bool(threshold_probabilities(below, up_to, KEEP).isfinite().all())


def test_many_scores_are_ranked_as_few_are():
    """Of more than a million in order, and of fewer as they come."""
    scores = torch.rand((1 << 20) + 7, generator=seeded()).mul(1000).round()
    history = torch.rand(1000, generator=seeded(1)).mul(1000).round()
    found = rank_shares(scores, history)
    parts = [rank_shares(part, history) for part in scores.split(1 << 16)]
    for side, pieces in zip(found, zip(*parts, strict=True), strict=True):
        assert torch.equal(side, torch.cat(pieces))


def test_ordinary_batches_stay_in_float32():
    below, up_to = LossHistory(1024).rank(torch.rand(512, generator=seeded()))
    assert below.dtype == up_to.dtype == torch.float32
    assert Percentile(keep=KEEP).probabilities(torch.rand(512)).dtype == torch.float32
