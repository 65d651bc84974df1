"""Several processes, epoch after epoch, of examples that they cannot share out evenly."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from many_epochs_ranks import COUNT, METHODS

pytestmark = pytest.mark.distributed

SCRIPT = Path(__file__).with_name("many_epochs_ranks.py")
EPOCHS = 6


@pytest.fixture(scope="module", params=[4], ids="{} processes".format)
def ranks(request, tmp_path_factory):
    """What each process found, by rank."""
    out = tmp_path_factory.mktemp("ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={request.param}"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    done = subprocess.run(
        [*torchrun, *rendezvous, str(SCRIPT), str(out), str(EPOCHS)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(out / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("name", METHODS)
def test_all_make_equally_many_steps_and_keep_the_same_weights(ranks, name):
    steps, weights = ranks[0][name]["steps"], ranks[0][name]["weights"]
    assert len(steps) == EPOCHS
    assert all(0 < count <= COUNT for count in steps)
    for rank in ranks[1:]:
        assert rank[name]["steps"] == steps
        torch.testing.assert_close(rank[name]["weights"], weights, rtol=0, atol=0)
