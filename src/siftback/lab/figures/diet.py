"""Pruning and selecting together: figures a to f and table 1 of *Diet Selective-Backprop*."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.data.data_set import ImageData
from siftback.lab.experiments.example_scores import SCORES_FOLDER, Scores, overlaps
from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.curves import mean_curves, read_curves
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.observed import count_uses, watched
from siftback.lab.figures.pictures import take_pictures, with_images
from siftback.lab.figures.titles import titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import Range, machine_of
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.strategies.table import PLAIN, find_strategy, library_name, strategy_name

DROPS = (0.1, 0.25, 0.5, 0.75, 0.9)
SHOWN = 20


def accuracy(
    comparisons: Sequence[Comparison], among: Sequence[str], needed: str
) -> Iterator[Finding]:
    """Figures a and b: final accuracy by the share left out, and accuracy over training.

    Args:
        comparisons: The records.
        among: The strategies to show, beside plain training.
        needed: The one without which there is nothing to see.
    """
    for curves in read_curves(comparisons):
        if curves.metric.name != "error" or needed not in set(curves.runs.strategy):
            continue
        curves = curves.beside_traditional(curves.runs.strategy.isin(among))
        left_out, finals = 100 * (1 - curves.means("keep_measured")), curves.means("final")
        runs = curves.runs.assign(left_out=curves.runs.label.map(left_out))
        runs, ends = runs.sort_values("left_out", kind="stable"), []
        for strategy, swept in runs.groupby("strategy", sort=False):
            finals_of = swept.groupby("label", sort=False).final
            seeds = [list(100 - of_share) for _, of_share in finals_of]
            name, shares = strategy_name(strategy), list(swept.left_out.unique())
            ends.append(Series.over_seeds(name, shares, seeds, strategy))
        lines = [
            Series(line.label, line.x, [100 - y for y in line.y], group=line.group)
            for line in mean_curves(curves.tests, "epoch")
        ]
        panels = [
            Panel(curves.title, "examples left out (%)", "final accuracy (%)", "line", ends),
            Panel(curves.title, "epoch", "accuracy (%)", "line", lines),
        ]
        written = ", ".join(f"{library_name(x)} {100 - final:.2f} %" for x, final in finals.items())
        yield Finding(f"{curves.title}, final accuracy: {written}.", views={"epoch": panels})


def overlap_of_models(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure c: of what EL2N prunes by one model, the share that it prunes by another too."""
    tables: dict[str, dict[str, Scores]] = {}
    for comparison in comparisons:
        for table in read_scores(comparison):
            arguments = table.origin["environment"]["arguments"]
            settings = (arguments.get(key) for key in ("model", "width"))
            model = " of width ".join(str(value) for value in settings if value is not None)
            tables.setdefault(str(arguments["data"]), {}).setdefault(model, table)
    labels = "pruned (%)", "pruned by both", "of these, pruned by the other too (%)"
    for data, by_model in tables.items():
        for first, second in combinations(by_model, 2):
            if by_model[first].labels.equal(by_model[second].labels):
                pruned = overlaps(by_model[first], by_model[second], DROPS)
                shares = {drop: share for drop, share, _ in pruned}
                sentence = (
                    f"{data}: {first} and {second} share {shares[0.25]:.0%} of the quarter of "
                    f"lowest scores and {shares[0.5]:.0%} of the half."
                )
                panel = plot_overlap(f"{data}, {first} and {second}", shares, *labels)
                yield Finding(sentence, views={"share": [panel]})


def plot_overlap(
    heading: str, shares: Mapping[float, float], x_label: str, label: str, y_label: str
) -> Panel:
    """Plots the shares that both have in common, beside those of chance."""
    drops = [100 * drop for drop in shares]
    series = [
        Series(label, drops, [100 * share for share in shares.values()], group="both"),
        Series("by chance", drops, drops, group="chance", faint=True),
    ]
    return Panel(heading, x_label, y_label, "line", series)


