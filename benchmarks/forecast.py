"""The runs that `siftback.forecast` is fitted on, and its error on a data set that was left out.

``--measure`` trains each case of the recipes `pays` and `map` that has ``Memory()``, by the
recipe's settings, up to the end of its warm-up, and writes the losses that are remembered then, as
means of equal groups of the sorted losses, a file for each case. Cases that have a file are passed
over, and so are budgets of an epoch or less, in which nothing is drawn, and what is not recorded of
`map`. Cases of the recipe `noise` are among them, whose wrong labels show what a forecast must not
promise.

From these files and the budget ratios in ``results/pays`` and ``results/map`` it fits the
coefficient, and shows for each case the forecast of a fit without its data set beside the measured
ratio. All forms of the digits of fonts are one data set, and all data sets count alike in a fit,
however many cases they have. Three kinds of cases are forecast, and not fitted: those of data on
which more epochs make plain training worse, where a ratio says little; those with wrong labels; and
those of more than 4 epochs, of which forecasts were no nearer to what was measured than a ratio of
1. The library forecasts no such length. So are data sets not in `FITTED`.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from scipy.special import stdtrit

from goals import Goal, begin, options, report
from siftback import Memory
from siftback.lab.experiments.comparison import Plan
from siftback.lab.experiments.warm_up import warm_up
from siftback.lab.figures.budget_ratios import BudgetRatio
from siftback.lab.figures.pays import (
    DEFAULT,
    WITHOUT_TAIL,
    Experiment,
    experiments,
    method_ratios,
    ratios_of_default,
    title_of,
)
from siftback.lab.recipes.recipe import Scale, find_recipe
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.environment import environment
from siftback.lab.records.folder import comparison_folders, is_comparison
from siftback.lab.records.tables import markdown
from siftback.lab.strategies.strategy import OWN_SHARE
from siftback.rules.forecast import MOST_EPOCHS, effective_share

TITLE = "Forecasts of the budget ratio of Memory(), each data set left out in turn"
RESULTS = Path(__file__).parents[1] / "results"
FORECAST, RECORDS = RESULTS / "forecast", {"pays": RESULTS / "pays", "map": RESULTS / "map"}
GROUPS = 500
NOISE = ("mnist-0", "mnist-10", "mnist-40", "cifar10-20k-0", "cifar10-20k-20")
CONFIDENCE = 0.9

# Data sets that are recorded later are forecast, and so test it, until they are added.
FITTED = ("mnist", "cifar10", "cifar100", "gtsrb", "imdb", "tinyshakespeare", "fonts")


@dataclass(frozen=True)
class Case:
    """A data set and model at a budget.

    Attributes:
        title: Model, data and budget.
        data: The data set, without its options.
        budget: In epochs of plain training.
        recipe: Where it is recorded.
        share: The effective share of the losses at the end of the warm-up.
        done: Share of the training that is done by then.
        ratio: The measured budget ratio.
        is_fitted: Whether it belongs to the fit.
    """

    title: str
    data: str
    budget: float
    recipe: str
    share: float
    done: float
    ratio: BudgetRatio
    is_fitted: bool

    @cached_property
    def bound(self) -> float:
        """The ratio that there would be if examples that are left out taught nothing.

        At the end of a long training `Memory` trains on everything.
        """
        _, end = Memory().schedule.span(self.budget)
        tail = max(0.0, min(1 - end / self.budget, 1 - self.done))
        return self.done + (1 - self.done - tail) / self.share + tail


def plans() -> Iterator[tuple[str, Plan]]:
    """Yields the name of each case and its plan, short warm-ups first."""
    cases = {
        name: plan
        for recipe, folder in RECORDS.items()
        for name, plan in find_recipe(recipe).plans(Scale.FULL).items()
        if any(f"{rule}@{OWN_SHARE}" in plan.strategies for rule in (DEFAULT, WITHOUT_TAIL))
        and (plan.settings.budget or 0) > 1
        and (recipe == "pays" or is_comparison(folder / f"{recipe}-full" / name))
    }
    for name in sorted(cases, key=lambda name: (float(name.rsplit("-", 1)[1]) > 4, name)):
        yield name, cases[name]
    noisy = find_recipe("noise").plans(Scale.SMALL)
    for name in NOISE:
        yield f"noise-{name}", noisy[name]


def measure(folder: Path) -> None:
    """Writes the losses of each case that has no file yet."""
    for name, plan in plans():
        path = folder / f"{name}.json"
        if path.exists():
            continue
        losses, done = warm_up(plan.settings, plan.seeds[0])
        groups = losses.sort().values.double().tensor_split(GROUPS)
        record = {
            "environment": environment(plan.arguments()),
            "examples": len(losses),
            "done": round(done, 4),
            "losses": [float(f"{group.mean():.4g}") for group in groups],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record) + "\n", encoding="utf-8")
        print(name)


def read_warm_up(path: Path) -> tuple[float, float]:
    """Returns the effective share of the losses of a file, and how much is done by then."""
    record = json.loads(path.read_text(encoding="utf-8"))
    losses = torch.tensor(record["losses"], dtype=torch.float64)
    return effective_share(losses), record["done"]


def read_cases(folder: Path = FORECAST) -> list[Case]:
    """Returns the cases that have losses and a measured ratio, in the order of their titles."""
    comparisons = [
        Comparison.read(folder)
        for records in RECORDS.values()
        for folder in comparison_folders(records)
    ]
    folders = {(title_of(item), item.arguments.get("budget")): item.folder for item in comparisons}
    cases = []
    for method in ratios_of_default(method_ratios(experiments(comparisons))):
        experiment, budget = method.experiment, method.budget
        recorded = folders[experiment.title, budget]
        recipe = "map" if recorded.is_relative_to(RECORDS["map"]) else "pays"
        path = folder / f"{recorded.name}.json"
        if path.exists():
            title = f"{experiment.title}, {budget:g} epochs"
            data = experiment.runs.data.iloc[0].partition(":")[0]
            warmed = read_warm_up(path)
            fits = data in FITTED and budget <= MOST_EPOCHS and not overfits(experiment)
            fits = fits and not method.ratio.flat and "labels wrong" not in title
            cases.append(Case(title, data, budget, recipe, *warmed, method.ratio, fits))
    return cases


def overfits(experiment: Experiment) -> bool:
    """Whether plain training ends lower at some budget than at the largest."""
    means = experiment.means
    return min(means, key=means.__getitem__) < max(means)


def fit(cases: Sequence[Case]) -> float:
    """Returns the slope of log ratio over log bound, by least squares through the origin.

    Only cases that are fitted count, those of a data set as much as one together. A ratio that is
    known to be above a number counts as that number, or as its forecast where this is higher.
    """
    cases = [case for case in cases if case.is_fitted]
    weights = weights_of(cases)
    bounds = [math.log(case.bound) for case in cases]
    slope = 0.0
    for _ in range(100):  # until what is only known to be higher stays
        logs = [log_ratio(case, slope) for case in cases]
        products = zip(weights, logs, bounds, strict=True)
        squares = zip(weights, bounds, strict=True)
        before = slope
        slope = sum(weight * log * bound for weight, log, bound in products) / sum(
            weight * bound**2 for weight, bound in squares
        )
        if slope == before:
            break
    return slope


def weights_of(cases: Sequence[Case]) -> list[float]:
    """Returns a weight for each case: 1 over the number of cases of its data set."""
    counts = Counter(case.data for case in cases)
    return [1 / counts[case.data] for case in cases]


def log_ratio(case: Case, slope: float) -> float:
    """Returns the log of a measured ratio; of one beyond a number, its forecast if beyond too."""
    measured, forecast = math.log(case.ratio.ratio.value), slope * math.log(case.bound)
    ends = {"below": min(measured, forecast), "at": measured, "above": max(measured, forecast)}
    return ends[case.ratio.ratio.side]


def fit_without(case: Case, cases: Sequence[Case]) -> float:
    """Returns the slope of a fit without the data set of a case."""
    return fit([other for other in cases if other.data != case.data])


def spread_of(cases: Sequence[Case]) -> float:
    """Returns the factor up and down to the ends of an interval.

    ``exp(t * s)``, s being the root of the mean square of log ratio less log forecast, each by a
    fit without the case's data set, and t the quantile of Student's t with as many degrees of
    freedom as there are data sets, less one: the errors on a data set are much alike.
    """
    cases = [case for case in cases if case.is_fitted]
    slopes = {case.data: fit_without(case, cases) for case in cases}
    errors = [error_of(case, slopes[case.data]) for case in cases]
    quantile = float(stdtrit(len(slopes) - 1, (1 + CONFIDENCE) / 2))
    return math.exp(quantile * typical(errors, weights_of(cases)))


def typical(errors: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the root of the weighted mean square."""
    return math.sqrt(statistics.fmean([error**2 for error in errors], weights))


