"""The effect of an epoch on everything before the first selection, of all that selects in batches.

Reads the records of the same comparisons made both ways, and trains nothing. Those of before are of
a commit whose default was to select from the first batch on::

    git worktree add ../before 0574667
    python benchmarks/first_epoch.py --before ../before/results

A difference is the final test error less that of Traditional of the same cost, in percentage
points, of all seeds of one configuration; the rows are means over the configurations.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from goals import Goal, begin, options, report
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import comparison_folders, is_comparison
from siftback.lab.report.verdict import Verdict, verdicts
from siftback.lab.strategies.strategy import AN_EPOCH, Strategy
from siftback.lab.strategies.table import find_strategy

TITLE = "Selection after one epoch on everything, beside selection from the first batch on"
RESULTS = Path(__file__).parents[1] / "results"


def waits(strategy: Strategy) -> bool:
    """Whether it begins to select after one epoch, if the settings do not say otherwise."""
    return strategy.selects and strategy.warmup == AN_EPOCH


def changed(before: Path, after: Path) -> Iterator[tuple[Verdict, Verdict]]:
    """The verdicts on each configuration that was trained both ways, from the first batch first."""
    for folder in comparison_folders(before):
        place = folder.relative_to(before)
        if not is_comparison(after / place):
            continue
        both = [Comparison.read(results / place) for results in (before, after)]
        if ["rate_by" in one.environment["arguments"] for one in both] != [False, True]:
            continue  # not the last without a first epoch, and the first with it
        found, then = ({one.label: one for one in verdicts([comparison])} for comparison in both)
        for label, verdict in found.items():
            if label in then and waits(find_strategy(verdict.strategy)):
                yield verdict, then[label]


def goals(pairs: list[tuple[Verdict, Verdict]]) -> Iterator[Goal]:
    """A strategy's mean differences both ways, and how many of its configurations paid."""
    judged = [
        (one, other)
        for one, other in pairs
        if one.difference and other.difference and one.metric == other.metric
    ]
    for name in dict.fromkeys(one.strategy for one, _ in judged):
        own = [pair for pair in judged if pair[0].strategy == name]
        yield Goal(name, "configurations", len(own))
        means: list[float] = []
        for when, place in (("from the first batch", 0), ("after an epoch", 1)):
            found = [pair[place] for pair in own]
            means.append(fmean(one.difference.mean for one in found if one.difference))
            yield Goal(name, f"points beside Traditional, {when}", means[-1])
            yield Goal(name, f"paid, {when}", sum(one.outcome == "paid" for one in found))
        change = means[1] - means[0]
        yield Goal(name, "points that the epoch changes", change, "at most 0", change <= 0)


def main() -> None:
    parser = options(__doc__, quick="as without: nothing is trained")
    parser.add_argument("--before", type=Path, required=True, help="folder of the older records")
    parser.add_argument("--after", type=Path, default=RESULTS, help="that of the newer ones")
    asked = begin(parser)
    report(TITLE, list(goals(list(changed(asked.before, asked.after)))), asked)


if __name__ == "__main__":
    main()
