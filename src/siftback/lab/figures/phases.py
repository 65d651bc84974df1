"""Where the time goes: figures 1, 10 and 18 of Jiang et al. 2019."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from siftback.lab.figures.configurations import (
    Configuration,
    configurations,
    judged,
    titled,
    traditional,
)
from siftback.lab.figures.curves import PAPER
from siftback.lab.figures.figure import Figure, Missing, Panel, Series, build_figure
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import crossing
from siftback.lab.records.run_summary import (
    MATCHED,
    METRICS,
    TRADITIONAL,
    Evaluation,
    MetricName,
    RunSummary,
)

# The phases of the clock, and their names in the paper.
NAMES = {
    "scoring": "scoring before training",
    "loading": "loading",
    "selection": "selection, its forwards among it",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "syncing": "syncing",
    "other": "other",
}


def until_near(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 1: seconds by phase until 1.2 times Traditional's final error."""
    return phases_until_near("fig1", "figure 1", comparisons, 1.2)


def until_nearby(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 10: seconds by phase until 1.4 times Traditional's final error."""
    return phases_until_near("fig10", "figure 10", comparisons, 1.4)


def phases_until_near(
    name: str, source: str, comparisons: Sequence[Comparison], factor: float
) -> Figure | Missing:
    """Stacks the seconds by phase until a multiple of Traditional's final error."""
    panels, shown, sentences = [], [], []
    for heading, comparison in titled(comparisons):
        group = configurations(comparison)
        plain = traditional(group)
        if plain is None or not plain.curves[0][-1].phases:
            continue
        targets = {run.seed: factor * run.final for run in plain.runs}
        spent = {
            configuration.label: mean_phases(configuration, targets)
            for configuration in group
            if configuration.strategy != MATCHED
        }
        reached = {label: phases for label, phases in spent.items() if phases}
        if len(reached) < 2:
            continue
        series = [
            Series(words, list(reached), seconds, group=words)
            for phase, words in NAMES.items()
            if any(seconds := [phases[phase] for phases in reached.values()])
        ]
        panels.append(Panel(heading, "strategy", "seconds of training", "stacked", series))
        shown.append(plain)
        baseline, *others = reached
        fastest = min(others, key=lambda label: sum(reached[label].values()))
        took = []
        for label, verb in ((fastest, "took "), (baseline, "")):
            total = sum(reached[label].values())
            share = reached[label]["backward"] / total
            took.append(f"{label} {verb}{total:.1f} s, {share:.0%} of it backward")
        short = ", ".join(label for label in spent if label not in reached)
        sentences.append(
            f"{heading}: {took[0]}, and {took[1]}."
            + (f" Not reached in every seed: {short}." if short else "")
        )
        if (device := comparison.environment.get("device", "cpu")) != "cpu":
            sentences.append(
                f"On {device} the phases are those of the host, which runs ahead of it."
            )
    title = f"Where the time goes until {factor:g} times the final {judged(shown)} of Traditional"
    why = "No comparison with Traditional has phases and another run that came as near."
    why += " Record one: siftback compare --strategies traditional,sb,stale-sb"
    return build_figure(name, title, sentences, f"{PAPER}, {source}", {"time": panels}, why)


def mean_phases(configuration: Configuration, targets: Mapping[int, float]) -> dict[str, float]:
    """Computes the seconds by phase until the target, means over the seeds.

    Args:
        configuration: Its runs and their curves.
        targets: By seed.

    Returns:
        Empty where a seed fell short.
    """
    seeds = [
        phases_until(curve, targets[run.seed], run.metric)
        for run, curve in zip(configuration.runs, configuration.curves, strict=True)
        if run.seed in targets
    ]
    if not seeds or not all(seeds):
        return {}
    return {phase: statistics.mean(phases.get(phase, 0.0) for phases in seeds) for phase in NAMES}


def phases_until(
    curve: Sequence[Evaluation], target: float, metric: MetricName = "error"
) -> dict[str, float]:
    """Computes the seconds by phase when the error, or loss, passed a target, as `crossing` does.

    Returns:
        Empty where it never did, or no phases were recorded.

    >>> early = Evaluation(1, 9, 9, 2, 9, 1, 1, 40, phases={"forward": 0.5, "backward": 1.5})
    >>> later = Evaluation(2, 9, 9, 6, 9, 1, 1, 20, phases={"forward": 1.5, "backward": 4.5})
    >>> phases_until([early, later], 30.0)
    {'forward': 1.0, 'backward': 3.0}
    """
    number = crossing([getattr(evaluation, METRICS[metric].field) for evaluation in curve], target)
    if math.isnan(number):
        return {}
    return {
        phase: float(
            np.interp(
                number,
                range(len(curve)),
                [evaluation.phases.get(phase, 0.0) for evaluation in curve],
            )
        )
        for phase in curve[math.ceil(number)].phases
    }


def forward_and_backward(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 18: seconds of a forward and a backward of one batch, over the models measured."""
    measured: dict[tuple[str, str], list[RunSummary]] = {}
    for heading, comparison in titled(comparisons):
        machine = comparison.machine(TRADITIONAL)
        for run in comparison.by_label().get(TRADITIONAL, []):
            # An accelerator's queue is not waited for at every mark of the clock.
            on_cpu = comparison.environment.get("device", "cpu") == "cpu"
            if on_cpu and run.seconds_by_phase and run.steps:
                measured.setdefault((heading, machine), []).append(run)
    several = len({machine for _, machine in measured}) > 1
    models = [f"{model}, {machine}" if several else model for model, machine in measured]
    name, title = "fig18", "A forward and a backward of one batch, by model"
    if not models:
        why = "No run of Traditional on a CPU has its phases recorded. Record one:"
        return Missing(name, title, f"{why} siftback compare --strategies traditional --device cpu")
    forward, backward = (
        Series(
            phase,
            models,
            [
                statistics.mean(1000 * run.seconds_by_phase[phase] / run.steps for run in runs)
                for runs in measured.values()
            ],
            group=phase,
        )
        for phase in ("forward", "backward")
    )
    ratios = [back / forth for forth, back in zip(forward.y, backward.y, strict=True) if forth]
    sentence = (
        f"Over {len(models)} models a backward takes {min(ratios):.2f} to {max(ratios):.2f} "
        "times as long as a forward."
    )
    heading, label = "Training of Traditional", "milliseconds per batch"
    panel = Panel(heading, "model", label, "stacked", [forward, backward])
    return Figure(name, title, [sentence], f"{PAPER}, figure 18", {"time": [panel]})
