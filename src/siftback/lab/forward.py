"""A model as settings ask for it: its device, number type, losses, and the steps that train it."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.flop_counter import FlopCounterMode

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import IGNORED, DataSet, TextData
from siftback.lab.data.stream import Batch, BatchStream, evaluation_batches
from siftback.lab.records.environment import memory_gib
from siftback.lab.settings import Settings, TrainingPrecision

AUTOCAST_TYPES: dict[TrainingPrecision, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
TEST_BATCH = 500

ExampleLosses = Callable[[nn.Module, Batch], Tensor]
Weigh = Callable[[Tensor, Tensor | None], Tensor]


def check_model_fits(settings: Settings, data: DataSet) -> None:
    """Refuses a model of other examples or larger images, or one that memory cannot hold."""
    models.check_kind(settings.model, data.kind, data.name)
    weights = models.count(settings.model, settings.width, norm=settings.norm, **data.model_sizes)
    needed, memory = 3 * 4 * weights / 2**30, memory_gib() or math.inf
    if needed > memory:
        raise ConfigError(
            f"{settings.model_name} needs {needed:,.0f} GiB for weights, gradients and momentum, "
            f"and this machine has {memory:g}: give a smaller --width or another --model"
        )
    batch_work(settings, data)


def batch_work(settings: Settings, data: DataSet) -> float:
    """Floating-point operations of the forward of a batch; the model is not allocated.

    Raises:
        ConfigError: If the model cannot compute it, as the images are too small.
    """
    sizes = data.model_sizes
    with torch.device("meta"):
        model = models.build(settings.model, width=settings.width, norm=settings.norm, **sizes)
        dtype = torch.long if isinstance(data, TextData) else torch.float32
        example = torch.ones(1, *data.train_inputs.shape[1:], dtype=dtype)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(example)
    except RuntimeError as error:
        raise ConfigError(
            f"{settings.model_name} on {data.name}: {error}: give larger images or another --model"
        ) from None
    return float(counter.get_total_flops()) * settings.batch_size


def build_model(settings: Settings, data: DataSet) -> nn.Module:
    """Returns a new model for some data, on the device and in the layout to train in."""
    width, norm = settings.width, settings.norm
    model = models.build(settings.model, width=width, norm=norm, **data.model_sizes)
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    model.to(training_device(settings), memory_format=layout)  # type: ignore[call-overload]
    return model


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Returns the optimizer that suits the settings' model, for some model's parameters."""
    lr, momentum, decay = settings.lr, settings.momentum, settings.weight_decay
    if models.find_architecture(settings.model).optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr, (momentum, 0.999), weight_decay=decay)
    return torch.optim.SGD(
        model.parameters(), lr, momentum, weight_decay=decay, nesterov=momentum > 0
    )


def autocast_of(settings: Settings) -> torch.dtype | None:
    """Returns the type of mixed precision; None for float32 throughout."""
    return AUTOCAST_TYPES[settings.precision]


def autocast_context(settings: Settings, device: torch.device) -> torch.autocast:
    """Returns the context of a forward pass in that type."""
    dtype = autocast_of(settings)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def training_device(settings: Settings) -> torch.device:
    """Returns the device to train on, where ``auto`` is the best that is available.

    Raises:
        ConfigError: If it is not available, or cannot train as the settings ask.
    """
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    names = [*(name for name, available in usable.items() if available), "cpu"]
    name = names[0] if settings.device == "auto" else settings.device
    if name not in names:
        raise ConfigError(f"no device {name!r}: give auto or one of {', '.join(reversed(names))}")
    if settings.precision == "fp16" and name != "cuda":
        raise ConfigError(
            f"precision 'fp16' on {name}: its scaled losses need CUDA; give bf16 or fp32"
        )
    return torch.device(name)


def batch_stream(
    settings: Settings, data: DataSet, size: int, seed: int = 0, **options: Any
) -> BatchStream:
    """Returns the training set in batches of a size, where and as settings have them.

    Args:
        settings: Those that say where and how.
        data: The data set.
        size: Examples of a batch.
        seed: As of `BatchStream`.
        options: Its other arguments, `augment` and `indexed`.
    """
    device, channels_last = training_device(settings), settings.channels_last
    return BatchStream(data, size, seed, device=device, channels_last=channels_last, **options)


def evaluation_batch_size(settings: Settings, data: DataSet) -> int:
    """Returns the examples of a batch to test on; logits of language are as large as training's."""
    return settings.batch_size if data.kind == "language" else TEST_BATCH


def batches_to_test_on(settings: Settings, data: DataSet) -> Iterator[Batch]:
    """Returns the test examples in batches, where and as settings have them."""
    size, device = evaluation_batch_size(settings, data), training_device(settings)
    return evaluation_batches(data, size, device, settings.channels_last)


