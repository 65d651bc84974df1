"""What a saved state must look like: all of it is checked before any of it is taken up.

An object with a state has three methods: ``state_dict()``; ``check_state(state)``, which raises a
`StateError` if the state does not fit and changes nothing; and ``load_state_dict(state)``, which
checks it first. A state contains the ``settings`` of the object that it is of, and parts; a part
is described by a `Check`. A public object's state is `sealed`: it contains a digest of its entries,
and `check_digest` refuses one that was changed after it was saved.
"""

import dataclasses
import math
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.arguments import is_number
from siftback.errors import SiftbackError, StateError

Check = Callable[[str, Any], None]
"""``check(name, value)`` raises a `StateError` if a part of a state is not what it should be."""

_MOST = (1 << 63) - 1
MOST_EPOCHS = 10**9
"""More than any training has."""


_SHARDED = "crc32 of each shard"
"""The digest of what is re-sharded, in which each shard has a digest that is checked with it."""


def sealed(state: Mapping[str, Any], *, uncovered: Collection[str] = ()) -> dict[str, Any]:
    """Returns a state with a digest of its entries, by which `check_digest` knows it again.

    The digest is a CRC-32 of names, structure, numbers, and the bytes of tensors, at about the
    speed of copying them. It does not depend on the order of dicts, on devices and strides, nor on
    what saving may change: tuples are as lists, and numbers of NumPy as Python's. A nested state
    with a digest contributes that, so that nothing is read twice. It names its entries; a class
    that extends a state may add more, and seal it again if they are to be covered too.

    Args:
        state: The entries. A digest among them is replaced.
        uncovered: Names of entries that the digest leaves out.

    >>> sealed({"settings": {"size": 4}, "losses": torch.ones(3)})["digest"]
    'crc32 77134703 of losses, settings'
    """
    entries = {name: value for name, value in state.items() if name != "digest"}
    covered = {name: value for name, value in entries.items() if name not in uncovered}
    return {**entries, "digest": _digest(covered, check=False)}


def sealed_shards(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state that may be re-sharded, for which its shards answer: see `Shards`."""
    return {**state, "digest": _SHARDED}


def check_digest(of: object, state: Any) -> None:
    """Checks that a state, with the states in it, is as it was saved.

    Args:
        of: The object that it is to be loaded into.
        state: The saved state.

    Raises:
        StateError: If it has no digest, or its entries are not those of its digest.

    >>> state = sealed({"losses": torch.ones(3)})
    >>> check_digest([], state)
    >>> check_digest([], state | {"losses": torch.tensor([1.0, torch.nan, 1.0])})
    Traceback (most recent call last):
    siftback.errors.StateError: the state is damaged: its entries losses are not those that it was \
saved with, or their digest is not: give what state_dict() of list returned, unchanged
    """
    kind = type(of).__name__
    if not isinstance(state, Mapping) or not _is_sealed(state):
        raise StateError(f"a state without digest: give what state_dict() of {kind} returned")
    try:
        _check_digest(state)
    except _ChangedError as error:
        raise StateError(
            f"the state is damaged: its entries {error} are not those that it was saved with, or "
            f"their digest is not: give what state_dict() of {kind} returned, unchanged"
        ) from None


class _ChangedError(Exception):
    """The entries of a state are not those of its digest."""


def _is_sealed(state: Mapping[Any, Any]) -> bool:
    digest = state.get("digest")
    return isinstance(digest, str) and digest.startswith("crc32 ")


def _check_digest(state: Mapping[Any, Any]) -> None:
    digest = state["digest"]
    if digest == _SHARDED:
        return
    _, _, listed = digest.partition(" of ")
    entries = {name: state[name] for name in listed.split(", ") if name in state}
    if _digest(entries, check=True) != digest:
        raise _ChangedError(listed)


def _digest(entries: Mapping[str, Any], *, check: bool) -> str:
    return f"crc32 {_crc(entries, 0, check):08x} of {', '.join(sorted(entries))}"


def _crc(value: Any, crc: int, check: bool) -> int:
    """Adds a part of a state to a CRC-32; with ``check``, sealed states in it are checked too."""
    if isinstance(value, Mapping):
        if _is_sealed(value):
            if check:
                _check_digest(value)
            listed = value["digest"].partition(" of ")[2].split(", ")
            covered = {"shards", "values", "digests"} if value["digest"] == _SHARDED else {*listed}
            value = {name: entry for name, entry in value.items() if name not in covered}
        crc = zlib.crc32(b"dict %d" % len(value), crc)
        for name in sorted(value, key=lambda name: (type(name).__name__, str(name))):
            crc = _crc(value[name], _crc(name, crc, check), check)
        return crc
    if isinstance(value, list | tuple):
        crc = zlib.crc32(b"list %d" % len(value), crc)
        for entry in value:
            crc = _crc(entry, crc, check)
        return crc
    if isinstance(value, Tensor):
        return _crc_of_tensor(value, crc)
    if isinstance(value, np.ndarray) and value.dtype.hasobject is False:
        crc = zlib.crc32(f"array {value.dtype.str} {value.shape}".encode(), crc)
        return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, crc)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _crc(vars(value), crc, check)
    return zlib.crc32(_bytes_of(value), crc)


def crc_of_bytes(tensor: Tensor, crc: int = 0) -> int:
    """Returns the CRC-32 of the bytes of a tensor's values, in the order of its rows.

    Args:
        tensor: Any dense tensor.
        crc: That of what is before them.
    """
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)


def _crc_of_tensor(tensor: Tensor, crc: int) -> int:
    crc = zlib.crc32(f"tensor {tensor.dtype} {[*tensor.shape]}".encode(), crc)
    # Sparse, nested, quantized and distributed tensors have no bytes that are the same everywhere.
    dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
    plain = dense and not tensor.is_nested and not hasattr(tensor, "to_local")
    return crc_of_bytes(tensor, crc) if plain else crc


def _bytes_of(value: Any) -> bytes:
    """Something that stays the same for a value as it is saved and loaded."""
    if value is None or isinstance(value, bool | np.bool_):
        return str(value).encode()
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"str %d " % len(text) + text
    if isinstance(value, bytes | bytearray):
        return b"bytes %d " % len(value) + value
    if isinstance(value, int | np.integer):
        return b"int %d" % int(value)
    if isinstance(value, float | np.floating):
        return b"float " + struct.pack("<d", value)
    if isinstance(value, complex | torch.dtype | torch.device):
        return str(value).encode()
    return type(value).__qualname__.encode()  # an object of the user's own


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
    {'settings': {'factor': 2}, 'digest': 'crc32 8bc8a7d3 of settings'}
    """

    def settings(self) -> dict[str, Any]:
        """The arguments, by name, that a state must have been saved with to fit."""
        return {}

    def members(self) -> dict[str, Any]:
        """The objects, by name, whose states are parts of this one's."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The settings, and the state of each member."""
        members = {name: own.state_dict() for name, own in self.members().items()}
        return sealed({"settings": self.settings(), **members})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it was saved with other settings, or is damaged.
        """
        check_digest(self, state)
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
