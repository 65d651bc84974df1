"""The recorded comparisons that a report is made from, and what of them cannot be used."""

import json
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args

from siftback import ConfigError
from siftback.lab.records import (
    RECORDS,
    SUMMARY,
    Comparison,
    Evaluation,
    RunSummary,
    read_evaluations,
)

# A damaged file can fail in as many ways as there are steps in reading it.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)


class Damage(NamedTuple):
    """A record that the report goes without.

    Attributes:
        where: The file or folder, from the comparison's folder on.
        why: What is wrong with it, in words.
    """

    where: str
    why: str


class Readings(NamedTuple):
    """What a report is made from.

    Attributes:
        comparisons: Those that could be read, with the runs that could.
        damaged: What was left out.
    """

    comparisons: list[Comparison]
    damaged: list[Damage]


def read_comparisons(folders: Sequence[Path]) -> Readings:
    """Reads comparisons, and leaves out what is damaged or half-written.

    A run is used where its entry in ``summary.json`` and its file under ``records/`` are whole. A
    run that was stopped has a file and no entry, and is among what was left out.

    Args:
        folders: Comparisons, or folders that hold some at any depth.

    Returns:
        The comparisons in the order of ``folders``, each once, and what was left out.

    Raises:
        ConfigError: Where one of the folders does not exist, or none is given.
    """
    if not folders:
        raise ConfigError("no folder was given: name those that siftback compare wrote")
    comparisons: dict[Path, Comparison] = {}
    damaged: list[Damage] = []
    for given in folders:
        if not given.is_dir():
            raise ConfigError(f"{given} is no folder: name those that siftback compare wrote")
        found = list(_comparison_folders(given))
        if not found:
            damaged.append(Damage(given.resolve().name, f"holds no {SUMMARY}"))
        for folder in found:
            if folder.resolve() in comparisons:
                continue
            try:
                comparison, left_out = _read(folder)
            except UNREADABLE as error:
                damaged.append(Damage(f"{folder.resolve().name}/{SUMMARY}", reason(error)))
            else:
                comparisons[folder.resolve()] = comparison
                damaged += left_out
    return Readings(list(comparisons.values()), damaged)


def reason(error: BaseException) -> str:
    """What went wrong, in words that name no folder of this machine.

    >>> reason(FileNotFoundError(2, "No such file or directory", "/home/you/a.jsonl"))
    'a.jsonl: No such file or directory'
    >>> reason(KeyError("runs"))
    "it has no 'runs'"
    """
    if isinstance(error, OSError):
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno} on"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error) or type(error).__name__


def _comparison_folders(given: Path) -> Iterator[Path]:
    if (given / SUMMARY).exists() or (given / RECORDS).is_dir():
        yield given
    else:
        yield from (summary.parent for summary in sorted(given.rglob(SUMMARY)))


def _read(folder: Path) -> tuple[Comparison, list[Damage]]:
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    environment, entries = summary["environment"], summary["runs"]
    environment.items()
    runs: list[RunSummary] = []
    damaged: list[Damage] = []
    for place, entry in enumerate(entries, start=1):
        where = f"{folder.resolve().name}/{SUMMARY}, run {place}"
        try:
            run = RunSummary.from_json(entry)
            _check_types(run)
            where = f"{folder.resolve().name}/{run.record}"
            _check_record(folder / run.record)
        except UNREADABLE as error:
            damaged.append(Damage(where, reason(error)))
        else:
            runs.append(run)
    listed = {entry.get("record") for entry in entries if isinstance(entry, dict)}
    damaged += _stopped(folder, listed)
    return Comparison(folder, environment, runs), damaged


def _stopped(folder: Path, listed: Iterable[object]) -> Iterator[Damage]:
    for record in sorted((folder / RECORDS).glob("*.jsonl")):
        if f"{RECORDS}/{record.name}" not in set(listed):
            where = f"{folder.resolve().name}/{RECORDS}/{record.name}"
            yield Damage(where, f"{SUMMARY} does not list it: the run was stopped, or goes on")


def _check_record(path: Path) -> None:
    """Raises where a run's file is not whole."""
    kind = None
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                kind = json.loads(line)["kind"]
            except UNREADABLE as error:
                raise ValueError(f"line {number} is damaged") from error
    if kind != "end":
        raise ValueError("it breaks off: its closing line is missing")
    evaluations = list(read_evaluations(path))
    if not evaluations:
        raise ValueError("it holds no evaluation")
    for evaluation in evaluations:
        _check_types(evaluation)


def _check_types(record: Evaluation | RunSummary) -> None:
    for field in fields(record):
        value = getattr(record, field.name)
        if not isinstance(value, _accepted(field.type)):
            raise TypeError(f"its {field.name} is {value!r}")


def _accepted(kind: Any) -> Any:
    if isinstance(kind, types.GenericAlias):  # dict[str, float]
        return kind.__origin__
    return kind | int if float in (kind, *get_args(kind)) else kind
