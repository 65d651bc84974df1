"""Each rule that draws every epoch against its paper's formula, slowly."""

import math

import pytest
import torch
from torch.nn import functional as F

from remembering import spread
from rule_methods import epoch_of, loader_of, seeded, steps_of
from siftback import IES, RS2, UCB, ConfigError, InfoBatch, Kakurenbo, LossError, Schedule, SeTa
from siftback.rules.infobatch import infobatch_weights
from siftback.rules.kakurenbo import hidden_examples
from siftback.rules.rs2 import next_of_permutations
from siftback.rules.seta import loss_groups
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
    for losses in (torch.full((9,), 0.5), torch.tensor([2.0]), torch.full((3,), torch.inf)):
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
    # A weight is 1/(1 - r) with chance 1 - r, so its variance is r/(1 - r).
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
    loader = loader_of(InfoBatch(0.5, delta), epochs=epochs, drop_last=drop_last)
    for epoch in range(min(epochs, first + 3)):
        found = epoch_of(loader, epoch)
        if 0 < epoch < first:
            assert set(found.values()) == {1.0, 2.0}
            assert len(found) < 60
        else:
            assert set(found.values()) == {1.0}
            assert len(found) == (56 if drop_last else 60)  # of batches of 8


def test_shares_of_training_are_whole_epochs_where_they_mean_to_be():
    for hundredths in range(1, 100):
        schedule = Schedule(end=hundredths / 100)
        on = [schedule.is_on(epoch, 100) for epoch in range(100)]
        assert on == [epoch < hundredths for epoch in range(100)]


def test_infobatchs_weights_must_be_read():
    loader = loader_of(InfoBatch())

    def run():
        for batch in loader:
            loader.remember(batch["loss"])

    with pytest.raises(ConfigError, match="InfoBatch reweights losses and the weights were never"):
        run()


# RS2


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.4, 1 / 3, 0.3, 0.29, 0.01])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_rs2_covers_all_before_any_comes_again(keep, count):
    scorer, generator = RS2(keep), seeded(5)
    scorer.grow(count)
    times, size = torch.zeros(count), math.ceil(round(keep * count, 6))
    for epoch in range(3 * math.ceil(1 / keep)):
        drawn = scorer.draw(epoch, generator)
        assert int(drawn.sum()) == size == int((drawn == 1).sum())
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
        taken, fast = next_of_permutations(fast, 4, 11, one)
        expected, slow = slowly(slow, 4, other)
        assert taken.tolist() == expected
        assert fast.tolist() == slow


def test_rs2_with_replacement_draws_each_epoch_from_all():
    scorer, generator, epochs = RS2(0.4, replacement=True), seeded(3), 2000
    scorer.grow(25)
    draws = torch.stack([scorer.draw(epoch, generator) for epoch in range(epochs)])
    assert (draws.sum(1) == 10).all()
    assert ((draws.mean(0) - 0.4).abs() < 4.5 * (0.24 / epochs) ** 0.5).all()
    again = (draws[1:] * draws[:-1]).mean()  # independent epochs: 0.4 squared
    assert abs(float(again) - 0.16) < 0.01


def test_rs2_is_told_no_losses():
    loader = loader_of(RS2(0.5))
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
    loader = loader_of(Kakurenbo(0.5, 0.6))
    assert len(epoch_of(loader, 0)) == 60
    assert loader.lr_scale == 1
    assert loader.left_out.tolist() == []
    remembered = {n: float(x) for n, x in enumerate(loader.scorer.predicted(1))}
    lowest = sorted(remembered, key=remembered.get)[:30]
    hidden = {number for number in lowest if number % 4 != 0 and number * 7 % 10 >= 6}
    steps = steps_of(loader, 1)
    next(steps)
    assert loader.lr_scale == 60 / (60 - len(hidden)) > 1
    list(steps)
    assert set(loader.left_out.tolist()) == hidden
    # A forward pass finds them unsure: all move back.
    left_out = loader.left_out
    loader.remember(
        torch.full((len(left_out),), 0.001),
        correct=torch.ones(len(left_out), dtype=torch.bool),
        confidence=torch.full((len(left_out),), 0.5),
        indices=left_out,
    )
    assert hidden <= epoch_of(loader, 2).keys()


