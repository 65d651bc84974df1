"""Colours of the groups of a figure: the same strategy has the same one in all of them."""

from collections.abc import Iterable

from siftback.lab.records.run_summary import MATCHED, TRADITIONAL

# Okabe and Ito's colours, which differ with any colour vision; black is kept for Traditional and
# yellow, faint on white, comes last.
COLOURS = ("#E69F00", "#0072B2", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")

# Those that are compared most keep theirs; others take what is left.
_KEPT = dict(
    zip(
        ("sb", "stale-sb", "sb-single-pass", "sb-memory", "random", "kath18"),
        COLOURS,
        strict=False,
    )
)
_PLAIN = {TRADITIONAL: "#000000", MATCHED: "#7F7F7F"}


def colours(groups: Iterable[str]) -> dict[str, str]:
    """A colour for each group, distinct with any colour vision, as long as there are some.

    >>> colours(["traditional", "sb", "seta"])
    {'traditional': '#000000', 'sb': '#E69F00', 'seta': '#0072B2'}
    """
    named = list(dict.fromkeys(groups))
    found = {name: (_PLAIN | _KEPT)[name] for name in named if name in _PLAIN | _KEPT}
    # Those that are free first; beyond them the others are shared evenly.
    order = sorted(COLOURS, key=lambda colour: colour in found.values())
    others = [name for name in named if name not in found]
    found |= {name: order[place % len(order)] for place, name in enumerate(others)}
    return {name: found[name] for name in named}
