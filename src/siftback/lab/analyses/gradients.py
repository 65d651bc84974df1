"""Gradients of parts of a batch: figure 5 of Jiang et al. 2019."""

from collections.abc import Sequence

import numpy as np

from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Figure, Missing, Panel, Series
from siftback.lab.analyses.observed import Watched, command, watched
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import TRADITIONAL
from siftback.lab.records.observations import SHARES, SUBSETS

NAMES = {"high": "highest losses", "low": "lowest losses", "random": "random"}
MEASURES = {
    "cosine": "cosine similarity",
    "same_sign": "components of equal sign (%)",
}


def gradient_similarity(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 5: how alike the gradients of a batch and of a part of it are, over training.

    Means over the batches looked at and the seeds, of Traditional where it was observed; spread
    over the seeds. A view is a share of the batch.
    """
    name, title = "fig5", "Gradients of parts of a batch, beside that of the whole batch"
    chosen = [
        next((of for of in found if of.configuration.label == TRADITIONAL), found[0])
        for found in watched(comparisons, "gradients")
    ]
    if not chosen:
        return Missing(name, title, f"No gradients were observed. {command('gradients')}")
    views = {
        f"{share:.0%} of the batch": [
            _panel(of, share, measure) for of in chosen for measure in MEASURES
        ]
        for share in SHARES
    }
    sentences = [_sentence(of, SHARES[0]) for of in chosen]
    return Figure(name, title, sentences, f"{PAPER}, figure 5", views)


def _panel(of: Watched, share: float, measure: str) -> Panel:
    series = [_series(of, subset, share, measure) for subset in SUBSETS]
    title = f"{of.title}, {of.configuration.label}"
    return Panel(title, "epoch", MEASURES[measure], "line", series)


def _series(of: Watched, subset: str, share: float, measure: str) -> Series:
    together = list(zip(*of.seeds, strict=False))
    epochs = [float(np.mean([look.epoch for look in each])) for each in together]
    scale = 100 if measure == "same_sign" else 1
    means = []
    for each in together:
        seeds = []
        for look in each:
            columns = look.columns
            rows = (columns["subset"] == subset) & np.isclose(columns["share"], share)
            seeds.append(scale * float(columns[measure][rows].mean()))
        means.append(seeds)
    return Series.over_seeds(NAMES[subset], epochs, means, NAMES[subset])


def _sentence(of: Watched, share: float) -> str:
    cosines, signs = (
        ", ".join(
            f"{np.mean(_series(of, subset, share, measure).y):{form}}{unit} {NAMES[subset]}"
            for subset in SUBSETS
        )
        for measure, form, unit in (("cosine", ".2f", ""), ("same_sign", ".0f", " %"))
    )
    return (
        f"{of.title}, of {share:.0%} of a batch, means over training: cosine {cosines}; equal "
        f"signs {signs}."
    )
