"""Speed-ups: table 1 of Jiang et al. 2019."""

from collections.abc import Iterator, Sequence

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.titles import titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import TABLE_1_FACTORS, Axis, pair_seeds, read_runs, speedups
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.strategies.table import PLAIN, library_name

AXES: tuple[Axis, ...] = ("seconds", "cost")


def table_1(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Table 1: how much sooner each strategy came near plain training's final error.

    A cell gives the median over the seeds, the least and the most, as
    :func:`siftback.lab.records.frame.speedups` defines them, in seconds and in cost; it is empty
    where that has none.
    """
    nearest = TABLE_1_FACTORS[0]
    beside = [
        (heading, comparison)
        for heading, comparison in titled(comparisons)
        if TRADITIONAL in comparison.by_label()
    ]
    errors = all(comparison.metric.name == "error" for _, comparison in beside)
    for heading, comparison in beside:
        runs, metric = read_runs(comparison), comparison.metric
        final = float(runs.final[runs.label == TRADITIONAL].mean())
        faster_by_axis = [speedups(comparison, TABLE_1_FACTORS, axis) for axis in AXES]
        rows, faster_in_cost = [], {}
        for label in runs.label[runs.selective].unique():
            cells = [faster for axis in faster_by_axis for faster in axis[label].values()]
            seeds = str(len(pair_seeds(runs, label, TRADITIONAL, "seed")))
            end = final if errors else metric.written(final)
            rows.append([library_name(label), heading, seeds, end, *cells])
            if (faster := faster_by_axis[1][label][nearest]) is not None:
                faster_in_cost[label] = faster.median
        # Of those that got nearest, the fastest one in cost, which no machine blurs.
        goal = f"{nearest:g} times the final {metric.noun} of {PLAIN}"
        if faster_in_cost:
            best = max(faster_in_cost, key=faster_in_cost.__getitem__)
            share = f"1/{faster_in_cost[best]:.2f} of its cost"
            sentence = f"{heading}: {library_name(best)} reaches {goal} at {share}."
        else:
            sentence = f"{heading}: no strategy reaches {goal} in every seed."
        yield Finding(sentence, metric.noun, rows=rows)
