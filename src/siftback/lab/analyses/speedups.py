"""How much sooner: table 1 of Jiang et al. 2019."""
# ruff: noqa: RUF001 - × is meant.

import statistics
from collections.abc import Sequence

from siftback.lab.analyses.configurations import configurations, judged, titled, traditional
from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Cell, Grid, Missing, Range
from siftback.lab.analyses.findings import BestSpeedUp
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import (
    MATCHED,
    TABLE_1_FACTORS,
    TRADITIONAL,
    Axis,
    crossing,
    pairs,
)

UNITS: dict[Axis, str] = {"seconds": "time", "cost": "cost"}


def table_1(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """Table 1: how much sooner each strategy came near Traditional's final error.

    For each seed, with target e = factor x Traditional's final error of that seed, what
    Traditional needed for e over what the strategy needed, both by `crossing`. A cell gives the
    median over the seeds, the least and the most; it is empty where a seed did not reach e, and
    for time where the two were measured on different machines.
    """
    held = [one for one in comparisons if one.runs]
    target = f"final {judged(held)} of Traditional"
    name, title = "table1", f"Speed-up to near the {target}"
    errors = all(one.metric.name == "error" for one in held)
    ends = f"{target}, %" if errors else target
    columns = ["strategy", "data and model", "seeds", ends]
    columns += [f"{unit} to ×{factor:g}" for unit in UNITS.values() for factor in TABLE_1_FACTORS]
    rows: list[list[Cell]] = []
    findings = []
    for heading, comparison in titled(comparisons):
        found = configurations(comparison)
        plain = traditional(found)
        if plain is None:
            continue
        best: tuple[str, float] | None = None
        for one in found:
            if one.label == TRADITIONAL or one.strategy == MATCHED:
                continue
            faster = [
                speedup(comparison, one.label, factor, axis)
                for axis in UNITS
                for factor in TABLE_1_FACTORS
            ]
            seeds = str(len(pairs(comparison, one.label, TRADITIONAL)))
            end = plain.final if errors else plain.metric.written(plain.final)
            rows.append([one.label, heading, seeds, end, *faster])
            # Of those that got nearest, the fastest one in cost, which no machine blurs.
            in_cost = faster[len(TABLE_1_FACTORS)]
            if in_cost is not None and (best is None or in_cost.middle > best[1]):
                best = one.label, in_cost.middle
        findings.append(BestSpeedUp(heading, TABLE_1_FACTORS[0], best, plain.metric.name))
    if not rows:
        why = "No strategy was run beside Traditional. Record some: siftback compare --strategies"
        return Missing(name, title, f"{why} traditional,sb,stale-sb,kath18 --seed 0,1,2")
    return Grid(name, title, findings, f"{PAPER}, table 1", columns, rows)


def speedup(
    comparison: Comparison, label: str, factor: float, axis: Axis = "seconds"
) -> Range | None:
    """Median, least and most over the seeds of how much sooner a target was reached.

    Args:
        comparison: The runs.
        label: The configuration.
        factor: Multiple of Traditional's final error.
        axis: What is counted on the way.

    Returns:
        None where a seed that both ran did not reach it, or there is none.
    """
    if axis == "seconds" and comparison.machine(label) != comparison.machine(TRADITIONAL):
        return None
    ratios = []
    for run, plain in pairs(comparison, label, TRADITIONAL):
        target, metric = factor * plain.final, plain.metric
        needed = crossing(comparison.evaluations(run), target, axis, metric)
        plain_needed = crossing(comparison.evaluations(plain), target, axis, metric)
        if not needed or not plain_needed:
            return None
        ratios.append(plain_needed / needed)
    return Range(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None