def error_of(case: Case, slope: float) -> float:
    """Returns log ratio less log forecast."""
    return log_ratio(case, slope) - slope * math.log(case.bound)


class Told(NamedTuple):
    """The forecast of a case by a fit without its data set.

    Attributes:
        ratio: The forecast.
        spread: Factor up and down to the ends of its interval.
        error: Log measured ratio less log forecast.
    """

    ratio: float
    spread: float
    error: float

    @property
    def is_within(self) -> bool:
        """Whether the measured ratio lies in the interval."""
        return abs(self.error) <= math.log(self.spread)


def told(case: Case, cases: Sequence[Case]) -> Told:
    """Returns the forecast of a case."""
    others = [other for other in cases if other.data != case.data]
    slope = fit(others)
    return Told(case.bound**slope, spread_of(others), error_of(case, slope))


def rows_of(cases: Sequence[Case]) -> Iterator[Goal]:
    """Yields the ratio of what was measured to the forecast of each case, and typical ones."""
    for case in cases:
        if case.ratio.flat:
            continue
        forecast, goal = told(case, cases), "within the interval" if case.is_fitted else ""
        setting = f"{case.title}{'' if case.is_fitted else ', not fitted'}"
        error, is_met = math.exp(forecast.error), forecast.is_within if goal else None
        yield Goal(setting, "forecast", forecast.ratio)
        yield Goal(setting, "measured over forecast", error, goal, is_met)
    fitted = [case for case in cases if case.is_fitted]
    errors = {
        "the forecast": [told(case, cases).error for case in fitted],
        "a forecast of 1": [error_of(case, 0.0) for case in fitted],
    }
    for name, of_cases in errors.items():
        factor = math.exp(typical(of_cases, weights_of(fitted)))
        yield Goal(f"typical error of {name}", "factor", factor)


