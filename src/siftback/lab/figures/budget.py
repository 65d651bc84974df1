"""Whether selection paid: our own analyses of cost, and of error at the same budget."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from siftback.lab.figures.curves import mean_curves, read_curves
from siftback.lab.figures.describe import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import (
    interval,
    judge,
    machine_of,
    paired_differences,
    read_runs,
    same_budget,
    signed_interval,
    tally,
)
from siftback.lab.records.run_summary import TRADITIONAL, Metric


def difference(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The difference in final error or loss from Traditional of the same budget, with interval.

    Seed by seed, in percentage points or nats, negative where selection is better; the interval is
    Student's t over the seeds, of 95 %, and one seed has none.
    """
    for heading, comparison in titled(comparisons):
        runs, metric = read_runs(comparison), comparison.metric
        series, over_seeds = [], {}
        for run in runs[runs.selective].drop_duplicates("label").itertuples():
            if not (baseline := same_budget(runs, run.label)):
                continue
            differences = paired_differences(runs, run.label, baseline)
            mean, low, high = interval(differences)
            lower, upper = ([], []) if math.isnan(low) else ([low], [high])
            series.append(Series(run.label, [run.label], [mean], lower, upper, run.family))
            if len(differences) > 1:
                over_seeds[run.label] = differences
        if series:
            label = f"difference in final {metric.noun} ({metric.plural})"
            panel = Panel(heading, "strategy", label, "points", series)
            sentence = _sentence(heading, over_seeds, metric)
            yield Finding(sentence, metric.noun, {"strategy": [panel]})


def _sentence(heading: str, differences: Mapping[str, Sequence[float]], metric: Metric) -> str:
    counts = tally(map(judge, differences.values()))
    ends = [(label, *interval(values), len(values)) for label, values in differences.items()]
    best = min(ends, key=lambda end: end[1], default=None)
    if best is None:
        return f"{heading}: one seed each, which has no spread."
    digits, (label, mean, low, high, seeds) = metric.digits, best
    within = signed_interval(low, high, digits) or "none"
    return (
        f"{heading}: beside Traditional of the same budget {counts}; the lowest, {label}, is at "
        f"{mean:+.{digits}f} {metric.points} (95 % interval {within}, {seeds} seeds)."
    )


def measured_against_ideal(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Seconds of an epoch beside its cost in forwards and backwards, both over Traditional's.

    Scores of the whole set before training are in neither. Means over the seeds, and where they
    lie. Configurations that were measured on another machine than Traditional are left out.
    """
    for heading, comparison in titled(comparisons):
        runs = read_runs(comparison)
        if (runs.epochs == 0).any():  # pandas would divide by it without an error
            raise ZeroDivisionError(f"{heading}: a run has no epochs")
        runs["cost"] = (runs.cost_forward_units - runs.cost_scoring) / runs.epochs
        runs["seconds"] = (runs.seconds_train - runs.seconds_scoring) / runs.epochs
        plain = runs[runs.label == TRADITIONAL]
        machine = machine_of(runs, TRADITIONAL)
        groups = {
            label: group
            for label, group in runs[runs.selective].groupby("label", sort=False)
            if machine_of(runs, label) == machine
        }
        if plain.empty or not groups:
            continue
        shares = [float(group.cost.mean() / plain.cost.mean()) for group in groups.values()]
        seconds = [list(group.seconds / plain.seconds.mean()) for group in groups.values()]
        ideal = Series("ideal", list(groups), shares, group="ideal")
        measured = Series.over_seeds("measured", list(groups), seconds, "measured")
        label = "share of Traditional's epoch"
        panel = Panel(heading, "strategy", label, "bars", [ideal, measured])
        over = {
            label: share / least - 1
            for label, share, least in zip(groups, measured.y, ideal.y, strict=True)
        }
        least, most = min(over, key=over.__getitem__), max(over, key=over.__getitem__)
        sentence = (
            f"{heading}: {least} takes {over[least]:+.0%} on its ideal time, "
            f"{most} {over[most]:+.0%}."
        )
        yield Finding(sentence, views={"strategy": [panel]})


def agreement_over_training(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Draws the rank correlation (Spearman) of cheap scores with exact ones over training."""
    for heading, _, _, tests in read_curves(comparisons):
        # A point stands at the mean epoch of all seeds, also of those without an agreement there.
        tests["epoch"] = tests.groupby(["label", "number"]).epoch.transform("mean")
        compared = tests.dropna(subset="agreement")
        if compared.empty:
            continue
        series = [
            replace(line, group=line.label) for line in mean_curves(compared, "epoch", "agreement")
        ]
        means = {line.label: statistics.mean(line.y) for line in series}
        least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        sentence = (
            f"{heading}: over training, {most} agrees most ({means[most]:.2f} on average) and "
            f"{least} least ({means[least]:.2f})."
            if len(means) > 1
            else f"{heading}: over training, {most} agrees by {means[most]:.2f} on average."
        )
        panel = Panel(heading, "epoch", "rank correlation", "line", series)
        yield Finding(sentence, views={"epoch": [panel]})
