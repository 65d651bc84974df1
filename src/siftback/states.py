"""What a saved state must look like: all of it is checked before any of it is taken up.

An object with a state has three methods: ``state_dict()``; ``check_state(state)``, which raises a
`StateError` if the state does not fit and changes nothing; and ``load_state_dict(state)``, which
checks it first. A state contains the ``settings`` of the object that it is of, and parts; a part
is described by a `Check`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import is_number
from siftback.errors import SiftbackError, StateError

Check = Callable[[str, Any], None]
"""``check(name, value)`` raises a `StateError` if a part of a state is not what it should be."""

_MOST = (1 << 63) - 1
MOST_EPOCHS = 10**9
"""More than any training has."""


def check_state(
    of: object,
    state: Any,
    parts: Mapping[str, Check],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Checks that a state has all its parts, and was saved with the same settings.

    Args:
        of: The object that it is to be loaded into.
        state: The saved state.
        parts: Its parts by name. Others that it may have are not checked.
        settings: Those of the object, if it has any.

    Raises:
        StateError: If it is not a dict, lacks a part, has one that is not as described, or was
            saved with another setting.

    >>> state = {"settings": {"size": 4}, "losses": torch.ones(3)}
    >>> check_state([], state, {"losses": tensor(torch.float32, None)}, {"size": 4})
    >>> check_state([], state, {}, {"size": 5})
    Traceback (most recent call last):
    siftback.errors.StateError: the state was saved with size=4, and this list has size=5: build \
it with the same size
    """
    kind, needed = type(of).__name__, [*parts]
    needed += ["settings"] if settings is not None else []
    missing = [name for name in needed if not isinstance(state, dict) or name not in state]
    if missing:
        raise StateError(
            f"a state without {', '.join(missing)}: give what state_dict() of {kind} returned"
        )
    if settings is not None:
        _check_settings(kind, state["settings"], settings)
    for name, check in parts.items():
        check(f"{kind}.{name}", state[name])


def _check_settings(kind: str, saved: Any, own: Mapping[str, Any]) -> None:
    names = {*saved} if isinstance(saved, dict) else set()
    for name in (*own, *(names - own.keys())):
        here = own.get(name, "nothing")
        there = saved[name] if name in names else "nothing"
        if not _equal(here, there):
            raise StateError(
                f"the state was saved with {name}={there!r}, and this {kind} has {name}={here!r}: "
                f"build it with the same {name}"
            )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if is_number(one) and is_number(other):
        return bool(one == other)
    return type(one) is type(other) and bool(one == other)


def refuse(name: str, value: Any, expected: str) -> None:
    """Raises a `StateError` about a part of a state.

    Args:
        name: Which part.
        value: What it is.
        expected: What it should be.
    """
    shown = repr(value)
    if isinstance(value, Tensor):
        shown = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    elif len(shown) > 60:
        shown = f"a {type(value).__name__}"
    raise StateError(
        f"the state is damaged: {name} is {shown}, and should be {expected}: give what "
        "state_dict() returned"
    )


def integer(least: int = 0, most: int = _MOST) -> Check:
    """Checks for an integer within bounds."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            refuse(name, value, f"an integer from {least} to {most}")

    return check


def number(least: float = -math.inf, most: float = math.inf) -> Check:
    """Checks for a finite number within bounds."""

    def check(name: str, value: Any) -> None:
        if not is_number(value) or not least <= value <= most:
            refuse(name, value, f"a finite number from {least} to {most}")

    return check


def anything(name: str, value: Any) -> None:
    """Checks nothing, of what is not this library's own."""


def nothing(name: str, value: Any) -> None:
    """Checks for None."""
    if value is not None:
        refuse(name, value, "None")


def one_of(*values: Any) -> Check:
    """Checks for one of some values."""

    def check(name: str, value: Any) -> None:
        if not any(_equal(value, one) for one in values):
            refuse(name, value, f"one of {', '.join(map(repr, values))}")

    return check


def flag(name: str, value: Any) -> None:
    """Checks for a boolean."""
    if not isinstance(value, bool):
        refuse(name, value, "True or False")


def text(name: str, value: Any) -> None:
    """Checks for a string."""
    if not isinstance(value, str):
        refuse(name, value, "a string")


def optional(check: Check) -> Check:
    """Checks for None, or what another check is for."""
    return lambda name, value: None if value is None else check(name, value)


def each(check: Check) -> Check:
    """Checks for a list or tuple whose entries fit another check."""

    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, list | tuple):
            refuse(name, value, "a list")
        for place, entry in enumerate(value):
            check(f"{name}[{place}]", entry)

    return check_all


