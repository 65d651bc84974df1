"""A training that stops within, and goes on from its last checkpoint, for data of any kind."""

from pathlib import Path

import pytest

from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings


class StoppedError(Exception):
    pass


class Stops(Reporter):
    def update(self, done: float) -> None:
        if done > 0.6:
            raise StoppedError


def check_a_run_goes_on(settings: Settings, folder: Path) -> None:
    """Compares a run that was stopped and went on with one that was not."""
    plan = Plan(settings, ["sb-memory-default"], [0.5], [0], matched=False)
    whole = compare(plan, folder / "whole", Reporter())
    every = CheckpointPolicy(share=0.1)
    with pytest.raises(StoppedError):
        compare(plan, folder / "out", Stops(), policy=every)
    resumed = compare(plan, folder / "out", Reporter(), "resume", policy=every)
    for first, second in zip(whole.runs, resumed.runs, strict=True):
        assert (first.test_loss_final, first.steps) == (second.test_loss_final, second.steps)
