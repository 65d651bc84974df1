"""Every selector of the library through one table, against all selections its paper allows."""

import inspect
import math

import pytest
import torch

import selections as slow
import siftback
from host_waits import HostWaits
from resuming import check_resumes, selecting
from selector_table import FAMILY
from siftback import InBatchRank, Kath18, SoftTopK, Threshold, TopK, Unbiased
from siftback.errors import ConfigError
from toys import All, seeded

LARGE = 3.4e38
NAMES = list(FAMILY)
every = pytest.mark.parametrize("name", NAMES)

SCORES = [0.5, 3.0, 1.0, 1.0, 2.0, 0.25]  # two alike, at the edge of the three highest
PERMUTED = [1.0, 0.25, 3.0, 1.0, 0.5, 2.0]
ALIKE = [2.0] * 6
KEEP, COUNT, TRIALS = 1 / 2, 3, 800


def made(name, keep=KEEP):
    return FAMILY[name].make(keep)


def sampled(name, scores, generator):
    """float64[TRIALS, N], the weights of first selections; 0 where a row is not kept."""
    weights = torch.zeros(TRIALS, len(scores), dtype=torch.float64)
    scores = torch.tensor(scores)
    for trial in weights:
        kept = made(name).select(scores, generator)
        trial[kept.positions] = kept.weights.double()
    return weights


def assert_near(values, expected, variances):
    """Means of so many trials within five standard deviations: the odds against are 10^6."""
    for value, mean, variance in zip(values, expected, variances, strict=True):
        assert abs(value - mean) <= 5 * math.sqrt(max(variance, 0) / TRIALS) + 2e-4


def test_every_public_selector_has_a_row():
    public = [each for name, each in vars(siftback).items() if not name.startswith("_")]
    selectors = {c for c in public if inspect.isclass(c) and hasattr(c, "select")}
    selectors = selectors - {siftback.Selector, siftback.InBatch} | {All}
    assert selectors == {type(made(name)) for name in NAMES}


@every
@pytest.mark.parametrize("scores", [SCORES, PERMUTED, ALIKE], ids=["one", "permuted", "alike"])
@pytest.mark.sampled(3)
def test_it_selects_and_weighs_as_its_paper_says(name, scores):
    outcomes = list(FAMILY[name].outcomes(scores, KEEP, COUNT))
    assert sum(probability for probability, _ in outcomes) == pytest.approx(1)
    rows = range(len(scores))
    weights = sampled(name, scores, seeded(1))
    probabilities = [sum(p for p, kept in outcomes if row in kept) for row in rows]
    kept = (weights > 0).double().mean(0).tolist()
    assert_near(
        kept, probabilities, [probability * (1 - probability) for probability in probabilities]
    )
    means = [slow.moment(outcomes, row, 1) for row in rows]
    variances = [slow.moment(outcomes, row, 2, means[row]) for row in rows]
    assert_near(weights.mean(0).tolist(), means, variances)
    squares = (weights - torch.tensor(means, dtype=torch.float64)).square().mean(0).tolist()
    fourth = [slow.moment(outcomes, row, 4, means[row]) for row in rows]
    assert_near(squares, variances, [f - v**2 for f, v in zip(fourth, variances, strict=True)])


@every
@pytest.mark.parametrize("scores", [SCORES, PERMUTED, ALIKE], ids=["one", "permuted", "alike"])
def test_the_probabilities_it_gives_are_those_it_has(name, scores):
    selector = made(name)
    if name == "soft top-k":
        assert not hasattr(selector, "probabilities")
        return
    outcomes = list(FAMILY[name].outcomes(scores, KEEP, COUNT))
    expected = [sum(p for p, kept in outcomes if r in kept) for r in range(len(scores))]
    assert selector.probabilities(torch.tensor(scores)).tolist() == pytest.approx(
        expected, abs=1e-3
    )


@every
def test_probabilities_follow_their_examples(name):
    if name == "soft top-k":
        return
    scores = torch.randint(20, (300,), generator=seeded(2)).float()
    order = torch.randperm(300, generator=seeded(3))
    one, other = made(name).probabilities(scores), made(name).probabilities(scores[order])
    torch.testing.assert_close(one[order], other)
    assert ((one >= 0) & (one <= 1)).all()


