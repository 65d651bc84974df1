"""One loss per example, from the loss functions that users have."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from siftback.arguments import checked_object, is_dense
from siftback.errors import BatchError, ConfigError, LossError

LossFn = Callable[[Any, Any], Tensor]
"""``loss_fn(outputs, targets)``."""

Losses = Callable[[nn.Module, Any], Tensor]
"""``losses(model, batch) -> Tensor[N]``, one loss per example."""


def per_example(loss_fn: LossFn) -> LossFn:
    """The same loss function, returning one loss per example.

    A loss function that takes a ``reduction``, as those of ``torch.nn`` and
    ``torch.nn.functional`` do, is called with ``reduction="none"``, and its result is averaged
    over all dimensions but the first. With an ``ignore_index``, the mean is over the valid
    positions, those whose target is another class. The loss of an example without one has no
    value and is NaN, which nothing takes for an easy example: see ``on_nonfinite`` of a
    `SelectiveLoader`, and ``mask`` of `InBatch.select`. Its gradient is 0.

    Any other function is returned unchanged, and must return one loss per example itself.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``.

    Returns:
        A function of the same arguments that returns a tensor of shape [N]. ``loss_fn`` is not
        changed. It raises a `LossError` if ``loss_fn`` has an ``ignore_index``, and the losses
        are not of the shape of the targets.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> outputs, targets = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    >>> F.cross_entropy(outputs, targets)
    tensor(1.0986)
    >>> per_example(F.cross_entropy)(outputs, targets)
    tensor([1.0986, 1.0986, 1.0986, 1.0986])
    >>> padded = torch.tensor([[2, 0, 1], [0, -100, -100], [-100, -100, -100]])
    >>> per_example(F.cross_entropy)(torch.zeros(3, 4, 3), padded)
    tensor([1.3863, 1.3863,    nan])
    """
    checked_object("loss_fn", loss_fn, "a loss function, such as F.cross_entropy", "__call__")
    unreduced: Callable[..., Tensor]
    if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
        module: Any = copy.copy(loss_fn)
        module.reduction = "none"
        unreduced = module
    elif _takes_reduction(loss_fn):
        unreduced = functools.partial(cast(Callable[..., Tensor], loss_fn), reduction="none")
    else:
        return loss_fn

    # Not a closure, so that it can be pickled and sent to another process.
    return functools.partial(_averaged, unreduced, _ignored_index(loss_fn))


def _averaged(unreduced: LossFn, ignored: int | None, outputs: Any, targets: Any) -> Tensor:
    values: Tensor = unreduced(outputs, targets)
    _refuse_broadcast(values, outputs, targets)
    valid = _valid(ignored, targets)
    if values.ndim < 2:
        fits = valid is not None and valid.shape == values.shape
        return values.masked_fill(~cast(Tensor, valid), torch.nan) if fits else values
    if valid is None:
        return values.flatten(1).mean(1)
    if values.shape != valid.shape:
        raise LossError(
            f"losses of shape {list(values.shape)} for targets of shape {list(targets.shape)}: "
            f"which of them are ignored, with ignore_index={ignored}, cannot be known; average "
            "over the valid positions of each example in the loss function"
        )
    return mean_of_valid(values.flatten(1), valid.flatten(1))


def mean_of_valid(values: Tensor, valid: Tensor) -> Tensor:
    """The mean of each row's valid values; NaN for a row without any, with a gradient of 0.

    Args:
        values: float[N, T].
        valid: bool[N, T].

    Returns:
        float[N].

    >>> import torch
    >>> values = torch.tensor([[1.0, 5.0], [1.0, 1.0]])
    >>> mean_of_valid(values, torch.tensor([[True, False], [False, False]]))
    tensor([1., nan])
    """
    counts = valid.sum(1)
    means = values.masked_fill(~valid, 0).sum(1) / counts.clamp(min=1)  # 0 / 0 has a gradient
    return means.masked_fill(counts == 0, torch.nan)


def _valid(ignored: int | None, targets: Any) -> Tensor | None:
    """Bool of the targets' shape, which are not ignored; None if a loss ignores none."""
    # Targets that are probabilities have no ignored class, and PyTorch ignores the index too.
    if ignored is None or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    return targets != ignored


