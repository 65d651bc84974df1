"""One loss per example, from the loss functions that users have."""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from siftback.arguments import check_either, check_object, format_value
from siftback.errors import BatchError, ConfigError, LossError
from siftback.host_reads import move
from siftback.tensor_arguments import is_dense

LossFn = Callable[..., Tensor]
"""``loss_fn(outputs, targets)``; where outputs and targets are not passed on, of any arguments."""

Losses = Callable[[nn.Module, Any], Tensor]
"""``losses(model, batch) -> Tensor[N]``, one loss per example."""


_NAMES = ("mean", "sum", "batchmean", "none")
# Options of PyTorch's functions that say which losses count in a mean, and how much.
_OPTIONS = ("weight", "ignore_index", "size_average", "reduce", "reduction")
_INSTEAD = "give a function that returns one loss per example, of which the mean is taken"


def per_example(loss_fn: LossFn) -> LossFn:
    """Returns the same loss function, with one loss per example.

    A loss function that takes a ``reduction``, as those of ``torch.nn`` and
    ``torch.nn.functional`` do, is called with ``reduction="none"``, and its result is averaged, in
    float32 at least, over all dimensions but the first, or summed if its reduction is "sum" or
    "batchmean". With an ``ignore_index``, only the valid positions count, those whose target is
    another class. The loss of an example without one has no value and is NaN, which nothing takes
    for an easy example: see ``on_nonfinite`` of a `SelectiveLoader`, and ``mask`` of
    `InBatch.select`. Its gradient is 0. A CTC loss is divided by the length of its target, as its
    mean is.

    Any other function is returned unchanged, and must return one loss per example itself.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``, or of other arguments.

    Returns:
        A function of the same arguments that returns a tensor of shape [N]. It raises a `LossError`
        if ``loss_fn`` has an ``ignore_index``, and the losses are not of the targets' shape.

    Raises:
        ConfigError: If ``loss_fn`` is not a function, or has ``size_average`` or ``reduce``.

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
    reduction = Reduction(loss_fn)
    # A method, not a closure, so that it can be pickled and sent to another process.
    return reduction.per_example if reduction.takes_name else loss_fn


class Reduction:
    """Splits a loss function into a term for each example, and the divisor of their sum.

    With a weight w for each example, the loss of some rows is::

        sum over the rows of w_i * term_i / divisor

    The divisor is that of the loss function for these rows: their number, the number of their
    valid positions, the sum of the class weights of these, or 1. If all weights are 1, this is the
    loss function of these rows alone; of rows without any valid position it is 0, and not NaN.

    Args:
        loss_fn: A loss function, as for `per_example`. The terms of one without a ``reduction``, or
            with ``reduction="none"``, are its losses per example, and the loss is their mean.

    Attributes:
        loss_fn: The loss function.
        takes_name: Whether the loss function has a ``reduction``.
        name: Its value: "mean", "sum", "batchmean" or "none".
        is_known: Whether the divisor is known, as for a loss function of PyTorch. For another the
            one of PyTorch's mean is assumed, and is to be compared with its own value by `check`.

    Raises:
        ConfigError: If ``loss_fn`` is not a function, or has ``size_average`` or ``reduce``.

    >>> import torch
    >>> loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    >>> outputs, targets = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    >>> reduction, rows = Reduction(loss_fn), torch.tensor([0, 1])
    >>> terms = reduction.terms(outputs, targets)
    >>> loss = reduction.reduce(terms, rows, None, outputs, targets)
    >>> bool(loss.isclose(loss_fn(outputs[rows], targets[rows])))
    True
    """

    def __init__(self, loss_fn: LossFn) -> None:
        check_object("loss_fn", loss_fn, "a loss function, such as F.cross_entropy", "__call__")
        # A compiled module would pass on to the user's module what is set on it.
        inner: Any = getattr(loss_fn, "_orig_mod", loss_fn)
        self.loss_fn, self._inner, self._unreduced = loss_fn, inner, loss_fn
        self._is_copied = isinstance(inner, nn.Module) and hasattr(inner, "reduction")
        self.takes_name = self._is_copied or "reduction" in loss_parameters(inner)
        self.name: str = loss_option(inner, "reduction", "none")
        if self._is_copied:
            self._unreduced = copy.copy(inner)
            self.copy_settings()
        elif self.takes_name:
            for name in ("size_average", "reduce"):
                if loss_option(inner, name, None) is not None:
                    raise ConfigError(
                        f"{self} with {name}={loss_option(inner, name, None)}, which overrides its "
                        "reduction: give reduction= in its place"
                    )
            self._unreduced = functools.partial(inner, reduction="none")
        self._names = list(loss_parameters(inner))
        self.ignored = ignored_index(inner) if self.takes_name else None
        self._by_length = is_loss(inner, nn.CTCLoss, "ctc_loss")
        self.is_known = not self.takes_name or is_of_torch(inner)

    def __str__(self) -> str:
        return loss_name(self._inner)

    def copy_settings(self) -> None:
        """Takes over what was changed of a loss module since, such as its label smoothing."""
        if self._is_copied:
            vars(self._unreduced).update(vars(self._inner), reduction="none")
            self.name, self.ignored = self._inner.reduction, ignored_index(self._inner)

    def check_name(self) -> None:
        """Checks that the reduction is one of PyTorch's.

        Raises:
            ConfigError: If it is not.
        """
        if self.name not in _NAMES:
            raise ConfigError(
                f"reduction={self.name!r} of {self} is not one of PyTorch's, which are "
                f"{', '.join(map(repr, _NAMES))}: {_INSTEAD}"
            )

    def check_cross_entropy(self) -> None:
        """Checks that a loss of PyTorch is minus the log probability of the label alone.

        Raises:
            ConfigError: If it is another one, or weighted or smoothed.
        """
        if not (self.takes_name and self.is_known):
            return  # one of the user's, of which nothing is known
        kinds = nn.BCELoss | nn.BCEWithLogitsLoss
        names = "binary_cross_entropy", "binary_cross_entropy_with_logits"
        unfit = "" if self.ignored is not None or is_loss(self._inner, kinds, *names) else f"{self}"
        for option, plain in (("weight", None), ("pos_weight", None), ("label_smoothing", 0.0)):
            if loss_option(self._inner, option, plain) != plain:
                unfit = f"{self} with {option}="
        if unfit:
            raise ConfigError(
                f"{unfit} is not minus the log probability of the label, by which a NoiseGuard "
                "judges it: watch a cross-entropy without weights, or call loader.record(losses) "
                "with the losses of one, and run your own loss backward"
            )

    def terms(self, *arguments: Any, **options: Any) -> Tensor:
        """Returns float[N], the terms of all examples, with their gradient.

        Raises:
            LossError: As for `per_example`.
        """
        if self._is_copied and not torch.compiler.is_compiling():
            self.copy_settings()
        outputs = arguments[0] if arguments and self.takes_name and self.is_known else None
        if not isinstance(outputs, Tensor | None):
            raise LossError(
                f"{self} was given a {type(outputs).__name__} in place of a tensor: give "
                "losses=fn(model, batch), which takes the logits out of the model's outputs"
            )
        values = self._unreduced(*arguments, **options)
        if not self.takes_name or values.ndim == 0:
            return values
        tensors = [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]
        if len(tensors) > 1 and values.numel() > max(value.numel() for value in tensors):
            # Losses of pairs of examples, which [N, 1] and [N] give.
            shape, *shapes = [f"{list(value.shape)}" for value in tensors]
            raise LossError(
                f"outputs of shape {shape} and targets of shape {' and '.join(shapes)} "
                f"were broadcast to losses of shape {list(values.shape)}: give both the same "
                "shape, such as by targets[:, None] or outputs.squeeze(1)"
            )
        # The sums and counts of an image are beyond half precision, of which users' losses may be.
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        if self._by_length and self.name == "mean":
            lengths = torch.as_tensor(self._argument("target_lengths", arguments, options))
            values = values / lengths.to(values.device).clamp(min=1)
        targets = self._argument("target", arguments, options)
        valid = valid_targets(self.ignored, targets)
        if valid is None or (values.ndim < 2 and valid.shape != values.shape):
            if values.ndim < 2:
                return values
            values = values.flatten(1)
            return values.sum(1) if self.name in ("sum", "batchmean") else values.mean(1)
        if values.shape != valid.shape:
            raise LossError(
                f"losses of shape {list(values.shape)} for targets of shape {list(targets.shape)}: "
                f"which of them are ignored, with ignore_index={self.ignored}, cannot be known; "
                "average over the valid positions of each example in the loss function"
            )
        if self.name == "none":
            return valid_means(values.reshape(len(values), -1), valid.reshape(len(valid), -1))
        if not self.is_known:  # PyTorch's own are 0 where the target is ignored
            values = values.masked_fill(~valid, 0)
        return values if values.ndim == 1 else values.reshape(len(values), -1).sum(1)

    def losses(self, terms: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Returns float[N], the losses per example of some terms: see `per_example`."""
        valid = valid_targets(self.ignored, self._argument("target", arguments, options))
        if self.name == "none" or valid is None or not valid.ndim or len(valid) != terms.numel():
            return terms
        if valid.ndim > 1:
            counts = valid.reshape(len(valid), -1).sum(1)
            if self.name == "mean":
                terms = terms / counts.clamp(min=1)  # 0 / 0 has a gradient
            valid = counts > 0
        return terms.masked_fill(~valid, torch.nan)

    def per_example(self, *arguments: Any, **options: Any) -> Tensor:
        """Returns float[N], the losses per example."""
        reduction = self
        if options or len(arguments) > 2:
            reduction, arguments, options = self.bind(arguments, options)
        return reduction.losses(reduction.terms(*arguments, **options), *arguments, **options)

    def bind(self, arguments: Any, options: Any) -> tuple["Reduction", Any, Any]:
        """Returns the reduction of a call that passes options of its own, such as a class weight.

        Args:
            arguments: Those of the call.
            options: Those of the call.

        Returns:
            The reduction of the function with these options, and what else the call passes.
        """
        if not self.takes_name or isinstance(self._inner, nn.Module):  # which has its options
            return self, arguments, options
        positions = [self._names.index(name) for name in _OPTIONS if name in self._names]
        first = min([len(arguments), *positions])
        options = dict(zip(self._names[first:], arguments[first:], strict=False)) | options
        passed = {name: options.pop(name) for name in _OPTIONS if name in options}
        bound = Reduction(functools.partial(self.loss_fn, **passed)) if passed else self
        return bound, arguments[:first], options

    def divisor(self, rows: Tensor, *arguments: Any, **options: Any) -> Tensor | int:
        """Returns the divisor of the sum of the terms of int64[k] rows."""
        if self.name == "sum":
            return 1
        targets = self._argument("target", arguments, options)
        valid = self.valid(targets)
        if valid is None:
            return len(rows)
        valid = valid.index_select(0, rows)
        # Those of PyTorch that ignore an index divide by the weights of classes, if there are any.
        weight = loss_option(self._inner, "weight", None)
        if weight is None:
            return valid.sum().clamp(min=1)
        classes = targets.index_select(0, rows).masked_fill(~valid, 0)
        total: Tensor = weight[classes.long()].masked_fill(~valid, 0).sum()
        return total + (total == 0)

    def valid(self, targets: Any, count: int | None = None) -> Tensor | None:
        """Returns bool of the targets' shape, which of them count; None where all do.

        Args:
            targets: Those of a batch.
            count: Its examples; where there are more or fewer targets, all count.
        """
        valid = None if self.name == "none" else valid_targets(self.ignored, targets)
        has_rows = valid is not None and valid.ndim and count in (None, len(valid))
        return valid if has_rows else None

    def reduce(
        self, terms: Tensor, rows: Tensor, weights: Tensor | None, *arguments: Any, **options: Any
    ) -> Tensor:
        """Computes the loss of some rows, from the terms and weights of all examples.

        Args:
            terms: float[N], of the arguments and options.
            rows: int64[k].
            weights: float[N]; None are all 1.
            arguments: Those of the loss function.
            options: Those of the loss function.
        """
        if weights is not None:
            terms = terms * move(weights, terms.device)
        total = terms.index_select(0, rows).sum()
        return total / self.divisor(rows, *arguments, **options) if len(rows) else total

    def check(self, value: Tensor, terms: Tensor, *arguments: Any, **options: Any) -> None:
        """Checks that the terms give what the loss function itself gives for the same arguments.

        Raises:
            LossError: If they do not.
        """
        rows = torch.arange(len(terms), device=terms.device)
        reduced = self.reduce(terms.detach(), rows, None, *arguments, **options)
        value = value.detach().to(reduced).nan_to_num()
        if not torch.allclose(value, reduced.nan_to_num(), rtol=1e-3, atol=1e-6):
            raise LossError(
                f"{self} gives {float(value.mean()):g}, and the {self.name} of its losses with "
                f'reduction="none" is {float(reduced):g}: it reduces them in an unknown way; '
                f"{_INSTEAD}"
            )

    def _argument(self, name: str, arguments: Any, options: Any) -> Any:
        """Returns an argument by its name in PyTorch; by default the second."""
        index = self._names.index(name) if name in self._names else 1
        if index < len(arguments):
            return arguments[index]
        return options.get(self._names[index]) if index < len(self._names) else None


