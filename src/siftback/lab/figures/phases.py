"""Speed-ups, and where the time goes: table 1, figures 1, 10 and 18 of Jiang et al. 2019."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.curves import read_curves
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import titled
from siftback.lab.length import PHASES
from siftback.lab.records import frame
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import MATCHED, TRADITIONAL
from siftback.lab.strategies.table import PLAIN, library_name


def table_1(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Table 1: how much sooner each strategy came near plain training's final error.

    A cell gives the median over the seeds, the least and the most, as
    :func:`siftback.lab.records.frame.speedups` defines them, in seconds and in cost; it is empty
    where that has none.
    """
    nearest = frame.TABLE_1_FACTORS[0]
    beside = [
        (heading, comparison)
        for heading, comparison in titled(comparisons)
        if TRADITIONAL in comparison.by_label()
    ]
    errors = all(comparison.metric.name == "error" for _, comparison in beside)
    for heading, comparison in beside:
        runs, metric = frame.read_runs(comparison), comparison.metric
        final = float(runs.final[runs.label == TRADITIONAL].mean())
        in_seconds, in_cost = frame.speedups(comparison), frame.speedups(comparison, axis="cost")
        rows, faster_in_cost = [], {}
        for label in runs.label[runs.selective].unique():
            cells = [*in_seconds[label].values(), *in_cost[label].values()]
            seeds = str(len(frame.pair_seeds(runs, label, TRADITIONAL, "seed")))
            end = final if errors else metric.written(final)
            rows.append([library_name(label), heading, seeds, end, *cells])
            if (faster := in_cost[label][nearest]) is not None:
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


def until_near(comparisons: Sequence[Comparison], factor: float) -> Iterator[Finding]:
    """Figures 1 and 10: seconds by phase until a multiple of plain training's final error."""
    for curves in read_curves(comparisons):
        plain = curves.runs[curves.runs.label == TRADITIONAL]
        tests = curves.tests[curves.tests.strategy != MATCHED]
        if plain.empty or not tests.phases[tests.label == TRADITIONAL].iloc[-1]:
            continue
        targets = dict(zip(plain.seed, factor * plain.final, strict=True))
        spent = {
            library_name(label): mean_phases(points, targets)
            for label, points in tests.groupby("label", sort=False)
        }
        reached = {label: phases for label, phases in spent.items() if not phases.empty}
        if len(reached) < 2:
            continue
        series = [
            Series(words, list(reached), seconds, group=words)
            for phase, words in PHASES.items()
            if any(seconds := [phases[phase] for phases in reached.values()])
        ]
        baseline, *others = reached
        fastest = min(others, key=lambda label: float(reached[label].sum()))
        took = []
        for label, verb in ((fastest, "took "), (baseline, "")):
            total = reached[label].sum()
            share = reached[label].backward / total
            took.append(f"{label} {verb}{total:.1f} s, {share:.0%} of it backward")
        sentence = f"{curves.title}: {', and '.join(took)}."
        if short := ", ".join(label for label in spent if label not in reached):
            sentence += f" Not reached in every seed: {short}."
        panel = Panel(curves.title, "strategy", "seconds of training", "stacked", series)
        yield Finding(sentence, curves.metric.noun, {"time": [panel]})
        if (device := curves.comparison.environment.get("device", "cpu")) != "cpu":
            yield Finding(f"On {device} the phases are those of the host, which runs ahead of it.")


def mean_phases(points: pd.DataFrame, targets: Mapping[int, float]) -> "pd.Series[float]":
    """Computes the seconds by phase until the error, or loss, passed a target, as `crossing` does.

    Args:
        points: The evaluations of a configuration, as `read_evaluations` returns them.
        targets: By seed.

    Returns:
        Means over the seeds that have a target; empty where one fell short, or has no phases.

    >>> phases = [{"forward": 0.5, "backward": 1.5}, {"forward": 1.5, "backward": 4.5}]
    >>> points = pd.DataFrame({"record": "", "seed": 0, "judged": [40, 20], "phases": phases})
    >>> mean_phases(points, {0: 30.0})[["forward", "backward"]].to_dict()
    {'forward': 1.0, 'backward': 3.0}
    """
    seeds = []
    for _, curve in points[points.seed.isin(list(targets))].groupby("record"):
        number = frame.crossing(list(curve.judged), targets[curve.seed.iloc[0]])
        if math.isnan(number) or not any(curve.phases):
            return pd.Series(dtype=float)
        spent = {name: [phases.get(name, 0.0) for phases in curve.phases] for name in PHASES}
        seeds.append({name: np.interp(number, range(len(curve)), spent[name]) for name in PHASES})
    return pd.DataFrame(seeds).mean()


def forward_and_backward(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 18: seconds of a forward and a backward of one batch, over the models measured."""
    measured: dict[tuple[str, str], pd.Series[float]] = {}
    for heading, comparison in titled(comparisons):
        runs = frame.read_runs(comparison)
        plain = runs[(runs.label == TRADITIONAL) & (runs.steps > 0)]
        plain = plain[plain.seconds_by_phase.astype(bool)]
        # An accelerator's queue is not waited for at every mark of the clock.
        if comparison.environment.get("device", "cpu") == "cpu" and not plain.empty:
            phases = pd.DataFrame(list(plain.seconds_by_phase), index=plain.index)
            by_batch = 1000 * phases.div(plain.steps, axis=0)
            measured[heading, frame.machine_of(runs, TRADITIONAL)] = by_batch.mean()
    if not measured:
        return
    several = len({machine for _, machine in measured}) > 1
    models = [f"{model}, {machine}" if several else model for model, machine in measured]
    means = pd.DataFrame([*measured.values()])
    passes = "forward", "backward"
    series = [Series(phase, models, means[phase].tolist(), group=phase) for phase in passes]
    ratios = (means.backward / means.forward)[means.forward > 0]
    sentence = (
        f"Over {len(models)} models a backward takes {ratios.min():.2f} to {ratios.max():.2f} "
        "times as long as a forward."
    )
    heading, label = PLAIN.capitalize(), "milliseconds per batch"
    yield Finding(sentence, views={"time": [Panel(heading, "model", label, "stacked", series)]})
