"""The choice among the losses of a batch: how many, which, and when."""

import pytest
import torch

from resuming import check_resumes
from selections import check_shares
from siftback import (
    Annealing,
    Epochs,
    InBatch,
    Kath18,
    Percentile,
    Schedule,
    Share,
    SoftTopK,
    Threshold,
    TopK,
    Unbiased,
    Uniform,
)
from siftback.errors import BatchError, ConfigError, LossError, StateError
from siftback.selectors.sampling import inclusion_probabilities
from toys import All, seeded

SELECTORS = {
    "percentile": lambda: Percentile(keep=1 / 3, history=50),
    "floored": lambda: Percentile(keep=1 / 3, floor=0.1),
    "uniform": lambda: Uniform(keep=1 / 3),
    "top-k": lambda: TopK(keep=1 / 3),
    "soft top-k": lambda: SoftTopK(keep=1 / 3),
    "threshold": lambda: Threshold(keep=1 / 3, history=50),
    "unbiased": lambda: Unbiased(Percentile(keep=1 / 4)),
    "kath18": lambda: Kath18(keep=1 / 3, threshold=0),
}
every_selector = pytest.mark.parametrize("make", SELECTORS.values(), ids=SELECTORS)


def batches_of(count=6, size=30, seed=1):
    return torch.rand(count, size, generator=seeded(seed))


class Recorded(All):
    """Keeps the first rows, and the scores that it was given."""

    def __init__(self, keep):
        self.keep, self.seen = keep, []

    def set_keep(self, keep):
        self.keep = keep

    def select(self, scores, generator, count=None):
        self.seen.append((scores.tolist(), count))
        return super().select(scores[:count], generator)


@every_selector
@pytest.mark.parametrize("size", [1, 2, 7, 30, 64])
def test_exactly_the_rounded_share_is_kept(make, size):
    in_batch = InBatch(selector=make())
    keep = in_batch.selector.keep
    for losses in batches_of(size=size):
        positions, weights = in_batch.select(losses)
        assert positions.dtype == torch.int64
        assert len(positions) == len(weights) == max(round(keep * size), min(size, 2))
        assert (positions.diff() > 0).all()


@pytest.mark.parametrize(("knob", "share"), [({"keep": 0.25}, 0.25), ({"beta": 3}, 0.25)])
def test_a_share_or_an_exponent_is_selective_backprops(knob, share):
    one, other = InBatch(**knob, seed=3), Percentile(keep=share)
    generator = seeded(3)
    for losses in batches_of(size=32):
        assert one.select(losses).positions.equal(other.select(losses, generator, 8).positions)


@every_selector
def test_a_masked_row_is_neither_kept_nor_learnt(make):
    masked, alone = InBatch(selector=make()), InBatch(selector=make())
    for number, losses in enumerate(batches_of()):
        mask = torch.rand(30, generator=seeded(number)) < 0.6
        padded = losses.masked_fill(~mask, [torch.nan, torch.inf, 1e9][number % 3])
        positions, weights = masked.select(padded, mask)
        expected = alone.select(losses[mask])
        assert mask[positions].all()
        assert losses[positions].equal(losses[mask][expected.positions])
        assert weights.equal(expected.weights)
    assert repr(masked.selector.state_dict()) == repr(alone.selector.state_dict())


def test_the_number_kept_is_a_share_of_the_rows_that_are_not_masked():
    mask = torch.arange(30) % 3 == 0
    assert len(InBatch(keep=0.5).select(torch.rand(30), mask).positions) == 5
    assert len(InBatch(keep=0.01).select(torch.rand(30), mask).positions) == 2


@pytest.mark.parametrize("name", ["percentile", "floored", "uniform", "top-k"])
def test_rows_are_kept_with_the_probabilities_of_the_selector(name):
    losses = torch.tensor([0.5, 3.0, 1.0, 1.0, 2.0, 0.25, 1.0, 0.75])
    kept = torch.zeros(1000, 8)
    in_batch = InBatch(selector=SELECTORS[name](), seed=5)
    count = round(in_batch.selector.keep * 8)
    expected = inclusion_probabilities(SELECTORS[name]().probabilities(losses), count)
    state = in_batch.selector.state_dict()
    for row in kept:
        in_batch.selector.load_state_dict(state)
        row[in_batch.select(losses).positions] = 1
    check_shares(kept, expected)


