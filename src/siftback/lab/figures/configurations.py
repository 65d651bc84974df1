"""The configurations of recorded comparisons, with their curves, as analyses look at them."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import pandas as pd

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import NOUNS
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.records.comparison_record import Comparison, parse_evaluations
from siftback.lab.records.formatting import listed
from siftback.lab.records.frame import Axis, in_order
from siftback.lab.records.run_files import record_lines
from siftback.lab.records.run_summary import (
    MATCHED,
    METRICS,
    TRADITIONAL,
    Evaluation,
    Metric,
    RunSummary,
)

# What can be on the x axis of a curve: the view's name, the field, and what the axis is called.
AXES: dict[str, tuple[Axis, str]] = {
    "time": ("seconds", "training time (s, evaluation apart)"),
    "steps": ("steps", "optimizer steps"),
    "cost": ("cost", "cost (forwards of one example, a backward being 2)"),
}


@dataclass(frozen=True, eq=False)
class Configuration:
    """The runs of one strategy and keep, one per seed.

    Attributes:
        comparison: The comparison it is of.
        label: Its name, as `RunSummary.label` gives it.
        runs: One per seed.
        curves: The evaluations of each run, in the order of the runs.
    """

    comparison: Comparison
    label: str
    runs: Sequence[RunSummary]
    curves: Sequence[Sequence[Evaluation]]

    @property
    def strategy(self) -> str:
        """Its strategy's name."""
        return self.runs[0].strategy

    @property
    def family(self) -> str:
        """Its strategy without its interval: ``stale-sb`` for ``stale-sb-5``."""
        return self.runs[0].family

    @property
    def plain(self) -> bool:
        """Whether it trains on everything, be it for less long."""
        return self.strategy in (TRADITIONAL, MATCHED)

    def mean(self, value: Callable[[RunSummary], float]) -> float:
        """The mean of something over the seeds."""
        return statistics.mean(map(value, self.runs))

    @property
    def metric(self) -> Metric:
        """The measure of its runs."""
        return METRICS[self.runs[0].metric]

    @property
    def final(self) -> float:
        """The mean of what it is judged by at the end: test error in percent, or test loss."""
        return self.mean(lambda run: run.final)


def configurations(comparison: Comparison) -> list[Configuration]:
    """The configurations of a comparison, Traditional first, each before its matched run."""
    return [
        Configuration(comparison, label, runs, [_curve(comparison, run) for run in runs])
        for label, runs in (
            (label, list(runs))
            for label, runs in groupby(in_order(comparison.runs), attrgetter("label"))
        )
    ]


def traditional(configurations: Iterable[Configuration]) -> Configuration | None:
    """Traditional among some configurations."""
    return next((config for config in configurations if config.label == TRADITIONAL), None)


def judged(judgeable: Iterable[Comparison] | Iterable[Configuration]) -> str:
    """Returns the noun of their measure for titles: error, loss, or error or loss."""
    nouns = {item.metric.noun for item in judgeable}
    return " or ".join(sorted(nouns)) or METRICS["error"].noun


def best_end(
    title: str, metric: Metric, label: str, end: float, baseline: float | None, share: str = ""
) -> str:
    """Says how the best configuration ends, beside Traditional where that was run.

    Args:
        title: The comparison.
        metric: What it is judged by.
        label: The best configuration.
        end: Its final error or loss.
        baseline: Traditional's.
        share: What it spent of what Traditional did.
    """
    beside = "" if baseline is None else f", traditional at {metric.written(baseline)}{share}"
    return f"{title}: {label} ends at {metric.written(end)}{beside}."


def argument(comparison: Comparison, name: str, otherwise: Any = None) -> Any:
    """Returns the value of a setting of a comparison."""
    return (comparison.environment.get("arguments") or {}).get(name, otherwise)


def group_by_settings(
    comparisons: Iterable[Comparison], varied: Iterable[str]
) -> dict[str, list[Comparison]]:
    """Returns the comparisons of equal settings together, in their order.

    Args:
        comparisons: The comparisons.
        varied: Names of the settings that may differ.
    """
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        settings = comparison.environment.get("arguments") or {}
        shared = {key: value for key, value in settings.items() if key not in varied}
        key = json.dumps(shared, sort_keys=True, default=str)
        groups.setdefault(key, []).append(comparison)
    return groups


