"""Agreement of scores against SciPy and against sets."""

import numpy as np
import pytest
import scipy
import torch

from siftback import Percentile
from siftback.probing.agreement import agreement, rank_correlation


def draws(seed, count=200):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=count)).float()


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("ties", [False, True])
def test_the_rank_correlation_is_scipys(noise, ties):
    one = draws(0)
    other = one + noise * draws(1)
    if ties:
        one, other = one.round(decimals=1), other.round()
    expected = scipy.stats.spearmanr(one.numpy(), other.numpy()).statistic
    assert rank_correlation(one, other) == pytest.approx(expected)


def test_equal_scores_have_no_rank_correlation():
    assert rank_correlation(torch.ones(5), draws(0, 5)) is None


def test_overlaps_are_those_of_sets():
    exact = draws(2)
    cheap = exact + 0.5 * draws(3)
    found = agreement(exact, cheap, [1 / 2, 1 / 4], seed=7)
    assert found.examples == 200
    for overlap in found.overlaps:
        k = round(200 * overlap.keep)
        tops = [set(np.argsort(-each.numpy())[:k].tolist()) for each in (exact, cheap)]
        assert overlap.top == pytest.approx(len(tops[0] & tops[1]) / k)
        chosen = []
        for scores in (exact, cheap):
            selector = Percentile(keep=overlap.keep, history=200)
            kept = selector.select(scores, torch.Generator().manual_seed(7)).positions
            chosen.append(set(kept.tolist()))
        sizes = len(chosen[0]) + len(chosen[1])
        assert overlap.selected == pytest.approx(2 * len(chosen[0] & chosen[1]) / sizes)
        assert overlap.keep < overlap.top < 1


def test_only_the_order_counts_for_what_is_selected():
    exact = draws(4)
    found = agreement(exact, exact.exp() * 3, [1 / 3])
    assert (found.rank_correlation, found.overlaps[0].top) == (1.0, 1.0)
    assert found.overlaps[0].selected == 1.0


def test_a_score_that_is_nan_counts_as_the_highest():
    exact = torch.arange(8.0)
    cheap = exact.clone()
    cheap[0] = torch.nan
    assert agreement(exact, cheap, [1 / 4]).overlaps[0].top == 0.5
