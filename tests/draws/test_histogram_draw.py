"""Draws by a histogram: exactly k, each example with the probability of its percentile."""

import pytest
import torch

from siftback.draws.histogram_draw import (
    buckets_of,
    draw_in_blocks,
    histogram,
    scale_to_count,
    tied_probabilities,
    values_of,
)
from siftback.draws.percentile_draw import draw_by_percentile, draw_probabilities
from siftback.selectors.sampling import inclusion_probabilities
from toys import seeded

INFINITE = float("inf")


def drawn(scores, count, draws, beta=1.0, floor=0.1, block=256):
    """bool[draws, N], of few draws of many, as each counts all buckets."""
    generator = seeded(5)

    def proportions(_, sizes):
        return tied_probabilities(sizes, beta, floor)

    found = torch.stack(
        [draw_in_blocks(scores, proportions, count, generator, block=block) for _ in range(draws)]
    )
    assert ((found == 0) | (found == 1)).all()
    assert (found.sum(1) == count).all()
    return found.bool()


def test_buckets_are_in_the_order_of_the_scores_and_narrow():
    scores = torch.cat(
        (
            torch.tensor([-INFINITE, -3.4e38, -1.0, -1e-45, 0.0, 1e-45, 1.0, 3.4e38, INFINITE]),
            torch.randn(5000, generator=seeded(0)).double().exp().float(),
        )
    ).sort()
    buckets = buckets_of(scores.values)
    assert (buckets.diff() >= 0).all()
    assert buckets.min() >= 0
    assert buckets.max() < 2**22
    equal = buckets.diff() == 0
    low, high = scores.values[:-1][equal], scores.values[1:][equal]
    finite = high.isfinite() & (high.abs() > 1e-30)
    assert ((high - low)[finite] <= high[finite].abs() * 2**-13).all()
    assert buckets_of(torch.tensor([0.0])) == buckets_of(torch.tensor([-0.0]))


def test_the_value_of_a_bucket_is_in_it_and_of_its_scores_nearest_to_0():
    scores = torch.randn(5000, generator=seeded(0)).double().exp().float()
    scores = torch.cat((scores, -scores, torch.tensor([-INFINITE, -0.0, 0.0, INFINITE])))
    values = values_of(buckets_of(scores))
    assert torch.equal(buckets_of(values), buckets_of(scores))
    assert (values.abs() <= scores.abs()).all()
    assert values[-4:].tolist() == [-INFINITE, 0.0, 0.0, INFINITE]


def test_the_histogram_counts_everything_once():
    scores = torch.tensor([1.0, 2.0, torch.nan, 1.0, INFINITE, torch.nan])
    counts, unknown = histogram(scores)
    assert unknown == 2
    assert counts[buckets_of(torch.tensor([1.0, 2.0, INFINITE]))].tolist() == [2, 1, 1]
    assert int(counts.sum()) == 4


@pytest.mark.parametrize("count", [1, 5, 12, 19, 20])
def test_groups_are_scaled_as_their_examples_would_be(count):
    sizes = torch.tensor([3, 1, 9, 7])
    probabilities = torch.tensor([0.9, 0.05, 0.3, 0.6]).double()
    expected = inclusion_probabilities(probabilities.repeat_interleave(sizes), count)
    found = scale_to_count(count, probabilities, sizes).repeat_interleave(sizes)
    torch.testing.assert_close(found, expected)
    assert float(found.sum()) == pytest.approx(count)


@pytest.mark.parametrize(("beta", "floor"), [(1.0, 0.1), (3.0, 0.0), (0.0, 0.5)])
def test_each_is_drawn_with_the_probability_of_its_percentile(beta, floor):
    size, draws = 60_000, 2
    scores = torch.rand(size, generator=seeded(1)) + 1
    count = round(size * (floor + (1 - floor) / (beta + 1)))
    found = drawn(scores, count, draws, beta, floor)
    expected = draw_probabilities(scores, beta, floor)
    for group in expected.argsort().tensor_split(20):
        mean = float(expected[group].mean())
        error = 4.5 * (mean * (1 - mean) / (len(group) * draws)) ** 0.5 + 1e-3
        assert float(found[:, group].double().mean()) == pytest.approx(mean, abs=error)


