"""Every rule through one table, against the probabilities that its paper gives."""

import copy
import importlib
import inspect
import itertools
import math
import pkgutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import siftback.contrib
import siftback.rules
from reference import order_probabilities, shared_probability
from remembering import REFRESHED, RULES, LabelledRCAP
from resuming import Counter, Random, check_resumes
from selections import check_shares
from siftback import Epochs
from siftback.contrib.ewma import Ewma
from siftback.contrib.gaussian_process import GaussianProcess
from siftback.contrib.ies import IES
from siftback.errors import StateError
from siftback.rules.alignprune import AlignPrune
from siftback.rules.evolved import EvolvedSampling
from siftback.rules.evos import EVOS
from siftback.rules.infobatch import InfoBatch
from siftback.rules.kakurenbo import Kakurenbo
from siftback.rules.memory import Memory
from siftback.rules.orderdp import OrderDP
from siftback.rules.repb import RePB
from siftback.rules.rs2 import RS2
from siftback.rules.rule import EpochRule
from siftback.rules.seta import SeTa
from siftback.rules.stale import Stale
from siftback.rules.ucb import UCB
from toys import seeded

Losses = list[list[float]]
"""Of each epoch, those of each example."""


@dataclass(frozen=True)
class Row:
    """A rule: how it is made, and what its formula says of the epoch after three whole ones.

    Attributes:
        make: Makes it.
        probabilities: ``probabilities(losses)``, that of each example to be drawn.
        weight: ``weight(losses)``, that of each example where it is drawn.
        all: Makes one that is to leave nothing out.
    """

    make: Callable[[], EpochRule]
    probabilities: Callable[[Losses], list[float]]
    all: Callable[[], EpochRule]
    weight: Callable[[Losses], list[float]] = lambda losses: [1.0] * len(losses[0])


def by_percentile(scores, beta, floor=0.0):
    return [floor + (1 - floor) * shared_probability(scores, score, beta) for score in scores]


def averages(losses):
    """An average that each loss moves by half."""
    found = list(losses[0])
    for each in losses[1:]:
        found = [(before + loss) / 2 for before, loss in zip(found, each, strict=True)]
    return found


def lowest(values, share):
    """The rows of the lowest share, rounded down; of equal ones the first."""
    return sorted(range(len(values)), key=values.__getitem__)[: math.floor(share * len(values))]


def over_mean(losses, floor):
    return [max(floor, min(1.0, loss * len(losses) / sum(losses))) for loss in losses]


def below_mean(losses):
    return [loss < sum(losses[-1]) / len(losses[-1]) for loss in losses[-1]]


def judged(losses):
    """Predictions of a training, some of them wrong, at any confidence."""
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
    """Of three losses the second difference."""
    return [abs(third - 2 * second + first) for first, second, third in zip(*losses, strict=True)]


def in_proportion(sizes, count):
    """Of examples that count draws are shared among, none of them more than one."""
    certain = set()
    while True:
        rest = sum(size for row, size in enumerate(sizes) if row not in certain)
        scale = (count - len(certain)) / rest
        above = {row for row, size in enumerate(sizes) if scale * size > 1} - certain
        if not above:
            return [1.0 if row in certain else scale * size for row, size in enumerate(sizes)]
        certain |= above


def evolved(losses):
    found = []
    for own in zip(*losses, strict=True):
        score = 1 / len(losses[0])
        for loss in own:
            weight, score = 0.2 * score + 0.8 * loss, 0.8 * score + 0.2 * loss
        found.append(weight)
    return found


def by_order(losses, subset, count):
    """Of equal losses, each has the mean of their places."""
    shares, ranked = order_probabilities(len(losses), subset, count), sorted(losses, reverse=True)
    places = [[place for place, each in enumerate(ranked) if each == loss] for loss in losses]
    return [sum(shares[place] for place in own) / len(own) for own in places]


def by_class(losses, count):
    """RCAP's probabilities in its first draw, of three classes in turn."""
    size = len(losses)
    classes = [range(first, size, 3) for first in range(min(3, size))]
    clipped = [min(max(loss, 0.0), math.log(len(classes))) for loss in losses]
    roots = [math.sqrt(len(rows) / size) for rows in classes]
    found = [0.0] * size
    for rows, root in zip(classes, roots, strict=True):
        own = in_proportion([math.exp(clipped[row]) for row in rows], count * root / sum(roots))
        for row, probability in zip(rows, own, strict=True):
            found[row] = probability
    return found


