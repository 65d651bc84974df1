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
    """Whether an entry is of the process that measured it."""
    return "seconds" in str(key) or key == "compilations"


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
    if isinstance(value, bool):
        yield "2", 2
    elif isinstance(value, int | float):
        yield "nan", math.nan
        yield "negative", -2 - value
        yield "huge", type(value)(HUGE)
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value)


def _of_tensor(value):
    yield "list", value.tolist()
    yield "type", value.int() if value.is_floating_point() else value.double()
    yield "deeper", value[None]
    if value.numel() and value.ndim:
        yield "truncated", value[:-1]
        fill = {"negative": -1, "huge": HUGE, "nan": math.nan}
        for name, number in fill.items():
            if value.dtype.is_floating_point or (
                number == number and value.dtype in (torch.int64, torch.int32)
            ):
                spoilt = value.clone()
                spoilt.view(-1)[0] = (
                    number if value.dtype != torch.int32 else min(number, 2**31 - 1)
                )
                yield name, spoilt


def verdicts(make, state, use, most):
    """What an object does with each damaged form of a state, as ``(path, damage, verdict)``.

    Args:
        make: ``make()`` makes what is to load them.
        state: What is damaged.
        use: ``use(object)`` has it hold a state of its own first.
        most: How many damaged forms, evenly spread over all.
    """
    one = make()
    use(one)
    before = comparable(one.state_dict())
    forms = [(path, *form) for path, value in leaves(state) for form in damages(value)]
    for path, name, new in forms[:: max(1, -(-len(forms) // most))]:
        verdict = verdict_of(one, changed(state, path, new), state, before)
        yield ".".join(map(str, path)), name, verdict
        if verdict == "harmless":
            before = comparable(one.state_dict())
        elif verdict != "refused":
            one = make()
            use(one)
            before = comparable(one.state_dict())


def verdict_of(one, damaged, state, before):
    try:
        one.load_state_dict(damaged)
    except StateError:
        return "refused" if comparable(one.state_dict()) == before else "refused, but changed"
    except Exception as error:  # what this counts
        return f"raised {type(error).__name__}: {error}"
    try:
        same = comparable(one.state_dict()) == comparable(state)
    except Exception as error:
        return f"accepted, then {type(error).__name__}: {error}"
    return "harmless" if same else "accepted"
