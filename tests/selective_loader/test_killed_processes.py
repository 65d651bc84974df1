"""Processes killed at any time: a training that is resumed ends as one that was not killed.

The whole, twenty kills of each example, is ``python benchmarks/kills.py``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.parametrize("example", ["ddp", "fsdp2"])
def test_a_training_killed_and_resumed_ends_as_one_that_was_not(example):
    command = [sys.executable, "-W", "ignore", BENCHMARK, "--kills", "1", "--examples", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{example}: 1 of 1 ended as the undisturbed training" in done.stdout
