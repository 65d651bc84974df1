"""Whether selection paid: our own analyses of cost, and of error at the same budget."""

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

from siftback.lab.analyses.configurations import (
    Configuration,
    configurations,
    judged,
    titled,
    traditional,
)
from siftback.lab.analyses.figure import Figure, Missing, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import judgement, mean_and_spread, pairs, same_budget
from siftback.lab.records.metric import Metric
from siftback.lab.records.run_summary import RunSummary

OURS = "Siftback"
CONFIDENCE = 0.95


def difference(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """The difference in final error or loss from Traditional of the same budget, with interval.

    Seed by seed, in percentage points or nats, negative where selection is better; the interval is
    Student's t over the seeds, of 95 %, and one seed has none.
    """
    panels, sentences, shown = [], [], []
    for heading, comparison in titled(comparisons):
        series, sure = [], []
        for one in configurations(comparison):
            baseline = None if one.plain else same_budget(comparison, one.label)
            if baseline is None:
                continue
            both = pairs(comparison, one.label, baseline)
            differences = [run.final - base.final for run, base in both]
            mean, low, high = interval(differences)
            several = len(differences) > 1
            ends = ([low] if several else None), ([high] if several else None)
            series.append(Series(one.label, [one.label], [mean], *ends, group=one.family))
            if several:
                sure.append((one.label, differences))
        if series:
            metric = comparison.metric
            label = f"difference in final {metric.noun} ({metric.plural})"
            panels.append(Panel(heading, "strategy", label, "points", series))
            sentences.append(_sentence(heading, sure, metric))
            shown.append(comparison)
    name, title = "budget", f"Final {judged(shown)} beside Traditional of the same budget"
    if not panels:
        why = "No selective run beside Traditional of the same budget. Record one:"
        return Missing(name, title, f"{why} siftback compare --budget 4 --seed 0,1,2")
    return Figure(name, title, sentences, OURS, {"strategy": panels})


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean of some differences and the ends of its 95 % interval by Student's t.

    ``mean ± t(0.975, n - 1) * s / sqrt(n)``, s being the sample standard deviation.

    Args:
        differences: One per seed; of a single one the ends are NaN.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean, count = statistics.mean(differences), len(differences)
    if count < 2:
        return mean, math.nan, math.nan
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(differences) / math.sqrt(count)
    return mean, mean - half, mean + half


def _sentence(heading: str, sure: Sequence[tuple[str, Sequence[float]]], metric: Metric) -> str:
    outcomes = [judgement(mean_and_spread(differences)) for _, differences in sure]
    found = [(label, *interval(differences), len(differences)) for label, differences in sure]
    best = min(found, key=lambda of: of[1], default=None)
    paid, lost = outcomes.count("paid"), outcomes.count("lost")
    if best is None:
        return f"{heading}: one seed each, which has no spread."
    digits, (label, mean, low, high, seeds) = metric.digits, best
    return (
        f"{heading}: beside Traditional of the same budget {paid} of {len(sure)} paid and {lost} "
        f"did worse; the best, {label}, is at {mean:+.{digits}f} {metric.points} (95 % interval "
        f"{low:+.{digits}f} to {high:+.{digits}f}, {seeds} seeds)."
    )


def measured_against_ideal(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Seconds of an epoch beside its cost in forwards and backwards, both over Traditional's.

    Scores of the whole set before training are in neither. Means over the seeds, and where they
    lie. Configurations that were measured on another machine than Traditional are left out.
    """
    name, title = "ideal", "An epoch's measured time beside its ideal cost"
    panels, sentences = [], []
    for heading, comparison in titled(comparisons):
        found = configurations(comparison)
        plain = traditional(found)
        if plain is None:
            continue
        machine = comparison.machine(plain.label)
        chosen = [
            one for one in found if not one.plain and comparison.machine(one.label) == machine
        ]
        if not chosen:
            continue
        cost, seconds = plain.mean(_cost), plain.mean(_seconds)
        labels = [one.label for one in chosen]
        shares = [one.mean(_cost) / cost for one in chosen]
        ideal = Series("ideal", labels, shares, group="ideal")
        measured = _measured(chosen, seconds)
        panels.append(
            Panel(heading, "strategy", "share of Traditional's epoch", "bars", [ideal, measured])
        )
        over = {
            one.label: share / best - 1
            for one, share, best in zip(chosen, measured.y, ideal.y, strict=True)
        }
        least, most = min(over, key=over.__getitem__), max(over, key=over.__getitem__)
        sentences.append(
            f"{heading}: {least} takes {over[least]:+.0%} on its ideal time, "
            f"{most} {over[most]:+.0%}."
        )
    if not panels:
        why = "No selective run beside Traditional on one machine. Record one:"
        return Missing(name, title, f"{why} siftback compare --strategies traditional,sb")
    return Figure(name, title, sentences, OURS, {"strategy": panels})


def _measured(chosen: Sequence[Configuration], seconds: float) -> Series:
    each = [[_seconds(run) / seconds for run in one.runs] for one in chosen]
    return Series.over_seeds("measured", [one.label for one in chosen], each, "measured")


def _cost(run: RunSummary) -> float:
    return (run.cost_forward_units - run.cost_scoring) / run.epochs


def _seconds(run: RunSummary) -> float:
    return (run.seconds_train - run.seconds_scoring) / run.epochs


def agreement_over_training(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """How cheap scores agree with exact ones over training, by Spearman's rank correlation."""
    name, title = "agreement", "Agreement of cheap scores with the losses of a fresh forward"
    panels, sentences = [], []
    for heading, comparison in titled(comparisons):
        series = [line for one in configurations(comparison) if (line := _agreed(one))]
        if not series:
            continue
        panels.append(Panel(heading, "epoch", "rank correlation", "line", series))
        means = {line.label: statistics.mean(line.y) for line in series}
        least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        sentences.append(
            f"{heading}: over training, {most} agrees most ({means[most]:.2f} on average) and "
            f"{least} least ({means[least]:.2f})."
            if len(means) > 1
            else f"{heading}: over training, {most} agrees by {means[most]:.2f} on average."
        )
    if not panels:
        why = "No run has scores that are not those of a fresh forward. Record some:"
        return Missing(
            name, title, f"{why} siftback compare --strategies traditional,stale-sb,sb-memory"
        )
    return Figure(name, title, sentences, OURS, {"epoch": panels})


def _agreed(one: Configuration) -> Series | None:
    together = zip(*one.curves, strict=False)
    known = [
        (statistics.mean(one.epoch for one in each), seeds)
        for each in together
        if (seeds := [one.agreement for one in each if one.agreement is not None])
    ]
    if not known:
        return None
    epochs = [epoch for epoch, _ in known]
    return Series.over_seeds(one.label, epochs, [seeds for _, seeds in known], one.label)
