"""A place that all processes of one training must come to before any goes on."""

import contextlib
import weakref
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

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


def meet(place: str, order: str = "") -> None:
    """Waits until all processes are here, or says which are not.

    It asks the store through which the processes found each other. So it cannot be taken for a
    collective of the model's, as a collective here would be if another process were still in a
    step of its training, and a process that does not come can be named, whatever the backend.

    Args:
        place: What each process is about to do, for the error.
        order: What decides the order that they share, in words.

    Raises:
        ConfigError: If another process has another order.
        ProcessError: If not all come within the timeout of the process group, or one is at
            another place.

    >>> meet("the beginning of epoch 3")  # of one process
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    # PyTorch has no public name for the store; there is none where MPI starts the processes.
    store: Any = distributed_c10d._get_default_store()
    if store is None:
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    try:
        places = _places_of(store, world)
        keys = [places.key(other) for other in range(world)]
        store.set(keys[rank], f"{place}\n{order}")
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
    except dist.DistNetworkError as error:
        raise ProcessError(
            f"rank {rank} waited at {place}, and the process through which the others reach each "
            f"other, mostly that of rank 0, is gone: see its own output ({error})"
        ) from error
    for other, (there, theirs) in enumerate(others):
        if there != place:
            raise ProcessError(
                f"rank {rank} is at {place}, and rank {other} at {there}: all processes must "
                "iterate their loaders and take their states equally often"
            )
        if theirs != order:
            raise ConfigError(
                f"{order} in the process of rank {rank}, and {theirs} in that of rank {other}: "
                "give all processes the same, as they share one order"
            )


def _places_of(store: Any, world: int) -> _Places:
    global _places
    if _places is None or _places.group() is not dist.group.WORLD:
        _places = _Places(dist.group.WORLD, store, world)
    return _places


def _missed(rank: int, place: str, missing: list[int], seconds: float) -> str:
    return (
        f"rank {rank} waited {seconds:g} seconds at {place}, and rank "
        f"{', '.join(map(str, missing))} did not come: it was killed or raised an error, see its "
        "own output; or it is still in a step, as it has more batches than this one. All "
        "processes must make equally many steps; `with model.join():` may go round an epoch, not "
        "round several"
    )
