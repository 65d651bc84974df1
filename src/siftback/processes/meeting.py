"""A place that all processes of one training must come to before any goes on."""

import contextlib
import hashlib
import json
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from siftback.arguments import is_number
from siftback.errors import ConfigError, ProcessError


class _Places:
    """The places that processes came to since they made their group, as keys of its store.

    A store may outlive a group: the keys begin with how many groups of as many processes met by it
    before.
    """

    def __init__(self, group: Any, store: Any, world: int) -> None:
        self.group, self.number = weakref.ref(group), 0
        joined = store.add(f"siftback/{world}/joined", 1)
        self._prefix = f"siftback/{world}/{(joined - 1) // world}"

    def key(self, rank: int, back: int = 0) -> str:
        """Of a process, at the present place or one before."""
        return f"{self._prefix}/{self.number - back}/{rank}"


_places: _Places | None = None


def meet(place: str, settings: Mapping[str, Any] | None = None) -> None:
    """Waits until all processes are here with the same settings, or says which are not.

    It asks the store through which the processes found each other. So it cannot be taken for a
    collective of the model's, as a collective here would be if another process were still in a
    step of its training, and a process that does not come can be named, whatever the backend.

    Args:
        place: What each process is about to do, for the error.
        settings: What all processes must have alike, by name; see `described`.

    Raises:
        ConfigError: If another process has another setting. All processes raise it.
        ProcessError: If not all come within the timeout of the process group, or one is at
            another place.

    >>> meet("the beginning of epoch 3", {"seed": 1})  # of one process
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    # PyTorch has no public name for the store; there is none where MPI starts the processes.
    store: Any = distributed_c10d._get_default_store()
    if store is None:
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    texts = described(settings or {})
    content = json.dumps(texts)
    # Settings are stored once by their digest, and places name the digest: so a meeting sends a few
    # bytes however many settings there are.
    digest = hashlib.sha256(content.encode()).hexdigest()
    try:
        places = _places_of(store, world)
        keys = [places.key(other) for other in range(world)]
        store.set(_settings_key(digest), content)
        store.set(keys[rank], f"{place}\n{digest}")
        with contextlib.suppress(RuntimeError):  # of what kind depends on the store
            store.wait(keys)
        here = store.check(keys)
        missing = [other for other in range(world) if not (here or store.check([keys[other]]))]
        if missing:
            raise ProcessError(_missed(rank, place, missing, store.timeout.total_seconds()))
        others = [found.decode().split("\n") for found in store.multi_get(keys)]
        if places.number:  # all are here, so that none waits at the place before
            store.delete_key(places.key(rank, back=1))
        places.number += 1
        for other, (there, _) in enumerate(others):
            if there != place:
                raise ProcessError(
                    f"rank {rank} is at {place}, and rank {other} at {there}: all processes must "
                    "iterate their loaders and take their states equally often"
                )
        for other, (_, theirs) in enumerate(others):
            if theirs != digest:
                unlike = json.loads(store.get(_settings_key(theirs)))
                raise ConfigError(_unlike(rank, texts, other, unlike))
    except dist.DistNetworkError as error:
        raise ProcessError(
            f"rank {rank} waited at {place}, and the process through which the others reach each "
            f"other, mostly that of rank 0, is gone: see its own output ({error})"
        ) from error


def described(settings: Mapping[Any, Any]) -> dict[str, str]:
    """Settings as text that is the same in all processes where the settings are.

    Args:
        settings: Values by name. Those of a mapping, of an object that has ``settings()``, and of
            its ``members()``, have names with dots. Tensors are compared by their contents, and
            objects of other kinds by their type or, of functions, their name.

    >>> from siftback import Memory
    >>> texts = described({"epochs": 3.0, "memory": Memory(keep=0.5), "pad": {"labels": -100}})
    >>> texts["epochs"], texts["memory"], texts["memory.keep"], texts["pad.labels"]
    ('3', 'Memory', '0.5', '-100')
    """
    texts: dict[str, str] = {}
    for name, value in settings.items():
        nested = [value] if isinstance(value, Mapping) else [*_described_by(value)]
        if not isinstance(value, Mapping):
            texts[f"{name}"] = _text(value)
        for inner in nested:
            texts |= {f"{name}.{key}": text for key, text in described(inner).items()}
    return texts


def _described_by(value: Any) -> list[Mapping[Any, Any]]:
    """The settings and the members that an object says it has."""
    if isinstance(value, type):
        return []
    methods = (getattr(value, name, None) for name in ("settings", "members"))
    found = [method() for method in methods if callable(method)]
    return [settings for settings in found if isinstance(settings, Mapping)]


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        content = value.detach().cpu().flatten().view(torch.uint8).numpy()
        digest = hashlib.sha256(content.tobytes()).hexdigest()[:8]
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} of digest {digest}"
    if isinstance(value, str | bool | int) or value is None:
        return str(value)
    if is_number(value):  # 3.0 epochs are 3
        return repr(int(value)) if value == int(value) else repr(float(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _settings_key(digest: str) -> str:
    return f"siftback/settings/{digest}"


def _places_of(store: Any, world: int) -> _Places:
    global _places
    if _places is None or _places.group() is not dist.group.WORLD:
        _places = _Places(dist.group.WORLD, store, world)
    return _places


def _unlike(rank: int, texts: dict[str, str], other: int, theirs: dict[str, str]) -> str:
    """Names a setting that two processes do not have alike: no detail before what it is of."""
    names = [name for name in texts | theirs if texts.get(name) != theirs.get(name)]
    name = min(names, key=lambda name: name.count("."))
    here, there = texts.get(name, "nothing"), theirs.get(name, "nothing")
    return (
        f"{name}={here} in the process of rank {rank}, and {there} in that of rank {other}: give "
        f"all processes the same {name}, as they make the same steps of one training"
    )


def _missed(rank: int, place: str, missing: list[int], seconds: float) -> str:
    return (
        f"rank {rank} waited {seconds:g} seconds at {place}, and rank "
        f"{', '.join(map(str, missing))} did not come: it was killed or raised an error, see its "
        "own output; or it is still in a step, as it has more batches than this one. All "
        "processes must make equally many steps; `with model.join():` may go round an epoch, not "
        "round several"
    )
