"""A loader's saved state: what it holds, whether it fits, and how a loader goes on from it."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from siftback.batches.pool import Pool
from siftback.batches.source import saved_lists
from siftback.batches.stats import Stats
from siftback.errors import StateError
from siftback.loader.pipeline import Pipeline
from siftback.state import (
    anything,
    check_digest,
    check_entries,
    choice,
    dict_of,
    generator_state,
    integer,
    nothing,
    number,
    optional,
    state_of,
    tuple_of,
)

VERSION = 5

OF_ALL = {"rank": None, "world": None}
"""Settings in which processes differ, in a state of all of them together."""

_FOUND_OUT = ("examples", "batch_size", "drop_last")  # perhaps not before the first batch
_UNKNOWN = -1  # in a state: a count that is not known
_MOST = 1 << 40  # examples or batches of an epoch
_ROUNDING = 1e-9


def flow_state(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the place in the source, what is pooled, and what was counted."""
    source, pool = pipeline.source, pipeline.pool
    counts = {"to_come": pipeline.to_come, "batches": pipeline.batches}
    known = {name: count for name, count in counts.items() if count is not None}
    return {
        "source": source.state_dict(),
        "pool": None if pool is None else pool.state_dict(),
        "epochs_done": (pipeline.done_next, source.epochs_done),
        **dict.fromkeys(counts, _UNKNOWN),
        **(known if source.is_within else {}),
        "stats": asdict(pipeline.stats),
    }


def check_loader_state(
    loader: object,
    state: Any,
    settings: Mapping[str, Any],
    members: Mapping[str, Any],
    pipeline: Pipeline,
    *,
    is_common: bool,
) -> None:
    """Checks that a state is that of a loader built with the same arguments, and not damaged.

    Args:
        loader: The loader that loads it.
        state: The saved state.
        settings: The loader's.
        members: Objects with a state in it, by name; None where it has none.
        pipeline: The loader's.
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
    check_digest(loader, state)
    sizes = {"drop_last": choice(None, False, True, "carry"), "batch_size": optional(integer(1))}
    checks = dict.fromkeys(settings, anything) | sizes
    check_entries(loader, state, {"settings": dict_of(checks)})
    saved = state["settings"]
    if is_common and all(saved[name] is None for name in OF_ALL):
        settings = {**settings, **OF_ALL}
    for name in OF_ALL:
        if saved[name] != settings[name]:
            raise StateError(
                f"the state was saved with {name}={saved[name]!r}, and this loader has "
                f"{name}={settings[name]!r}: each process loads its own state, with as many "
                "processes as saved theirs"
            )
    known = {
        name: value
        for name, value in settings.items()
        if name not in _FOUND_OUT or None not in (value, saved[name])
    }
    pool = nothing
    if None not in (saved["batch_size"], saved["drop_last"]):
        pool = state_of(_empty_pool(pipeline, saved))
    stats = {name: integer() for name in vars(pipeline.stats)}
    checks = {
        **{
            name: nothing if member is None else state_of(member)
            for name, member in members.items()
        },
        "generator": generator_state,
        "source": state_of(pipeline.source),
        "pool": pool,
        "stats": dict_of({**stats, "seconds_selection": number(0)}),
        "to_come": integer(_UNKNOWN, _MOST),
        "batches": integer(_UNKNOWN, _MOST),
    }
    check_entries(
        loader, {**state, "settings": {name: saved[name] for name in known}}, checks, known
    )
    source = state["source"]
    done = source["epoch"]
    if source["batches"] > 0:
        done += min(source["position"] / source["batches"], 1.0)
    bounds = number(source["epoch"], done + _ROUNDING), number(done - _ROUNDING, done + _ROUNDING)
    check_entries(loader, state, {"epochs_done": tuple_of(*bounds)})


def load_flow(
    pipeline: Pipeline, state: dict[str, Any], progress: tuple[int, int] | None = None
) -> None:
    """Goes on from a state that was checked; changes nothing if it fails.

    Args:
        pipeline: The objects of the loader.
        state: The saved state.
        progress: The progress of the draw, to go back to; None where that was loaded.
    """
    pool = None
    if state["pool"] is not None:
        pool = _empty_pool(pipeline, state["pool"]["settings"])
        pool.lists = saved_lists(state["source"])
        pool.load_state_dict(state["pool"])
    stats = Stats(**state["stats"])
    pipeline.source.load_state_dict(state["source"])
    pipeline.pool = pool
    vars(pipeline.stats).update(vars(stats))
    pipeline.done = pipeline.done_next = state["epochs_done"][0]
    pipeline.to_come, pipeline.batches = (
        None if state[name] == _UNKNOWN else state[name] for name in ("to_come", "batches")
    )
    pipeline.resume()
    draw = pipeline.draw
    if draw is not None and progress is not None:
        draw.progress = progress
    pipeline.loaded = None
    if pipeline.source.is_within:
        progress = None if draw is None else draw.progress
        pipeline.loaded = partial(load_flow, state=state, progress=progress)


def _empty_pool(pipeline: Pipeline, sizes: Mapping[str, Any]) -> Pool:
    pad = None if pipeline.pool is None else pipeline.pool.pad
    return Pool(sizes["batch_size"], sizes["drop_last"], pad=pad)
