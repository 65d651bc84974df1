"""Recorded comparisons as they are found, damaged ones among them."""

import json
from collections.abc import Iterable
from pathlib import Path

from siftback.errors import ConfigError
from siftback.lab.experiments.example_scores import SCORES_FOLDER
from siftback.lab.records import folder as files
from siftback.lab.records.comparison_record import Comparison, evaluations_of
from siftback.lab.records.observations import OBSERVED, damage
from siftback.lab.records.run_summary import RunSummary, check_types

TABLE = ".parquet"  # what `siftback score`, `prune` and `suspects` write


def read(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """Reads comparisons, or folders that hold some at any depth.

    A run is taken where its entry in the summary and its own record are whole.

    Args:
        folders: Folders. Of what else ``runs/*`` may give, tables of scores and subsets are passed
            over, and other files are named and left out.

    Returns:
        The comparisons, each once, without the runs whose records are damaged; and what is
        damaged, was broken off, is being written or is no comparison, one line each.

    Raises:
        ConfigError: If one does not exist, or none holds a comparison.
    """
    comparisons: dict[Path, Comparison | None] = {}
    problems: list[str] = []
    for path in (folders := list(folders)):
        if not path.exists():
            raise ConfigError(f"{path} is not a folder: give one that siftback compare wrote")
        folders_below = files.comparison_folders(path)
        if not folders_below and path.suffix != TABLE:
            problems.append(f"{path.resolve().name} holds no {files.SUMMARY}, and is left out")
        for folder in map(Path.resolve, folders_below):
            if folder not in comparisons:
                comparisons[folder], damage_found = _whole(folder)
                problems += damage_found
    if not comparisons:
        names = ", ".join(map(str, folders)) or "nothing"
        raise ConfigError(
            f"{names} holds no {files.SUMMARY}: give folders that siftback compare wrote"
        )
    return [comparison for comparison in comparisons.values() if comparison], problems


def _whole(folder: Path) -> tuple[Comparison | None, list[str]]:
    """A comparison's runs that can be read, and what is said of the others."""
    summary = f"{folder.name}/{files.summary_path(folder).name}"
    try:
        comparison, entries = Comparison.read_entries(folder)
    except files.UNREADABLE as error:
        return None, [f"{summary} is damaged, and left out ({files.error_text(error)})"]
    problems = []
    for number, entry in enumerate(entries, start=1):
        try:
            run = RunSummary.from_json(entry)
        except files.UNREADABLE as error:
            what = f"run {number} of {len(entries)} is damaged"
            problems.append(f"{summary}: {what}, and left out ({files.error_text(error)})")
            continue
        if damage_found := _damage(folder, run):
            problems.append(f"{folder.name}/{run.record} {damage_found}, and left out")
        else:
            comparison.runs.append(run)
    listed = {entry.get("record") for entry in entries if isinstance(entry, dict)}
    problems += [
        f"{folder.name}/{record} {_why_unlisted(folder, record)}, and left out"
        for record in files.record_names(folder)
        if record not in listed
    ]
    problems += [
        f"{folder.name}/{path.relative_to(folder)} is damaged, and left out ({why})"
        for tables in (OBSERVED, SCORES_FOLDER)
        for path in sorted((folder / tables).rglob(f"*{TABLE}"))
        if (why := damage(path))
    ]
    return comparison, problems


def _why_unlisted(folder: Path, record: str) -> str:
    try:
        lines = files.record_lines(folder, record)
    except files.UNREADABLE as error:
        return f"is damaged ({files.error_text(error)})"
    if lines and '"kind": "end"' in lines[-1]:
        return f"is not in {files.summary_path(folder).name}"
    return "is being written" if files.is_locked(folder) else "was broken off"


def _damage(folder: Path, run: RunSummary) -> str | None:
    """Returns the damage of a run's record, or None."""
    try:
        lines = files.record_lines(folder, run.record)
        entries = []
        for number, line in enumerate(lines, start=1):
            try:
                entries.append(json.loads(line))
                entries[-1]["kind"]
            except files.UNREADABLE:
                return f"is damaged in line {number}"
        evaluations = list(evaluations_of(entries))
        for evaluation in evaluations:
            check_types(evaluation)
    except FileNotFoundError:
        return "is missing"
    except files.UNREADABLE as error:
        return f"is damaged ({files.error_text(error)})"
    if not evaluations:
        return "holds no evaluation"
    if evaluations[-1].steps != run.steps:
        return f"ends at step {evaluations[-1].steps} of {run.steps}"
    return None
