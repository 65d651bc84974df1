"""Checks of arguments that are tensors, models and loaders."""

from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import format_value
from siftback.errors import BatchError, ConfigError


def check_module(model: nn.Module) -> nn.Module:
    """Returns a model, after checking that it is a module.

    Raises:
        ConfigError: If it is not, or is a class.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model={format_value(model)}: give a torch.nn.Module, and a rule as memory=Memory()"
        )
    return model


def check_batches(loader: Any) -> Any:
    """Returns a loader, after checking that it can be one: an iterable of batches.

    Raises:
        ConfigError: If it is not.
    """
    iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if not iterable or isinstance(loader, str | bytes | dict | set | Tensor | type):
        raise ConfigError(
            f"loader={format_value(loader)}: give a DataLoader, or another iterable of batches"
        )
    return loader


def check_rows(name: str, rows: Tensor) -> Tensor:
    """Returns indices or positions, after checking that they are int64[n].

    Raises:
        BatchError: If they are not.
    """
    if not is_dense(rows) or rows.dtype != torch.int64 or rows.ndim != 1:
        raise BatchError(f"{name}={format_value(rows)}: give int64[n]")
    return rows


def is_dense(value: object) -> bool:
    """Returns whether a value is a tensor whose values lie in memory, one after another.

    Sparse, nested, quantized, distributed and meta tensors are not, nor those within a transform of
    ``torch.func``: they have other operations, or no values.

    >>> is_dense(torch.ones(3)), is_dense([1.0]), is_dense(torch.ones(3).to_sparse())
    (True, False, False)
    """
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested)
        and not hasattr(value, "full_tensor")  # of a DTensor
        # What is traced by a compiler is none, and the compiler cannot follow the question.
        and (torch.compiler.is_compiling() or torch.func.debug_unwrap(value) is value)
    )


def unwrap_model(model: Any) -> Any:
    """Returns the model inside of ``torch.compile`` and ``DistributedDataParallel`` wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        else:
            return model
