"""What the processes of one training have in common."""

from typing import Any

import torch.distributed as dist


def rank_and_world() -> tuple[int, int]:
    """This process's rank and how many there are: of ``torch.distributed``, else 0 of 1.

    >>> rank_and_world()
    (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def all_gather(value: Any) -> list[Any]:
    """What each process gives, by rank; all have to call it, and wait for each other.

    Args:
        value: Anything that can be pickled; tensors on the CPU.
    """
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def broadcast(value: Any) -> Any:
    """What the process of rank 0 gives; all have to call it, and wait for that one.

    Args:
        value: Anything that can be pickled; tensors on the CPU.
    """
    found = [value]
    dist.broadcast_object_list(found)
    return found[0]
