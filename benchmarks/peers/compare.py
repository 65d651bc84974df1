"""Trains the common work by every method and seed, and writes the table of docs/peers.md.

Each training is a process of its own, with the interpreter of its peer (`build.sh` fetches them),
and one line of ``results/peers/DATA.jsonl``; what is there already is not trained again.
``--tuned`` compares at the learning rate that is best for each method on held-out training
examples, three trainings of each rate, in the records of ``tuning/`` and ``tuned/``. ``--seconds``
trains at those rates again, all methods in turns, to time them where nothing else runs, in the
records of ``seconds/``. ``--table`` trains nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from siftback.lab.records.frame import interval, judge
from siftback.lab.report.front import put_between

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDS = ROOT / "results" / "peers"
PAGE = ROOT / "docs" / "peers.md"
MARKS = ("<!-- table -->\n", "<!-- end of table -->\n")
TUNED_MARKS = ("<!-- tuned -->\n", "<!-- end of tuned -->\n")
PEERS = ROOT / ".venv-peers"
HELD_OUT = 5  # of so many training examples one is held out to choose a learning rate by
BATCH_TUNED, PEAKS, TUNING_SEEDS = 64, (0.05, 0.1, 0.2, 0.4, 0.8, 1.6), 3
TUNED = (
    "plain", "plain-32", "composer-always", "infobatch", "datacull-rcap", "adaptive-sparse",
    "airbench-filter", "siftback-memory-default", "siftback-memory-32", "siftback-infobatch",
    "siftback-sb",
)  # fmt: skip

# By method, what trains it, and what the table says of it.
ROWS = {
    "plain": ("this", "plain PyTorch"),
    "plain-faster": ("this", "plain PyTorch, learning rates 1.43 times higher"),
    "plain-64": ("this", "plain PyTorch, batches of 64"),
    "plain-32": ("this", "plain PyTorch, batches of 32"),
    "plain-2.7": ("composer", "plain PyTorch, of the release that Composer needs"),
    "composer": ("composer", "Composer: `SelectiveBackprop` at its defaults"),
    "composer-always": ("composer", "Composer: `SelectiveBackprop` after the first epoch"),
    "infobatch": ("infobatch", "InfoBatch: the authors' code"),
    "datacull-rcap": ("composer", "DataCull: RCAP, the authors' code"),
    "adaptive-sparse": ("composer", "adaptive-sparse-training: its trainer at its defaults"),
    "airbench-filter": ("this", "airbench96: its filter, after its script (f1c599c)"),
    "siftback-infobatch": ("this", "Siftback: `InfoBatch()`"),
    "siftback-memory-default": ("this", "Siftback: `Memory()`"),
    "siftback-memory-64": ("this", "Siftback: `Memory()`, batches of 64"),
    "siftback-memory-32": ("this", "Siftback: `Memory()`, batches of 32"),
    "siftback-memory": ("this", "Siftback: `Memory(keep=0.55)`"),
    "siftback-rcap": ("this", "Siftback: `RCAP(labels)`"),
    "siftback-rs2": ("this", "Siftback: `RS2()`"),
    "siftback-kakurenbo": ("this", "Siftback: `Kakurenbo()`"),
    "siftback-sb": ("this", "Siftback: Selective-Backprop"),
    "siftback-el2n": ("this", "Siftback: data-diet pruning, its scores charged"),
}
# Of rows that are another's with other options: whose, and which.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain-2.7": ("plain", {}),
    "plain-64": ("plain", {"batch": 64}),
    "plain-32": ("plain", {"batch": 32}),
    "siftback-memory-64": ("siftback-memory-default", {"batch": 64}),
    "siftback-memory-32": ("siftback-memory-default", {"batch": 32}),
}


def export(name: str, limit: int | None, path: Path, *, held_out: bool = False) -> None:
    """Writes a data set of the laboratory so that torch alone can read it.

    Args:
        name: That of the laboratory.
        limit: Training examples to keep.
        path: The file to write.
        held_out: Whether to test on training examples held out, and not on the test set.
    """
    from siftback.lab.data.load import load

    data = load(name, train_limit=limit)
    if held_out:
        data = load(name, train_limit=limit, validation=len(data.train_labels) // HELD_OUT)
    pixels = data.train_inputs.float()
    torch.save(
        {
            "train_pixels": data.train_inputs,
            "train_labels": data.train_labels,
            "test_pixels": data.test_inputs,
            "test_labels": data.test_labels,
            "mean": pixels.mean((0, 2, 3), keepdim=True),
            "deviation": pixels.std((0, 2, 3), keepdim=True),
            "flip": torch.tensor(name.startswith("cifar")),
        },
        path,
    )


def train(name: str, data: Path, seed: int, budget: float, **options: Any) -> dict[str, Any]:
    """One training, in a process of its own.

    Args:
        name: One of ``ROWS``.
        data: The file that `export` wrote.
        seed: As for ``train.py``.
        budget: Likewise.
        options: Its options besides, such as ``peak``.
    """
    whose = ROWS[name][0]
    python = sys.executable if whose == "this" else str(PEERS / whose / "bin/python")
    environment = dict(os.environ, OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    if whose == "infobatch":
        environment["PYTHONPATH"] = str(PEERS / "InfoBatch")
    method, own = OPTIONS.get(name, (name, {}))
    command = [python, str(HERE / "train.py"), method, str(data)]
    for option, value in {"seed": seed, "budget": budget, **own, **options}.items():
        command += [f"--{option}", str(value)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{name} failed: fetch the peers first, with benchmarks/peers/build.sh")
    return json.loads(done.stdout.splitlines()[-1]) | {"method": name}


def recorded(path: Path) -> list[dict[str, Any]]:
    """The trainings of a file; none where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def grouped(runs: list[dict[str, Any]], name: str) -> dict[Any, list[dict[str, Any]]]:
    """Trainings by the value of an entry."""
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in runs:
        groups[one[name]].append(one)
    return groups


