"""Losses in fewer bits."""

import time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.errors import ConfigError
from siftback.loading import tree
from siftback.loss_functions import Losses
from siftback.scorers.fresh import Fresh, Mode, Scorer, device_of
from siftback.scorers.int8 import Activations, Int8Layer, check_kernels, has_kernel, quantise
from siftback.scorers.snapshot import Snapshot, tensors_of, unwrapped
from siftback.selectors.percentile import is_number

Precision = Literal["bf16", "fp16", "int8"]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": None}


class Reduced(Scorer):
    """Scores a batch by the losses of a copy of the model in fewer bits.

    The "inference acceleration" of Jiang et al. 2019, section 3.3. The copy is made at the first
    batch and brought up to date, in place, at the first batch scored after every ``refresh``
    training steps.

    "bf16" and "fp16": weight matrices and kernels are copied in that type, and the copy runs
    under autocast, so that losses are computed in float32 wherever autocast does so. Biases, the
    weights of normalisations and their running statistics stay float32. Against autocast of the
    model itself, weights are cast once a refresh instead of once a batch.

    "int8" (CPU): `nn.Linear` and `nn.Conv2d` round weights, per output channel, and inputs, per
    tensor, to 8 bits; all between them stays as it is. The range of a layer's inputs spans the
    batch, so that an example's score depends slightly on the others'. A subclass of these layers,
    other convolutions, and attention that PyTorch computes without calling them, stay in float32.

    With ``refresh=1`` the copy shares all tensors that need no other type with the model; else it
    keeps those of the same moment. Nothing of the copy is left in the model.

    Args:
        precision: "bf16", "fp16" or "int8".
        refresh: Training steps between refreshes, m. A refresh costs little beside a batch, and
            losses change fast while the learning rate is high: raise it only after comparing.
        compile: Whether to score through ``torch.compile`` of the copy; not with "int8".
        mode: As for `Fresh`.
        channels_last: Whether to lay out images and kernels by pixels, in which convolutions are
            faster. Not for models that call ``view`` on feature maps.
        activations: For "int8": "dynamic" takes the range of a layer's inputs from each batch,
            "static" from the first batch after a refresh, which saves a pass over them but hides
            inputs that are not finite.

    Attributes:
        seconds_refresh: Spent making and refreshing the copy, in seconds of the host.
        refreshes: How often that was.

    Raises:
        ConfigError: Where an argument is out of its range. While scoring: where the model cannot
            be copied, or "int8" has no kernels or no layers for it.

    >>> from siftback.loss_functions import pair_losses
    >>> losses = pair_losses(nn.functional.mse_loss)
    >>> scorer, model = Reduced("bf16"), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1 + 2**-10)  # 1 in bfloat16's 8 bits
    >>> scorer.score(losses, model, (torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)))
    tensor([1., 9.])
    """

    def __init__(
        self,
        precision: Precision = "bf16",
        refresh: int = 1,
        *,
        compile: bool = False,
        mode: Mode = "eval",
        channels_last: bool = False,
        activations: Activations = "dynamic",
    ) -> None:
        if precision not in _TYPES:
            raise ConfigError(f'precision={precision!r}: give "bf16", "fp16" or "int8"')
        if not is_number(refresh) or refresh != int(refresh) or refresh < 1:
            raise ConfigError(f"refresh={refresh!r}: give a number of steps, 1 or more")
        if activations not in ("dynamic", "static"):
            raise ConfigError(f'activations={activations!r}: give "dynamic" or "static"')
        if precision != "int8" and activations != "dynamic":
            raise ConfigError(f'activations={activations!r} is for precision="int8": leave it out')
        if precision == "int8" and compile:
            raise ConfigError(
                'compile=True with precision="int8": its kernels are called as they are; '
                "leave compile out"
            )
        self.precision = precision
        self.refresh = int(refresh)
        self.seconds_refresh = 0.0
        self.refreshes = 0
        self._fresh = Fresh(mode, _TYPES[precision], compile=compile)
        self._channels_last = channels_last
        self._static = activations == "static"
        self._snapshot: Snapshot | None = None
        self._layers: dict[str, Int8Layer] = {}
        self._age = 0  # steps since the last refresh
        self._loaded: dict[str, Any] | None = None

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        """One loss per example, float32[N]; errors are those of `Fresh.score`, and the class's."""
        device = device_of(model, batch)
        if self.precision == "int8":
            check_kernels(device)
        model = unwrapped(model)
        snapshot = self._current(model)
        if self._fresh.mode == "train":
            snapshot.follow_modes(model)
        if self._channels_last:
            batch = tree.map_tensors(_by_pixels, batch)
        return self._fresh.score(losses, snapshot.model, batch)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Counts the step."""
        self._age += 1
        if self._age >= self.refresh:
            self._loaded = None  # a copy that is too old by now

    def state_dict(self) -> dict[str, Any]:
        """The steps since the last refresh, and the copy where it will be scored with again."""
        if self._loaded is not None:
            return {"age": self._age, "copy": self._loaded}
        copy = None
        if self._snapshot is not None and self._age < self.refresh:  # else it is made anew
            layers = {path: layer.state() for path, layer in self._layers.items()}
            copy = {"tensors": self._snapshot.state_dict(), "layers": layers}
        return {"age": self._age, "copy": copy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another scorer's state; the copy is made when a model is there to copy."""
        self._age, self._loaded = state["age"], state["copy"]
        self._snapshot = None

    def _current(self, model: nn.Module) -> Snapshot:
        """The copy, no older than it may be."""
        if self._snapshot is not None and self._age < self.refresh:
            return self._snapshot
        started = time.perf_counter()
        sources = tensors_of(model)
        if self._snapshot is not None and self._snapshot.fits(sources):
            self._snapshot.refresh(sources)
            for path, layer in self._layers.items():
                layer.copy_(model.get_submodule(path).weight)  # type: ignore[arg-type]
        else:
            self._make(model)
        assert self._snapshot is not None
        if self._loaded is None:
            self._age = 0
        else:
            self._snapshot.load_state_dict(self._loaded["tensors"])
            for path, layer in self._layers.items():
                layer.load(self._loaded["layers"][path])
            self._loaded = None
        self.refreshes += 1
        self.seconds_refresh += time.perf_counter() - started
        return self._snapshot

    def _make(self, model: nn.Module) -> None:
        type_ = _TYPES[self.precision]
        # Those of layers in 8 bits, of which the copy keeps no others.
        rounded = (
            {id(m.weight) for m in model.modules() if has_kernel(m)} if type_ is None else set()
        )

        def make(tensor: Tensor) -> Tensor:
            made = tensor.detach()
            if id(tensor) in rounded:
                return tensor
            if isinstance(tensor, nn.Parameter) and tensor.ndim > 1:
                if type_ is not None and tensor.is_floating_point():
                    made = made.to(type_)
                if self._channels_last:
                    made = _by_pixels(made)
            if made.data_ptr() != tensor.data_ptr() or made.dtype != tensor.dtype:
                return made
            return tensor if self.refresh == 1 else made.clone()

        self._snapshot = Snapshot(model, make)
        if type_ is None:
            self._snapshot.model, self._layers = quantise(self._snapshot.model, self._static)


def _by_pixels(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
