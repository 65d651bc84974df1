"""Pruning and selecting together: figures a to f and table 1 of *Diet Selective-Backprop*."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.data.data_set import ImageData
from siftback.lab.experiments.example_scores import SCORES_FOLDER, Scores, overlaps
from siftback.lab.figures.configurations import Configuration, configurations, titled, traditional
from siftback.lab.figures.curves import beside_traditional
from siftback.lab.figures.figure import (
    Cell,
    Figure,
    Gallery,
    Grid,
    Missing,
    Panel,
    Range,
    Series,
    build_figure,
)
from siftback.lab.figures.observed import command, watched
from siftback.lab.figures.pictures import Described, build_gallery, take_pictures
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look
from siftback.lab.strategies.table import find_strategy

PAPER = "Lu, Zamoshchin and Chen, Diet Selective-Backprop"
BACKPROP = ("sb", "random", "sb-single-pass", "random-single-pass")
PRUNING = ("el2n", "sb", "diet-sb", "diet-random")
DROPS = (0.1, 0.25, 0.5, 0.75, 0.9)
SHOWN = 20
NO_SCORES_AND_USES = (
    "No comparison has both EL2N scores and SB's use of its examples. "
    f"{command('losses', 'traditional,sb,diet-sb')}"
)


def backprop_accuracy(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure a: accuracy of what selects in each batch, by the share left out."""
    title = "Accuracy of Selective- and Random-Backprop"
    return plot_accuracy("diet-a", title, comparisons, BACKPROP, "random")