def aligned(losses):
    """Whether the correlation of an example's losses with the mean losses is below the mean."""
    means, found = [sum(each) / len(each) for each in losses], []
    for own in zip(*losses, strict=True):
        alike = len(set(own)) == 1 or len(set(means)) == 1
        found.append(math.nan if alike else statistics.correlation(own, means))
    known = [score for score in found if not math.isnan(score)] or [math.nan]
    return [score < sum(known) / len(known) for score in found]


def fittest(losses, count, mutated):
    """Of equal losses, each has the mean of their places."""
    rest, top = mutated / (len(losses) - count + mutated), count - mutated
    ranked = sorted(losses, reverse=True)
    shares = [1.0 if place < top else rest for place in range(len(losses))]
    places = [[place for place, each in enumerate(ranked) if each == loss] for loss in losses]
    return [sum(shares[place] for place in own) / len(own) for own in places]


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
    "evolved": Row(
        lambda: EvolvedSampling(0.5),
        lambda losses: in_proportion(evolved(losses), round(len(losses[0]) / 2)),
        lambda: EvolvedSampling(1.0),
    ),
    "orderdp": Row(
        lambda: OrderDP(0.75, 0.5),
        lambda losses: by_order(losses[-1], 6, 3),
        lambda: OrderDP(1.0, 1.0),
    ),
    "repb": Row(  # whose window is the whole epoch, and which has left nothing out yet
        lambda: RePB(0.6),
        lambda losses: [0.4 if below else 1.0 for below in below_mean(losses)],
        lambda: RePB(0.0),
    ),
    "rcap": Row(
        lambda: LabelledRCAP(keep=0.5, temperature=1.0),
        lambda losses: by_class(losses[-1], round(len(losses[0]) / 2)),
        lambda: LabelledRCAP(keep=1.0),
    ),
    "alignprune": Row(
        lambda: AlignPrune(0.6, window=3),
        lambda losses: [0.4 if below else 1.0 for below in aligned(losses)],
        lambda: AlignPrune(0.0, window=3),
        lambda losses: [2.5 if below else 1.0 for below in aligned(losses)],
    ),
    "evos": Row(  # whose last whole epoch is the third
        lambda: EVOS(0.5, 0.5, every=2),
        lambda losses: fittest(losses[-1], round(len(losses[0]) / 2), 2),
        lambda: EVOS(1.0),
    ),
    "memory": Row(
        lambda: Memory(0.625, floor=0.25),
        lambda losses: by_percentile(losses[-1], 1.0, 0.25),
        lambda: Memory(1.0),
    ),
    "ratio memory": Row(
        lambda: Memory(floor=0.25),
        lambda losses: over_mean(losses[-1], 0.25),
        lambda: Memory(floor=0.999999999),
    ),
    "stale": Row(
        lambda: Stale(0.5, every=9, warmup=Epochs(0)),
        lambda losses: by_percentile(losses[-1], 1.0),
        lambda: Stale(1.0, every=9, warmup=Epochs(0)),
    ),
    "ewma": Row(
        lambda: Ewma(0.25, every=9, warmup=Epochs(0)),
        lambda losses: by_percentile(averages(losses), 3.0),
        lambda: Ewma(1.0, every=9, warmup=Epochs(0)),
    ),
    "process": Row(  # by the last loss alone
        lambda: GaussianProcess(0.5, every=9, history=1, warmup=Epochs(0)),
        lambda losses: by_percentile(losses[-1], 1.0),
        lambda: GaussianProcess(1.0, every=9, warmup=Epochs(0)),
    ),
}
every = pytest.mark.parametrize("name", ROWS)
COUNTED = {"rs2", "rs2, replaced", "evolved", "orderdp", "rcap", "evos", "memory"}
COUNTED |= {"stale", "ewma", "process"}
"""Those whose draw is of a number known beforehand."""

