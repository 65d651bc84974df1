"""What wrong labels cost: each strategy's end beside Traditional's, and what a guard held back."""

import statistics
from collections.abc import Sequence

from siftback.lab.analyses.budget import interval
from siftback.lab.analyses.configurations import argument, shared_by, task
from siftback.lab.analyses.figure import Cell, Grid, Missing
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import TRADITIONAL, pairs, same_budget
from siftback.lab.records.run_summary import RunSummary

# What may differ between the comparisons at several shares of wrong labels.
_VARIED = ("flip", "strategies", "keeps", "seeds", "matched")


def ends(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """Final errors at several shares of wrong labels, and precision and recall of the suspects.

    Every selective configuration beside Traditional of the same budget, seed by seed. Data sets
    that no comparison made wrong labels of are left out.
    """
    name, title = "noise", "Wrong labels: the end beside Traditional's of the same budget"
    columns = ["data and model", "wrong labels", "method", "seeds", "Traditional", "difference"]
    columns += ["95 % interval", "precision", "recall"]
    chosen = [one for one in with_wrong_labels(comparisons) if one.runs]
    chosen.sort(key=lambda one: (task(one), float(argument(one, "flip", 0.0))))
    rows: list[list[Cell]] = []
    sentences = []
    for one in chosen:
        wrong = float(argument(one, "flip", 0.0))
        for label, runs in one.by_label().items():
            baseline = None if label == TRADITIONAL else same_budget(one, label)
            both = pairs(one, label, baseline) if baseline is not None else []
            if not both:
                continue
            mean, low, high = interval([run.final - base.final for run, base in both])
            several = f"{low:+.2f} to {high:+.2f}" if len(both) > 1 else None
            plain = one.metric.written(statistics.mean(base.final for _, base in both))
            head = [task(one), f"{wrong:.0%}", label, str(len(both)), plain]
            rows.append([*head, f"{mean:+.2f}", several, *_found(runs)])
            if runs[0].suspects is not None:
                within = f" (95 % interval {several})" if several else ""
                sentences.append(
                    f"{task(one)}, {wrong:.0%} of the labels wrong: {label} ends at {mean:+.2f} "
                    f"points{within} beside Traditional of the same budget."
                )
    if not rows:
        why = "No run with wrong labels beside Traditional. Record some: siftback run noise"
        return Missing(name, title, why)
    return Grid(name, title, sentences, "Siftback", columns, rows)


def with_wrong_labels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those with wrong labels, and of equal settings those without."""
    noisy = {shared_by(one, _VARIED) for one in comparisons if argument(one, "flip")}
    return [one for one in comparisons if shared_by(one, _VARIED) in noisy]


def _found(runs: Sequence[RunSummary]) -> list[Cell]:
    """Precision and recall of the suspects, means over the runs that have them."""
    precision, recall = [], []
    for run in runs:
        if run.suspects_wrong is None or run.suspects is None:
            continue
        if run.suspects:
            precision.append(run.suspects_wrong / run.suspects)
        if run.labels_wrong:
            recall.append(run.suspects_wrong / run.labels_wrong)
    return [f"{statistics.mean(each):.2f}" if each else None for each in (precision, recall)]
