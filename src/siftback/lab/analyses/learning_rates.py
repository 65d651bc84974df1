"""Learning rates compared on held-out training examples, of each method for itself."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from siftback.lab.analyses.configurations import argument, best_end, shared_by, task
from siftback.lab.analyses.figure import Cell, Grid, Missing
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import with_spread
from siftback.lab.records.measures import TRADITIONAL, mean_and_spread, ordered_labels
from siftback.lab.records.metric import Metric

# What may differ between the comparisons at several learning rates.
_VARIED = ("lr", "strategies", "keeps", "seeds", "matched")

Ends = Mapping[float, Sequence[float]]  # final errors or losses of the seeds, by learning rate


def by_rate(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """The final error or loss on held-out examples at each learning rate, by method.

    Comparisons with held-out examples that differ in nothing but the rate belong together; there
    must be two rates or more. A method's rates are compared over the seeds that all of them have.
    """
    name, about = "rates", "Learning rates: the end on held-out examples, of each method"
    columns = ["data and model", "method", "seeds", "error or loss at each rate", "lowest at"]
    together: dict[str, list[Comparison]] = {}
    held_out = [one for one in comparisons if one.runs and argument(one, "validation")]
    for one in sorted(held_out, key=lambda one: (_title(one), _rate(one))):
        together.setdefault(shared_by(one, _VARIED), []).append(one)
    rows: list[list[Cell]] = []
    sentences = []
    for group in together.values():
        title, metric, methods = _title(group[0]), group[0].metric, _methods(group)
        rows += [_row(title, metric, label, ends) for label, ends in methods.items()]
        if (best := _best(title, metric, methods)) is not None:
            sentences.append(best)
    if not rows:
        why = "No method at two learning rates, judged on held-out examples. Record some:"
        return Missing(name, about, f"{why} siftback run rates")
    return Grid(name, about, sentences, "Siftback", columns, rows)


def _methods(group: Sequence[Comparison]) -> dict[str, Ends]:
    """By configuration its ends at each rate, of the seeds that all its rates have."""
    by_seed: dict[str, dict[float, dict[int, float]]] = {}
    for one in group:
        for label in ordered_labels(one):
            ends = {run.seed: run.final for run in one.by_label()[label]}
            by_seed.setdefault(label, {})[_rate(one)] = ends
    found: dict[str, Ends] = {}
    for label, rates in by_seed.items():
        shared = sorted(set.intersection(*map(set, rates.values())))
        if shared and len(rates) > 1:
            found[label] = {rate: [ends[seed] for seed in shared] for rate, ends in rates.items()}
    return found


def _lowest(ends: Ends) -> tuple[float, float]:
    """The lowest mean, and the rate that it is at."""
    return min((fmean(each), rate) for rate, each in ends.items())


def _row(title: str, metric: Metric, label: str, ends: Ends) -> list[Cell]:
    written = [
        f"{rate:g}: {with_spread(mean_and_spread(each), digits=metric.digits)}"
        for rate, each in ends.items()
    ]
    seeds = len(next(iter(ends.values())))
    return [title, label, str(seeds), "; ".join(written), f"{_lowest(ends)[1]:g}"]


def _best(title: str, metric: Metric, methods: Mapping[str, Ends]) -> str | None:
    """The best method beside Traditional, each at the rate at which it ends lowest."""
    ends = {label: _lowest(each) for label, each in methods.items()}
    plain = ends.pop(TRADITIONAL, None)
    if plain is None or not ends:
        return None
    best = min(ends, key=ends.__getitem__)
    end, rate = ends[best]
    about = f"{title}, each at its own best rate"
    return best_end(about, metric, f"{best} at {rate:g}", end, plain[0])


def _rate(comparison: Comparison) -> float:
    return float(argument(comparison, "lr"))


def _title(comparison: Comparison) -> str:
    budget = argument(comparison, "budget")
    length = "" if budget is None else f", {budget:g} epochs"
    return f"{task(comparison)}{length}"
