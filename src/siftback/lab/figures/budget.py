"""Whether selection paid: our own analyses of error at the same budget, and of cost.

Errors are of all examples, where a share of the labels is wrong, and of rare classes apart; and
at several learning rates on held-out training examples, of each method for itself.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.curves import best_end, mean_curves, read_curves
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.titles import group_by_settings, task, titled
from siftback.lab.records import frame
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import TRADITIONAL, Metric
from siftback.lab.strategies.table import PLAIN, library_name


def difference(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The difference in final error or loss from plain training of the same budget, with interval.

    Seed by seed, in percentage points or nats, negative where selection is better; the interval is
    Student's t over the seeds, of 95 %, and one seed has none.
    """
    for heading, comparison in titled(comparisons):
        runs, metric = frame.read_runs(comparison), comparison.metric
        series, over_seeds = [], {}
        for run in runs[runs.selective].drop_duplicates("label").itertuples():
            if not (baseline := frame.same_budget(runs, run.label)):
                continue
            differences = frame.paired_differences(runs, run.label, baseline)
            mean, low, high = frame.interval(differences)
            lower, upper = ([], []) if math.isnan(low) else ([low], [high])
            name = library_name(run.label)
            series.append(Series(name, [name], [mean], lower, upper, run.family))
            if len(differences) > 1:
                over_seeds[name] = differences
        if series:
            label = f"difference in final {metric.noun} ({metric.plural})"
            panel = Panel(heading, "strategy", label, "points", series)
            sentence = _sentence(heading, over_seeds, metric)
            yield Finding(sentence, metric.noun, {"strategy": [panel]})


def _sentence(heading: str, differences: Mapping[str, Sequence[float]], metric: Metric) -> str:
    if not differences:
        return f"{heading}: one seed each, which has no spread."
    counts, digits = frame.tally(map(frame.judge, differences.values())), metric.digits
    ends = [(name, *frame.interval(values), len(values)) for name, values in differences.items()]
    name, mean, low, high, seeds = min(ends, key=lambda end: (math.isnan(end[1]), end[1]))
    within = frame.signed_interval(low, high, digits) or "none"
    return (
        f"{heading}: beside {PLAIN} of the same budget {counts}; the lowest, {name}, is at "
        f"{mean:+.{digits}f} {metric.points} (95 % interval {within}, {seeds} seeds)."
    )


