"""Each rule against its paper's formula, slowly."""

import itertools
import math
import statistics

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from reference import order_probabilities
from remembering import Numbered, plain, ruled, seeded, spread, steps_of, weights_of
from siftback import SelectiveLoader
from siftback.contrib.ies import IES
from siftback.errors import ConfigError, LossError
from siftback.rules.alignprune import AlignPrune, alignment_scores
from siftback.rules.evos import EVOS
from siftback.rules.infobatch import InfoBatch, infobatch_weights
from siftback.rules.kakurenbo import Kakurenbo, hidden_examples
from siftback.rules.orderdp import OrderDP, draw_top_of_subset
from siftback.rules.rcap import RCAP, rcap_probabilities
from siftback.rules.repb import RePB, relative_losses
from siftback.rules.rs2 import RS2, take_from_permutations
from siftback.rules.seta import SeTa, loss_groups
from siftback.rules.ucb import UCB
from siftback.schedule import Share
from siftback.selectors.sampling import share_out
from siftback.tables.score_table import ScoreTable
from toys import assert_same

# InfoBatch


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
def test_infobatch_prunes_below_the_mean_alone(ratio):
    losses = torch.cat((spread(50), torch.full((5,), 1.0), torch.tensor([torch.inf, 9.0])))
    draws = torch.rand(len(losses), generator=seeded(3)).tolist()
    finite = [loss for loss in losses.tolist() if math.isfinite(loss)]
    mean, expected = sum(finite) / len(finite), []
    for loss, draw in zip(losses.tolist(), draws, strict=True):
        pruned = loss < mean and draw < ratio
        expected.append(0.0 if pruned else 1 / (1 - ratio) if loss < mean else 1.0)
    weights = infobatch_weights(losses, ratio, seeded(3))
    torch.testing.assert_close(weights, torch.tensor(expected))
    assert (weights == 0).any() == (ratio > 0)


def test_infobatch_leaves_equal_losses_and_a_single_one_alone():
    # The mean of 9 float32 numbers near 0.1, summed as such, is above them.
    equal = torch.full((9,), 0.5), torch.full((9,), 0.1), torch.full((99_999,), 0.7)
    for losses in (*equal, torch.tensor([2.0]), torch.full((3,), torch.inf)):
        assert_same(infobatch_weights(losses, 0.9, seeded(0)), torch.ones_like(losses))


def test_infobatchs_expected_gradient_is_that_of_all_examples():
    torch.manual_seed(1)
    inputs, targets = torch.randn(40, 3), torch.randint(2, (40,))
    model = torch.nn.Linear(3, 2)
    losses = F.cross_entropy(model(inputs), targets, reduction="none")
    gradients = torch.stack(
        [torch.autograd.grad(loss, model.weight, retain_graph=True)[0].flatten() for loss in losses]
    )
    generator, draws, ratio = seeded(2), 4000, 0.7
    weights = torch.stack(
        [infobatch_weights(losses.detach(), ratio, generator) for _ in range(draws)]
    )
    below = losses < losses.mean()
    # A weight is 1/(1 - r) with probability 1 - r, so its variance is r/(1 - r).
    deviation = (ratio / (1 - ratio) * (gradients[below] ** 2).sum(0) / draws).sqrt()
    assert ((weights @ gradients).mean(0) - gradients.sum(0)).abs().le(4.5 * deviation).all()
    expected = (ratio / (1 - ratio) * (losses[below] ** 2).sum() / draws).sqrt()
    assert abs(float(((weights @ losses).mean() - losses.sum()).detach())) < 4.5 * float(
        expected.detach()
    )
    assert (weights[:, ~below] == 1).all()


ANNEALING = [(8, 0.875, 7), (10, 0.875, 9), (10, 0.7, 7), (5, 0.5, 3), (3, 1.0, 3), (100, 0.07, 7)]