UNJUDGED = {
    "correct": ({"confidence": torch.zeros(8)}, ConfigError, "Kakurenbo was told no correct="),
    "confidence": ({"correct": torch.zeros(8).bool()}, ConfigError, "was told no confidence="),
    "kind": (
        {"correct": torch.zeros(8), "confidence": torch.zeros(8)},
        LossError,
        r"correct is torch.float32 of shape \[8\]: .* bool\[8\]",
    ),
    "shape": (
        {"correct": torch.zeros(8).bool(), "confidence": torch.zeros(8, 3)},
        LossError,
        r"confidence is torch.float32 of shape \[8, 3\]: .* float\[8\]",
    ),
}


@pytest.mark.parametrize(("told", "error", "message"), UNJUDGED.values(), ids=UNJUDGED)
def test_kakurenbo_must_be_told_what_was_predicted(told, error, message):
    loader = loader_of(Kakurenbo())
    next(iter(loader))
    with pytest.raises(error, match=message):
        loader.remember(torch.zeros(8), **told)


# UCB, SeTa, IES


@pytest.mark.parametrize("every", [1, 3])
def test_ucb_prunes_the_lowest_bounds_of_each_period(every):
    losses = torch.rand(9, 12, generator=seeded(4)) + torch.linspace(0, 1, 12)
    scorer = UCB(0.4, c=0.7, decay=0.75, every=every)
    scorer.grow(13)  # one of which is never trained on
    means, variances, before = [None] * 12, [0.0] * 12, []
    for epoch, row in enumerate(losses):
        weights = scorer.draw(epoch, seeded(0))
        if epoch == 0:
            assert weights.tolist() == [1.0] * 13
        elif epoch % every == 0 or every == 1:
            bounds = [m + 0.7 * v**0.5 for m, v in zip(means, variances, strict=True)]
            torch.testing.assert_close(scorer.predicted(epoch)[:12], torch.tensor(bounds))
            lowest = sorted(range(12), key=bounds.__getitem__)[:7]  # 0.6 * 12, rounded down
            expected = [0.0 if number in lowest else 1.0 for number in range(12)] + [1.0]
            assert weights.tolist() == expected
        else:
            assert weights.tolist() == before
        before = weights.tolist()
        trained = weights[:12].nonzero().squeeze(1)
        scorer.trained(trained, row[trained], epoch)
        for number in trained.tolist():
            loss = row[number].item()
            if means[number] is None:
                means[number] = loss
            else:
                variances[number] = 0.75 * variances[number] + 0.25 * (loss - means[number]) ** 2
                means[number] = 0.75 * means[number] + 0.25 * loss


def test_a_loss_that_is_not_finite_is_kept_and_forgotten():
    scorer = UCB(0.5)
    scorer.grow(4)
    scorer.trained(torch.arange(4), torch.tensor([1.0, 2.0, torch.nan, 0.5]), 0)
    assert scorer.draw(1, seeded(0)).tolist() == [0, 1, 1, 0]
    scorer.trained(torch.tensor([2]), torch.tensor([0.25]), 1)
    assert scorer.predicted(2)[2] == 0.25


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
    scorer = SeTa(0.2, groups=5, window=0.4, delta=1.0)
    scorer.grow(50)
    scorer.trained(torch.arange(50), losses, 0)
    subsets = seeded(6)
    generator = seeded(6)
    for turn in range(9):
        weights = scorer.draw(turn + 1, generator)
        subset = torch.randperm(50, generator=subsets)[:40].tolist()
        start = turn % (5 - 2 + 1)
        window = range(5) if turn == 0 else range(start, start + 2)
        expected = [n in subset and n // 10 in window for n in range(50)]
        assert weights.tolist() == [float(kept) for kept in expected]


@pytest.mark.parametrize("keep", [0.0, 0.7])
def test_ies_leaves_out_what_is_settled(keep):
    history = torch.rand(30, 7, generator=seeded(8)).cumsum(1) * torch.rand(30, 1)
    scorer = IES(threshold=0.15, window=3, keep=keep)
    scorer.grow(31)
    for epoch in range(7):
        scorer.trained(torch.arange(30), history[:, epoch], epoch)
        weights = scorer.draw(epoch + 1, seeded(0)).tolist()
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