def test_while_the_schedule_is_off_all_are_kept_and_nothing_is_learnt():
    selector = Recorded(0.5)
    schedule = Scheduled(on=lambda done, batch: 1 <= done < 3 and batch != 2)
    in_batch = InBatch(selector=selector, schedule=schedule, epochs=4, steps_per_epoch=4)
    mask = torch.tensor([True, False, True, True, True])
    sizes = []
    for _ in range(16):
        positions, weights = in_batch.select(torch.rand(5), mask)
        sizes.append(len(positions))
        assert mask[positions].all()
        assert weights.eq(1).all()
    assert sizes == [4, 4, 4, 4, 2, 2, 4, 2, 2, 2, 4, 2, 4, 4, 4, 4]
    assert len(selector.seen) == 6
    assert schedule.asked == [(step / 4, 4, step % 4) for step in range(16)]


def test_an_annealed_share_sets_the_number():
    schedule = Scheduled(keeps=lambda done, own: 1.0 + (own - 1.0) * done / 2)
    in_batch = InBatch(keep=0.2, schedule=schedule, epochs=2, steps_per_epoch=2)
    sizes = [len(in_batch.select(torch.rand(20)).positions) for _ in range(4)]
    assert sizes == [20, 16, 12, 8]
    assert in_batch.selector.keep == pytest.approx(0.4)


class Scheduled(Schedule):
    """On and as large as functions say."""

    def __init__(self, on=lambda done, batch: True, keeps=lambda done, own: own):
        super().__init__(anneal=Annealing())
        self._on, self._keeps, self.asked = on, keeps, []

    def is_on(self, epochs_done, epochs=None, batch=None):
        if batch is not None:
            self.asked.append((epochs_done, epochs, batch))
        return self._on(epochs_done, batch)

    def keep(self, epochs_done, epochs=None, *, own):
        return self._keeps(epochs_done, own)


@every_selector
def test_stopping_anywhere_equals_never_stopping(make):

    def built():
        schedule = Schedule(interrupt=3, warmup=Epochs(0))
        in_batch = InBatch(selector=make(), schedule=schedule, steps_per_epoch=4)

        def steps():
            for losses in batches_of()[in_batch.steps :]:
                yield tuple(in_batch.select(losses))

        return {"in_batch": in_batch}, steps, lambda: (in_batch.steps, in_batch.state_dict())

    check_resumes(built)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: InBatch(keep=0.5).state_dict(), "keep=0.5, and this InBatch has keep=0.1"),
        (lambda: InBatch(selector=TopK(keep=0.1)).state_dict(), "selector='TopK', and this"),
        (lambda: Percentile(keep=0.1).state_dict(), "saved with seed='nothing', and this"),
    ],
)
def test_a_state_of_something_else_is_refused(state, message):
    with pytest.raises(StateError, match=message):
        InBatch(keep=0.1).load_state_dict(state())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_named_and_not_learnt(value):
    in_batch, losses = InBatch(keep=0.5), torch.rand(8)
    losses[5] = value
    message = rf"loss of row 5 is {value}: .* fix the example, or mask it out"
    before = repr(in_batch.state_dict())
    with pytest.raises(LossError, match=message):
        in_batch.select(losses)
    with pytest.raises(LossError, match=message):
        in_batch.select(losses, torch.arange(8) > 2)
    assert repr(in_batch.state_dict()) == before
    assert len(in_batch.select(losses, torch.arange(8) != 5).positions) == 4


