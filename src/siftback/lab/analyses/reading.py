"""Recorded comparisons as they are found, damaged ones among them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from siftback import ConfigError
from siftback.lab.records import RECORDS, SUMMARY, Comparison, RunSummary

# A damaged file can fail in as many ways as there are steps in reading it.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OSError)


def read(folders: Iterable[Path]) -> tuple[list[Comparison], list[str]]:
    """Reads comparisons, or folders that hold some at any depth.

    Args:
        folders: Folders.

    Returns:
        The comparisons, without the runs whose records are damaged; and what is damaged or was
        broken off, a line each.

    Raises:
        ConfigError: Where one is no folder, or holds no comparison.
    """
    comparisons: list[Comparison] = []
    problems: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder: give one that siftback compare wrote")
        found = sorted(summary.parent for summary in folder.rglob(SUMMARY))
        if not found:
            raise ConfigError(f"{folder} holds no {SUMMARY}: give one that siftback compare wrote")
        for each in found:
            comparison, told = _whole(each)
            problems += told
            if comparison is not None:
                comparisons.append(comparison)
    return comparisons, problems


def _whole(folder: Path) -> tuple[Comparison | None, list[str]]:
    """A comparison's runs that can be read, and what is told of the others."""
    try:
        comparison = Comparison.read(folder)
        comparison.environment.get("arguments")
        comparison.by_label()
    except UNREADABLE as error:
        return None, [f"{folder.name}/{SUMMARY} is damaged, and left out ({_said(error)})"]
    kept, problems = [], []
    for run in comparison.runs:
        if told := _damage(comparison, run):
            problems.append(f"{folder.name}/{run.record} {told}, and left out")
        else:
            kept.append(run)
    ended = {run.record for run in comparison.runs}
    problems += [
        f"{folder.name}/{RECORDS}/{record.name} was broken off, and left out"
        for record in sorted((folder / RECORDS).glob("*.jsonl"))
        if f"{RECORDS}/{record.name}" not in ended
    ]
    return replace(comparison, runs=kept), problems


def _damage(comparison: Comparison, run: RunSummary) -> str | None:
    """What is wrong with a run's record, if anything is."""
    try:
        evaluations = comparison.evaluations(run)
    except FileNotFoundError:
        return "is missing"
    except UNREADABLE as error:
        return f"is damaged ({_said(error)})"
    if not evaluations:
        return "holds no evaluation"
    if evaluations[-1].steps != run.steps:
        return f"ends at step {evaluations[-1].steps} of {run.steps}"
    return None


def _said(error: BaseException) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    return f"{type(error).__name__}: {error}"


