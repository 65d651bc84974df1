"""Explains failed traces in terms of the model that was traced."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from torch import nn
from torch._dynamo.exc import (
    BackendCompilerFailed,
    FailOnRecompileLimitHit,
    TorchDynamoException,
)
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

_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>\w+)')
_FIXED = re.compile(r"specialized it to be a constant \((\d+)\)")


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


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
            "single-pass compiles this model again for each new shape of an example, or for each "
            "new value of a number in the batch, and they keep changing: pad sequences to a few "
            "lengths, or leave out of the model what fixes their length, such as a loop over "
            "positions, and pass numbers as tensors; nothing trained so far is lost"
        )
    return TraceError(
        f"single-pass cannot trace {_place(_frames(error), model)}: {_reason(str(error))}; "
        "nothing trained so far is lost: change that line, or train this model with "
        "SelectiveLoader, which does not trace it"
    )


def _reason(message: str) -> str:
    fixed = _FIXED.search(message)
    if fixed:
        return f"the batch size is fixed at {fixed[1]}, and it must be able to change"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    explanation = [line for line in lines if line.startswith("Explanation:")]
    return ". ".join(line.rstrip(".") for line in (lines[0], *explanation[:1]))


def _frames(error: Exception) -> list[_Frame]:
    """The Python stack at the point that could not be traced, innermost last."""
    stack = getattr(error, "real_stack", None)
    if stack:
        return [_Frame(frame.filename, frame.lineno, frame.name) for frame in stack]
    return [
        _Frame(found["file"], int(found["line"]), found["function"])
        for found in _FRAME.finditer(str(error))
    ]


def _place(frames: Iterable[_Frame], model: nn.Module) -> str:
    """The innermost line that is in the forward of one of the model's modules."""
    for frame in reversed(list(frames)):
        names = [name for name, module in model.named_modules() if _holds(module, frame)]
        if names:
            listed = ", ".join(repr(name) if name else "itself" for name in names[:3])
            more = ", ..." if len(names) > 3 else ""
            return f"the model's module {listed}{more}, line {frame.line} of {frame.file}"
    return "the losses of this model"


def _holds(module: nn.Module, frame: _Frame) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    if code is None or (code.co_filename, code.co_name) != (frame.file, frame.function):
        return False
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return bool(min(lines) <= frame.line <= max(lines))