@every
@pytest.mark.parametrize("keep", [0.1, 1 / 3, 0.75])
def test_the_share_kept_is_the_one_asked_for(name, keep):
    row, generator, size = FAMILY[name], seeded(4), 200
    selector = row.make(keep)
    asked = row.floor + (1 - row.floor) * keep
    if row.keeps:
        assert selector.keep == pytest.approx(asked)
    kept = []
    for scores in torch.rand(20, size, generator=seeded(5)):
        expected = asked * size
        if not row.keeps:
            state = selector.state_dict()
            expected = float(selector.probabilities(scores).sum())
            selector.load_state_dict(state)
        kept.append(len(selector.select(scores, generator).positions) - expected)
    if row.exact:
        assert set(kept) == {round(asked * size) - asked * size}
    # Of probabilities as different as can be, the number kept varies most where all are the share.
    assert abs(sum(kept)) <= 5 * math.sqrt(20 * size / 4) + 0.5 * len(kept)


@every
@pytest.mark.parametrize("scores", [SCORES, ALIKE], ids=["different", "alike"])
def test_the_expected_weighted_sum_is_the_data_s_where_it_reweighs(name, scores):
    """From the outcomes alone: that what they say is what training wants."""
    if not getattr(made(name), "reweight", name in ("unbiased", "unbiased top-k")):
        return
    outcomes = list(FAMILY[name].outcomes(scores, KEEP, COUNT))
    values = [math.sin(row) for row in range(6)]
    if name.startswith("unbiased"):
        size = 6 * made(name).keep
        found = sum(p * sum(w * values[r] for r, w in kept.items()) / size for p, kept in outcomes)
    else:
        found = sum(
            p * sum(w * values[r] for r, w in kept.items()) / len(kept) for p, kept in outcomes
        )
    assert found == pytest.approx(sum(values) / 6, abs=1e-6)


@every
def test_of_one_example_it_keeps_that_or_none(name):
    for value in (0.0, 0.3, 7.0):
        selector, generator = made(name), seeded()
        for _ in range(20):
            positions, weights = selector.select(torch.tensor([value]), generator)
            assert positions.tolist() in ([], [0])
            assert weights.shape == positions.shape
            assert ((weights > 0) & weights.isfinite()).all()
        assert selector.select(torch.tensor([value]), generator, 1).positions.tolist() == [0]


@every
def test_keeping_all_keeps_all(name):
    scores = torch.rand(40, generator=seeded(6))
    positions, weights = made(name, 1.0).select(scores, seeded())
    if name.startswith("kath18") and FAMILY[name].keeps is False:  # some come up twice
        assert weights.mean() == pytest.approx(1, rel=0.5)
    elif name == "fixed threshold":
        assert positions.tolist() == (scores > 1).nonzero().flatten().tolist()
    else:
        assert positions.tolist() == list(range(40))
        torch.testing.assert_close(weights, torch.ones(40))


EXTREME = {
    "zeros": [0.0] * 9,
    "alike": [3.5] * 9,
    "the largest": [LARGE] * 9,
    "one above all": [0.0] * 8 + [LARGE],
    "far apart": [1e-38, 1.0, LARGE, 0.0, 1e-45, 1e30, 2.0, 3.0, 4.0],
    "negative": [-LARGE, -1.0, -2.0, 0.0, 1.0, LARGE, -3.0, -0.5, 0.25],
    "all negative": [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0],
}


