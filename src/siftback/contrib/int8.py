"""Losses in 8-bit integers, by the CPU kernels of PyTorch's oneDNN.

The kernels are those that PyTorch's compiler emits for a quantised model. They are called
directly, so that new weights need only rounding, and no new export or compilation.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.arguments import check_choice
from siftback.errors import ConfigError
from siftback.losses.per_example import Losses
from siftback.scorers.selection_pass import Fresh, Mode, common_device
from siftback.scorers.snapshot import CopyScorer, Snapshot
from siftback.state import (
    check_entries,
    dict_of,
    integer,
    number,
    optional,
    shaped_like,
    tensor,
    tuple_of,
)

Activations = Literal["dynamic", "static"]

HAS_VNNI = torch.cpu._is_vnni_supported()
"""Whether the processor adds products of 8-bit integers in 32 bits, and not in 16."""


class Int8(CopyScorer):
    """Scores a batch by the losses of a copy of the model in 8-bit integers, on the CPU.

    A form of the "inference acceleration" of Jiang et al. 2019, section 3.3.

    `nn.Linear` and `nn.Conv2d` round weights, per output channel, and inputs, per tensor, to 8
    bits; everything else stays in float32, including subclasses of these layers, other
    convolutions, and attention that PyTorch computes without calling them. The range of a layer's
    inputs is that of the whole batch, so that an example's score depends slightly on the others.

    As with `Reduced`, the copy is made at the first batch and refreshed every ``refresh`` steps.

    Args:
        refresh: Training steps between refreshes, m.
        mode: As for `Fresh`.
        channels_last: Whether to use the ``channels_last`` memory format, in which convolutions
            are faster. Not for models that call ``view`` on feature maps.
        activations: "dynamic" takes the range of a layer's inputs from each batch, "static" from
            the first batch after a refresh, which saves a pass over them but hides inputs that
            are not finite.

    Raises:
        ConfigError: If an argument is out of range. While scoring: if the model cannot be
            copied or has no such layers, or PyTorch lacks the kernels.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses = pair_losses(nn.functional.mse_loss)
    >>> scorer, model = Int8(), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 2.0)
    >>> batch = torch.tensor([[0.0], [3.0]]), torch.ones(2, 1)
    >>> scorer.score(losses, model, batch, None).round()
    tensor([ 1., 25.])
    """

    def __init__(
        self,
        refresh: int = 1,
        *,
        mode: Mode = "eval",
        channels_last: bool = False,
        activations: Activations = "dynamic",
    ) -> None:
        self._static = check_choice("activations", activations, "dynamic", "static") == "static"
        super().__init__(self._quantise, refresh, Fresh(mode), channels_last=channels_last)

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes one loss per example, float32[N]; raises as `Fresh.score` and the class do."""
        check_kernels(common_device(model, batch))
        return super().score(losses, model, batch, indices)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {**super().settings(), "static": self._static}

    def _quantise(self, model: nn.Module) -> "Quantised":
        # Weights of 8-bit layers, which the copy does not keep in float32.
        rounded = {id(module.weight) for module in model.modules() if has_kernel(module)}

        def copy_tensor(tensor: Tensor) -> Tensor:
            return tensor if id(tensor) in rounded else self.separate(tensor, tensor.detach())

        return Quantised(model, copy_tensor, self._static)


