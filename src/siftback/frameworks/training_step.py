"""A training step taken as it is: the losses that it computes, by catching its loss function."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from siftback.batches import tree
from siftback.batches.collating import replaced
from siftback.errors import BatchError, ConfigError, LossError
from siftback.frameworks.trained_loss import CheckTimes, LossPair, ranks_alike
from siftback.host_reads import HostReads, move
from siftback.losses.per_example import Reduction, valid_examples
from siftback.scorers.selection_pass import untouched

signature = functools.cache(inspect.signature)
"""Returns `inspect.signature`, once computed for each function."""

_LOSSES = frozenset(
    fn
    for name, fn in vars(functional).items()
    if not name.startswith("_") and inspect.isfunction(fn)
    # That of the last linear layer and the loss in one has no outputs to take losses from.
    if "reduction" in signature(fn).parameters and "linear_weight" not in signature(fn).parameters
)


class TrainingStep:
    """The ``training_step`` of a module, and the losses in it.

    Args:
        module: A module with a ``training_step``.
        advice: What to do where its losses are not known, for errors.

    Attributes:
        module: The module.
        own: Its own ``training_step``.
        eager: The same, without ``torch.compile`` of the step itself: its losses can be caught.
            The forward that it calls is still the compiled one.
        valid: bool[N], which examples of the `losses` taken last have any, with a target that is
            not ignored; None is all.
        times: When to check that the loss it trains on is the mean of its loss function's.
        is_recorded: Whether the step that runs recorded its losses itself, and is not checked.
    """

    def __init__(self, module: Any, advice: str) -> None:
        self.module, self.own = module, module.training_step
        self._advice, self.times, self.is_recorded = advice, CheckTimes(), False
        self._keeps_order, self._scorings = False, 0  # as far as was told
        self._reads = HostReads()
        compiled = getattr(module, "_compiler_ctx", None)
        self.eager = compiled["original_training_step"] if compiled else self.own
        self.valid: Tensor | None = None

    def replaced_by(self, run: Callable[..., Any]) -> AbstractContextManager[None]:
        """Has a function run in place of the module's ``training_step``, in training alone."""
        run = functools.wraps(self.eager)(functools.partial(self.run_in_training, run))
        return replaced(self.module, "training_step", run)

    def run_in_training(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a function; outside of training, as in a ``validation_step``, the module's step."""
        return (run if self.module.trainer.training else self.own)(*args, **kwargs)

    def losses(self, args: Any, kwargs: Any, count: int, *, reweights: bool = False) -> Tensor:
        """Returns float[N], the losses of its first loss function; nothing after it runs.

        What it does to its module, to metrics and to the parameters' ``requires_grad`` before is
        undone.

        Args:
            args: Of the step; a batch of N examples first, in containers that it may change.
            kwargs: Of the step.
            count: N.
            reweights: Whether weights will be applied to the losses, which is then tried.

        Raises:
            ConfigError: If it calls no loss function, or changes the batch in place, or weights
                cannot be applied.
            LossError: If there is not one loss per example.
        """
        catch, (batch, *arguments) = FirstLoss(count, advice=self._advice), args
        self._scorings += 1
        frozen = [weight for weight in self.module.parameters() if not weight.requires_grad]
        read = frozen if self._scorings.bit_count() == 1 else []  # the 1st, 2nd, 4th, ... time
        state = functools.partial(state_of_tensors, [*tree.tensors(batch), *frozen], read)
        before = state()
        try:
            with undo_effects(self.module), catch:
                self.eager(batch, *arguments, **kwargs)
        except StepAborted:
            if state() != before:
                raise ConfigError(
                    "training_step changes its batch in place, or weights without gradients, "
                    "before its loss, which a scoring pass would do twice: have it change a copy "
                    f"of the batch, and weights after the loss or in a hook, or {self._advice}"
                ) from None
            call = catch.calls[0]
            self.valid = valid_examples(call.form.ignored, call.targets)
            if reweights:
                self.try_weights(catch)
            return call.checked()
        raise ConfigError(
            "training_step calls no loss function of torch.nn.functional outside of compiled "
            f"code, or catches every exception: {self._advice}"
        )

    def try_weights(self, catch: "CaughtLosses") -> None:
        """Makes sure that weights, which are to come, can be applied to what was caught.

        Raises:
            ConfigError: If they cannot.
        """
        catch.check_only(weights := torch.ones(catch.count, dtype=torch.float32))
        catch.calls[0].reduced(weights, self._reads)
        self._reads.finish()

    def catch_losses(
        self, weights: Tensor | None, args: Any, kwargs: Any, count: int, *, checks: bool
    ) -> tuple[Any, "CaughtLosses"]:
        """Runs the step, and catches its loss functions.

        Args:
            weights: float32[N], loss weights of the examples; None where there are none.
            args: Of the step; a batch of N examples first.
            kwargs: Of the step.
            count: N.
            checks: Whether to compare the loss that it trains on with its loss function's.

        Returns:
            What the step returned, and what was caught.

        Raises:
            ConfigError: If the loss that is trained on prefers other examples.
        """
        self.is_recorded = False
        batch, *arguments = args
        same = None
        if checks:
            self._reads.finish()
            with suppress(BatchError):  # of a structure that is unknown, and need not be split
                same = tree.map_tensors(lambda tensor: tensor, batch)  # the step may pop some
        catch = CaughtLosses(count, weights, self._reads, advice=self._advice)

        def run_on(kind: type[CaughtLosses], rows: Tensor) -> tuple[CaughtLosses, Any]:
            try:
                some = tree.take(same, rows)
            except BatchError:  # of a value that is no column, such as the name of a task
                some = tree.map_tensors(lambda t: t[rows] if t.shape[:1] == (count,) else t, same)
            caught, output = kind(len(rows), advice=self._advice), None
            with (
                suppress(StepAborted),
                undo_effects(self.module),
                untouched(self.module, "eval", tree.device(some)),
                caught,
            ):
                output = self.eager(some, *arguments, **kwargs)
            return caught, output

        def on_rows(rows: Tensor) -> LossPair:
            again, output = run_on(CaughtLosses, rows)
            return again.pair(cast(Tensor, loss_of_output(output)))

        automatic = self.module.automatic_optimization
        parameters = [*self.module.parameters()] if checks else []
        frozen = [weight for weight in parameters if not weight.requires_grad]
        state = functools.partial(state_of_tensors, frozen if automatic else parameters, frozen)
        before = state()
        catch.read_state = state if checks else list
        with catch:
            if automatic or not checks:
                output = self.eager(batch, *arguments, **kwargs)
            else:  # which steps its optimizers, so that it cannot be run for some rows again
                backward = self.module.manual_backward

                def checked_backward(loss: Any, *args: Any, **kwargs: Any) -> None:
                    self._check(catch, loss)
                    backward(loss, *args, **kwargs)

                with replaced(self.module, "manual_backward", checked_backward):
                    output = self.eager(batch, *arguments, **kwargs)
                self.times.reset()
        if automatic and checks:
            # A step that changed weights, such as those of a moving average, is not run again.
            self._check(catch, loss_of_output(output), on_rows if state() == before else None)
        if checks and not (self.is_recorded or self._keeps_order) and catch.state == before:
            self._check_order(catch, functools.partial(run_on, FirstLoss))
        return output, catch

    def _check(
        self, catch: "CaughtLosses", loss: Any, on_rows: Callable[[Tensor], LossPair] | None = None
    ) -> None:
        """Makes sure that a loss ranks the examples as the losses that were caught."""
        # A skipped step has no loss; several calls are for `check_only` to refuse.
        is_scalar = isinstance(loss, Tensor) and loss.numel() == 1
        if self.is_recorded or not is_scalar or len(catch.calls) != 1:
            return
        self.times.reset()
        cause = None
        try:
            alike = ranks_alike(catch.pair(loss), catch.count, on_rows)
        except Exception as error:  # a step of the user's may need all rows
            alike, cause = False, error
        if not alike:
            name, value = catch.calls[0].name, float(catch.value.detach().float().mean())
            raise ConfigError(
                f"training_step trains on {float(loss.detach()):g}, and {name} in it is {value:g}: "
                "besides a constant factor and terms without the examples, the two differ, and "
                f"examples would be selected by {name} alone: {self._advice}"
            ) from cause

    def _check_order(self, catch: "CaughtLosses", run_on: Callable[[Tensor], Any]) -> None:
        """Makes sure that losses come in the order of the batch: reflected, of its reflection."""
        rows = torch.arange(min(catch.count, 8))  # a few rows show their order
        # About the first row, so that a step that reverses its rows is told too.
        reflected = rows.flip(0).roll(int(len(rows) > 2))
        try:
            runs = run_on(rows), run_on(reflected)
            losses, others = (caught.calls[0].losses.float() for caught, _ in runs)
            apart = (losses - others[reflected]).abs().sum()
        except Exception:  # a step of the user's may need its rows as they are, or give others
            return
        spread = (losses - losses.mean()).abs().sum()
        self._keeps_order = bool(spread > 0.02 * losses.abs().sum())  # beyond rounding
        # Whether they are the same in any order: else the step draws random numbers for them.
        sorted_apart = (losses.sort().values - others.sort().values).abs().sum()
        if self._keeps_order and apart > 0.5 * spread and sorted_apart < 0.05 * spread:
            raise ConfigError(
                f"training_step gives {catch.calls[0].name} its examples in another order than "
                "that of the batch, so that losses would be taken for those of other examples: "
                f"have it keep the order of its rows, or {self._advice}, in the order of the batch"
            )


class StepAborted(BaseException):
    """Ends a training step at its loss. No ``Exception``, which a step may catch."""


class LossCall:
    """A call of a loss function of ``torch.nn.functional``.

    Args:
        fn: The function.
        args: Its arguments.
        kwargs: Its arguments by name.
        count: Of how many examples its losses should be.
        advice: What to do if they are not, for errors.
    """

    def __init__(self, fn: Any, args: Any, kwargs: Any, count: int, advice: str) -> None:
        bound = signature(fn).bind(*args, **kwargs).arguments
        self.name, self._count, self._advice = fn.__name__, count, advice
        self.reduction = bound.get("reduction", "mean")  # also of an example's positions
        self._whole = functools.partial(fn, *args, **kwargs)
        self._outputs, self.targets = (bound.pop(name) for name in list(bound)[:2])
        # Not kept with what is of a batch, such as a weight for each element.
        is_kept = all(isinstance(option, str | float | int | None) for option in bound.values())
        self.form = (reduction_of if is_kept else reduction_of.__wrapped__)(fn, **bound)
        with torch.no_grad():
            self.losses: Tensor = self.form.per_example(self._outputs, self.targets)

    def checked(self) -> Tensor:
        """Returns float[N], one loss per example, detached."""
        if self.losses.shape != (self._count,):
            raise LossError(
                f"{self.name} in training_step has losses of shape {list(self.losses.shape)}, and "
                f"the batch {self._count} examples: {self._advice}"
            )
        return self.losses

    def reduced(self, weights: Tensor | None, reads: HostReads) -> Tensor:
        """Returns the loss for the step: with weights, the weighted mean.

        Args:
            weights: float32[N]; None where there are none.
            reads: Compares the loss without them with the mean of the examples.

        Raises:
            ConfigError: If these differ, of an accelerator in a later step.
        """
        whole: Tensor = self._whole()
        if weights is None or self.reduction == "none":
            return whole
        check = functools.partial(self._check_mean, 1e-3 if whole.dtype.itemsize >= 4 else 3e-2)
        reads.add(check, self.checked().float().mean(), whole.detach().float().mean())
        losses = self.form.per_example(self._outputs, self.targets)
        return (losses * move(weights, losses.device).to(losses.dtype)).mean()

    def _check_mean(self, rounding: float, mean: Tensor, value: Tensor) -> None:
        """Makes sure that weights of examples can be applied to the loss, which has a value."""
        close = torch.isclose(mean, value, rounding, atol=1e-6, equal_nan=True)
        if self.reduction != "mean" or not close:
            raise ConfigError(
                f"{self.name} in training_step is not the mean of one loss per example, to which "
                'the weights of the selection could be applied: compute it with reduction="mean", '
                "without class weights and ignored positions, or take a rule without weights"
            )


@functools.lru_cache(maxsize=32)
def reduction_of(fn: Any, **options: Any) -> Reduction:
    """Returns what splits a loss function into examples.

    It is made once for each function and its options, and not in each step.

    Args:
        fn: A loss function of ``torch.nn.functional``.
        options: Its arguments besides outputs and targets.
    """
    return Reduction(functools.partial(fn, **options))


class CaughtLosses(TorchFunctionMode):
    """Notes the loss functions that are called within, and applies weights to their means.

    Args:
        count: Examples of the batch.
        weights: float32[N], loss weights of the examples; None where there are none.
        reads: Makes sure that the weights can be applied, without waiting for the device.
        advice: What to do where the losses are not known, for errors.

    Attributes:
        count: As given.
        calls: The calls.
        value: What the first of them returned.
        has_gradient: Whether it was called with gradients, unlike within a checkpoint's forward.
        read_state: Called at the first of them.
        state: What that returned.
    """

    value: Tensor
    has_gradient = True
    read_state: Callable[[], Any] = list
    state: Any = None

    def __init__(
        self,
        count: int,
        weights: Tensor | None = None,
        reads: HostReads | None = None,
        *,
        advice: str,
    ) -> None:
        super().__init__()
        self.calls: list[LossCall] = []
        self.count, self._weights, self._advice = count, weights, advice
        self._reads = HostReads() if reads is None else reads

    def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if fn in _LOSSES and not torch.compiler.is_compiling():
            return self.record_call(LossCall(fn, args, kwargs or {}, self.count, self._advice))
        return fn(*args, **(kwargs or {}))

    def record_call(self, call: LossCall) -> Tensor:
        """Returns the loss for the step, of a call."""
        self.calls.append(call)
        value = call.reduced(self._weights, self._reads)
        if len(self.calls) == 1:
            self.value, self.has_gradient = value, torch.is_grad_enabled()
            self.state = self.read_state()
        return value

    def pair(self, trained: Tensor) -> LossPair:
        """Returns the loss that the step trains on, beside what its loss function returned."""
        value = self.value
        # Of losses that the step reduces itself, those of ignored positions are 0, whatever their
        # gradient is.
        scale = value.detach() if value.ndim else 1.0
        return LossPair(trained, value.sum(), value, torch.ones_like(value), scale)

    def check_only(self, weights: Tensor | None) -> None:
        """Makes sure that one loss function was called, and that weights were applied to it."""
        names = [call.name for call in self.calls]
        if len(names) != 1:
            several = f"{len(names)} loss functions ({', '.join(names)})"
            raise ConfigError(
                f"training_step calls {several if names else 'no loss function'}, so that which "
                f"loss each example has is not known: {self._advice}"
            )
        self.calls[0].checked()
        unfit = 'has reduction="none"' if self.calls[0].reduction == "none" else ""
        if not self.has_gradient:
            unfit = "is computed without a gradient, as in a checkpoint"
        if weights is not None and unfit:
            raise ConfigError(
                f"{names[0]} in training_step {unfit}, and the examples have weights, which "
                "nothing applied: change that, or take a selector or rule without weights"
            )


class FirstLoss(CaughtLosses):
    """Ends a step at its first loss."""

    def record_call(self, call: LossCall) -> Tensor:
        """Notes the call, and ends the step."""
        self.calls.append(call)
        raise StepAborted


@contextmanager
def undo_effects(module: nn.Module) -> Iterator[None]:
    """Restores the attributes of a module, its metrics, gradients and which weights have one.

    In between there are no gradients, so that an optimizer that is stepped changes nothing.
    """
    before = dict(vars(module))
    copies = [(value, value.copy()) for value in before.values() if isinstance(value, list | dict)]
    weights = [(weight, weight.requires_grad, weight.grad) for weight in module.parameters()]
    children: Iterator[Any] = module.modules()
    metrics = [  # of torchmetrics, whose state is no buffer
        (child, {**vars(child), **child._copy_state_dict()})
        for child in children
        if hasattr(child, "_copy_state_dict")
    ]
    vars(module)["log"] = vars(module)["log_dict"] = lambda *args, **kwargs: None
    nn.Module.zero_grad(module)
    try:
        yield
    finally:
        for owner, state in [(module, before), *metrics]:
            vars(owner).clear()
            vars(owner).update(state)
        for items, copied in copies:
            items.clear()
            items.update(copied) if isinstance(items, dict) else items.extend(copied)
        for weight, requires_grad, gradient in weights:
            weight.requires_grad_(requires_grad).grad = gradient


def loss_of_output(output: Any) -> Any:
    """Returns the loss in what a training step returned; None where it skips the step."""
    return output.get("loss") if isinstance(output, Mapping) else output


def state_of_tensors(tensors: list[Tensor], read: list[Tensor]) -> list[Any]:
    """Returns what differs where tensors were changed in place.

    Args:
        tensors: Such as those of a batch, and weights.
        read: Of these, those that may be changed without a trace, by their ``data``.
    """
    counted = [(t._version, t.data_ptr()) for t in tensors if not t.is_inference()]
    return [*counted, *(float(tensor.nansum()) for tensor in read)]
