"""The record of a run: its summary, its evaluations, and the folder that holds both.

A comparison's folder holds ``summary.json`` and, under ``records/``, one JSON-lines file per run::

    {"kind": "run", ...what was asked...}
    {"kind": "evaluation", ...}             one a line, written as training goes
    {"kind": "resumed", ...environment...}  only where it went on in another one than it began in
    {"kind": "end", ...the run's summary...}

A run that was stopped leaves its file without the last line; a run that ended is also in
``summary.json``, which is always replaced whole, and can be made again from the last lines. The
files of runs that ended and their summary may be packed into one, ``records.jsonl.gz``.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self, TextIO

from siftback.errors import StateError
from siftback.lab.records import folder as files
from siftback.lab.records.formatting import listed
from siftback.lab.records.run_summary import (
    METRICS,
    RECORDS,
    Evaluation,
    Metric,
    RunSummary,
    ScoringCost,
    known_fields,
    scoring_costs_of,
)


class RecordWriter:
    """Writes one run's JSON-lines file, each line complete before training goes on.

    Args:
        path: The file.
        header: What its first line says, the run's ``environment`` among it.
        mark: What `mark` gave of a file to go on with: what was written after it is cut off, and
            the header stays. Where the run goes on in another environment, a line says so.

    Attributes:
        path: The file.
        evaluations: All that it holds.

    Raises:
        StateError: If the file is no longer what it was up to the mark.
        OSError: If it cannot be written; it names the file.
    """

    def __init__(
        self, path: Path, header: dict[str, Any], mark: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.evaluations: list[Evaluation] = []
        self._digest = hashlib.sha256()
        if mark is None:
            with files.naming(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file: TextIO = path.open("w", encoding="utf-8", newline="\n")
            try:
                self._write("run", header)
            except OSError:
                with suppress(OSError):  # what could not be written cannot be flushed either
                    self._file.close()
                raise
            return
        self._digest.update(path.read_bytes()[: mark["bytes"]] if path.exists() else b"")
        if self._digest.hexdigest() != mark["sha256"]:
            raise StateError(
                f"{path} is not what it was as its run's last checkpoint was saved, {mark['bytes']}"
                f" bytes of another checksum: put it back, or remove {path.stem} from the "
                "checkpoints to begin it again"
            )
        with files.naming(path):
            self._file = path.open("r+", encoding="utf-8", newline="\n")
            self._file.truncate(mark["bytes"])
        first, *lines = self._file.read().splitlines()
        self.evaluations.extend(parse_evaluations(lines))
        if _circumstances(json.loads(first)) != _circumstances(header):
            self._write("resumed", {"environment": header["environment"]})

    def evaluation(self, evaluation: Evaluation) -> None:
        """Adds one evaluation."""
        self.evaluations.append(evaluation)
        self._write("evaluation", asdict(evaluation))

    def mark(self) -> dict[str, Any]:
        """Returns the number of bytes and their checksum, once they are on the disk."""
        with files.naming(self.path):
            os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def end(self, summary: RunSummary) -> None:
        """Adds the closing line."""
        self._write("end", asdict(summary))

    def close(self) -> None:
        """Closes the file; a record without its closing line is that of a stopped run."""
        with files.naming(self.path):
            self._file.close()

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind} | values) + "\n"
        self._digest.update(line.encode())
        with files.naming(self.path):
            self._file.write(line)
            self._file.flush()


def threads_of(folder: Path) -> int | None:
    """With how many threads a comparison was begun; None where there is none, or none that says."""
    comparison = None
    with suppress(StateError):  # whoever goes on with it says so
        comparison = Comparison.recover(folder)
    threads = comparison.environment.get("threads") if comparison else None
    return threads if isinstance(threads, int) else None


def parse_evaluations(lines: Iterable[str]) -> Iterator[Evaluation]:
    """Returns the evaluations in one run's lines; a torn last line ends them."""
    entries: list[dict[str, Any]] = []
    with suppress(json.JSONDecodeError):
        entries.extend(map(json.loads, lines))  # all up to the torn one
    return evaluations_of(entries)


def evaluations_of(entries: Iterable[dict[str, Any]]) -> Iterator[Evaluation]:
    """Yields the evaluations among the entries of one run's lines."""
    for entry in entries:
        if entry["kind"] == "evaluation":
            yield Evaluation(**known_fields(Evaluation, entry))


def _circumstances(header: dict[str, Any]) -> dict[str, Any]:
    """Returns the circumstances of a run: versions, commit and machine."""
    environment = header.get("environment", {})
    return {k: v for k, v in environment.items() if k not in ("arguments", "date")}


def _machine(environment: dict[str, Any]) -> str:
    device = str(environment.get("device", "cpu"))
    return str(environment.get("cpu", "")) if device == "cpu" else device


