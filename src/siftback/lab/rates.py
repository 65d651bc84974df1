"""Learning-rate schedules: the share of training done, to the factor of the peak rate.

Selective training takes another number of steps than was planned, so a schedule counts no steps:
it is a pure function of how much of the training is done, from 0.0 at the start to 1.0 at the
end. A share above 1, as a last batch that overshoots may give, counts as 1.

>>> [round(RATES["cosine"](share), 3) for share in (0.0, 0.5, 1.0)]
[1.0, 0.5, 0.0]
"""

import math
from collections.abc import Callable

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