@pytest.mark.parametrize(("epochs", "delta", "first"), ANNEALING)
@pytest.mark.parametrize("drop_last", [False, True])
def test_infobatchs_weights_end_exactly_where_annealing_starts(epochs, delta, first, drop_last):
    wrapped = plain(Numbered(spread(60)), drop_last=drop_last)
    loader = ruled(InfoBatch(0.5, delta), wrapped=wrapped, epochs=epochs)
    for epoch in range(min(epochs, first + 3)):
        found = weights_of(loader, epoch)
        if 0 < epoch < first:
            assert set(found.values()) == {1.0, 2.0}
            assert len(found) < 60
        else:
            assert set(found.values()) == {1.0}
            assert len(found) == (56 if drop_last else 60)  # of batches of 8


def test_infobatchs_weights_must_be_used():
    loader = ruled(InfoBatch())

    def run():
        for _ in range(3):
            for batch in loader:
                loader.record(batch["loss"])

    with pytest.raises(ConfigError, match=r"the weights of \d+ batches were never used: run"):
        run()


def test_infobatchs_loss_is_the_weighted_mean():
    loader = ruled(InfoBatch(0.5))
    weighed = False
    for _ in range(3):
        for batch in loader:
            weights = loader.weights
            expected = (batch["loss"] * weights).mean()
            torch.testing.assert_close(loader.loss(batch["loss"]), expected)
            weighed |= bool((weights == 2).any())
    assert weighed


# RS2


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.4, 1 / 3, 0.3, 0.29, 0.01])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_rs2_covers_all_before_any_comes_again(keep, count):
    rule, generator = RS2(keep), seeded(5)
    rule.grow(count)
    times, size = torch.zeros(count), math.ceil(round(keep * count, 6))
    for epoch in range(3 * math.ceil(1 / keep)):
        drawn = rule.draw(epoch, generator)
        assert int(drawn.sum()) == size == int((drawn == 1).sum()) == rule.count(epoch)
        times += drawn
        assert times.max() - times.min() <= 1
        if epoch + 1 == math.ceil(1 / keep):
            assert (times >= 1).all()


def test_rs2_walks_through_one_permutation_after_the_other():
    def slowly(waiting, count, generator):
        taken = []
        while waiting and len(taken) < count:
            taken.append(waiting.pop(0))
        if len(taken) < count:
            order = torch.randperm(11, generator=generator).tolist()
            fresh = [number for number in order if number not in taken][: count - len(taken)]
            waiting = [number for number in order if number not in fresh]
            taken += fresh
        return taken, waiting

    one, other, fast, slow = seeded(1), seeded(1), torch.empty(0, dtype=torch.int64), []
    for _ in range(20):
        taken, fast = take_from_permutations(fast, 4, 11, one)
        expected, slow = slowly(slow, 4, other)
        assert taken.tolist() == expected
        assert fast.tolist() == slow


def test_rs2_with_replacement_draws_each_epoch_from_all():
    rule, generator, epochs = RS2(0.4, replacement=True), seeded(3), 2000
    rule.grow(25)
    draws = torch.stack([rule.draw(epoch, generator) for epoch in range(epochs)])
    assert (draws.sum(1) == 10).all()
    assert ((draws.mean(0) - 0.4).abs() < 4.5 * (0.24 / epochs) ** 0.5).all()
    again = (draws[1:] * draws[:-1]).mean()  # independent epochs: 0.4 squared
    assert abs(float(again) - 0.16) < 0.01


def test_rs2_needs_no_losses():
    loader = ruled(RS2(0.5))
    for _ in range(2):
        assert len(list(loader)) == 4  # 30 of 60 in batches of 8


# KAKURENBO


@pytest.mark.parametrize(("ratio", "threshold"), [(0.3, 0.7), (0.8, 0.0), (0.29, 1.0), (0, 0.5)])
def test_kakurenbo_hides_what_is_low_and_confidently_right(ratio, threshold):
    losses = spread(100)
    losses[20:30] = losses[5]
    correct = torch.rand(100, generator=seeded(1)) < 0.8
    confidence = torch.rand(100, generator=seeded(2))
    most = round(ratio * 100)
    lowest = sorted(range(100), key=lambda row: losses[row].item())[:most]  # stable, as in Python
    expected = [
        row in lowest and bool(correct[row]) and bool(confidence[row] >= threshold)
        for row in range(100)
    ]
    assert hidden_examples(losses, correct, confidence, ratio, threshold).tolist() == expected


