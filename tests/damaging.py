"""States that are damaged in one place, and what objects do with them."""

import math

import torch

from siftback.errors import StateError

HUGE = 10**15


def comparable(value):
    """A state with every tensor as its type, shape and bytes, and without what was measured."""
    if isinstance(value, dict):
        return {key: comparable(part) for key, part in value.items() if not _is_own(key)}
    if isinstance(value, list | tuple):
        return [comparable(part) for part in value]
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return str(value.dtype), list(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return type(value).__name__, value


def _is_own(key):
    """Whether an entry is of the process that measured it, or covers such an entry."""
    return "seconds" in str(key) or key in ("compilations", "digest")


def leaves(state, path=()):
    """The path to each entry of a nested state, and its value."""
    entries = ()
    if isinstance(state, dict):
        entries = state.items()
    elif isinstance(state, list | tuple):
        entries = enumerate(state)
    for key, value in entries:
        yield (*path, key), value
        yield from leaves(value, (*path, key))


def changed(state, path, new):
    """A copy of a nested state with another value at a path; ``LEFT_OUT`` leaves it out."""
    key, *rest = path
    part = changed(state[key], rest, new) if rest else new
    if isinstance(state, dict):
        return {
            k: part if k == key else v for k, v in state.items() if (k, part) != (key, LEFT_OUT)
        }
    parts = [part if k == key else v for k, v in enumerate(state)]
    return type(state)(v for v in parts if v is not LEFT_OUT)


LEFT_OUT = object()


def damages(value):
    """Values in place of one of a state, by name."""
    yield "missing", LEFT_OUT
    if value is not None:
        yield "None", None
    yield "text", "x" if not isinstance(value, str) else 7
    if isinstance(value, dict | list | tuple):
        yield "empty", type(value)()
    if isinstance(value, list | tuple) and value:
        yield "truncated", value[:-1]
        yield "repeated", type(value)([*value, value[-1]])
    if isinstance(value, bool):
        yield "2", 2
        yield "flipped", not value
    elif isinstance(value, int | float):
        yield "nan", math.nan
        yield "infinite", math.inf
        yield "negative", -2 - value
        yield "huge", type(value)(HUGE)
        yield "next", value + 1
    if isinstance(value, str) and value:
        yield "cut", value[:-1]
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value)


def _of_tensor(value):
    yield "list", value.tolist()
    yield "type", value.int() if value.is_floating_point() else value.double()
    yield "deeper", value[None]
    if value.numel() and value.ndim:
        yield "truncated", value[:-1]
        yield "permuted", value.flip(0)
        yield "equal", value[:1].expand_as(value).clone()
        yield "a bit", _with_a_bit_flipped(value)
        if value.is_floating_point():
            yield "all nan", torch.full_like(value, math.nan)
        fill = {"negative": -1, "huge": HUGE, "nan": math.nan, "infinite": math.inf}
        for name, number in fill.items():
            if value.dtype.is_floating_point or (
                math.isfinite(number) and value.dtype in (torch.int64, torch.int32)
            ):
                spoilt = value.clone()
                spoilt.view(-1)[0] = (
                    number if value.dtype != torch.int32 else min(number, 2**31 - 1)
                )
                yield name, spoilt


def _with_a_bit_flipped(value):
    flipped = value.clone(memory_format=torch.contiguous_format)
    if value.dtype == torch.bool:
        flipped.view(-1)[-1] ^= True
    else:
        flipped.view(-1).view(torch.uint8)[-1] ^= 1
    return flipped


def verdicts(make, state, use, most):
    """Yields an object's answer to each damaged form of a state, as ``(path, damage, verdict)``.

    Args:
        make: ``make()`` makes what is to load them.
        state: What is damaged.
        use: ``use(object)`` has it hold a state of its own first.
        most: How many damaged forms, evenly spread over all.
    """
    one = make()
    use(one)
    before = comparable(one.state_dict())
    forms = [
        (path, name, new)
        for path, value in leaves(state)
        for name, new in damages(value)
        if new is LEFT_OUT or comparable(new) != comparable(value)  # a permutation of equal values
    ]
    for path, name, new in forms[:: max(1, -(-len(forms) // most))]:
        verdict = verdict_of(one, changed(state, path, new), before)
        yield ".".join(map(str, path)), name, verdict
        if verdict != "refused":
            one = make()
            use(one)
            before = comparable(one.state_dict())


def verdict_of(one, damaged, before):
    try:
        one.load_state_dict(damaged)
    except StateError:
        return "refused" if comparable(one.state_dict()) == before else "refused, but changed"
    except Exception as error:  # what this counts
        return f"raised {type(error).__name__}: {error}"
    return "accepted"
