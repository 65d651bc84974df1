"""Checks that the single pass's gradients are those of the kept losses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook

from siftback.batches import tree

Gradients = dict[str, Tensor]

# Relative differences that rounding explains, as sums over the batch are added in another order.
_EXACT, _LOOSE = 1e-5, 2e-2


class GradientCheck(NamedTuple):
    """A comparison of the single pass's gradient with autograd's, of the same kept losses.

    Attributes:
        difference: ``|fast - exact| / |exact|`` of the gradients of all parameters together.
        cosine: Cosine of the angle between the two.
        largest: The largest difference of one parameter, relative to the norm of its gradient
            plus a hundredth of that of all parameters; or of gradients that do not cancel out,
            where these are larger.
        parameter: That parameter's name.
        batch_norms: Names of the modules that couple examples by batch statistics; if there are
            any, a difference is expected.
    """

    difference: float
    cosine: float
    largest: float
    parameter: str
    batch_norms: tuple[str, ...]


def gradients(model: nn.Module, loss: Tensor) -> Gradients:
    """Returns the gradients of a loss by parameter name; ``grad`` attributes are not changed."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wanted = list(named.values())
    computed = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return {name: value.to_dense() for name, value in zip(named, computed, strict=True)}


def compare_gradients(
    model: nn.Module, fast: Gradients, exact: Gradients, uneven: Gradients
) -> GradientCheck:
    """Compares the gradients of a model's parameters.

    Args:
        model: The model.
        fast: Gradients of the single pass, by parameter.
        exact: Gradients of autograd, by parameter.
        uneven: Those of the same losses with random factors, which say how large gradients are: of
            an untrained classifier those of balanced classes cancel out, but for rounding.
    """
    ours, theirs, others = (
        torch.cat([gradient.flatten().double() for gradient in by_name.values()]).cpu()
        for by_name in (fast, exact, uneven)
    )
    norm = float(theirs.norm())
    least = max(norm, float(others.norm())) / 100
    differences = {
        name: float((fast[name] - exact[name]).double().norm())
        / (max(float(by_name[name].double().norm()) for by_name in (exact, uneven)) + least or 1.0)
        for name in exact
    }
    worst = max(differences, key=differences.__getitem__)
    return GradientCheck(
        difference=float((ours - theirs).norm()) / (norm or 1.0),
        cosine=float(nn.functional.cosine_similarity(ours, theirs, dim=0)),
        largest=differences[worst],
        parameter=worst,
        batch_norms=tuple(
            name
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm) and module.training
        ),
    )


def tolerance(device: torch.device, parameters: Gradients, same_kernels: bool) -> float:
    """Returns the largest relative difference that rounding explains.

    It is 1e-5 if both compute in float32 with the same kernels; 2e-2 under autocast, for parameters
    of lower precision, on accelerators that may round products to TF32, and with other kernels,
    whose rounding may change the sign of a ReLU's input.
    """
    narrow = any(value.dtype not in (torch.float32, torch.float64) for value in parameters.values())
    rounded = torch.is_autocast_enabled(device.type) or device.type != "cpu"
    return _EXACT if same_kernels and not narrow and not rounded else _LOOSE


def find_coupling(
    model: nn.Module, run: Callable[[Any], Any], batch: Any, rows: Tensor, count: int
) -> str:
    """Finds the first module whose output for some rows changes when the other rows do.

    Runs the batch as it is and with all other rows replaced by copies of the kept ones, and
    compares the outputs of each module without children for the rows.

    Args:
        model: The model.
        run: Computes the losses of a batch.
        batch: A nested batch of N examples.
        rows: int64[k], the rows to compare.
        count: N.

    Returns:
        Its name and class; "" if all of them agree.
    """
    copies = rows.repeat(count // len(rows) + 1)[:count].clone()
    copies[rows] = rows
    seen: list[tuple[str, Tensor]] = []

    leaves = {module: name for name, module in model.named_modules() if not list(module.children())}

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        if module in leaves and isinstance(output, Tensor) and output.ndim and len(output) == count:
            name = f"{leaves[module]} ({type(module).__name__})"
            seen.append((name, output.detach().index_select(0, rows).float()))

    with register_module_forward_hook(record):
        run(tree.clone(batch))
        run(tree.take(batch, copies))
    differing = (
        name
        for (name, ours), (_, theirs) in zip(seen, seen[len(seen) // 2 :], strict=False)
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    )
    return next(differing, "")
