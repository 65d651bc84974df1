"""Figures as the page's script draws them: JSON, in which every series has its look."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from siftback.lab.analyses.figure import Figure, Series
from siftback.lab.analyses.styles import Styles, assign_styles


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
            if entry[name] is not None:
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
