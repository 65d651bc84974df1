"""A loader's saved state, and whether it fits the loader that loads it."""

from typing import Any

from siftback.errors import StateError

VERSION = 3

# Settings in which processes differ, in a state of all of them together.
OF_ALL = {"rank": None, "world": None}

# Settings that a loader may not know before its first batch.
_FOUND_OUT = ("examples", "batch_size", "drop_last")


def check(state: dict[str, Any], here: dict[str, Any]) -> None:
    """Checks that a state is that of a loader built with the same arguments.

    Args:
        state: The saved state.
        here: The state of the loader that loads it.

    Raises:
        StateError: If it has another version, lacks an entry, or was saved with other settings.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION:
        raise StateError(
            f"a loader's state of version {version!r}; this release reads version "
            f"{VERSION}: resume with the release that saved it"
        )
    missing = here.keys() - state.keys()
    if missing:
        raise StateError(
            f"a loader's state without {', '.join(sorted(missing))}: "
            "give what state_dict() of a SelectiveLoader returned"
        )
    for name, own in here["settings"].items():
        saved = state["settings"].get(name)
        found_out = name in _FOUND_OUT and None in (saved, own)
        found_out |= name in OF_ALL and saved is None
        if saved != own and not found_out:
            what = f"build it with the same {name}"
            if name in OF_ALL:
                what = "each process loads its own state, with as many processes as saved theirs"
            raise StateError(
                f"the state was saved with {name}={saved!r}, and this loader has {name}={own!r}: "
                f"{what}"
            )
