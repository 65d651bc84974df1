"""Communication between the processes of one training."""

from typing import Any

import torch.distributed as dist

from siftback.errors import StateError
from siftback.loading.meeting import meet


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the world size of ``torch.distributed``; else 0 and 1.

    >>> rank_and_world()
    (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def all_gather(value: Any) -> list[Any]:
    """The values of all processes, by rank. All must call it, and wait for each other.

    Args:
        value: Anything that can be pickled; tensors on the CPU.
    """
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def broadcast(value: Any) -> Any:
    """The value of rank 0. All processes must call it, and wait for rank 0.

    Args:
        value: Anything that can be pickled; tensors on the CPU.
    """
    found = [value]
    dist.broadcast_object_list(found)
    return found[0]


def states_of_ranks(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all processes, by rank: for a checkpoint that one process writes for all.

    All processes must call it, as `all_gather`.

    >>> states_of_ranks({"steps": 3})
    [{'steps': 3}]
    """
    meet("a checkpoint")
    return [state] if rank_and_world()[1] == 1 else all_gather(state)


def own_state(states: list[dict[str, Any]]) -> dict[str, Any]:
    """This process's own of the states of all.

    Raises:
        StateError: If there are not as many as processes.

    >>> own_state([{"steps": 3}])
    {'steps': 3}
    """
    rank, world = rank_and_world()
    if len(states) != world:
        raise StateError(
            f"the checkpoint was saved by {len(states)} processes, and here are {world}: resume "
            "with as many, as each has a state of its own"
        )
    return states[rank]
