"""Scripts of tests in several real processes, started by ``torchrun``."""

import os
import subprocess
import sys
from pathlib import Path

import torch


def torchrun(script, *arguments, processes=2):
    """The command that runs a script in several processes on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
        *map(str, (script, *arguments)),
    ]


def run_by_ranks(script, *arguments, processes=2, timeout):
    """Runs ``script ...`` in so many processes, which can import what tests share."""
    command = torchrun(script, *arguments, processes=processes)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def found_by_ranks(script, out, *arguments, processes=2, timeout):
    """Runs ``script OUT ...``; gives what each process saved as ``OUT/RANK.pt``, by rank."""
    run_by_ranks(script, out, *arguments, processes=processes, timeout=timeout)
    return [torch.load(out / f"{rank}.pt") for rank in range(processes)]
