"""Figures and galleries as pictures, one style for all: SVG and PNG."""

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from siftback.lab.figures import styles
from siftback.lab.figures.figure import Figure, Gallery, Panel

FORMATS = ("png", "svg")
# Matplotlib's counterparts of the markers and dashes of a `Style`.
MARKERS = dict(zip(styles.MARKERS, "os^DvX", strict=True))
STROKES: Sequence[Any] = ("solid", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (7, 2)))
DASHES = dict(zip(styles.DASHES, STROKES, strict=True))
COLUMNS = 3  # panels beside each other, at most
PANEL = (4.6, 3.4)  # inches
LETTERS = 9  # of a title in an inch
PICTURES = 10  # beside each other
# Of a gallery, in inches: a picture's width, the heights of its line and of a heading.
CELL, LINE, HEADING = 0.95, 1.3, 0.2
DPI = 150


def save_pictures(figure: Figure | Gallery, folder: Path) -> list[Path]:
    """Draws SVG and PNG, of a figure with several views one each.

    Drawn again from the same data, the SVG has the same bytes.

    Args:
        figure: A figure, or a gallery.
        folder: The pictures' folder; made where it is missing.

    Returns:
        Their paths: ``fig6.png`` and ``fig6.svg`` of the first view, ``fig6-time.png`` and so on
        of the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, canvas in _draw(figure):
        for ending in FORMATS:
            paths.append(path := folder / f"{name}.{ending}")
            path.write_bytes(encode_canvas(canvas, ending))
    return paths


def render(figure: Figure | Gallery, ending: str = "png") -> bytes:
    """Draws a figure's first view, or a gallery: ``IPython.display.Image(render(figure))``.

    Args:
        figure: A figure, or a gallery.
        ending: One of `FORMATS`.
    """
    _, canvas = next(_draw(figure))
    return encode_canvas(canvas, ending)


def encode_canvas(canvas: Canvas, ending: str) -> bytes:
    """Returns a drawing as a file of one of `FORMATS`, with the same bytes whenever it is drawn."""
    undated: dict[str, Any] = {"Date": None} if ending == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "siftback"}):
        canvas.savefig(file := io.BytesIO(), format=ending, dpi=DPI, metadata=undated)
    return file.getvalue()


def _draw(figure: Figure | Gallery) -> Iterator[tuple[str, Canvas]]:
    """Draws a gallery, or each view of a figure; yields the name of its files too."""
    if isinstance(figure, Gallery):
        yield figure.name, _draw_gallery(figure)
        return
    for index, view in enumerate(figure.views):
        words = re.findall(r"[^\W_]+", view.lower()) if index else []
        yield "-".join([figure.name, *words]), _draw_view(figure, view)


def _draw_view(figure: Figure, view: str) -> Canvas:
    panels, looks = figure.views[view], styles.assign_styles(figure.keys)
    rows = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / rows)
    names = [name for panel in panels for name in panel.names]  # beside the axes
    width = columns * (PANEL[0] + 0.06 * max(map(len, names), default=0)) + 0.6
    labels = {series.label for panel in panels for series in panel.series}
    abreast = min(2 * columns, max(1, int(width / (0.07 * max(map(len, labels)) + 0.6))))
    title = textwrap.wrap(figure.title, round(LETTERS * width))
    height = 0.26 * math.ceil(len(labels) / abreast) + 0.4 + 0.2 * len(title)
    # Bars lie: many of them need height.
    bars = [len(p.names) * (len(p.series) if p.kind == "bars" else 1) for p in panels]
    for first in range(0, len(panels), columns):
        height += max(PANEL[1], 0.24 * max(bars[first : first + columns]) + 1.0)
    canvas = Canvas(figsize=(width, height), layout="constrained")
    canvas.subplots(rows, columns)
    for axes, panel in zip(canvas.axes, panels, strict=False):
        _draw_panel(axes, panel, looks)
    for axes in canvas.axes[len(panels) :]:
        axes.set_visible(False)
    handles = {
        label: handle
        for axes in canvas.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    canvas.suptitle("\n".join(title), fontweight="bold")
    if len(handles) > 1:
        below: dict[str, Any] = {"loc": "outside lower center", "ncols": abreast, "frameon": False}
        canvas.legend(handles.values(), handles.keys(), fontsize="small", **below)
    # Laid out now, and not again for each format.
    canvas.get_layout_engine().execute(canvas)  # type: ignore[union-attr]
    canvas.set_layout_engine(None)
    return canvas


def _draw_panel(axes: Axes, panel: Panel, looks: styles.Styles) -> None:
    names = panel.names
    thickness = 0.8 / len(panel.series) if panel.kind == "bars" else 0.8
    ends = np.zeros(len(names))  # of the bars stacked so far
    for number, series in enumerate(panel.series):
        style = looks[series.key]
        marker = MARKERS[style.marker]
        look: dict[str, Any] = {"color": style.colour, "alpha": 0.35 if series.faint else 1.0}
        x = np.array([names.index(str(x)) for x in series.x] if names else series.x, float)
        y = np.asarray(series.y, float)
        spread = None
        if series.low:
            spread = np.abs(np.stack([y - np.asarray(series.low), np.asarray(series.high) - y]))
        if panel.kind == "points" and names:
            axes.errorbar(y, x, xerr=spread, fmt=marker, capsize=3, **look)
            continue
        look["label"] = series.label
        if panel.kind in ("bars", "stacked"):
            y, left = np.nan_to_num(y), ends[x.astype(int)]
            if panel.kind == "stacked":
                spread = None
                ends[x.astype(int)] += y
            else:
                x += (number + 0.5) * thickness - 0.4
            caps = {"elinewidth": 0.8, "capsize": 2}
            axes.barh(x, y, 0.92 * thickness, left, xerr=spread, error_kw=caps, **look)
        elif panel.kind == "points":
            axes.scatter(x, y, s=18, marker=marker, **look)
        else:
            if series.low:
                band: dict[str, Any] = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(x, series.low, series.high, **band)
            # Markers on longer lines are one thick line, and a level or a limit was not measured.
            marked = len(x) <= 15 and not (series.faint and len(x) == 2)
            look |= {"linestyle": DASHES[style.dash], "marker": marker if marked else None}
            axes.plot(x, y, linewidth=1.6, markersize=3.5, **look)
    if names:  # they are read more easily from the left
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlabel(panel.y_label)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.grid(axis="x", color="0.9", linewidth=0.8)
        if panel.kind == "points":
            axes.axvline(0, color="0.4", linewidth=0.8)
    else:
        _set_scales(axes, panel)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        axes.grid(color="0.9", linewidth=0.8)
    axes.set_title(textwrap.fill(panel.title, round(LETTERS * PANEL[0])), fontsize="medium")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _set_scales(axes: Axes, panel: Panel) -> None:
    x = [float(x) for series in panel.series for x in series.x]
    if panel.log_x:
        _set_log_scale(axes, x, "x")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if max(x, default=0.0) >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    if panel.log_y:
        y = [y for series in panel.series for y in series.y if not math.isnan(y)]
        _set_log_scale(axes, panel.y_range or y, "y")
    axes.set_ylim(panel.y_range)


def _set_log_scale(axes: Axes, values: Sequence[float], which: Literal["x", "y"]) -> None:
    """Sets a log scale, which shows 90 % and 5 % alike, under plain numbers."""
    if not values or min(values) <= 0:  # No logarithm: a perfect test stays in the picture.
        return
    axes.set(**{f"{which}scale": "log"})
    axis = axes.yaxis if which == "y" else axes.xaxis
    # Where all lies within one decade, ticks at every power of ten would leave none or one.
    decades = math.log10(max(values) / min(values))
    steps = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1.3 else (1, 2, 5) if decades < 4 else (1,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_tick(value)))


def format_tick(value: float) -> str:
    """Formats a tick's number without an exponent.

    >>> format_tick(0.00005), format_tick(1.5), format_tick(100.0)
    ('0.00005', '1.5', '100')
    """
    return np.format_float_positional(value, precision=6, fractional=False, trim="-")


def _draw_gallery(gallery: Gallery) -> Canvas:
    lines = []
    for heading, row in groupby(gallery.pictures, lambda picture: picture.row):
        pictures = list(row)
        for start in range(0, len(pictures), PICTURES):
            lines.append((heading if start == 0 else "", pictures[start : start + PICTURES]))
    # Placed by hand, in inches: all are of one size, and a layout engine takes seconds.
    heights = [LINE + HEADING * bool(heading) for heading, _ in lines]
    width, height = PICTURES * CELL + 0.2, sum(heights) + 0.45
    canvas = Canvas(figsize=(width, height))
    canvas.suptitle(gallery.title, y=1 - 0.08 / height, va="top", fontweight="bold")
    top = height - 0.45
    for (heading, pictures), line_height in zip(lines, heights, strict=True):
        canvas.text(0.5, top / height, heading, ha="center", va="top", fontsize="small")
        for column, picture in enumerate(pictures):
            left, bottom, side = 0.13 + column * CELL, top - line_height + 0.17, CELL - 0.06
            axes = canvas.add_axes((left / width, bottom / height, side / width, side / height))
            axes.set_axis_off()
            image = picture.image[..., 0] if picture.image.shape[2] == 1 else picture.image
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            axes.set_title(f"{picture.label}\n{picture.caption}", fontsize=6)
        top -= line_height
    return canvas