# Eight examples, two of them alike.
LOSSES = [
    [2.0, 1.0, 3.0, 0.5, 0.5, 1.5, 0.75, 2.5],
    [1.5, 1.0, 1.0, 0.5, 0.5, 1.75, 0.25, 2.5],
    [1.0, 0.25, 3.0, 0.5, 0.5, 0.125, 1.0, 2.0],
]
PERMUTED = [[epoch[row] for row in (3, 7, 0, 5, 2, 6, 1, 4)] for epoch in LOSSES]
ALIKE = [[0.5] * 8] * 3
TRIALS = 600


def teach(rule, losses, dtype=torch.float32, start=0):
    """Three whole epochs, or as many as there are."""
    rule.grow(len(losses[0]))
    indices = torch.arange(len(losses[0]))
    for epoch, each in enumerate(losses, start=start):
        found = torch.tensor(each, dtype=dtype)
        if rule.needs_passes:
            rule.rescore(indices, found, epoch)
        else:
            correct, confidence = (torch.tensor(part) for part in judged(each))
            rule.update(indices, found, epoch, correct=correct, confidence=confidence)
    return rule


def taught(name, losses, dtype=torch.float32):
    return teach(ROWS[name].make(), losses, dtype)


def test_every_rule_has_a_row_in_both_tables():
    found = []
    for room in (siftback.rules, siftback.contrib):
        for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
            found += vars(importlib.import_module(module.name)).values()
    rules = {c for c in found if inspect.isclass(c) and issubclass(c, EpochRule)}
    names = {rule.__name__ for rule in rules if not inspect.isabstract(rule)}
    assert names == {type(row.make()).__name__ for row in ROWS.values()}
    assert names == {type(make()).__name__ for make in (RULES | REFRESHED).values()}


@pytest.mark.parametrize("losses", [LOSSES, PERMUTED], ids=["one", "permuted"])
@every
@pytest.mark.sampled(2)
def test_it_draws_and_weighs_as_its_paper_says(name, losses):
    row, rule, generator = ROWS[name], taught(name, losses), seeded(1)
    probabilities, weight = (
        torch.tensor(row.probabilities(losses)),
        torch.tensor(row.weight(losses)),
    )
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    spread = probabilities * (1 - probabilities)
    trials = TRIALS if spread.any() else 50
    drawn = torch.stack([copy.deepcopy(rule).draw(3, generator) for _ in range(trials)])
    assert ((drawn == 0) | (drawn == weight)).all()
    error = 4.5 * (spread / trials).sqrt() + 1e-6
    kept = (drawn > 0).float()
    check_shares(drawn, probabilities)
    # The mean and the variance of a weight that is w with probability p, else 0.
    assert ((drawn.mean(0) - probabilities * weight).abs() <= error * weight + 1e-5).all()
    variances = drawn.var(0, correction=0)
    assert (variances - spread * weight**2).abs().max() <= 0.12 * max(1, weight.max() ** 2) * 0.5
    assert float(kept.sum(1).mean()) == pytest.approx(
        float(probabilities.sum()), abs=5 * math.sqrt(8 / 4 / trials) + 1e-5
    )


@every
@pytest.mark.sampled(3)
def test_equal_losses_share_their_probability(name):
    """But where a rule takes the first of equal ones, it takes no more than its share."""
    rule, generator = taught(name, ALIKE), seeded(2)
    drawn = torch.stack([copy.deepcopy(rule).draw(3, generator) for _ in range(400)]) > 0
    expected = torch.tensor(ROWS[name].probabilities(ALIKE))
    assert ((drawn.float().mean(0) - expected).abs() <= 5 * 0.5 / math.sqrt(400)).all()


@every
@pytest.mark.parametrize("size", [1, 3, 8, 50])
def test_a_draw_keeps_exactly_its_count_where_that_is_known(name, size):
    losses = torch.rand(3, size, generator=seeded(size)).tolist()
    rule, generator = taught(name, losses), seeded(3)
    assert (rule.count(3) is not None) == (name in COUNTED)
    for epoch in range(3, 7):
        weights = copy.deepcopy(rule).draw(epoch, generator)
        assert rule.count(epoch) in (None, len(weights.nonzero()))


