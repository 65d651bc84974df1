"""A loader's saved state, and whether it fits the loader that loads it."""

from collections.abc import Mapping
from typing import Any

from siftback.errors import StateError
from siftback.loader.batch_flow import BatchFlow
from siftback.state import (
    Check,
    anything,
    check_digest,
    check_entries,
    choice,
    dict_of,
    generator_state,
    integer,
    nothing,
    optional,
    state_of,
)

VERSION = 5

# Settings in which processes differ, in a state of all of them together.
OF_ALL = {"rank": None, "world": None}

# Settings that a loader may not know before its first batch.
_FOUND_OUT = ("examples", "batch_size", "drop_last")


def check(
    of: object,
    state: Any,
    settings: Mapping[str, Any],
    parts: Mapping[str, Any],
    flow: BatchFlow,
    *,
    is_common: bool,
) -> None:
    """Checks that a state is that of a loader built with the same arguments, and not damaged.

    Args:
        of: The loader that loads it.
        state: The saved state.
        settings: Of that loader.
        parts: Its parts, by name; None where it has none.
        flow: Its batches on their way.
        is_common: Whether the state may be that of all processes together.

    Raises:
        StateError: If it has another version, lacks an entry or has a damaged one, or was saved
            with other settings.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise StateError(
            f"a loader's state of version {version!r}; this release reads version "
            f"{VERSION}: resume with the release that saved it"
        )
    check_digest(of, state)
    sizes = {"drop_last": choice(None, False, True, "carry"), "batch_size": optional(integer(1))}
    names = {name: sizes.get(name, anything) for name in settings}
    check_entries(of, state, {"settings": dict_of(names)})
    saved = state["settings"]
    of_all = is_common and all(saved[name] is None for name in OF_ALL)
    if of_all:
        settings = {**settings, **OF_ALL}
    for name in OF_ALL:
        if saved[name] != settings[name]:
            raise StateError(
                f"the state was saved with {name}={saved[name]!r}, and this loader has "
                f"{name}={settings[name]!r}: each process loads its own state, with as many "
                "processes as saved theirs"
            )
    known = {name: own for name, own in settings.items() if not _is_found_out(name, own, saved)}
    theirs = {name: saved[name] for name in known}
    checks: dict[str, Check] = {
        name: nothing if own is None else state_of(own) for name, own in parts.items()
    }
    check_entries(
        of, {**state, "settings": theirs}, {**checks, "generator": generator_state}, known
    )
    sizes_known = None not in (saved["batch_size"], saved["drop_last"])
    flow.check_state(state, saved if sizes_known else None)


def _is_found_out(name: str, own: Any, saved: Mapping[str, Any]) -> bool:
    return name in _FOUND_OUT and None in (own, saved[name])
