"""A copy of a model, possibly in other dtypes, that is updated in place."""

import copy
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from siftback.arguments import check_integer
from siftback.errors import ConfigError
from siftback.state import Check, check_entries, flag, integer, raise_damaged, shaped_like


class Snapshot:
    """A copy of a model: its own modules, with tensors that are shared or copied.

    Args:
        model: The model to copy; read only.
        make: ``make(tensor)`` returns a tensor of the same shape for the copy, or the tensor
            itself to share it.

    Attributes:
        model: The copy. Its parameters that are not shared do not require gradients.
        copied: The tensors that are not shared, by name.

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
            # Tensors in the memo are not copied again.
            self.model = copy.deepcopy(model, {id(t): made[name] for name, t in sources.items()})
        except Exception as error:
            raise ConfigError(
                f"the {type(model).__name__} cannot be copied ({error}): give a model that "
                "copy.deepcopy can copy, or a scorer without a copy, such as "
                "Fresh(autocast=torch.bfloat16)"
            ) from error
        self.copied: dict[str, Tensor] = {
            name: tensor for name, tensor in made.items() if tensor is not sources[name]
        }
        self._shared = {name: sources[name] for name in made.keys() - self.copied.keys()}
        self._shapes = {name: (t.shape, t.device) for name, t in sources.items()}

    def fits(self, sources: dict[str, Tensor]) -> bool:
        """Whether these are still the tensors that the copy shares, and of the copied shapes."""
        return {name: (t.shape, t.device) for name, t in sources.items()} == self._shapes and all(
            sources[name] is shared for name, shared in self._shared.items()
        )

    @torch.no_grad()
    def refresh(self, sources: dict[str, Tensor]) -> None:
        """Copies the current values."""
        for name, target in self.copied.items():
            target.copy_(sources[name])

    def update(self, model: nn.Module) -> bool:
        """Copies the values of a model; False if the copy does not fit it any more."""
        sources = tensors_of(model)
        if not self.fits(sources):
            return False
        self.refresh(sources)
        return True

    def follow_modes(self, model: nn.Module) -> None:
        """Puts each module of the copy in the mode of its counterpart in the model."""
        for here, there in zip(self.model.modules(), model.modules(), strict=True):
            here.__dict__["training"] = there.training

    def state_dict(self) -> dict[str, Any]:
        """Clones of the copied tensors."""
        return {name: target.detach().clone() for name, target in self.copied.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies the values of a state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.refresh(state)

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of a model with other tensors.
        """
        shaped_like(self.copied)("the copy of a model", state)


class ModelCopy(Protocol):
    """The copy that `Refreshed` updates: a `Snapshot`, or one with layers of another kind."""

    model: nn.Module

    def update(self, model: nn.Module) -> bool:
        """See `Snapshot.update`."""

    def follow_modes(self, model: nn.Module) -> None:
        """See `Snapshot.follow_modes`."""

    def state_dict(self) -> dict[str, Any]:
        """See `Snapshot.state_dict`."""

    def check_state(self, state: dict[str, Any]) -> None:
        """See `Snapshot.check_state`."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Snapshot.load_state_dict`."""


class Refreshed:
    """A copy of a model that is updated when first used after a number of training steps.

    Args:
        make: ``make(model)`` makes the copy.
        steps: Training steps between refreshes.

    Attributes:
        steps: Training steps between refreshes.
        refreshes: Number of times the copy was made or updated.
        seconds: Seconds of host time spent on that.

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

    def __init__(self, make: Callable[[nn.Module], ModelCopy], steps: int) -> None:
        self._make, self.steps = make, check_integer("refresh", steps, 1)
        self._copy: ModelCopy | None = None
        self._loaded: dict[str, Any] | None = None
        self._age = 0  # steps since the last refresh
        self.refreshes = 0
        self.seconds = 0.0

    def of(self, model: nn.Module) -> ModelCopy:
        """The copy of a model, updated if it is too old."""
        if self._copy is not None and self._age < self.steps:
            return self._copy
        started = time.perf_counter()
        if self._copy is None or not self._copy.update(model):
            self._copy = self._make(model)
        if self._loaded is None:
            self._age = 0
        else:
            self._copy.load_state_dict(self._loaded)
            self._loaded = None
        self.refreshes += 1
        self.seconds += time.perf_counter() - started
        return self._copy

    def after_step(self) -> None:
        """Counts a training step."""
        self._age += 1
        if self._age >= self.steps:
            self._loaded = None  # too old by now

    def state_dict(self) -> dict[str, Any]:
        """The steps since the last refresh, and the copy if it will be used again."""
        state = self._loaded
        if state is None and self._copy is not None and self._age < self.steps:  # else made again
            state = self._copy.state_dict()
        return {"age": self._age, "copied": state is not None, "copy": state}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits, as far as it is known which model is copied.

        Raises:
            StateError: If it is damaged, or of another model than the copy.
        """
        check_entries(self, state, {"age": integer(), "copied": flag})
        check_entries(self, state, {"copy": copied(self._copy, state["copied"])})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another one's state; the copy is made at the first use.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self._age, self._loaded = state["age"], state["copy"]
        self._copy = None


def copied(own: Any, exists: bool) -> Check:
    """Checks for the state of a model's copy: of the same model, where one was copied already.

    Args:
        own: The copy; None where there is none yet.
        exists: Whether there is one in the state.
    """

    def check(name: str, value: Any) -> None:
        if not isinstance(value, dict if exists else type(None)):
            raise_damaged(name, value, "the state of a copy" if exists else "None")
        if exists and own is not None:
            own.check_state(value)

    return check


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a ``torch.compile`` or ``DistributedDataParallel`` wrapper."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