class Quantised(Snapshot):
    """A snapshot of a model, in which layers that have a kernel are replaced by 8-bit layers.

    Args:
        model: The model to copy; read only.
        make: As for `Snapshot`.
        static: As for `Int8Layer`.

    Attributes:
        layers: Its 8-bit layers, by path.

    Raises:
        ConfigError: If the model has no such layer.
    """

    def __init__(self, model: nn.Module, make: Callable[[Tensor], Tensor], static: bool) -> None:
        super().__init__(model, make)
        self.model, self.layers = quantise(self.model, static)

    def update(self, model: nn.Module) -> bool:
        """See `Snapshot.update`."""
        if not super().update(model):
            return False
        for path, layer in self.layers.items():
            layer.copy_(model.get_submodule(path).weight)  # type: ignore[arg-type]
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the tensors of the snapshot, and the layers' states by path."""
        layers = {path: layer.state() for path, layer in self.layers.items()}
        return {"tensors": super().state_dict(), "layers": layers}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of a model with other tensors.
        """
        layers = dict_of({path: layer.check for path, layer in self.layers.items()})
        check_entries(self, state, {"tensors": shaped_like(self.copied), "layers": layers})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies the values of a state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.refresh(state["tensors"])
        for path, layer in self.layers.items():
            layer.load(state["layers"][path])


class Int8Layer(nn.Module):
    """A linear layer or convolution that rounds its inputs and weights to 8 bits.

    Weights: int8, a symmetric scale per output channel, ``s = max|w| / 127``. Inputs: uint8, one
    scale and zero point for the whole tensor, so that 0 is exact:
    ``s = (hi - lo) / 255, z = round(-lo / s), q = clamp(round(x / s + z), 0, 255)`` with
    ``lo = min(x, 0), hi = max(x, 0)`` (Jacob et al. 2018, eq. 1). Products are summed in int32;
    the output is float32. On processors without VNNI inputs have 7 bits, every second of these
    values, as their kernels add two products in 16 bits, which those of 8 bits exceed.

    Args:
        layer: An `nn.Linear` or `nn.Conv2d`; its bias is shared.
        static: Whether the inputs' range is that of the first batch after a refresh, instead of
            each batch's own. Values outside it are clamped, including infinite ones.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, static: bool) -> None:
        super().__init__()
        self.bias = layer.bias
        self.static = static
        self.window: tuple[list[int], list[int], list[int], int] | None = None
        if isinstance(layer, nn.Conv2d):
            padding = [int(side) for side in layer.padding]
            self.window = list(layer.stride), padding, list(layer.dilation), layer.groups
        self.copy_(layer.weight)

    @torch.no_grad()
    def copy_(self, weight: Tensor, /) -> None:
        """Rounds new weights; a static range is measured again."""
        per_channel = (-1, *[1] * (weight.ndim - 1))
        scale = (weight.detach().float().flatten(1).abs().amax(1) / 127).clamp_min(1e-12)
        rounded = (weight.detach() / scale.view(per_channel)).round_().to(torch.int8)
        self.load({"weight": rounded, "scale": scale, "range": None})

    def state(self) -> dict[str, Any]:
        """Returns the rounded weights, their scales, and the inputs' range if one was measured."""
        return {"weight": self.rounded.clone(), "scale": self.scale.clone(), "range": self.range}

    def check(self, name: str, state: Any) -> None:
        """Checks that a state is of a layer of the same shape."""
        checks = {"weight": tensor(torch.int8, *self.rounded.shape),
               "scale": tensor(torch.float32, *self.scale.shape, least=0, finite=True),
               "range": optional(tuple_of(number(least=0), integer(0, 255)))}  # fmt: skip
        dict_of(checks)(name, state)

    def load(self, state: dict[str, Any]) -> None:
        """Loads rounded weights, and packs them for the kernels."""
        self.rounded, self.scale = state["weight"].clone(), state["scale"].clone()
        self.range: tuple[float, int] | None = state["range"]
        self.zeros = torch.zeros(len(self.scale), dtype=torch.int32)
        onednn: Any = torch.ops.onednn
        if self.window is None:
            self.packed = onednn.qlinear_prepack(self.rounded, None)
        else:
            self.packed = onednn.qconv_prepack(self.rounded, self.scale, 1.0, 0, *self.window, None)

    @property
    def weight(self) -> Tensor:
        """float32, the rounded weights, for code that reads them instead of calling the layer."""
        return cast(Tensor, self.rounded * self.scale.view(-1, *[1] * (self.rounded.ndim - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer in 8 bits.

        If the inputs are not finite, and no range was measured before, the batch is computed in
        float32, so that a bad input affects only its own example.
        """
        span = self.range or range_of(x)
        if span is None:
            if self.window is None:
                return F.linear(x.float(), self.weight, self.bias)
            return F.conv2d(x.float(), self.weight, self.bias, *self.window)
        if self.static:
            self.range = span
        step, zero, most = (*span, 255) if HAS_VNNI else (2 * span[0], span[1] // 2, 127)
        rounded = torch.mul(x.float(), 1 / step).add_(zero).round_().clamp_(0, most)
        weights = (self.packed, self.scale, self.zeros, self.bias, *(self.window or ()))
        onednn: Any = torch.ops.onednn
        compute = onednn.qconv2d_pointwise if self.window else onednn.qlinear_pointwise
        quantised = rounded.to(torch.uint8)
        output: Any = (1.0, 0, torch.float32, "none", [], "")
        return cast(Tensor, compute(quantised, step, zero, *weights, *output))


def range_of(x: Tensor) -> tuple[float, int] | None:
    """Returns the step and the zero point of a tensor; None if it is empty or not finite."""
    if x.numel() == 0:
        return None
    # In memory order, which is several times faster.
    by_stride = sorted(range(x.ndim), key=x.stride, reverse=True)
    low, high = (float(bound) for bound in torch.aminmax(x.permute(by_stride)))
    low, high = min(low, 0.0), max(high, 0.0)
    if not math.isfinite(high - low):
        return None
    step = max((high - low) / 255, 1e-12)
    return step, round(-low / step)


def quantise(model: nn.Module, static: bool) -> tuple[nn.Module, dict[str, Int8Layer]]:
    """Replaces each layer that has a kernel by an `Int8Layer`.

    Args:
        model: Changed in place, unless it is such a layer itself.
        static: As for `Int8Layer`.

    Returns:
        The model, and the new layers by path.

    Raises:
        ConfigError: If the model has no such layer.
    """
    layers = {
        path: (module, Int8Layer(module, static))
        for path, module in model.named_modules()
        if has_kernel(module)
    }
    if not layers:
        raise ConfigError(
            f"Int8 finds no nn.Linear and no nn.Conv2d in the {type(model).__name__}: "
            'give Reduced("bf16")'
        )
    layer_of: dict[nn.Module | None, nn.Module] = dict(layers.values())
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child in layer_of:
                module._modules[name] = layer_of[child]
    return layer_of.get(model, model), {path: new for path, (_, new) in layers.items()}


def has_kernel(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Returns whether an `Int8Layer` can replace a module; it cannot replace a subclass."""
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


def check_kernels(device: torch.device) -> None:
    """Checks that the kernels are available.

    Raises:
        ConfigError: If the device is not the CPU, or PyTorch was built without the kernels.
    """
    if device.type != "cpu":
        raise ConfigError(f'Int8 on {device}: its kernels are for the CPU; give Reduced("bf16")')
    if not hasattr(torch.ops.onednn, "qconv2d_pointwise"):
        raise ConfigError(
            "Int8 needs the oneDNN kernels, which this build of PyTorch lacks: "
            'install one from pytorch.org, or give Reduced("bf16")'
        )