def valid_means(values: Tensor, valid: Tensor) -> Tensor:
    """Computes the mean of each row's valid values; without any NaN, with a gradient of 0.

    Args:
        values: float[N, T].
        valid: bool[N, T].

    Returns:
        float[N].

    >>> import torch
    >>> values = torch.tensor([[1.0, 5.0], [1.0, 1.0]])
    >>> valid_means(values, torch.tensor([[True, False], [False, False]]))
    tensor([1., nan])
    """
    counts = valid.sum(1)
    means = values.masked_fill(~valid, 0).sum(1) / counts.clamp(min=1)  # 0 / 0 has a gradient
    return means.masked_fill(counts == 0, torch.nan)


def valid_targets(ignored: int | None, targets: Any) -> Tensor | None:
    """Returns bool of the targets' shape, which are not ignored; None if a loss ignores none."""
    # Targets that are probabilities have no ignored class, and PyTorch ignores the index too.
    if ignored is None or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    return targets.long() != ignored  # as a byte, -100 is 156


def valid_examples(ignored: int | None, targets: Any) -> Tensor | None:
    """Returns bool[N], which examples have a target that a loss function does not ignore.

    Args:
        ignored: The class that it ignores; None without one.
        targets: Those of N examples.

    Returns:
        None if it ignores none.

    >>> import torch
    >>> valid_examples(-100, torch.tensor([[2, 0], [0, -100], [-100, -100]]))
    tensor([ True,  True, False])
    """
    valid = valid_targets(ignored, targets)
    return None if valid is None or valid.ndim == 0 else valid.reshape(len(valid), -1).any(1)


