"""What ``make demo`` says with other seeds: groups as large as the demo's own, without overlap.

The runs are those of the demo's own command, but for their seeds, and are judged in groups as
``siftback compare`` judges them. The share of the groups whose 95 % interval is clear of zero says
how often a newcomer sees that `Memory()` paid. Seconds are those of the processor, which other
processes disturb least. Runs are kept as lines of a file, and not repeated.
"""

import json
import re
import shlex
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from goals import Goal, begin, options, report
from siftback.lab.experiments.comparison import Plan, compare, prepare_data
from siftback.lab.records.frame import interval
from siftback.lab.records.run_summary import TRADITIONAL, RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import SETTINGS, Run, Settings, parse_setting

MAKEFILE = Path(__file__).parents[1] / "Makefile"
TITLE = "Test errors of the demo's two strategies, and processor seconds, with other seeds"
GROUPS = 20
FIRST = 1000  # so that no seed is the demo's own, or was used to choose its settings


class KeptRuns(Reporter):
    """The error and the seconds of each run, by seed and strategy, and as lines of a file.

    Args:
        path: The file; what it has is there already.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.runs: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def start(self, run: Run, number: int, count: int) -> None:
        """Notes the time."""
        self._started = time.process_time()

    def update(self, done: float) -> None:
        """Notes the time, the last being that of the end of training, before it is tested."""
        self._trained = time.process_time()

    def finish(self, summary: RunSummary) -> None:
        """Keeps a run."""
        run = {
            "seed": summary.seed,
            "strategy": summary.strategy,
            "error": summary.test_error_final,
            "seconds": self._trained - self._started,
        }
        self.runs.append(run)
        print(run, flush=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")

    def of(self, strategy: str, what: str) -> dict[int, float]:
        """Returns what is kept of a strategy's runs, by seed."""
        return {run["seed"]: run[what] for run in self.runs if run["strategy"] == strategy}


def demo_options() -> dict[str, str]:
    """Returns the options of the demo's command by name, as the Makefile has them."""
    makefile = MAKEFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    command = re.search(r"^DEMO := siftback compare (.*)$", makefile, re.MULTILINE)
    assert command is not None, f"{MAKEFILE} has no line DEMO := siftback compare"
    words = shlex.split(command[1])
    names = (name.removeprefix("--").replace("-", "_") for name in words[::2])
    return dict(zip(names, words[1::2], strict=True))


def demo_plan(seeds: list[int]) -> Plan:
    """Returns the demo's runs with other seeds."""
    values: dict[str, Any] = demo_options()
    settings = {name: parse_setting(name, values[name]) for name in values.keys() & SETTINGS}
    return Plan(Settings(**settings), values["strategies"].split(","), [0.33], seeds)


def goals_of(runs: KeptRuns, memory: str, size: int) -> list[Goal]:
    """Returns the results of each whole group, and of all of them."""
    plain, chosen = runs.of(TRADITIONAL, "error"), runs.of(memory, "error")
    seeds = sorted(plain.keys() & chosen.keys())
    rows, clear, groups = [], 0, len(seeds) // size
    for group in (seeds[first : first + size] for first in range(0, groups * size, size)):
        setting = f"seeds {group[0]} to {group[-1]}"
        for name, errors in ((TRADITIONAL, plain), (memory, chosen)):
            mean = statistics.fmean(errors[seed] for seed in group)
            rows.append(Goal(setting, f"{name}, %", mean))
        _, low, high = interval([chosen[seed] - plain[seed] for seed in group])
        clear += high < 0
        rows.append(Goal(setting, "interval, from", low))
        rows.append(Goal(setting, "interval, to", high, "below 0", high < 0))
    every = f"all {groups} groups of {size} seeds"
    rows.append(Goal(every, "intervals below 0", clear, f"{groups}", clear == groups))
    times = [statistics.median(runs.of(name, "seconds").values()) for name in (memory, TRADITIONAL)]
    what, ratio = "processor seconds over plain training's", times[0] / times[1]
    rows.append(Goal(every, what, ratio, "at most 1.05", ratio <= 1.05))
    return rows


def main() -> None:
    """Prints the table."""
    parser = options(__doc__.partition("\n")[0], "two groups")
    parser.add_argument("--out", type=Path, default=Path("runs/demo_seeds.jsonl"))
    parser.add_argument(
        "--read", action="store_true", help="make no run, and report those in --out"
    )
    asked = begin(parser)
    torch.set_num_threads(asked.threads or 1)
    size, runs = len(demo_options()["seed"].split(",")), KeptRuns(asked.out)
    plan = demo_plan([FIRST])
    (memory,) = set(plan.strategies) - {TRADITIONAL}
    if not asked.read:
        data = prepare_data(plan)
        for seed in range(FIRST, FIRST + size * (2 if asked.quick else GROUPS)):
            if seed not in runs.of(memory, "error"):
                # The end alone is judged, so that it alone is tested.
                plan = replace(plan, settings=replace(plan.settings, evaluations=1), seeds=[seed])
                with tempfile.TemporaryDirectory() as folder:
                    compare(plan, Path(folder), runs, data=data)
    report(TITLE, goals_of(runs, memory, size), asked)


if __name__ == "__main__":
    main()
