"""Scripts of tests in several real processes."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
FORKED = [sys.executable, FOLDER / "all_ranks.py"]
FRAMEWORKS = {
    "keras": ["keras"],
    "accelerate": ["accelerate"],
    "huggingface": ["transformers"],
    "ray": ["ray"],
    "lightning": ["lightning", "torchdata"],
}
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


def run_by_ranks(out, *scripts, timeout):
    """Runs scripts, by their paths from here without the ending, in two processes."""
    run_in_processes([*FORKED, 2, out, *scripts], timeout)


def found_of_framework(filled_once, name):
    """Gives the folder of a framework's two processes, and what each saved as ``RANK.pt``, by rank.

    They are those of all frameworks that are installed, as importing PyTorch for each takes longer.
    """
    found = [name for name, needed in FRAMEWORKS.items() if all(map(find_spec, needed))]
    scripts = [f"frameworks/{name}_ranks" for name in found]
    out = filled_once("frameworks", lambda out: run_by_ranks(out, *scripts, timeout=500))
    out /= f"{name}_ranks"
    return out, [torch.load(out / f"{rank}.pt") for rank in range(2)]


def found_by_torchrun(script, out, *, timeout):
    """Gives what each of two processes of ``torchrun script OUT`` saved as ``RANK.pt``, by rank."""
    run_in_processes([*TORCHRUN, FOLDER / f"{script}.py", out], timeout)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]
