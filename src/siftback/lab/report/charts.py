"""Figures as the page's script draws them: JSON with a look for every series."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from siftback.lab.analyses.figure import Figure, Panel, Series
from siftback.lab.analyses.palette import colours

# In the words of Plotly, which draws them.
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "x")
_PATTERNS = ("", "/", "x", "\\", ".", "-", "|", "+")

INK = "ink"  # the colour of the page's text, whatever the theme
_BLACK = "#000000"


class Look(NamedTuple):
    """How one series looks unlike the others, with any colour vision and on paper.

    Attributes:
        colour: As ``#rrggbb``, or `INK`.
        dash: Of its line.
        marker: Of its points.
        pattern: Of its bars.
    """

    colour: str
    dash: str
    marker: str
    pattern: str


Looks = dict[tuple[str, str], Look]


def looks(named: Iterable[tuple[str, str]]) -> Looks:
    """A look for each pair of group and label.

    The group gives the colour; what shares a colour differs in line, marker and pattern.

    >>> drawn = looks([("traditional", "traditional"), ("sb", "sb 0.33"), ("sb", "sb 0.5")])
    >>> [(look.colour, look.dash, look.marker) for look in drawn.values()]  # doctest: +ELLIPSIS
    [('ink', 'solid', 'circle'), ('#E69F00', 'solid', 'circle'), ('#E69F00', 'dash', 'square')]
    """
    named = list(dict.fromkeys(named))
    shade = colours(group for group, _ in named)
    used: dict[str, int] = defaultdict(int)
    found: Looks = {}
    for place, (group, label) in enumerate(named):
        turn = used[shade[group]]
        used[shade[group]] += 1
        found[group, label] = Look(
            INK if shade[group] == _BLACK else shade[group],
            _DASHES[turn % len(_DASHES)],
            _MARKERS[turn % len(_MARKERS)],
            _PATTERNS[place % len(_PATTERNS)],
        )
    return found


def pairs_of(figure: Figure) -> list[tuple[str, str]]:
    """The groups and labels of a figure's series, in order."""
    return list(dict.fromkeys((_group(series), series.label) for series in _series(figure)))


def chart_data(figure: Figure, shared: Looks, strategy_of: Mapping[str, str]) -> str:
    """A figure's views as JSON that may stand within a script element.

    Args:
        figure: What to draw.
        shared: The looks of what the figures of a page have in common.
        strategy_of: The strategy of a group or a label, as one hides it in all figures.
    """
    drawn = looks(pair for pair in pairs_of(figure) if pair not in shared) | shared
    views = {
        view: [_panel(panel, drawn, strategy_of) for panel in panels]
        for view, panels in figure.views.items()
    }
    text = json.dumps(views, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def _series(figure: Figure) -> Iterable[Series]:
    panels = (panel for panels in figure.views.values() for panel in panels)
    return (series for panel in panels for series in panel.series)


def _group(series: Series) -> str:
    return series.group or series.label


def _panel(panel: Panel, drawn: Looks, strategy_of: Mapping[str, str]) -> dict[str, Any]:
    return {
        "title": panel.title,
        "x_label": panel.x_label,
        "y_label": panel.y_label,
        "kind": panel.kind,
        "log_x": panel.log_x,
        "log_y": panel.log_y,
        "y_range": panel.y_range,
        "series": [
            {
                "label": series.label,
                "strategy": strategy_of.get(_group(series), strategy_of.get(series.label)),
                "x": _numbers(series.x),
                "y": _numbers(series.y),
                "low": None if series.low is None else _numbers(series.low),
                "high": None if series.high is None else _numbers(series.high),
                "faint": series.faint,
            }
            | drawn[_group(series), series.label]._asdict()
            for series in panel.series
        ],
    }


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Numbers rounded to five digits, as many as a screen shows; None if not finite."""
    return [value if isinstance(value, str) else _rounded(float(value)) for value in values]


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short
