"""Two real processes under ``torchrun`` share passes over the data, within and over epochs."""

import pytest
import torch
from passes_ranks import COUNT, EPOCHS, RULES, SIZE, losses_of

from torchrun import found_by_torchrun

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.parametrize("name", RULES),
    pytest.mark.parametrize("workers", [0, 2]),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return found_by_torchrun("epochs/passes_ranks", tmp_path_factory.mktemp("passes"), timeout=300)


def test_processes_make_equal_steps_of_one_draw_and_remember_the_same(ranks, name, workers):
    first, second = (rank[name, workers] for rank in ranks)
    steps = -(-(COUNT // 2) // SIZE)
    assert first["length"] == second["length"] == steps
    assert len(first["steps"]) == len(second["steps"]) == EPOCHS * steps
    assert len(first["drawn"]) > EPOCHS
    for which, weights in first["drawn"].items():
        assert torch.equal(weights, second["drawn"][which])
    torch.testing.assert_close(first["values"], second["values"], rtol=0, atol=0, equal_nan=True)


def test_of_an_example_in_two_processes_the_later_loss_counts(ranks, name, workers):
    expected = torch.full((COUNT,), torch.nan)
    for step, batches in enumerate(
        zip(*(rank[name, workers]["steps"] for rank in ranks), strict=True)
    ):
        for numbers in batches:
            losses = losses_of(numbers, step)
            # RePB compares those of a batch, whichever process trained on it.
            expected[numbers] = losses - losses.mean() if name == "repb" else losses
    for rank in ranks:
        remembered = rank[name, workers]["values"][:, 0]
        torch.testing.assert_close(remembered, expected, equal_nan=True)
