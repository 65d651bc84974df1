"""Looks that tell series apart, the same on a page and in files."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import NamedTuple

from siftback.lab.records.run_summary import MATCHED, TRADITIONAL

# Okabe and Ito's colours, which differ with any colour vision; black is kept for plain training and
# yellow, faint on white, comes last.
COLOURS = ("#E69F00", "#0072B2", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
# Dashes, markers and patterns have Plotly's names.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "x")
PATTERNS = ("", "/", "x", "\\", ".", "-", "|", "+")

# Strategies that are compared most have the same colour in all figures; others take what is left.
COMPARED_MOST = ("sb", "stale-sb", "sb-single-pass", "sb-memory", "random", "kath18")
RESERVED = {TRADITIONAL: "#000000", MATCHED: "#7F7F7F"} | dict(
    zip(COMPARED_MOST, COLOURS, strict=False)
)

# Budget ratios have an order, so their colours do: blue the darker the higher they are.
RATIOS = {
    "1.5 or more": "#08306B",
    "1.2 to 1.5": "#2171B5",
    "1.05 to 1.2": "#6BAED6",
    "0.97 to 1.05": "#5A5A5A",
    "below 0.97": "#D55E00",
}
FLAT = "flat"
RESERVED |= RATIOS | {FLAT: "#949494"}


class Style(NamedTuple):
    """The look of one series.

    Attributes:
        colour: As ``#rrggbb``.
        dash: Of its line.
        marker: Of its points.
        pattern: Of its bars.
    """

    colour: str
    dash: str
    marker: str
    pattern: str


Styles = Mapping[tuple[str, str], Style]


def assign_styles(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """Assigns a style to each pair of a group and a label.

    The group decides the colour, distinct with any colour vision as long as there are some. Series
    that share a colour differ in dashes and marker.

    >>> styles = assign_styles([("traditional", "traditional"), ("sb", "sb 0.3"), ("sb", "sb 0.5")])
    >>> [(style.colour, style.dash, style.marker) for style in styles.values()]
    [('#000000', 'solid', 'circle'), ('#E69F00', 'solid', 'circle'), ('#E69F00', 'dash', 'square')]
    """
    keys = list(dict.fromkeys(keys))
    groups = dict.fromkeys(group for group, _ in keys)
    reserved = {group: RESERVED[group] for group in groups if group in RESERVED}
    # Free colours first, then all of them evenly.
    order = sorted(COLOURS, key=lambda colour: colour in reserved.values())
    colours = dict(zip((group for group in groups if group not in reserved), cycle(order)))
    colours |= reserved
    turns: Counter[str] = Counter()
    styles = {}
    for index, (group, label) in enumerate(keys):
        turn = turns[colours[group]]
        turns[colours[group]] += 1
        dash, marker = DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)]
        pattern = PATTERNS[index % len(PATTERNS)]
        styles[group, label] = Style(colours[group], dash, marker, pattern)
    return styles