@dataclass(frozen=True)
class Comparison:
    """The finished runs of one folder, with the environment they ran in.

    Attributes:
        folder: Where ``summary.json`` lies, or what it was packed into.
        environment: Versions, machine, commit and arguments.
        runs: The finished runs, in the order in which they ended.
        prices: By strategy what its scores cost, where they are no fresh forward passes: measured
            before the first of its runs, and the same for all.
        tables: By function the table of runs that it made, and those runs.
    """

    folder: Path
    environment: dict[str, Any]
    runs: list[RunSummary]
    prices: dict[str, ScoringCost] = field(default_factory=dict)
    tables: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads ``summary.json``, packed or not.

        Raises:
            FileNotFoundError: If the folder holds none.
            StateError: If it is damaged.
        """
        try:
            comparison, entries = cls.read_entries(folder)
            comparison.runs.extend(map(RunSummary.from_json, entries))
        except FileNotFoundError:
            raise
        except files.UNREADABLE as error:
            raise StateError(
                f"{files.summary_path(folder)} is damaged ({files.error_text(error)}): put back a "
                "copy of it; or remove it and repeat what wrote it with --resume, which takes "
                f"finished runs from {RECORDS}/ and trains the others"
            ) from error
        return comparison

    @classmethod
    def read_entries(cls, folder: Path) -> tuple[Self, list[Any]]:
        """Reads the summary but for its runs, whose entries are returned as they are.

        Raises:
            UNREADABLE: If it is missing or damaged.
        """
        summary = files.read_summary(folder)
        environment = dict(summary["environment"])
        dict(environment.get("arguments") or {})
        return cls(folder, environment, [], scoring_costs_of(summary)), list(summary["runs"])

    @classmethod
    def recover(cls, folder: Path) -> Self | None:
        """Reads the summary, and from their own files runs that are not in it.

        It may lack those whose end it could not take, and it may be gone.

        Returns:
            None where the folder holds no run.

        Raises:
            StateError: If it is damaged.
        """
        comparison = cls.read(folder) if files.is_comparison(folder) else None
        for record in files.record_names(folder):
            with suppress(*files.UNREADABLE):  # it is run again
                lines = files.record_lines(folder, record)
                first, last = files.entry_of(lines, 0), files.entry_of(lines, -1)
                if not comparison and isinstance(first.get("environment"), dict):
                    comparison = cls(folder, first["environment"], [])
                if not comparison or last.get("kind") != "end":
                    continue
                run = RunSummary.from_json(last)
                if run.record not in {known.record for known in comparison.runs}:
                    comparison.runs.append(run)
        return comparison

    def write(self) -> None:
        """Replaces ``summary.json`` whole, so that a reader never sees half of it."""
        with files.atomic_write(self.folder / files.SUMMARY) as path:
            path.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        """Returns what ``summary.json`` says, each run in a line."""
        encode = json.JSONEncoder(separators=(",", ":")).encode
        runs = ",\n".join(encode(asdict(run)) for run in self.runs)
        entries = [f'"environment":{encode(self.environment)}', f'"runs":[\n{runs}\n]']
        if self.prices:
            prices = {name: asdict(price) for name, price in self.prices.items()}
            entries.append(f'"prices":{encode(prices)}')
        return "{\n" + ",\n".join(entries) + "\n}\n"

    @property
    def arguments(self) -> dict[str, Any]:
        """Its settings and lists of runs, as `Plan.arguments` gives them; empty without any."""
        return self.environment.get("arguments") or {}

    @property
    def metric(self) -> Metric:
        """The measure of its runs, the same for all, as their data are."""
        return METRICS[self.runs[0].metric if self.runs else "error"]

    @property
    def setup(self) -> str:
        """Its models and its data, in words."""
        models = listed(run.model for run in self.runs)
        return f"{models} on {listed(run.data for run in self.runs)}"

    def by_label(self) -> dict[str, list[RunSummary]]:
        """The runs of each configuration, in the order of the first of each."""
        labels = dict.fromkeys(run.label for run in self.runs)
        return {label: [run for run in self.runs if run.label == label] for label in labels}

    def machine_of(self, run: RunSummary) -> str:
        """Returns the machine of a run: what its file names, or where the comparison began."""
        header: dict[str, Any] = {}
        with suppress(OSError):
            header = files.entry_of(files.record_lines(self.folder, run.record), 0)
        return _machine(header.get("environment", {})) or _machine(self.environment)

    def evaluations(self, run: RunSummary) -> list[Evaluation]:
        """The evaluations of one of the runs."""
        return list(parse_evaluations(files.record_lines(self.folder, run.record)))


def named(comparisons: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """Returns each comparison with its folder's name, and those around it, until it has its own."""
    paths = [comparison.folder.resolve().parts for comparison in comparisons]
    ends = [["/".join(path[-n:]) for n in range(1, len(path) + 1)] for path in paths]
    counts = Counter(chain(*ends))
    names = [min(ends_of_path, key=counts.__getitem__) for ends_of_path in ends]
    return list(zip(names, comparisons, strict=True))
