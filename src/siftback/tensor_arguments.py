"""Checks of arguments that are tensors, models and loaders."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.arguments import format_value
from siftback.errors import BatchError, ConfigError, SiftbackError


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


def check_tensor(
    name: str,
    value: Tensor,
    kind: Literal["float", "int64", "bool"],
    *shape: int | str,
    advice: str = "",
    error: type[SiftbackError] = BatchError,
) -> Tensor:
    """Returns a tensor, after checking its type and its shape.

    Args:
        name: Name of the argument, for the error.
        value: Value that was passed.
        kind: Its type, "float" for any floating-point one.
        shape: Its size in each dimension; a letter stands for any.
        advice: What else the error says of the tensor that is expected.
        error: The class of the error.

    Raises:
        SiftbackError: If it is of another type or shape.

    >>> check_tensor("indices", torch.tensor([3, 1]), "int64", "n")
    tensor([3, 1])
    """
    fits = is_dense(value) and value.ndim == len(shape)
    fits = fits and (
        value.is_floating_point() if kind == "float" else value.dtype == getattr(torch, kind)
    )
    fits = fits and all(
        isinstance(size, str) or size == length
        for size, length in zip(shape, value.shape, strict=True)
    )
    if not fits:
        dense = "" if is_dense(value) else "a dense tensor, "
        expected = f"{dense}{kind}[{', '.join(map(str, shape))}]{advice}"
        raise error(f"{name}={format_value(value)}: give {expected}")
    return value


def check_within(
    name: str, numbers: Tensor, size: float, advice: str, error: type[SiftbackError] = BatchError
) -> None:
    """Checks that integers are from 0 to below a size.

    Args:
        name: What they are, for the error.
        numbers: Integers of any shape.
        size: The number after the largest one allowed; infinite where there is none.
        advice: What to do, for the error.
        error: The class of the error.

    Raises:
        SiftbackError: If one is not.
    """
    if numbers.numel():
        low, high = (int(bound) for bound in numbers.aminmax())
        if low < 0 or high >= size:
            raise error(f"{name} range from {low} to {high}, outside of [0, {size}): {advice}")


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
