"""Results of an analysis: a figure, a table, a gallery, or why there is none.

Plain data, which :mod:`siftback.lab.figures.analyses` makes of findings. Of it
:mod:`siftback.lab.figures.drawing` writes SVG and PNG, :mod:`siftback.lab.figures.writing` CSV, and
:mod:`siftback.lab.report` a page, in which a series has the look that
:mod:`siftback.lab.figures.styles` assigns to it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from siftback.lab.records.frame import Range


@dataclass(frozen=True)
class Series:
    """One line, one set of points, or the bars of one colour.

    Attributes:
        label: Its name in the legend.
        x: Numbers, or names.
        y: A value for each x; NaN where there is none.
        low: For each x the lower end of the spread over the seeds, or of an interval; empty if
            it has no spread.
        high: The upper ends.
        group: Mostly its strategy. It decides the colour, and is shown and hidden as a whole.
        faint: Whether it is drawn paler than the others.
    """

    label: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    group: str = ""
    faint: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Its group, or its label where it is of none, and its label: decides its look."""
        return self.group or self.label, self.label

    @classmethod
    def over_seeds(
        cls,
        label: str,
        x: Sequence[float] | Sequence[str],
        seeds: Sequence[Sequence[float]],
        group: str = "",
        faint: bool = False,
    ) -> Self:
        """Takes the means over the seeds at each x, and the ends that the seeds lie between.

        Args:
            label: Its name in the legend.
            x: As of the series.
            seeds: The seeds' values at each x; where it is one everywhere, no spread is shown.
            group: As of the series.
            faint: As of the series.

        >>> line = Series.over_seeds("sb", [1.0, 2.0], [[4.0, 6.0], [3.0, 3.0]])
        >>> line.y, line.low, line.high
        ([5.0, 3.0], [4.0, 3.0], [6.0, 3.0])
        """
        shown = seeds if any(len(values) > 1 for values in seeds) else ()
        ends = list(map(min, shown)), list(map(max, shown))
        return cls(label, x, list(map(statistics.mean, seeds)), *ends, group, faint)


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: The line above it.
        x_label: The quantity on the x axis, with its unit.
        y_label: The quantity on the y axis, with its unit.
        kind: Lines, points, bars side by side, or bars on top of each other.
        series: In the order of the legend.
        log_x: Whether x is on a logarithmic scale.
        log_y: Whether y is.
        y_range: The ends of the y axis, where panels are to be compared; None fits the series.
    """

    title: str
    x_label: str
    y_label: str
    kind: Literal["line", "points", "bars", "stacked"]
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = None

    @property
    def names(self) -> list[str]:
        """The names that the series stand at, in order; none where x are numbers."""
        return list(dict.fromkeys(x for line in self.series for x in line.x if isinstance(x, str)))


@dataclass(frozen=True)
class _Named:
    """An analysis with a name and sentences.

    Attributes:
        name: Its key in ``ANALYSES``, and the name of its files.
        title: Its heading.
        sentences: Its findings in numbers, comparison by comparison.
        source: The paper and its figure or table.
    """

    name: str
    title: str
    sentences: Sequence[str]
    source: str

    @property
    def sentence(self) -> str:
        """Its sentences as one paragraph."""
        return " ".join(self.sentences)

    @property
    def alt(self) -> str:
        """The text for a reader who cannot see it."""
        return f"{self.title}. {self.sentence}"


@dataclass(frozen=True)
class Figure(_Named):
    """Panels side by side, in one or several views.

    Attributes:
        views: Panels by view, the first being the usual one: by what the x axis shows ("time",
            "steps" and "cost"), by a share, or one view alone.
    """

    views: Mapping[str, Sequence[Panel]]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """The keys of all its series, in order."""
        panels = (panel for panels in self.views.values() for panel in panels)
        return list(dict.fromkeys(series.key for panel in panels for series in panel.series))


@dataclass(frozen=True)
class Missing:
    """An analysis that the records are not enough for.

    Attributes:
        name: Its key in ``ANALYSES``.
        title: Its heading.
        why: The records that it needs, and the command that makes them.
    """

    name: str
    title: str
    why: str


Cell = str | float | Range | None


@dataclass(frozen=True)
class Grid(_Named):
    """A table.

    Attributes:
        columns: Names of its columns, the first being that of the rows' names.
        rows: As many cells each; None where there is no value.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, eq=False)
class Picture:
    """One image.

    Attributes:
        image: uint8 [H, W, C], C being 1 for grey and 3 for colour.
        label: Its class.
        caption: A line about it, such as its loss.
        row: The heading it stands under.
    """

    image: NDArray[np.uint8]
    label: str
    caption: str
    row: str = ""


@dataclass(frozen=True)
class Gallery(_Named):
    """Images in rows.

    Attributes:
        pictures: Those of one row follow each other.
    """

    pictures: Sequence[Picture]


Analysis = Figure | Grid | Gallery | Missing


def format_cell(cell: Cell) -> str:
    """Writes a table's cell as a reader sees it.

    >>> format_cell(Range(1.5, 1.25, 2.0)), format_cell(0.12345), format_cell(None)
    ('1.50 (1.25 to 2.00)', '0.12', '–')
    >>> format_cell(Range(1.5, 1.5, 1.5))
    '1.50'
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Range):
        spread = f" ({cell.least:.2f} to {cell.most:.2f})" if cell.least != cell.most else ""
        return f"{cell.median:.2f}{spread}"
    return "–" if cell is None or math.isnan(cell) else f"{cell:.2f}"  # noqa: RUF001