def test_kakurenbo_scales_the_rate_and_moves_back():
    loader = ruled(Kakurenbo(0.5, 0.6))
    assert len(weights_of(loader, 0)) == 60
    assert loader.lr_scale == 1
    assert loader.left_out.tolist() == []
    losses = loader.memory.values[:, 0].tolist()
    lowest = sorted(range(60), key=losses.__getitem__)[:30]
    hidden = {number for number in lowest if number % 4 != 0 and number * 7 % 10 >= 6}
    steps = steps_of(loader, 1)
    next(steps)
    assert loader.lr_scale == 60 / (60 - len(hidden)) > 1
    list(steps)
    assert set(loader.left_out.tolist()) == hidden
    # A forward pass finds them uncertain: all move back.
    left_out = loader.left_out
    loader.record(
        torch.full((len(left_out),), 0.001),
        correct=torch.ones(len(left_out), dtype=torch.bool),
        confidence=torch.full((len(left_out),), 0.5),
        indices=left_out,
    )
    assert hidden <= weights_of(loader, 2).keys()


MISSING = {
    "correct": ({"confidence": torch.zeros(8)}, ConfigError, "was passed no correct=: call loader"),
    "confidence": ({"correct": torch.zeros(8).bool()}, ConfigError, "was passed no confidence="),
    "kind": (
        {"correct": torch.zeros(8), "confidence": torch.zeros(8)},
        LossError,
        r"correct=float32\[8\]: .* bool\[8\]",
    ),
    "shape": (
        {"correct": torch.zeros(8).bool(), "confidence": torch.zeros(8, 3)},
        LossError,
        r"confidence=float32\[8, 3\]: .* float\[8\]",
    ),
}


@pytest.mark.parametrize(("given", "error", "message"), MISSING.values(), ids=MISSING)
def test_kakurenbo_must_be_passed_what_was_predicted(given, error, message):
    rule = Kakurenbo()
    rule.grow(8)
    with pytest.raises(error, match=message):
        rule.update(torch.arange(8), torch.zeros(8), 0, **given)
    assert rule.values.isnan().all()
    loader = ruled(Kakurenbo())
    next(iter(loader))
    with pytest.raises(error):
        loader.loss(torch.zeros(8), **given)


# UCB, SeTa, IES


@pytest.mark.parametrize("every", [1, 3])
def test_ucb_prunes_the_lowest_bounds_of_each_period(every):
    losses = torch.rand(9, 12, generator=seeded(4)) + torch.linspace(0, 1, 12)
    rule = UCB(0.4, c=0.7, decay=0.75, every=every)
    rule.grow(13)  # one of which is never trained on
    means, variances, before = [None] * 12, [0.0] * 12, []
    for epoch, row in enumerate(losses):
        weights = rule.draw(epoch, seeded(0))
        if epoch == 0:
            assert weights.tolist() == [1.0] * 13
        elif epoch % every == 0 or every == 1:
            bounds = [m + 0.7 * v**0.5 for m, v in zip(means, variances, strict=True)]
            torch.testing.assert_close(rule.bounds()[:12], torch.tensor(bounds))
            lowest = sorted(range(12), key=bounds.__getitem__)[:7]  # 0.6 * 12, rounded down
            expected = [0.0 if number in lowest else 1.0 for number in range(12)] + [1.0]
            assert weights.tolist() == expected
        else:
            assert weights.tolist() == before
        before = weights.tolist()
        trained = weights[:12].nonzero().squeeze(1)
        rule.update(trained, row[trained], epoch)
        for number in trained.tolist():
            loss = row[number].item()
            if means[number] is None:
                means[number] = loss
            else:
                variances[number] = 0.75 * variances[number] + 0.25 * (loss - means[number]) ** 2
                means[number] = 0.75 * means[number] + 0.25 * loss


