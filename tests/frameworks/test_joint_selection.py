"""The recipe that chooses batches of pairs jointly: its losses, its draws, and the benchmark's."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from scripts import load_script

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "contrastive.md"
benchmark = load_script("benchmarks/guides/joint_selection.py")


@pytest.fixture(scope="module")
def recipe():
    """The names that the page's code defines."""
    page = PAGE.read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1], names)
    return names


@pytest.fixture(scope="module")
def similarities():
    generator = torch.Generator().manual_seed(0)
    return [3 * torch.randn(24, 24, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("chosen", [[], [3], [5, 0, 11, 7]], ids=str)
def test_a_conditional_loss_is_that_of_the_pair_in_a_batch_with_the_chosen(
    recipe, similarities, chosen
):
    losses = recipe["conditional_losses"](similarities[0], torch.tensor(chosen, dtype=torch.int64))
    for pair in set(range(24)) - {*chosen}:
        batch = [pair, *chosen]
        scores, target = similarities[0][batch][:, batch], torch.tensor(0)
        both = F.cross_entropy(scores[0], target) + F.cross_entropy(scores[:, 0], target)
        torch.testing.assert_close(losses[pair], both / 2)


@pytest.mark.parametrize(("count", "chunks"), [(1, 1), (8, 1), (8, 8), (9, 4), (24, 5)])
def test_pairs_are_chosen_once_each_and_as_the_benchmark_chooses_them(
    recipe, similarities, count, chunks
):
    chosen = [
        choose(*similarities, count, chunks, torch.Generator().manual_seed(1)).tolist()
        for choose in (recipe["choose_jointly"], benchmark.choose_jointly)
    ]
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == count


def test_pairs_are_drawn_in_proportion_to_the_exponential_of_their_scores(recipe):
    learner, draws = torch.tensor([[2.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.5, 2.0, 3.0]]), 4000
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(3, 3)
    for _ in range(draws):
        first, second = recipe["choose_jointly"](
            learner, torch.zeros(3, 3), 2, 2, generator
        ).tolist()
        counts[first, second] += 1
    for first in range(3):
        scores = recipe["conditional_losses"](learner, torch.tensor([first]))
        scores[first] = -torch.inf
        expected = scores.softmax(0)
        shares = counts[first] / counts[first].sum()
        torch.testing.assert_close(shares, expected, atol=0.06, rtol=0)  # 4 standard deviations
