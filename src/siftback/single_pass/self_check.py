"""Whether the single pass's gradients are those of the kept losses, and what couples examples."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from siftback.errors import GradientError
from siftback.loading import tree

Gradients = dict[str, Tensor]

# Relative differences that rounding explains: sums over the batch are added in another order.
_EXACT, _LOOSE = 1e-5, 2e-2


class GradientCheck(NamedTuple):
    """How the single pass's gradient compares with autograd's, of the same kept losses.

    Attributes:
        difference: ``|fast - exact| / |exact|`` of all parameters' gradients together.
        cosine: Of the angle between the two.
        largest: The largest difference of one parameter, relative to its own gradient and a
            hundredth of all parameters' together.
        parameter: That parameter's name.
        batch_norms: Names of the modules that couple examples by their batch's statistics;
            where there are any, a difference is expected.
    """

    difference: float
    cosine: float
    largest: float
    parameter: str
    batch_norms: tuple[str, ...]


def gradients(model: nn.Module, loss: Tensor) -> Gradients:
    """Of a loss, by parameter that takes one; the parameters' own are left alone."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(named.items(), found, strict=True)
    }


def compare(model: nn.Module, fast: Gradients, exact: Gradients) -> GradientCheck:
    """Compares the gradients of a model's parameters.

    Args:
        model: Whose gradients they are.
        fast: Of the single pass, by parameter.
        exact: Of autograd, by parameter.
    """
    ours, theirs = (
        torch.cat([g.flatten().double() for g in each.values()]).cpu() for each in (fast, exact)
    )
    norm = float(theirs.norm())
    each = {
        name: float((fast[name] - exact[name]).double().norm())
        / (float(exact[name].double().norm()) + norm / 100 or 1.0)
        for name in exact
    }
    worst = max(each, key=each.__getitem__)
    return GradientCheck(
        difference=float((ours - theirs).norm()) / (norm or 1.0),
        cosine=float(nn.functional.cosine_similarity(ours, theirs, dim=0)),
        largest=each[worst],
        parameter=worst,
        batch_norms=tuple(
            name
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.training
        ),
    )


def tolerance(device: torch.device, parameters: Gradients, same_kernels: bool) -> float:
    """The largest relative difference that rounding explains.

    1e-5 where both compute in float32 with the same kernels; 2e-2 under autocast, for narrower
    parameters, on accelerators that may round products to TF32, and where other kernels round
    otherwise, so that a ReLU's input may lie on the other side of 0.
    """
    narrow = any(value.dtype not in (torch.float32, torch.float64) for value in parameters.values())
    rounded = torch.is_autocast_enabled(device.type) or device.type != "cpu"
    return _EXACT if same_kernels and not narrow and not rounded else _LOOSE


def failure(check: GradientCheck, allowed: float, coupled: str | None) -> GradientError:
    """The error for gradients that differ, with what to do about it."""
    found = coupled or "none was found"
    return GradientError(
        f"the single pass's gradient of {check.parameter} differs from that of the kept losses by "
        f"{check.largest:.1e} of its size, and {allowed:.0e} is what rounding explains. The "
        f"first module whose output for an example depends on the others: {found}. "
        "Give the model layers that treat examples one by one, or train it with SelectiveLoader"
    )


def coupling(
    model: nn.Module, run: Callable[[Any], Any], batch: Any, rows: Tensor, count: int
) -> str | None:
    """Finds the first module whose output for some rows changes when the other rows do.

    Runs the batch as it is and with all other rows replaced by copies of the kept ones, and
    compares what each module without children gives for the rows.

    Args:
        model: The model.
        run: Computes the losses of a batch.
        batch: A nested batch of N examples.
        rows: int64[k], those to compare.
        count: N.

    Returns:
        Its name and class; None where all of them agree.
    """
    copies = rows.repeat(count // len(rows) + 1)[:count].clone()
    copies[rows] = rows
    first, second = (
        _outputs(model, run, variant, rows, count) for variant in (batch, tree.take(batch, copies))
    )
    differing = (
        name
        for (name, ours), (_, theirs) in zip(first, second, strict=False)
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    )
    return next(differing, None)


def _outputs(
    model: nn.Module, run: Callable[[Any], Any], batch: Any, rows: Tensor, count: int
) -> list[tuple[str, Tensor]]:
    seen: list[tuple[str, Tensor]] = []

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim and len(output) == count:
                seen.append((name, output.detach().index_select(0, rows).float()))

        return hook

    handles = [
        module.register_forward_hook(record(f"{name} ({type(module).__name__})"))
        for name, module in model.named_modules()
        if not list(module.children())
    ]
    try:
        run(batch)
    finally:
        for handle in handles:
            handle.remove()
    return seen
