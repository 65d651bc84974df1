"""A loader's saved state, and whether it fits the loader that is to go on from it."""

from collections.abc import Iterable
from typing import Any

from siftback.errors import StateError

VERSION = 2


def check(state: dict[str, Any], expected: Iterable[str], parts: dict[str, object]) -> None:
    """Makes sure that a state is that of a loader built with the same arguments.

    Args:
        state: What was saved.
        expected: The names of what it is to hold.
        parts: By name, the parts of the loader that it must have been saved with, None where it
            has none; such a part's state is a dict of one entry, named after its class.

    Raises:
        StateError: Where it is of another version, or something is missing or of another kind.
    """
    version = state.get("version")
    if version != VERSION:
        raise StateError(
            f"a loader's state of version {version!r}; this release reads version "
            f"{VERSION}: resume with the release that saved it"
        )
    missing = set(expected) - state.keys()
    if missing:
        raise StateError(
            f"a loader's state without {', '.join(sorted(missing))}: "
            "give what state_dict() of a SelectiveLoader returned"
        )
    for name, part in parts.items():
        kind = next(iter(state[name] or {"None": None}))
        here = type(part).__name__ if part is not None else "None"
        if kind != here:
            raise StateError(
                f"the state was saved with the {name} {kind}, and this loader has a {here}: "
                f"build it with the same {name}"
            )
