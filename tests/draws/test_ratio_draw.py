"""Exactly k by the loss over the mean: in proportion, and where losses are missing or extreme."""

import pytest
import torch

from remembering import seeded, spread
from selections import check_shares, in_proportion
from siftback.draws import ratio_draw
from siftback.draws.percentile_draw import SORTED
from siftback.draws.ratio_draw import are_mislabelled, draw_by_ratio, ratio_probabilities
from siftback.selectors.sampling import inclusion_probabilities

DRAWS = 1000


@pytest.mark.parametrize(("floor", "count"), [(0.0, 5), (0.1, 11), (0.5, 18)])
def test_exactly_k_are_drawn_in_proportion_to_what_the_ratios_say(floor, count):
    losses, generator = spread(20), seeded(1)
    drawn = torch.stack([draw_by_ratio(losses, floor, count, generator) for _ in range(DRAWS)])
    assert (drawn.sum(1) == count).all()
    mean = sum(losses.tolist()) / 20
    sizes = [max(floor, min(1.0, loss / mean)) for loss in losses.tolist()]
    check_shares(drawn, in_proportion(sizes, count))


def test_what_has_no_loss_is_kept_and_an_infinite_one_counts_as_a_high_one():
    losses = torch.cat((torch.full((3,), torch.nan), torch.tensor([torch.inf]), torch.zeros(16)))
    losses[4:8] = 1.0
    drawn = torch.stack([draw_by_ratio(losses, 0.0, 8, seeded(seed)) for seed in range(50)])
    assert (drawn[:, :8] == 1).all()  # three unknown, the infinite one, and four above the mean
    assert (drawn[:, 8:] == 0).all()


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_losses_that_tell_nothing_are_all_as_probable(value):
    losses, generator = torch.full((12,), value), seeded(3)
    drawn = torch.stack([draw_by_ratio(losses, 0.1, 3, generator) for _ in range(DRAWS)])
    assert (drawn.sum(1) == 3).all()
    check_shares(drawn, [0.25] * 12)


def test_a_certain_one_is_never_above_1():
    assert ratio_probabilities(torch.tensor([0.0, 1.0, 1e9]), 0.2).tolist() == [0.2, 0.2, 1.0]


def test_the_others_are_drawn_as_if_the_excluded_were_not_there():
    losses, excluded = spread(20), torch.tensor([0, 7, 19])
    others = torch.ones(20, dtype=torch.bool).index_fill_(0, excluded, False)
    drawn = draw_by_ratio(losses, 0.1, 8, seeded(4), excluded)
    assert not drawn[excluded].any()
    assert torch.equal(drawn[others], draw_by_ratio(losses[others], 0.1, 8, seeded(4)))


@pytest.mark.parametrize("floor", [0.1, 0.0])
@pytest.mark.sampled(2)
def test_more_losses_than_are_sorted(floor):
    size = SORTED + 1000
    losses = torch.rand(size, generator=seeded(5)) ** 4
    excluded = torch.arange(0, size, 30)
    losses[excluded] = 100.0
    losses[1::1000], losses[2::1000] = torch.nan, torch.inf
    others = torch.ones(size, dtype=torch.bool).index_fill_(0, excluded, False)
    count = round(0.4 * size)
    drawn = draw_by_ratio(losses, floor, count, seeded(6), excluded)
    assert int(drawn.count_nonzero()) == count
    assert not drawn[~others].any()
    unknown = others & losses.isnan()
    assert drawn[unknown].all()
    known = others & ~unknown
    proportions = ratio_probabilities(losses[known], floor)
    expected = inclusion_probabilities(proportions, count - int(unknown.sum()))
    order, drawn = expected.argsort(), drawn[known]
    for group in order.tensor_split(10):
        mean = float(expected[group].mean())
        assert float(drawn[group].double().mean()) == pytest.approx(mean, abs=2e-3)


@pytest.mark.parametrize("block", [3, 1000])
def test_labels_seem_wrong_once_several_have_much_of_the_loss_and_others_are_learned(
    block, monkeypatch
):
    monkeypatch.setattr(ratio_draw, "BLOCK", block)
    chance = seeded(4)
    kinds = set()
    for _ in range(200):
        misfits, right = (torch.rand(2, generator=chance) * torch.tensor([0.5, 2.0])).tolist()
        losses = right * torch.rand(50, generator=chance)
        losses[: int(misfits * 50)] += 3.0
        losses[[7, 8]] = torch.tensor([torch.nan, torch.inf])
        known = [loss for loss in losses.tolist() if loss < torch.inf]
        mean = sum(known) / 48
        share = sum(loss for loss in known if loss > 2.3) / sum(known)
        kind = (
            mean < 2.3 * ratio_draw.LEARNED,
            share > ratio_draw.MISFIT_LOSS,
            int(misfits * 50) > 2,
        )
        assert are_mislabelled(losses[torch.randperm(50, generator=chance)], 2.3) == all(kind)
        kinds.add(kind)
    assert {(True, True, False), (True, False, True), (False, True, True), (True,) * 3} <= kinds
    assert not are_mislabelled(torch.tensor([0.1, 4.0]), 0.0)
    assert not are_mislabelled(torch.full((2,), torch.nan), 2.3)
