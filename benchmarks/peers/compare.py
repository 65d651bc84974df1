"""Trains the common work by every method and seed, and writes the table of docs/peers.md.

Each training is a process of its own, with the interpreter of its peer (`build.sh` fetches them),
and one line of ``results/peers/DATA.jsonl``; what is there already is not trained again.
``--table`` trains nothing.
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
PEERS = ROOT / ".venv-peers"

# By method, what trains it, and what the table says of it.
ROWS = {
    "plain": ("this", "plain PyTorch"),
    "plain-faster": ("this", "plain PyTorch, learning rates 1.43 times higher"),
    "plain-64": ("this", "plain PyTorch, batches of 64"),
    "plain-2.7": ("composer", "plain PyTorch, of the release that Composer needs"),
    "composer": ("composer", "Composer: `SelectiveBackprop` at its defaults"),
    "composer-always": ("composer", "Composer: `SelectiveBackprop` after the first epoch"),
    "infobatch": ("infobatch", "InfoBatch: the authors' code"),
    "datacull-rcap": ("composer", "DataCull: RCAP, the authors' code"),
    "adaptive-sparse": ("composer", "adaptive-sparse-training: its trainer at its defaults"),
    "siftback-infobatch": ("this", "Siftback: `InfoBatch()`"),
    "siftback-memory-default": ("this", "Siftback: `Memory()`"),
    "siftback-memory-64": ("this", "Siftback: `Memory()`, batches of 64"),
    "siftback-memory": ("this", "Siftback: `Memory(keep=0.55)`"),
    "siftback-rcap": ("this", "Siftback: `RCAP(labels)`"),
    "siftback-rs2": ("this", "Siftback: `RS2()`"),
    "siftback-kakurenbo": ("this", "Siftback: `Kakurenbo()`"),
    "siftback-sb": ("this", "Siftback: Selective-Backprop"),
    "siftback-el2n": ("this", "Siftback: data-diet pruning, its scores charged"),
}


def export(name: str, limit: int | None, path: Path) -> None:
    """Writes a data set of the laboratory so that torch alone can read it."""
    from siftback.lab.data.load import load

    data = load(name, train_limit=limit)
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


def train(name: str, data: Path, seed: int, budget: float) -> dict[str, Any]:
    """One training, in a process of its own."""
    whose = ROWS[name][0]
    python = sys.executable if whose == "this" else str(PEERS / whose / "bin/python")
    environment = dict(os.environ, OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    if whose == "infobatch":
        environment["PYTHONPATH"] = str(PEERS / "InfoBatch")
    method = "plain" if name == "plain-2.7" else name
    command = [python, str(HERE / "train.py"), method, str(data)]
    command += ["--seed", str(seed), "--budget", str(budget)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{name} failed: fetch the peers first, with benchmarks/peers/build.sh")
    return json.loads(done.stdout.splitlines()[-1]) | {"method": name}


def recorded(path: Path) -> list[dict[str, Any]]:
    """The trainings of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


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


def table() -> Iterator[str]:
    """The lines of the table, from the records alone."""
    for path in sorted(RECORDS.glob("*.jsonl")):
        by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in recorded(path):
            by_method[one["method"]].append(one)
        first = by_method["plain"][0]
        seconds = {
            method: statistics.median(one["seconds"] for one in runs)
            for method, runs in by_method.items()
        }
        yield (
            f"**{path.stem}**, {first['examples']:,} training examples, a budget of "
            f"{first['budget']:g} epochs of plain training,"
        )
        yield f"{len(by_method['plain'])} seeds, threads: {first['threads']}."
        yield ""
        yield (
            "| method | test error, % | less plain's, 95 % interval | verdict | spent, epochs | "
            "seconds over plain's | code |"
        )
        yield "|:---|---:|---:|:---|---:|---:|:---|"
        for method in ROWS:
            runs = by_method.get(method)
            if not runs:
                continue
            errors = [one["test_error"] for one in runs]
            spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
            cells = "–, the baseline | –"  # noqa: RUF001
            if method != "plain":
                cells = " | ".join(beside(runs, by_method["plain"]))
            spent = statistics.mean(one["spent"] for one in runs)
            beside_plain = "plain" if ROWS[method][0] == "this" else "plain-2.7"
            ratio = seconds[method] / seconds[beside_plain]
            yield (
                f"| {ROWS[method][1]} | {statistics.mean(errors):.2f} ± {spread:.2f} | "
                f"{cells} | {spent:.2f} | {ratio:.2f} | {runs[0]['code']} |"
            )
        yield ""
        yield from beside_default(by_method)


def with_table(page: str) -> str:
    """A page, with the table between its marks."""
    return put_between(page, MARKS, "\n" + "\n".join(table()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist", help="of the laboratory's image sets")
    parser.add_argument("--limit", type=int, help="train on so many examples, of all classes alike")
    parser.add_argument("--budget", type=float, default=4.0, help="in epochs of plain training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(ROWS), help="separated by commas")
    parser.add_argument("--table", action="store_true", help="write the table, and train nothing")
    asked = parser.parse_args()
    if not asked.table:
        RECORDS.mkdir(parents=True, exist_ok=True)
        stem = asked.data.partition(":")[0]
        path = RECORDS / f"{stem}.jsonl"
        there = {(one["method"], one["seed"]) for one in recorded(path)} if path.exists() else set()
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / f"{stem}.pt"
            export(asked.data, asked.limit, data)
            for seed in range(asked.seeds):
                for name in asked.methods.split(","):
                    if (name, seed) in there:
                        continue
                    found = train(name, data, seed, asked.budget)
                    with path.open("a", encoding="utf-8") as records:
                        records.write(json.dumps(found) + "\n")
                    print(f"{name}, seed {seed}: {found['test_error']:.2f} %", flush=True)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
