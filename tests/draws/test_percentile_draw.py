"""Draws by percentile: exactly k, each example with the probability that is stated."""

import decimal

import pytest
import torch

from reference import shared_probability
from remembering import spread
from selections import check_shares
from siftback.draws.histogram_draw import tied_probabilities
from siftback.draws.percentile_draw import draw_by_percentile, draw_probabilities
from toys import seeded

SCORES = {
    "distinct": spread(30).tolist(),
    "ties": [1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 0.0, -0.0, -1.0, 5.0],
    "all the same": [0.25] * 7,
    "infinite": [1.0, float("inf"), 2.0, float("inf"), float("-inf"), 3.0],
    "a single one": [4.0],
}


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize(("beta", "floor"), [(1.0, 0.1), (2.0, 0.0), (0.5, 0.3), (0.0, 0.5)])
def test_probabilities_are_those_of_the_reference(scores, beta, floor):
    found = draw_probabilities(torch.tensor(scores), beta, floor)
    expected = [floor + (1 - floor) * shared_probability(scores, loss, beta) for loss in scores]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    assert float(found.sum()) == pytest.approx(len(scores) * (floor + (1 - floor) / (beta + 1)))


DRAWS = 1000


@pytest.mark.parametrize(
    ("beta", "floor", "count"), [(1.0, 0.1, 11), (4.0, 0.0, 4), (0.6, 0.2, 14)]
)
def test_exactly_so_many_are_drawn_each_with_its_probability(beta, floor, count):
    scores, generator = spread(20), seeded(1)  # count is 20 * (floor + (1 - floor) / (beta + 1))
    drawn = torch.stack(
        [draw_by_percentile(scores, beta, floor, count, generator) for _ in range(DRAWS)]
    )
    assert drawn.dtype == torch.float32
    assert ((drawn == 0) | (drawn == 1)).all()
    assert (drawn.sum(1) == count).all()
    expected = draw_probabilities(scores, beta, floor)
    assert float(expected.sum()) == pytest.approx(count)
    check_shares(drawn, expected)


def test_what_has_no_score_is_kept_and_the_rest_drawn_in_proportion():
    scores, generator = spread(20), seeded(2)
    scores[[3, 7, 11]] = torch.nan
    drawn = torch.stack([draw_by_percentile(scores, 1.0, 0.1, 11, generator) for _ in range(DRAWS)])
    assert (drawn.sum(1) == 11).all()
    assert (drawn[:, [3, 7, 11]] == 1).all()
    known = ~scores.isnan()
    proportions = draw_probabilities(scores[known], 1.0, 0.1)
    expected = proportions * 8 / proportions.sum()
    assert expected.max() < 1
    check_shares(drawn[:, known], expected)


def test_of_more_without_a_score_than_are_drawn_all_are_equally_probable():
    scores, generator = torch.full((12,), torch.nan), seeded(3)
    scores[[2, 5]] = 9.0
    drawn = torch.stack([draw_by_percentile(scores, 1.0, 0.1, 4, generator) for _ in range(DRAWS)])
    assert (drawn.sum(1) == 4).all()
    assert (drawn[:, [2, 5]] == 0).all()
    check_shares(drawn[:, scores.isnan()], [0.4] * 10)


@pytest.mark.parametrize("known", [0, 3, 6])
def test_none_and_all_may_be_drawn(known):
    scores = torch.cat((spread(6)[:known], torch.full((6 - known,), torch.nan)))
    for count in (0, 6):
        drawn = draw_by_percentile(scores, 1.0, 0.1, count, seeded(0))
        assert drawn.tolist() == [float(count > 0)] * 6
    assert draw_by_percentile(scores[:0], 1.0, 0.1, 0, seeded(0)).tolist() == []


@pytest.mark.parametrize("beta", [1.0, 0.5, 3.0])
def test_more_examples_than_a_float32_counts(beta):
    """Above 2^24 the shares of neighbouring ranks are the same float32: 0 / 0 there."""
    sizes = torch.tensor([2**23, 1, 3, 2**24, *[1] * 5000, 4099])
    size, below, floor = int(sizes.sum()), 0, 0.1
    probabilities = tied_probabilities(sizes, beta, floor)
    assert probabilities.isfinite().all()
    assert (probabilities.diff() > 0).all()
    assert float((probabilities * sizes).sum() / size) == pytest.approx(
        floor + (1 - floor) / (beta + 1), abs=1e-12
    )
    for count, found in zip(sizes.tolist(), probabilities.tolist(), strict=True):
        ends = [(decimal.Decimal(end) / size) ** decimal.Decimal(beta + 1)
                for end in (below, below + count)]  # fmt: skip
        mean = float((ends[1] - ends[0]) * size / count) / (beta + 1)
        assert found == pytest.approx(floor + (1 - floor) * mean, rel=1e-8)
        below += count


def test_exactly_so_many_of_a_million_are_drawn():
    size = 2**20 + 4099
    scores = torch.arange(size).double().sqrt().float()  # many are distinct
    scores[-5000:] = scores[-1]
    count = round(0.55 * size)
    drawn = draw_by_percentile(scores, 1.0, 0.1, count, seeded(0)) > 0
    assert int(drawn.sum()) == count
    quarters = drawn.double().tensor_split(4)
    expected = [0.1 + 0.9 * (2 * quarter + 1) / 8 for quarter in range(4)]
    # In a random order, of systematic samples: less than of independent ones.
    error = 4.5 * (0.25 / (size / 4)) ** 0.5
    assert [float(part.mean()) for part in quarters] == pytest.approx(expected, abs=error)