def test_a_loss_that_is_not_finite_is_kept_and_forgotten():
    rule = UCB(0.5)
    rule.grow(4)
    rule.update(torch.arange(4), torch.tensor([1.0, 2.0, torch.nan, 0.5]), 0)
    assert rule.draw(1, seeded(0)).tolist() == [0, 1, 1, 0]
    rule.update(torch.tensor([2]), torch.tensor([0.25]), 1)
    assert rule.bounds()[2] == 0.25


@pytest.mark.parametrize("groups", [1, 2, 5, 10])
def test_losses_are_grouped_by_the_nearest_mean(groups):
    losses = torch.rand(60, generator=seeded(groups)) ** 3 * 8
    labels = loss_groups(losses, groups)
    count = int(labels.max()) + 1
    assert labels.unique().tolist() == list(range(count))
    assert groups == 1 or 1 < count <= groups
    order = losses.argsort()
    assert (labels[order].diff() >= 0).all()  # groups in the order of their losses
    centres = [losses[labels == group].mean().item() for group in range(count)]
    for loss, label in zip(losses.tolist(), labels.tolist(), strict=True):
        nearest = min(range(count), key=lambda group: abs(loss - centres[group]))
        assert nearest == label


def test_equal_losses_are_one_group():
    assert loss_groups(torch.ones(7), 4).tolist() == [0] * 7
    assert loss_groups(torch.tensor([3.0]), 10).tolist() == [0]


