"""Calling a model that must not notice: with which modules in which mode, and in which type."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import repeat
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.errors import BatchError, ConfigError
from siftback.loading import tree

Mode = Literal["eval", "train"]


class SelectionPass:
    """How the model is called for scores; what `Fresh` and `GradientBound` have in common.

    Args:
        mode: The mode the model is in during the pass, "eval" or "train".
        autocast: The type to compute in; None follows the autocast in force.
        compile: Whether to call ``torch.compile(model)`` in the model's place.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point type.
    """

    def __init__(self, mode: Mode, autocast: torch.dtype | None, compile: bool) -> None:
        if mode not in ("eval", "train"):
            raise ConfigError(f'mode={mode!r}: give "eval" or "train"')
        if autocast is not None and not (
            isinstance(autocast, torch.dtype) and autocast.is_floating_point
        ):
            raise ConfigError(
                f"autocast={autocast!r}: give a floating-point type such as torch.bfloat16"
            )
        self._mode: Mode = mode
        self._autocast = autocast
        self._compile = compile
        self._compiled: tuple[nn.Module, Any] | None = None  # the model, and it compiled

    @contextmanager
    def over(self, model: nn.Module, batch: Any) -> Iterator[Callable[..., Any]]:
        """Gives what to call for the model's outputs; the model is `untouched` afterwards.

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


@contextmanager
def untouched(model: nn.Module, mode: Mode | None, device: torch.device) -> Iterator[None]:
    """Puts the model in a mode, and everything back as it was.

    In eval mode PyTorch's own layers write into no buffer, so only those of other modules, such as
    the observers of ``torch.ao`` or a user's own, are copied and put back; in train mode, all.
    What the losses keep for themselves, such as buffers of a loss module, stays the user's.

    Args:
        model: Whose modes and buffers are put back.
        mode: The mode in between; None leaves every module in its own.
        device: Whose random state is put back, besides the CPU's.
    """
    modules = _modules(model)
    modes = [module.training for module in modules]
    with_buffers = [module for module in modules if module._buffers]
    # A module may replace a buffer on the way.
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
            # Weights that were cast without gradients must not be found by training.
            torch.clear_autocast_cache()


def _may_write(module: nn.Module) -> bool:
    """Whether a module is not one of PyTorch's own layers: those read their buffers in eval mode.

    ``torch.nn`` gives a parametrised layer a class of its own, so all of its bases must be theirs.
    """
    return not all(kind.__module__.startswith("torch.nn.") for kind in type(module).__mro__[:-1])


def _copies(modules: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """The buffers of modules, each once, with copies of their values."""
    found = {id(b): b for module in modules for b in module._buffers.values() if b is not None}
    # Nothing writes into a tensor made in inference mode, outside of it.
    return [(b, b.detach().clone()) for b in found.values() if not b.is_inference()]


def _put_back(buffer: Tensor, value: Tensor) -> None:
    if buffer.shape != value.shape:  # as observers write into a buffer that was empty
        with torch.no_grad():
            buffer.resize_(value.shape)
    # Past autograd's count of writes: a graph that was built before the pass stays valid.
    buffer.data.copy_(value)


def _modules(model: nn.Module) -> list[nn.Module]:
    """What ``model.modules()`` gives, in a fraction of its time: it builds no names."""
    found, seen = [model], {model}
    for module in found:  # which grows on the way
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def _set_modes(modules: list[nn.Module], modes: Iterable[bool]) -> None:
    # Not by `train()`, which some modules override to merge weights; and past their `__setattr__`,
    # which is slow.
    for module, mode in zip(modules, modes, strict=False):
        module.__dict__["training"] = mode
