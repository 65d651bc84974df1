"""The selection pass: losses of a batch from a model that must not notice."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import repeat
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.errors import BatchError, ConfigError
from siftback.loading import tree
from siftback.loss_functions import Losses, check

Mode = Literal["eval", "train"]


class Scorer:
    """Gives one score per example; the base of all scorers, and what one of a user's own derives.

    A loader calls `score` with each selection batch and `after_step` once training is done with
    a batch it was given. State, where there is any, goes through the loader's.

    Attributes:
        makes_passes: Whether it scores batches; one that draws every epoch from memory does not.
        needs_indices: Whether it is told the dataset indices too, by `score_indexed` in place of
            `score`; the loader must then know them.

    A scorer whose scores are made elsewhere says how many batches ahead it can work (`depth`).
    Where that is not 0 the loader calls `submit` with each batch that it has read ahead, and
    `collect` when that batch's turn has come.

    Attributes:
        depth: How many batches to read beyond the one whose turn it is.

    >>> class Length(Scorer):
    ...     def score(self, losses, model, batch):
    ...         return (batch["tokens"] != 0).sum(1).float()
    >>> Length().score(None, None, {"tokens": torch.tensor([[3, 5, 0], [4, 0, 0]])})
    tensor([2., 1.])
    """

    makes_passes = True
    needs_indices = False
    depth: int = 0

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        """One score per example, higher for those more worth training on.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``, those of training.
            model: The model that is trained; read only.
            batch: A nested batch of N examples on the model's device.

        Returns:
            float32[N], detached.
        """
        raise NotImplementedError

    def score_indexed(
        self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor
    ) -> Tensor:
        """As `score`, for a scorer that needs to know whose scores they are.

        Args:
            losses: As for `score`.
            model: The model; read only.
            batch: A nested batch of N examples on the model's device.
            indices: int64[N], their dataset indices, on the CPU.

        Returns:
            float32[N], detached.
        """
        raise NotImplementedError

    def submit(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Has the scores of a batch made meanwhile; takes what `score` takes."""
        raise NotImplementedError

    def collect(self) -> Tensor:
        """The scores of the batch submitted first among those not yet collected.

        Returns:
            float32[N], on any device.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Told that nothing of what was submitted will be collected: an epoch was broken off."""

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Told that training is done with a batch: the place to refresh a copy of the model.

        Args:
            losses: As for `score`.
            model: The model, its weights those after the step.
            batch: The batch that was trained on.
        """

    def state_dict(self) -> dict[str, Any]:
        """All that later scores depend on, besides the model; fit for ``torch.save``."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another scorer's state."""


class Fresh(Scorer):
    """Scores a batch by the losses of a fresh forward pass.

    The selection pass of Jiang et al. 2019, section 3.3. It leaves no trace: every module's own
    mode, the buffers (BatchNorm's running statistics among them), the gradients and PyTorch's
    global random state are afterwards what they were, also where the pass fails.

    Args:
        mode: The mode the model is in during the pass. "eval" is the default; "train" scores
            with dropout and the batch's own statistics, as training will see it: modules of a
            training model that are in eval mode, such as a frozen BatchNorm, stay so.
        autocast: The type to compute in, such as ``torch.bfloat16``; None leaves it as it is.
        compile: Whether to score through ``torch.compile(model)``. The first batches are slow
            while it compiles; the model itself, and how it is trained, stay as they are.

    Raises:
        ConfigError: Where ``mode`` is neither, or ``autocast`` no floating-point type.

    >>> from siftback.loss_functions import pair_losses
    >>> losses = pair_losses(nn.functional.mse_loss)
    >>> Fresh().score(losses, nn.Identity(), (torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)))
    tensor([1., 9.])
    """

    def __init__(
        self, mode: Mode = "eval", autocast: torch.dtype | None = None, *, compile: bool = False
    ) -> None:
        if mode not in ("eval", "train"):
            raise ConfigError(f'mode={mode!r}: give "eval" or "train"')
        if autocast is not None and not (
            isinstance(autocast, torch.dtype) and autocast.is_floating_point
        ):
            raise ConfigError(
                f"autocast={autocast!r}: give a floating-point type such as torch.bfloat16"
            )
        self.mode: Mode = mode
        self.autocast = autocast
        self.compile = compile
        self._compiled: tuple[nn.Module, Any] | None = None  # the model, and it compiled

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        """One loss per example.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``.
            model: The model; read only.
            batch: A nested batch of N examples on the model's device.

        Returns:
            float32[N].

        Raises:
            BatchError: Where the batch lies on another device than the model.
            LossError: Where the losses are no floating-point tensor of shape [N].
        """
        device = device_of(model, batch)
        # `no_grad`, not `inference_mode`: a tensor that the model caches on the way, such as a
        # table of positions, must still be fit for training.
        with torch.no_grad(), untouched(model, self.mode, device), self._casting(device):
            return check(losses(self._callable(model), batch), tree.size(batch))

    def _callable(self, model: nn.Module) -> Any:
        if not self.compile:
            return model
        if self._compiled is None or self._compiled[0] is not model:
            self._compiled = model, torch.compile(model)
        return self._compiled[1]

    def _casting(self, device: torch.device) -> Any:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


def device_of(model: nn.Module, batch: Any) -> torch.device:
    """The device that a model and its batch are on.

    Raises:
        BatchError: Where they are on different ones.
    """
    devices = [part.device for part in tree.tensors(batch)] or [torch.device("cpu")]
    weight = next(model.parameters(), None)
    if weight is not None and weight.device not in devices:
        raise BatchError(
            f"the batch is on {devices[0]} and the model on {weight.device}: "
            f'give the loader device="{weight.device}", or move the batches in its collate_fn'
        )
    return devices[0] if weight is None else weight.device


@contextmanager
def untouched(model: nn.Module, mode: Mode | None, device: torch.device) -> Iterator[None]:
    """Puts the model in a mode, and everything back as it was.

    Args:
        model: Whose modes and buffers come back.
        mode: The mode in between; None leaves every module in its own.
        device: Whose random state comes back, besides the CPU's.
    """
    modules = _modules(model)
    modes = [module.training for module in modules]
    # A module may replace a buffer on the way.
    buffers = [(module, dict(module._buffers)) for module in modules if module._buffers]
    # In eval mode no module of torch writes into a buffer; in train mode BatchNorm does.
    values = [(b, b.clone()) for b in model.buffers()] if mode != "eval" else []
    try:
        # The CPU's generator is always forked; its default, every GPU's, would cost time.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if mode == "eval" or (mode == "train" and not model.training):
                _set_modes(modules, repeat(mode == "train"))
            yield
    finally:
        _set_modes(modules, modes)
        for module, owned in buffers:
            module._buffers.update(owned)
        for buffer, value in values:
            buffer.copy_(value)
        if torch.is_autocast_enabled(device.type):
            # Weights that were cast without gradients must not be found by training.
            torch.clear_autocast_cache()


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
