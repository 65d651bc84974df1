"""Pruning and selecting together: figures a to f and table 1 of *Diet Selective-Backprop*."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.analyses.configurations import Configuration, configurations, titled, traditional
from siftback.lab.analyses.figure import (
    Cell,
    Figure,
    Gallery,
    Grid,
    Missing,
    Panel,
    Range,
    Series,
)
from siftback.lab.analyses.observed import command, watched
from siftback.lab.analyses.pictures import pictures, training_set
from siftback.lab.experiments.example_scores import SCORES_FOLDER, Scores, overlaps
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import TRADITIONAL
from siftback.lab.records.observations import Look
from siftback.lab.strategies.table import find_strategy

PAPER = "Lu, Zamoshchin and Chen, Diet Selective-Backprop"
BACKPROP = ("sb", "random", "sb-single-pass", "random-single-pass")
PRUNING = ("el2n", "sb", "diet-sb", "diet-random")
DROPS = (0.1, 0.25, 0.5, 0.75, 0.9)
SHOWN = 20
PERCENT_LEFT_OUT = "examples left out (%)"


def backprop_accuracy(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure a: accuracy of what selects in each batch, by the share left out."""
    title = "Accuracy of Selective- and Random-Backprop"
    return _accuracy("diet-a", title, "figure a", comparisons, BACKPROP, "random")


