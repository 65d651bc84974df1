"""Scripts of tests in several real processes."""

import os
import subprocess
import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
FORKED = [sys.executable, FOLDER / "all_ranks.py"]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
    *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
]


def run_in_processes(command, timeout):
    """Runs what starts processes, which can import what tests share."""
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = list(map(str, command))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def run_by_ranks(out, *scripts, processes=2, timeout):
    """Runs scripts, by their paths from here without the ending, in so many processes."""
    run_in_processes([*FORKED, processes, out, *scripts], timeout)


def found_by_ranks(script, out, *, timeout):
    """Gives what each of two processes of a script saved as ``RANK.pt`` in its folder, by rank."""
    run_by_ranks(out, script, timeout=timeout)
    return [torch.load(out / Path(script).name / f"{rank}.pt") for rank in range(2)]


def found_by_torchrun(script, out, *, timeout):
    """Gives the same of ``torchrun script OUT``, whose processes share no imports."""
    run_in_processes([*TORCHRUN, FOLDER / f"{script}.py", out], timeout)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]
