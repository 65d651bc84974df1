"""Saved states: declared once, sealed with a digest, and checked whole before anything is changed.

A class with a state inherits `Stateful`, and declares its settings, its members and its fields. A
field is described by a `Check`, such as ``integer()`` or ``tensor(torch.float32, 3)``. A state is
sealed by `seal`: it has a digest of its entries, by which `check_digest` tells whether one of them
was changed after it was saved.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from siftback.arguments import format_value, is_number
from siftback.errors import SiftbackError, StateError
from siftback.tensor_arguments import is_dense

Check = Callable[[str, Any], None]
"""``check(name, value)`` raises a `StateError` if an entry of a state is not what it should be."""

MOST_EPOCHS = 10**9
"""More than any training has."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.device)
_SHARDED = "crc32 (each shard's) of digests, shards, values"


def seal(state: Mapping[str, Any], *, uncovered: Collection[str] = ()) -> dict[str, Any]:
    """Returns a state with a digest of its entries, for `check_digest`.

    The digest is a CRC-32 of names, structure, numbers, and the bytes of tensors, at about the
    speed of copying them. It does not depend on the order of dicts, on devices and strides, nor on
    what saving may change: tuples are as lists, and numbers of NumPy as Python's. A nested state
    with a digest contributes that, so that nothing is read twice. It names its entries; a class
    that extends a state may add more, and seal it again if they are to be covered too.

    Args:
        state: The entries. A digest among them is replaced.
        uncovered: Names of entries that the digest leaves out.

    >>> seal({"settings": {"size": 4}, "losses": torch.ones(3)})["digest"]
    'crc32 ffb768ab of losses, settings'
    """
    entries = {name: value for name, value in state.items() if name != "digest"}
    return {**entries, "digest": _digest(entries, entries.keys() - uncovered)}


def seal_shards(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state that may be re-sharded, whose shards have digests of their own."""
    return {**state, "digest": _SHARDED}


def check_digest(owner: object, state: Any) -> None:
    """Checks that a state, with the states in it, is as it was saved.

    Args:
        owner: The object that it is to be loaded into.
        state: The saved state.

    Raises:
        StateError: If it has no digest, or its entries are not those of its digest.

    >>> state = seal({"losses": torch.ones(3)})
    >>> check_digest([], state)
    >>> check_digest([], state | {"losses": torch.tensor([1.0, torch.nan, 1.0])})
    Traceback (most recent call last):
    siftback.errors.StateError: the state is damaged: its entries losses are not those that it was \
saved with, or their digest is not: give what state_dict() of list returned, unchanged; of several \
processes, each under a name of its own
    """
    kind = type(owner).__name__
    if not _is_sealed(state):
        raise StateError(f"a state without digest: give what state_dict() of {kind} returned")
    covered = [state.get(name) for name in _covered(state)]
    for sealed in (state, *_sealed_states(covered)):
        if sealed["digest"] not in (_SHARDED, _digest(sealed, _covered(sealed))):
            raise StateError(
                f"the state is damaged: its entries {', '.join(_covered(sealed))} are not those "
                "that it was saved with, or their digest is not: give what state_dict() of "
                f"{kind} returned, unchanged; of several processes, each under a name of its own"
            )


def _is_sealed(value: Any) -> bool:
    digest = value.get("digest") if isinstance(value, Mapping) else None
    return isinstance(digest, str) and digest.startswith("crc32 ")


def _covered(state: Mapping[str, Any]) -> list[str]:
    return str(state["digest"]).partition(" of ")[2].split(", ")


def _sealed_states(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields a value and what is nested in it, as far as it is sealed."""
    if _is_sealed(value):
        yield value
    if isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _sealed_states(entry)


def _digest(state: Mapping[str, Any], names: Collection[str]) -> str:
    entries = {name: state[name] for name in names if name in state}
    return f"crc32 {_checksum(entries, 0):08x} of {', '.join(sorted(entries))}"


def _checksum(value: Any, crc: int) -> int:
    if isinstance(value, Mapping):
        covered = _covered(value) if _is_sealed(value) else ()
        names = sorted(value.keys() - covered, key=lambda name: (type(name).__name__, str(name)))
        entries = [entry for name in names for entry in (name, value[name])]
        return _checksum(entries, zlib.crc32(b"dict;", crc))
    if isinstance(value, list | tuple):
        crc = zlib.crc32(b"list %d;" % len(value), crc)
        for entry in value:
            crc = _checksum(entry, crc)
        return crc
    if isinstance(value, Tensor):
        crc = zlib.crc32(f"tensor {value.dtype} {[*value.shape]};".encode(), crc)
        # Sparse, nested, quantized and distributed tensors have no bytes that are the same
        # everywhere.
        plain = is_dense(value) and not hasattr(value, "to_local")
        return tensor_checksum(value, crc) if plain else crc
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        crc = zlib.crc32(f"array {value.dtype.str} {value.shape};".encode(), crc)
        return zlib.crc32(value.tobytes(), crc)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _checksum(vars(value), crc)
    value = value.item() if isinstance(value, np.generic) else value
    # Of another object, which is the user's own, only the class is known to stay the same.
    text = repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__
    return zlib.crc32(f"{text};".encode(), crc)


def tensor_checksum(tensor: Tensor, crc: int = 0) -> int:
    """Returns the CRC-32 of the bytes of a tensor's values, in the order of its rows.

    Args:
        tensor: Any dense tensor.
        crc: The checksum of the bytes before them.
    """
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)


