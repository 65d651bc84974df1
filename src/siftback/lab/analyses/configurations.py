"""The configurations of recorded comparisons, with their curves, as analyses look at them."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.analyses.figure import Panel, Series
from siftback.lab.data.data_set import NOUNS
from siftback.lab.records.comparison_record import Comparison, read_evaluations
from siftback.lab.records.formatting import listed
from siftback.lab.records.measures import MATCHED, TRADITIONAL, Axis, measured, ordered_labels
from siftback.lab.records.metric import METRICS, Metric
from siftback.lab.records.run_files import record_lines
from siftback.lab.records.run_summary import Evaluation, RunSummary

# What can be on the x axis of a curve: the view's name, the field, and what the axis is called.
AXES: dict[str, tuple[Axis, str]] = {
    "time": ("seconds", "training time (s, evaluation apart)"),
    "steps": ("steps", "optimizer steps"),
    "cost": ("cost", "cost (forwards of one example, a backward being 2)"),
}


@dataclass(frozen=True, eq=False)
class Configuration:
    """What the seeds of one configuration share.

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
        return "stale-sb" if self.strategy.startswith("stale-sb") else self.strategy

    @property
    def plain(self) -> bool:
        """Whether it trains on everything, be it for less long."""
        return self.strategy in (TRADITIONAL, MATCHED)

    def mean(self, of: Callable[[RunSummary], float]) -> float:
        """The mean of something over the seeds."""
        return statistics.mean(map(of, self.runs))

    @property
    def metric(self) -> Metric:
        """What it is judged by."""
        return METRICS[self.runs[0].metric]

    @property
    def final(self) -> float:
        """The mean of what it is judged by at the end: test error in percent, or test loss."""
        return self.mean(lambda run: run.final)


def configurations(comparison: Comparison) -> list[Configuration]:
    """The configurations of a comparison, Traditional first, each before its matched run."""
    groups = comparison.by_label()
    found = []
    for label in ordered_labels(comparison):
        curves = [_curve(comparison, run) for run in groups[label]]
        found.append(Configuration(comparison, label, groups[label], curves))
    return found


def traditional(found: Iterable[Configuration]) -> Configuration | None:
    """Traditional among some configurations."""
    return next((one for one in found if one.label == TRADITIONAL), None)


def judged(found: Iterable[Comparison] | Iterable[Configuration]) -> str:
    """What they are judged by, as titles have it: error, loss, or error or loss."""
    nouns = {one.metric.noun for one in found}
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
    """What a comparison was asked, by the name of the setting."""
    return (comparison.environment.get("arguments") or {}).get(name, otherwise)


def shared_by(comparison: Comparison, varied: Iterable[str]) -> str:
    """What a comparison was asked but for some settings: comparisons of equal ones belong together.

    Args:
        comparison: The comparison.
        varied: Names of the settings that may differ.
    """
    asked = comparison.environment.get("arguments") or {}
    shared = {key: value for key, value in asked.items() if key not in varied}
    return json.dumps(shared, sort_keys=True, default=str)


def titled(comparisons: Iterable[Comparison]) -> list[tuple[str, Comparison]]:
    """The comparisons that hold a run, each with a title of its own.

    It names model, data and the share of wrong labels; where that is not enough, of how many
    examples, the learning rates, the batches, and last the folder.
    """
    held = [one for one in comparisons if one.runs]
    titles = [_what(one) for one in held]
    for more in (images, _rates, _batches, _folder, _place):
        seen: dict[str, set[str]] = {}
        for title, one in zip(titles, held, strict=True):
            seen.setdefault(title, set()).add(more(one))
        titles = [
            title + more(one) if len(seen[title]) > 1 else title
            for title, one in zip(titles, held, strict=True)
        ]
    return list(zip(titles, held, strict=True))


def curve(configuration: Configuration, axis: Axis, group: str | None = None) -> Series:
    """Mean test error, or loss, over what was spent, and between which ends the seeds lie.

    The k-th point is the mean over the seeds' k-th evaluations, of it and of what was spent.
    """
    together = list(zip(*configuration.curves, strict=False))
    return Series.over_seeds(
        configuration.label,
        [statistics.mean(float(getattr(one, axis)) for one in each) for each in together],
        [[measured(one, configuration.metric.name) for one in each] for each in together],
        configuration.family if group is None else group,
        faint=configuration.strategy == MATCHED,
    )


def curve_panel(
    title: str, found: Sequence[Configuration], view: str, by_label: bool = False
) -> Panel:
    """Test error, or loss, of several configurations over what was spent.

    Args:
        title: Of the panel.
        found: The configurations.
        view: What is on the x axis, a name of `AXES`.
        by_label: Whether each has a colour of its own, in place of one per strategy.
    """
    axis, name = AXES[view]
    series = [curve(one, axis, one.label if by_label else None) for one in found]
    positive = all(value > 0 for one in series for value in one.y)
    return Panel(title, name, found[0].metric.axis, "line", series, log_y=positive)


def _what(comparison: Comparison) -> str:
    wrong = argument(comparison, "flip", 0.0)
    noise = f", {wrong:.0%} of the labels wrong" if wrong else ""
    return f"{setup(comparison)}{noise}"


def setup(comparison: Comparison) -> str:
    """What was trained on what, in words."""
    runs = comparison.runs
    return f"{listed(run.model for run in runs)} on {listed(run.data for run in runs)}"


def task(comparison: Comparison) -> str:
    """What was trained on what, and on how many of its examples where not on all."""
    return f"{setup(comparison)}{images(comparison)}"


def images(comparison: Comparison) -> str:
    """How many training examples were taken of the set, for its name's end; empty for all."""
    limit = argument(comparison, "train_limit")
    return f" ({limit:,} {noun_of(comparison)})" if limit else ""


def noun_of(comparison: Comparison) -> str:
    """What its training examples are called: images, texts or windows."""
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
    return tuple(read_evaluations(lines))
