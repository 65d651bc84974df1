"""Rare classes: the errors of rare and of common classes apart, of each strategy."""

import statistics
from collections.abc import Iterator, Sequence

from siftback.lab.figures.describe import Finding
from siftback.lab.figures.titles import argument, task
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import interval, pair_seeds, read_runs, same_budget, signed_interval
from siftback.lab.records.run_summary import TRADITIONAL

GROUPS = ("rare", "common")


def errors(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Final errors of rare and of common classes, each a mean over the classes of its kind.

    Selective configurations have the difference from Traditional of the same budget, seed by seed,
    with its 95 % interval.
    """
    for comparison in comparisons:
        times = int(argument(comparison, "rare", 1))
        if times == 1:
            continue
        runs = read_runs(comparison)
        runs = runs[runs.test_error_rare.notna()]
        for label, group in runs.groupby("label", sort=False):
            baseline = label if label == TRADITIONAL else same_budget(runs, label)
            row = [task(comparison), f"1 in {times}", label, str(len(group))]
            differences = []
            for kind in GROUPS:
                name = f"test_error_{kind}"
                row.append(f"{statistics.mean(group[name]):.2f}")
                pairs = pair_seeds(runs, label, baseline, name) if baseline else []
                if baseline == label or not pairs:
                    row += [None, None]
                    continue
                mean, low, high = interval([error - base for error, base in pairs])
                ends = signed_interval(low, high)
                row += [f"{mean:+.2f}", ends or None]
                differences.append(
                    f"{mean:+.2f} points in {kind} classes" + (f" ({ends})" if ends else "")
                )
            sentence = f"{task(comparison)}, rare classes cut to 1 in {times}: {label} ends at "
            sentence += f"{' and '.join(differences)} beside Traditional of the same budget."
            yield Finding(sentence if differences else "", rows=[row])
