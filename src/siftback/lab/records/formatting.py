"""Numbers and settings as a reader sees them."""
# ruff: noqa: RUF001 - – is meant.

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

NOT_REACHED = "–"


def readable(amount: float) -> str:
    """Writes a large number in three digits and a unit.

    >>> [readable(amount) for amount in (128, 999.7, 60_000, 1_234_567, 2.5e9)]
    ['128', '1 k', '60 k', '1.23 M', '2.5 G']
    """
    units = ["", " k", " M", " G", " T"]
    while abs(amount) >= 999.5 and units[1:]:
        amount /= 1000
        del units[0]
    return f"{amount:.3g}{units[0]}"


def listed(values: Iterable[object]) -> str:
    """Writes values once each, in order, with commas between.

    >>> listed([0, 1, 0])
    '0, 1'
    """
    return ", ".join(dict.fromkeys(str(value) for value in values))


def counted(count: int, noun: str) -> str:
    """Writes a number of things in words.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def one_of(name: str, known: Iterable[str]) -> str:
    """Returns the advice for an unknown name: the nearest one, and all known ones.

    >>> one_of("resnt18", ["cnn", "resnet18"])
    'did you mean resnet18? give one of cnn, resnet18'
    >>> one_of("imagenet", ["digits", "mnist"])
    'give one of digits, mnist'
    """
    names = list(known)
    near = get_close_matches(name, names, 1)
    return f"{f'did you mean {near[0]}? ' if near else ''}give one of {', '.join(names)}"


def fact(value: object) -> str:
    """Writes a setting or a measured value in plain words.

    >>> fact(True), fact(0.123456), fact([1, 2]), fact("onecycle")
    ('yes', '0.1235', '1, 2', 'onecycle')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(fact, value)) if isinstance(value, list) else str(value)


def facts_line(values: Mapping[str, Any]) -> str:
    """Writes settings or an environment as one line; its arguments have a line of their own.

    >>> facts_line({"data": "digits", "train_limit": None, "arguments": {}, "epochs": 2.0})
    'data digits; epochs 2'
    """
    settings = {name: value for name, value in values.items() if name != "arguments"}
    facts = {name: fact(value) for name, value in settings.items() if value not in (None, [], "")}
    return "; ".join(f"{name.replace('_', ' ')} {text}" for name, text in facts.items())


def readable_duration(seconds: float) -> str:
    """Writes a time in the unit that suits it.

    >>> [readable_duration(seconds) for seconds in (0.94, 59.96, 150.0, 5400.0)]
    ['0.9 s', '1.0 min', '2.5 min', '1.5 h']
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def readable_seconds(seconds: float) -> str:
    """Writes seconds, in tenths where they are few.

    >>> readable_seconds(12.34), readable_seconds(1234.5)
    ('12.3', '1234')
    """
    return f"{seconds:.1f}" if seconds < 1000 else f"{seconds:.0f}"
