"""Learning rates compared on held-out training examples, of each method for itself."""

from collections.abc import Iterator, Sequence

import pandas as pd

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.curves import best_end
from siftback.lab.figures.titles import group_by_settings, task
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import mean_and_spread, read_runs
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.strategies.table import library_name


def by_rate(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The final error or loss on held-out examples at each learning rate, by method.

    Comparisons with held-out examples that differ in nothing but the rate belong together; there
    must be two rates or more. A method's rates are compared over the seeds that all of them have.
    """
    held_out = [
        comparison
        for comparison in comparisons
        if comparison.runs and comparison.arguments.get("validation")
    ]
    held_out.sort(key=lambda comparison: (_title(comparison), float(comparison.arguments["lr"])))
    for group in group_by_settings(held_out, "lr"):
        title, metric = _title(group[0]), group[0].metric
        runs = pd.concat(
            read_runs(comparison).assign(rate=float(comparison.arguments["lr"]))
            for comparison in group
        )
        lowest: dict[str, tuple[float, float]] = {}
        rows = []
        for label, tried in runs.groupby("label", sort=False):
            ends = tried.pivot_table(index="seed", columns="rate", values="final").dropna()
            if ends.empty or ends.shape[1] < 2:
                continue
            lowest[label] = min((ends[rate].mean(), rate) for rate in ends)
            written = [
                f"{rate:g}: {mean_and_spread(ends[rate]):.{metric.digits}f}" for rate in ends
            ]
            name, best_rate = library_name(label), f"{lowest[label][1]:g}"
            rows.append([title, name, str(len(ends)), "; ".join(written), best_rate])
        # The best method beside plain training, each at the rate at which it ends lowest.
        plain, sentence = lowest.pop(TRADITIONAL, None), ""
        if plain and lowest:
            best = min(lowest, key=lowest.__getitem__)
            end, rate = lowest[best]
            about_best = f"{title}, each at its own best rate"
            name = f"{library_name(best)} at {rate:g}"
            sentence = best_end(about_best, metric, name, end, plain[0])
        yield Finding(sentence, rows=rows)


def _title(comparison: Comparison) -> str:
    budget = comparison.arguments.get("budget")
    return task(comparison) + ("" if budget is None else f", {budget:g} epochs")
