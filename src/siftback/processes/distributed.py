"""Communication between the processes of one training."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from siftback.errors import StateError
from siftback.processes.meeting import meet


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


def all_gather_rows(rows: Tensor, counts: list[int]) -> list[Tensor]:
    """The rows of all processes, by rank. All must call it, and wait for each other.

    Args:
        rows: [n, ...], on the CPU.
        counts: n of each process, by rank.

    Returns:
        A tensor on the CPU for each process, of its own n.
    """
    most = max(counts)
    if most == 0:
        return [rows for _ in counts]
    padded = rows.new_zeros(most, *rows.shape[1:], device=_device())
    padded[: len(rows)] = rows
    found = padded.new_empty(len(counts) * most, *rows.shape[1:])
    dist.all_gather_into_tensor(found, padded)
    parts = torch.split(found.cpu(), most)
    return [part[:count] for part, count in zip(parts, counts, strict=True)]


def broadcast_tensor(tensor: Tensor) -> Tensor:
    """The tensor of rank 0, on the CPU. All processes must call it, and wait for rank 0.

    Args:
        tensor: On the CPU, of one shape and dtype in all processes; it is not changed.
    """
    found = tensor.to(_device(), copy=True)
    dist.broadcast(found, 0)
    return found.cpu()


def summed(tensor: Tensor) -> Tensor:
    """The sum of the tensors of all processes, on the CPU. All must call it.

    Args:
        tensor: On the CPU, of one shape and dtype in all processes; it is not changed.
    """
    if rank_and_world()[1] == 1:
        return tensor
    found = tensor.to(_device(), copy=True)
    dist.all_reduce(found)
    return found.cpu()


def _device() -> torch.device:
    """Where the process group takes tensors: NCCL has none on the CPU."""
    device = torch.accelerator.current_accelerator()
    if "cpu:" in dist.get_backend_config() or device is None:
        return torch.device("cpu")
    return torch.device(device.type, torch.accelerator.current_device_index())


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
