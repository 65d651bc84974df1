"""What `test_benchmarks` looks at, done in one process: ``python this OUT PART``.

It is none of pytest's, as a module beside ``gpu.py`` is named transformers. Of the parts, imports
imports each benchmark and joins runs; steps and budgets call ``gpu.py`` as from the command line,
the last one with the options that follow.
"""

import json
import runpy
import sys
from pathlib import Path

import written_records as written
from siftback.lab.experiments.comparison import Plan
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.settings import Settings

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.rglob("*.py"))
QUICK = ("--device", "cpu", "--quick")


def import_all():
    """Imports every script from its own folder; gives which."""
    path = list(sys.path)
    for script in SCRIPTS:
        sys.path[:] = [str(script.parent), *path]
        runpy.run_path(str(script), run_name="imported")
    sys.path[:] = path
    return [str(script.relative_to(FOLDER)) for script in SCRIPTS]


def errors_of_joined(out):
    """The errors of two strategies, of which one was trained again in a folder of its own."""
    import gpu

    settings = Settings(data="digits", model="cnn", budget=4.0)
    plan = Plan(settings, ["traditional", "sb"], [1.0], [0])
    of_before = written.comparison(out / "whole")
    written.add(of_before, "traditional", [(1.0, 1, 1.0, 50.0)])
    written.add(of_before, "sb", [(1.0, 1, 1.0, 40.0)])
    written.add(written.comparison(out / "part"), "traditional", [(1.0, 1, 1.0, 30.0)])
    gpu.join_runs(plan, out / "whole", [out / "part"])
    return {run.strategy: run.test_error_final for run in Comparison.read(out / "whole").runs}


def call(*arguments):
    """Calls ``gpu.py`` at its smallest."""
    import gpu

    sys.argv[1:] = [*QUICK, *map(str, arguments)]
    gpu.main()


def train_budgets(out, *options):
    """Calls it for runs of a recipe when there is no time for any, and then with time."""
    budgets = ("--budgets", "--folder", out, "--processes", "2", *options)
    call(*budgets, "--minutes", "0")
    call(*budgets)


def main(out, part, *options):
    sys.path.insert(0, str(FOLDER))
    if part == "imports":
        (out / "imported.json").write_text(json.dumps(import_all()))
        (out / "joined.json").write_text(json.dumps(errors_of_joined(out)))
    elif part == "steps":
        call("--json", out / "steps.json")
    else:
        train_budgets(out, *options)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
