"""Several processes, epoch after epoch, of examples that they cannot share out evenly."""

from pathlib import Path

import pytest
import torch
from many_epochs_ranks import COUNT, METHODS

from torchrun import found_by_ranks

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("many_epochs_ranks.py")
EPOCHS = 6


@pytest.fixture(scope="module", params=[4], ids="{} processes".format)
def ranks(request, tmp_path_factory):
    """What each process found, by rank."""
    out = tmp_path_factory.mktemp("ranks")
    return found_by_ranks(SCRIPT, out, EPOCHS, processes=request.param, timeout=200)


@pytest.mark.parametrize("name", METHODS)
def test_all_make_equally_many_steps_and_keep_the_same_weights(ranks, name):
    steps, weights = ranks[0][name]["steps"], ranks[0][name]["weights"]
    assert len(steps) == EPOCHS
    assert all(0 < count <= COUNT for count in steps)
    for rank in ranks[1:]:
        assert rank[name]["steps"] == steps
        torch.testing.assert_close(rank[name]["weights"], weights, rtol=0, atol=0)
