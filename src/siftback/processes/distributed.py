"""Communication between the processes of one training."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from siftback.errors import StateError
from siftback.processes.barrier import barrier


def rank_and_world() -> tuple[int, int]:
    """Returns this process's rank and the world size of ``torch.distributed``; else 0 and 1.

    >>> rank_and_world()
    (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def all_gather(value: Any) -> list[Any]:
    """Returns the values of all processes, by rank. All must call it, and wait for each other.

    Args:
        value: Anything that can be pickled; tensors on the CPU.
    """
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def broadcast(value: Any) -> Any:
    """Returns the value of rank 0. All processes must call it, and wait for rank 0.

    Args:
        value: Anything that can be pickled; of the other ranks it is not used.
    """
    values = [value]
    dist.broadcast_object_list(values, 0)
    return values[0]


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Returns the sum of the tensors of all processes, on the CPU. All must call it.

    Args:
        tensor: On the CPU, of one shape and dtype in all processes; it is not changed.
    """
    if rank_and_world()[1] == 1:
        return tensor
    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if "cpu:" not in dist.get_backend_config() and accelerator:  # NCCL takes no tensors on the CPU
        device = torch.device(accelerator.type, torch.accelerator.current_device_index())
    total = tensor.to(device, copy=True)
    dist.all_reduce(total)
    return total.cpu()


def states_of_ranks(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the states of all processes, by rank: for a checkpoint that one process writes.

    All processes must call it, as `all_gather`.

    >>> states_of_ranks({"steps": 3})
    [{'steps': 3}]
    """
    barrier("a checkpoint")
    return [state] if rank_and_world()[1] == 1 else all_gather(state)


def own_state(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns this process's state, of the states of all.

    Raises:
        StateError: If there are not as many as processes.

    >>> own_state([{"steps": 3}])
    {'steps': 3}
    """
    rank, world = rank_and_world()
    if len(states) != world:
        raise StateError(
            f"the checkpoint was saved by {len(states)} processes, and there are {world}: resume "
            "with as many, as each has a state of its own"
        )
    return states[rank]
