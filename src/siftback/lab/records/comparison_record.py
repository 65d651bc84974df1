"""What a run leaves behind: its summary, its evaluations, and the folder that holds both.

A comparison's folder holds ``summary.json`` and, under ``records/``, one JSON-lines file per run::

    {"kind": "run", ...what was asked...}
    {"kind": "evaluation", ...}             one a line, written as training goes
    {"kind": "resumed", ...environment...}  only where it went on in another one than it began in
    {"kind": "end", ...the run's summary...}

A run that was stopped leaves its file without the last line; a run that ended is also in
``summary.json``, which is always replaced whole, and can be made again from the last lines.
"""

import hashlib
import json
import os
import re
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TextIO, get_args, get_origin

from siftback.errors import StateError
from siftback.lab.records.atomic_write import atomic_write, naming
from siftback.lab.records.metric import METRICS, Metric, MetricName

SUMMARY = "summary.json"
RECORDS = "records"

# A damaged file can fail in as many ways as there are steps in reading it.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)


@dataclass(frozen=True)
class Evaluation:
    """How far a run had come when it was tested.

    Attributes:
        epoch: Epochs of source examples done, a fraction where a run ends within one.
        examples: Source examples offered so far, kept or not.
        steps: Optimizer steps so far.
        seconds: Seconds of training so far, evaluation apart.
        cost: Cost so far in forwards of one example (a backward costs two).
        train_loss: Mean training loss of the examples trained on since the last evaluation.
        test_loss: Mean loss over the test set; of language in nats per token.
        test_error: Test error in percent; of language the share of next tokens that are not the
            most probable ones.
        phases: Seconds so far by phase: scoring (of the whole set, before training), loading,
            selection, forward, backward, optimizer, syncing (refreshing copies of the model,
            training a proxy), other. They sum to ``seconds``.
        agreement: Rank correlation of the scores that the strategy selects by with the losses
            of a fresh forward pass, over a part of the training set; None where it has none.
    """

    epoch: float
    examples: int
    steps: int
    seconds: float
    cost: float
    train_loss: float
    test_loss: float
    test_error: float
    phases: dict[str, float] = field(default_factory=dict)
    agreement: float | None = None


@dataclass(frozen=True)
class RunSummary:
    """One finished run, as ``summary.json`` lists it.

    Attributes:
        strategy: The strategy's name (``siftback strategies`` lists them).
        matched_to: For ``matched``, the strategy whose budget it was given; otherwise None.
        seed: Seed of the initial weights, data order and augmentation.
        data: Name of the data set.
        model: Name of the model, with its width.
        keep_asked: Share of the examples asked to be kept; for ``matched`` that of the run it
            is matched to.
        keep_measured: Share of the offered examples that was trained on.
        epochs: Epochs of source examples, a fraction where the run ended within one.
        steps: Optimizer steps.
        examples_forwarded: Forward passes of one example, selection and training together.
        examples_backpropped: Backward passes of one example.
        seconds_train: Seconds of training, evaluation apart.
        seconds_selection: Seconds of these spent on selection, its forward passes included.
        cost_forward_units: ``examples_forwarded + 2 * examples_backpropped``, those forwarded
            by selection at their ``score_cost``, and ``cost_scoring``.
        test_error_final: Test error at the end, in percent.
        test_error_best: Lowest test error of any evaluation, in percent.
        record: The run's JSON-lines file, relative to the comparison's folder.
        seconds_by_phase: ``seconds_train``, by phase as in `Evaluation`.
        score_cost: What scoring an example costs in forwards of training: 1 for a fresh forward, by
            definition, and otherwise the median of the comparison's `Price`.
        cost_scoring: What scores of the whole set cost before training, in forwards: those that
            pruning goes by, or irreducible losses. The training of the models that give them is
            in it, and their forwards over the set. Runs of one seed share the scores, and each
            is charged.
        seconds_scoring: Seconds of ``seconds_train`` that this took.
        seconds_observing: Seconds that looking at the model took, by what was looked at; they are
            in no other number.
        suspects: Training examples that a noise guard held back at the end; None where there
            was none.
        suspects_wrong: Those of them whose labels `--flip` made wrong.
        labels_wrong: All whose labels it made wrong.
        metric: What the run is judged by: "error" or "loss". Older records, of classifiers alone,
            do not say.
        test_loss_final: Test loss at the end; None in older records.
        test_loss_best: Lowest test loss of any evaluation.
        tokens_per_character: Of the text to test on, for language: what loss in bits per character
            follows from. None for classifiers.
    """

    strategy: str
    matched_to: str | None
    seed: int
    data: str
    model: str
    keep_asked: float
    keep_measured: float
    epochs: float
    steps: int
    examples_forwarded: int
    examples_backpropped: int
    seconds_train: float
    seconds_selection: float
    cost_forward_units: float
    test_error_final: float
    test_error_best: float
    record: str
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    score_cost: float = 1.0
    cost_scoring: float = 0.0
    seconds_scoring: float = 0.0
    seconds_observing: dict[str, float] = field(default_factory=dict)
    suspects: int | None = None
    suspects_wrong: int | None = None
    labels_wrong: int | None = None
    metric: MetricName = "error"
    test_loss_final: float | None = None
    test_loss_best: float | None = None
    tokens_per_character: float | None = None

    @property
    def final(self) -> float:
        """What it is judged by, at the end: test error in percent, or test loss in nats."""
        if self.metric == "error":
            return self.test_error_final
        assert self.test_loss_final is not None  # as was made sure of when it was read
        return self.test_loss_final

    @property
    def best(self) -> float:
        """The lowest of any evaluation of what it is judged by."""
        if self.metric == "error":
            return self.test_error_best
        assert self.test_loss_best is not None
        return self.test_loss_best

    @property
    def label(self) -> str:
        """The name of this run's row and curve, equal for the seeds of one configuration.

        >>> row = dict.fromkeys((f.name for f in fields(RunSummary)), 0)
        >>> RunSummary(**row | dict(strategy="sb", matched_to=None, keep_asked=1 / 3)).label
        'sb 0.33'
        >>> RunSummary(**row | dict(strategy="matched", matched_to="sb", keep_asked=0.5)).label
        'matched to sb 0.5'
        """
        return run_label(self.strategy, self.keep_asked, self.matched_to)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Self:
        """Reads one entry of ``runs``.

        Raises:
            TypeError: If a field is missing, or is of another type.
            ValueError: If its record is not one of the comparison's own, or what it is judged by
                is not known.
        """
        run = cls(**_known(cls, entry))
        check_types(run)
        if run.metric not in METRICS:
            raise ValueError(f"metric is {run.metric!r}, and not one of {', '.join(METRICS)}")
        if run.metric == "loss" and None in (run.test_loss_final, run.test_loss_best):
            raise ValueError("metric is 'loss', and the test loss is missing")
        if not re.fullmatch(rf"{RECORDS}/[^/\\]+\.jsonl", run.record):
            raise ValueError(f"record is {run.record!r}, and not a file in {RECORDS}/")
        return run