@torch.no_grad()
def predictions(
    model: nn.Module, batches: Iterable[Batch], settings: Settings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the outputs of a model in eval mode, in float32, and the labels of each batch.

    It is in its former mode again once all are yielded.
    """
    was_training = model.training
    model.eval()
    for inputs, labels in batches:
        with autocast_context(settings, inputs.device):
            outputs = model(inputs)
        yield outputs.float(), labels
    model.train(was_training)


def example_losses(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """float[B], the loss of each example of a batch, as `losses_of_outputs` has it."""
    inputs, labels = batch
    return losses_of_outputs(model(inputs), labels, smoothing)


def losses_of_outputs(outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """float[B], the loss of each example.

    It is the cross-entropy in nats, of a window the mean over its valid tokens; of a pixel it is
    the squared error, the mean over its colours.

    Args:
        outputs: Logits, float [B, K] or [B, T, K], or colours, float [B, C].
        labels: int64 [B] or [B, T], `IGNORED` where there is none, or float [B, C].
        smoothing: Share of each target that is spread over all classes.
    """
    if labels.is_floating_point():
        return F.mse_loss(outputs, labels, reduction="none").mean(1)
    if labels.ndim == 1:
        return F.cross_entropy(outputs, labels, reduction="none", label_smoothing=smoothing)
    return token_cross_entropies(outputs, labels, smoothing).sum(1) / (labels != IGNORED).sum(1)


def are_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """bool, of the labels' shape: whether the most probable class is right, or the colour exact."""
    return (outputs if labels.is_floating_point() else outputs.argmax(-1)) == labels


def token_cross_entropies(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """float[B, T], the cross-entropy of each token, 0 where there is no label."""
    rows, classes = logits.flatten(0, 1), labels.flatten()
    losses = F.cross_entropy(
        rows, classes, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    return losses.view(labels.shape)


def mean_loss(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Returns the mean of the losses of the examples of a batch."""
    inputs, labels = batch
    outputs = model(inputs)
    if labels.ndim == 1:
        return F.cross_entropy(outputs, labels, label_smoothing=smoothing)
    return losses_of_outputs(outputs, labels, smoothing).mean()


def weighted_example_loss(weigh: Weigh, logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean over the examples of a batch of each loss times its weight.

    Args:
        weigh: From losses and a mask to their weights.
        logits: float [B, K] or [B, T, K], or colours, float [B, C].
        labels: int64 [B] or [B, T], or float [B, C].
    """
    losses = losses_of_outputs(logits, labels)
    # Where a loss is NaN so is the mean, and training goes on to its end as a plain one does.
    return (losses * weigh(losses.nan_to_num(), None)).mean()


def weighted_token_loss(weigh: Weigh, logits: Tensor, labels: Tensor) -> Tensor:
    """As `weighted_example_loss`, but of a language model the mean over the tokens of a batch."""
    if labels.ndim == 1:
        return weighted_example_loss(weigh, logits, labels)
    losses, mask = token_cross_entropies(logits, labels), labels != IGNORED
    return (losses * weigh(losses.nan_to_num(), mask)).sum() / mask.sum()


def moved_average(
    decay: float, averages: list[Tensor], weights: list[Tensor], updates: Tensor | int
) -> None:
    """Moves exponential averages towards weights, in place.

    After t updates the decay is ``min(decay, (1 + t) / (10 + t))``: the average of a short training
    is one of its last tenth or so, and not one that its first weights weigh most in.

    Args:
        decay: The share of the average that stays, of a long training.
        averages: Those so far; the first is that of the first weights.
        weights: As many.
        updates: t, how often they were moved before.

    >>> average = torch.tensor([0.0])
    >>> moved_average(0.999, [average], [torch.tensor([1.0])], updates=1)
    >>> average
    tensor([0.8182])
    """
    count = int(updates)
    get_ema_multi_avg_fn(min(decay, (1 + count) / (10 + count)))(averages, weights, updates)  # type: ignore[no-untyped-call]


class Stepper:
    """SGD or AdamW on a model, as settings say.

    Args:
        model: Whose parameters.
        settings: Rate, momentum, weight decay, clipping, precision and averaging.
        device: Where the model is.
    """

    def __init__(self, model: nn.Module, settings: Settings, device: torch.device) -> None:
        self._model, self._settings = model, settings
        self._optimizer = build_optimizer(model, settings)
        # Half precision's gradients would vanish unscaled; disabled, it lets them through.
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
        self._average: AveragedModel | None = None
        if settings.ema:
            average = partial(moved_average, settings.ema)
            self._average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)

    @property
    def tested(self) -> nn.Module:
        """The model to test and to keep: that of the averaged weights, where there is one."""
        return self._average.module if self._average else self._model

    def set_rate(self, factor: float) -> None:
        """Sets the learning rate to this multiple of its peak."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr * factor

    def backward(self, loss: Tensor) -> None:
        """Adds up the gradients of a loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Makes a step, and forgets the gradients."""
        if self._settings.clip:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        if self._average:
            self._average.update_parameters(self._model)

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, besides the model."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "average": self._average.state_dict() if self._average else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same settings."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        if self._average:
            self._average.load_state_dict(state["average"])
