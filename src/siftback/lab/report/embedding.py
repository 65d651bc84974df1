"""Contents that a page carries within itself, so that it needs no other file."""

import base64
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from siftback.lab.figures.figure import Figure, Series
from siftback.lab.figures.styles import Styles, assign_styles
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.tables import as_csv

# Of one file, compressed: above this many bytes a browser may refuse to save what a page carries.
CARRIED_MOST = 1_500_000
_THUMBNAIL = 96  # pixels, the longer side


def data_link(content: bytes, kind: str) -> str:
    """Writes content as an address that carries it.

    >>> data_link(b"a,b", "text/csv")
    'data:text/csv;base64,YSxi'
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def picture_link(image: NDArray[np.uint8]) -> str:
    """Writes an image, uint8 [H, W, C], as the address of a PNG of at most 96 pixels a side."""
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_link(file.getvalue(), "image/png")


def chart_json(figure: Figure, shared: Styles, strategy_of: Mapping[str, str]) -> str:
    """Writes a figure's views as JSON that may stand within a script element.

    Args:
        figure: The figure.
        shared: The styles of the series that figures of a page have in common.
        strategy_of: The strategy of a group or a label, which hides and shows its series.
    """
    styles = assign_styles(key for key in figure.keys if key not in shared) | dict(shared)

    def describe(series: Series) -> dict[str, Any]:
        group, label = series.key
        entry = asdict(series) | styles[series.key]._asdict()
        del entry["group"]
        entry["strategy"] = strategy_of.get(group, strategy_of.get(label))
        for name in ("x", "y", "low", "high"):
            entry[name] = [round_value(value) for value in entry[name]]
        return entry

    views = {
        view: [
            {name: value for name, value in vars(panel).items() if name != "series"}
            | {"series": [describe(series) for series in panel.series]}
            for panel in panels
        ]
        for view, panels in figure.views.items()
    }
    text = json.dumps(views, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c")


def round_value(value: str | float) -> str | float | None:
    """Rounds to five digits, as many as a screen shows; None if not finite."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def evaluations_csv(comparison: Comparison) -> str:
    """Writes each evaluation of a comparison as a line, with the run's configuration and seed."""
    lines = []
    for run in comparison.runs:
        about = {"configuration": run.label, "seed": run.seed, "data": run.data, "model": run.model}
        for evaluation in comparison.evaluations(run):
            fields = asdict(evaluation)
            phases = fields.pop("phases")
            lines.append(about | fields | {f"seconds_{name}": phases[name] for name in phases})
    return as_csv(lines)


def read_templates(**filters: Callable[..., Any]) -> Environment:
    """Returns the pages' templates; that of HTML escapes whatever records say.

    Args:
        filters: Functions that they use, by name.
    """
    environment = Environment(
        loader=PackageLoader(__package__, "template"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment


def read_script(package: str, *path: str) -> Markup:
    """Reads a script or style sheet of an installed package, as it may stand within its element."""
    text = files(package).joinpath(*path).read_text(encoding="utf-8")
    return Markup(text.replace("</script", "<\\/script"))
