"""How much sooner: table 1 of Jiang et al. 2019."""
# ruff: noqa: RUF001 - × is meant.

from collections.abc import Sequence

from siftback.lab.analyses.configurations import configurations, judged, titled, traditional
from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Cell, Grid, Missing, Range
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import (
    MATCHED,
    TABLE_1_FACTORS,
    TRADITIONAL,
    Axis,
    pairs,
    speedups,
)

UNITS: dict[Axis, str] = {"seconds": "time", "cost": "cost"}


def table_1(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """Table 1: how much sooner each strategy came near Traditional's final error.

    A cell gives the median over the seeds, the least and the most, as
    :func:`siftback.lab.records.measures.speedups` defines them, in seconds and in cost; it is empty
    where that has none.
    """
    held = [one for one in comparisons if one.runs]
    target = f"final {judged(held)} of Traditional"
    name, title = "table1", f"Speed-up to near the {target}"
    errors = all(one.metric.name == "error" for one in held)
    ends = f"{target}, %" if errors else target
    columns = ["strategy", "data and model", "seeds", ends]
    columns += [f"{unit} to ×{factor:g}" for unit in UNITS.values() for factor in TABLE_1_FACTORS]
    rows: list[list[Cell]] = []
    sentences = []
    for heading, comparison in titled(comparisons):
        found = configurations(comparison)
        plain = traditional(found)
        if plain is None:
            continue
        best: tuple[str, float] | None = None
        by_axis = [speedups(comparison, TABLE_1_FACTORS, axis) for axis in UNITS]
        for one in found:
            if one.label == TRADITIONAL or one.strategy == MATCHED:
                continue
            reached = [factor for by_label in by_axis for factor in by_label[one.label].values()]
            cells = [None if factor is None else Range(*factor) for factor in reached]
            seeds = str(len(pairs(comparison, one.label, TRADITIONAL)))
            end = plain.final if errors else plain.metric.written(plain.final)
            rows.append([one.label, heading, seeds, end, *cells])
            # Of those that got nearest, the fastest one in cost, which no machine blurs.
            in_cost = reached[len(TABLE_1_FACTORS)]
            if in_cost is not None and (best is None or in_cost.median > best[1]):
                best = one.label, in_cost.median
        goal = f"{TABLE_1_FACTORS[0]:g} times the final {plain.metric.noun} of Traditional"
        if best is None:
            sentences.append(f"{heading}: no strategy reaches {goal} in every seed.")
        else:
            label, faster = best
            sentences.append(f"{heading}: {label} reaches {goal} at 1/{faster:.2f} of its cost.")
    if not rows:
        why = "No strategy was run beside Traditional. Record some: siftback compare --strategies"
        return Missing(name, title, f"{why} traditional,sb,stale-sb,kath18 --seed 0,1,2")
    return Grid(name, title, sentences, f"{PAPER}, table 1", columns, rows)
