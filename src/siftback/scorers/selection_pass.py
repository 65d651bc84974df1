"""Scores of a fresh forward pass, and calling a model for them without side effects."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.arguments import check_choice, check_flag, check_object, format_value
from siftback.batches import tree
from siftback.errors import BatchError, ConfigError
from siftback.losses.per_example import Losses, check_losses
from siftback.scorers.scorer import Scorer
from siftback.state import Stateful

Mode = Literal["eval", "train"]


class PassScorer(Stateful, Scorer):
    """The base of scorers that call the model: `Fresh` and `GradientBound`.

    Args:
        mode: Mode of the model during the pass, "eval" or "train".
        autocast: The dtype to compute in; None follows the active autocast.
        compile: Whether to call ``torch.compile(model)`` instead of the model.

    Attributes:
        mode: The same.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point dtype.
    """

    def __init__(
        self, mode: Mode = "eval", autocast: torch.dtype | None = None, *, compile: bool = False
    ) -> None:
        self.mode: Mode = check_choice("mode", mode, "eval", "train")
        if autocast is not None and not (
            isinstance(autocast, torch.dtype) and autocast.is_floating_point
        ):
            raise ConfigError(
                f"autocast={format_value(autocast)}: give a floating-point dtype such as "
                "torch.bfloat16"
            )
        self._autocast = autocast
        self._compile = check_flag("compile", compile)
        self._compiled: tuple[nn.Module, Any] = nn.Module(), None  # a model, and its compiled form

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        autocast = self._autocast and str(self._autocast)
        return {"scorer": type(self).__name__, "mode": self.mode, "autocast": autocast}

    @contextmanager
    def calling(self, model: nn.Module, batch: Any) -> Iterator[tuple[Callable[..., Any], Any]]:
        """Yields a callable for the model's outputs; the model is left `untouched`.

        With it comes the batch in new containers: an entry that the losses replace, add or remove
        is then none of the batch that is trained on. Its tensors are the same.

        Raises:
            BatchError: If the batch is on another device than the model.
        """
        device = common_device(model, batch)
        casting = torch.autocast(device.type, self._autocast) if self._autocast else nullcontext()
        with untouched(model, self.mode, device), casting:
            if self._compile and self._compiled[0] is not model:
                self._compiled = model, torch.compile(model)
            renewed = tree.map_leaves(lambda _, leaf: leaf, tree.LEAVES, batch)
            yield self._compiled[1] if self._compile else model, renewed


class Fresh(PassScorer):
    """Scores a batch by the losses of a fresh forward pass.

    The selection pass of Jiang et al. 2019, section 3.3. It has no side effects: every module's
    mode, the buffers (including BatchNorm's running statistics), the gradients and PyTorch's
    global random state are restored, even if the pass fails.

    Args:
        mode: Mode of the model during the pass. "eval" is the default; "train" scores with
            dropout and the batch's statistics, as in training; modules of a training model that
            are in eval mode, such as a frozen BatchNorm, stay so.
        autocast: The dtype to compute in, such as ``torch.bfloat16``; None follows the autocast
            that is active when the scores are computed.
        compile: Whether to score through ``torch.compile(model)``. The first batches are slow
            while it compiles; the model itself and its training are not affected.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point dtype.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses, batch = pair_losses(nn.functional.mse_loss), (torch.eye(2), torch.zeros(2, 2))
    >>> Fresh().score(losses, nn.Identity(), batch, None)
    tensor([0.5000, 0.5000])
    """

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes one loss per example.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``.
            model: The model; read only.
            batch: A nested batch of N examples on the model's device.
            indices: int64[N], of which only the length is used; None where they are not known.

        Returns:
            float32[N].

        Raises:
            BatchError: If the batch is on another device than the model.
            LossError: If the losses are not a floating-point tensor of shape [N].
        """
        # `no_grad`, not `inference_mode`: a tensor that the model caches meanwhile, such as a
        # table of positions, must remain usable in training.
        count = tree.size(batch) if indices is None else len(indices)
        with torch.no_grad(), self.calling(model, batch) as (called, renewed):
            return check_losses(losses(called, renewed), count)  # type: ignore[arg-type]


def check_scorer(scorer: Scorer | None) -> Scorer:
    """Returns the scorer that was passed, after checking it; `Fresh` if none was.

    Raises:
        ConfigError: If it is a class, or not a scorer.
    """
    needed = ("score", "after_step", "state_dict", "load_state_dict")
    return Fresh() if scorer is None else check_object("scorer", scorer, "Fresh()", *needed)


class WrappingScorer(Stateful, Scorer):
    """The base of scorers that score by another one.

    Args:
        scorer: The inner scorer; by default `Fresh`.
    """

    def __init__(self, scorer: Scorer | None) -> None:
        self.scorer = check_scorer(scorer)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Calls the inner scorer."""
        self.scorer.after_step(losses, model, batch)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        names = {"scorer": type(self).__name__, "inner": type(self.scorer).__name__}
        return {**names, **super().settings()}

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"inner": self.scorer}


def common_device(model: nn.Module, batch: Any) -> torch.device:
    """Returns the device that a model and its batch are on.

    Raises:
        BatchError: If they are on different ones.
    """
    devices = [leaf.device for leaf in tree.leaves(batch) if isinstance(leaf, Tensor)]
    devices = devices or [torch.device("cpu")]
    weight = next(model.parameters(), None)
    if weight is not None and weight.device not in devices:
        raise BatchError(
            f"the batch is on {devices[0]} and the model on {weight.device}: "
            f'move the batch there first, with .to("{weight.device}")'
        )
    return devices[0] if weight is None else weight.device


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
    modules, seen = [model], {model}
    for module in modules:  # grows; in a fraction of the time of `model.modules()`, without names
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                modules.append(child)
    modes = [module.training for module in modules]
    # A module may replace a buffer meanwhile.
    buffers = [(module, dict(module._buffers)) for module in modules if module._buffers]
    # PyTorch's own layers do not write to buffers in eval mode. ``torch.nn`` gives a parametrised
    # layer a class of its own, so all base classes are checked.
    written = {
        id(buffer): buffer
        for module, owned in buffers
        if mode != "eval"
        or not all(kind.__module__.startswith("torch.nn.") for kind in type(module).__mro__[:-1])
        for buffer in owned.values()
        if buffer is not None and not buffer.is_inference()  # which cannot be written to
    }
    values = [(buffer, buffer.detach().clone()) for buffer in written.values()]
    # Modes are not set by `train()`, which some modules override to merge weights, nor by the slow
    # `__setattr__`.
    try:
        # The CPU's generator is always forked; the default, every GPU's, would cost time.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if mode == "eval" or (mode == "train" and not model.training):
                for module in modules:
                    module.__dict__["training"] = mode == "train"
            yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.__dict__["training"] = training
        for module, owned in buffers:
            module._buffers.update(owned)
        for buffer, value in values:
            if buffer.shape != value.shape:  # observers resize a buffer that was empty
                with torch.no_grad():
                    buffer.resize_(value.shape)
            # Bypasses autograd's version counter: a graph built before the pass stays valid.
            buffer.data.copy_(value)
        if torch.is_autocast_enabled(device.type):
            # Training must not use cached casts of weights without gradients.
            torch.clear_autocast_cache()
