"""A copy of a model, in other types where wanted, that is brought up to date in place."""

import copy
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from siftback.arguments import checked_integer
from siftback.errors import ConfigError, StateError


class Snapshot:
    """A model's twin: its own modules, with tensors that are shared or copied.

    Args:
        model: What to copy. It is read only.
        make: ``make(tensor)`` gives the twin's own tensor of the same shape, or the tensor
            itself where the twin is to share it.

    Attributes:
        model: The twin. Its parameters that are not shared need no gradients.
        copied: By name, the tensors that are not shared.

    Raises:
        ConfigError: If the model cannot be copied.

    >>> layer = nn.Linear(2, 1)
    >>> snapshot = Snapshot(layer, lambda t: t.bfloat16() if t.ndim > 1 else t)
    >>> snapshot.model.weight.dtype, snapshot.model.bias is layer.bias
    (torch.bfloat16, True)
    """

    def __init__(self, model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
        sources = tensors_of(model)
        made = {}
        with torch.no_grad():
            for name, source in sources.items():
                made[name] = tensor = make(source)
                if tensor is not source and isinstance(source, nn.Parameter):
                    made[name] = nn.Parameter(tensor, requires_grad=False)
        try:
            # What the memo holds is not copied again: so a copy's memory is paid once.
            self.model = copy.deepcopy(model, {id(t): made[name] for name, t in sources.items()})
        except Exception as error:
            raise ConfigError(
                f"the {type(model).__name__} cannot be copied ({error}): give a model that "
                "copy.deepcopy takes, or a scorer without a copy, such as "
                "Fresh(autocast=torch.bfloat16)"
            ) from error
        self.copied: dict[str, Tensor] = {
            name: tensor for name, tensor in made.items() if tensor is not sources[name]
        }
        self._shared = {name: sources[name] for name in made.keys() - self.copied.keys()}
        self._shapes = {name: (t.shape, t.device) for name, t in sources.items()}

    def fits(self, sources: dict[str, Tensor]) -> bool:
        """Whether these are still the tensors that the twin shares, and of the copied shapes."""
        return {name: (t.shape, t.device) for name, t in sources.items()} == self._shapes and all(
            sources[name] is shared for name, shared in self._shared.items()
        )

    @torch.no_grad()
    def refresh(self, sources: dict[str, Tensor]) -> None:
        """Takes the values of now."""
        for name, target in self.copied.items():
            target.copy_(sources[name])

    def update(self, model: nn.Module) -> bool:
        """Takes the values of a model; False where the twin does not fit it any more."""
        sources = tensors_of(model)
        if not self.fits(sources):
            return False
        self.refresh(sources)
        return True

    def follow_modes(self, model: nn.Module) -> None:
        """Puts each module of the twin in the mode of its counterpart in the model."""
        for here, there in zip(self.model.modules(), model.modules(), strict=True):
            here.__dict__["training"] = there.training

    def state_dict(self) -> dict[str, Any]:
        """The copied tensors, copied once more."""
        return {name: target.detach().clone() for name, target in self.copied.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the values of a state.

        Raises:
            StateError: If it is of a model of other tensors.
        """
        shapes = {name: list(tensor.shape) for name, tensor in state.items()}
        here = {name: list(target.shape) for name, target in self.copied.items()}
        mismatched = sorted(k for k in shapes.keys() | here if shapes.get(k) != here.get(k))
        if mismatched:
            name = mismatched[0]
            raise StateError(
                f"the state of a scorer's copy has a {name} of shape {shapes.get(name)}, and this "
                f"model one of {here.get(name)}: build the same model, frozen where it was"
            )
        self.refresh(state)


class Twin(Protocol):
    """What `Refreshed` keeps of a model: a `Snapshot`, or one with layers of another kind."""

    model: nn.Module

    def update(self, model: nn.Module) -> bool:
        """See `Snapshot.update`."""

    def follow_modes(self, model: nn.Module) -> None:
        """See `Snapshot.follow_modes`."""

    def state_dict(self) -> dict[str, Any]:
        """See `Snapshot.state_dict`."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Snapshot.load_state_dict`."""


class Refreshed:
    """A model's twin, brought up to date when first used after every so many training steps.

    Args:
        make: ``make(model)`` makes the twin.
        steps: Training steps between refreshes.

    Attributes:
        refreshes: How often it was made or brought up to date.
        seconds: Spent on that, in seconds of the host.

    Raises:
        ConfigError: If ``steps`` is not a positive integer.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> refreshed = Refreshed(lambda m: Snapshot(m, lambda t: t.detach().clone()), steps=2)
    >>> for step in range(4):
    ...     _ = nn.init.constant_(model.weight, step)
    ...     print(refreshed.of(model).model.weight.item())
    ...     refreshed.after_step()
    0.0
    0.0
    2.0
    2.0
    """

    def __init__(self, make: Callable[[nn.Module], Twin], steps: int) -> None:
        self._make, self._steps = make, checked_integer("refresh", steps, 1)
        self._twin: Twin | None = None
        self._loaded: dict[str, Any] | None = None
        self._age = 0  # steps since the last refresh
        self.refreshes = 0
        self.seconds = 0.0

    def of(self, model: nn.Module) -> Twin:
        """The twin of a model, no older than it may be."""
        if self._twin is not None and self._age < self._steps:
            return self._twin
        started = time.perf_counter()
        if self._twin is None or not self._twin.update(model):
            self._twin = self._make(model)
        if self._loaded is None:
            self._age = 0
        else:
            self._twin.load_state_dict(self._loaded)
            self._loaded = None
        self.refreshes += 1
        self.seconds += time.perf_counter() - started
        return self._twin

    def after_step(self) -> None:
        """Counts a training step."""
        self._age += 1
        if self._age >= self._steps:
            self._loaded = None  # a copy that is too old by now

    def state_dict(self) -> dict[str, Any]:
        """The steps since the last refresh, and the copy where it will be used again."""
        if self._loaded is not None:
            return {"age": self._age, "copy": self._loaded}
        if self._twin is None or self._age >= self._steps:  # it is made again
            return {"age": self._age, "copy": None}
        return {"age": self._age, "copy": self._twin.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another one's state; the twin is made once there is a model to copy."""
        self._age, self._loaded = state["age"], state["copy"]
        self._twin = None


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within what ``torch.compile`` or data parallelism made of it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
