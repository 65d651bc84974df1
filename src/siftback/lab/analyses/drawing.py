"""Figures and galleries as pictures, one style for all: SVG and PNG."""

import io
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from siftback.lab.analyses.figure import Figure, Gallery, Panel, Series
from siftback.lab.analyses.palette import colours

FORMATS = ("png", "svg")
MARKERS = ("o", "s", "^", "D", "v")
COLUMNS = 3  # panels beside each other, at most
PANEL = (4.6, 3.4)  # inches
LETTERS = 9  # of a title in an inch
DASHES: Sequence[Any] = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
PICTURES = 10  # beside each other
CELL, LINE, HEADING = (
    0.95,
    1.3,
    0.2,
)  # inches: a picture's width, the heights of its line and a heading
DPI = 150


def draw(figure: Figure | Gallery, folder: Path) -> list[Path]:
    """Draws SVG and PNG, of a figure with several views one each.

    Drawn again from the same data, the SVG has the same bytes.

    Args:
        figure: What to draw.
        folder: Where the pictures go; made where it is missing.

    Returns:
        Their paths: ``fig6.png`` and ``fig6.svg`` of the first view, ``fig6-time.png`` and so on
        of the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(figure, Gallery):
        return _save(_gallery(figure), folder / figure.name)
    paths: list[Path] = []
    for place, (view, panels) in enumerate(figure.views.items()):
        stem = figure.name if place == 0 else f"{figure.name}-{_file_name(view)}"
        paths += _save(_panels(figure.title, panels), folder / stem)
    return paths


def png(figure: Figure | Gallery) -> bytes:
    """A figure's first view, or a gallery, as PNG, for ``IPython.display.Image(png(figure))``.

    Args:
        figure: What to draw.
    """
    return picture(figure, "png")


def picture(figure: Figure | Gallery, ending: str) -> bytes:
    """A figure's first view, or a gallery, as one of ``FORMATS``: the bytes that `draw` writes."""
    if isinstance(figure, Gallery):
        canvas = _gallery(figure)
    else:
        canvas = _panels(figure.title, next(iter(figure.views.values())))
    _lay_out(canvas)
    return _rendered(canvas, ending)


def _file_name(view: str) -> str:
    """A view's name as part of a file's.

    >>> _file_name("10% of the batch")
    '10-of-the-batch'
    """
    kept = "".join(letter if letter.isalnum() else " " for letter in view.lower())
    return "-".join(kept.split())


def _save(canvas: Canvas, stem: Path) -> list[Path]:
    _lay_out(canvas)
    paths = []
    for ending in FORMATS:
        paths.append(path := stem.with_name(f"{stem.name}.{ending}"))
        path.write_bytes(_rendered(canvas, ending))
    return paths


def _lay_out(canvas: Canvas) -> None:
    """Once, and not twice for each format."""
    canvas.draw_without_rendering()
    canvas.set_layout_engine(None)


def _rendered(canvas: Canvas, ending: str) -> bytes:
    dated: dict[str, Any] = {"Date": None} if ending == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "siftback"}):
        canvas.savefig(file := io.BytesIO(), format=ending, dpi=DPI, metadata=dated)
    return file.getvalue()


def _panels(title: str, panels: Sequence[Panel]) -> Canvas:
    rows = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / rows)
    styles = looks(panels)
    height = sum(_height(panels[row * columns : (row + 1) * columns]) for row in range(rows))
    width = columns * PANEL[0] + 0.6
    abreast = min(2 * columns, max(1, int(width / (0.07 * max(map(len, styles)) + 0.6))))
    legend = math.ceil(len(styles) / abreast)
    title_lines = textwrap.wrap(title, round(LETTERS * width))
    height += 0.26 * legend + 0.4 + 0.2 * len(title_lines)
    canvas = Canvas(figsize=(width, height), layout="constrained")
    canvas.subplots(rows, columns)
    for axes, panel in zip(canvas.axes, panels, strict=False):
        _draw(axes, panel, styles)
    for axes in canvas.axes[len(panels) :]:
        axes.set_visible(False)
    handles = {
        label: handle
        for axes in canvas.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    canvas.suptitle("\n".join(title_lines), fontweight="bold")
    if len(handles) > 1:
        canvas.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=abreast,
            frameon=False,
            fontsize="small",
        )
    return canvas


