"""Every rule that draws an epoch through one table, against the chances its paper gives."""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import siftback
from rule_methods import METHODS, seeded
from siftback import IES, RS2, UCB, InfoBatch, Kakurenbo, SeTa
from siftback.rules.every_epoch import EveryEpoch

Losses = list[list[float]]
"""Of each epoch, those of each example."""


@dataclass(frozen=True)
class Row:
    """A rule: how it is made, and what its formula says of the epoch after three whole ones.

    Attributes:
        make: Makes it.
        chances: ``chances(losses)``, that of each example to be drawn.
        weight: ``weight(losses)``, that of each example where it is drawn.
        all: Makes one that is to leave nothing out.
    """

    make: Callable[[], EveryEpoch]
    chances: Callable[[Losses], list[float]]
    all: Callable[[], EveryEpoch]
    weight: Callable[[Losses], list[float]] = lambda losses: [1.0] * len(losses[0])


def lowest(values, share):
    """The rows of the lowest share, rounded down; of equal ones the first."""
    return sorted(range(len(values)), key=values.__getitem__)[: math.floor(share * len(values))]


def below_mean(losses):
    return [loss < sum(losses[-1]) / len(losses[-1]) for loss in losses[-1]]


def judged(losses):
    """What training is said to have predicted: some wrong, at any confidence."""
    return [loss < 1.2 for loss in losses], [1 / (1 + abs(loss)) for loss in losses]


def hidden(losses):
    correct, confidence = judged(losses[-1])
    return {row for row in lowest(losses[-1], 0.5) if correct[row] and confidence[row] >= 0.5}


def bounds(losses):
    found = []
    for own in zip(*losses, strict=True):
        mean, variance = own[0], 0.0
        for loss in own[1:]:
            variance = 0.8 * variance + 0.2 * (loss - mean) ** 2
            mean = 0.8 * mean + 0.2 * loss
        found.append(mean + math.sqrt(variance))
    return found


def bends(losses):
    """Of three losses the second difference: how much each still bends."""
    return [abs(third - 2 * second + first) for first, second, third in zip(*losses, strict=True)]


ROWS = {
    "infobatch": Row(
        lambda: InfoBatch(0.6, 1.0),
        lambda losses: [0.4 if below else 1.0 for below in below_mean(losses)],
        lambda: InfoBatch(0.0, 1.0),
        lambda losses: [2.5 if below else 1.0 for below in below_mean(losses)],
    ),
    "rs2": Row(lambda: RS2(0.25), lambda losses: [0.25] * len(losses[0]), lambda: RS2(1.0)),
    "rs2, replaced": Row(
        lambda: RS2(0.25, replacement=True),
        lambda losses: [0.25] * len(losses[0]),
        lambda: RS2(1.0, replacement=True),
    ),
    "kakurenbo": Row(
        lambda: Kakurenbo(0.5, 0.5),
        lambda losses: [float(row not in hidden(losses)) for row in range(len(losses[0]))],
        lambda: Kakurenbo(0.0),
    ),
    "ucb": Row(
        lambda: UCB(0.5),
        lambda losses: [
            float(row not in lowest(bounds(losses), 0.5)) for row in range(len(losses[0]))
        ],
        lambda: UCB(1.0),
    ),
    "seta": Row(  # whose first draw has all groups in its window
        lambda: SeTa(0.25, groups=3, delta=1.0),
        lambda losses: [0.75] * len(losses[0]),
        lambda: SeTa(0.0, window=1.0, delta=1.0),
    ),
    "ies": Row(
        lambda: IES(threshold=0.5, window=1),
        lambda losses: [float(bend >= 0.5) for bend in bends(losses)],
        lambda: IES(threshold=1e-9, keep=0.999),
    ),
}
every = pytest.mark.parametrize("name", ROWS)

# Eight examples, two of them alike.
LOSSES = [
    [2.0, 1.0, 3.0, 0.5, 0.5, 1.5, 0.75, 2.5],
    [1.5, 1.0, 1.0, 0.5, 0.5, 1.75, 0.25, 2.5],
    [1.0, 0.25, 3.0, 0.5, 0.5, 0.125, 1.0, 2.0],
]
PERMUTED = [[epoch[row] for row in (3, 7, 0, 5, 2, 6, 1, 4)] for epoch in LOSSES]
ALIKE = [[0.5] * 8] * 3
TRIALS = 1500


def tell(scorer, losses, dtype=torch.float32, start=0):
    """Three whole epochs, or as many as there are."""
    scorer.grow(len(losses[0]))
    indices = torch.arange(len(losses[0]))
    for epoch, each in enumerate(losses, start=start):
        correct, confidence = judged(each)
        scorer.judged(indices, torch.tensor(correct), torch.tensor(confidence))
        scorer.trained(indices, torch.tensor(each, dtype=dtype), epoch)
    return scorer


def told(name, losses, dtype=torch.float32):
    return tell(ROWS[name].make(), losses, dtype)


def test_every_rule_has_a_row_in_both_tables():
    public = {getattr(siftback, name) for name in siftback.__all__}
    rules = {c for c in public if inspect.isclass(c) and issubclass(c, EveryEpoch)}
    assert rules == {type(row.make()) for row in ROWS.values()}
    assert METHODS.keys() == ROWS.keys()


