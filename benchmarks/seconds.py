"""Seconds of a step by `Memory()` over those of a plain step, in turns within one run.

A budget counts forwards and backwards, of which a step of either has as many. What choosing takes
besides is in the seconds: the draws, the examples of a batch in another order, and the losses that
are remembered. Each case is a task of the recipe `pays` at its middle budget, on fewer examples.
Both trainings are of the same settings, and go on in turns, some steps at a time, so that what else
the machine does slows both alike. The time is that from one batch to the next, tests of the model
not counted; the median is taken over the turns after the warm-up, in which nothing is drawn.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch

from goals import Goal, begin, options, report
from siftback.lab.experiments.comparison import Plan, prepare_data
from siftback.lab.figures.pays import DEFAULT
from siftback.lab.recipes.recipe import Scale, find_recipe
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.report.front import BUDGET
from siftback.lab.run.train import Training

TITLE = "Seconds of a step by Memory() over those of a plain step, in turns"
KEEP = 0.5
EXAMPLES, STEPS, TURNS, WARMED = 6000, 5, 30, 0.25


def cases() -> dict[str, Plan]:
    """Returns the plans of the recipe that have both at the middle budget, by name."""
    return {
        name: plan
        for name, plan in find_recipe("pays").plans(Scale.FULL).items()
        if plan.settings.budget == BUDGET and f"{DEFAULT}@{KEEP:g}" in plan.strategies
    }


def turns(plan: Plan) -> Iterator[tuple[float, float]]:
    """Yields the seconds of a few steps of plain training, and of as many by `Memory()`."""
    settings = replace(plan.settings, train_limit=EXAMPLES, device="cpu", evaluations=1)
    strategies = [TRADITIONAL, f"{DEFAULT}@{KEEP:g}"]
    plan = Plan(settings, strategies, [KEEP], [0], matched=False)
    data = prepare_data(plan)
    both = [Training(run, settings, data) for run in plan.runs()]
    steps = [training.steps(lambda done: None) for training in both]
    made = 0
    while made < TURNS and all(training.done < 1 for training in both):
        spent = []
        for training_steps in steps:
            started = time.perf_counter()
            count = sum(1 for _ in islice(training_steps, STEPS))
            spent.append(time.perf_counter() - started if count == STEPS else 0.0)
        if all(spent) and both[0].done > WARMED:
            made += 1
            yield spent[0], spent[1]
    for training in both:
        training.batches.close()


def main() -> None:
    """Prints the table."""
    parser = options(__doc__.partition("\n")[0], "the first case alone")
    parser.add_argument("--only", choices=cases(), help="one of the cases")
    asked = begin(parser)
    torch.set_num_threads(asked.threads or 1)
    names = [asked.only] if asked.only else list(cases())[: 1 if asked.quick else None]
    rows = []
    for name in names:
        measured = list(turns(cases()[name]))
        plain, chosen = (statistics.median(spent) / STEPS for spent in zip(*measured, strict=True))
        over = statistics.median(second / first for first, second in measured)
        settings = cases()[name].settings
        setting = f"{settings.model_name} on {settings.data}"
        rows.append(Goal(setting, "plain, ms a step", 1000 * plain))
        rows.append(Goal(setting, "Memory(), ms a step", 1000 * chosen))
        rows.append(Goal(setting, "over plain", over, "at most 1.03", over <= 1.03))
        print(name, f"{over:.3f}", flush=True)
    report(TITLE, rows, asked)


if __name__ == "__main__":
    main()
