"""How much sooner: table 1 of Jiang et al. 2019."""
# ruff: noqa: RUF001 - × is meant.

from collections.abc import Sequence

from siftback.lab.figures.configurations import judged, titled
from siftback.lab.figures.curves import PAPER
from siftback.lab.figures.figure import Cell, Grid, Missing, Range
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import TABLE_1_FACTORS, Axis, pair_seeds, read_runs, speedups
from siftback.lab.records.run_summary import TRADITIONAL

UNITS: dict[Axis, str] = {"seconds": "time", "cost": "cost"}


def table_1(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """Table 1: how much sooner each strategy came near Traditional's final error.

    A cell gives the median over the seeds, the least and the most, as
    :func:`siftback.lab.records.frame.speedups` defines them, in seconds and in cost; it is empty
    where that has none.
    """
    recorded = [comparison for comparison in comparisons if comparison.runs]
    target = f"final {judged(recorded)} of Traditional"
    name, title = "table1", f"Speed-up to near the {target}"
    errors = all(comparison.metric.name == "error" for comparison in recorded)
    columns = ["strategy", "data and model", "seeds", f"{target}, %" if errors else target]
    columns += [f"{unit} to ×{factor:g}" for unit in UNITS.values() for factor in TABLE_1_FACTORS]
    rows: list[list[Cell]] = []
    sentences = []
    for heading, comparison in titled(comparisons):
        runs, metric = read_runs(comparison), comparison.metric
        if (plain := runs[runs.label == TRADITIONAL]).empty:
            continue
        final = float(plain.final.mean())
        by_axis = {axis: speedups(comparison, TABLE_1_FACTORS, axis) for axis in UNITS}
        labels = list(dict.fromkeys(runs.label[runs.selective]))
        for label in labels:
            reached = [faster for axis in UNITS for faster in by_axis[axis][label].values()]
            cells = [None if faster is None else Range(*faster) for faster in reached]
            seeds = str(len(pair_seeds(runs, label, TRADITIONAL)))
            rows.append([label, heading, seeds, final if errors else metric.written(final), *cells])
        # Of those that got nearest, the fastest one in cost, which no machine blurs.
        nearest = TABLE_1_FACTORS[0]
        faster_in_cost = {
            label: faster.median
            for label in labels
            if (faster := by_axis["cost"][label][nearest]) is not None
        }
        goal = f"{nearest:g} times the final {metric.noun} of Traditional"
        if faster_in_cost:
            best = max(faster_in_cost, key=faster_in_cost.__getitem__)
            share = f"1/{faster_in_cost[best]:.2f} of its cost"
            sentences.append(f"{heading}: {best} reaches {goal} at {share}.")
        else:
            sentences.append(f"{heading}: no strategy reaches {goal} in every seed.")
    if not rows:
        why = "No strategy was run beside Traditional. Record some: siftback compare --strategies"
        return Missing(name, title, f"{why} traditional,sb,stale-sb,kath18 --seed 0,1,2")
    return Grid(name, title, sentences, f"{PAPER}, table 1", columns, rows)
