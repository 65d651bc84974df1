"""Error over training: figures 6, 7, 11, 12, 13, 16 and 17 of Jiang et al. 2019."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from siftback.lab.figures.configurations import (
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
from siftback.lab.figures.figure import Figure, Missing, Panel, Series
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import listed
from siftback.lab.records.run_summary import TRADITIONAL

PAPER = "Jiang et al. 2019"

# Settings of a comparison beside those of its runs.
PLAN = ("strategies", "keeps", "seeds", "matched")
NO_RUN = "No run has ended. Record some: siftback compare"

Group = Sequence[Configuration]
Groups = Sequence[tuple[str, Group]]


def error_over_steps(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 6: test error over optimizer steps."""
    title = "Test {} over training iterations"
    return plot_curves("fig6", title, select(comparisons), comparisons, NO_RUN, first="steps")


def error_over_time(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 7: test error over seconds of training."""
    title = "Test {} over training time"
    return plot_curves("fig7", title, select(comparisons), comparisons, NO_RUN)


def staleness(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 11: Stale-SB at several intervals n of its selection passes; SB is n = 1."""

    def choose(group: Group) -> Group:
        if all(config.family != "stale-sb" for config in group):
            return []
        return beside_traditional(group, lambda config: config.family in ("sb", "stale-sb"))

    groups = select(comparisons, choose)
    panels, sentences = [], []
    for title, group in groups:
        metric = group[0].metric
        points = {config: config.mean(lambda run: run.examples_forwarded) for config in group}
        series = [
            Series(config.label, [forwards], [config.final], group=config.label)
            for config, forwards in points.items()
        ]
        label = "examples forwarded in all of training"
        panels.append(Panel(title, label, f"final {metric.axis}", "points", series))
        ends = (
            f"{config.label} {forwards / 1e6:.3g} M forwards and {metric.written(config.final)}"
            for config, forwards in points.items()
        )
        sentences.append(f"{title}: {'; '.join(ends)}.")
    title = "Stale losses: test {} at several intervals of selection passes"
    why = "No run of Stale-SB. Record some: siftback compare --strategies"
    why += " traditional,sb,stale-sb-2,stale-sb-3"
    return plot_curves("fig11", title, groups, comparisons, why, sentences, panels)


def label_noise(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 12: SB and Traditional where a share of the training labels is wrong."""

    def order(comparison: Comparison) -> tuple[tuple[str, str], float]:
        return task_of(comparison), float(argument(comparison, "flip") or 0.0)

    tasks = {task for task, wrong in map(order, comparisons) if wrong}
    among = [
        comparison for comparison in sorted(comparisons, key=order) if task_of(comparison) in tasks
    ]
    title = "Wrong labels: test {} at several shares of them"
    why = "No run with wrong labels. Record some: siftback compare --strategies traditional,sb"
    why += " --flip 0.1"
    return plot_curves("fig12", title, select(among, leave_out_matched), comparisons, why)


def selectivity(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 13: one strategy at several shares kept."""
    groups, sentences = [], []
    for title, together in join_sweeps(comparisons).items():
        counts = Counter(config.strategy for config in together if not config.plain)
        several = [strategy for strategy, count in counts.items() if count > 1]
        if not several:
            continue
        # SB before others, and then the one that has the most shares.
        swept = max(several, key=lambda strategy: (strategy == "sb", counts[strategy]))
        group = [
            config for config in together if config.label == TRADITIONAL or config.strategy == swept
        ]
        groups.append((title, group))
        metric, plain = group[0].metric, traditional(group)
        swept_ends = [
            (config.runs[0].keep_asked, config.final) for config in group if not config.plain
        ]
        ends = ", ".join(
            f"{share:.2g} kept {metric.written(end)}" for share, end in sorted(swept_ends)
        )
        beside = f"; traditional {metric.written(plain.final)}" if plain else ""
        sentences.append(f"{title}, final {metric.noun} of {swept}: {ends}{beside}.")
    title = "Selectivity: test {} at several shares kept"
    why = "No strategy at several shares kept. Record one: siftback compare --strategies"
    why += " traditional,sb --keep 0.2,0.33,0.5,0.65"
    return plot_curves("fig13", title, groups, comparisons, why, sentences)


def architectures(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 16: several models on one data set."""
    among = select_varied(
        comparisons,
        lambda comparison: task_of(comparison)[0],
        lambda comparison: task_of(comparison)[1],
    )
    title = "Architectures: test {} of several models on one data set"
    why = "No data set with runs of two models. Record them: siftback compare --model resnet18"
    why += ", and again with another model"
    return plot_curves("fig16", title, select(among, leave_out_matched), comparisons, why)


def schedules(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 17: one model on one data set under several schedules of the learning rate."""
    among = select_varied(
        comparisons, task_of, lambda comparison: str(argument(comparison, "rate"))
    )
    title = "Learning-rate schedules: test {} under several of them"
    why = "No runs that differ in their learning rates. Record them: siftback compare --rate"
    why += " step, and again with another schedule"
    return plot_curves("fig17", title, select(among, leave_out_matched), comparisons, why)


def select(
    comparisons: Iterable[Comparison], choose: Callable[[Group], Group] = lambda group: group
) -> Groups:
    """Selects configurations of each comparison; those without any are left out."""
    groups = [
        (title, choose(configurations(comparison))) for title, comparison in titled(comparisons)
    ]
    return [(title, group) for title, group in groups if group]


def leave_out_matched(group: Group) -> Group:
    """Leaves out Traditional of other lengths."""
    return beside_traditional(group, lambda config: not config.plain)


def beside_traditional(
    group: Group, belongs: Callable[[Configuration], bool]
) -> list[Configuration]:
    """Selects Traditional, and the configurations that belong beside it."""
    return [config for config in group if config.label == TRADITIONAL or belongs(config)]


def join_sweeps(comparisons: Iterable[Comparison]) -> Mapping[str, Group]:
    """Joins comparisons of equal settings: a sweep has one for each share kept.

    Of a configuration that several hold, it is the first one's.
    """
    together: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.runs:
            settings = comparison.environment.get("arguments") or {}
            same = {name: value for name, value in settings.items() if name not in PLAN}
            key = json.dumps([task_of(comparison), same], sort_keys=True)
            together.setdefault(key, []).append(comparison)
    titles = titled(group[0] for group in together.values())
    joined = {}
    for (title, _), group in zip(titles, together.values(), strict=True):
        by_label: dict[str, Configuration] = {}
        for configuration in (
            config for comparison in group for config in configurations(comparison)
        ):
            by_label.setdefault(configuration.label, configuration)
        joined[title] = list(by_label.values())
    return joined


def task_of(comparison: Comparison) -> tuple[str, str]:
    """Returns the data and the model."""
    data, model = (listed(getattr(r, name) for r in comparison.runs) for name in ("data", "model"))
    return f"{data}{images(comparison)}", model


def select_varied(
    comparisons: Sequence[Comparison],
    same: Callable[[Comparison], object],
    differs: Callable[[Comparison], str],
) -> list[Comparison]:
    """Selects comparisons that have another one equal in one thing and different in another."""
    kinds: dict[object, set[str]] = {}
    ended = [comparison for comparison in comparisons if comparison.runs]
    for comparison in ended:
        kinds.setdefault(same(comparison), set()).add(differs(comparison))
    return [comparison for comparison in ended if len(kinds[same(comparison)]) > 1]


def plot_curves(
    name: str,
    title: str,
    groups: Groups,
    comparisons: Sequence[Comparison],
    why: str,
    sentences: Sequence[str] = (),
    panels: Sequence[Panel] = (),
    first: str = "time",
) -> Figure | Missing:
    """Plots error over time, steps and cost, a panel for each comparison.

    Args:
        name: Of the analysis, which is that of the paper's figure.
        title: Its heading, with braces for the metric.
        groups: The configurations to show of each comparison, by its title.
        comparisons: All that was looked at.
        why: The reason where there are no groups.
        sentences: Its findings, where each configuration has a colour of its own; where there are
            none, how the best configuration ends.
        panels: Further panels, the same in each view.
        first: The view that comes first.
    """
    if not groups:
        ended = judged(comparison for comparison in comparisons if comparison.runs)
        return Missing(name, title.format(ended), why)
    views = {
        view: [*(curve_panel(*group, view, by_label=bool(sentences)) for group in groups), *panels]
        for view in [first, *(view for view in AXES if view != first)]
    }
    title = title.format(judged(config for _, group in groups for config in group))
    seen = sentences or [describe_best(*group, first) for group in groups]
    return Figure(name, title, seen, f"{PAPER}, figure {name.removeprefix('fig')}", views)


def describe_best(title: str, group: Group, view: str) -> str:
    """Says how the best selective configuration ends, beside Traditional."""
    plain = traditional(group)
    selective = [config for config in group if not config.plain]
    best = min(selective or group, key=lambda config: config.final)
    if plain is None or best is plain:
        return best_end(title, best.metric, best.label, best.final, None)
    axis, unit = AXES[view][0], {"time": "seconds"}.get(view, view)
    spent, whole = (
        sum(float(getattr(curve[-1], axis)) for curve in config.curves) / len(config.curves)
        for config in (best, plain)
    )
    share = f", with {spent / whole:.2f} of its {unit}" if whole else ""
    return best_end(title, best.metric, best.label, best.final, plain.final, share)
