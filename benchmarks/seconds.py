"""Seconds of a step by each method over those of a plain step, in turns within one run.

A budget counts forwards and backwards. What choosing takes besides is in the seconds: the draws,
the examples of a batch in another order, the losses that are remembered, and of a scoring pass what
its forwards take beyond their cost. So the seconds of a turn are divided by its cost. Each case is
a task of the recipe `pays` at its middle budget, on fewer examples. All trainings are of the same
settings, and go on in turns, some steps at a time, so that what else the machine does slows all
alike. The time is that from one batch to the next, tests of the model not counted; the median is
taken over the turns after the warm-up, in which nothing is selected.
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
from siftback.lab.report.pages import BUDGET
from siftback.lab.run.train import Training
from siftback.lab.strategies.table import library_name

TITLE = "Seconds of a step over those of a plain step of the same cost, in turns"
EXAMPLES, STEPS, TURNS, WARMED = 7500, 5, 30, 0.25


def cases() -> dict[str, Plan]:
    """Returns the plans of the recipe that have `Memory()` at the middle budget, by name."""
    plans = {}
    for name, plan in find_recipe("pays").plans(Scale.FULL).items():
        if plan.settings.budget == BUDGET and DEFAULT in map(strategy_of, plan.strategies):
            settings = replace(plan.settings, train_limit=EXAMPLES, device="cpu", evaluations=1)
            plans[name] = replace(plan, settings=settings, seeds=[0], matched=False)
    return plans


def strategy_of(written: str) -> str:
    """Returns a strategy's name, as a recipe writes it with its share."""
    return written.partition("@")[0]


def turns(plan: Plan) -> Iterator[list[tuple[float, float]]]:
    """Yields the seconds of a few steps by each strategy, and these over their cost."""
    data = prepare_data(plan)
    trainings = [Training(run, plan.settings, data) for run in plan.runs()]
    steps = [training.steps(lambda done: None) for training in trainings]
    made = 0
    while made < TURNS and all(training.done < 1 for training in trainings):
        spent = []
        for training, training_steps in zip(trainings, steps, strict=True):
            started, cost = time.perf_counter(), training.batches.cost
            if sum(1 for _ in islice(training_steps, STEPS)) == STEPS:
                seconds = time.perf_counter() - started
                spent.append((seconds, seconds / (training.batches.cost - cost)))
        if len(spent) == len(trainings) and trainings[0].done > WARMED:
            made += 1
            yield spent
    for training in trainings:
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
        plan = cases()[name]
        setting = f"{plan.settings.model_name} on {plan.settings.data}"
        by_strategy = zip(*turns(plan), strict=True)
        for run, spent in zip(plan.runs(), by_strategy, strict=True):
            seconds, by_cost = (list(values) for values in zip(*spent, strict=True))
            if run.strategy == TRADITIONAL:
                plain = by_cost
                milliseconds = 1000 * statistics.median(seconds) / STEPS
                rows.append(Goal(setting, "plain, ms a step", milliseconds))
                continue
            method = library_name(run.label)
            over = statistics.median(x / y for x, y in zip(by_cost, plain, strict=True))
            print(f"{setting}: {method} {over:.3f}", flush=True)
            goal = ("at most 1.03", over <= 1.03) if run.strategy == DEFAULT else ()
            rows.append(Goal(setting, method, over, *goal))
    report(TITLE, rows, asked)


if __name__ == "__main__":
    main()