def table_of(cases: Sequence[Case]) -> str:
    """Returns the table of the documentation: the forecast of each case and what was measured.

    Without the map's, of which there are too many.
    """
    rows = []
    for case in cases:
        if case.recipe == "map":
            continue
        forecast, measured = told(case, cases), case.ratio
        low, high = forecast.ratio / forecast.spread, forecast.ratio * forecast.spread
        rows.append(
            {
                "model, data and budget": case.title,
                "effective share": f"{case.share:.2f}",
                "forecast": f"{forecast.ratio:.2f} ({low:.2f} to {high:.2f})",
                "measured": "flat" if measured.flat else f"{measured} ({measured.interval})",
                "fitted": "yes" if case.is_fitted else "no",
            }
        )
    return markdown(rows)


def main() -> None:
    parser = options(__doc__, quick="nothing less: it reads records")
    parser.add_argument("--measure", action="store_true", help="train what has no file yet")
    parser.add_argument("--out", type=Path, default=FORECAST, help="folder of the files")
    asked = begin(parser)
    if asked.measure:
        measure(asked.out)
    cases = read_cases(asked.out)
    print(f"SLOPE, SPREAD = {fit(cases):.3g}, {spread_of(cases):.3g}")
    print(table_of(cases))
    report(TITLE, [*rows_of(cases)], asked)


if __name__ == "__main__":
    main()