def entries(*checks: Check) -> Check:
    """Checks for a list or tuple of so many entries, each by a check of its own."""

    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            refuse(name, value, f"{len(checks)} values")
        for place, (check, entry) in enumerate(zip(checks, value, strict=True)):
            check(f"{name}[{place}]", entry)

    return check_all


def each_of(checks: Mapping[Any, Check]) -> Check:
    """Checks for a dict of the same keys, each value by a check of its own."""

    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, Mapping) or value.keys() != checks.keys():
            refuse(name, value, f"a dict of {', '.join(map(str, checks))}")
        for key, check in checks.items():
            check(f"{name}.{key}", value[key])

    return check_all


def tensor(
    dtype: torch.dtype,
    *shape: int | None,
    least: float | None = None,
    most: float | None = None,
    finite: bool = False,
) -> Check:
    """Checks for a tensor.

    Args:
        dtype: Its type.
        shape: Its size in each dimension; None is any.
        least: The smallest value allowed; NaN is then not.
        most: The largest value allowed; NaN is then not.
        finite: Whether all of its values must be finite.
    """

    def check(name: str, value: Any) -> None:
        fits = isinstance(value, Tensor) and value.dtype == dtype and value.ndim == len(shape)
        fits = fits and all(
            asked in (None, size) for asked, size in zip(shape, value.shape, strict=True)
        )
        sizes = ", ".join("n" if size is None else str(size) for size in shape)
        expected = f"{str(dtype).removeprefix('torch.')}[{sizes}]"
        if not fits:
            refuse(name, value, expected)
        bounded = least is not None or most is not None
        if bounded and value.numel():
            low, high = (float(bound) for bound in value.aminmax())
            if not (least is None or low >= least) or not (most is None or high <= most):
                lower, upper = least if least is not None else "", most if most is not None else ""
                raise_of = f"{expected} of values from {lower} to {upper}"
                refuse(name, [low, high], raise_of)
        if finite and not bool(value.isfinite().all()):
            refuse(name, value, f"{expected} of finite values")

    return check


def like(own: Any) -> Check:
    """Checks for a nested structure of the same names, and tensors of the same shapes and types."""
    if isinstance(own, Tensor):
        return tensor(own.dtype, *own.shape)
    return each_of({key: like(entry) for key, entry in own.items()})


def generator(name: str, value: Any) -> None:
    """Checks for the state of a ``torch.Generator`` on the CPU."""
    tensor(torch.uint8, None)(name, value)
    try:
        torch.Generator().set_state(value)
    except (TypeError, RuntimeError):
        refuse(name, value, "a generator's state, on the CPU")


def part(own: Any) -> Check:
    """Checks for the state of an object: one of the user's own may have no ``check_state``."""

    def check(name: str, value: Any) -> None:
        if hasattr(own, "check_state"):
            own.check_state(value)

    return check


class Stateful:
    """An object whose state is that of its members, and says which settings it had.

    >>> class Halving(Stateful):
    ...     def settings(self):
    ...         return {"factor": 2}
    >>> Halving().state_dict()
    {'settings': {'factor': 2}}
    """

    def settings(self) -> dict[str, Any]:
        """The arguments, by name, that a state must have been saved with to fit."""
        return {}

    def members(self) -> dict[str, Any]:
        """The objects, by name, whose states are parts of this one's."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The settings, and the state of each member."""
        members = self.members().items()
        return {"settings": self.settings(), **{name: own.state_dict() for name, own in members}}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it was saved with other settings, or is damaged.
        """
        parts = {name: part(own) for name, own in self.members().items()}
        check_state(self, state, parts, self.settings())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another one's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        take_up(*((own, state[name]) for name, own in self.members().items()))


def take_up(*parts: tuple[Any, Any], finish: Callable[[], None] | None = None) -> None:
    """Loads the states of objects, or of none of them if one cannot load its own.

    Objects of the user's own may find out only as they load.

    Args:
        parts: Pairs of an object and its state.
        finish: Called after them; what it changes it puts back itself if it fails.

    Raises:
        StateError: If one raised anything; the states before are put back.
    """
    before = [(own, own.state_dict()) for own, _ in parts]
    try:
        for own, state in parts:
            own.load_state_dict(state)
        if finish is not None:
            finish()
    except Exception as error:
        for own, state in before:
            own.load_state_dict(state)
        if isinstance(error, SiftbackError):
            raise
        raise StateError(
            f"the state is damaged ({error!r}): give what state_dict() returned"
        ) from error
