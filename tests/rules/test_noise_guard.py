"""The noise guard: whom it suspects, and how few of them a draw admits."""

import math
from functools import partial

import pytest
import torch

from remembering import Numbered, by_rule, plain, ruled, spread
from resuming import check_resumes
from selections import check_shares, in_proportion
from siftback.draws.histogram_draw import BLOCK
from siftback.errors import ConfigError, StateError
from siftback.rules.memory import Memory
from siftback.rules.noise_guard import NoiseGuard
from siftback.schedule import Epochs
from toys import seeded

N, LIES = 40, (3, 17, 18, 30, 39)
LIE = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor(LIES), True)


def slow_suspects(visits, m, classes):
    """One example at a time: whose label was doubtful m successive times, as things then were."""
    last, streak = {}, {}
    for indices, losses in visits:
        last.update(zip(indices, losses, strict=True))
        t = sum(math.exp(-loss) for loss in last.values()) / len(last)
        for index, loss in zip(indices, losses, strict=True):
            doubtful = math.exp(-loss) < (1 - t) / (classes - 1)
            streak[index] = streak.get(index, 0) + 1 if doubtful else 0
    return sorted(index for index, length in streak.items() if length >= m)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_suspects_are_those_of_the_slow_reference(m, classes):
    generator = torch.Generator().manual_seed(m)
    guard, visits, found = NoiseGuard(classes, visits=m), [], 0
    for _ in range(40 * m):
        indices = torch.randperm(50, generator=generator)[:9]
        losses = 3 * torch.rand(9, generator=generator)
        visits.append((indices.tolist(), losses.tolist()))
        guard.observe(indices, losses)
        assert guard.suspects.tolist() == slow_suspects(visits, m, classes)
        found += len(guard.suspects)
    assert found > 0


@pytest.mark.parametrize("classes", [2, 10])
def test_label_issues_are_suspects_and_labels_nearer_to_a_wrong_class(classes):
    guard, generator = NoiseGuard(classes, visits=2), torch.Generator().manual_seed(0)
    last = {}
    assert guard.label_issues.tolist() == []
    for _ in range(20):
        indices = torch.randperm(50, generator=generator)[:9]
        losses = 4 * torch.rand(9, generator=generator)
        guard.observe(indices, losses)
        last.update(zip(indices.tolist(), losses.tolist(), strict=True))
        t = sum(math.exp(-loss) for loss in last.values()) / len(last)
        label, wrong = -math.log(t), -math.log((1 - t) / (classes - 1))
        nearer = {index for index, loss in last.items() if loss > (label + wrong) / 2}
        expected = sorted(nearer | set(guard.suspects.tolist()))
        assert guard.label_issues.tolist() == expected
    assert 0 < len(expected) < len(last) < 50


def test_label_issues_of_several_blocks():
    guard, size, wrong = NoiseGuard(10), BLOCK + 100, [5, BLOCK - 1, BLOCK, BLOCK + 99]
    losses = torch.full((size,), 0.1).index_fill_(0, torch.tensor(wrong), 9.0)
    guard.observe(torch.arange(size), losses)
    assert guard.label_issues.tolist() == wrong


def test_there_is_room_for_all_examples_before_any_is_visited():
    rule = Memory(guard=NoiseGuard(10))
    rule.grow(7)
    assert len(rule.guard.losses) == 7
    assert rule.guard.losses.isnan().all()


def test_a_suspect_stays_a_label_issue_while_the_others_are_learnt():
    guard, everyone = NoiseGuard(2, visits=2), torch.arange(4)
    for _ in range(2):
        guard.observe(everyone, -torch.tensor([0.52, 0.52, 0.52, 0.45]).log())
    guard.observe(everyone[:3], -torch.tensor([0.95, 0.95, 0.95]).log())
    t = guard.confidence
    assert math.sqrt(t * (1 - t)) < 0.45
    assert guard.suspects.tolist() == guard.label_issues.tolist() == [3]


