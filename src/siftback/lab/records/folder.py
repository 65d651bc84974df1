"""The folder of a comparison: its files whole or not at all, its lock, its summary and records.

A run writes ``records/NAME.jsonl`` as it goes, and ``summary.json`` lists those that ended. `pack`
moves both into ``records.jsonl.gz``: what is kept for long, as in a repository, is one file in
place of dozens that each fill a part of a block, and takes a fifth of the space. Its lines are::

    {"kind": "comparison", ...the summary, its runs by the names of their records alone...}
    {"kind": "shared", "environment": ...what the environments of all runs have in common...}
    {"kind": "run", "record": ...}          then a run's other lines; and so on for each run

The last line of a run is its entry in the summary. Where there is a ``summary.json``, as there is
again after ``--resume``, it is read in place of the packed one, and a run's own file likewise.
"""

import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from siftback.errors import ConfigError
from siftback.lab.records.run_summary import RECORDS, RunSummary, scoring_costs_of

try:
    import fcntl
except ImportError:  # Windows: there, nothing is locked
    fcntl = None  # type: ignore[assignment]

SUMMARY, PACKED, LOCK = "summary.json", "records.jsonl.gz", "lock"

# A damaged file can fail in as many ways as there are steps in reading it.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)

_COMPARISON = '{"kind": "comparison", '
_SHARED, _HEADER = '{"kind": "shared", ', '{"kind": "run", '


def error_text(error: BaseException) -> str:
    """Returns the message of an error of reading, without the path."""
    return str(error.strerror) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives a temporary path; what is written there takes the place of ``path`` at the end.

    It is on the disk by then (``fsync`` of the file, a rename, ``fsync`` of the folder), so that
    a reader finds what was there before or what is new, and never a part. Where writing fails,
    what was there before stays.

    Args:
        path: Where the file is to be; missing folders are made.

    Raises:
        OSError: If it cannot be written; it names the path.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a" / "b.txt") as temporary:
    ...         _ = temporary.write_text("all of it")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'all of it'
    """
    temporary = path.with_name(path.name + ".tmp")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)  # of a full disk it may hold the rest
            raise
        if os.name != "nt":  # where folders cannot be opened
            sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Has the errors of writing a file name it, as those of a full disk do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def check_writable(path: Path) -> None:
    """Makes sure that a file can be written, before what is to be in it takes its time.

    Raises:
        ConfigError: If it is a folder.
        OSError: If it cannot; it names the path.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: give --out a file, such as {path / 'a.parquet'}")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.touch()
        temporary.unlink()


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keeps other processes from a folder; says whether none has it.

    The lock is the operating system's, on the file ``lock``: it ends with the process, however
    that ends, and what the file leaves behind means nothing.

    Args:
        folder: Which one; made where it is missing.

    Raises:
        ConfigError: If nothing can be written there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name, locked(Path(name)) as first, locked(Path(name)) as other:
    ...     first, other
    (True, False)
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written as a folder ({error.strerror}): give another --out"
        ) from error
    with file:
        yield _take(file.fileno())


def is_locked(folder: Path) -> bool:
    """Whether a process is working in a folder."""
    if not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as file:
        return not _take(file.fileno())


def _take(descriptor: int) -> bool:
    """Locks an open file, till it is closed; says whether it could."""
    with contextlib.suppress(BlockingIOError):
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def comparison_folders(path: Path) -> list[Path]:
    """Returns the folders of comparisons at any depth, in the order of their names."""
    # Not by `Path.rglob`, which fails where a comparison that goes on removes its checkpoints.
    folders = {Path(at) for at, _, names in os.walk(path) if {SUMMARY, PACKED} & {*names}}
    return sorted(filter(is_comparison, folders))


def is_comparison(folder: Path) -> bool:
    """Returns whether a folder holds a comparison, packed or not."""
    with contextlib.suppress(ValueError):  # damaged: whoever reads it says so
        return (folder / SUMMARY).exists() or SUMMARY in _packed_in(folder)
    return True


def summary_path(folder: Path) -> Path:
    """Returns the file that has a comparison's summary."""
    return path if (path := folder / SUMMARY).exists() else folder / PACKED


def read_summary(folder: Path) -> dict[str, Any]:
    """Returns what ``summary.json`` says, or said as it was packed.

    Raises:
        UNREADABLE: If the folder holds no comparison, or a damaged one.
    """
    summary: dict[str, Any] = json.loads("\n".join(record_lines(folder, SUMMARY)))
    for number, run in enumerate(summary["runs"]):
        if isinstance(run, str):  # packed, by the name of its record, which ends with its entry
            end = entry_of(_packed_in(folder).get(run, []), -1)
            summary["runs"][number] = {"record": run} | end
    return summary


def record_names(folder: Path) -> list[str]:
    """The records of a comparison's runs, ended or not, in the order of their names."""
    names = {f"{RECORDS}/{path.name}" for path in (folder / RECORDS).glob("*.jsonl")}
    with contextlib.suppress(ValueError):  # damaged: `record_lines` says so of each run
        names.update(_packed_in(folder).keys() - {SUMMARY})
    return sorted(names)


def record_lines(folder: Path, record: str) -> Sequence[str]:
    """The lines of one run, or of the summary.

    Args:
        folder: The comparison's.
        record: As in `RunSummary.record`; or ``summary.json``.

    Raises:
        FileNotFoundError: If it has no file, and is not packed.
        ValueError: If the file is not text, or the packed one is damaged.
    """
    path = folder / record
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        if (lines := _packed_in(folder).get(record)) is None:
            raise
        return lines


