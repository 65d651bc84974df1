"""What several processes found, which are started once for all files that look at it."""

import os
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from torchrun import run_by_ranks

SCRIPTS = {2: ["matrix_ranks", "distributed_ranks"], 4: ["matrix_ranks", "sharded_ranks"]}


@pytest.fixture(scope="session")
def found_in(tmp_path_factory):
    """Gives what each process found in a script, by rank; whichever worker asks first starts it."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def found(script, processes):
        out = shared / f"{processes}-processes"
        with FileLock(f"{out}.lock"):
            if not out.exists():
                out.mkdir()
                every = Path(__file__).with_name("all_ranks.py")
                run_by_ranks(every, out, *SCRIPTS[processes], processes=processes, timeout=360)
        return [torch.load(out / script / f"{rank}.pt") for rank in range(processes)]

    return found