def pruning_accuracy(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure b: accuracy of EL2N, SB and Diet-SB, by the share left out."""
    title = "Accuracy of EL2N, Selective-Backprop and Diet-SB"
    return _accuracy("diet-b", title, "figure b", comparisons, PRUNING, "el2n")


def _accuracy(
    name: str,
    title: str,
    source: str,
    comparisons: Sequence[Comparison],
    among: Sequence[str],
    needed: str,
) -> Figure | Missing:
    """Final accuracy of classifiers by the share left out, and accuracy over training.

    Args:
        name: Of the analysis.
        title: What it shows.
        source: The paper's figure.
        comparisons: Where to look.
        among: The strategies to show, beside Traditional.
        needed: The one without which there is nothing to see.
    """
    panels, sentences = [], []
    for heading, comparison in titled(comparisons):
        found = [
            one
            for one in configurations(comparison)
            if one.label == TRADITIONAL or one.strategy in among
        ]
        if comparison.metric.name != "error":
            continue
        if not any(one.strategy == needed for one in found):
            continue
        by_strategy: dict[str, list[Configuration]] = {}
        for one in sorted(found, key=_left_out):
            by_strategy.setdefault(one.strategy, []).append(one)
        ends = [_accuracies(strategy, of) for strategy, of in by_strategy.items()]
        panels.append(Panel(heading, PERCENT_LEFT_OUT, "final accuracy (%)", "line", ends))
        over = [_over_epochs(one) for one in found]
        panels.append(Panel(heading, "epoch", "accuracy (%)", "line", over))
        accuracies = ", ".join(
            f"{one.label} {100 - one.mean(lambda run: run.test_error_final):.2f} %" for one in found
        )
        sentences.append(f"{heading}, final accuracy: {accuracies}.")
    if not panels:
        return Missing(
            name,
            title,
            f"No run of {needed} that is judged by its error. Record some: siftback compare "
            f"--strategies traditional,{','.join(among)} --keep 0.5,0.25",
        )
    return Figure(name, title, sentences, f"{PAPER}, {source}", {"epoch": panels})


def _left_out(one: Configuration) -> float:
    return 100 * (1 - one.mean(lambda run: run.keep_measured))


def _accuracies(strategy: str, found: Sequence[Configuration]) -> Series:
    finals = [[100 - run.test_error_final for run in one.runs] for one in found]
    return Series.over_seeds(strategy, [_left_out(one) for one in found], finals, strategy)


def _over_epochs(one: Configuration) -> Series:
    together = list(zip(*one.curves, strict=False))
    epochs = [float(np.mean([e.epoch for e in each])) for each in together]
    accuracy = [100 - float(np.mean([e.test_error for e in each])) for each in together]
    return Series(one.label, epochs, accuracy, group=one.strategy)


def overlap_of_models(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure c: of what EL2N prunes by one model, the share that it prunes by another too."""
    name, title = "diet-c", "Overlap of what EL2N prunes by two models"
    tables: dict[str, dict[str, Scores]] = {}
    for one in comparisons:
        for table in _tables(one):
            arguments = table.origin["environment"]["arguments"]
            asked = (arguments.get(key) for key in ("model", "width"))
            model = " of width ".join(str(value) for value in asked if value is not None)
            tables.setdefault(str(arguments["data"]), {}).setdefault(model, table)
    panels, sentences = [], []
    for data, by_model in tables.items():
        models = list(by_model)
        for place, first in enumerate(models):
            for second in models[place + 1 :]:
                if not by_model[first].labels.equal(by_model[second].labels):
                    continue
                found = overlaps(by_model[first], by_model[second], DROPS)
                panels.append(_overlap_panel(f"{data}, {first} and {second}", found))
                share = {drop: both for drop, both, _ in found}
                sentences.append(
                    f"{data}: {first} and {second} share {share[0.25]:.0%} of the quarter of "
                    f"lowest scores and {share[0.5]:.0%} of the half."
                )
    if not panels:
        why = "No EL2N scores of one data set by two models. Record them: siftback compare"
        return Missing(
            name, title, f"{why} --strategies traditional,diet-sb --model cnn, and --model resnet18"
        )
    return Figure(name, title, sentences, f"{PAPER}, figure c", {"share": panels})


def _overlap_panel(heading: str, found: Sequence[tuple[float, float, float]]) -> Panel:
    drops = [100 * drop for drop, _, _ in found]
    series = [
        Series("pruned by both", drops, [100 * both for _, both, _ in found], group="both"),
        Series("by chance", drops, drops, group="chance", faint=True),
    ]
    return Panel(heading, "pruned (%)", "of these, pruned by the other too (%)", "line", series)


def overlap_of_methods(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure d: of the examples that SB uses least, the share that EL2N scores lowest."""
    name, title = "diet-d", "What SB uses least, among what EL2N scores lowest"
    panels, sentences = [], []
    for heading, _, used, scores in _used_and_scored(comparisons):
        shares = [lowest_of_both(used, scores, drop) for drop in DROPS]
        drops = [100 * drop for drop in DROPS]
        series = [
            Series("lowest by both", drops, [100 * share for share in shares], group="both"),
            Series("by chance", drops, drops, group="chance", faint=True),
        ]
        label = "of these, lowest by EL2N too (%)"
        panels.append(Panel(heading, "least used by SB (%)", label, "line", series))
        at = dict(zip(DROPS, shares, strict=True))
        sentences.append(
            f"{heading}: of the quarter that SB uses least, {at[0.25]:.0%} are among the quarter "
            f"that EL2N scores lowest; of the half, {at[0.5]:.0%}."
        )
    if not panels:
        return Missing(name, title, _used_and_scored_why())
    return Figure(name, title, sentences, f"{PAPER}, figure d", {"share": panels})


def lowest_of_both(used: NDArray[np.floating], scores: NDArray[np.floating], share: float) -> float:
    """Of the share of lowest in one, the share that is among that many lowest of the other.

    >>> lowest_of_both(np.array([0.0, 1, 2, 3]), np.array([0.5, 9, 0.1, 8]), 0.5)
    0.5
    """
    k = max(1, round(share * len(used)))
    lowest = (set(np.argsort(each, kind="stable")[:k].tolist()) for each in (used, scores))
    return len(set.intersection(*lowest)) / k


def lowest_scores(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """Figure e: the examples of the lowest EL2N scores."""
    name, title = "diet-e", "The examples of the lowest EL2N scores"
    shown, sentences = [], []
    why = "No EL2N scores. Record them: siftback compare --strategies traditional,diet-sb"
    for heading, comparison in titled(comparisons):
        for table in _tables(comparison)[:1]:
            scores = table.scores.numpy()
            try:
                data = training_set(comparison)
            except ConfigError as error:
                why = f"The images of {heading} cannot be had ({error})"
                continue
            order = np.argsort(scores, kind="stable")[:SHOWN]
            captions = [f"EL2N {score:.3g}" for score in scores[order]]
            shown += pictures(data, order.tolist(), captions, heading)
            classes = len(set(data.train_labels[order].tolist()))
            sentences.append(
                f"{heading}: scores go from {scores.min():.2g} to {scores.max():.2g}, those shown "
                f"up to {scores[order[-1]]:.2g}; they are of {classes} classes."
            )
    if not shown:
        return Missing(name, title, why)
    return Gallery(name, title, sentences, f"{PAPER}, figure e", shown)


def lowest_ranks(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """Figure f: the examples of the lowest rank by EL2N and by their use in SB together."""
    name, title = "diet-f", "The examples of the lowest rank by EL2N and by SB together"
    shown, sentences = [], []
    why = _used_and_scored_why()
    for heading, comparison, used, scores in _used_and_scored(comparisons):
        try:
            data = training_set(comparison)
        except ConfigError as error:
            why = f"The images of {heading} cannot be had ({error})"
            continue
        together = combined_rank(used, scores)
        order = np.argsort(together, kind="stable")[:SHOWN]
        captions = [f"EL2N {scores[place]:.3g}, used {used[place]:.3g}x" for place in order]
        shown += pictures(data, order.tolist(), captions, heading)
        sentences.append(
            f"{heading}: those shown were used {used[order].mean():.1f} times in training, an "
            f"example {used.mean():.1f} times on average."
        )
    if not shown:
        return Missing(name, title, why)
    return Gallery(name, title, sentences, f"{PAPER}, figure f", shown)


def combined_rank(used: NDArray[np.floating], scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """The sum of an example's ranks, from 1, in both orders; equal values share their mean rank.

    >>> combined_rank(np.array([0.0, 2, 1]), np.array([5.0, 5, 1]))
    array([3.5, 5.5, 3. ])
    """
    from scipy.stats import rankdata  # takes longer to import than all else here

    found: NDArray[np.float64] = rankdata(used) + rankdata(scores)
    return found


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
        found = [
            one
            for one in configurations(comparison)
            if one.label == TRADITIONAL or one.strategy in {*BACKPROP, *PRUNING}
        ]
        plain = traditional(found)
        if plain is None or len(found) < 2:
            continue
        ratios, base = {}, _epoch_of(plain)
        for one in found:
            each = _epoch_of(one)
            same = comparison.machine(one.label) == comparison.machine(plain.label)
            ratio = each.middle / base.middle if same else None
            if ratio is not None and one is not plain:
                ratios[one.label] = ratio
            before = 100 * find_strategy(one.strategy).dropped(one.runs[0].keep_asked)
            rows.append([one.label, heading, _left_out(one), before, each, ratio])
        if ratios:
            fastest = min(ratios, key=ratios.__getitem__)
            sentences.append(
                f"{heading}: an epoch of {fastest} takes {ratios[fastest]:.2f} of Traditional's."
            )
    if not rows:
        return Missing(
            name,
            title,
            "No such run beside Traditional. Record some: siftback compare --strategies "
            f"traditional,{','.join(PRUNING)},random --keep 0.5",
        )
    return Grid(name, title, sentences, f"{PAPER}, table 1", columns, rows)


def _epoch_of(one: Configuration) -> Range:
    """Seconds of an epoch after the first: median, least and most over the seeds."""
    seconds = []
    for run, curve in zip(one.runs, one.curves, strict=True):
        first = next((each for each in curve if each.epoch >= 1), None)
        if first is None or first.epoch == curve[-1].epoch:
            seconds.append((run.seconds_train - run.seconds_scoring) / run.epochs)
        else:
            last = curve[-1]
            seconds.append((last.seconds - first.seconds) / (last.epoch - first.epoch))
    return Range(float(np.median(seconds)), min(seconds), max(seconds))


def _tables(comparison: Comparison, score: str = "el2n") -> list[Scores]:
    """The tables of a score in a comparison's folder, those that can be read."""
    found = []
    for path in sorted((comparison.folder / SCORES_FOLDER).glob("*.parquet")):
        with suppress(ConfigError):
            table = Scores.read(path)
            if table.origin.get("score") == score:
                found.append(table)
    return found


def _used_and_scored(
    comparisons: Sequence[Comparison],
) -> list[tuple[str, Comparison, NDArray[np.floating], NDArray[np.float32]]]:
    """How often SB used each example, and its EL2N score, where a comparison has both."""
    observed = {
        id(of.configuration.comparison): of.seeds
        for found in watched(comparisons, "losses")
        for of in reversed(found)
        if of.configuration.strategy == "sb"
    }
    made: list[tuple[str, Comparison, NDArray[np.floating], NDArray[np.float32]]] = []
    for heading, comparison in titled(comparisons):
        tables, counted = _tables(comparison), _tables(comparison, "sb-uses")
        if not tables:
            continue
        scores = tables[0].scores.numpy()
        if counted:
            made.append((heading, comparison, counted[0].scores.numpy(), scores))
        elif seeds := observed.get(id(comparison)):
            made.append((heading, comparison, uses(seeds, len(scores)), scores))
    return made


def _used_and_scored_why() -> str:
    how = command("losses", "traditional,sb,diet-sb")
    return f"No comparison has both EL2N scores and SB's use of its examples. {how}"


def uses(seeds: Sequence[Sequence[Look]], examples: int) -> NDArray[np.float64]:
    """float64[examples], how often each was trained on in all, the mean over the seeds.

    >>> look = lambda *uses: Look(1.0, {"index": np.array([0, 2]), "uses": np.array(uses)})
    >>> uses([[look(1, 2), look(1, 3)], [look(1, 1)]], examples=3)
    array([1., 0., 2.])
    """
    times = np.zeros(examples)
    for looks in seeds:
        last = looks[-1].columns
        times[last["index"]] += last["uses"]
    return times / len(seeds)
