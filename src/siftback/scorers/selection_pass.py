"""Calling a model without side effects, in a given mode and precision."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import repeat
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.arguments import check_choice, check_flag, format_value
from siftback.batches import tree
from siftback.errors import BatchError, ConfigError

Mode = Literal["eval", "train"]


class SelectionPass:
    """Calls the model for scores; shared by `Fresh` and `GradientBound`.

    Args:
        mode: Mode of the model during the pass, "eval" or "train".
        autocast: The dtype to compute in; None follows the active autocast.
        compile: Whether to call ``torch.compile(model)`` instead of the model.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point dtype.
    """

    def __init__(self, mode: Mode, autocast: torch.dtype | None, compile: bool) -> None:
        check_choice("mode", mode, "eval", "train")
        if autocast is not None and not (
            isinstance(autocast, torch.dtype) and autocast.is_floating_point
        ):
            raise ConfigError(
                f"autocast={format_value(autocast)}: give a floating-point dtype such as "
                "torch.bfloat16"
            )
        self._mode: Mode = mode
        self._autocast = autocast
        self._compile = check_flag("compile", compile)
        self._compiled: tuple[nn.Module, Any] | None = None  # the model, and its compiled form

    def settings(self) -> dict[str, Any]:
        """The arguments that scores depend on, by name."""
        return {
            "mode": self._mode,
            "autocast": None if self._autocast is None else str(self._autocast),
        }

    @contextmanager
    def over(self, model: nn.Module, batch: Any) -> Iterator[Callable[..., Any]]:
        """Yields a callable for the model's outputs; the model is left `untouched`.

        Raises:
            BatchError: If the batch is on another device than the model.
        """
        device = device_of(model, batch)
        casting = (
            nullcontext() if self._autocast is None else torch.autocast(device.type, self._autocast)
        )
        with untouched(model, self._mode, device), casting:
            yield self._callable(model)

    def _callable(self, model: nn.Module) -> Callable[..., Any]:
        if not self._compile:
            return model
        if self._compiled is None or self._compiled[0] is not model:
            self._compiled = model, torch.compile(model)
        compiled: Callable[..., Any] = self._compiled[1]
        return compiled


def device_of(model: nn.Module, batch: Any) -> torch.device:
    """The device that a model and its batch are on.

    Raises:
        BatchError: If they are on different ones.
    """
    devices = [part.device for part in tree.tensors(batch)] or [torch.device("cpu")]
    weight = next(model.parameters(), None)
    if weight is not None and weight.device not in devices:
        raise BatchError(
            f"the batch is on {devices[0]} and the model on {weight.device}: "
            f'move the batch there first, with .to("{weight.device}")'
        )
    return devices[0] if weight is None else weight.device


def size_of(batch: Any, indices: Tensor | None) -> int:
    """The number of examples in a batch, where the indices of its examples may say it.

    Args:
        batch: A batch.
        indices: int64[N], the indices of its examples; None where they are not known.

    Raises:
        BatchError: If they are not known and the parts of the batch have mismatched sizes.
    """
    return tree.size(batch) if indices is None else len(indices)


@contextmanager
def untouched(model: nn.Module, mode: Mode | None, device: torch.device) -> Iterator[None]:
    """Puts the model in a mode, and restores it afterwards.

    In eval mode PyTorch's own layers do not write to buffers, so only buffers of other modules,
    such as the observers of ``torch.ao`` or a user's own, are copied and restored; in train mode,
    all. State of the losses, such as buffers of a loss module, is not restored.

    Args:
        model: The model; its modes and buffers are restored.
        mode: The mode in between; None leaves every module's mode unchanged.
        device: Device whose random state is restored, besides the CPU's.
    """
    modules = _modules(model)
    modes = [module.training for module in modules]
    with_buffers = [module for module in modules if module._buffers]
    # A module may replace a buffer meanwhile.
    buffers = [(module, dict(module._buffers)) for module in with_buffers]
    values = _copies(with_buffers if mode != "eval" else filter(_may_write, with_buffers))
    try:
        # The CPU's generator is always forked; the default, every GPU's, would cost time.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if mode == "eval" or (mode == "train" and not model.training):
                _set_modes(modules, repeat(mode == "train"))
            yield
    finally:
        _set_modes(modules, modes)
        for module, owned in buffers:
            module._buffers.update(owned)
        for buffer, value in values:
            _put_back(buffer, value)
        if torch.is_autocast_enabled(device.type):
            # Training must not use cached casts of weights without gradients.
            torch.clear_autocast_cache()


def _may_write(module: nn.Module) -> bool:
    """Whether a module may write to its buffers in eval mode: PyTorch's own layers do not.

    ``torch.nn`` gives a parametrised layer a class of its own, so all base classes are checked.
    """
    return not all(kind.__module__.startswith("torch.nn.") for kind in type(module).__mro__[:-1])


def _copies(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """The buffers of modules, each once, with copies of their values."""
    found = {id(b): b for module in modules for b in module._buffers.values() if b is not None}
    # Tensors made in inference mode cannot be written to outside of it.
    return [(b, b.detach().clone()) for b in found.values() if not b.is_inference()]


def _put_back(buffer: Tensor, value: Tensor) -> None:
    if buffer.shape != value.shape:  # observers resize a buffer that was empty
        with torch.no_grad():
            buffer.resize_(value.shape)
    # Bypasses autograd's version counter: a graph that was built before the pass stays valid.
    buffer.data.copy_(value)


def _modules(model: nn.Module) -> list[nn.Module]:
    """The same as ``model.modules()``, in a fraction of its time, as it builds no names."""
    found, seen = [model], {model}
    for module in found:  # grows during the loop
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def _set_modes(modules: list[nn.Module], modes: Iterable[bool]) -> None:
    # Not by `train()`, which some modules override to merge weights, nor by the slow `__setattr__`.
    for module, mode in zip(modules, modes, strict=False):
        module.__dict__["training"] = mode
