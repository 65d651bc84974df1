"""Checks of arguments.

NumPy numbers are accepted like Python's; booleans are not numbers.
"""

import math
import sys
from collections.abc import Sized
from numbers import Integral, Real
from typing import Any, TypeVar

from siftback.errors import ConfigError


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number, and not a boolean.

    >>> is_number(2), is_number(True), is_number(float("nan")), is_number("2")
    (True, False, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer or a fraction beyond all floats
        return False


def is_integer(value: object) -> bool:
    """Returns whether a value is an integer, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def format_value(value: object) -> str:
    """Returns a value as an error names it: short, and on one line.

    >>> import torch
    >>> format_value(2.5), format_value(torch.ones(2, 3)), len(format_value(10**400))
    ('2.5', 'float32[2, 3]', 60)
    """
    # Without PyTorch, which the command line's help does not wait for, nothing is a tensor.
    torch: Any = sys.modules.get("torch")
    try:
        if torch and isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
        text = " ".join(repr(value).split())
    except Exception:  # an integer of too many digits, or an object that cannot be shown
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_number(
    name: str, value: float, *, least: float = -math.inf, above: float = -math.inf
) -> float:
    """Returns a finite number as a float, after checking its bound.

    Args:
        name: Name of the argument, for the error.
        value: Value that was passed.
        least: The smallest number allowed.
        above: In its place: a number that it must exceed.

    Raises:
        ConfigError: If it is not such a number.

    >>> check_number("temperature", 2, above=0)
    2.0
    """
    if not is_number(value) or value < least or value <= above:
        bound = f", at least {least}" if least > -math.inf else ""
        bound = f" above {above}" if above > -math.inf else bound
        raise ConfigError(f"{name}={format_value(value)}: give a finite number{bound}")
    return float(value)


def check_share(name: str, share: float, *, least: bool = True, most: bool = False) -> float:
    """Returns a share between 0 and 1 as a float, after checking it.

    Args:
        name: Name of the argument, for the error.
        share: Value that was passed.
        least: Whether 0 is allowed.
        most: Whether 1 is allowed.

    Raises:
        ConfigError: If it is outside that range.

    >>> check_share("ratio", 0)
    0.0
    """
    fits = is_number(share) and 0 <= share <= 1
    if not fits or (share == 0 and not least) or (share == 1 and not most):
        interval = f"{'[' if least else '('}0, 1{']' if most else ')'}"
        raise ConfigError(f"{name}={format_value(share)}: give a share in {interval}")
    return float(share)


def check_integer(name: str, value: int, least: int) -> int:
    """Returns an integer, after checking that it is large enough.

    Args:
        name: Name of the argument, for the error.
        value: Value that was passed.
        least: The smallest integer allowed.

    Raises:
        ConfigError: If it is not an integer, or too small.

    >>> check_integer("every", 3, 1)
    3
    """
    if not is_integer(value) or not least <= value < 1 << 63:
        raise ConfigError(f"{name}={format_value(value)}: give an integer, at least {least}")
    return int(value)


def check_seed(seed: int) -> int:
    """Returns a seed, after checking that generators of the CPU take it, and draw on the CPU.

    Raises:
        ConfigError: If it is not an integer in [0, 2^63), or tensors are made on another device
            where none is given.
    """
    import torch  # not at once, as the help of the command line does without

    if (device := torch.get_default_device()).type != "cpu":
        raise ConfigError(
            f"torch.set_default_device or a with statement has tensors be made on {device}, and "
            "siftback draws and remembers on the CPU: make the model there by model.to(device), "
            "or within `with torch.device(device):`, and all else outside of it"
        )
    if is_integer(seed) and seed >= 1 << 63:
        raise ConfigError(f"seed={format_value(seed)}: give an integer in [0, 2**63)")
    return check_integer("seed", seed, 0)


def check_flag(name: str, value: bool) -> bool:
    """Returns a boolean, after checking that it is one.

    Raises:
        ConfigError: If it is anything else, such as a string.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={format_value(value)}: give True or False")
    return value


Object = TypeVar("Object")


def check_choice(name: str, value: Object, *choices: object) -> Object:
    """Returns a value, after checking that it is one of some.

    Args:
        name: Name of the argument, for the error.
        value: Value that was passed.
        choices: The values allowed.

    Raises:
        ConfigError: If it is none of them.

    >>> check_choice("mode", "train", "eval", "train")
    'train'
    """
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    *others, last = (f'"{choice}"' if isinstance(choice, str) else choice for choice in choices)
    raise ConfigError(f"{name}={format_value(value)}: give {', '.join(map(str, others))} or {last}")


def check_either(advice: str, **options: object) -> None:
    """Checks that one of two arguments is given, and the other one is None.

    Args:
        advice: What the error says of the two.
        options: Their values, by name.

    Raises:
        ConfigError: If both or neither is.

    >>> check_either("keep = 1 / (beta + 1)", keep=0.5, beta=None)
    """
    if sum(value is None for value in options.values()) != 1:
        passed = " and ".join(f"{name}={format_value(value)}" for name, value in options.items())
        raise ConfigError(f"{passed}: give one of them, {advice}")


def count_examples(dataset: Sized) -> int:
    """Returns the number of examples of a data set, after checking that it says it.

    Raises:
        ConfigError: If it does not.
    """
    try:
        return len(dataset)
    except TypeError:  # also of what has a method `__len__`, such as a tensor of no dimension
        raise ConfigError(
            f"dataset={format_value(dataset)} has no length: give a map-style data set, or range(n)"
        ) from None


def check_object(name: str, value: Object, example: str, *needed: str) -> Object:
    """Returns an object, after checking that it has what its kind has.

    Args:
        name: Name of the argument, for the error.
        value: Value that was passed.
        example: Of what is expected, for the error.
        needed: Names of the attributes that it must have.

    Raises:
        ConfigError: If it lacks one, which is named, or is a class.

    >>> check_object("losses", len, "losses=fn(model, batch)", "__call__") is len
    True
    """
    kind: Any = value
    if isinstance(kind, type):
        raise ConfigError(f"{name}={kind.__name__}: give {example}, an instance and not the class")
    if lacks := [attribute for attribute in needed if not hasattr(kind, attribute)]:
        lack = f", without {', '.join(lacks)}" if len(lacks) < len(needed) else ""
        raise ConfigError(f"{name}={format_value(kind)}{lack}: give {example}")
    return value
