"""A grid of settings: its cells, what is checked first, and going on with it."""

import os
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from rich.console import Console

from siftback import Epochs, SiftbackError
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan
from siftback.lab.experiments.sweep import GridCell, cells, read_grid, sweep, sweep_table
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run, Settings

BASE: dict[str, Any] = {"data": "digits", "width": 4, "device": "cpu", "batch_size": 64,
                        "train_limit": 320, "epochs": 1.0, "warmup": Epochs(0)}  # fmt: skip


def plan_of(values: dict[str, Any]) -> Plan:
    keep = values.pop("keep", 0.5)
    return Plan(Settings(**(BASE | values)), ["traditional", "sb"], [keep], [0], matched=False)


def grid_of(folder: Path, *written: str) -> list[GridCell]:
    return cells(read_grid(written), plan_of, folder)


class Names(Reporter):
    """Keeps the names of the runs that begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def start(self, run: Run, number: int, of: int) -> None:
        """See `Reporter`."""
        self.begun.append(run.name)


def shown(grid: list[GridCell]) -> list[list[str]]:
    """The table's rows, in words, on a terminal of 80 columns."""
    text = StringIO()
    Console(file=text, width=80).print(sweep_table(grid))
    return [line.split() for line in text.getvalue().splitlines()][2:]


def test_every_combination_is_a_cell(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "lr=0.05,0.1", "keep=1/2,1/4")
    assert [cell.values for cell in grid] == [
        {"lr": "0.05", "keep": "1/2"}, {"lr": "0.05", "keep": "1/4"},
        {"lr": "0.1", "keep": "1/2"}, {"lr": "0.1", "keep": "1/4"},
    ]  # fmt: skip
    assert [(cell.plan.settings.lr, cell.plan.keeps) for cell in grid] == [
        (0.05, [0.5]), (0.05, [0.25]), (0.1, [0.5]), (0.1, [0.25]),
    ]  # fmt: skip
    assert len({cell.folder for cell in grid}) == 4
    assert all(cell.folder.parent == tmp_path for cell in grid)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ((), "a sweep without a grid"),
        (("lr",), "give name=value,value"),
        (("lr=0.1,",), "give name=value,value"),
        (("rate_of_learning=1",), "no setting 'rate_of_learning'"),
        (("lr=0.1", "lr=0.2"), "each name once"),
        (("lr=0.1,0.1",), "no value twice"),
        (("lr=big",), "lr 'big': give a number"),
        (("keep=some",), "keep 'some': give numbers"),
        (("evaluate-at=0.1,0.2",), "evaluate_at is a list itself"),
        (("lr=0.1,-1",), r"lr=-1.0: give a number in \(0, 1e30\)"),
        (("keep=0.5,2",), "keep=2.0 is not a share"),
        (("model=cnn,vgg",), "no model 'vgg'"),
        (("subset=a/b,a b",), "cells of one name"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_made(
    tmp_path: Path, written: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        grid_of(tmp_path / "sweep", *written)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("written", ["data=digits,imagenot", "batch_size=64,5000"])
def test_data_are_checked_before_anything_trains(tmp_path: Path, written: str) -> None:
    reporter = Names()
    with pytest.raises(ConfigError, match=r"imagenot|5000"):
        sweep(grid_of(tmp_path, written), reporter)
    assert not reporter.begun


def test_a_sweep_is_made_refused_gone_on_with_and_grown(tmp_path: Path) -> None:
    first = grid_of(tmp_path, "lr=0.05,0.1")
    assert [cell.state for cell in first] == ["missing", "missing"]
    sweep(first, Reporter())
    assert [cell.state for cell in first] == ["done", "done"]
    assert [cell.finished for cell in first] == [2, 2]
    runs = Comparison.read(first[0].folder).runs
    with pytest.raises(ConfigError, match="--resume to go on with the sweep"):
        sweep(first, Reporter())

    larger = grid_of(tmp_path, "lr=0.05,0.1,0.2")
    assert [cell.state for cell in larger] == ["done", "done", "missing"]
    reporter = Names()
    sweep(larger, reporter, "resume")
    assert reporter.begun == ["traditional-seed0", "sb-keep0.5-seed0"]
    assert Comparison.read(first[0].folder).runs == runs

    again = Names()
    sweep(larger[:1], again, "overwrite")
    assert len(again.begun) == 2


def test_cells_of_other_settings_are_not_taken_for_done(tmp_path: Path) -> None:
    (cell,) = grid_of(tmp_path, "lr=0.05")
    sweep([cell], Reporter())
    errors: list[str] = []
    changed = Plan(replace(cell.plan.settings, batch_size=32), ["traditional", "sb"], [0.5], [0])
    other = GridCell(cell.values, changed, cell.folder)
    sweep([other], Reporter(), "resume", on_error=lambda _, error: errors.append(str(error)))
    assert "made with other settings (batch_size was 64, is 32)" in errors[0]
    assert (cell.state, other.state) == ("done", "other settings")


def test_the_table_tells_states_and_results(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "lr=0.05,0.1")
    sweep(grid[:1], Reporter())
    traditional, sb, missing = shown(grid)
    assert traditional[:5] == ["0.05", "done", "2", "of", "2"]
    assert traditional[5:7] == ["plain", "training"]
    assert sb[:2] == ["SelectiveLoader(...,", "keep=0.5)"]
    errors = {run.label: run.test_error_final for run in Comparison.read(grid[0].folder).runs}
    assert traditional[7] == f"{errors['traditional']:.2f}"
    assert sb[2] == f"{errors['sb 0.5']:.2f}"
    assert missing == ["0.1", "missing", "0", "of", "2"]


def test_a_cell_that_fails_leaves_the_others(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "lr=0.05,0.1")
    told: list[GridCell] = []

    def tell(cell: GridCell, error: SiftbackError) -> None:
        told.append(cell)

    (grid[0].folder / "checkpoints" / "traditional-seed0").mkdir(parents=True)
    (grid[0].folder / "checkpoints" / "traditional-seed0" / "000000001.pt").write_bytes(b"torn")
    sweep(grid, Reporter(), "resume", on_error=tell)
    assert told == grid[:1]
    assert [cell.state for cell in grid] == ["missing", "done"]


@pytest.mark.skipif(os.name == "nt", reason="needs locks of files")
def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, "lr=0.05,0.1")
    grid[0].folder.mkdir()
    holding = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(); input()"
    process = Popen(
        [sys.executable, "-c", holding, str(grid[0].folder / "lock")], stdin=-1, stdout=-1
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert grid[0].state == "running"
    sweep(grid, Reporter())
    assert [cell.state for cell in grid] == ["running", "done"]
    process.kill()
    process.communicate()
    assert grid[0].state == "missing"
