"""Learning-rate schedules: the share of training done, to the factor of the peak rate.

Selective training takes another number of steps than was planned, so a schedule counts no steps:
it is a pure function of how much of the training is done, from 0.0 at the start to 1.0 at the
end. A share above 1, as a last batch that overshoots may give, counts as 1.

>>> [round(find_rate("cosine", epochs=10)(share), 3) for share in (0.0, 0.5, 1.0)]
[1.0, 0.5, 0.0]
"""

import math
import re
from collections.abc import Callable
from functools import partial

from siftback.errors import ConfigError
from siftback.lab.records.formatting import one_of

Rate = Callable[[float], float]

WARMUP = 0.2
STEPS = "steps:AT,...:xFACTOR"
EPOCHS_EXAMPLE, SHARES_EXAMPLE = "steps:60e,120e,160e:x0.2", "steps:50%,75%:x0.1"


def constant(share: float) -> float:
    """Returns the peak rate throughout: 1.

    >>> constant(0.7)
    1.0
    """
    return 1.0


def step(share: float) -> float:
    """Divides by 5 when 0.3, 0.6 and 0.8 of the training are done.

    These are epochs 60, 120 and 160 of 200 (Jiang et al. 2019, sec. 5.1).

    >>> [round(step(share), 3) for share in (0.0, 0.3, 0.6, 0.8)]
    [1.0, 0.2, 0.04, 0.008]
    """
    return 5.0 ** -sum(share >= start for start in (0.3, 0.6, 0.8))


def cosine(share: float) -> float:
    """Returns half a cosine from the peak to 0: (1 + cos(pi * share)) / 2 (Loshchilov & Hutter).

    >>> cosine(1.0)
    0.0
    """
    return (1 + math.cos(math.pi * min(share, 1.0))) / 2


def onecycle(share: float) -> float:
    """Rises in a line from 0 to the peak at 0.2, then falls in one to 0 at 1.0 (Smith 2018).

    >>> [onecycle(share) for share in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return min(share / WARMUP, max(0.0, 1 - share) / (1 - WARMUP))


def steps(share: float, at: tuple[float, ...], factor: float) -> float:
    """Multiplies by a factor at each of some shares of the training.

    >>> [round(steps(share, at=(0.5, 0.75), factor=0.1), 3) for share in (0.2, 0.5, 0.9)]
    [1.0, 0.1, 0.01]
    """
    return factor ** sum(share >= start for start in at)


RATES: dict[str, Rate] = {rate.__name__: rate for rate in (step, cosine, onecycle, constant)}


def find_rate(name: str, epochs: float | None) -> Rate:
    """Returns the schedule of a name.

    ``steps:60e,120e,160e:x0.2`` multiplies the rate by 0.2 after 60, 120 and 160 epochs;
    ``steps:50%,75%:x0.1`` by 0.1 after these shares of the training. In a run of a given
    cost, and in plain training of the same budget, an epoch is that share of their own training
    which it is of ``epochs``.

    Args:
        name: One of ``RATES``, or ``steps:...``.
        epochs: Length of the training; None where it is not given in epochs.

    Raises:
        ConfigError: If there is none of that name, or it needs a length in epochs.

    >>> rate = find_rate("steps:60e,120e,160e:x0.2", epochs=200)
    >>> [round(rate(epoch / 200), 3) for epoch in (0, 60, 120, 160)]
    [1.0, 0.2, 0.04, 0.008]
    """
    if name in RATES:
        return RATES[name]
    number = r"(?:\d+(?:\.\d*)?|\.\d+)"
    match = re.fullmatch(rf"steps:({number}[e%](?:,{number}[e%])*):x({number})", name)
    if not match:
        raise ConfigError(
            f"no schedule {name!r}: {one_of(name, RATES)}, or {STEPS}, such as "
            f"{EPOCHS_EXAMPLE} in epochs or {SHARES_EXAMPLE} in shares of the training"
        )
    starts, factor = match[1].split(","), float(match[2])
    at, units = [float(start[:-1]) for start in starts], {start[-1] for start in starts}
    end = 100 if units == {"%"} else math.inf
    if len(units) > 1 or at != sorted(set(at)) or not 0 < at[0] <= at[-1] < end:
        raise ConfigError(
            f"schedule {name!r}: give steps in ascending order, all of them epochs (above 0e) or "
            "all of them shares of the training (between 0% and 100%)"
        )
    if not 0 < factor < 1:
        raise ConfigError(f"schedule {name!r}: give a factor between 0 and 1")
    length = 100 if units == {"%"} else epochs
    if length is None:
        raise ConfigError(
            f"schedule {name!r} in a training whose length is not given in epochs: give its steps "
            f"as shares of the training, such as {SHARES_EXAMPLE}"
        )
    return partial(steps, at=tuple(start / length for start in at), factor=factor)