def check_entries(
    owner: object,
    state: Any,
    checks: Mapping[str, Check],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Checks that a state has its entries, and was saved with the same settings.

    Args:
        owner: The object that it is to be loaded into.
        state: The saved state.
        checks: The check of each entry, by name. Other entries are not checked.
        settings: The settings of the object, if it has any.

    Raises:
        StateError: If it is not a dict, lacks an entry, has one that does not pass its check, or
            was saved with another setting.

    >>> state = {"settings": {"size": 4}, "losses": torch.ones(3)}
    >>> check_entries([], state, {"losses": tensor(torch.float32, None)}, {"size": 4})
    >>> check_entries([], state, {}, {"size": 5})
    Traceback (most recent call last):
    siftback.errors.StateError: the state was saved with size=4, and this list has size=5: build \
it with the same size
    """
    kind, names = type(owner).__name__, [*checks, *(["settings"] if settings is not None else [])]
    missing = [name for name in names if not isinstance(state, dict) or name not in state]
    if missing:
        raise StateError(
            f"a state without {', '.join(missing)}: give what state_dict() of {kind} returned"
        )
    if settings is not None:
        saved = state["settings"] if isinstance(state["settings"], dict) else {}
        for name in (*settings, *(saved.keys() - settings.keys())):
            now, before = settings.get(name, "nothing"), saved.get(name, "nothing")
            if not _equal(now, before):
                raise StateError(
                    f"the state was saved with {name}={before!r}, and this {kind} has "
                    f"{name}={now!r}: build it with the same {name}"
                )
    for name, check in checks.items():
        check(f"{kind}.{name}", state[name])


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if is_number(first) and is_number(second):
        return bool(first == second)
    return type(first) is type(second) and bool(first == second)


def raise_damaged(name: str, value: Any, expected: str) -> NoReturn:
    """Raises a `StateError` about an entry of a state.

    Args:
        name: The entry.
        value: Its value.
        expected: What it should be.
    """
    raise StateError(
        f"the state is damaged: {name} is {format_value(value)}, and should be {expected}: give "
        "what state_dict() returned"
    )


def integer(least: int = 0, most: int = (1 << 63) - 1) -> Check:
    """Returns a check for an integer within bounds."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise_damaged(name, value, f"an integer from {least} to {most}")

    return check


def number(least: float = -math.inf, most: float = math.inf) -> Check:
    """Returns a check for a finite number within bounds."""

    def check(name: str, value: Any) -> None:
        if not is_number(value) or not least <= value <= most:
            raise_damaged(name, value, f"a finite number from {least} to {most}")

    return check


def anything(name: str, value: Any) -> None:
    """Checks nothing, as for an entry of the user's own."""


def choice(*values: Any) -> Check:
    """Returns a check for one of some values."""

    def check(name: str, value: Any) -> None:
        if not any(_equal(value, allowed) for allowed in values):
            raise_damaged(name, value, " or ".join(map(repr, values)))

    return check


nothing = choice(None)
flag = choice(False, True)


def text(name: str, value: Any) -> None:
    """Checks for a string."""
    if not isinstance(value, str):
        raise_damaged(name, value, "a string")


def optional(check: Check) -> Check:
    """Returns a check for None, or what another check is for."""
    return lambda name, value: None if value is None else check(name, value)


def list_of(check: Check) -> Check:
    """Returns a check for a list or tuple whose entries pass another check."""

    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise_damaged(name, value, "a list")
        tuple_of(*[check] * len(value))(name, value)

    return check_all


def tuple_of(*checks: Check) -> Check:
    """Returns a check for a list or tuple that has an entry for each check."""

    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            raise_damaged(name, value, f"{len(checks)} values")
        for index, (check, entry) in enumerate(zip(checks, value, strict=True)):
            check(f"{name}[{index}]", entry)

    return check_all


def dict_of(checks: Mapping[Any, Check]) -> Check:
    """Returns a check for a dict that has an entry for each check, by name."""

    def check_all(name: str, value: Any) -> None:
        if not isinstance(value, Mapping) or value.keys() != checks.keys():
            raise_damaged(name, value, f"a dict of {', '.join(map(str, checks))}")
        for key, check in checks.items():
            check(f"{name}.{key}", value[key])

    return check_all


def tensor(
    dtype: torch.dtype,
    *shape: int | range | None,
    least: float = -math.inf,
    most: float = math.inf,
    finite: bool = False,
) -> Check:
    """Returns a check for a tensor.

    Args:
        dtype: Its type.
        shape: Its size in each dimension, or the range of sizes allowed; None is any.
        least: The smallest value allowed; NaN is then not.
        most: The largest value allowed; NaN is then not.
        finite: Whether all of its values must be finite.
    """
    sizes = ", ".join("n" if size is None else str(size) for size in shape)
    expected = f"{str(dtype).removeprefix('torch.')}[{sizes}]"

    def check(name: str, value: Any) -> None:
        fits = isinstance(value, Tensor) and value.dtype == dtype and value.ndim == len(shape)
        if not fits or any(
            size is not None and length not in (size if isinstance(size, range) else [size])
            for size, length in zip(shape, value.shape, strict=True)
        ):
            raise_damaged(name, value, expected)
        if (least > -math.inf or most < math.inf) and value.numel():
            low, high = (float(bound) for bound in value.aminmax())
            if not (low >= least and high <= most):
                raise_damaged(name, [low, high], f"{expected} of values from {least} to {most}")
        if finite and not bool(value.isfinite().all()):
            raise_damaged(name, value, f"{expected} of finite values")

    return check


def shaped_like(value: Any) -> Check:
    """Returns a check for a nested dict of the same names, and tensors of equal shape and type."""
    if isinstance(value, Tensor):
        return tensor(value.dtype, *value.shape)
    return dict_of({key: shaped_like(entry) for key, entry in value.items()})


def generator_state(name: str, value: Any) -> None:
    """Checks for the state of a ``torch.Generator`` on the CPU."""
    tensor(torch.uint8, None)(name, value)
    try:
        torch.Generator().set_state(value)
    except (TypeError, RuntimeError):
        raise_damaged(name, value, "a generator's state, on the CPU")


def state_of(member: Any) -> Check:
    """Returns a check for the state of an object, which is None of None.

    An object of the user's own may have no ``check_state``.
    """

    def check(name: str, value: Any) -> None:
        if member is None:
            nothing(name, value)
        elif hasattr(member, "check_state"):
            member.check_state(value)

    return check


class Stateful:
    """An object whose state is declared once.

    `state_dict`, `check_state` and `load_state_dict` follow from what three methods return:
    `settings`, the arguments that a state must have been saved with, by default the attributes
    named in ``setting_names`` of the class and its bases; `members`, the objects whose states are
    in this one's; and `state_fields`, the attributes that are saved, each with the check
    of what it may be. Everything is checked before anything is changed.

    An attribute that starts with an underscore is saved without it. A tensor is saved as a copy on
    the CPU, and loaded as a copy of that; a ``torch.Generator`` is saved as its state. What is kept
    in another form than it is saved in is a property with a setter. A subclass extends
    ``super().state_fields()``. Conditions between fields belong in `check_state`, and what has to
    follow from a loaded state in `load_state_dict`, after a call of ``super()``.

    >>> class Average(Stateful):
    ...     def __init__(self, decay):
    ...         self.decay, self.updates, self._mean = decay, 0, torch.zeros(2)
    ...     setting_names = ("decay",)
    ...     def state_fields(self):
    ...         return {"updates": integer(), "_mean": tensor(torch.float32, 2, finite=True)}
    >>> average = Average(0.5)
    >>> average.updates = 3
    >>> state = average.state_dict()
    >>> state
    {'settings': {'decay': 0.5}, 'updates': 3, 'mean': tensor([0., 0.]), \
'digest': 'crc32 aeed6de8 of mean, settings, updates'}
    >>> resumed = Average(0.5)
    >>> resumed.load_state_dict(state)
    >>> resumed.updates
    3
    >>> resumed.load_state_dict(seal({**state, "updates": -1}))
    Traceback (most recent call last):
    siftback.errors.StateError: the state is damaged: Average.updates is -1, and should be an \
integer from 0 to 9223372036854775807: give what state_dict() returned
    """

    setting_names: ClassVar[tuple[str, ...]] = ()

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        classes = reversed(type(self).__mro__)
        names = [name for owner in classes for name in vars(owner).get("setting_names", ())]
        return {name: getattr(self, name) for name in names}

    def members(self) -> dict[str, Any]:
        """Returns the objects, by name, whose states are in this one's; None has none."""
        return {}

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the settings, the state of each member, and a copy of each field."""
        members = {n: None if m is None else m.state_dict() for n, m in self.members().items()}
        fields = {name.lstrip("_"): _saved(getattr(self, name)) for name in self.state_fields()}
        return seal({"settings": self.settings(), **members, **fields})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it was saved with other settings, or is damaged.
        """
        check_digest(self, state)
        members = {name: state_of(member) for name, member in self.members().items()}
        fields = {name.lstrip("_"): check for name, check in self.state_fields().items()}
        # Of another object the entries may be others, of which the settings say why.
        check_entries(self, state, {}, self.settings())
        check_entries(self, state, {**members, **fields})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another one's state.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        load_all_or_none(*((member, state[name]) for name, member in self.members().items()))
        self.load_fields(state)

    def load_fields(self, state: dict[str, Any]) -> None:
        """Takes on the fields of a state that was checked."""
        for name in self.state_fields():
            value = state[name.lstrip("_")]
            if isinstance(generator := getattr(self, name), torch.Generator):
                generator.set_state(value)
            else:
                setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


def _saved(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def load_all_or_none(*pairs: tuple[Any, Any], finish: Callable[[], None] | None = None) -> None:
    """Loads the states of objects, or of none of them if one cannot load its own.

    An object of the user's own may find out only as it loads.

    Args:
        pairs: Objects, each with its state; None, which has none, is passed over.
        finish: Called after them; it changes nothing if it fails.

    Raises:
        StateError: If anything was raised; the states before are put back.
    """
    pairs = tuple((member, state) for member, state in pairs if member is not None)
    before = [(member, member.state_dict()) for member, _ in pairs]
    try:
        for member, state in pairs:
            member.load_state_dict(state)
        if finish:
            finish()
    except Exception as error:
        for member, state in before:
            member.load_state_dict(state)
        if isinstance(error, SiftbackError):
            raise
        raise StateError(
            f"the state is damaged ({error!r}): give what state_dict() returned"
        ) from error
