"""Two real processes under ``torchrun`` share passes over the data, within and over epochs."""

from pathlib import Path

import pytest
import torch
from passes_ranks import COUNT, EPOCHS, SIZE, losses_of

from torchrun import found_by_ranks

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).parent / "passes_ranks.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return found_by_ranks(SCRIPT, tmp_path_factory.mktemp("passes"), timeout=300)


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_make_equal_steps_of_one_draw_and_remember_the_same(ranks, workers):
    first, second = (rank[workers] for rank in ranks)
    steps = -(-(COUNT // 2) // SIZE)
    assert first["length"] == second["length"] == steps
    assert len(first["steps"]) == len(second["steps"]) == EPOCHS * steps
    assert len(first["drawn"]) > EPOCHS
    for which, weights in first["drawn"].items():
        assert torch.equal(weights, second["drawn"][which])
    assert torch.equal(first["values"], second["values"])


def test_of_an_example_in_two_passes_the_later_loss_counts(ranks):
    for workers in (0, 2):
        last = {}
        for rank in ranks:
            for which, numbers in rank[workers]["steps"]:
                for number in numbers.tolist():
                    last[number] = max(last.get(number, 0), which)
        values = ranks[0][workers]["values"][:, 0]
        for number, which in last.items():
            # A batch has examples of two passes where one ends, and losses by its first.
            expected = losses_of(torch.tensor([number]), which)
            torch.testing.assert_close(values[number : number + 1], expected)
