"""Recommendations from measurements, including not to select at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from siftback.probing.agreement import Agreement
from siftback.probing.costs import (
    EPOCHS,
    MEMORY,
    RANDOM,
    SB,
    SINGLE_PASS,
    STALE,
    TRADITIONAL,
    Row,
    Seconds,
)

PAYS = 1.1
"""Minimum speed-up per epoch over Traditional at which a strategy is worthwhile."""

AGREES = 0.8
"""Minimum rank correlation with the exact scores at which cheap scores can replace them."""

CAVEAT = (
    "Faster per epoch is not better per second: plain training of fewer epochs is as fast, and "
    "examples left out are not learned from. In this project's records, scores that are free "
    "(remembered, as sb-memory's, or the single pass's own) beat those of a second forward when "
    "Traditional gets the same budget; they did not pay in very few epochs, on wrong labels "
    "without a NoiseGuard, and where more epochs make Traditional worse. Compare at equal budget "
    "before you rely on it: siftback compare --budget, or Traditional with its schedule cut to the "
    "same time."
)


class Bound(StrEnum):
    """The reason why selection, or a scoring pass, does not pay off."""

    LOADING = "loading"
    OPTIMIZER = "optimizer"
    OVERHEAD = "overhead"
    FORWARD = "forward"


@dataclass(frozen=True)
class Advice:
    """A recommendation. `advice_text` gives it in words, with the numbers behind it.

    Attributes:
        strategy: The strategy to try first; None if selection is not worthwhile.
        keep: The share kept that the advice is for.
        bound_by: The reason why selection, or a scoring pass, does not pay off; None if it does.
        alternative: The fastest strategy that reads and scores every batch, among those with
            scores that are exact or agree with the exact ones; None if none of them pays off.
    """

    strategy: str | None
    keep: float
    bound_by: Bound | None
    alternative: str | None


def advise(
    seconds: Seconds,
    rows: Sequence[Row],
    agreement: Mapping[str, Agreement],
    keeps: Sequence[float],
) -> Advice:
    """Recommends a strategy, or none, at the share kept that is nearest to a third.

    If examples that are left out are not read, `MEMORY` is recommended, which chooses before
    reading; otherwise the alternative, or none. There is no alternative if loading takes more than
    half of the time, or if the fastest is less than `PAYS` times as fast as Traditional. Nothing
    is recommended if the optimizer takes more than half of a training step, or the loader's own
    part of a selection more than a quarter of one.

    Args:
        seconds: The measurements.
        rows: Costs computed from them.
        agreement: Agreement by scorer.
        keeps: The shares measured.

    >>> from siftback.probing.costs import rows
    >>> parts = Seconds(0.1, 1.0, 2.0, 0.1, 0.01, 0.01, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> found = advise(parts, rows(parts, [0.5, 0.3]), {}, [0.5, 0.3])
    >>> found.strategy, found.alternative, found.bound_by
    ('sb-memory', 'sb', None)
    """
    keep = min(keeps, key=lambda share: abs(share - 1 / 3))
    before_reading = MEMORY if seconds.reads_chosen_only else None
    if seconds.loading_share > 1 / 2:
        return Advice(before_reading, keep, Bound.LOADING, None)
    if seconds.optimizer > seconds.training / 2:
        return Advice(None, keep, Bound.OPTIMIZER, None)
    if seconds.choosing > seconds.training / 4:
        return Advice(None, keep, Bound.OVERHEAD, None)
    best = _best_pass(_at(rows, keep), agreement)
    if best is None or best.measured < PAYS:
        return Advice(before_reading, keep, Bound.FORWARD, None)
    return Advice(before_reading or best.strategy, keep, None, best.strategy)


def advice_text(advice: Advice, seconds: Seconds, rows: Sequence[Row], epochs: int = EPOCHS) -> str:
    """Advice in words, with the numbers behind it and what was not measured.

    Args:
        advice: The recommendation.
        seconds: The measurements.
        rows: Costs computed from them.
        epochs: Length of the training that ``Row.training`` is of.

    >>> from siftback.probing.costs import rows
    >>> parts = Seconds(0.1, 1.0, 2.0, 4.0, 0.01, 0.01, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> table = rows(parts, [0.5])
    >>> advice_text(advise(parts, table, {}, [0.5]), parts, table).partition(":")[0]
    'Do not use selection here'
    """
    found = _at(rows, advice.keep)
    sentences = [
        _MEMORY_FIRST.format(
            keep=advice.keep,
            faster=found[MEMORY].measured,
            training=found[MEMORY].training,
            epochs=epochs,
        )
        if advice.strategy == MEMORY
        else None,
        None if advice.bound_by is None else _reason(advice, seconds, found),
        _alternative(advice, found),
        None if seconds.reads_chosen_only or advice.bound_by in _IN_ANY_CASE else _MAP_STYLE,
        CAVEAT,
    ]
    return " ".join(each for each in sentences if each is not None)


# Reasons that hold for any way of loading.
_IN_ANY_CASE = (Bound.OPTIMIZER, Bound.OVERHEAD)

_MEMORY_FIRST = (
    "Try sb-memory first, which chooses before reading: it makes no scoring pass and does not read "
    "what it leaves out, so that at keep {keep:.2f} an epoch is {faster:.2f} times as fast, and a "
    "training of {epochs} epochs, of which the first are on everything, {training:.2f} times."
)
_MAP_STYLE = (
    "Over a map-style data set, sb-memory would choose before reading: no scoring pass, and what "
    "is left out is not read."
)


def _reason(advice: Advice, seconds: Seconds, rows: Mapping[str, Row]) -> str:
    """The reason why selection, or a scoring pass, does not pay off."""
    start = "Do not use " + ("selection" if advice.strategy is None else "a scoring pass") + " here"
    training = _ms(seconds.training)
    if advice.bound_by is Bound.LOADING:
        return (
            f"{start}: loading takes {_ms(seconds.loading)} per batch and training on it "
            f"{training}, and a scoring pass must load every example too. Load faster: more "
            "workers, data decoded or cached once."
        )
    if advice.bound_by is Bound.OPTIMIZER:
        return (
            f"{start}: the optimizer takes {seconds.optimizer / seconds.training:.0%} of a "
            "training step, so what an epoch saves is mostly steps, which a larger batch saves "
            "without leaving anything out."
        )
    if advice.bound_by is Bound.OVERHEAD:
        return (
            f"{start}: the model is so small that choosing alone takes {_ms(seconds.choosing)} "
            f"per batch, and training on it {training}. Plain training with larger batches is "
            "hard to beat."
        )
    even = rows[SB].break_even
    pays = f"pays below keep {even:.2f}" if even else "pays at no keep"
    return (
        f"{start}: the forward is too expensive. Scores take {_ms(seconds.scores[SB])} per batch "
        f"and a training step {training}; at keep {advice.keep:.2f} sb is "
        f"{rows[SB].measured:.2f} times as fast as Traditional, and it {pays}."
    )


def _alternative(advice: Advice, rows: Mapping[str, Row]) -> str | None:
    if advice.alternative is None:
        return None
    best = rows[advice.alternative]
    start = "Try" if advice.strategy == best.strategy else "To score every batch, use"
    text = (
        f"{start} {best.strategy}, the fastest with scores that are exact or agree with the exact "
        f"ones: at keep {advice.keep:.2f} an epoch is {best.measured:.2f} times as fast"
    )
    if best.break_even is not None and best.break_even < 1:
        text += f", and it pays below keep {best.break_even:.2f}"
    return f"{text}."


def _at(rows: Sequence[Row], keep: float) -> dict[str, Row]:
    return {row.strategy: row for row in rows if row.keep == keep}


def _best_pass(rows: Mapping[str, Row], agreement: Mapping[str, Agreement]) -> Row | None:
    """The fastest strategy that scores every batch, among those with reliable scores."""

    def is_trusted(name: str) -> bool:
        # The single pass's scores are the training losses themselves.
        if name in (SB, SINGLE_PASS):
            return True
        correlation = agreement[name].rank_correlation if name in agreement else None
        return correlation is not None and correlation >= AGREES

    others = (TRADITIONAL, STALE, MEMORY, RANDOM)
    passes = [row for name, row in rows.items() if name not in others and is_trusted(name)]
    return max(passes, key=lambda row: row.measured, default=None)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
