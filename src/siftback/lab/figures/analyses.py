"""The analyses by name: figures, tables and galleries, from findings and their words in a file.

>>> missing = ANALYSES["fig6"]([])
>>> missing.title
'Test error over training iterations'
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.resources import files
from typing import Any

from siftback.errors import ConfigError
from siftback.lab.figures.figure import (
    Analysis,
    Cell,
    Figure,
    Gallery,
    Grid,
    Missing,
    Panel,
    Picture,
)
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import UNREADABLE
from siftback.lab.records.formatting import one_of

WORDS: dict[str, dict[str, Any]] = tomllib.loads(
    files(__package__).joinpath("figures.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Finding:
    """A part of a figure, a table or a gallery: mostly that of one comparison.

    Attributes:
        sentence: The finding in numbers; empty where there is none.
        noun: What its runs are judged by, where the title says so.
        views: Panels by view, the first view being the usual one.
        rows: Rows of a table.
        pictures: Pictures of a gallery.
        missing: The reason where it has none of these.
    """

    sentence: str = ""
    noun: str = ""
    views: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    rows: Sequence[Sequence[Cell]] = ()
    pictures: Sequence[Picture] = ()
    missing: str = ""


def join_findings(
    name: str, findings: Iterable[Finding], comparisons: Sequence[Comparison] = ()
) -> Analysis:
    """Joins findings under the words of their figure, table or gallery.

    Args:
        name: A key of `WORDS`.
        findings: The findings.
        comparisons: Those that they are of, by whose metric the title goes where they say none.
    """
    words, findings = WORDS[name], list(findings)
    nouns = {finding.noun for finding in findings if finding.noun}
    nouns = nouns or {comparison.metric.noun for comparison in comparisons if comparison.runs}
    noun = " or ".join(sorted(nouns)) or "error"
    title, source = words["title"].format(noun), words["source"]
    sentences = [finding.sentence for finding in findings if finding.sentence]
    views: dict[str, list[Panel]] = {}
    for view, panels in (item for finding in findings for item in finding.views.items()):
        views.setdefault(view, []).extend(panels)
    if any(views.values()):
        return Figure(name, title, sentences, source, views)
    if rows := [row for finding in findings for row in finding.rows]:
        percent = ", %" if noun == "error" else ""
        columns = [column.format(noun, percent=percent) for column in words["columns"]]
        return Grid(name, title, sentences, source, columns, rows)
    if pictures := [picture for finding in findings for picture in finding.pictures]:
        return Gallery(name, title, sentences, source, pictures)
    reasons = [words["missing"], *(finding.missing for finding in findings if finding.missing)]
    return Missing(name, title, reasons[-1])


def make_analysis(name: str, comparisons: Sequence[Comparison]) -> Analysis:
    """Makes an analysis of some comparisons.

    Args:
        name: A key of `WORDS`, which say what finds its numbers, and with which options.
        comparisons: What to look at.
    """
    module, function = WORDS[name]["find"].split(".")
    # Imported now, as the modules import what findings are from here.
    find = getattr(import_module(f"siftback.lab.figures.{module}"), function)
    return join_findings(name, find(comparisons, **WORDS[name].get("options", {})), comparisons)


ANALYSES: dict[str, Callable[[Sequence[Comparison]], Analysis]] = {
    name: partial(make_analysis, name) for name in WORDS
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