def test_seta_slides_a_window_over_a_random_subset():
    losses = torch.cat([torch.linspace(0, 0.1, 10) + group for group in range(5)])
    rule = SeTa(0.2, groups=5, window=0.4, delta=1.0)
    rule.grow(50)
    rule.update(torch.arange(50), losses, 0)
    subsets = seeded(6)
    generator = seeded(6)
    for turn in range(9):
        weights = rule.draw(turn + 1, generator)
        subset = torch.randperm(50, generator=subsets)[:40].tolist()
        start = turn % (5 - 2 + 1)
        window = range(5) if turn == 0 else range(start, start + 2)
        expected = [n in subset and n // 10 in window for n in range(50)]
        assert weights.tolist() == [float(kept) for kept in expected]


@pytest.mark.parametrize("keep", [0.0, 0.7])
def test_ies_leaves_out_what_is_settled(keep):
    history = torch.rand(30, 7, generator=seeded(8)).cumsum(1) * torch.rand(30, 1)
    rule = IES(threshold=0.15, window=3, keep=keep)
    rule.grow(31)
    for epoch in range(7):
        rule.update(torch.arange(30), history[:, epoch], epoch)
        weights = rule.draw(epoch + 1, seeded(0)).tolist()
        if epoch < 4:
            assert weights == [1.0] * 31
            continue
        bends = []
        for losses in history[:, : epoch + 1].tolist():
            second = [losses[t] - 2 * losses[t - 1] + losses[t - 2] for t in range(2, epoch + 1)]
            bends.append(sum(abs(bend) for bend in second[-3:]) / 3)
        settled = [n for n in sorted(range(30), key=bends.__getitem__) if bends[n] < 0.15]
        assert len(settled) > 9
        settled = settled[: round((1 - keep) * 30)]
        assert weights == [0.0 if n in settled else 1.0 for n in range(31)]


# OrderDP


@pytest.mark.parametrize(("subset", "count"), [(1, 1), (4, 2), (4, 4), (6, 1), (7, 3)])
def test_orderdp_s_mean_loss_is_that_of_its_surrogate(subset, count):
    """Over all subsets, one by one."""
    losses = sorted(spread(7).tolist(), reverse=True)
    subsets = [sorted(own, reverse=True) for own in itertools.combinations(losses, subset)]
    mean = sum(sum(own[:count]) / count for own in subsets) / len(subsets)
    shares = order_probabilities(7, subset, count)
    weighted = sum(share * loss for share, loss in zip(shares, losses, strict=True))
    assert mean == pytest.approx(weighted / count)
    assert sum(shares) == pytest.approx(count)


def test_orderdp_draws_the_highest_of_its_subset():
    losses = spread(30)
    losses[[3, 8]] = torch.nan  # which come first
    weights = draw_top_of_subset(losses, 12, 5, seeded(1))
    order = [n for n in torch.randperm(30, generator=seeded(1)).tolist() if n not in (3, 8)]
    highest = sorted(order[:10], key=losses.__getitem__, reverse=True)[:3]
    assert sorted(weights.nonzero().flatten().tolist()) == sorted([3, 8, *highest])


# RePB


def test_repb_compares_within_batches_and_weights_by_how_often_it_drew():
    losses, ratio = torch.rand(12, 20, generator=seeded(3)) + torch.linspace(0, 1, 20), 0.6
    rule, draws, same_draws, order = RePB(ratio), seeded(5), seeded(5), seeded(6)
    rule.grow(21)  # one of which is never trained on
    is_below, times = [False] * 21, [0] * 21
    for epoch, row in enumerate(losses):
        weights, numbers = rule.draw(epoch, draws), torch.rand(21, generator=same_draws).tolist()
        is_kept = [not (is_below[n] and numbers[n] < ratio) for n in range(21)]
        times = [count + kept for count, kept in zip(times, is_kept, strict=True)]
        expected = [(epoch + 1) / times[n] if is_kept[n] else 0.0 for n in range(21)]
        torch.testing.assert_close(weights, torch.tensor(expected))
        trained = [n for n in torch.randperm(20, generator=order).tolist() if is_kept[n]]
        for batch in torch.tensor(trained).split(4):
            rule.update(batch, row[batch], epoch)
            mean = sum(row[batch].tolist()) / len(batch)
            for n in batch.tolist():
                is_below[n] = row[n].item() < mean
    assert max(expected) > 1.5


def test_repb_counts_examples_alike_in_the_long_run():
    """Those left out half of the time, too: the weights of each are about one a pass."""
    rule, generator, passes = RePB(0.5), seeded(7), 400
    rule.grow(8)
    losses, total = torch.arange(8.0), torch.zeros(8)
    for epoch in range(passes):
        weights = rule.draw(epoch, generator)
        total += weights
        trained = weights.nonzero().squeeze(1)
        rule.update(trained, losses[trained], epoch)
    assert (rule.values[:4, 1] > passes / 3).all()
    assert (total / passes - 1).abs().max() < 0.15


def test_equal_losses_are_none_below_their_mean():
    for losses in (torch.full((9,), 0.1), torch.tensor([2.0]), torch.full((3,), 3.4e38)):
        assert_same(relative_losses(losses), torch.zeros_like(losses))


# RCAP


def test_rcap_s_shares_are_the_best_of_all():
    """Of all shares of the classes, one by one: the mean over classes of L n / N over the share."""
    sizes, losses, count = [3, 5, 12], [0.9, 0.4, 1.0], 8
    found = share_out(
        torch.tensor([math.sqrt(n * loss / 20) for n, loss in zip(sizes, losses, strict=True)]),
        torch.tensor(sizes),
        count,
    )

    def cost(counts):
        return sum(n / 20 * loss / k for n, loss, k in zip(sizes, losses, counts, strict=True))

    steps = [step / 40 for step in range(1, 320)]
    grid = (
        (a, b, count - a - b)
        for a in steps
        for b in steps
        if a <= sizes[0] and b <= sizes[1] and 0 < count - a - b <= sizes[2]
    )
    assert cost(found.tolist()) <= min(map(cost, grid)) + 1e-9
    assert float(found.sum()) == pytest.approx(count)


def test_rcap_draws_where_a_class_has_but_one_loss_to_tell_apart():
    """At a low temperature the shares of all but the highest loss of a class are 0."""
    losses, classes = torch.linspace(0, 1.3, 40), torch.arange(40) % 4
    drawn = torch.ones(40, dtype=torch.bool)
    probabilities = rcap_probabilities(losses, classes, drawn, 20, temperature=1e-4)
    assert (probabilities[-4:] == 1).all()
    assert probabilities[:-4].tolist() == pytest.approx([16 / 36] * 36)


def test_rcap_covers_less_of_a_class_that_was_covered_less():
    losses, classes = spread(40), torch.arange(40) % 2
    everything = torch.ones(40, dtype=torch.bool)
    some = everything.clone()
    some[:20:2] = False  # half of the first class
    before, after = (
        rcap_probabilities(losses, classes, drawn, 20, 0.5) for drawn in (everything, some)
    )
    shares = torch.where(classes == 0, losses.clamp(0, math.log(2)).double().div(0.5).exp(), 0.0)
    covered = float(shares[some].sum() / shares.sum())
    first = 20 * math.sqrt(covered) / (1 + math.sqrt(covered))
    assert float(before[classes == 0].sum()) == pytest.approx(10)
    assert float(after[classes == 0].sum()) == pytest.approx(first)
    for probabilities in (before, after):
        assert float(probabilities.sum()) == pytest.approx(20)
        assert float(probabilities.max()) <= 1 + 1e-12


def test_rcap_remembers_what_it_left_out_and_needs_labels():
    rule = RCAP(keep=0.5)
    rule.grow(10)
    rule.update(torch.arange(10), spread(10), 0)
    with pytest.raises(ConfigError, match=r"RCAP has no labels: give RCAP\(labels\)"):
        rule.draw(1, seeded(0))
    for labels in (torch.zeros(9), torch.zeros(11)):
        with pytest.raises(ConfigError, match=rf"labels of {len(labels)} examples, .* are 10"):
            rule.set_labels(labels.int())
    rule.set_labels(torch.arange(10) % 2)
    weights = rule.draw(1, seeded(0))
    assert rule.values[:, 1].tolist() == (weights == 0).float().tolist()
    with pytest.raises(ConfigError, match="RS2 draws without labels"):
        RS2().set_labels([0, 1])


def test_rcap_refuses_the_labels_of_a_whole_set_beside_a_subset_of_it():
    labels = torch.arange(40) % 4
    whole = TensorDataset(torch.randn(40, 3), labels)
    part = Subset(whole, range(1, 40, 2))
    with pytest.raises(ConfigError, match=r"RCAP has .* labels of 40 .* 20: .*\[subset.indices\]"):
        SelectiveLoader(DataLoader(part, 4), memory=RCAP(labels))
    SelectiveLoader(DataLoader(part, 4), memory=RCAP(labels[part.indices]))


# AlignPrune


def test_alignprune_s_score_is_the_correlation_of_what_is_known():
    losses = torch.rand(30, 6, generator=seeded(3))
    losses[torch.rand(30, 6, generator=seeded(4)) < 0.3] = torch.nan
    losses[4, 2] = torch.inf
    reference = torch.rand(6, generator=seeded(5))
    for own, score in zip(losses, alignment_scores(losses, reference).tolist(), strict=True):
        known = own.isfinite()
        if known.sum() < 3:
            assert math.isnan(score)
        else:
            expected = statistics.correlation(own[known].tolist(), reference[known].tolist())
            assert score == pytest.approx(expected, abs=1e-5)


def test_alignprune_goes_by_losses_first_and_forgets_old_passes():
    rule, losses = AlignPrune(0.5, window=3, delta=1.0), spread(12)
    rule.grow(12)
    rule.update(torch.arange(12), losses, 0)
    assert_same(rule.draw(1, seeded(1)), InfoBatch.draw(taught_infobatch(losses), 1, seeded(1)))
    for epoch in (1, 2):
        rule.update(torch.arange(6), losses[:6] / (epoch + 1), epoch)
    assert rule.scores(3)[6:].isnan().all()  # of a single loss
    rule.draw(3, seeded(2))
    assert rule.values[:, 0].isnan().all()


def taught_infobatch(losses):
    rule = InfoBatch(0.5, 1.0)
    rule.grow(len(losses))
    rule.update(torch.arange(len(losses)), losses, 0)
    return rule


def test_alignprune_s_reference_may_be_some_of_the_examples():
    falling, rising = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 3.0])
    rule = AlignPrune(0.5, window=3, reference=[4])
    rule.grow(5)
    for epoch in range(3):
        now = torch.stack((*[rising[epoch]] * 4, falling[epoch]))
        rule.update(torch.arange(5), now, epoch)
    assert rule.scores(3).tolist() == pytest.approx([-1] * 4 + [1])
    for index in (5, -1):
        rule = AlignPrune(reference=[0, index])
        rule.grow(5)
        with pytest.raises(ConfigError, match=f"reference= has {index}, of 5 examples"):
            rule.draw(0, seeded(0))


