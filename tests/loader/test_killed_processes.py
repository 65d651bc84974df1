"""Processes killed at any time: a training that is resumed ends as one that was not killed.

The whole, twenty kills of each example, is ``python benchmarks/kills.py``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.red
@pytest.mark.parametrize("example", ["ddp", "fsdp2"])
def test_a_training_killed_and_resumed_ends_as_one_that_was_not(example, asked, count):
    kills = asked("kills") // 20
    if not kills and example == "ddp":
        pytest.skip("killed by `make red`: of the two, sharded state is the harder to resume")
    kills = max(1, kills)
    asking = [BENCHMARK, "--kills", str(kills), "--examples", example]
    command = [sys.executable, "-W", "ignore", *asking]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400 * kills)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{example}: {kills} of {kills} ended as the undisturbed training" in done.stdout
    count(f"{kills} kills of a training of two processes ({example}) resumed")
