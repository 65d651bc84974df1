"""Draws by the loss over the mean."""

import pytest
import torch

from siftback.lab.training.ratio_memory import RatioMemory

DRAWS = 2000


@pytest.mark.parametrize(
    ("losses", "probabilities"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1]),
        ([0.0, 1.0, 2.0, 5.0], [0.2, 0.5, 1, 1]),
        ([0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1]),
        ([0.5, float("nan"), 1.5, float("inf")], [0.5, 1, 1, 1]),
    ],
)
def test_probabilities_are_losses_over_their_mean(losses, probabilities):
    memory, generator = RatioMemory(floor=0.2), torch.Generator().manual_seed(0)
    memory.grow(len(losses))
    memory.values[:, 0] = torch.tensor(losses)
    drawn = torch.stack([memory.draw(1, generator) for _ in range(DRAWS)])
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    expected = torch.tensor(probabilities).float()
    assert (drawn.mean(0) - expected).abs().max() < 5 * 0.5 / DRAWS**0.5
    assert memory.count(1) is None