def error_of(runs: list[dict[str, Any]]) -> str:
    """The mean error and its standard deviation over the seeds."""
    errors = [one["test_error"] for one in runs]
    spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
    return f"{statistics.mean(errors):.2f} ± {spread:.2f}"


def beside(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> tuple[str, str]:
    """The differences from others' errors, seed by seed: the interval and the verdict.

    The verdict is that of the laboratory, `judge`, whatever is compared.
    """
    base = {one["seed"]: one["test_error"] for one in others}
    differences = [one["test_error"] - base[one["seed"]] for one in runs if one["seed"] in base]
    mean, low, high = interval(differences)
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", judge(differences)


def beside_default(by_method: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The errors of the peers' own code less those of `Memory()`, as lines, if there are both."""
    default = by_method.get("siftback-memory-default")
    peers = [
        method
        for method, (whose, _) in ROWS.items()
        if whose != "this" and not method.startswith("plain") and by_method.get(method)
    ]
    if default and peers:
        yield "The peers' own code, less the errors of `Memory()` with the same seeds:"
        yield ""
        for method in peers:
            difference, verdict = beside(by_method[method], default)
            # "Paid" is a word for selection beside plain training.
            yield f"- {ROWS[method][1]}: {difference}, {verdict.replace('paid', 'better')}"
        yield ""
    if by_method.get("siftback-memory-64") and by_method.get("plain-64"):
        difference, verdict = beside(by_method["siftback-memory-64"], by_method["plain-64"])
        yield f"Both in batches of 64, `Memory()` less plain PyTorch: {difference}, {verdict}."
        yield ""


def title(path: Path, first: dict[str, Any]) -> str:
    """The beginning of a table's title: the data, and what all trainings may spend."""
    return (
        f"**{path.stem}**, {first['examples']:,} training examples, a budget of "
        f"{first['budget']:g} epochs of plain training,"
    )


def rows_of(
    by_method: dict[str, list[dict[str, Any]]],
) -> Iterator[tuple[str, list[dict[str, Any]], str]]:
    """The methods that were trained, with their trainings and the cells beside plain training."""
    for method in ROWS:
        if runs := by_method.get(method):
            cells = "–, the baseline | –"  # noqa: RUF001
            if method != "plain":
                cells = " | ".join(beside(runs, by_method["plain"]))
            yield method, runs, cells


def seconds_beside(by_method: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """The median seconds of each method, over those of plain training.

    Of the peers' own code, whatever PyTorch it runs in, that is plain training in Composer's.
    """
    seconds = {
        method: statistics.median(one["seconds"] for one in runs)
        for method, runs in by_method.items()
    }
    return {
        method: amount / seconds["plain" if ROWS[method][0] == "this" else "plain-2.7"]
        for method, amount in seconds.items()
    }


def table() -> Iterator[str]:
    """The lines of the table, from the records alone."""
    for path in sorted(RECORDS.glob("*.jsonl")):
        by_method = grouped(recorded(path), "method")
        first, seconds = by_method["plain"][0], seconds_beside(by_method)
        yield title(path, first)
        yield f"{len(by_method['plain'])} seeds, threads: {first['threads']}."
        yield ""
        yield (
            "| method | test error, % | less plain's, 95 % interval | verdict | spent, epochs | "
            "seconds over plain's | code |"
        )
        yield "|:---|---:|---:|:---|---:|---:|:---|"
        for method, runs, cells in rows_of(by_method):
            spent = statistics.mean(one["spent"] for one in runs)
            yield (
                f"| {ROWS[method][1]} | {error_of(runs)} | "
                f"{cells} | {spent:.2f} | {seconds[method]:.2f} | {runs[0]['code']} |"
            )
        yield ""
        yield from beside_default(by_method)


def with_table(page: str) -> str:
    """A page, with the tables between their marks."""
    page = put_between(page, TUNED_MARKS, "\n" + "\n".join(tuned_table()))
    return put_between(page, MARKS, "\n" + "\n".join(table()))


def tuned_table() -> Iterator[str]:
    """The lines of the tables of methods at the learning rate of each, from the records alone."""
    for path in sorted((RECORDS / "tuned").glob("*.jsonl")):
        by_method = grouped(recorded(path), "method")
        first = by_method["plain"][0]
        yield title(path, first)
        seconds = seconds_beside(grouped(recorded(RECORDS / "seconds" / path.name), "method"))
        yield f"{len(by_method['plain'])} seeds, batches of {first['batch']}."
        yield ""
        yield (
            "| method | rate | test error, % | less plain's, 95 % interval | verdict | "
            "seconds over plain's | code |"
        )
        yield "|:---|---:|---:|---:|:---|---:|:---|"
        for method, runs, cells in rows_of(by_method):
            ratio = f"{seconds[method]:.2f}" if method in seconds else "–"  # noqa: RUF001
            yield (
                f"| {ROWS[method][1]} | {runs[0]['peak']:g} | {error_of(runs)} | {cells} | "
                f"{ratio} | {runs[0]['code']} |"
            )
        yield ""
        yield from beside_default(by_method)


def best_peak(runs: list[dict[str, Any]]) -> float:
    """The rate of the lowest mean held-out error; of equal ones that of the lowest loss."""
    by_peak = grouped(runs, "peak")

    def means(peak: float) -> list[float]:
        return [
            statistics.mean(one[name] for one in by_peak[peak])
            for name in ("test_error", "test_loss")
        ]

    return min(by_peak, key=means)


def tuned_options(method: str, peak: float) -> dict[str, Any]:
    """Returns the options of a method at a learning rate; some have batches of their own size."""
    return {"batch": BATCH_TUNED, "peak": peak} | OPTIONS.get(method, (method, {}))[1]


def tune(name: str, limit: int | None, budget: float, methods: list[str]) -> dict[str, float]:
    """Chooses each method's learning rate on held-out examples, and none at an end of the tried."""
    path = RECORDS / "tuning" / f"{name.partition(':')[0]}.jsonl"
    chosen = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / path.with_suffix(".pt").name
        export(name, limit, data, held_out=True)
        for method in methods:
            peaks = list(PEAKS)
            for peak in peaks:
                runs = [one for one in recorded(path) if one["method"] == method]
                there = {(one["peak"], one["seed"]) for one in runs}
                for seed in range(TUNING_SEEDS):
                    if (peak, seed) not in there:
                        found = train(method, data, seed, budget, **tuned_options(method, peak))
                        append(path, found)
                        runs.append(found)
                best = best_peak([one for one in runs if one["peak"] in peaks])
                if peak == peaks[-1] and best in (min(peaks), max(peaks)):
                    peaks.append(best * 2 if best == max(peaks) else best / 2)
            chosen[method] = best
    return chosen


def compare(
    name: str, limit: int | None, budget: float, seeds: int, methods: dict[str, dict[str, Any]],
    folder: Path,
) -> None:  # fmt: skip
    """Trains methods with options of each, on every seed; what is recorded is left.

    What is recorded with other options is refused, before anything is trained.
    """
    path = folder / f"{name.partition(':')[0]}.jsonl"
    before = recorded(path)
    for one in before:
        for option, value in methods.get(one["method"], {}).items():
            if one[option] != value:
                sys.exit(
                    f"{path}: {one['method']} was trained at {option} {one[option]:g}, and is "
                    f"to be trained at {value:g}; take its lines out of the file to train it anew"
                )
    there = {(one["method"], one["seed"]) for one in before}
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / path.with_suffix(".pt").name
        export(name, limit, data)
        for seed in range(seeds):
            for method, options in methods.items():
                if (method, seed) not in there:
                    append(path, train(method, data, seed, budget, **options))


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds a training to a file of records, and prints its error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as records:
        records.write(json.dumps(record, separators=(",", ":")) + "\n")
    method, seed, error = record["method"], record["seed"], record["test_error"]
    print(f"{method}, rate {record['peak']:g}, seed {seed}: {error:.2f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist", help="of the laboratory's image sets")
    parser.add_argument("--limit", type=int, help="train on so many examples, of all classes alike")
    parser.add_argument("--budget", type=float, default=4.0, help="in epochs of plain training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", help="separated by commas; all by default")
    parser.add_argument("--tuned", action="store_true", help="at the learning rate of each method")
    parser.add_argument("--seconds", action="store_true", help="time them at those rates, in turns")
    parser.add_argument("--table", action="store_true", help="write the table, and train nothing")
    asked = parser.parse_args()
    if not asked.table:
        tuned = asked.tuned or asked.seconds
        methods = asked.methods.split(",") if asked.methods else TUNED if tuned else ROWS
        if asked.seconds and "plain" not in methods:
            parser.error("--seconds are over those of plain training: add plain to --methods")
        options: dict[str, dict[str, Any]] = {method: {} for method in methods}
        if tuned:
            peaks = tune(asked.data, asked.limit, asked.budget, list(methods))
            options = {name: tuned_options(name, peak) for name, peak in peaks.items()}
        if asked.seconds:  # also of plain training in the release that Composer needs
            options["plain-2.7"] = options["plain"]
        folder = RECORDS / "seconds" if asked.seconds else RECORDS / "tuned" if tuned else RECORDS
        compare(asked.data, asked.limit, asked.budget, asked.seeds, options, folder)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
