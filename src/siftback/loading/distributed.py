"""Communication between the processes of one training."""

from typing import Any

import torch.distributed as dist


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