def has_valid(loss_fn: LossFn, targets: Any) -> Tensor | None:
    """bool[N], which examples have a target that a loss function does not ignore.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``.
        targets: Those of N examples.

    Returns:
        None if it ignores none.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> has_valid(F.cross_entropy, torch.tensor([[2, 0], [0, -100], [-100, -100]]))
    tensor([ True,  True, False])
    """
    valid = _valid(_ignored_index(loss_fn), targets)
    return None if valid is None or valid.ndim == 0 else valid.reshape(len(valid), -1).any(1)


def _refuse_broadcast(values: Tensor, outputs: Any, targets: Any) -> None:
    """Refuses losses of pairs of examples, which [N, 1] and [N] give."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
    if values.numel() > max(outputs.numel(), targets.numel()):
        raise LossError(
            f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)} "
            f"were broadcast to losses of shape {list(values.shape)}: give both the same shape, "
            "such as by targets[:, None] or outputs.squeeze(1)"
        )


def _ignored_index(loss_fn: LossFn) -> int | None:
    """The class whose positions a loss function ignores; None without one."""
    if isinstance(loss_fn, nn.Module):
        return cast(int | None, getattr(loss_fn, "ignore_index", None))
    index = inspect.signature(loss_fn).parameters.get("ignore_index")
    return None if index is None or index.default is inspect.Parameter.empty else index.default


def pair_losses(loss_fn: LossFn, with_outputs: bool = False) -> Losses:
    """The general form ``losses(model, batch)`` of a loss function for ``(inputs, targets)`` pairs.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``.
        with_outputs: Whether the function returns ``(losses, outputs)`` instead of the losses.

    Raises:
        BatchError: If called with a batch that is not a pair.
    """
    return functools.partial(_of_pair, per_example(loss_fn), with_outputs)


def _of_pair(unreduced: LossFn, with_outputs: bool, model: nn.Module, batch: Any) -> Any:
    inputs, targets = pair(batch)
    outputs = model(inputs)
    values = unreduced(outputs, targets)
    return (values, outputs) if with_outputs else values


def pair(batch: Any) -> tuple[Any, Any]:
    """The inputs and the targets of a batch that is an ``(inputs, targets)`` pair.

    Raises:
        BatchError: If it is not a pair.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = batch
        return inputs, targets
    parts = f" of {len(batch)} parts" if hasattr(batch, "__len__") else ""
    raise BatchError(
        f"a {type(batch).__name__}{parts} is not an (inputs, targets) pair; "
        "for other batches give losses=fn(model, batch) in place of loss_fn"
    )


def resolve(loss_fn: LossFn | None, losses: Losses | None, with_outputs: bool = False) -> Losses:
    """The general form ``losses(model, batch)``, from whichever form was passed.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``, for pairs.
        losses: ``losses(model, batch)``, for any batch.
        with_outputs: Whether the function made for pairs returns ``(losses, outputs)``.

    Raises:
        ConfigError: If both or neither are given.
    """
    if losses is not None and loss_fn is None:
        return checked_object("losses", losses, "a function losses(model, batch)", "__call__")
    if loss_fn is not None and losses is None:
        return pair_losses(loss_fn, with_outputs)
    raise ConfigError(
        f"{'neither' if losses is None else 'both'} of loss_fn and losses given: give "
        "loss_fn(outputs, targets) for pairs, or losses=fn(model, batch) for any other batch"
    )


def check(losses: Any, count: int) -> Tensor:
    """Checks that there is one loss per example.

    Args:
        losses: Result of the user's function.
        count: N, the number of examples in the batch.

    Returns:
        float32[N], detached.

    Raises:
        LossError: If it is not a floating-point tensor of shape [N].
    """
    expected = f"expected one loss per example, a floating-point tensor of shape [{count}]"
    if not isinstance(losses, Tensor):
        raise LossError(f"the losses are a {type(losses).__name__}; {expected}")
    if not is_dense(losses):
        raise LossError(
            f"the losses are a sparse, nested, quantized or meta tensor; {expected}: make it dense"
        )
    if losses.ndim == 0:
        raise LossError(f'the loss is reduced to one number; {expected}: use reduction="none"')
    if losses.shape != (count,):
        raise LossError(
            f"the losses have shape {list(losses.shape)}; {expected}: "
            "average over the other dimensions, not over the examples"
        )
    if not losses.is_floating_point():
        raise LossError(f"the losses are of {losses.dtype}; {expected}: compute them as float32")
    return losses.detach().float()


def _takes_reduction(loss_fn: LossFn) -> bool:
    try:
        return "reduction" in inspect.signature(loss_fn).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return False
