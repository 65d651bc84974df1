"""Each figure and table of the papers, from recorded comparisons.

>>> missing = ANALYSES["fig6"]([])
>>> missing.title
'Test error over training iterations'
"""

from collections.abc import Callable, Iterable, Sequence

from siftback.errors import ConfigError
from siftback.lab.figures import (
    budget,
    choices,
    confidence,
    curves,
    diet,
    gradients,
    learning_rates,
    loss_distributions,
    noise,
    pareto,
    pays,
    phases,
    speedups,
)
from siftback.lab.figures.figure import (
    Analysis,
    Cell,
    Figure,
    Gallery,
    Grid,
    Missing,
    Panel,
    Picture,
    Range,
    Series,
    format_cell,
)
from siftback.lab.figures.reading import read
from siftback.lab.figures.writing import export_csv, export_markdown, write_analysis
from siftback.lab.records.comparison_record import UNREADABLE, Comparison
from siftback.lab.records.formatting import one_of

__all__ = [
    "ANALYSES",
    "Analysis",
    "Cell",
    "Figure",
    "Gallery",
    "Grid",
    "Missing",
    "Panel",
    "Picture",
    "Range",
    "Series",
    "analyse",
    "export_csv",
    "export_markdown",
    "format_cell",
    "read",
    "write_analysis",
]

ANALYSES: dict[str, Callable[[Sequence[Comparison]], Analysis]] = {
    "table1": speedups.table_1,
    "budget": budget.difference,
    "fig1": phases.until_near,
    "fig2": loss_distributions.extremes,
    "choices": choices.picture_choices,
    "strip": choices.picture_strip,
    "fig3": loss_distributions.distribution,
    "losses": loss_distributions.over_training,
    "fig4": loss_distributions.probability_by_loss,
    "fig5": gradients.gradient_similarity,
    "fig6": curves.error_over_steps,
    "fig7": curves.error_over_time,
    "fig8": confidence.inverse_distribution,
    "fig9": confidence.accuracy_by_confidence,
    "fig10": phases.until_nearby,
    "fig11": curves.staleness,
    "fig12": curves.label_noise,
    "fig13": curves.selectivity,
    "fig14": pareto.trade_off,
    "fig15": loss_distributions.probability_over_training,
    "fig16": curves.architectures,
    "fig17": curves.schedules,
    "fig18": phases.forward_and_backward,
    "diet-a": diet.backprop_accuracy,
    "diet-b": diet.pruning_accuracy,
    "diet-c": diet.overlap_of_models,
    "diet-d": diet.overlap_of_methods,
    "diet-e": diet.lowest_scores,
    "diet-f": diet.lowest_ranks,
    "diet-table": diet.runtime,
    "ideal": budget.measured_against_ideal,
    "agreement": budget.agreement_over_training,
    "pays": pays.ratios,
    "budgets": pays.curves,
    "noise": noise.ends,
    "rates": learning_rates.by_rate,
}


def analyse(
    comparisons: Sequence[Comparison], only: Iterable[str] | None = None
) -> dict[str, Analysis]:
    """Makes the analyses, each for itself: what cannot be made says why, and the rest is made.

    Args:
        comparisons: What to look at.
        only: Names of ``ANALYSES``; None makes all.

    Raises:
        ConfigError: For an unknown name.
    """
    names = list(ANALYSES) if only is None else list(only)
    if unknown := [name for name in names if name not in ANALYSES]:
        raise ConfigError(f"no analysis {', '.join(unknown)}: {one_of(unknown[0], ANALYSES)}")
    return {name: _made(name, comparisons) for name in names}


def _made(name: str, comparisons: Sequence[Comparison]) -> Analysis:
    try:
        return ANALYSES[name](comparisons)
    except UNREADABLE as error:
        title = (ANALYSES[name].__doc__ or name).partition("\n")[0]
        return Missing(name, title, f"It could not be made ({type(error).__name__}: {error})")