@pytest.mark.sampled(3)
@every
@pytest.mark.parametrize("scores", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("count", [None, 1, 4, 9])
def test_extreme_scores_leave_a_selection(name, scores, count):
    selector, generator, scores = made(name), seeded(), torch.tensor(scores)
    for _ in range(10):
        positions, weights = selector.select(scores, generator, count)
        assert (positions.diff() > 0).all()
        assert ((positions >= 0) & (positions < 9)).all()
        assert weights.shape == positions.shape
        assert (weights.isfinite() & (weights >= 0)).all()
        if count is not None:
            assert len(positions) == count
    if hasattr(selector, "probabilities"):
        probabilities = selector.probabilities(scores)
        assert ((probabilities >= 0) & (probabilities <= 1)).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_are_as_good(name, dtype):
    scores = torch.rand(64, generator=seeded(7)).to(dtype)
    for count in (None, 8):
        one = made(name).select(scores, seeded(), count)
        other = made(name).select(scores.float(), seeded(), count)
        assert one.positions.equal(other.positions)
        assert one.weights.dtype == torch.float32
        assert one.weights.equal(other.weights)


@every
@pytest.mark.parametrize("count", [1, 7, 30])
def test_a_count_is_chosen_without_waiting_for_the_device(name, count):
    selector, generator = made(name), seeded()
    for scores in torch.rand(3, 30, generator=seeded(12)):
        with HostWaits() as waits:
            positions, _ = selector.select(scores, generator, count)
        assert waits.seen == []
        assert len(positions) == count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
@every
@pytest.mark.parametrize("count", [None, 10])
def test_a_device_selects_what_the_cpu_does(name, count):
    scores = torch.rand(64, generator=seeded(13))
    here, there = made(name), made(name)
    for _ in range(3):
        one = here.select(scores, seeded(1), count)
        two = there.select(scores.cuda(), seeded(1), count)
        assert two.positions.is_cuda
        assert two.weights.is_cuda
        assert two.positions.cpu().equal(one.positions)
        torch.testing.assert_close(two.weights.cpu(), one.weights)


@every
@pytest.mark.parametrize("count", [None, 10])
def test_stopping_anywhere_equals_never_stopping(name, count):
    batches = torch.rand(4, 30, generator=seeded(8))
    check_resumes(selecting(lambda: made(name), batches, count))


@every
def test_a_state_is_not_changed_by_what_comes_after(name):
    selector, generator = made(name), seeded()
    scores = torch.rand(30, generator=seeded(8))
    selector.select(scores, generator)
    state = selector.state_dict()
    before = repr(state)
    selector.select(2 * scores, generator)
    assert repr(state) == before


@every
def test_its_generator_decides_and_no_global_one(name):
    scores = torch.rand(100, generator=seeded(9))
    before = torch.get_rng_state()
    one, two = (made(name).select(scores, seeded(1)) for _ in range(2))
    assert one.positions.equal(two.positions)
    assert one.weights.equal(two.weights)
    assert torch.get_rng_state().equal(before)


@every
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_share_that_is_changed_is_kept_from_then_on(name, keep):
    selector = made(name)
    if not hasattr(selector, "set_keep"):
        assert name == "all"
        return
    if name == "fixed threshold":
        with pytest.raises(ConfigError, match=r"fixed at 1.0 and has no share"):
            selector.set_keep(keep)
        return
    row = FAMILY[name]
    fresh = row.make((keep - row.floor) / (1 - row.floor))
    selector.set_keep(keep)
    assert selector.keep == pytest.approx(fresh.keep)
    scores = torch.rand(50, generator=seeded(10))
    assert selector.select(scores, seeded()).positions.equal(
        fresh.select(scores, seeded()).positions
    )
    with pytest.raises(ConfigError, match=r"keep=.*give a"):
        selector.set_keep(1.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Kath18(keep=0), r"keep=0: give a share"),
        (lambda: Kath18(keep=0.5, threshold=-1), r"threshold=-1: give a finite number, at least 0"),
        (lambda: Kath18(keep=0.5, momentum=1), r"momentum=1: give a share in \[0, 1\)"),
        (lambda: TopK(keep=2), r"keep=2: give a share"),
        (lambda: InBatchRank(keep=-1), r"keep=-1: give a share"),
        (lambda: SoftTopK(keep=0.5, temperature=0), r"temperature=0: give a finite number above 0"),
        (lambda: Threshold(), r"above=None and keep=None: give one of them"),
        (lambda: Threshold(above=1, keep=0.5), r"above=1 and keep=0.5: give one of them"),
        (lambda: Threshold(above=math.inf), r"above=inf: give a finite number"),
        (lambda: Unbiased(SoftTopK(keep=0.5)), r"SoftTopK has no method probabilities"),
        (lambda: Unbiased(All(), floor=1), r"floor=1: give a share in \[0, 1\)"),
        (lambda: Unbiased(All()).set_keep(0.5), r"All has no share to change"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
