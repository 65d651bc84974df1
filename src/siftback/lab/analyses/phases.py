"""Where the time goes: figures 1, 10 and 18 of Jiang et al. 2019."""

import statistics
from collections.abc import Sequence

from siftback.lab.analyses.configurations import (
    Configuration,
    configurations,
    judged,
    titled,
    traditional,
)
from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Figure, Missing, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import MATCHED, TRADITIONAL, reaching
from siftback.lab.records.metric import MetricName
from siftback.lab.records.run_summary import Evaluation, RunSummary

# What the phases of the clock are called in the paper, and what they are here.
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
    return _until("fig1", "figure 1", comparisons, 1.2)


def until_nearby(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 10: seconds by phase until 1.4 times Traditional's final error."""
    return _until("fig10", "figure 10", comparisons, 1.4)


def _until(
    name: str, source: str, comparisons: Sequence[Comparison], factor: float
) -> Figure | Missing:
    panels: list[Panel] = []
    shown: list[Configuration] = []
    sentences: list[str] = []
    for of, comparison in titled(comparisons):
        found = configurations(comparison)
        plain = traditional(found)
        if plain is None or not plain.curves[0][-1].phases:
            continue
        targets = {run.seed: factor * run.final for run in plain.runs}
        spent = {one.label: _spent(one, targets) for one in found if one.strategy != MATCHED}
        reached = {label: phases for label, phases in spent.items() if phases}
        if len(reached) > 1:
            panels.append(_bars(of, reached))
            shown.append(plain)
            short = [label for label in spent if label not in reached]
            sentences.append(_fastest(of, reached, short))
            device = comparison.environment.get("device", "cpu")
            if device != "cpu":
                sentences.append(
                    f"On {device} the phases are those of the host, which runs ahead of it."
                )
    end = f"final {judged(shown)} of Traditional"
    title = f"Where the time goes until {factor:g} times the {end}"
    if not panels:
        why = "No comparison with Traditional has phases and another run that came as near."
        return Missing(
            name, title, f"{why} Record one: siftback compare --strategies traditional,sb,stale-sb"
        )
    return Figure(name, title, sentences, f"{PAPER}, {source}", {"time": panels})


def _spent(one: Configuration, targets: dict[int, float]) -> dict[str, float] | None:
    """Seconds by phase until the target, means over the seeds; None where a seed fell short."""
    seeds = [
        phases_until(curve, targets[run.seed], run.metric)
        for run, curve in zip(one.runs, one.curves, strict=True)
        if run.seed in targets
    ]
    reached = [phases for phases in seeds if phases]
    if not reached or len(reached) < len(seeds):
        return None
    return {phase: statistics.mean(each.get(phase, 0.0) for each in reached) for phase in NAMES}


def phases_until(
    curve: Sequence[Evaluation], target: float, metric: MetricName = "error"
) -> dict[str, float] | None:
    """Seconds by phase when the error, or loss, passed a target, as `crossing` finds it.

    Returns:
        None where it never did, or no phases were recorded.

    >>> early = Evaluation(1, 9, 9, 2, 9, 1, 1, 40, phases={"forward": 0.5, "backward": 1.5})
    >>> later = Evaluation(2, 9, 9, 6, 9, 1, 1, 20, phases={"forward": 1.5, "backward": 4.5})
    >>> phases_until([early, later], 30.0)
    {'forward': 1.0, 'backward': 3.0}
    """
    reached = reaching(curve, target, metric)
    if reached is None:
        return None
    before, after, share = reached
    return {
        phase: before.phases.get(phase, 0.0) + share * (most - before.phases.get(phase, 0.0))
        for phase, most in after.phases.items()
    }


def _bars(title: str, reached: dict[str, dict[str, float]]) -> Panel:
    series = [
        Series(name, list(reached), [each[phase] for each in reached.values()], group=name)
        for phase, name in NAMES.items()
        if any(each[phase] for each in reached.values())
    ]
    return Panel(title, "strategy", "seconds of training", "stacked", series)


def _fastest(title: str, reached: dict[str, dict[str, float]], short: Sequence[str]) -> str:
    total = {label: sum(phases.values()) for label, phases in reached.items()}
    plain, *others = total
    fastest = min(others, key=lambda label: total[label])
    share = {label: f"{reached[label]['backward'] / total[label]:.0%}" for label in total}
    text = (
        f"{title}: {fastest} took {total[fastest]:.1f} s, {share[fastest]} of it backward, and "
        f"{plain} {total[plain]:.1f} s, {share[plain]} of it backward."
    )
    return f"{text} Not reached in every seed: {', '.join(short)}." if short else text


def passes(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 18: seconds of a forward and a backward of one batch, over the models measured."""
    name, title = "fig18", "A forward and a backward of one batch, by model"
    measured: dict[tuple[str, str], list[RunSummary]] = {}
    for of, comparison in titled(comparisons):
        machine = comparison.machine(TRADITIONAL)
        for run in comparison.by_label().get(TRADITIONAL, []):
            # An accelerator's queue is not waited for at every mark of the clock.
            on_cpu = comparison.environment.get("device", "cpu") == "cpu"
            if on_cpu and run.seconds_by_phase and run.steps:
                measured.setdefault((of, machine), []).append(run)
    several = len({machine for _, machine in measured}) > 1
    found = {f"{of}, {on}" if several else of: runs for (of, on), runs in measured.items()}
    if not found:
        why = "No run of Traditional on a CPU has its phases recorded. Record one:"
        return Missing(name, title, f"{why} siftback compare --strategies traditional --device cpu")
    milliseconds = {
        phase: [
            statistics.mean(1000 * run.seconds_by_phase[phase] / run.steps for run in runs)
            for runs in found.values()
        ]
        for phase in ("forward", "backward")
    }
    series = [Series(phase, list(found), each, group=phase) for phase, each in milliseconds.items()]
    ratios = [
        back / forth
        for forth, back in zip(milliseconds["forward"], milliseconds["backward"], strict=True)
        if forth
    ]
    sentence = (
        f"Over {len(found)} models a backward takes {min(ratios):.2f} to {max(ratios):.2f} "
        "times as long as a forward."
    )
    panel = Panel("Training of Traditional", "model", "milliseconds per batch", "stacked", series)
    return Figure(name, title, [sentence], f"{PAPER}, figure 18", {"time": [panel]})
