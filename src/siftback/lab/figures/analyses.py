"""The analyses by name, and all of them of some comparisons.

>>> missing = ANALYSES["fig6"]([])
>>> missing.title
'Test error over training iterations'
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module

from siftback.errors import ConfigError
from siftback.lab.figures.describe import WORDS, Find, join_findings
from siftback.lab.figures.figure import Analysis, Missing
from siftback.lab.records.comparison_record import UNREADABLE, Comparison
from siftback.lab.records.formatting import one_of


def finder_of(name: str) -> Find:
    """Returns the function that finds the numbers of an analysis, with its options."""
    module, function = WORDS[name]["find"].split(".")
    find: Find = getattr(import_module(f"siftback.lab.figures.{module}"), function)
    return partial(find, **WORDS[name].get("options", {}))


ANALYSES: dict[str, Callable[[Sequence[Comparison]], Analysis]] = {
    name: partial(join_findings, name, finder_of(name)) for name in WORDS
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