def entry_of(lines: Sequence[str], index: int) -> dict[str, Any]:
    """One line of a run's record; empty where there is none, or it is damaged."""
    with contextlib.suppress(IndexError, ValueError):
        if isinstance(entry := json.loads(lines[index]), dict):
            return entry
    return {}


def pack(folder: Path) -> tuple[int, list[str]]:
    """Moves the files of runs that ended, and their summary, into ``records.jsonl.gz``.

    The runs that were broken off keep theirs, to go on with, and so does a summary that says other
    than the records.

    Args:
        folder: The comparison's.

    Returns:
        How many files were moved; and why ``summary.json`` was not, if it stays.

    Raises:
        ConfigError: If a process is training there, or what was packed before is damaged.
    """
    with locked(folder) as is_ours:
        if not is_ours:
            raise ConfigError(f"{folder} is being trained in: pack it once that has ended")
        try:
            summary = _packed_in(folder).get(SUMMARY, [])
        except ValueError as error:
            raise ConfigError(f"{error}: restore {folder / PACKED}, or remove it") from error
        ended = {
            name: lines
            for name in record_names(folder)
            if entry_of(lines := record_lines(folder, name), -1).get("kind") == "end"
        }
        if not ended:
            return 0, []
        moved, problems = [folder / name for name in ended if (folder / name).exists()], []
        if (path := folder / SUMMARY).exists():
            try:
                summary = [_summary_line(folder, ended)]
                moved.append(path)  # the last to go, so that it counts until all is packed
            except UNREADABLE as error:
                why = f"it is damaged, or not what the runs say ({error_text(error)})"
                problems.append(f"{path} stays: {why}")
        # Without the time, so that the same records are the same bytes.
        packed, content = folder / PACKED, gzip.compress(_written(summary, ended).encode(), mtime=0)
        if moved or packed.read_bytes() != content:
            with atomic_write(packed) as path:
                path.write_bytes(content)
            for path in moved:
                path.unlink()
            with contextlib.suppress(OSError):  # some are left there, or it is gone
                (folder / RECORDS).rmdir()
        return len(moved), problems


def _summary_line(folder: Path, ended: Mapping[str, Sequence[str]]) -> str:
    """Returns the summary as packed, once its runs are those that the records end with.

    Raises:
        UNREADABLE: If they are not, or it is damaged.
    """
    summary = read_summary(folder)
    dict(summary["environment"])
    scoring_costs_of(summary)
    runs = [RunSummary.from_json(entry) for entry in summary["runs"]]
    for run in runs:
        end = entry_of(ended.get(run.record, []), -1)
        if not end or repr(RunSummary.from_json(end)) != repr(run):  # in which nan is nan
            raise ValueError(f"{run.record} does not end with what it lists")
    return json.dumps({"kind": "comparison"} | summary | {"runs": [run.record for run in runs]})


def _written(summary: Sequence[str], runs: Mapping[str, Sequence[str]]) -> str:
    """The packed file of a summary, if any, and of runs, their lines by the names of records."""
    headers = {
        name: {"kind": "run", "record": name} | json.loads(lines[0]) for name, lines in runs.items()
    }
    environments = (header.get("environment", {}) for header in headers.values())
    shared = reduce(lambda first, other: _without(first, _without(first, other)), environments)
    lines = [*summary, json.dumps({"kind": "shared", "environment": shared})]
    for name, header in headers.items():
        if "environment" in header:
            header["environment"] = _without(header["environment"], shared)
        lines += [json.dumps(header), *runs[name][1:]]
    return "\n".join(lines) + "\n"


def _without(record: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries that another lacks, also of the dictionaries within them.

    `_merged` is the inverse, where the other has no more of its own.
    """
    return {
        key: _without(value, other[key]) if type(value) is type(other.get(key)) is dict else value
        for key, value in record.items()
        if key not in other or json.dumps(value) != json.dumps(other[key])
    }


def _merged(shared: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    return dict(shared) | {
        key: _merged(shared[key], value) if isinstance(shared.get(key), dict) else value
        for key, value in record.items()
    }


def _packed_in(folder: Path) -> Mapping[str, Sequence[str]]:
    path = folder / PACKED
    return _packed(path, path.stat().st_mtime_ns) if path.exists() else {}


@lru_cache(maxsize=256)
def _packed(path: Path, changed: int) -> Mapping[str, Sequence[str]]:
    """The lines of the summary and of each run in a packed file; they are asked for run by run.

    Raises:
        ValueError: If the file is damaged, by its checksum too.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is damaged ({error})") from error
    if not text.startswith((_COMPARISON, _SHARED, _HEADER)):
        raise ValueError(f"{path.name} is damaged (its first line is none of its own)")
    by_name: dict[str | None, list[str]] = {}
    name, shared = None, dict[str, Any]()
    for line in text.splitlines():
        if line.startswith(_COMPARISON):
            by_name[SUMMARY] = [line]
        elif line.startswith(_SHARED):
            shared = entry_of([line], 0).get("environment", {})
        elif line.startswith(_HEADER):
            header = entry_of([line], 0)
            name = header.get("record")  # None where the line is damaged
            if "environment" in header:
                header["environment"] = _merged(shared, header["environment"])
                line = json.dumps(header)
        by_name.setdefault(name, []).append(line)
    return {name: lines for name, lines in by_name.items() if name}
