"""Gradients of parts of a batch: figure 5 of Jiang et al. 2019."""

from collections.abc import Iterator, Sequence

import numpy as np

from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.figure import Panel, Series
from siftback.lab.figures.observed import Watched, watched_once
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import SHARES, SUBSETS

NAMES = {"high": "highest losses", "low": "lowest losses", "random": "random"}
COSINE, SIGNS = "cosine similarity", "components of equal sign (%)"


def gradient_similarity(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 5: how alike the gradients of a batch and of a part of it are, over training.

    Means over the batches looked at and the seeds, of plain training where it was observed; spread
    over the seeds. A view is a share of the batch.
    """
    for run in watched_once(comparisons, "gradients"):
        views, means = {}, []
        for share in SHARES:
            cosines, signs = (
                [similarity_line(run, subset, share, measure) for subset in SUBSETS]
                for measure in ("cosine", "same_sign")
            )
            views[f"{share:.0%} of the batch"] = [
                Panel(run.heading, "epoch", COSINE, "line", cosines),
                Panel(run.heading, "epoch", SIGNS, "line", signs),
            ]
            cosine = ", ".join(f"{np.mean(line.y):.2f} {line.label}" for line in cosines)
            equal = ", ".join(f"{np.mean(line.y):.0f} % {line.label}" for line in signs)
            means.append(f"cosine {cosine}; equal signs {equal}")
        about = f"of {SHARES[0]:.0%} of a batch, means over training: {means[0]}"
        yield Finding(f"{run.title}, {about}.", views=views)


def similarity_line(run: Watched, subset: str, share: float, measure: str) -> Series:
    """Returns how alike the gradients of a subset and of the whole batch are, over the epochs.

    Args:
        run: Observations of a configuration.
        subset: One of `SUBSETS`.
        share: Of the batch, one of `SHARES`.
        measure: A column: ``cosine``, or ``same_sign``, which is given in percent.
    """
    scale = 100 if measure == "same_sign" else 1
    epochs, means = [], []
    for looks in zip(*run.seeds, strict=False):
        epochs.append(float(np.mean([look.epoch for look in looks])))
        seeds = []
        for columns in (look.columns for look in looks):
            rows = (columns["subset"] == subset) & np.isclose(columns["share"], share)
            seeds.append(scale * float(columns[measure][rows].mean()))
        means.append(seeds)
    return Series.over_seeds(NAMES[subset], epochs, means, NAMES[subset])