@every
def test_what_joins_later_is_kept_as_far_as_the_count_allows(name):
    rule = taught(name, torch.rand(3, 20, generator=seeded(1)).tolist())
    rule.draw(3, seeded(0))
    rule.grow(22)
    weights = rule.draw(4, seeded(4))
    assert len(weights) == rule.examples == 22
    assert rule.count(4) in (None, len(weights.nonzero()))
    if not name.startswith("rs2"):  # to which all are alike
        assert weights[20:].tolist() == [1.0] * 2


@every
def test_a_table_with_more_rows_than_examples_draws_examples_alone(name):
    rule = ROWS[name].make()
    rule.table.grow(30)
    teach(rule, LOSSES)
    assert rule.examples == len(rule.draw(3, seeded(0))) == 8


@every
def test_a_state_of_another_rule_other_settings_or_fewer_examples_is_refused(name):
    rule, few = taught(name, LOSSES), ROWS[name].make()
    few.grow(7)
    states = {
        "rule=.*, and this": (Memory(0.3) if name.startswith("rs2") else RS2(0.3)).state_dict(),
        f"and this {type(rule).__name__} has ": ROWS[name].all().state_dict(),
        "7 examples does not fit 8|of 7', and .* of 8'": few.state_dict(),  # of labels
    }
    before = copy.deepcopy(rule.state_dict())
    for message, state in states.items():
        with pytest.raises(StateError, match=message):
            rule.load_state_dict(state)
        assert repr(rule.state_dict()) == repr(before)


@every
def test_of_one_example_it_draws_that_or_none(name):
    for value in (0.0, 0.3, 7.0):
        weights = taught(name, [[value]] * 3).draw(3, seeded(0))
        assert weights.shape == (1,)
        assert weights.isfinite().all()
        assert (weights >= 0).all()


@every
def test_to_leave_nothing_out_leaves_nothing_out(name):
    rule = teach(ROWS[name].all(), LOSSES)
    for epoch in range(3, 7):
        assert rule.draw(epoch, seeded(epoch)).tolist() == [1.0] * 8


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
@pytest.mark.filterwarnings("ignore:losses are negative")
@pytest.mark.parametrize("losses", EXTREME.values(), ids=EXTREME)
def test_extreme_losses_leave_a_draw(name, losses):
    rule, generator = taught(name, [losses] * 3), seeded(3)
    for epoch in range(3, 7):
        weights = rule.draw(epoch, generator)
        assert weights.shape == (9,)
        assert (weights.isfinite() & (weights >= 0)).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_are_as_good(name, dtype):
    losses = torch.rand(3, 50, generator=seeded(4)).to(dtype)
    one = taught(name, losses.tolist(), dtype).draw(3, seeded(5))
    other = taught(name, losses.float().tolist()).draw(3, seeded(5))
    assert one.dtype == torch.float32
    assert one.equal(other)


@every
def test_its_generator_decides_and_no_global_one(name):
    losses = torch.rand(3, 80, generator=seeded(6)).tolist()
    before = torch.get_rng_state()
    one, two = ([taught(name, losses).draw(3, seeded(7))] for _ in range(2))
    assert one[0].equal(two[0])
    assert torch.get_rng_state().equal(before)


@every
def test_stopping_anywhere_equals_never_stopping(name):
    losses = torch.rand(7, 40, generator=seeded(8)).tolist()
    seeds = itertools.count(9)  # a state takes the place of the seed

    def make():
        rule, random, done = ROWS[name].make(), Random(next(seeds)), Counter()
        rule.grow(40)

        def steps():
            while done.value < 7:
                weights, epoch = rule.draw(done.value, random.generator), done.value
                teach(rule, losses[epoch : epoch + 1], start=epoch)
                done.value += 1
                yield weights

        return {"rule": rule, "random": random, "done": done}, steps, lambda: None

    check_resumes(make)


@every
def test_a_state_is_not_changed_by_what_comes_after(name):
    losses = torch.rand(3, 40, generator=seeded(8)).tolist()
    rule = taught(name, losses[:1])
    state = rule.state_dict()
    before = copy.deepcopy(state)
    rule.draw(1, seeded(9))
    teach(rule, losses[1:], start=1)
    assert repr(state) == repr(before)