def test_pairs_are_drawn_together_no_more_often_than_by_chance():
    """Also those in a row, and those in the same place of neighbouring blocks."""
    found = drawn(torch.ones(32768), 16384, 2, beta=0.0, floor=0.5, block=128)
    for distance in (1, 2, 128, 512):
        together = (found[:, distance:] & found[:, :-distance]).double().mean()
        assert float(together) == pytest.approx(0.25, abs=0.01)


def test_what_is_unknown_is_drawn_first():
    scores = torch.rand(5000, generator=seeded(2))
    scores[::10] = torch.nan
    found = drawn(scores, 2000, 2)
    assert found[:, ::10].all()
    known = draw_probabilities(scores[~scores.isnan()], 1.0, 0.1)
    hardest = known > known.quantile(0.9)
    expected = float((known * 1500 / known.sum())[hardest].mean())
    assert float(found[:, ~scores.isnan()][:, hardest].double().mean()) == pytest.approx(
        expected, abs=0.05
    )


def test_infinite_scores_are_the_highest_and_the_lowest():
    scores = torch.rand(10_000, generator=seeded(8))
    scores[::4], scores[1::4] = INFINITE, -INFINITE
    found = drawn(scores, 5000, 2, beta=40.0, floor=0.0)
    assert found[:, ::4].all()
    assert not found[:, 1::4].any()


def test_of_more_unknown_ones_all_are_equally_probable():
    scores = torch.full((10_000,), torch.nan)
    scores[5000:] = 1.0
    found = drawn(scores, 1000, 2)
    assert not found[:, 5000:].any()
    parts = found[:, :5000].double().mean(0).tensor_split(5)
    assert [float(part.mean()) for part in parts] == pytest.approx([0.2] * 5, abs=0.03)


def test_the_others_are_drawn_as_if_the_excluded_were_not_there():
    size, draws, count = 20_000, 2, 7000
    scores = torch.rand(size, generator=seeded(6)) + 0.1
    scores[::7] = torch.nan
    excluded = torch.cat((torch.arange(0, 6000, 2), torch.arange(19_000, size)))
    generator = seeded(7)
    found = torch.stack(
        [
            draw_in_blocks(
                scores, lambda values, _: values.double(), count, generator,
                excluded=excluded, block=256,
            )
            for _ in range(draws)
        ]
    )  # fmt: skip
    assert (found.sum(1) == count).all()
    others = torch.ones(size, dtype=torch.bool).index_fill_(0, excluded, False)
    assert not found[:, ~others].any()
    unknown = others & scores.isnan()
    assert found[:, unknown].all()
    known = others & ~unknown
    expected = inclusion_probabilities(scores[known].double(), count - int(unknown.sum()))
    means = found[:, known].double().mean(0)
    for group in expected.argsort().tensor_split(5):
        mean = float(expected[group].mean())
        error = 4.5 * (mean * (1 - mean) / (len(group) * draws)) ** 0.5
        assert float(means[group].mean()) == pytest.approx(mean, abs=error)


@pytest.mark.parametrize("count", [0, 1, 999, 1000])
def test_few_and_all_may_be_drawn(count):
    drawn(torch.rand(1000, generator=seeded(3)), count, 1)


def test_the_same_generator_draws_the_same():
    scores = torch.rand(2000, generator=seeded(4))
    assert torch.equal(drawn(scores, 900, 2), drawn(scores, 900, 2))
    one, other = drawn(scores, 900, 2)
    assert not torch.equal(one, other)


@pytest.mark.slow
def test_of_seventeen_million_the_hardest_are_drawn_most():
    size = 17_000_000  # more than 2**24, at which float32 no longer counts
    scores = torch.arange(size, dtype=torch.float32).remainder_(1 << 23)
    found = draw_by_percentile(scores, 1.0, 0.1, round(0.55 * size), seeded(0))
    assert int(found.count_nonzero()) == round(0.55 * size)
    hardest = scores >= 0.9 * (1 << 23)
    assert float(found[hardest].double().mean()) == pytest.approx(0.955, abs=0.01)
    assert float(found[~hardest].double().mean()) == pytest.approx(0.505, abs=0.01)