# EVOS


def test_evos_goes_by_the_last_whole_pass():
    rule, losses, other = EVOS(0.5, 0.2, every=3), spread(20), spread(20, 7)
    rule.grow(20)
    rule.update(torch.arange(20), losses, 0)
    rule.update(torch.arange(20), other, 1)
    assert_same(rule.scores(2), losses)
    highest = losses.topk(8).indices
    drawn = torch.stack([rule.draw(2, seeded(number)) for number in range(300)])
    assert (drawn.sum(1) == 10).all()
    assert (drawn[:, highest] == 1).all()
    rest = drawn.mean(0)[[n for n in range(20) if n not in highest]]
    assert ((rest - 2 / 12).abs() < 0.12).all()
    assert rule.draw(3, seeded(0)).tolist() == [1.0] * 20


REFUSED = {
    "ratio": (lambda: InfoBatch(ratio=1), r"ratio=1: give a share in \[0, 1\)"),
    "delta": (lambda: InfoBatch(delta=0), r"delta=0: give a share in \(0, 1\]"),
    "keep": (lambda: RS2(0), r"keep=0: give a share in \(0, 1\]"),
    "tail": (lambda: RS2(tail=Share(1)), r"tail=Share\(1.0\) is the whole of training: give a"),
    "threshold": (lambda: Kakurenbo(threshold=2), r"threshold=2: give a share in \[0, 1\]"),
    "c": (lambda: UCB(c=-1), "c=-1: give a finite number, at least 0"),
    "every": (lambda: UCB(every=0), "every=0: give an integer, at least 1"),
    "groups": (lambda: SeTa(groups=0), "groups=0: give an integer, at least 1"),
    "temperature": (lambda: RCAP([0], temperature=0), "temperature=0: give a finite number above"),
    "labels": (lambda: RCAP([0.5]), r"labels=\[0.5\]: give int\[N\], the label of each example"),
    "passes": (lambda: AlignPrune(window=2), "window=2: give an integer, at least 3"),
    "mutation": (lambda: EVOS(mutation=2), r"mutation=2: give a share in \[0, 1\]"),
    "subset": (lambda: OrderDP(subset=0), r"subset=0: give a share in \(0, 1\]"),
    "window": (lambda: IES(window=0), "window=0: give an integer, at least 1"),
    "settled": (lambda: IES(threshold=0), "threshold=0: give a finite number above 0"),
    "table": (
        lambda: Kakurenbo(table=ScoreTable()),
        r"remembers 3 numbers per example, and the table has 1 columns: give it ScoreTable\(",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_repb_counts_the_passes_of_a_second_training_anew():
    rule = RePB(0.6)
    loader = ruled(rule, shorter_epochs=False, epochs=4)

    def train():
        loader.set_epoch(0)
        steps = [step for epoch in range(4) for step in steps_of(loader, epoch)]
        return [weight for _, batch in steps for weight in batch]

    first = train()
    rule.table.record(torch.arange(60), torch.full((60,), torch.nan), 0)  # forgets the losses
    assert train() == first
    assert max(first) > 1
