"""Each figure and table of the papers, from recorded comparisons.

>>> missing = ANALYSES["fig6"]([])
>>> missing.title
'Test error over training iterations'
"""

from collections.abc import Callable, Iterable, Sequence

from siftback import ConfigError
from siftback.lab.analyses import curves
from siftback.lab.analyses.figure import (
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
    plain,
    shown,
)
from siftback.lab.analyses.reading import UNREADABLE, read
from siftback.lab.records import Comparison

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
    "plain",
    "read",
    "shown",
]

ANALYSES: dict[str, Callable[[Sequence[Comparison]], Analysis]] = {
    "fig6": curves.error_over_steps,
    "fig7": curves.error_over_time,
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
        raise ConfigError(f"no analysis {', '.join(unknown)}: give some of {', '.join(ANALYSES)}")
    return {name: _made(name, comparisons) for name in names}


def _made(name: str, comparisons: Sequence[Comparison]) -> Analysis:
    try:
        return ANALYSES[name](comparisons)
    except UNREADABLE as error:
        title = (ANALYSES[name].__doc__ or name).partition("\n")[0]
        return Missing(name, title, f"It could not be made ({type(error).__name__}: {error})")
