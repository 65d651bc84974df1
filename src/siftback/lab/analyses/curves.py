"""Error over training: figures 6, 7, 11, 12, 13, 16 and 17 of Jiang et al. 2019."""

import json
from collections.abc import Callable, Iterable, Sequence

from siftback.lab.analyses.configurations import (
    AXES,
    Configuration,
    argument,
    best_end,
    configurations,
    curve_panel,
    images,
    judged,
    titled,
    traditional,
)
from siftback.lab.analyses.figure import Figure, Missing, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import listed
from siftback.lab.records.measures import TRADITIONAL

PAPER = "Jiang et al. 2019"

# What a comparison was asked beside the settings of its runs.
PLAN = ("strategies", "keeps", "seeds", "matched")

Titled = Sequence[tuple[str, Sequence[Configuration]]]


def error_over_steps(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 6: test error over optimizer steps."""
    name, title = "fig6", "Test {} over training iterations"
    found = _chosen(comparisons)
    if not found:
        return _missing(comparisons, name, title, "No run has ended. Record some: siftback compare")
    return _figure(name, title, "figure 6", found, "steps")


def error_over_time(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 7: test error over seconds of training."""
    name, title = "fig7", "Test {} over training time"
    found = _chosen(comparisons)
    if not found:
        return _missing(comparisons, name, title, "No run has ended. Record some: siftback compare")
    return _figure(name, title, "figure 7", found, "time")


def staleness(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 11: Stale-SB at several intervals n of its selection passes; SB is n = 1."""
    name, title = "fig11", "Stale losses: test {} at several intervals of selection passes"
    families = ("sb", "stale-sb")
    found = _chosen(
        comparisons,
        lambda all_of: (
            [one for one in all_of if one.family in families or one.label == TRADITIONAL]
            if any(one.family == "stale-sb" for one in all_of)
            else []
        ),
    )
    if not found:
        why = "No run of Stale-SB. Record some: siftback compare --strategies"
        return _missing(comparisons, name, title, f"{why} traditional,sb,stale-sb-2,stale-sb-3")
    forwards = [_over_forwards(of, all_of) for of, all_of in found]
    ends = [_forwards_sentence(of, all_of) for of, all_of in found]
    return _figure(name, title, "figure 11", found, "time", True, forwards, ends)


def label_noise(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 12: SB and Traditional where a share of the training labels is wrong."""
    name, title = "fig12", "Wrong labels: test {} at several shares of them"
    noisy = [one for one in comparisons if argument(one, "flip", 0.0)]
    tasks = {_task(one) for one in noisy}
    among = [one for one in comparisons if _task(one) in tasks]
    among.sort(key=lambda one: (_task(one), float(argument(one, "flip", 0.0))))
    found = _chosen(among, _unmatched)
    if not found:
        why = "No run with wrong labels. Record some: siftback compare --strategies traditional,sb"
        return _missing(comparisons, name, title, f"{why} --flip 0.1")
    return _figure(name, title, "figure 12", found, "time")


def selectivity(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 13: one strategy at several shares kept."""
    name, title = "fig13", "Selectivity: test {} at several shares kept"
    found = [(of, chosen) for of, one in _alike(comparisons) if (chosen := _swept(one))]
    if not found:
        why = "No strategy at several shares kept. Record one: siftback compare --strategies"
        return _missing(comparisons, name, title, f"{why} traditional,sb --keep 0.2,0.33,0.5,0.65")
    errors = [_swept_sentence(of, all_of) for of, all_of in found]
    return _figure(name, title, "figure 13", found, "time", True, sentences=errors)


def architectures(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 16: several models on one data set."""
    name, title = "fig16", "Architectures: test {} of several models on one data set"
    among = _several(comparisons, lambda one: _task(one)[0], lambda one: _task(one)[1])
    found = _chosen(among, _unmatched)
    if not found:
        why = "No data set with runs of two models. Record them: siftback compare --model resnet18"
        return _missing(comparisons, name, title, f"{why}, and again with another model")
    return _figure(name, title, "figure 16", found, "time")


def schedules(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 17: one model on one data set under several schedules of the learning rate."""
    name, title = "fig17", "Learning-rate schedules: test {} under several of them"
    among = _several(comparisons, _task, lambda one: str(argument(one, "rate")))
    found = _chosen(among, _unmatched)
    if not found:
        why = "No runs that differ in their learning rates. Record them: siftback compare --rate"
        return _missing(comparisons, name, title, f"{why} step, and again with another schedule")
    return _figure(name, title, "figure 17", found, "time")


def _chosen(
    comparisons: Iterable[Comparison],
    choose: Callable[[list[Configuration]], list[Configuration]] = lambda found: found,
) -> list[tuple[str, list[Configuration]]]:
    """The configurations that are chosen of each comparison; those without any are left out."""
    each = [(of, choose(configurations(one))) for of, one in titled(comparisons)]
    return [(of, found) for of, found in each if found]


def _alike(comparisons: Iterable[Comparison]) -> list[tuple[str, list[Configuration]]]:
    """Comparisons that were asked the same, as one: a sweep has one for each share kept.

    Of a configuration that several hold, it is the first one's.
    """
    groups: dict[str, list[Comparison]] = {}
    for one in (each for each in comparisons if each.runs):
        asked = one.environment.get("arguments") or {}
        same = {name: value for name, value in asked.items() if name not in PLAN}
        groups.setdefault(json.dumps([_task(one), same], sort_keys=True), []).append(one)
    titles = titled(group[0] for group in groups.values())
    found = []
    for (of, _), group in zip(titles, groups.values(), strict=True):
        by_label: dict[str, Configuration] = {}
        for configuration in (each for one in group for each in configurations(one)):
            by_label.setdefault(configuration.label, configuration)
        found.append((of, list(by_label.values())))
    return found


def _unmatched(found: list[Configuration]) -> list[Configuration]:
    return [one for one in found if one.label == TRADITIONAL or not one.plain]


def _swept(found: list[Configuration]) -> list[Configuration]:
    """Traditional, and the strategy that has the most shares kept, SB before others."""
    shares: dict[str, int] = {}
    for one in found:
        if not one.plain:
            shares[one.strategy] = shares.get(one.strategy, 0) + 1
    if not shares or max(shares.values()) < 2:
        return []
    most = max(shares, key=lambda name: (shares[name] > 1 and name == "sb", shares[name]))
    return [one for one in found if one.label == TRADITIONAL or one.strategy == most]


def _task(comparison: Comparison) -> tuple[str, str]:
    """Data and model."""
    data, model = (listed(getattr(r, name) for r in comparison.runs) for name in ("data", "model"))
    return f"{data}{images(comparison)}", model


def _several(
    comparisons: Sequence[Comparison],
    same: Callable[[Comparison], object],
    differs: Callable[[Comparison], str],
) -> list[Comparison]:
    """The comparisons that have another one equal in one thing and different in another."""
    kinds: dict[object, set[str]] = {}
    held = [one for one in comparisons if one.runs]
    for one in held:
        kinds.setdefault(same(one), set()).add(differs(one))
    return [one for one in held if len(kinds[same(one)]) > 1]


def _figure(
    name: str,
    title: str,
    source: str,
    found: Titled,
    first: str,
    by_label: bool = False,
    more: Sequence[Panel] = (),
    sentences: Sequence[str] = (),
) -> Figure:
    """One panel per comparison, in views over time, steps and cost.

    Args:
        name: Of the analysis.
        title: What it shows, with a place for what it is judged by.
        source: The paper's figure.
        found: What to show.
        first: The view that comes first.
        by_label: Whether each configuration has a colour of its own.
        more: Further panels, the same in each view.
        sentences: What is seen, in place of how the best configuration ends.
    """
    order = [first, *(view for view in AXES if view != first)]
    views = {
        view: [*(curve_panel(of, all_of, view, by_label) for of, all_of in found), *more]
        for view in order
    }
    seen = sentences or [_best_sentence(of, all_of, first) for of, all_of in found]
    title = title.format(judged(one for _, all_of in found for one in all_of))
    return Figure(name, title, seen, f"{PAPER}, {source}", views)


def _missing(comparisons: Sequence[Comparison], name: str, title: str, why: str) -> Missing:
    return Missing(name, title.format(judged(one for one in comparisons if one.runs)), why)


def _best_sentence(title: str, found: Sequence[Configuration], view: str) -> str:
    """How the best selective configuration ends, beside Traditional."""
    plain = traditional(found)
    best = min(_selective(found) or found, key=lambda one: one.final)
    if plain is None or best is plain:
        return best_end(title, best.metric, best.label, best.final, None)
    axis, unit = AXES[view][0], {"time": "seconds"}.get(view, view)
    spent, whole = (_spent(one, axis) for one in (best, plain))
    share = f", with {spent / whole:.2f} of its {unit}" if whole else ""
    return best_end(title, best.metric, best.label, best.final, plain.final, share)


def _spent(configuration: Configuration, axis: str) -> float:
    ends = [float(getattr(curve[-1], axis)) for curve in configuration.curves]
    return sum(ends) / len(ends)


def _selective(found: Iterable[Configuration]) -> list[Configuration]:
    return [one for one in found if not one.plain]


def _over_forwards(title: str, found: Sequence[Configuration]) -> Panel:
    series = [
        Series(
            one.label,
            [one.mean(lambda run: run.examples_forwarded)],
            [one.final],
            group=one.label,
        )
        for one in found
    ]
    return Panel(
        title,
        "examples forwarded in all of training",
        f"final {found[0].metric.axis}",
        "points",
        series,
    )


def _forwards_sentence(title: str, found: Sequence[Configuration]) -> str:
    ends = (
        f"{one.label} {one.mean(lambda run: run.examples_forwarded) / 1e6:.3g} M forwards and "
        f"{one.metric.written(one.final)}"
        for one in found
    )
    return f"{title}: {'; '.join(ends)}."


def _swept_sentence(title: str, found: Sequence[Configuration]) -> str:
    swept = sorted(_selective(found), key=lambda one: one.runs[0].keep_asked)
    metric, plain = swept[0].metric, traditional(found)
    ends = ", ".join(
        f"{one.runs[0].keep_asked:.2g} kept {metric.written(one.final)}" for one in swept
    )
    beside = f"; traditional {metric.written(plain.final)}" if plain else ""
    return f"{title}, final {metric.noun} of {swept[0].strategy}: {ends}{beside}."