def noisy_ends(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Returns the ends of all selective configurations, at several shares of wrong labels.

    Each beside plain training of the same budget, seed by seed. Data sets that no comparison made
    wrong labels of are left out.

    Returns:
        Of each its ``task``, the share of ``wrong`` labels and its ``label``; how many ``seeds``
        both have; plain training's mean end with its unit, ``baseline``, the configuration's
        ``difference`` from it, and the ends of the ``interval`` of that, NaN for one seed; whether
        a guard held examples back, ``guarded``; the share of wrong labels among its suspects,
        ``precision``, and of suspects among the wrong labels, ``recall``, NaN if not known.
    """
    ends = []
    for comparison in with_wrong_labels(comparisons):
        runs = frame.read_runs(comparison)
        for label, group in runs[runs.selective].groupby("label", sort=False):
            baseline = frame.same_budget(runs, label)
            if not baseline or not (pairs := frame.pair_seeds(runs, label, baseline, "final")):
                continue
            mean, low, high = frame.interval([end - base for end, base in pairs])
            # Without suspects there is no precision, without wrong labels no recall.
            precision = (group.suspects_wrong / group.suspects)[group.suspects > 0].mean()
            recall = (group.suspects_wrong / group.labels_wrong)[group.labels_wrong > 0].mean()
            end = {
                "task": task(comparison),
                "wrong": float(comparison.arguments.get("flip", 0.0)),
                "label": label,
                "seeds": len(pairs),
                "baseline": comparison.metric.written(statistics.mean(base for _, base in pairs)),
                "difference": mean,
                "interval": (low, high),
                "guarded": bool(group.suspects.notna().iloc[0]),
                "precision": precision,
                "recall": recall,
            }
            ends.append(end)
    return sorted(ends, key=lambda end: (end["task"], end["wrong"]))


def ends_by_noise(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Final errors at several shares of wrong labels, and precision and recall of the suspects."""
    for end in noisy_ends(comparisons):
        rates = [f"{end[name]:.2f}" if end[name] >= 0 else None for name in ("precision", "recall")]
        difference, within = f"{end['difference']:+.2f}", frame.signed_interval(*end["interval"])
        name = library_name(end["label"])
        row = [end["task"], f"{end['wrong']:.0%}", name, str(end["seeds"])]
        row += [end["baseline"], difference, within or None, *rates]
        interval_of = f" (95 % interval {within})" if within else ""
        sentence = (
            f"{end['task']}, {end['wrong']:.0%} of the labels wrong: {name} ends at "
            f"{difference} points{interval_of} beside {PLAIN} of the same budget."
        )
        yield Finding(sentence if end["guarded"] else "", rows=[row])


def with_wrong_labels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons with wrong labels, and of equal settings those without."""
    return [
        comparison
        for group in group_by_settings(comparisons, "flip", "examples")
        if any(comparison.arguments.get("flip") for comparison in group)
        for comparison in group
    ]


def errors_of_rare(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Final errors of rare and of common classes, each a mean over the classes of its kind.

    Selective configurations have the difference from plain training of the same budget, seed by
    seed, with its 95 % interval.
    """
    for comparison in comparisons:
        times = int(comparison.arguments.get("rare", 1))
        if times == 1:
            continue
        runs = frame.read_runs(comparison)
        runs = runs.dropna(subset=["test_error_rare", "test_error_common"])
        for label, group in runs.groupby("label", sort=False):
            baseline = None if label == TRADITIONAL else frame.same_budget(runs, label)
            name = library_name(label)
            row: list[str | None] = [task(comparison), f"1 in {times}", name, str(len(group))]
            differences = []
            for kind in ("rare", "common"):
                error_of = f"test_error_{kind}"
                row.append(f"{statistics.mean(group[error_of]):.2f}")
                pairs = frame.pair_seeds(runs, label, baseline, error_of) if baseline else []
                if not pairs:
                    row += [None, None]
                    continue
                mean, low, high = frame.interval([error - base for error, base in pairs])
                ends = frame.signed_interval(low, high)
                row += [f"{mean:+.2f}", ends or None]
                change = f"{mean:+.2f} points in {kind} classes"
                differences.append(f"{change} ({ends})" if ends else change)
            sentence = f"{task(comparison)}, rare classes cut to 1 in {times}: {name} ends at "
            sentence += f"{' and '.join(differences)} beside {PLAIN} of the same budget."
            yield Finding(sentence if differences else "", rows=[row])


def measured_against_ideal(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Seconds of an epoch beside its cost in forwards and backwards, both over plain training's.

    Scores of the whole set before training are in neither. Means over the seeds, and where they
    lie. Configurations that were measured on another machine than plain training are left out.
    """
    for heading, comparison in titled(comparisons):
        runs = frame.read_runs(comparison)
        if (runs.epochs == 0).any():  # pandas would divide by it without an error
            raise ZeroDivisionError(f"{heading}: a run has no epochs")
        runs["cost"] = (runs.cost_forward_units - runs.cost_scoring) / runs.epochs
        runs["seconds"] = (runs.seconds_train - runs.seconds_scoring) / runs.epochs
        plain = runs[runs.label == TRADITIONAL]
        machine = frame.machine_of(runs, TRADITIONAL)
        groups = {
            library_name(label): group
            for label, group in runs[runs.selective].groupby("label", sort=False)
            if frame.machine_of(runs, label) == machine
        }
        if plain.empty or not groups:
            continue
        shares = [float(group.cost.mean() / plain.cost.mean()) for group in groups.values()]
        seconds = [list(group.seconds / plain.seconds.mean()) for group in groups.values()]
        ideal = Series("ideal", list(groups), shares, group="ideal")
        measured = Series.over_seeds("measured", list(groups), seconds, "measured")
        label = f"share of an epoch of {PLAIN}"
        panel = Panel(heading, "strategy", label, "bars", [ideal, measured])
        over = {
            name: share / least - 1
            for name, share, least in zip(groups, measured.y, ideal.y, strict=True)
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
        series = mean_curves(compared, "epoch", "agreement", by="label")
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


def by_rate(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The final error or loss on held-out examples at each learning rate, by method.

    Comparisons with held-out examples that differ in nothing but the rate belong together; there
    must be two rates or more. A method's rates are compared over the seeds that all of them have.
    """
    held_out = [item for item in comparisons if item.runs and item.arguments.get("validation")]
    held_out.sort(key=lambda item: (rates_title(item), float(item.arguments["lr"])))
    for group in group_by_settings(held_out, "lr"):
        title, metric = rates_title(group[0]), group[0].metric
        runs = pd.concat(
            frame.read_runs(comparison).assign(rate=float(comparison.arguments["lr"]))
            for comparison in group
        )
        lowest: dict[str, tuple[float, float]] = {}
        rows = []
        for label, tried in runs.groupby("label", sort=False):
            ends = tried.pivot_table(index="seed", columns="rate", values="final").dropna()
            if ends.empty or ends.shape[1] < 2:
                continue
            lowest[label] = min((ends[rate].mean(), rate) for rate in ends)
            digits = metric.digits
            written = [f"{r:g}: {frame.mean_and_spread(ends[r]):.{digits}f}" for r in ends]
            name, best_rate = library_name(label), f"{lowest[label][1]:g}"
            rows.append([title, name, str(len(ends)), "; ".join(written), best_rate])
        # The best method beside plain training, each at the rate at which it ends lowest.
        plain, sentence = lowest.pop(TRADITIONAL, None), ""
        if plain and lowest:
            best = min(lowest, key=lowest.__getitem__)
            end, rate = lowest[best]
            name = f"{library_name(best)} at {rate:g}"
            sentence = best_end(f"{title}, each at its own best rate", metric, name, end, plain[0])
        yield Finding(sentence, rows=rows)


def rates_title(comparison: Comparison) -> str:
    """Returns the title of comparisons that differ in their learning rates alone."""
    budget = comparison.arguments.get("budget")
    return task(comparison) + ("" if budget is None else f", {budget:g} epochs")
