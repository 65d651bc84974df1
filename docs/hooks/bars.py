"""Pictures of what a method keeps, as SVG within a page: they take its colours."""

from collections.abc import Sequence
from html import escape

from kept import BINS, Kept

WIDTH, HEIGHT = 240, 150
LEFT, RIGHT, TOP, BOTTOM = 34, 16, 12, 30  # margins around the plot


def figure(names: Sequence[str], kept: Sequence[Kept], score: str) -> str:
    """One figure: a picture for each of what is kept, with the strategies' names.

    Args:
        names: Strategies that keep the same.
        kept: What they keep.
        score: What the examples are ordered by.
    """
    caption = ", ".join(f"<code>{escape(name)}</code>" for name in names)
    drawn = "".join(_picture(", ".join(names), one, score) for one in kept)
    return f'<figure class="kept"><figcaption>{caption}</figcaption>{drawn}</figure>'


def _picture(names: str, kept: Kept, score: str) -> str:
    """Bars: the share kept. Line: the mean weight, 0 for those left out."""
    highest = max(1.0, *(kept.weights or [0.0]))
    bars = "".join(_bar(place, share / highest) for place, share in enumerate(kept.shares))
    line = ""
    if kept.weights is not None:
        points = " ".join(
            f"{_x(place + 0.5):.1f},{_y(weight / highest):.1f}"
            for place, weight in enumerate(kept.weights)
        )
        line = f'<polyline class="weights" points="{points}"/>'
    ticks = "".join(
        f'<text x="{LEFT - 4}" y="{_y(value / highest) + 4:.1f}" text-anchor="end">{value:g}</text>'
        f'<path class="grid" d="M{LEFT} {_y(value / highest):.1f}H{WIDTH - RIGHT}"/>'
        for value in ([0, 0.5, 1] if highest == 1 else [0, 1, round(highest, 1)])
    )
    across = "".join(
        f'<text x="{_x(share * BINS):.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle">'
        f"{share:.0%}</text>"
        for share in (0, 0.5, 1)
    )
    label = f"percentile of the {score}" + (f", {kept.title}" if kept.title else "")
    said = f"{names}: of the examples by {label}, kept are " + ", ".join(
        f"{kept.shares[place]:.0%} at {(place + 0.5) / BINS:.0%}"
        for place in (0, BINS // 2, BINS - 1)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
        f"{ticks}{bars}{line}{across}"
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 3}" text-anchor="middle">'
        f"{escape(label)}</text></svg>"
    )


def _bar(place: int, share: float) -> str:
    top = _y(share)
    return (
        f'<rect class="share" x="{_x(place) + 0.5:.1f}" y="{top:.1f}" '
        f'width="{_x(1) - _x(0) - 1:.1f}" height="{_y(0) - top:.1f}"/>'
    )


def _x(place: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * place / BINS


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
