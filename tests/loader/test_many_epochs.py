"""Several processes, epoch after epoch, of examples that they cannot share out evenly.

The whole, a thousand epochs on 2, 4 and 8 processes, is ``python benchmarks/many_epochs.py``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "many_epochs.py"


def test_all_make_equally_many_steps_and_keep_the_same_weights():
    command = [sys.executable, BENCHMARK, "--epochs", "6", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 processes, 6 epochs of 47 examples") == 4
    assert "memory: each made " in done.stdout
