"""A training step taken as it is: the losses that it computes, by catching its loss function."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from siftback.errors import ConfigError, LossError
from siftback.loading import tree
from siftback.loss_functions import has_valid, per_example

_GIVE_LOSSES = "give losses=fn(module, batch), which returns one loss per example"


@functools.cache
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


def _is_loss(name: str, fn: Any) -> bool:
    if name.startswith("_") or not inspect.isfunction(fn):
        return False
    parameters = _signature(fn).parameters
    # That of the last linear layer and the loss in one has no outputs to take losses from.
    return "reduction" in parameters and "linear_weight" not in parameters


_LOSSES = frozenset(fn for name, fn in vars(functional).items() if _is_loss(name, fn))


class TrainingStep:
    """Has a function run in place of a module's ``training_step``, until that is put back.

    Args:
        module: A module with a ``training_step``.
        run: ``run(step, *args, **kwargs)`` is called in its place, with this object.

    Attributes:
        module: The module.
        own: Its own ``training_step``.
        eager: The same, without ``torch.compile`` of the step itself: its losses can be caught.
            The forward that it calls is still the compiled one.
        valid: bool[N], which examples of the `losses` taken last have any, with a target that is
            not ignored; None is all.
    """

    def __init__(self, module: Any, run: Callable[..., Any]) -> None:
        self.module, self.own = module, module.training_step
        compiled = getattr(module, "_compiler_ctx", None)
        self.eager = self.own if compiled is None else compiled["original_training_step"]
        self.valid: Tensor | None = None
        self._before = vars(module).get("training_step")
        module.training_step = functools.wraps(self.eager)(functools.partial(run, self))

    def put_back(self) -> None:
        """Gives the module its own ``training_step`` back."""
        vars(self.module).pop("training_step", None)
        if self._before is not None:
            self.module.training_step = self._before

    def losses(self, args: Any, kwargs: Any, count: int) -> Tensor:
        """float[N], the losses of the first loss function that it calls; the rest does not run.

        What it does to its module, to metrics, to the parameters' ``requires_grad`` and to the
        structure of the batch before is undone.

        Args:
            args: Of the step; a batch of N examples first.
            kwargs: Of the step.
            count: N.

        Raises:
            ConfigError: If it calls no loss function, or changes the batch in place.
            LossError: If there is not one loss per example.
        """
        catch, (batch, *rest) = _First(count), args
        versions = _versions(batch)
        try:
            with _undone(self.module), catch:
                self.eager(tree.map_tensors(lambda part: part, batch), *rest, **kwargs)
        except _Aborted:
            if _versions(batch) != versions:
                raise ConfigError(
                    "training_step changes its batch in place before its loss, which a scoring "
                    f"pass would do a second time: have it change a copy, or {_GIVE_LOSSES}"
                ) from None
            self.valid = catch.calls[0].valid
            return catch.calls[0].checked()
        raise ConfigError(
            "training_step calls no loss function of torch.nn.functional outside of compiled "
            f"code, or catches every exception: {_GIVE_LOSSES}"
        )


class _Aborted(BaseException):
    """Ends a training step at its loss. No ``Exception``, which a step may catch."""


class LossCall:
    """A call of a loss function of ``torch.nn.functional``.

    Args:
        fn: The function.
        args: Its arguments.
        kwargs: Its arguments by name.
        count: Of how many examples its losses should be.
    """

    def __init__(self, fn: Any, args: Any, kwargs: Any, count: int) -> None:
        given = _signature(fn).bind(*args, **kwargs).arguments
        self.name, self._count = fn.__name__, count
        self.reduction = given.pop("reduction", "mean")
        if given.pop("size_average", None) is not None or given.pop("reduce", None) is not None:
            raise ConfigError(f"{self.name} with size_average= or reduce=: give reduction= instead")
        self._whole = functools.partial(fn, *args, **kwargs)
        self._pair = [given.pop(name) for name in list(given)[:2]]
        of_pair = functools.partial(fn, **given)
        self._each: Callable[..., Tensor] = per_example(of_pair)
        self.valid = has_valid(of_pair, self._pair[1])
        with torch.no_grad():
            self.losses: Tensor = self._each(*self._pair)

    def checked(self) -> Tensor:
        """float[N], one loss per example, detached."""
        if self.losses.shape != (self._count,):
            raise LossError(
                f"{self.name} in training_step has losses of shape {list(self.losses.shape)}, and "
                f"the batch {self._count} examples: {_GIVE_LOSSES}, or record them in the step"
            )
        return self.losses

    def reduced(self, weights: Tensor | None) -> Tensor:
        """What the step is given for the call: with weights, the weighted mean."""
        whole: Tensor = self._whole()
        if weights is None or self.reduction == "none":
            return whole
        own = self.checked().float().mean()
        if self.reduction != "mean" or not _close(own, whole):
            raise ConfigError(
                f"{self.name} in training_step is not the mean of one loss per example, to which "
                'the weights of the selection could be applied: compute it with reduction="mean", '
                "without class weights and ignored positions, or take a rule without weights"
            )
        losses: Tensor = self._each(*self._pair)
        return (losses * weights.to(losses)).mean()


class CaughtLosses(TorchFunctionMode):
    """Notes the loss functions that are called within, and applies weights to their means.

    Args:
        count: Examples of the batch.
        weights: float32[N], loss weights of the examples; None where there are none.
        strict: Whether a second call is refused at once.
    """

    def __init__(self, count: int, weights: Tensor | None = None, *, strict: bool = True) -> None:
        super().__init__()
        self.calls: list[LossCall] = []
        self._count, self._weights, self._strict = count, weights, strict
        self._value: Tensor | None = None

    def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if fn in _LOSSES and not torch.compiler.is_compiling():
            return self.caught(LossCall(fn, args, kwargs or {}, self._count))
        return fn(*args, **(kwargs or {}))

    def caught(self, call: LossCall) -> Tensor:
        """What the step is given for a call."""
        self.calls.append(call)
        if self._strict:
            self.check_only(None)
        value = call.reduced(self._weights)
        self._value = value if self._value is None else self._value
        return value

    def check_only(self, weights: Tensor | None) -> None:
        """Makes sure that one loss function was called, and that weights were applied to it."""
        names = [call.name for call in self.calls]
        if len(names) != 1:
            raise ConfigError(
                f"training_step calls {_listed(names)}, so that which loss each example has is "
                f"not known: {_GIVE_LOSSES}, to SelectiveBackprop; with a SelectiveDataModule, "
                "have the step call self.trainer.datamodule.loss(losses)"
            )
        self.calls[0].checked()
        if weights is not None and self.calls[0].reduction == "none":
            raise ConfigError(
                f'{names[0]} in training_step has reduction="none", and the examples have weights, '
                'which nothing applied: leave reduction="none" out, or, with a '
                "SelectiveDataModule, call self.trainer.datamodule.loss(losses), which applies them"
            )

    def check_returned(self, output: Any, module: Any) -> bool:
        """Makes sure that a step returned the loss that was caught; False where it says none."""
        loss: Any = output.get("loss") if isinstance(output, Mapping) else output
        if self._value is None or (module.automatic_optimization and not isinstance(loss, Tensor)):
            return False
        if module.automatic_optimization and not _close(self._value, loss):
            own = float(self._value.detach().mean())
            raise ConfigError(
                f"training_step returns {float(loss.detach().mean()):g}, and {self.calls[0].name} "
                f"in it {own:g}: selection goes by the loss that is trained on, so {_GIVE_LOSSES}, "
                "or record them in the step"
            )
        return True


class _First(CaughtLosses):
    """Ends a step at its first loss."""

    def caught(self, call: LossCall) -> Tensor:
        self.calls.append(call)
        raise _Aborted


@contextmanager
def _undone(module: nn.Module) -> Iterator[None]:
    before = dict(vars(module))
    lists = [(part, part.copy()) for part in before.values() if isinstance(part, list)]
    required = [(weight, weight.requires_grad) for weight in module.parameters()]
    parts: Iterator[Any] = module.modules()
    metrics = [  # of torchmetrics, whose state is no buffer
        (part, {**vars(part), **part._copy_state_dict()})
        for part in parts
        if hasattr(part, "_copy_state_dict")
    ]
    vars(module)["log"] = vars(module)["log_dict"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for part, state in [(module, before), *metrics]:
            vars(part).clear()
            vars(part).update(state)
        for items, copied in lists:
            items[:] = copied
        for weight, requires_grad in required:
            weight.requires_grad_(requires_grad)


def _versions(batch: Any) -> list[int]:
    """Of each tensor of a batch, how often it was changed in place."""
    return [part._version for part in tree.tensors(batch) if not part.is_inference()]


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two losses are the same, but for rounding."""
    one, other = one.detach().float().mean(), other.detach().float().mean().to(one.device)
    return bool(torch.isclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True))


def _listed(names: list[str]) -> str:
    return f"{len(names)} loss functions ({', '.join(names)})" if names else "no loss function"