def overlap_of_methods(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure d: of the examples that SB uses least, the share that EL2N scores lowest."""
    labels = "least used by SB (%)", "lowest by both", "of these, lowest by EL2N too (%)"
    for heading, _, used, scores in read_uses_and_scores(comparisons):
        shares = {drop: lowest_of_both(used, scores, drop) for drop in DROPS}
        sentence = (
            f"{heading}: of the quarter that SB uses least, {shares[0.25]:.0%} are among the "
            f"quarter that EL2N scores lowest; of the half, {shares[0.5]:.0%}."
        )
        yield Finding(sentence, views={"share": [plot_overlap(heading, shares, *labels)]})


def lowest_of_both(used: NDArray[np.floating], scores: NDArray[np.floating], share: float) -> float:
    """Computes, of the lowest in one, the share that is among as many lowest of the other.

    >>> lowest_of_both(np.array([0.0, 1, 2, 3]), np.array([0.5, 9, 0.1, 8]), 0.5)
    0.5
    """
    k = max(1, round(share * len(used)))
    lowest = (set(np.argsort(values, kind="stable")[:k].tolist()) for values in (used, scores))
    return len(set.intersection(*lowest)) / k


def lowest_scores(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure e: the examples of the lowest EL2N scores."""
    for heading, comparison in titled(comparisons):
        for table in read_scores(comparison)[:1]:
            picture = partial(picture_lowest_scores, heading, table.scores.numpy())
            yield with_images(heading, comparison, picture)


def picture_lowest_scores(heading: str, scores: NDArray[np.float32], data: ImageData) -> Finding:
    """Takes the pictures of the lowest scores, and says how low these are."""
    order = np.argsort(scores, kind="stable")[:SHOWN]
    captions = [f"EL2N {score:.3g}" for score in scores[order]]
    classes = len(set(data.train_labels[order].tolist()))
    sentence = (
        f"{heading}: scores go from {scores.min():.2g} to {scores.max():.2g}, those shown up to "
        f"{scores[order[-1]]:.2g}; they are of {classes} classes."
    )
    return Finding(sentence, pictures=take_pictures(data, order.tolist(), captions, heading))


def lowest_ranks(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure f: the examples of the lowest rank by EL2N and by their use in SB together."""
    for heading, comparison, used, scores in read_uses_and_scores(comparisons):
        picture = partial(picture_lowest_ranks, heading, used, scores)
        yield with_images(heading, comparison, picture)


def picture_lowest_ranks(
    heading: str, used: NDArray[np.floating], scores: NDArray[np.float32], data: ImageData
) -> Finding:
    """Takes the pictures of the lowest ranks, and says how often these were trained on."""
    ranks = pd.DataFrame({"used": used, "scores": scores}).rank().sum(axis=1)
    order = np.argsort(ranks.to_numpy(), kind="stable")[:SHOWN]
    captions = [f"EL2N {scores[index]:.3g}, used {used[index]:.3g}x" for index in order]
    sentence = (
        f"{heading}: those shown were used {used[order].mean():.1f} times in training, an example "
        f"{used.mean():.1f} times on average."
    )
    return Finding(sentence, pictures=take_pictures(data, order.tolist(), captions, heading))


def runtime(comparisons: Sequence[Comparison], among: Sequence[str]) -> Iterator[Finding]:
    """Table 1: seconds of an epoch, by method and by what it leaves out.

    An epoch offers each example once that was not pruned before training; the time that scores
    took before training is not in it. The first epoch is left out, in which those that select by
    losses train on everything, if there was a test at its end.

    Args:
        comparisons: The records.
        among: The strategies to show, beside plain training.
    """
    for curves in read_curves(comparisons):
        curves = curves.beside_traditional(curves.runs.strategy.isin(among))
        runs = curves.runs.assign(left_out=100 * (1 - curves.runs.keep_measured))
        runs["epoch_seconds"] = [epoch_seconds(run, curves.tests) for run in runs.itertuples()]
        labels = list(runs.label.unique())
        if TRADITIONAL not in labels or len(labels) < 2:
            continue
        rows, ratios = [], {}
        base = runs.epoch_seconds[runs.label == TRADITIONAL].median()
        for label, seeds in runs.groupby("label", sort=False):
            seconds, ratio = seeds.epoch_seconds, None
            if machine_of(runs, label) == machine_of(runs, TRADITIONAL):
                ratio = ratios[label] = seconds.median() / base
            spread = Range(seconds.median(), seconds.min(), seconds.max())
            before = 100 * find_strategy(seeds.strategy.iloc[0]).dropped(seeds.keep_asked.iloc[0])
            shares = seeds.left_out.mean(), before
            rows.append([library_name(label), curves.title, *shares, spread, ratio])
        del ratios[TRADITIONAL]
        sentence = ""
        if ratios:
            fastest = min(ratios, key=ratios.__getitem__)
            share = f"{ratios[fastest]:.2f} of that of {PLAIN}"
            sentence = f"{curves.title}: an epoch of {library_name(fastest)} takes {share}."
        yield Finding(sentence, rows=rows)


def epoch_seconds(run: Any, tests: pd.DataFrame) -> float:
    """Measures an epoch after the first, in seconds.

    Args:
        run: A row of `read_runs`.
        tests: As `read_evaluations` returns them.
    """
    curve = tests[tests.record == run.record]
    last = curve.iloc[-1]
    first = curve[(curve.epoch >= 1) | (curve.number == last.number)].iloc[0]
    if first.epoch == last.epoch:
        return float((run.seconds_train - run.seconds_scoring) / run.epochs)
    return float((last.seconds - first.seconds) / (last.epoch - first.epoch))


def read_scores(comparison: Comparison) -> list[Scores]:
    """Reads the tables of EL2N scores in a comparison's folder, those that are not damaged."""
    tables = []
    for path in sorted((comparison.folder / SCORES_FOLDER).glob("*.parquet")):
        with suppress(ConfigError):
            table = Scores.read(path)
            if table.origin.get("score") == "el2n":
                tables.append(table)
    return tables


def read_uses_and_scores(
    comparisons: Sequence[Comparison],
) -> Iterator[tuple[str, Comparison, NDArray[np.floating], NDArray[np.float32]]]:
    """Yields how often SB used each example, and its EL2N score, where a comparison has both."""
    for runs in watched(comparisons, "losses"):
        of_sb = [run for run in runs if run.first.strategy == "sb"]
        if of_sb and (tables := read_scores(of_sb[0].comparison)):
            run, scores = of_sb[0], tables[0].scores.numpy()
            yield run.title, run.comparison, count_uses(run.seeds, len(scores)), scores
