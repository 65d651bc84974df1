"""A copy of a model, possibly in other dtypes, that is updated in place."""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_flag, check_integer
from siftback.batches import tree
from siftback.errors import ConfigError
from siftback.losses.per_example import Losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import Fresh, common_device
from siftback.state import Check, Stateful, integer, optional, raise_damaged, shaped_like
from siftback.tensor_arguments import unwrap_model


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
        with torch.no_grad():
            tensors = {name: make(source) for name, source in sources.items()}
        for name, source in sources.items():
            if tensors[name] is not source and isinstance(source, nn.Parameter):
                tensors[name] = nn.Parameter(tensors[name], requires_grad=False)
        try:
            # Tensors in the memo are not copied again.
            self.model = copy.deepcopy(model, {id(t): tensors[name] for name, t in sources.items()})
        except Exception as error:
            raise ConfigError(
                f"the {type(model).__name__} cannot be copied ({error}): give one that can be by "
                "copy.deepcopy, or a scorer without a copy, as Fresh(autocast=torch.bfloat16)"
            ) from error
        self.copied: dict[str, Tensor] = {
            name: tensor for name, tensor in tensors.items() if tensor is not sources[name]
        }
        self._shared = {name: sources[name] for name in tensors.keys() - self.copied.keys()}
        self._shapes = {name: (t.shape, t.device) for name, t in sources.items()}

    def fits(self, sources: dict[str, Tensor]) -> bool:
        """Returns whether the shared tensors are the same, and the copied of the same shapes."""
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
        for module, source in zip(self.model.modules(), model.modules(), strict=False):
            module.__dict__["training"] = source.training  # see `untouched`

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


class CopyScorer(Stateful, Scorer):
    """A scorer by the losses of a copy of the model, updated when first used after some steps.

    Args:
        make: ``make(model)`` copies a model.
        refresh: Training steps between updates of the copy.
        fresh: Scores with the copy, whose modules are in the modes of the model's if it trains.
        channels_last: Whether images are scored in the ``channels_last`` memory format.

    Attributes:
        copy: The copy; None before the first batch.
        refreshes: Number of times the copy was made or updated.
        seconds_refresh: Seconds of host time spent on that.

    Raises:
        ConfigError: If ``refresh`` is not a positive integer, or ``channels_last`` no boolean.
    """

    def __init__(
        self,
        make: Callable[[nn.Module], Snapshot],
        refresh: int,
        fresh: Fresh,
        *,
        channels_last: bool,
    ) -> None:
        self._make, self._refresh = make, check_integer("refresh", refresh, 1)
        self._fresh = fresh
        self._channels_last = check_flag("channels_last", channels_last)
        self.copy: Snapshot | None = None
        self._loaded: dict[str, Any] | None = None
        self._age = 0  # steps since the last update
        self.refreshes, self.seconds_refresh = 0, 0.0

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes one loss per example, float32[N]; raises as `Fresh.score` and the class do."""
        common_device(model, batch)
        model = unwrap_model(model)
        if not self.copy or self._age >= self._refresh:
            started = time.perf_counter()
            if not (self.copy and self.copy.update(model)):
                self.copy = self._make(model)
            if self._loaded is None:
                self._age = 0
            else:
                self.copy.load_state_dict(self._loaded)
                self._loaded = None
            self.refreshes += 1
            self.seconds_refresh += time.perf_counter() - started
        if self._fresh.mode == "train":
            self.copy.follow_modes(model)
        if self._channels_last:
            batch = tree.map_tensors(by_pixels, batch)
        return self._fresh.score(losses, self.copy.model, batch, indices)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Counts a training step."""
        self._age += 1
        if self._age >= self._refresh:
            self._loaded = None  # too old by now

    def separate(self, tensor: Tensor, value: Tensor) -> Tensor:
        """Returns a value of the copy, which shares memory with the model's only if always updated.

        Args:
            tensor: The model's tensor.
            value: The copy's, which may be the same or a view of it.
        """
        if self._channels_last and isinstance(tensor, nn.Parameter):
            value = by_pixels(value)
        if value.data_ptr() != tensor.data_ptr() or value.dtype != tensor.dtype:
            return value
        return tensor if self._refresh == 1 else value.clone()

    @property
    def copy_state(self) -> dict[str, Any] | None:
        """The state of the copy, if it will be used again; None if it will be made again."""
        if self._loaded is None and self.copy and self._age < self._refresh:
            return self.copy.state_dict()
        return self._loaded

    @copy_state.setter
    def copy_state(self, state: dict[str, Any] | None) -> None:
        self._loaded, self.copy = state, None

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        arguments = {"refresh": self._refresh, "channels_last": self._channels_last}
        return {**self._fresh.settings(), "scorer": type(self).__name__, **arguments}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"_age": integer(), "copy_state": copy_check(self.copy)}


def copy_check(copy: Snapshot | None) -> Check:
    """Returns a check for None or a copy's state, which is of the same model if a copy exists."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise_damaged(name, value, "the state of a copy, or None")
        if copy:
            copy.check_state(value)

    return optional(check)


def by_pixels(tensor: Tensor) -> Tensor:
    """Returns a 4-dimensional tensor in the ``channels_last`` memory format; others unchanged."""
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns a model's parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