@dataclass(frozen=True)
class Price:
    """What scoring an example costs in forwards of training, as measured once.

    Attributes:
        median: Of all rounds; what costs are counted with.
        low: The quartile below it.
        high: The quartile above it.
        rounds: How many.
    """

    median: float
    low: float
    high: float
    rounds: int


def prices_of(summary: dict[str, Any]) -> dict[str, Price]:
    """The prices in a summary, by strategy.

    Raises:
        TypeError: If a field is missing, or is of another type.
    """
    found = {name: Price(**_known(Price, one)) for name, one in summary.get("prices", {}).items()}
    for price in found.values():
        check_types(price)
    return found


def run_label(strategy: str, keep: float, matched_to: str | None) -> str:
    """The name of one configuration: strategy and share kept, whatever the seed."""
    if strategy == "traditional":
        return strategy
    kept = f"{keep:.2g}"
    return f"matched to {matched_to} {kept}" if matched_to else f"{strategy} {kept}"


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
            with naming(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file: TextIO = path.open("w", encoding="utf-8", newline="\n")
            try:
                self._write("run", header)
            except OSError:
                with suppress(OSError):  # what could not be written cannot be flushed either
                    self._file.close()
                raise
            return
        written = path.read_bytes()[: mark["bytes"]] if path.exists() else b""
        self._digest.update(written)
        if self._digest.hexdigest() != mark["sha256"]:
            raise StateError(
                f"{path} is not what it was as its run's last checkpoint was saved, {mark['bytes']}"
                f" bytes of another checksum: put it back, or remove {path.stem} from the "
                "checkpoints to begin it again"
            )
        with naming(path):
            self._file = path.open("r+", encoding="utf-8", newline="\n")
            self._file.truncate(mark["bytes"])
        first = json.loads(self._file.readline())
        self._file.seek(0, os.SEEK_END)
        self.evaluations.extend(read_evaluations(path))
        if _circumstances(first) != _circumstances(header):
            self._write("resumed", {"environment": header["environment"]})

    def evaluation(self, evaluation: Evaluation) -> None:
        """Adds one evaluation."""
        self.evaluations.append(evaluation)
        self._write("evaluation", asdict(evaluation))

    def mark(self) -> dict[str, Any]:
        """How many bytes there are and their checksum, once they are on the disk."""
        with naming(self.path):
            os.fsync(self._file.fileno())
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def end(self, summary: RunSummary) -> None:
        """Adds the closing line."""
        self._write("end", asdict(summary))

    def close(self) -> None:
        """Closes the file; a record without its closing line is that of a stopped run."""
        with naming(self.path):
            self._file.close()

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind} | values) + "\n"
        self._digest.update(line.encode())
        with naming(self.path):
            self._file.write(line)
            self._file.flush()


def is_begun(folder: Path) -> bool:
    """Whether a folder holds a comparison, finished or not."""
    return (folder / SUMMARY).exists() or any((folder / RECORDS).glob("*.jsonl"))


