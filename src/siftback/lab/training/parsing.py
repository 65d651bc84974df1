"""Settings as they are written: on a command line, in a grid, in a file."""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, get_args, get_type_hints

from siftback import Epochs, Share
from siftback.errors import ConfigError
from siftback.lab.records.formatting import one_of
from siftback.lab.training.settings import Settings

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NONE = "none"

# Settings that are parts of the training: the tail in percent, the warm-up in epochs too.
PARTS_OF_TRAINING = ("warmup", "tail")


def parse(name: str, text: str) -> Any:
    """A setting's value.

    Numbers may be fractions or percentages, switches are ``true`` or ``false``, and ``none`` is
    the value of what is not asked for.

    Args:
        name: The field of `Settings`.
        text: What was written.

    Raises:
        ConfigError: If there is no such setting, or what was written cannot be one.

    >>> parse("lr", "0.1"), parse("batch_size", "64"), parse("compile", "true")
    (0.1, 64, True)
    >>> parse("time_budget", "1h30m"), parse("stop_at", "error=5%"), parse("width", "none")
    (5400.0, 5.0, None)
    """
    kinds = get_type_hints(Settings)
    if name not in kinds:
        raise ConfigError(f"no setting {name!r}: {one_of(name, kinds)}")
    kind, text = kinds[name], text.strip()
    if text.lower() == NONE and type(None) in get_args(kind):
        return None
    of = next((each for each in (bool, int, float) if each in (kind, *get_args(kind))), str)
    return _OF_SETTING.get(name, _OF_TYPE[of])(name, text)


def duration(name: str, text: str) -> float:
    """Seconds, of which ``90s``, ``30m``, ``12h``, ``2d`` and ``1h30m`` are written.

    >>> duration("time_budget", "12h")
    43200.0
    """
    if re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        parts = re.findall(r"([\d.]+)([smhd])", text)
        return sum(float(number) * UNITS[unit] for number, unit in parts)
    raise ConfigError(f"{name} {text!r}: give a time such as 90s, 30m, 12h or 1h30m")


def numbers(name: str, text: str) -> list[float]:
    """Numbers separated by commas, fractions and percentages among them.

    >>> numbers("keep", "1/2,0.25,10%")
    [0.5, 0.25, 0.1]
    """
    try:
        return [_number(part.strip()) for part in text.split(",")]
    except (ValueError, ArithmeticError):
        raise ConfigError(
            f"{name} {text!r}: give numbers separated by commas, such as 0.25,1/3"
        ) from None


def _number(text: str) -> float:
    written = text.removesuffix("%")
    if "/" not in written:
        number = float(written)
        if not math.isfinite(number):
            raise ValueError
        if number == 0:  # of 1e-999999999 a fraction would take all memory
            return number
    return float(Fraction(written) / (100 if text.endswith("%") else 1))


def _error(name: str, text: str) -> float:
    """Test error in percent, of ``error=5%``."""
    if found := re.fullmatch(r"error=(\d+(\.\d+)?)%?", text):
        return float(found[1])
    raise ConfigError(f"{name} {text!r}: give a test error in percent, such as error=5%")


def share_of_training(name: str, text: object) -> float:
    """A share of the training, written as a percentage, so that it is never taken for epochs.

    >>> share_of_training("warmup", "15%")
    0.15
    """
    if isinstance(text, str) and re.fullmatch(r"\d{1,9}(\.\d+)?%", text.strip()):
        return _number(text.strip())
    raise ConfigError(f"{name} {text!r}: give a percentage of the training, such as 15%")


def part_of_training(name: str, text: object) -> Any:
    """A warm-up, as `Epochs` or a `Share`, or the share of a tail.

    >>> part_of_training("warmup", "2e"), part_of_training("warmup", "15%")
    (Epochs(2), Share(0.15))
    """
    if not name.endswith("warmup"):
        return share_of_training(name, text)
    written = text.strip() if isinstance(text, str) else ""
    if written == "0":
        return Epochs(0)
    if re.fullmatch(r"\d+(\.\d+)?e", written):
        return Epochs(float(written[:-1]))
    if written.endswith("%"):
        return Share(min(share_of_training(name, written), 1.0))
    raise ConfigError(
        f"{name} {text!r}: give epochs such as 1e, a percentage of the training such as 15%, or 0"
    )


def _one(name: str, text: str) -> float:
    try:
        return _number(text)
    except (ValueError, ArithmeticError):
        raise ConfigError(f"{name} {text!r}: give a number") from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} {text!r}: give an integer") from None


def _switch(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} {text!r}: give true or false")
    return text.lower() == "true"


_OF_TYPE: dict[type, Callable[[str, str], Any]] = {
    bool: _switch,
    int: _whole,
    float: _one,
    str: lambda name, text: text,
}
_OF_SETTING: dict[str, Callable[[str, str], Any]] = {
    "time_budget": duration,
    "stop_at": _error,
    **dict.fromkeys(PARTS_OF_TRAINING, part_of_training),
    "evaluate_at": lambda name, text: tuple(numbers(name, text)),
}