def titled(comparisons: Iterable[Comparison]) -> list[tuple[str, Comparison]]:
    """The comparisons that hold a run, each with a title of its own.

    It names model, data and the share of wrong labels; where that is not enough, of how many
    examples, the learning rates, the batches, and last the folder.
    """
    recorded = [comparison for comparison in comparisons if comparison.runs]
    titles = [_what(comparison) for comparison in recorded]
    for detail in (images, _rates, _batches, _folder, _place):
        seen: dict[str, set[str]] = {}
        for title, comparison in zip(titles, recorded, strict=True):
            seen.setdefault(title, set()).add(detail(comparison))
        titles = [
            title + detail(comparison) if len(seen[title]) > 1 else title
            for title, comparison in zip(titles, recorded, strict=True)
        ]
    return list(zip(titles, recorded, strict=True))


def curve(configuration: Configuration, axis: Axis, group: str | None = None) -> Series:
    """Mean test error, or loss, over what was spent, and between which ends the seeds lie.

    The k-th point is the mean over the seeds' k-th evaluations, of it and of what was spent.
    """
    together = list(zip(*configuration.curves, strict=False))
    return Series.over_seeds(
        configuration.label,
        [
            statistics.mean(float(getattr(evaluation, axis)) for evaluation in evaluations)
            for evaluations in together
        ],
        [
            [getattr(evaluation, configuration.metric.field) for evaluation in evaluations]
            for evaluations in together
        ],
        configuration.family if group is None else group,
        faint=configuration.strategy == MATCHED,
    )


def mean_curve(points: pd.DataFrame, x: str, y: str, group: str, faint: bool = False) -> Series:
    """Returns a column's mean over the seeds over another's, and between which ends the seeds lie.

    Args:
        points: The evaluations of one configuration, as `read_evaluations` returns them. The k-th
            point of the curve is of the seeds' k-th evaluations.
        x: The column that is the x axis.
        y: The column that is the y axis.
        group: What the curve belongs to.
        faint: Whether it stands back.
    """
    shortest = points.groupby("record").number.max().min()
    together = points[points.number <= shortest].groupby("number")
    seeds = [list(values) for _, values in together[y]]
    return Series.over_seeds(points.label.iloc[0], list(together[x].mean()), seeds, group, faint)


def curve_panel(
    title: str, group: Sequence[Configuration], view: str, by_label: bool = False
) -> Panel:
    """Test error, or loss, of several configurations over what was spent.

    Args:
        title: Of the panel.
        group: The configurations.
        view: What is on the x axis, a name of `AXES`.
        by_label: Whether each has a colour of its own, in place of one per strategy.
    """
    axis, name = AXES[view]
    series = [curve(config, axis, config.label if by_label else None) for config in group]
    positive = all(value > 0 for line in series for value in line.y)
    return Panel(title, name, group[0].metric.axis, "line", series, log_y=positive)


def _what(comparison: Comparison) -> str:
    wrong = argument(comparison, "flip", 0.0)
    noise = f", {wrong:.0%} of the labels wrong" if wrong else ""
    return f"{setup(comparison)}{noise}"


def setup(comparison: Comparison) -> str:
    """Returns model and data in words."""
    runs = comparison.runs
    return f"{listed(run.model for run in runs)} on {listed(run.data for run in runs)}"


def task(comparison: Comparison) -> str:
    """Returns model and data in words, and the number of examples where not all."""
    return f"{setup(comparison)}{images(comparison)}"


def images(comparison: Comparison) -> str:
    """Returns the number of training examples for the end of a name; empty for all."""
    limit = argument(comparison, "train_limit")
    return f" ({limit:,} {noun_of(comparison)})" if limit else ""


def noun_of(comparison: Comparison) -> str:
    """Returns the noun of its training examples: images, texts or windows."""
    model = str(argument(comparison, "model", "cnn"))
    try:
        return NOUNS[models.find_architecture(model).takes]
    except ConfigError:  # a model of another release
        return "examples"


def _rates(comparison: Comparison) -> str:
    return f", {argument(comparison, 'rate', 'unknown')} rates"


def _batches(comparison: Comparison) -> str:
    return f", batches of {argument(comparison, 'batch_size', 'unknown size')}"


def _folder(comparison: Comparison) -> str:
    return f" ({comparison.folder.name})"


def _place(comparison: Comparison) -> str:
    return f" in {comparison.folder.resolve().parent.name}"


def _curve(comparison: Comparison, run: RunSummary) -> tuple[Evaluation, ...]:
    return _read(tuple(record_lines(comparison.folder, run.record)))


@lru_cache(maxsize=4096)
def _read(lines: tuple[str, ...]) -> tuple[Evaluation, ...]:
    """The evaluations in a run's lines; many analyses ask for them."""
    return tuple(parse_evaluations(lines))
