"""Learning-rate schedules: the share of training done, to the factor of the peak rate.

Selective training takes another number of steps than was planned, so a schedule counts no steps:
it is a pure function of how much of the training is done, from 0.0 at the start to 1.0 at the
end. A share above 1, as a last batch that overshoots may give, counts as 1.

>>> [round(find("cosine", epochs=10)(share), 3) for share in (0.0, 0.5, 1.0)]
[1.0, 0.5, 0.0]
"""

import math
import re
from collections.abc import Callable
from functools import partial

from siftback import ConfigError

Rate = Callable[[float], float]

STEPS_AT = (0.3, 0.6, 0.8)
STEP_DIVISOR = 5.0
WARMUP = 0.2


def constant(share: float) -> float:
    """The peak rate throughout: 1.

    >>> constant(0.7)
    1.0
    """
    return 1.0


def step(share: float) -> float:
    """Divided by 5 when 0.3, 0.6 and 0.8 of the training are done.

    These are epochs 60, 120 and 160 of 200 (Jiang et al. 2019, sec. 5.1).

    >>> [round(step(share), 3) for share in (0.0, 0.3, 0.6, 0.8)]
    [1.0, 0.2, 0.04, 0.008]
    """
    return STEP_DIVISOR ** -sum(share >= at for at in STEPS_AT)


def cosine(share: float) -> float:
    """Half a cosine from the peak to 0: (1 + cos(pi * share)) / 2 (Loshchilov & Hutter 2017).

    >>> cosine(1.0)
    0.0
    """
    return (1 + math.cos(math.pi * min(share, 1.0))) / 2


def onecycle(share: float) -> float:
    """A straight line from 0 to the peak at 0.2, then one down to 0 at 1.0 (Smith 2018).

    >>> [onecycle(share) for share in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return min(share / WARMUP, max(0.0, 1 - share) / (1 - WARMUP))


RATES: dict[str, Rate] = {
    "step": step,
    "cosine": cosine,
    "onecycle": onecycle,
    "constant": constant,
}

STEPS = "steps:AT,...xFACTOR"


def steps(share: float, at: tuple[float, ...], factor: float) -> float:
    """Multiplied with a factor whenever one of some shares of the training is done.

    >>> [round(steps(share, at=(0.5, 0.75), factor=0.1), 3) for share in (0.2, 0.5, 0.9)]
    [1.0, 0.1, 0.01]
    """
    return factor ** sum(share >= each for each in at)


def find(name: str, epochs: float | None) -> Rate:
    """The schedule of a name.

    ``steps:60,120,160x0.2`` multiplies the rate with 0.2 when 60, 120 and 160 epochs are done;
    numbers below 1 are shares of the training, as in ``steps:0.5,0.75x0.1``. In a run of a given
    cost, and in Traditional of the same budget, an epoch is that share of their own training
    which it is of ``epochs``.

    Args:
        name: One of ``RATES``, or ``steps:...``.
        epochs: Length of the training; None where it is not told in epochs.

    Raises:
        ConfigError: Where there is none of that name, or it needs a length in epochs.

    >>> rate = find("steps:60,120,160x0.2", epochs=200)
    >>> [round(rate(epoch / 200), 3) for epoch in (0, 60, 120, 160)]
    [1.0, 0.2, 0.04, 0.008]
    """
    if name in RATES:
        return RATES[name]
    number = r"\d+(?:\.\d*)?|\.\d+"
    found = re.fullmatch(rf"steps:((?:{number})(?:,(?:{number}))*)x({number})", name)
    if found is None:
        raise ConfigError(
            f"no schedule {name!r}: give one of {', '.join(RATES)}, or {STEPS}, such as "
            "steps:60,120,160x0.2 in epochs or steps:0.5,0.75x0.1 in shares of the training"
        )
    at, factor = [float(each) for each in found[1].split(",")], float(found[2])
    shares = max(at) < 1
    if at != sorted(set(at)) or not at[0] > 0 or (not shares and at[0] < 1):
        raise ConfigError(
            f"schedule {name!r}: give ascending numbers, all of them epochs (1 or more) or all of "
            "them shares of the training (above 0, below 1)"
        )
    if not 0 < factor < 1:
        raise ConfigError(f"schedule {name!r}: give a factor between 0 and 1")
    length = 1 if shares else epochs
    if length is None:
        raise ConfigError(
            f"schedule {name!r} in a training whose length is not told in epochs: give its steps "
            "as shares of the training, such as steps:0.5,0.75x0.1"
        )
    return partial(steps, at=tuple(each / length for each in at), factor=factor)
