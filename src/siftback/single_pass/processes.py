"""Checks that the gradients of a single pass are those of all processes."""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from siftback.errors import ConfigError
from siftback.processes.distributed import rank_and_world


def check_traceable(model: nn.Module) -> None:
    """Checks that a model can be traced whole, by each process for itself.

    Raises:
        ConfigError: If it is wrapped in ``DistributedDataParallel``, or FSDP shards its weights.
    """
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "SinglePass(DistributedDataParallel(model)) would not average the gradients: wrap the "
            "other way round, DistributedDataParallel(SinglePass(model, ...))"
        )
    # FSDP takes more than a second to import, and has been imported where a model is sharded by it.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharding = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp else ()
    if any(isinstance(module, sharding) for module in model.modules()):
        raise ConfigError(
            "SinglePass traces a model with all its weights, and FSDP (fully_shard) keeps only a "
            "shard of them in each process: use DistributedDataParallel(SinglePass(model, ...)), "
            "or select rows with InBatch or SelectiveLoader, which work with FSDP"
        )


def check_averaging(single_pass: nn.Module, averaged: bool) -> None:
    """Checks, in a training of several processes, who takes care of the gradients.

    Args:
        single_pass: The `SinglePass`, in its forward.
        averaged: Whether ``DistributedDataParallel`` must be what calls it.

    Raises:
        ConfigError: If it is not, or FSDP shards the weights.
    """
    world = rank_and_world()[1]
    if world == 1 or not torch.is_grad_enabled():
        return
    check_traceable(single_pass)
    # PyTorch has no public name for the module whose forward is running.
    wrapper: Any = DistributedDataParallel._active_ddp_module
    if averaged and not (wrapper and any(module is single_pass for module in wrapper.modules())):
        raise ConfigError(
            f"{world} processes train, and SinglePass is not called by "
            "DistributedDataParallel, so that nothing would average the gradients and the "
            "processes would diverge: call DistributedDataParallel(SinglePass(model, ...)). If "
            "you average gradients yourself, give SinglePass(check=False)"
        )
