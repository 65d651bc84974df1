"""Explains failed traces in terms of the model that was traced."""

import re
from collections.abc import Iterable
from traceback import FrameSummary

from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    GuardOnDataDependentSymNode,
)

from siftback.errors import SiftbackError, TraceError

UNTRACEABLE = (
    TorchDynamoException,
    ConstraintViolationError,
    FailOnRecompileLimitHit,
    GuardOnDataDependentSymNode,  # a branch by a number that is read from a tensor
)
"""Exceptions that tracing raises if a model cannot be traced."""

_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\w+)')
_FIXED = re.compile(r"specialized it to be a constant \((\d+)\)")


def explain(error: Exception, model: nn.Module) -> SiftbackError:
    """Turns a compiler's error into one that names the module, the line and the reason.

    Args:
        error: One of `UNTRACEABLE`.
        model: The model being traced.
    """
    if isinstance(error, BackendCompilerFailed):
        if not isinstance(error.inner_exception, TraceError):
            raise error  # a fault of the compiler, with its own message
        error = error.inner_exception
    if isinstance(error, FailOnRecompileLimitHit):
        return TraceError(
            "single-pass compiles this model again for each new shape of an example or value of a "
            "number in the batch, the model or the loss, and they keep changing: pad sequences to "
            "a few lengths, or leave out of the model what fixes their length, such as a loop over "
            "positions; give numbers as tensors or buffers; nothing trained so far is lost"
        )
    message = str(error)
    # The Python stack at the line that could not be traced, innermost last.
    frames = getattr(error, "real_stack", None) or [
        FrameSummary(file, int(line), function) for file, line, function in _FRAME.findall(message)
    ]
    if fixed := _FIXED.search(message):
        reason = f"the batch size is fixed at {fixed[1]}, and it must be able to change"
    else:
        first, *others = [line.strip() for line in message.splitlines() if line.strip()]
        explanation = [line for line in others if line.startswith("Explanation:")]
        reason = ". ".join(line.rstrip(".") for line in (first, *explanation[:1]))
    return TraceError(
        f"single-pass cannot trace {innermost_line(frames, model)}: {reason}; "
        "nothing trained so far is lost: change that line, or train this model with "
        "SelectiveLoader, which does not trace it"
    )


def innermost_line(frames: Iterable[FrameSummary], model: nn.Module) -> str:
    """Names the innermost line that is in the forward of one of the model's modules."""
    for frame in reversed(list(frames)):
        names = [name for name, module in model.named_modules() if runs_in(module, frame)]
        if names:
            listed = ", ".join(repr(name) if name else "itself" for name in names[:3])
            dots = ", ..." if len(names) > 3 else ""
            return f"the model's module {listed}{dots}, line {frame.lineno} of {frame.filename}"
    return "the losses of this model"


def runs_in(module: nn.Module, frame: FrameSummary) -> bool:
    """Returns whether a frame is a line of a module's forward."""
    code = getattr(type(module).forward, "__code__", None)
    if not code or (code.co_filename, code.co_name) != (frame.filename, frame.name):
        return False
    lines = [line for _, _, line in code.co_lines() if line]
    return bool(min(lines) <= (frame.lineno or 0) <= max(lines))