def test_no_gradient_flows_through_the_choice():
    losses = torch.rand(8, requires_grad=True)
    positions, weights = InBatch(keep=0.5).select(losses)
    assert not weights.requires_grad
    losses[positions].mean().backward()
    assert losses.grad.nonzero().flatten().equal(positions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_of_any_floating_type_are_chosen_among(dtype):
    losses = torch.rand(30, generator=seeded()).to(dtype)
    one, other = InBatch(keep=0.5).select(losses), InBatch(keep=0.5).select(losses.float())
    assert one.positions.equal(other.positions)
    assert one.weights.dtype == torch.float32


@every_selector
def test_tokens_are_chosen_as_rows_would_be(make):
    losses = torch.rand(6, 9, generator=seeded())
    mask = torch.arange(9) < torch.tensor([9, 3, 1, 9, 5, 7])[:, None]
    losses[~mask] = torch.nan  # the losses of padding are never looked at
    of_tokens = InBatch(selector=make(), seed=3).select(losses, mask)
    of_rows = InBatch(selector=make(), seed=3).select(losses[mask])
    kept = of_tokens.mask(losses.shape)
    assert int(kept.sum()) == len(of_rows.positions)
    assert not (kept & ~mask).any()
    assert kept[mask].nonzero().squeeze(1).equal(of_rows.positions)
    assert of_tokens.dense_weights(losses.shape)[kept].equal(of_rows.weights)
    labels = torch.randint(0, 50, losses.shape).masked_fill(~mask, -100)
    assert of_tokens.labels(labels).equal(labels.masked_fill(~kept, -100))


@pytest.mark.parametrize(
    ("losses", "mask", "error", "message"),
    [
        (torch.tensor(1.0), None, LossError, 'reduced to one number.*reduction="none"'),
        (torch.rand(4, 2), None, BatchError, r"shape \[4, 2\] and no mask"),
        (torch.rand(4, 2, 2), None, LossError, r"losses=float32\[4, 2, 2\]"),
        (
            torch.rand(4, 2),
            torch.ones(2, 4) > 0,
            BatchError,
            r"mask=bool\[2, 4\]: give bool\[4, 2\]",
        ),
        ([0.5], None, LossError, r"losses=\[0.5\]: give a dense tensor"),
        (torch.arange(4), None, LossError, r"losses=int64\[4\]: give .*float\[4\]"),
        (torch.rand(4), torch.ones(4), BatchError, r"mask=float32\[4\]: give bool\[4\]"),
        (torch.rand(4), torch.ones(3) > 0, BatchError, r"mask=bool\[3\]: give bool\[4\]"),
        (torch.rand(4), [True] * 4, BatchError, "mask="),
        (torch.rand(4), torch.zeros(4, dtype=torch.bool), BatchError, "4 losses, all of them mask"),
        (torch.rand(0), None, BatchError, "0 losses; skip this batch"),
    ],
)
def test_what_does_not_fit_is_refused(losses, mask, error, message):
    with pytest.raises(error, match=message):
        InBatch(keep=0.5).select(losses, mask)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "keep=None and beta=None: give one"),
        ({"keep": 0.5, "beta": 1.0}, "give one of them"),
        ({"keep": 1.5}, "keep=1.5: give a share"),
        ({"keep": 0.5, "selector": All()}, "both a selector and keep"),
        ({"selector": Threshold(above=1)}, r"Threshold\(above=1.0\) does not say how many"),
        (
            {"keep": 0.5, "schedule": Schedule()},
            r"Schedule\(warmup=Epochs\(1\).* without steps_per_epoch: give the number of calls",
        ),
        (
            {"keep": 0.5, "schedule": Schedule(warmup=Epochs(0)), "steps_per_epoch": 0},
            "steps_per_epoch=0: give an integer",
        ),
        (
            {
                "keep": 0.5,
                "schedule": Schedule(interrupt=2, end=Share(0.5), warmup=Epochs(0)),
                "steps_per_epoch": 5,
            },
            "epochs=",
        ),
        (
            {
                "selector": All(),
                "schedule": Schedule(anneal=Annealing(), warmup=Epochs(0)),
                "steps_per_epoch": 5,
            },
            "All has no share",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        InBatch(**arguments)