def ignored_index(loss_fn: LossFn) -> int | None:
    """Returns the class whose positions a loss function ignores; None without one."""
    index = loss_option(loss_fn, "ignore_index", None)
    is_linear = loss_name(loss_fn) in ("LinearCrossEntropyLoss", "linear_cross_entropy")
    return -100 if index is None and is_linear else cast(int | None, index)


def loss_parameters(loss_fn: LossFn) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a loss function or module by name; none of a builtin."""
    try:
        function = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return {}


def loss_option(loss_fn: Any, name: str, default: Any) -> Any:
    """Returns an option: an attribute of a loss module, or the default of an argument."""
    if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, name):
        return getattr(loss_fn, name)
    option = loss_parameters(loss_fn).get(name)
    return default if option is None or option.default is option.empty else option.default


def unwrap_function(loss_fn: Any) -> Any:
    """Returns the function inside of partials and wrappers."""
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    return inspect.unwrap(loss_fn)


def loss_name(loss_fn: Any) -> str:
    """Returns the name of a loss function, or of the class of a loss module."""
    return getattr(unwrap_function(loss_fn), "__name__", type(loss_fn).__name__)


def is_loss(loss_fn: Any, kinds: Any, *names: str) -> bool:
    """Returns whether it is a module of some classes, or a function of ``torch.nn.functional``."""
    function = unwrap_function(loss_fn)
    return isinstance(loss_fn, kinds) or any(function is vars(functional)[n] for n in names)


def is_of_torch(loss_fn: Any) -> bool:
    """Returns whether a loss function is PyTorch's, so that its divisor is known."""
    if isinstance(loss_fn, nn.Module):
        return type(loss_fn).forward.__module__ == nn.modules.loss.__name__
    function = unwrap_function(loss_fn)
    # The mean of these divides by the sum of the weights, which are of the positions of a batch.
    weighs = is_loss(loss_fn, (), "mse_loss", "l1_loss")
    if weighs and loss_option(loss_fn, "weight", None) is not None:
        return False
    return vars(functional).get(loss_name(function)) is function


