"""A grid of settings: a comparison for each of its cells."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from siftback import SiftbackError
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import (
    DEFAULT_POLICY,
    Existing,
    FolderBusyError,
    Plan,
    changed_settings,
    compare,
    prepare_data,
    refuse_begun,
)
from siftback.lab.experiments.summary_table import terminal_rows
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import is_comparison, is_locked, locked, record_names
from siftback.lab.records.tables import terminal
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import parse_numbers, parse_setting

State = Literal["other settings", "done", "running", "stopped", "missing"]

KEEP = "keep"  # what a grid may hold besides settings
LISTS = ("evaluate_at", "observe")  # settings whose values have commas of their own


@dataclass(frozen=True)
class GridCell:
    """One cell of a grid.

    Attributes:
        values: The values, as written, by name of the grid.
        plan: The plan of its comparison.
        folder: The folder of its comparison.
    """

    values: dict[str, str]
    plan: Plan
    folder: Path

    @property
    def finished(self) -> int:
        """Number of its runs that have ended."""
        ended = {run.record for run in self.comparison.runs} if self.comparison else set()
        return sum(run.record in ended for run in self.plan.runs())

    @property
    def state(self) -> State:
        """State of its runs, whichever process works on it; or that they are of other settings."""
        if self.comparison and changed_settings(self.comparison, self.plan):
            return "other settings"
        if self.finished == len(self.plan.runs()):
            return "done"
        if is_locked(self.folder):
            return "running"
        return "stopped" if record_names(self.folder) else "missing"

    @property
    def comparison(self) -> Comparison | None:
        """Its comparison so far."""
        return Comparison.read(self.folder) if is_comparison(self.folder) else None


def read_grid(written: Sequence[str]) -> dict[str, list[str]]:
    """Returns a grid, from ``name=value,value`` for each of its names.

    Raises:
        ConfigError: If one is written otherwise or twice, or a value is no such setting's.

    >>> read_grid(["lr=0.05,0.1", "keep=1/2"])
    {'lr': ['0.05', '0.1'], 'keep': ['1/2']}
    """
    grid: dict[str, list[str]] = {}
    for text in written:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        grid_values = [value.strip() for value in values.split(",")]
        if not equals or not all(grid_values):
            raise ConfigError(f"--grid {text!r}: give name=value,value, such as lr=0.05,0.1")
        if name in LISTS:
            raise ConfigError(f"--grid {text!r}: {name} is a list itself; give it as an option")
        parsed = {parse_value(name, value) for value in grid_values}  # of which 0.5 and 1/2 are one
        if name in grid or len(parsed) < len(grid_values):
            raise ConfigError(f"--grid {text!r}: give each name once, and no value twice")
        grid[name] = grid_values
    if not grid:
        raise ConfigError("a sweep without a grid: give --grid name=value,value, once or more")
    return grid


def cells(
    grid: Mapping[str, Sequence[str]], plan_of: Callable[[dict[str, Any]], Plan], folder: Path
) -> list[GridCell]:
    """Returns every cell of a grid, the last name's values changing fastest.

    Args:
        grid: The values of each name, as `read_grid` gives them.
        plan_of: Makes the plan of a cell from its values, parsed.
        folder: Gets a folder for each cell.

    Raises:
        ConfigError: If a cell's plan cannot be, or two cells would have one folder.
    """
    grid_cells = []
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        parsed = {name: parse_value(name, value) for name, value in values.items()}
        name = "_".join(re.sub(r"[^\w.+-]", "-", f"{n}{value}") for n, value in values.items())
        grid_cells.append(GridCell(values, plan_of(parsed), folder / name))
    folders = [cell.folder.name for cell in grid_cells]
    if len(set(folders)) < len(folders):
        raise ConfigError(f"cells of one name, {', '.join(folders)}: write their values apart")
    return grid_cells


def parse_value(name: str, text: str) -> Any:
    """Returns a value of a grid: a share to keep, or a setting's."""
    return parse_numbers(name, text)[0] if name == KEEP else parse_setting(name, text)


def sweep(
    grid: Sequence[GridCell],
    reporter: Reporter,
    existing: Existing = "refuse",
    policy: CheckpointPolicy = DEFAULT_POLICY,
    on_error: Callable[[GridCell, SiftbackError], None] = lambda cell, error: None,
) -> None:
    """Runs the cells in order; several processes may share them, each taking what is free.

    All cells are checked before the first is begun. One that fails does not keep the others from
    running.

    Args:
        grid: The cells.
        reporter: Reports what happens.
        existing: What to do with cells that hold a comparison already, as in `compare`.
        policy: How often to save checkpoints.
        on_error: Called with each cell that failed.

    Raises:
        ConfigError: If a cell cannot be run, or holds what ``existing`` does not allow.
    """
    for cell in grid:
        prepare_data(cell.plan)
        refuse_begun(cell.folder, existing, "with the sweep")
    # What another process has begun since is gone on with, or left to it.
    go_on: Existing = "overwrite" if existing == "overwrite" else "resume"
    for cell in grid:
        with locked(cell.folder):  # which refuses a folder that cannot be written
            if go_on == "resume" and cell.state == "done":
                continue
        try:
            compare(cell.plan, cell.folder, reporter, go_on, policy=policy)
        except FolderBusyError:
            continue
        except SiftbackError as error:
            on_error(cell, error)


def sweep_table(grid: Sequence[GridCell]) -> Table:
    """Returns the state of each cell of a sweep, with the results so far."""
    table: list[dict[str, str]] = []
    for cell in grid:
        runs = f"{cell.finished} of {len(cell.plan.runs())}"
        head = cell.values | {"cell": cell.state, "runs": runs}
        # Two columns less, in whose place the settings are.
        results = terminal_rows(cell.comparison, ("worst class", "kept")) if cell.comparison else []
        for row in results or [{}]:
            table.append(head | row)
            head = dict.fromkeys(head, "")
    return terminal(table, wrapped=["strategy"])
