"""Selectors against Algorithm 2, and the share that they keep."""

import copy
from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import batch_first, mid_rank_probability, one_at_a_time, shared_probability
from resuming import check_resumes, selecting
from siftback import InBatchRank, Percentile, Uniform
from siftback.errors import ConfigError, StateError
from siftback.selectors.percentile import LossHistory, percentile_probabilities
from toys import All, seeded

BETAS = (0.0, 0.5, 1.0, 2.0, 4.0)
SELECTORS = {
    "percentile": lambda: Percentile(keep=1 / 3, history=50),
    "uniform": lambda: Uniform(keep=1 / 3),
    "all": All,
}
every_selector = pytest.mark.parametrize("make", SELECTORS.values(), ids=SELECTORS)
betas = st.sampled_from(BETAS)
some_losses = st.lists(
    st.integers(0, 5).map(float) | st.floats(0, 100, width=32), min_size=1, max_size=60
)


def kept_of(selector, losses, generator):
    return selector.select(torch.as_tensor(losses), generator).positions.tolist()


@given(some_losses, betas, st.integers(1, 40))
def test_batch_of_one_is_algorithm_2(losses, beta, size):
    selector, draws, generator = Percentile(beta=beta, history=size), seeded(), seeded()
    probabilities = one_at_a_time(losses, deque(maxlen=size), beta, shared_probability)
    expected = [
        torch.rand(1, generator=draws).item() < probability for probability in probabilities
    ]
    assert [bool(kept_of(selector, [loss], generator)) for loss in losses] == expected


@given(st.lists(some_losses, min_size=1, max_size=4), betas, st.integers(1, 80))
def test_batches_are_algorithm_2_where_the_batch_joins_first(batches, beta, size):
    selector, draws, generator = Percentile(beta=beta, history=size), seeded(), seeded()
    history = deque(maxlen=size)
    for losses in batches:
        probabilities = batch_first(losses, history, beta, shared_probability)
        drawn = torch.rand(len(losses), generator=draws).tolist()
        expected = [
            row for row, probability in enumerate(probabilities) if drawn[row] < probability
        ]
        assert kept_of(selector, losses, generator) == expected


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, 4.0])
def test_selections_are_those_of_eq_1_as_printed(beta):
    # Losses without equals in a long history: mid-rank^beta differs by O(1/R^2) only.
    losses = torch.rand(20, 64, generator=seeded(1))
    selector, draws, generator = Percentile(beta=beta, history=1024), seeded(), seeded()
    history = deque(maxlen=1024)
    for batch in losses:
        probabilities = batch_first(batch.tolist(), history, beta, mid_rank_probability)
        drawn = torch.rand(64, generator=draws).tolist()
        expected = [
            row for row, probability in enumerate(probabilities) if drawn[row] < probability
        ]
        assert kept_of(selector, batch, generator) == expected


@given(some_losses, betas)
def test_probabilities_are_the_mean_over_shared_percentiles(losses, beta):
    shares = LossHistory().rank(torch.tensor(losses))
    expected = [shared_probability(losses, loss, beta) for loss in losses]
    assert percentile_probabilities(*shares, beta).tolist() == pytest.approx(expected, abs=2e-6)


@given(some_losses, betas)
def test_probabilities_of_a_whole_history_sum_to_its_share_also_with_ties(losses, beta):
    probabilities = percentile_probabilities(*LossHistory().rank(torch.tensor(losses)), beta)
    assert probabilities.double().sum().item() == pytest.approx(len(losses) / (beta + 1), rel=1e-5)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


@given(some_losses, betas)
def test_higher_losses_have_higher_probabilities_and_equal_ones_equal(losses, beta):
    scores = torch.tensor(losses).sort().values
    probabilities = percentile_probabilities(*LossHistory().rank(scores), beta)
    assert (probabilities.diff()[scores.diff() == 0] == 0).all()
    assert (probabilities.diff() >= 0).all()


