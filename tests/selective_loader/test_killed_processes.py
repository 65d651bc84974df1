"""Processes killed at any time: a training that is resumed ends as one that was not killed."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import tree_flatten

from torchrun import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"
EPOCHS = 4


def started(out, *options):
    settings = ["--out", out, "--epochs", EPOCHS, "--save-every", 3, *options]
    return subprocess.Popen(
        torchrun(EXAMPLE, *settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process):
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0, printed
    return printed


def checkpoints(out):
    return sorted(int(path.name[5:]) for path in out.glob("step-*"))


def kill_after(process, out, more, delay):
    """kill -9 of all processes, some time after as many more checkpoints were written."""
    before = len(checkpoints(out))
    while len(checkpoints(out)) < before + more:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    time.sleep(delay)
    for found in Path("/proc").glob("[0-9]*/cmdline"):  # torchrun and what it started
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if str(out).encode() in found.read_bytes():
                os.kill(int(found.parent.name), signal.SIGKILL)
    process.communicate()


def end_of(out, folder):
    """The weights and the optimizer's state of the last checkpoint."""
    last = out / f"step-{checkpoints(out)[-1]}"
    assert FileSystemReader(last).read_metadata()
    dcp_to_torch_save(last, folder / "end.pt")
    state = torch.load(folder / "end.pt", weights_only=False)
    parts = {name: tree_flatten(state[name])[0] for name in ("model", "optimizer")}
    tensors = {
        name: [part for part in found if isinstance(part, torch.Tensor)]
        for name, found in parts.items()
    }
    return tensors, checkpoints(out)[-1]


@pytest.mark.red
@pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed.checkpoint")
@pytest.mark.parametrize("options", [(), ("--fsdp",)], ids=["ddp", "fsdp2"])
def test_a_training_killed_and_resumed_ends_as_one_that_was_not(tmp_path, options, asked, count):
    kills = max(1, asked("kills") // 20)
    printed = finished(started(tmp_path / "whole", *options))
    (counts,) = (line for line in printed.splitlines() if "each process read" in line)
    expected, steps = end_of(tmp_path / "whole", tmp_path)
    chance = random.Random(len(options))
    for _ in range(kills):
        process = started(tmp_path / "killed", *options)
        kill_after(process, tmp_path / "killed", 2, chance.uniform(0, 0.2))
        assert checkpoints(tmp_path / "killed")[-1] < steps
    assert counts in finished(started(tmp_path / "killed", *options))
    found, again = end_of(tmp_path / "killed", tmp_path)
    assert again == steps
    assert all(len(tensors) >= 4 for tensors in expected.values())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    count(f"{kills} kills of a training of two processes ({' '.join(options) or 'ddp'}) resumed")
