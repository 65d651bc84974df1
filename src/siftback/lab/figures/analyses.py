"""The analyses by name, and all of them of some comparisons.

>>> missing = ANALYSES["fig6"]([])
>>> missing.title
'Test error over training iterations'
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from siftback.errors import ConfigError
from siftback.lab.figures import (
    budget,
    budget_map,
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
    rare,
    speedups,
)
from siftback.lab.figures.describe import WORDS, Find, join_findings
from siftback.lab.figures.figure import Analysis, Missing
from siftback.lab.records.comparison_record import UNREADABLE, Comparison
from siftback.lab.records.formatting import one_of

# What finds the numbers of each; its words stand in ``figures.toml``.
FINDERS: dict[str, Find] = {
    "table1": speedups.table_1,
    "budget": budget.difference,
    "fig1": partial(phases.until_near, factor=1.2),
    "fig2": loss_distributions.extremes,
    "choices": choices.most_and_least,
    "strip": choices.kept_by_epoch,
    "fig3": loss_distributions.distribution,
    "losses": loss_distributions.losses_by_epoch,
    "fig4": loss_distributions.probability_by_loss,
    "fig5": gradients.gradient_similarity,
    "fig6": partial(curves.error_over_training, first="steps"),
    "fig7": curves.error_over_training,
    "fig8": partial(confidence.by_percentile, measure="confidence"),
    "fig9": partial(confidence.by_percentile, measure="accuracy"),
    "fig10": partial(phases.until_near, factor=1.4),
    "fig11": curves.staleness,
    "fig12": curves.label_noise,
    "fig13": curves.selectivity,
    "fig14": pareto.trade_off,
    "fig15": loss_distributions.probability_over_training,
    "fig16": curves.architectures,
    "fig17": curves.schedules,
    "fig18": phases.forward_and_backward,
    "diet-a": partial(diet.accuracy, among=diet.BACKPROP, needed="random"),
    "diet-b": partial(diet.accuracy, among=diet.PRUNING, needed="el2n"),
    "diet-c": diet.overlap_of_models,
    "diet-d": diet.overlap_of_methods,
    "diet-e": diet.lowest_scores,
    "diet-f": diet.lowest_ranks,
    "diet-table": diet.runtime,
    "ideal": budget.measured_against_ideal,
    "agreement": budget.agreement_over_training,
    "pays": pays.ratios,
    "budgets": pays.ends_by_budget,
    "worst": budget_map.worst_ratios,
    "map": budget_map.ratios_on_the_map,
    "noise": noise.ends,
    "rare": rare.errors,
    "rates": learning_rates.by_rate,
}


ANALYSES: dict[str, Callable[[Sequence[Comparison]], Analysis]] = {
    name: partial(join_findings, name, find) for name, find in FINDERS.items()
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
    analyses: dict[str, Analysis] = {}
    for name in names:
        try:
            analyses[name] = ANALYSES[name](comparisons)
        except UNREADABLE as error:
            why = f"It could not be made ({type(error).__name__}: {error})"
            analyses[name] = Missing(name, WORDS[name]["title"].format("error"), why)
    return analyses