@pytest.mark.parametrize("rule", [partial(Memory, beta=1.0), Memory])
@pytest.mark.parametrize("regained", [6, 7])
def test_suspects_are_held_back_unless_their_labels_are_regained(rule, regained):
    guard = NoiseGuard(10, cap=0.0, visits=1)
    plain, rule, suspects = rule(), rule(guard=guard), list(range(10))
    plain.grow(N)
    rule.grow(N)
    rule.update(torch.arange(10, N), torch.full((30,), 0.1), 0)
    rule.update(torch.arange(10), torch.full((10,), 7.0), 0)
    for visit in range(30):
        assert guard.held.tolist() == guard.suspects.tolist() == suspects
        one = torch.tensor([visit % 10])
        if visit < regained:
            rule.update(one, -torch.tensor([0.11]).log(), 1)
            assert guard.suspects.tolist() == [i for i in suspects if i != visit]
        rule.update(one, torch.tensor([7.0]), 1)
    assert guard.suspects.tolist() == suspects
    assert guard.held.tolist() == (suspects if regained == 6 else [])  # above 0.2 of 30
    plain.update(torch.arange(N), guard.losses, 0)
    drawn = rule.draw(2, seeded(0))
    assert bool(drawn[:10].any()) == (regained == 7)
    assert torch.equal(drawn, plain.draw(2, seeded(0))) == (regained == 7)


@pytest.mark.parametrize(("classes", "released"), [(2, False), (4, False), (5, True)])
def test_suspects_are_released_only_where_labels_are_twice_as_probable_as_by_chance(
    classes, released
):
    guard = NoiseGuard(classes, visits=1)
    guard.observe(torch.arange(60), torch.full((60,), 0.7))  # p = 0.497
    for losses in (9.0, 0.6):  # p = 0.0001, then 0.55
        guard.observe(torch.arange(30), torch.full((30,), losses))
    guard.observe(torch.arange(30), torch.full((30,), 9.0))
    guard.observe(torch.arange(30, 60), torch.full((30,), 0.2))  # p = 0.82, so t = 0.41
    assert guard.confidence == pytest.approx(0.41, abs=0.01)
    assert guard.suspects.tolist() == list(range(30))
    assert guard.released == released
    assert guard.held.tolist() == ([] if released else list(range(30)))


def test_an_example_that_is_learnt_after_all_is_no_suspect_any_more():
    guard, both = NoiseGuard(10, visits=2), torch.arange(2)
    guard.observe(both, torch.tensor([0.5, 4.0]))
    assert guard.suspects.tolist() == []
    guard.observe(both, torch.tensor([0.5, 4.0]))
    assert guard.suspects.tolist() == [1]
    guard.observe(both, torch.tensor([0.5, 0.7]))
    assert guard.suspects.tolist() == []


def test_a_model_that_guesses_doubts_nothing():
    guard = NoiseGuard(10, visits=1)
    guard.observe(torch.arange(10), torch.full((10,), math.log(10)))
    assert guard.suspects.tolist() == []
    assert guard.confidence == pytest.approx(0.1)


def test_a_streak_is_counted_beyond_what_a_byte_holds():
    guard = NoiseGuard(10, visits=255)
    for visit in range(300):
        guard.observe(torch.arange(2), torch.tensor([0.5, 4.0]))
        assert guard.suspects.tolist() == ([1] if visit >= 254 else [])


@pytest.mark.parametrize(("classes", "visits"), [(2, 2), (3, 3), (100, 3)])
def test_of_two_classes_fewer_visits_are_enough(classes, visits):
    assert NoiseGuard(classes).visits == visits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cap": 1.5}, r"cap=1.5: give a share in \[0, 1\]"),
        ({"cap": float("nan")}, "cap=nan"),
        ({"visits": 0}, "visits=0: give an integer, at least 1"),
        ({"visits": 256}, "visits=256: give an integer from 1 to 255"),
        ({"visits": True}, "visits=True"),
        ({"classes": 1}, "classes=1: give an integer, at least 2"),
    ],
)
def test_what_is_out_of_range_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        NoiseGuard(**{"classes": 10} | arguments)