def _entry(path: Path, place: int) -> dict[str, Any]:
    """One line of a run's file; empty where it is damaged."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8").splitlines()[place])
    except UNREADABLE:
        return {}
    return entry if isinstance(entry, dict) else {}


def check_types(record: Evaluation | RunSummary | Price) -> None:
    """Makes sure that what was read is of the types it is said to be.

    Raises:
        TypeError: If something is not.
    """
    for each in fields(record):
        value = getattr(record, each.name)
        inside = value.values() if isinstance(value, dict) else ()
        whole = isinstance(value, _accepted(each.type))
        if not whole or not all(isinstance(number, int | float) for number in inside):
            raise TypeError(f"{each.name} is {value!r}")


def _accepted(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return str
    if isinstance(kind, types.GenericAlias):  # dict[str, float]
        return kind.__origin__
    return kind | int if float in (kind, *get_args(kind)) else kind


def said(error: BaseException) -> str:
    """What an error of reading says, without the path."""
    if isinstance(error, OSError):
        return str(error.strerror)
    return f"{type(error).__name__}: {error}"


def read_evaluations(path: Path) -> Iterator[Evaluation]:
    """Yields the evaluations of one run's file; a torn last line ends them."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                return
            if entry.pop("kind") == "evaluation":
                yield Evaluation(**_known(Evaluation, entry))


def _circumstances(header: dict[str, Any]) -> dict[str, Any]:
    """What results may depend on: versions, commit and machine."""
    environment = header.get("environment", {})
    return {k: v for k, v in environment.items() if k not in ("arguments", "date")}


def _machine(environment: dict[str, Any]) -> str:
    device = str(environment.get("device", "cpu"))
    return str(environment.get("cpu", "")) if device == "cpu" else device


def _known(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    """The fields that this release knows; those of later ones are left aside."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in entry.items() if name in names}


@dataclass(frozen=True)
class Comparison:
    """The finished runs of one folder, with the environment they ran in.

    Attributes:
        folder: Where ``summary.json`` lies.
        environment: Versions, machine, commit and arguments.
        runs: The finished runs, in the order in which they ended.
        prices: By strategy what its scores cost, where they are no fresh forward passes: measured
            before the first of its runs, and the same for all.
    """

    folder: Path
    environment: dict[str, Any]
    runs: list[RunSummary]
    prices: dict[str, Price] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads ``summary.json``.

        Raises:
            FileNotFoundError: If the folder holds none.
            StateError: If it is damaged.
        """
        path = folder / SUMMARY
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            runs = [RunSummary.from_json(entry) for entry in summary["runs"]]
            prices = prices_of(summary)
            environment = dict(summary["environment"])
            dict(environment.get("arguments") or {})
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            raise StateError(
                f"{path} is damaged ({said(error)}): put back a copy of it; or remove it and "
                f"repeat what wrote it with --resume, which has finished runs from {RECORDS}/"
            ) from error
        return cls(folder, environment, runs, prices)

    @classmethod
    def recover(cls, folder: Path) -> Self | None:
        """Reads ``summary.json``, and from their own files runs that are not in it.

        It may lack those whose end it could not take, and it may be gone.

        Returns:
            None where the folder holds no run.

        Raises:
            StateError: If it is damaged.
        """
        found = cls.read(folder) if (folder / SUMMARY).exists() else None
        for path in sorted((folder / RECORDS).glob("*.jsonl")):
            first, last = _entry(path, 0), _entry(path, -1)
            if found is None and isinstance(first.get("environment"), dict):
                found = cls(folder, first["environment"], [])
            if found is None or last.get("kind") != "end":
                continue
            try:
                run = RunSummary.from_json(last)
            except UNREADABLE:  # it is run again
                continue
            if run.record not in {one.record for one in found.runs}:
                found.runs.append(run)
        return found

    def write(self) -> None:
        """Replaces ``summary.json`` whole, so that a reader never sees half of it."""
        summary = {"environment": self.environment, "runs": [asdict(run) for run in self.runs]}
        if self.prices:
            summary["prices"] = {name: asdict(price) for name, price in self.prices.items()}
        with atomic_write(self.folder / SUMMARY) as path:
            path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")

    @property
    def metric(self) -> Metric:
        """What its runs are judged by, which is the same for all, as their data are."""
        return METRICS[self.runs[0].metric if self.runs else "error"]

    def by_label(self) -> dict[str, list[RunSummary]]:
        """The runs of each configuration, in the order in which the first of each ended."""
        groups: dict[str, list[RunSummary]] = {}
        for run in self.runs:
            groups.setdefault(run.label, []).append(run)
        return groups

    def machine(self, label: str) -> str:
        """The processors or devices that a configuration's runs were measured on."""
        runs = self.by_label().get(label, [])
        first = _machine(self.environment)  # where the comparison was begun
        return " and ".join(sorted({self._machine_of(run) or first for run in runs}))

    def _machine_of(self, run: RunSummary) -> str:
        """The machine that a run's file names; empty where it names none."""
        try:
            with (self.folder / run.record).open(encoding="utf-8") as lines:
                return _machine(json.loads(next(lines, "{}")).get("environment", {}))
        except (OSError, json.JSONDecodeError):
            return ""

    def evaluations(self, run: RunSummary) -> list[Evaluation]:
        """The evaluations of one of the runs."""
        return list(read_evaluations(self.folder / run.record))