def pruning_accuracy(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure b: accuracy of EL2N, SB and Diet-SB, by the share left out."""
    title = "Accuracy of EL2N, Selective-Backprop and Diet-SB"
    return plot_accuracy("diet-b", title, comparisons, PRUNING, "el2n")


def plot_accuracy(
    name: str, title: str, comparisons: Sequence[Comparison], among: Sequence[str], needed: str
) -> Figure | Missing:
    """Plots final accuracy of classifiers by the share left out, and accuracy over training.

    Args:
        name: Of the analysis, which ends in the letter of the paper's figure.
        title: Its heading.
        comparisons: The records.
        among: The strategies to show, beside Traditional.
        needed: The one without which there is nothing to see.
    """
    panels, sentences = [], []
    for heading, comparison in titled(comparisons):
        group = beside_traditional(
            configurations(comparison), lambda config: config.strategy in among
        )
        if comparison.metric.name != "error" or all(config.strategy != needed for config in group):
            continue
        by_strategy: dict[str, list[Configuration]] = {}
        for config in sorted(group, key=percent_left_out):
            by_strategy.setdefault(config.strategy, []).append(config)
        ends, lines = [], []
        for strategy, swept in by_strategy.items():
            finals = [[100 - run.test_error_final for run in config.runs] for config in swept]
            shares = list(map(percent_left_out, swept))
            ends.append(Series.over_seeds(strategy, shares, finals, strategy))
        for config in group:
            tests = [
                (np.mean([test.epoch for test in seeds]), np.mean([t.test_error for t in seeds]))
                for seeds in zip(*config.curves, strict=False)
            ]
            epochs, accuracy = [float(x) for x, _ in tests], [100 - float(y) for _, y in tests]
            lines.append(Series(config.label, epochs, accuracy, group=config.strategy))
        label = "examples left out (%)"
        panels.append(Panel(heading, label, "final accuracy (%)", "line", ends))
        panels.append(Panel(heading, "epoch", "accuracy (%)", "line", lines))
        accuracies = ", ".join(
            f"{config.label} {100 - config.mean(lambda run: run.test_error_final):.2f} %"
            for config in group
        )
        sentences.append(f"{heading}, final accuracy: {accuracies}.")
    why = f"No run of {needed} that is judged by its error. Record some: siftback compare"
    why += f" --strategies traditional,{','.join(among)} --keep 0.5,0.25"
    source = f"{PAPER}, figure {name.removeprefix('diet-')}"
    return build_figure(name, title, sentences, source, {"epoch": panels}, why)


def percent_left_out(configuration: Configuration) -> float:
    """Computes the percentage of the examples offered that were not trained on."""
    return 100 * (1 - configuration.mean(lambda run: run.keep_measured))


def overlap_of_models(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure c: of what EL2N prunes by one model, the share that it prunes by another too."""
    tables: dict[str, dict[str, Scores]] = {}
    for comparison in comparisons:
        for table in read_scores(comparison):
            arguments = table.origin["environment"]["arguments"]
            settings = (arguments.get(key) for key in ("model", "width"))
            model = " of width ".join(str(value) for value in settings if value is not None)
            tables.setdefault(str(arguments["data"]), {}).setdefault(model, table)
    panels, sentences = [], []
    for data, by_model in tables.items():
        for first, second in combinations(by_model, 2):
            if not by_model[first].labels.equal(by_model[second].labels):
                continue
            pruned = overlaps(by_model[first], by_model[second], DROPS)
            shares = {drop: share for drop, share, _ in pruned}
            labels = "pruned (%)", "pruned by both", "of these, pruned by the other too (%)"
            panels.append(plot_overlap(f"{data}, {first} and {second}", shares, *labels))
            sentences.append(
                f"{data}: {first} and {second} share {shares[0.25]:.0%} of the quarter of lowest "
                f"scores and {shares[0.5]:.0%} of the half."
            )
    title = "Overlap of what EL2N prunes by two models"
    why = "No EL2N scores of one data set by two models. Record them: siftback compare"
    why += " --strategies traditional,diet-sb --model cnn, and --model resnet18"
    return build_figure("diet-c", title, sentences, f"{PAPER}, figure c", {"share": panels}, why)


def plot_overlap(
    heading: str, shares: dict[float, float], x_label: str, label: str, y_label: str
) -> Panel:
    """Plots the shares that both have in common, beside those of chance."""
    drops = [100 * drop for drop in shares]
    series = [
        Series(label, drops, [100 * share for share in shares.values()], group="both"),
        Series("by chance", drops, drops, group="chance", faint=True),
    ]
    return Panel(heading, x_label, y_label, "line", series)


def overlap_of_methods(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure d: of the examples that SB uses least, the share that EL2N scores lowest."""
    panels, sentences = [], []
    for heading, _, used, scores in read_uses_and_scores(comparisons):
        shares = {drop: lowest_of_both(used, scores, drop) for drop in DROPS}
        labels = "least used by SB (%)", "lowest by both", "of these, lowest by EL2N too (%)"
        panels.append(plot_overlap(heading, shares, *labels))
        sentences.append(
            f"{heading}: of the quarter that SB uses least, {shares[0.25]:.0%} are among the "
            f"quarter that EL2N scores lowest; of the half, {shares[0.5]:.0%}."
        )
    title, source = "What SB uses least, among what EL2N scores lowest", f"{PAPER}, figure d"
    return build_figure("diet-d", title, sentences, source, {"share": panels}, NO_SCORES_AND_USES)


def lowest_of_both(used: NDArray[np.floating], scores: NDArray[np.floating], share: float) -> float:
    """Computes, of the lowest in one, the share that is among as many lowest of the other.

    >>> lowest_of_both(np.array([0.0, 1, 2, 3]), np.array([0.5, 9, 0.1, 8]), 0.5)
    0.5
    """
    k = max(1, round(share * len(used)))
    lowest = (set(np.argsort(values, kind="stable")[:k].tolist()) for values in (used, scores))
    return len(set.intersection(*lowest)) / k


def lowest_scores(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """Figure e: the examples of the lowest EL2N scores."""
    title = "The examples of the lowest EL2N scores"
    why = "No EL2N scores. Record them: siftback compare --strategies traditional,diet-sb"
    entries = [
        (heading, comparison, partial(describe_lowest_scores, heading, table.scores.numpy()))
        for heading, comparison in titled(comparisons)
        for table in read_scores(comparison)[:1]
    ]
    return build_gallery("diet-e", title, f"{PAPER}, figure e", why, entries)


def describe_lowest_scores(heading: str, scores: NDArray[np.float32], data: ImageData) -> Described:
    """Takes the pictures of the lowest scores, and says how low these are."""
    order = np.argsort(scores, kind="stable")[:SHOWN]
    captions = [f"EL2N {score:.3g}" for score in scores[order]]
    classes = len(set(data.train_labels[order].tolist()))
    return take_pictures(data, order.tolist(), captions, heading), (
        f"{heading}: scores go from {scores.min():.2g} to {scores.max():.2g}, those shown up to "
        f"{scores[order[-1]]:.2g}; they are of {classes} classes."
    )


def lowest_ranks(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """Figure f: the examples of the lowest rank by EL2N and by their use in SB together."""
    title = "The examples of the lowest rank by EL2N and by SB together"
    entries = [
        (heading, comparison, partial(describe_lowest_ranks, heading, used, scores))
        for heading, comparison, used, scores in read_uses_and_scores(comparisons)
    ]
    return build_gallery("diet-f", title, f"{PAPER}, figure f", NO_SCORES_AND_USES, entries)


def describe_lowest_ranks(
    heading: str, used: NDArray[np.floating], scores: NDArray[np.float32], data: ImageData
) -> Described:
    """Takes the pictures of the lowest ranks, and says how often these were trained on."""
    order = np.argsort(combined_rank(used, scores), kind="stable")[:SHOWN]
    captions = [f"EL2N {scores[index]:.3g}, used {used[index]:.3g}x" for index in order]
    return take_pictures(data, order.tolist(), captions, heading), (
        f"{heading}: those shown were used {used[order].mean():.1f} times in training, an example "
        f"{used.mean():.1f} times on average."
    )


def combined_rank(used: NDArray[np.floating], scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Adds up an example's ranks, from 1, in both orders; equal values share their mean rank.

    >>> combined_rank(np.array([0.0, 2, 1]), np.array([5.0, 5, 1]))
    array([3.5, 5.5, 3. ])
    """
    from scipy.stats import rankdata  # takes longer to import than all else here

    ranks: NDArray[np.float64] = rankdata(used) + rankdata(scores)
    return ranks


def runtime(comparisons: Sequence[Comparison]) -> Grid | Missing:
    """Table 1: seconds of an epoch, by method and by what it leaves out.

    An epoch offers each example once that was not pruned before training; the time that scores
    took before training is not in it. The first epoch is left out, in which those that select by
    losses train on everything, if there was a test at its end.
    """
    name, title = "diet-table", "Time of an epoch by method"
    columns = ["method", "data and model", "left out, %", "of it before training, %"]
    columns += ["seconds per epoch", "over Traditional's"]
    rows: list[list[Cell]] = []
    sentences = []
    for heading, comparison in titled(comparisons):
        group = beside_traditional(
            configurations(comparison), lambda config: config.strategy in {*BACKPROP, *PRUNING}
        )
        plain = traditional(group)
        if plain is None or len(group) < 2:
            continue
        ratios, base = {}, epoch_seconds(plain)
        for config in group:
            seconds, ratio = epoch_seconds(config), None
            if comparison.machine(config.label) == comparison.machine(plain.label):
                ratio = seconds.middle / base.middle
                if config is not plain:
                    ratios[config.label] = ratio
            before = 100 * find_strategy(config.strategy).dropped(config.runs[0].keep_asked)
            rows.append([config.label, heading, percent_left_out(config), before, seconds, ratio])
        if ratios:
            fastest = min(ratios, key=ratios.__getitem__)
            sentences.append(
                f"{heading}: an epoch of {fastest} takes {ratios[fastest]:.2f} of Traditional's."
            )
    if not rows:
        why = "No such run beside Traditional. Record some: siftback compare --strategies"
        return Missing(name, title, f"{why} traditional,{','.join(PRUNING)},random --keep 0.5")
    return Grid(name, title, sentences, f"{PAPER}, table 1", columns, rows)


def epoch_seconds(configuration: Configuration) -> Range:
    """Measures an epoch after the first, in seconds: median, least and most over the seeds."""
    seconds = []
    for run, curve in zip(configuration.runs, configuration.curves, strict=True):
        last = curve[-1]
        first = next((test for test in curve if test.epoch >= 1), last)
        if first.epoch == last.epoch:
            seconds.append((run.seconds_train - run.seconds_scoring) / run.epochs)
        else:
            seconds.append((last.seconds - first.seconds) / (last.epoch - first.epoch))
    return Range(float(np.median(seconds)), min(seconds), max(seconds))


def read_scores(comparison: Comparison, score: str = "el2n") -> list[Scores]:
    """Reads the tables of a score in a comparison's folder, those that are not damaged."""
    tables = []
    for path in sorted((comparison.folder / SCORES_FOLDER).glob("*.parquet")):
        with suppress(ConfigError):
            table = Scores.read(path)
            if table.origin.get("score") == score:
                tables.append(table)
    return tables


def read_uses_and_scores(
    comparisons: Sequence[Comparison],
) -> Iterator[tuple[str, Comparison, NDArray[np.floating], NDArray[np.float32]]]:
    """Yields how often SB used each example, and its EL2N score, where a comparison has both."""
    observed = {
        id(run.configuration.comparison): run.seeds
        for runs in watched(comparisons, "losses")
        for run in reversed(runs)
        if run.configuration.strategy == "sb"
    }
    for heading, comparison in titled(comparisons):
        for table in read_scores(comparison)[:1]:
            scores = table.scores.numpy()
            if counted := read_scores(comparison, "sb-uses"):
                yield heading, comparison, counted[0].scores.numpy(), scores
            elif seeds := observed.get(id(comparison)):
                yield heading, comparison, count_uses(seeds, len(scores)), scores


def count_uses(seeds: Sequence[Sequence[Look]], examples: int) -> NDArray[np.float64]:
    """Counts how often each example was trained on in all, the mean over the seeds.

    >>> look = lambda *uses: Look(1.0, {"index": np.array([0, 2]), "uses": np.array(uses)})
    >>> count_uses([[look(1, 2), look(1, 3)], [look(1, 1)]], examples=3)
    array([1., 0., 2.])
    """
    times = np.zeros(examples)
    for looks in seeds:
        last = looks[-1].columns
        times[last["index"]] += last["uses"]
    return times / len(seeds)