def pair_losses(loss_fn: LossFn) -> Losses:
    """Returns ``losses(model, batch)`` of a loss function for ``(inputs, targets)`` pairs.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``.

    Raises:
        BatchError: If called with a batch that is not a pair.
        ConfigError: If the function needs other arguments than outputs and targets, as
            `GaussianNLLLoss` does.
    """
    parameters = loss_parameters(check_object("loss_fn", loss_fn, "a loss function", "__call__"))
    try:
        if parameters:
            inspect.Signature(list(parameters.values())).bind(None, None)
    except TypeError:
        raise ConfigError(
            f"loss_fn={loss_name(loss_fn)} takes ({', '.join(parameters)}), and is called with the "
            "outputs and the targets of a batch: give losses=fn(model, batch) in its place, which "
            "calls it and returns one loss per example"
        ) from None
    return functools.partial(pair_loss, per_example(loss_fn))


def pair_loss(unreduced: LossFn, model: nn.Module, batch: Any) -> Tensor:
    """Computes the losses of a model for an ``(inputs, targets)`` pair."""
    inputs, targets = split_pair(batch)
    return unreduced(model(inputs), targets)


def split_pair(batch: Any) -> tuple[Any, Any]:
    """Returns the inputs and the targets of a batch that is an ``(inputs, targets)`` pair.

    Raises:
        BatchError: If it is not a pair.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    is_sized = hasattr(batch, "__len__") and getattr(batch, "ndim", 1) > 0
    length = f" of {len(batch)} parts" if is_sized else ""
    raise BatchError(
        f"a {type(batch).__name__}{length} is not an (inputs, targets) pair; "
        "for other batches give losses=fn(model, batch) in place of loss_fn"
    )


def resolve_losses(loss_fn: LossFn | None, losses: Losses | None) -> Losses:
    """Returns the general form ``losses(model, batch)``, from whichever form was passed.

    Args:
        loss_fn: ``loss_fn(outputs, targets)``, for pairs.
        losses: ``losses(model, batch)``, for any batch.

    Raises:
        ConfigError: If both or neither are given, one is not a function, or ``loss_fn`` needs other
            arguments than outputs and targets.
    """
    advice = "loss_fn(outputs, targets) for pairs, or losses=fn(model, batch) for any other batch"
    check_either(advice, loss_fn=loss_fn, losses=losses)
    if losses is not None:
        check_object("losses", losses, "a function losses(model, batch)", "__call__")
    return losses or pair_losses(cast(LossFn, loss_fn))


def check_finite(losses: Tensor, name: Callable[[int], str], advice: str = "") -> None:
    """Checks that losses are finite.

    Args:
        losses: float[N], on the CPU.
        name: Returns the name of an example by its row.
        advice: Alternatives to what can always be done, for the error.

    Raises:
        LossError: If one is not.

    >>> check_finite(torch.tensor([0.5, torch.nan]), str)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    siftback.errors.LossError: the loss of example 1 is nan: lower the learning rate or fix the ...
    """
    wrong = (~losses.isfinite()).nonzero().squeeze(1)
    if len(wrong):
        row = int(wrong[0])
        raise LossError(
            f"the loss of example {name(row)} is {float(losses[row])}: lower the learning rate or "
            f"fix the example{advice}"
        )


def check_losses(losses: Any, count: int, name: str = "losses") -> Tensor:
    """Checks that there is one loss per example.

    Args:
        losses: Result of the user's function.
        count: N, the number of examples in the batch.
        name: What they are, for the error.

    Returns:
        float32[N], detached.

    Raises:
        LossError: If it is not a floating-point tensor of shape [N].
    """
    if isinstance(losses, Tensor) and losses.ndim == 0:
        raise LossError(
            f"the loss is reduced to one number: give one for each example, float[{count}], by "
            'reduction="none"'
        )
    # Not by `check_tensor`, as this is a part of each step.
    if not is_dense(losses) or not losses.is_floating_point() or losses.shape != (count,):
        raise LossError(
            f"{name}={format_value(losses)}: give a dense tensor, float[{count}], one for each "
            "example, averaged over other dimensions"
        )
    return cast(Tensor, losses.detach().float())