@pytest.mark.parametrize("selector", [Percentile(keep=0.5), InBatchRank(keep=0.5)])
def test_a_column_of_scores_is_selected_by_as_a_copy_of_it_without_a_warning(selector):
    column = torch.rand(64, 3, generator=seeded())[:, 0]
    kept = []
    torch.set_warn_always(True)  # PyTorch otherwise warns once, maybe in another test
    try:
        for scores in (column, column.contiguous()):
            kept.append(copy.deepcopy(selector).select(scores, seeded(1), 32).positions)
    finally:
        torch.set_warn_always(False)
    assert torch.equal(*kept)


def test_probabilities_stay_right_in_a_history_too_long_to_tell_neighbours_apart_in_float32():
    ranks = torch.arange(1, 2**22 + 1, dtype=torch.float64) / 2**22
    probabilities = percentile_probabilities((ranks - 2**-22).float(), ranks.float(), beta=2.0)
    assert (probabilities - ranks.pow(2)).abs().max() < 1e-6


@pytest.mark.parametrize("keep", [0.01, 0.1, 1 / 3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", [Percentile, Uniform])
@pytest.mark.parametrize("values", [2, 1000, 10**9], ids=["two values", "ties", "no ties"])
def test_kept_share_converges_to_what_was_asked(kind, keep, values):
    selector, generator = kind(keep=keep), seeded(3)
    batches = torch.randint(values, (200, 128), generator=seeded(4)).float()
    kept = sum(len(selector.select(losses, generator).positions) for losses in batches)
    deviation = (keep * (1 - keep) / batches.numel()) ** 0.5
    assert abs(kept / batches.numel() - keep) <= 4 * deviation


def test_keep_and_beta_are_one_knob():
    assert Percentile(keep=0.25).beta == 3
    assert Percentile(beta=3).keep == 0.25
    generators = seeded(), seeded()
    losses = torch.rand(500, generator=seeded(9))
    one = kept_of(Percentile(keep=0.25), losses, generators[0])
    assert one == kept_of(Percentile(beta=3.0), losses, generators[1])
    assert Percentile(beta=1e30, floor=0.1).keep == 0.1  # of which no `keep` gives the exponent


@pytest.mark.parametrize("keep", [0, -0.5, 1.5, float("nan"), float("inf"), "a third", True, [0.5]])
@pytest.mark.parametrize("kind", [Percentile, Uniform])
def test_a_keep_outside_its_range_is_refused(kind, keep):
    with pytest.raises(ConfigError, match=r"keep=.*: give a share in \(0, 1\]"):
        kind(keep=keep)


@pytest.mark.parametrize("beta", [-1, float("nan"), float("inf"), "two", False])
def test_a_beta_outside_its_range_is_refused(beta):
    with pytest.raises(ConfigError, match=r"beta=.*: give a finite number, at least 0"):
        Percentile(beta=beta)


@pytest.mark.parametrize("knobs", [{}, {"keep": 0.5, "beta": 1.0}])
def test_both_knobs_or_none_are_refused(knobs):
    with pytest.raises(ConfigError, match=r"give one of them, keep = 1 / \(beta \+ 1\)"):
        Percentile(**knobs)


@every_selector
@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_selection_is_positions_in_order_and_their_weights(make, count, dtype):
    scores = torch.rand(count, generator=seeded(count)).to(dtype)
    positions, weights = make().select(scores, seeded())
    assert positions.dtype == torch.int64
    assert (positions.diff() > 0).all()
    assert ((positions >= 0) & (positions < count)).all()
    assert weights.float().equal(torch.ones(len(positions)))


@every_selector
def test_a_seed_decides_and_nothing_else(make):
    scores = torch.rand(300, generator=seeded(5))
    before = torch.get_rng_state()
    assert kept_of(make(), scores, seeded(1)) == kept_of(make(), scores, seeded(1))
    assert torch.get_rng_state().equal(before)


@every_selector
def test_stopping_anywhere_equals_never_stopping(make):
    check_resumes(selecting(make, torch.rand(5, 30, generator=seeded(6))))


def test_a_state_of_another_history_is_refused():
    with pytest.raises(StateError, match="size=10, and this LossHistory has size=20"):
        Percentile(keep=0.5, history=20).load_state_dict(
            Percentile(keep=0.5, history=10).state_dict()
        )