def _height(panels: Sequence[Panel]) -> float:
    """Of a row of panels, in inches: bars lie, and many of them take their room."""
    bars = [len(_names(panel)) * _bars_of(panel) for panel in panels]
    return max(PANEL[1], 0.24 * max(bars) + 1.0)


def _bars_of(panel: Panel) -> int:
    return len(panel.series) if panel.kind == "bars" else 1


def _names(panel: Panel) -> list[str]:
    """The names that a panel's series stand at, in order; none where they are numbers."""
    return list(dict.fromkeys(x for one in panel.series for x in one.x if isinstance(x, str)))


def looks(panels: Iterable[Panel]) -> dict[str, dict[str, Any]]:
    """How each label is drawn: colour by group; marker and dashes distinguish its lines.

    Groups that share a colour, as there are more groups than colours, begin with other markers.
    """
    series = {one.label: (one, panel.kind) for panel in panels for one in panel.series}
    by_group = colours(one.group or one.label for one, _ in series.values())
    shared: Counter[str] = Counter()
    places = {}
    for group, colour in by_group.items():
        places[group] = shared[colour]
        shared[colour] += 1
    found: dict[str, dict[str, Any]] = {}
    lines: Counter[str] = Counter()
    for label, (one, kind) in series.items():
        group = one.group or label
        found[label] = {
            "color": by_group[group],
            "marker": MARKERS[(places[group] + lines[group]) % len(MARKERS)],
            "linestyle": DASHES[lines[group] % len(DASHES)],
        }
        if kind == "line":
            lines[group] += 1
    return found


def _draw(axes: Axes, panel: Panel, styles: dict[str, dict[str, Any]]) -> None:
    names = _names(panel)
    if panel.kind in ("bars", "stacked"):
        _bars(axes, panel, names, styles)
    else:
        for one in panel.series:
            _marks(axes, one, panel.kind, names, styles[one.label])
    if names:  # they are read more easily from the left
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlabel(panel.y_label)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.grid(axis="x", color="0.9", linewidth=0.8)
        if panel.kind == "points":
            axes.axvline(0, color="0.4", linewidth=0.8)
    else:
        _scales(axes, panel)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        axes.grid(color="0.9", linewidth=0.8)
    axes.set_title(panel.title, fontsize="medium", wrap=True)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _scales(axes: Axes, panel: Panel) -> None:
    if panel.log_x:
        _log_axis(axes, [float(x) for one in panel.series for x in one.x], "x")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if max((float(x) for one in panel.series for x in one.x), default=0.0) >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    if panel.log_y:
        shown = panel.y_range or [y for one in panel.series for y in one.y if not math.isnan(y)]
        _log_axis(axes, shown)
    axes.set_ylim(panel.y_range)


def _log_axis(axes: Axes, values: Iterable[float], which: Literal["x", "y"] = "y") -> None:
    """Log scale, which shows 90 % and 5 % alike, under plain numbers."""
    shown = list(values)
    if not shown or min(shown) <= 0:  # No logarithm: a perfect test stays in the picture.
        return
    axes.set(**{f"{which}scale": "log"})
    axis = axes.yaxis if which == "y" else axes.xaxis
    # Where all lies within one decade, ticks at every power of ten would leave none or one.
    decades = math.log10(max(shown) / min(shown))
    steps = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1.3 else (1, 2, 5) if decades < 4 else (1,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))