@every
@pytest.mark.parametrize("losses", [LOSSES, PERMUTED], ids=["one", "permuted"])
def test_it_draws_and_weighs_as_its_paper_says(name, losses):
    row, scorer, generator = ROWS[name], told(name, losses), seeded(1)
    chances, weight = torch.tensor(row.chances(losses)), torch.tensor(row.weight(losses))
    assert ((chances >= 0) & (chances <= 1)).all()
    drawn = torch.stack([copy.deepcopy(scorer).draw(3, generator) for _ in range(TRIALS)])
    assert ((drawn == 0) | (drawn == weight)).all()
    spread = chances * (1 - chances)
    error = 5 * (spread / TRIALS).sqrt() + 1e-6
    kept = (drawn > 0).float()
    assert ((kept.mean(0) - chances).abs() <= error).all()
    # The mean and the variance of a weight that is w with chance p, else 0.
    assert ((drawn.mean(0) - chances * weight).abs() <= error * weight + 1e-5).all()
    variances = drawn.var(0, correction=0)
    assert (variances - spread * weight**2).abs().max() <= 0.12 * max(1, weight.max() ** 2) * 0.5
    assert float(kept.sum(1).mean()) == pytest.approx(
        float(chances.sum()), abs=5 * math.sqrt(8 / 4 / TRIALS) + 1e-5
    )


@every
def test_equal_losses_share_their_chance(name):
    """But where a rule takes the first of equal ones, it takes no more than its share."""
    scorer, generator = told(name, ALIKE), seeded(2)
    drawn = torch.stack([copy.deepcopy(scorer).draw(3, generator) for _ in range(400)]) > 0
    expected = torch.tensor(ROWS[name].chances(ALIKE))
    assert ((drawn.float().mean(0) - expected).abs() <= 5 * 0.5 / math.sqrt(400)).all()


@every
def test_of_one_example_it_draws_that_or_none(name):
    for value in (0.0, 0.3, 7.0):
        weights = told(name, [[value]] * 3).draw(3, seeded(0))
        assert weights.shape == (1,)
        assert weights.isfinite().all()
        assert (weights >= 0).all()


@every
def test_to_leave_nothing_out_leaves_nothing_out(name):
    scorer = tell(ROWS[name].all(), LOSSES)
    for epoch in range(3, 7):
        assert scorer.draw(epoch, seeded(epoch)).tolist() == [1.0] * 8


EXTREME = {
    "zeros": [0.0] * 9,
    "the largest": [3.4e38] * 9,
    "one above all": [0.0] * 8 + [3.4e38],
    "far apart": [1e-38, 1.0, 3.4e38, 0.0, 1e-45, 1e30, 2.0, 3.0, 4.0],
    "negative": [-3.4e38, -1.0, -2.0, 0.0, 1.0, 3.4e38, -3.0, -0.5, 0.25],
    "not finite": [math.inf, math.nan, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -math.inf],
    "none finite": [math.inf] * 8 + [math.nan],
}


@every
@pytest.mark.parametrize("losses", EXTREME.values(), ids=EXTREME)
def test_extreme_losses_leave_a_draw(name, losses):
    scorer, generator = told(name, [losses] * 3), seeded(3)
    for epoch in range(3, 7):
        weights = scorer.draw(epoch, generator)
        assert weights.shape == (9,)
        assert (weights.isfinite() & (weights >= 0)).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_are_as_good(name, dtype):
    losses = torch.rand(3, 50, generator=seeded(4)).to(dtype)
    one = told(name, losses.tolist(), dtype).draw(3, seeded(5))
    other = told(name, losses.float().tolist()).draw(3, seeded(5))
    assert one.dtype == torch.float32
    assert one.equal(other)


@every
def test_its_generator_decides_and_no_global_one(name):
    losses = torch.rand(3, 80, generator=seeded(6)).tolist()
    before = torch.get_rng_state()
    one, two = ([told(name, losses).draw(3, seeded(7))] for _ in range(2))
    assert one[0].equal(two[0])
    assert torch.get_rng_state().equal(before)


@every
@pytest.mark.parametrize("stop", range(4))
def test_it_goes_on_from_a_state_taken_at_any_point(name, stop):
    losses = torch.rand(7, 40, generator=seeded(8)).tolist()
    first, second = ROWS[name].make(), ROWS[name].make()
    one, other = seeded(9), torch.Generator()

    def epoch_of(scorer, epoch, generator):
        scorer.grow(40)
        weights = scorer.draw(epoch, generator)
        tell(scorer, losses[epoch : epoch + 1], start=epoch)
        return weights

    first.grow(40)
    for epoch in range(stop):
        epoch_of(first, epoch, one)
    state = first.state_dict()
    before = copy.deepcopy(state)
    second.grow(40)
    second.load_state_dict(state)
    other.set_state(one.get_state())
    for epoch in range(stop, 7):
        assert epoch_of(first, epoch, one).equal(epoch_of(second, epoch, other))
    assert repr(state) == repr(before)  # which what came after did not change


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
@every
def test_losses_may_come_from_another_device(name):
    here, there = ROWS[name].make(), ROWS[name].make()
    indices = torch.arange(8)
    for scorer, device in ((here, "cpu"), (there, "cuda")):
        scorer.grow(8)
        for epoch, each in enumerate(LOSSES):
            correct, confidence = (torch.tensor(part, device=device) for part in judged(each))
            scorer.judged(indices, correct, confidence)
            scorer.trained(indices, torch.tensor(each, device=device), epoch)
    assert here.draw(3, seeded(1)).equal(there.draw(3, seeded(1)).cpu())
