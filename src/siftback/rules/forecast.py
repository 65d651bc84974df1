"""The budget ratio to expect of selection by remembered losses, from these losses themselves."""

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from siftback.arguments import check_number
from siftback.draws.ratio_draw import ratio_probabilities
from siftback.errors import ConfigError, LossError
from siftback.tensor_arguments import check_tensor

# Fitted by `benchmarks/forecast.py` to what `results/{pays,map,forecast}` record, which
# also says how far a forecast is off on a data set that it was not fitted to.
SLOPE = 0.517
SPREAD = 1.49

# Beyond these nothing is forecast: the most concentrated losses that were recorded, and the longest
# training of which a forecast comes nearer to what was measured than a ratio of 1.
LEAST_SHARE = 0.19
MOST_EPOCHS = 4.0

LEAST_LOSSES = 1000
FLOOR = 0.1  # of `Memory`, by default


@dataclass(frozen=True)
class Forecast:
    """The budget ratio to expect of ``Memory()``.

    Attributes:
        ratio: What the budget of plain training would have to be for the same error, over the
            budget; NaN where it cannot be told.
        low: The lower end of its interval of 90 %; 0 where it cannot be told.
        high: The upper end; infinite where it cannot be told.
        share: The effective share of the losses; NaN where too few are known.
        reason: Why it cannot be told, empty where it can.

    >>> print(Forecast(1.5, 1.0, 2.2, share=0.3))
    Memory() is expected to be worth 1.5 times the budget (1.0 to 2.2)
    >>> print(Forecast.untold("12 losses are too few"))
    What Memory is worth cannot be told: 12 losses are too few
    """

    ratio: float
    low: float
    high: float
    share: float
    reason: str = ""

    @classmethod
    def untold(cls, reason: str, share: float = math.nan) -> Self:
        """Returns a forecast that tells nothing.

        Args:
            reason: Why.
            share: The effective share of the losses.
        """
        return cls(math.nan, 0.0, math.inf, share, reason)

    def to_dict(self) -> dict[str, float | str | None]:
        """All of it as plain data for JSON, None for what cannot be told."""
        numbers = {name: getattr(self, name) for name in ("ratio", "low", "high", "share")}
        told = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        return {**told, "reason": self.reason}

    def __str__(self) -> str:
        if self.reason:
            return f"What Memory is worth cannot be told: {self.reason}"
        return (
            f"Memory() is expected to be worth {self.ratio:.1f} times the budget "
            f"({self.low:.1f} to {self.high:.1f})"
        )


def forecast(losses: Tensor, *, epochs: float, done: float = 1.0) -> Forecast:
    """Forecasts what ``Memory()`` is worth, by the losses at the end of its warm-up.

    Its budget ratio is the budget that plain training would need for the same error, over the
    budget that both have. It is expected to rise with the concentration of the losses, whose
    measure is the share that would be drawn by them::

        share     = mean of max(0.1, min(1, loss / mean loss))
        bound     = done / epochs + (1 - done / epochs) / share
        log ratio = SLOPE * log bound

    The bound is what the ratio would be if examples that are left out taught nothing: the epochs
    that the training goes through over those of its budget. The slope was fitted to the data sets
    and models of the recipes ``pays`` and ``map``, and the interval is as wide as errors on data
    sets that were left out of the fit ask for.

    Args:
        losses: float[N], at least 0, of any scale and in any order; those that are NaN are not
            known, and do not count. In the first epoch each is of an example that the model was
            not trained on before.
        epochs: Length of the training, in epochs.
        done: Epochs of it that are done.

    Returns:
        A `Forecast`. Nothing is told before the end of the first epoch, by fewer than 1,000
        losses, of a training of more than 4 epochs, of which forecasts were no nearer to what was
        measured than a ratio of 1, or of losses that are more concentrated than those that were
        recorded. Neither wrong labels nor data on which more epochs make plain training worse
        are recognized: there it may promise too much.

    Raises:
        ConfigError: If ``epochs`` is not above 0, or ``done`` not from 0 to below ``epochs``.
        LossError: If losses are not float[N], or one is negative or infinite.

    >>> import torch
    >>> losses = torch.rand(5000, generator=torch.Generator().manual_seed(0)) ** 3
    >>> print(forecast(losses, epochs=4))
    Memory() is expected to be worth 1.3 times the budget (0.9 to 1.9)
    >>> print(forecast(losses, epochs=100))
    What Memory is worth cannot be told: 100 epochs are more than the 4 up to which forecasts were \
nearer to what was measured than a ratio of 1
    """
    check_number("epochs", epochs, above=0)
    if not check_number("done", done, least=0) < epochs:
        raise ConfigError(f"done={done:g} of epochs={epochs:g}: give fewer than there are")
    check_tensor("losses", losses, "float", "N", advice=", one for each example", error=LossError)
    known = losses.detach()[~losses.isnan()].double()
    if bool(((known < 0) | known.isinf()).any()):
        raise LossError(
            f"losses from {known.min():g} to {known.max():g}: give finite losses, at least 0, and "
            "NaN where a loss is not known"
        )
    share, reason = effective_share(known), ""
    if done < 1:
        reason = f"{done:.0%} of the first epoch is done, and all of it is needed"
    elif epochs > MOST_EPOCHS:
        reason = (
            f"{epochs:g} epochs are more than the {MOST_EPOCHS:g} up to which forecasts were "
            "nearer to what was measured than a ratio of 1"
        )
    elif len(known) < LEAST_LOSSES:
        reason = f"{len(known):,} losses are known, and {LEAST_LOSSES:,} are needed"
    elif share < LEAST_SHARE:
        reason = (
            f"losses of an effective share of {share:.2f} are more concentrated than those that "
            f"were recorded, of {LEAST_SHARE:.2f} or more"
        )
    if reason:
        return Forecast.untold(reason, share)
    ratio = (done / epochs + (1 - done / epochs) / share) ** SLOPE
    return Forecast(ratio, ratio / SPREAD, ratio * SPREAD, share)


def effective_share(losses: Tensor) -> float:
    """Returns the share that would be drawn: the mean of ``max(0.1, min(1, loss / mean loss))``.

    Args:
        losses: float[N], at least 0.

    >>> import torch
    >>> effective_share(torch.tensor([1.0, 1.0])), effective_share(torch.tensor([0.0, 1.0]))
    (1.0, 0.55)
    """
    return float(ratio_probabilities(losses, FLOOR).mean())
