"""Evaluations as TensorBoard reads them."""

import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from siftback.errors import ConfigError
from siftback.installation import install_command
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.progress import TENSORBOARD, Reporter, TensorBoardReporter
from siftback.lab.settings import Settings


def plan() -> Plan:
    settings = Settings(data="digits", width=4, epochs=2.0, device="cpu", train_limit=320)
    return Plan(settings, ["traditional", "sb-ewma"], [0.5], [0], matched=False)


@pytest.mark.filterwarnings("ignore")  # of the package and of what it brings
def test_every_evaluation_is_a_scalar_by_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    compare(plan(), tmp_path, TensorBoardReporter(Console(stderr=True), tmp_path / TENSORBOARD))
    comparison = Comparison.read(tmp_path)
    for run in comparison.runs:
        events = EventAccumulator(str(tmp_path / TENSORBOARD / Path(run.record).stem))
        events.Reload()
        names = {"test_error", "test_loss", "train_loss", "epoch", "examples", "cost", "seconds"}
        names |= {"agreement"} if run.strategy == "sb-ewma" else set()
        assert set(events.Tags()["scalars"]) == names
        for name in names - {"agreement"}:
            expected = [(e.steps, getattr(e, name)) for e in comparison.evaluations(run)]
            found = [(event.step, event.value) for event in events.Scalars(name)]
            assert [step for step, _ in found] == [step for step, _ in expected]
            assert [value for _, value in found] == pytest.approx([v for _, v in expected])

    compare(Plan(plan().settings, ["traditional"], [0.5], [0]), tmp_path, Reporter(), "overwrite")
    assert not (tmp_path / TENSORBOARD).exists()


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=re.escape(install_command("tensorboard"))):
        TensorBoardReporter(Console(), tmp_path)
