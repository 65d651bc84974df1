"""A model as settings ask for it: where and in which type it computes, and what trains it."""

import math

import torch
from torch import nn

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import DataSet
from siftback.lab.records.environment import memory_gib
from siftback.lab.training.settings import Precision, Settings

TYPES: dict[Precision, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def check_model(settings: Settings, data: DataSet) -> None:
    """Refuses a model that cannot be had for some data, or that memory cannot hold."""
    models.check_kind(settings.model, data.kind, data.name)
    weights = models.count(settings.model, settings.width, norm=settings.norm, **data.model_sizes)
    needed, there = 3 * 4 * weights / 2**30, memory_gib() or math.inf
    if needed > there:
        raise ConfigError(
            f"{settings.model_name} needs {needed:,.0f} GiB for weights, gradients and momentum, "
            f"and this machine has {there:g}: give a smaller --width or another --model"
        )


def built_model(settings: Settings, data: DataSet) -> nn.Module:
    """A new model for some data, on the device and in the layout to train in."""
    model = models.build(
        settings.model, width=settings.width, norm=settings.norm, **data.model_sizes
    )
    model.to(device_of(settings), memory_format=layout_of(settings))  # type: ignore[call-overload]
    return model


def new_optimizer(
    model: nn.Module, settings: Settings, lr: float | None = None
) -> torch.optim.Optimizer:
    """What a model is trained by.

    Args:
        model: Whose parameters.
        settings: Which kind their model has, and rate, momentum and decay.
        lr: A rate in place of theirs.
    """
    lr = settings.lr if lr is None else lr
    momentum, decay = settings.momentum, settings.weight_decay
    if models.find(settings.model).recipe.optimizer == "adamw":
        betas = (momentum, 0.999)
        return torch.optim.AdamW(model.parameters(), lr, betas, weight_decay=decay)
    return torch.optim.SGD(
        model.parameters(), lr, momentum, weight_decay=decay, nesterov=momentum > 0
    )


def layout_of(settings: Settings) -> torch.memory_format:
    """The format of images and weights."""
    return torch.channels_last if settings.channels_last else torch.contiguous_format


def autocast_of(settings: Settings) -> torch.dtype | None:
    """The type of mixed precision; None for float32 throughout."""
    return TYPES[settings.precision]


def casting(settings: Settings, device: torch.device) -> torch.autocast:
    """The context of a forward pass in that type."""
    dtype = autocast_of(settings)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def device_of(settings: Settings) -> torch.device:
    """Where to train.

    Raises:
        ConfigError: If there is no such device here, or it cannot train as asked.
    """
    device = resolve_device(settings.device)
    if settings.precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"precision 'fp16' on {device.type}: its scaled losses need CUDA; give bf16 or fp32"
        )
    return device


def resolve_device(name: str) -> torch.device:
    """The device of a name, where ``auto`` is the best there is.

    Raises:
        ConfigError: If there is no such device here.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available()}
    available["mps"] = torch.backends.mps.is_available()
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available.get(name, False):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"no device {name!r} here: give auto or one of {usable}")
    return torch.device(name)