@pytest.mark.parametrize(("cap", "keep"), [(0.2, 0.5), (0.9, 0.3), (0.0, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("count", [0, 1, 10, 33])
def test_exactly_so_many_are_admitted_as_the_smaller_share_says(cap, keep, count):
    guard, generator, draws = NoiseGuard(10, cap=cap), seeded(1), 1000
    admitted = torch.stack([guard.admit(count, keep, generator) for _ in range(draws)])
    number = round(min(cap, keep) * count)
    assert admitted.dtype == torch.bool
    assert (admitted.sum(1) == number).all()
    assert guard.held_back == draws * (count - number)
    check_shares(admitted, [number / max(count, 1)] * count)


def test_limits_come_before_the_share():
    guard = NoiseGuard(10, cap=0.5)
    assert int(guard.admit(10, 0.5, seeded(0), least=8).sum()) == 8
    assert int(guard.admit(10, 0.5, seeded(0), most=2).sum()) == 2
    assert int(guard.admit(10, 0.5, seeded(0), least=99).sum()) == 10
    assert guard.held_back == 2 + 8


def guarded(guard, keep=0.5, **arguments):
    """A rule that knows all losses and the lies among them, from a single visit."""
    rule = Memory(keep, guard=guard, warmup=Epochs(1), **arguments)
    rule.grow(N)
    rule.update(torch.arange(N), torch.where(LIE, 9.0, spread(N)), 0)
    return rule


def test_with_a_cap_of_0_no_suspect_is_drawn_and_all_are_counted():
    guard = NoiseGuard(10, cap=0.0, visits=1)
    rule = guarded(guard)
    assert guard.suspects.tolist() == list(LIES)
    for epoch in range(1, 9):
        weights = rule.draw(epoch, seeded(epoch))
        assert not weights[LIE].any()
        assert int(weights.sum()) == rule.count(epoch) == 20
        assert guard.held_back == epoch * len(LIES)


@pytest.mark.parametrize(("cap", "keep", "admitted"), [(0.2, 0.5, 1), (0.9, 0.4, 2), (0.6, 1.0, 5)])
def test_of_the_suspects_exactly_the_smaller_share_is_drawn_each_alike(cap, keep, admitted):
    rule, draws, generator = guarded(NoiseGuard(10, cap=cap, visits=1), keep), 1000, seeded(2)
    drawn = torch.stack([rule.draw(1, generator) for _ in range(draws)])
    assert (drawn.sum(1) == rule.count(1)).all()
    assert (drawn[:, LIE].sum(1) == admitted).all()
    check_shares(drawn[:, LIE], [admitted / len(LIES)] * len(LIES))


def test_the_others_are_drawn_as_if_there_were_no_suspects():
    """By their losses over the mean of them, in proportion, as many as are left to draw."""
    rule, draws, generator = guarded(NoiseGuard(10, cap=0.2, visits=1), 0.5), 1000, seeded(3)
    drawn = torch.stack([rule.draw(1, generator) for _ in range(draws)])[:, ~LIE]
    losses = spread(N)[~LIE].tolist()
    mean = sum(losses) / len(losses)
    sizes = [max(0.1, min(1.0, loss / mean)) for loss in losses]
    check_shares(drawn, in_proportion(sizes, 19))  # one suspect is drawn


@pytest.mark.parametrize(("cap", "admitted"), [(0.0, 0), (0.3, 2), (1.0, 5)])
def test_a_ratio_draws_the_others_as_if_there_were_no_suspects(cap, admitted):
    guard, draws, generator = NoiseGuard(10, cap=cap, visits=1), 1000, seeded(4)
    rule = Memory(floor=0.1, guard=guard, warmup=Epochs(1))
    rule.grow(N)
    rule.update(torch.arange(N), torch.where(LIE, 9.0, spread(N)), 0)
    assert guard.suspects.tolist() == list(LIES)
    drawn = torch.stack([rule.draw(1, generator) for _ in range(draws)])
    assert (drawn[:, LIE].sum(1) == admitted).all()
    assert guard.held_back == draws * (len(LIES) - admitted)
    others = spread(N)[~LIE]
    check_shares(drawn[:, ~LIE], (others / others.mean()).clamp(0.1, 1.0))


def test_a_ratio_of_suspects_alone_draws_those_admitted():
    rule = Memory(guard=NoiseGuard(2, cap=0.5, visits=1), warmup=Epochs(1))
    rule.grow(6)
    rule.update(torch.arange(6), torch.full((6,), 9.0), 0)
    assert len(rule.suspects) == 6
    assert int(rule.draw(1, seeded(0)).sum()) == 3


def test_where_the_others_do_not_suffice_suspects_fill_up():
    guard = NoiseGuard(10, cap=0.0, visits=1)
    rule = Memory(0.75, guard=guard)
    rule.grow(N)
    rule.update(torch.arange(N), torch.where(torch.arange(N) < 24, 9.0, 0.1), 0)
    assert guard.suspects.tolist() == list(range(24))
    weights = rule.draw(1, seeded(0))
    assert int(weights.sum()) == 30
    assert weights[24:].all()
    assert guard.held_back == 10


def test_an_example_never_trained_on_is_trusted_and_kept():
    rule = guarded(NoiseGuard(10, cap=0.0, visits=1))
    rule.grow(N + 2)
    weights = rule.draw(1, seeded(0))
    assert weights[N:].tolist() == [1.0] * 2
    assert not weights[:N][LIE].any()


def test_as_long_as_there_are_no_suspects_all_are_drawn_by_their_ratios():
    losses, draws, generator = spread(N), 1000, seeded(5)
    rule = Memory(0.5, guard=NoiseGuard(10, visits=9))
    rule.grow(N)
    rule.update(torch.arange(N), losses, 0)
    drawn = torch.stack([rule.draw(1, generator) for _ in range(draws)])
    assert (drawn.sum(1) == 20).all()
    sizes = (losses / losses.mean()).clamp(0.1, 1.0).tolist()
    check_shares(drawn, in_proportion(sizes, 20))
    assert rule.guard.held_back == 0


def lies_of(loader, epoch):
    """An epoch on lies that keep their high loss; gives numbers and weights of each batch."""
    for batch in loader:
        lies = torch.isin(batch["number"], torch.tensor(LIES))
        loader.record(torch.where(lies, 9.0, batch["loss"] / (1 + epoch)))
        yield batch["number"].tolist(), loader.weights.tolist()


def test_a_loader_leaves_suspects_out_unread():
    guard = NoiseGuard(10, cap=0.0, visits=2)
    loader = ruled(Memory(0.5, guard=guard, warmup=Epochs(2)), 44)
    found = [{n for numbers, _ in lies_of(loader, epoch) for n in numbers} for epoch in range(6)]
    assert guard.suspects.tolist() == list(LIES)
    assert all(rows == set(range(44)) for rows in found[:2])
    assert all(not rows & set(LIES) for rows in found[2:])
    assert all(len(rows) == 22 for rows in found[2:])
    assert guard.held_back == 4 * 5


def test_stopping_anywhere_equals_never_stopping():
    def rule():
        return Memory(0.6, guard=NoiseGuard(10, cap=0.3, visits=2), warmup=Epochs(1))

    make = by_rule(rule, lambda: plain(Numbered(spread(N))), epochs=4, steps_of=lies_of)
    check_resumes(make, every=4)
    parts, steps, _ = make()
    list(steps())
    assert parts["loader"].memory.guard.held_back > 0


def test_a_state_of_another_guard_is_refused():
    with_guard, without = guarded(NoiseGuard(10)), Memory(0.5, warmup=Epochs(1))
    for here, there in ((with_guard, without), (without, with_guard)):
        with pytest.raises(StateError, match=r"guard=.*, and this Memory has guard="):
            here.load_state_dict(there.state_dict())
    other = Memory(0.5, guard=NoiseGuard(10, visits=2), warmup=Epochs(1))
    with pytest.raises(StateError, match=r"'visits': 3}, and this .*'visits': 2}"):
        other.load_state_dict(with_guard.state_dict())
    message = r"cap=0.05, and this NoiseGuard has cap=0.5"
    with pytest.raises(StateError, match=message):
        NoiseGuard(10, cap=0.5).load_state_dict(NoiseGuard(10).state_dict())