def _plain(value: float) -> str:
    """A tick's number, without an exponent.

    >>> _plain(0.00005), _plain(1.5), _plain(100.0)
    ('0.00005', '1.5', '100')
    """
    return np.format_float_positional(value, precision=6, fractional=False, trim="-")


def _marks(axes: Axes, one: Series, kind: str, names: list[str], look: dict[str, Any]) -> None:
    y = np.asarray(one.y, float)
    alpha = 0.35 if one.faint else 1.0
    if names:
        places = [names.index(str(x)) for x in one.x]
        spread = None
        if one.low is not None and one.high is not None:
            spread = np.abs(np.stack([y - np.asarray(one.low), np.asarray(one.high) - y]))
        axes.errorbar(
            y, places, xerr=spread, fmt=look["marker"], color=look["color"], capsize=3, alpha=alpha
        )
        return
    x = np.asarray(one.x, float)
    if kind == "points":
        axes.scatter(
            x, y, s=18, color=look["color"], marker=look["marker"], alpha=alpha, label=one.label
        )
        return
    if one.low is not None and one.high is not None:
        axes.fill_between(x, one.low, one.high, color=look["color"], alpha=0.15, linewidth=0)
    # Markers on longer lines are one thick line, and a level or a limit has no measurements.
    marked = len(x) <= 15 and not (one.faint and len(x) == 2)
    axes.plot(
        x,
        y,
        label=one.label,
        linewidth=1.6,
        markersize=3.5,
        alpha=alpha,
        **look | ({} if marked else {"marker": None}),
    )


def _bars(axes: Axes, panel: Panel, names: list[str], styles: dict[str, dict[str, Any]]) -> None:
    stacked = panel.kind == "stacked"
    width = 0.8 if stacked else 0.8 / len(panel.series)
    start = np.zeros(len(names))
    for number, one in enumerate(panel.series):
        places = np.array([names.index(str(x)) for x in one.x])
        y = np.nan_to_num(np.asarray(one.y, float))
        if stacked:
            left, positions = start[places], places.astype(float)
            start[places] += y
        else:
            left, positions = np.zeros(len(y)), places + (number + 0.5) * width - 0.4
        spread = None
        if one.low is not None and one.high is not None and not stacked:
            spread = np.abs(np.stack([y - np.asarray(one.low), np.asarray(one.high) - y]))
        axes.barh(
            positions,
            y,
            0.92 * width,
            left,
            xerr=spread,
            label=one.label,
            color=styles[one.label]["color"],
            error_kw={"elinewidth": 0.8, "capsize": 2},
        )


def _gallery(gallery: Gallery) -> Canvas:
    rows: dict[str, list[Any]] = {}
    for picture in gallery.pictures:
        rows.setdefault(picture.row, []).append(picture)
    lines = [
        (heading if start == 0 else "", pictures[start : start + PICTURES])
        for heading, pictures in rows.items()
        for start in range(0, len(pictures), PICTURES)
    ]
    # Placed by hand, in inches: all are of one size, and a layout engine takes seconds.
    heights = [LINE + HEADING * bool(heading) for heading, _ in lines]
    width, height = PICTURES * CELL + 0.2, sum(heights) + 0.45
    canvas = Canvas(figsize=(width, height))
    canvas.suptitle(gallery.title, y=1 - 0.08 / height, va="top", fontweight="bold")
    top = height - 0.45
    for (heading, pictures), tall in zip(lines, heights, strict=True):
        canvas.text(0.5, top / height, heading, ha="center", va="top", fontsize="small")
        for place, picture in enumerate(pictures):
            left, bottom = 0.1 + place * CELL + 0.03, top - tall + 0.17
            side = CELL - 0.06
            box = (left / width, bottom / height, side / width, side / height)
            axes = canvas.add_axes(box)
            axes.set_axis_off()
            image = picture.image[..., 0] if picture.image.shape[2] == 1 else picture.image
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            axes.set_title(f"{picture.label}\n{picture.caption}", fontsize=6)
        top -= tall
    return canvas
