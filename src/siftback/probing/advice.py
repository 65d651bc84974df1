"""Recommendations from measurements, including not to select at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from siftback.probing.agreement import Agreement
from siftback.probing.costs import EPOCHS, MEMORY, SB, SINGLE_PASS, CostRow, Seconds

PAYS = 1.1
"""Minimum speed-up per epoch over plain training at which a strategy is worthwhile."""

AGREES = 0.8
"""Minimum rank correlation with the exact scores at which cheap scores can replace them."""

CAVEAT = (
    "Faster per epoch is not better per second: compare with plain training cut to the same time "
    "(siftback compare --budget) before you rely on it. In this project's records scores that are "
    "free beat those of a second forward; selection seldom paid in very few epochs, or on wrong "
    "labels without a NoiseGuard."
)


class Bound(StrEnum):
    """The reason why selection, or a scoring pass, does not pay off."""

    LOADING = "loading"
    OPTIMIZER = "optimizer"
    OVERHEAD = "overhead"
    FORWARD = "forward"


@dataclass(frozen=True)
class Advice:
    """A recommendation, which `advice_line` and `advice_details` put in words.

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
    rows: Sequence[CostRow],
    agreement: Mapping[str, Agreement],
    keeps: Sequence[float],
) -> Advice:
    """Recommends a strategy, or none, at the share kept that is nearest to a third.

    If examples that are left out are not read, `MEMORY` is recommended, which chooses before
    reading; otherwise the alternative, or none. There is no alternative if loading takes more than
    half of the time, if the fastest is less than `PAYS` times as fast as plain training, or if
    the loader's own part of a selection by scores takes more than a quarter of a training step.
    Nothing is recommended if the optimizer takes more than half of one, or if that part does and
    `MEMORY` too is less than `PAYS` times as fast.

    Args:
        seconds: The measurements.
        rows: Costs computed from them.
        agreement: Agreement by scorer.
        keeps: The shares measured.

    >>> from siftback.probing.costs import cost_rows
    >>> parts = Seconds(0.1, 1.0, 2.0, 0.1, 0.01, 0.01, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> advice = advise(parts, cost_rows(parts, [0.5, 0.3]), {}, [0.5, 0.3])
    >>> advice.strategy, advice.alternative, advice.bound_by
    ('sb-memory', 'sb', None)
    """
    keep = min(keeps, key=lambda share: abs(share - 1 / 3))
    speeds = {row.strategy: row.measured for row in rows if row.keep == keep}
    before_reading = MEMORY if seconds.reads_chosen_only else None
    if seconds.loading_share > 1 / 2:
        return Advice(before_reading, keep, Bound.LOADING, None)
    if seconds.optimizer > seconds.training / 2:
        return Advice(None, keep, Bound.OPTIMIZER, None)
    if seconds.choosing > seconds.training / 4:
        first = before_reading if speeds[MEMORY] >= PAYS else None
        return Advice(first, keep, Bound.OVERHEAD, None)
    # The single pass's scores are the training losses themselves.
    trusted = {SB, SINGLE_PASS}
    trusted |= {name for name, a in agreement.items() if (a.rank_correlation or 0) >= AGREES}
    best = max((name for name in speeds if name in trusted), key=speeds.__getitem__)
    if speeds[best] < PAYS:
        return Advice(before_reading, keep, Bound.FORWARD, None)
    return Advice(before_reading or best, keep, None, best)


_CALLS = {
    MEMORY: "SelectiveLoader(loader, memory=Memory(keep={keep:.2g}))",
    SB: "SelectiveLoader(loader, model, loss_fn, keep={keep:.2g})",
    SINGLE_PASS: "SinglePass(model, loss_fn, keep={keep:.2g}, steps_per_epoch=len(loader))",
}
_CALL_BY_SCORER = "SelectiveLoader(loader, model, loss_fn, keep={keep:.2g}, scorer={scorer})"
_SAVES = (
    "Write {call}: it saves {training:.0%} of the time of {epochs} epochs, and {epoch:.0%} of that "
    "of an epoch that selects."
)
_OF_A_PASS = "Write {call}: a pass takes {epoch:.0%} less time. Ask for fewer epochs, and compare."
_PAYS_NOT = {
    Bound.LOADING: "loading takes {loading_share:.0%} of the time",
    Bound.OPTIMIZER: "the optimizer takes {optimizer_share:.0%} of a training step",
    Bound.OVERHEAD: "choosing alone takes {choosing_share:.0%} of the time of a training step",
    Bound.FORWARD: "scores take {scores_share:.0%} of the time of a training step",
}


def advice_line(
    advice: Advice, seconds: Seconds, rows: Sequence[CostRow], epochs: int = EPOCHS
) -> str:
    """Returns the answer in a sentence: the call to write and what it saves, or that none pays.

    Args:
        advice: The recommendation.
        seconds: The measurements.
        rows: Costs computed from them.
        epochs: Length of the training that ``CostRow.training`` is of.

    >>> from siftback.probing.costs import cost_rows
    >>> parts = Seconds(0.1, 1.0, 2.0, 0.1, 0.01, 0.01, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> table = cost_rows(parts, [0.5])
    >>> line = advice_line(advise(parts, table, {}, [0.5]), parts, table)
    >>> line.partition(":")[0]
    'Write SelectiveLoader(loader, memory=Memory(keep=0.5))'
    """
    if advice.strategy is None:
        assert advice.bound_by  # or there would be a strategy
        reason = _PAYS_NOT[advice.bound_by].format(
            loading_share=seconds.loading_share,
            optimizer_share=seconds.optimizer / seconds.training,
            choosing_share=seconds.choosing / seconds.training,
            scores_share=seconds.scores[SB] / seconds.training,
        )
        return f"Selection does not pay here: {reason}."
    call = _call_of(advice.strategy, advice.keep)
    row = next(r for r in rows if (r.strategy, r.keep) == (advice.strategy, advice.keep))
    saved = {"training": 1 - 1 / row.training, "epoch": 1 - 1 / row.measured}
    text = _OF_A_PASS if advice.strategy == MEMORY else _SAVES
    return text.format(call=call, epochs=epochs, **saved)


def _call_of(strategy: str, keep: float) -> str:
    call = _CALLS.get(strategy, _CALL_BY_SCORER)
    return call.format(keep=keep, scorer=strategy.removeprefix("sb-"))


_MEMORY_FIRST = (
    "It chooses before reading: it makes no scoring pass and does not read what it leaves out; the "
    "first epochs are on everything."
)
_REASONS = {
    Bound.LOADING: (
        "Do not use {what} here: loading takes {loading:.3g} ms per batch and training on it "
        "{training:.3g} ms, and a scoring pass must load every example too. Load faster: more "
        "workers, data decoded or cached once."
    ),
    Bound.OPTIMIZER: (
        "Do not use {what} here: the optimizer takes {optimizer_share:.0%} of a training step, so "
        "what an epoch saves is mostly steps, which a larger batch saves without leaving any out."
    ),
    Bound.OVERHEAD: (
        "Do not use {what} here: the model is so small that choosing alone takes {choosing:.3g} ms "
        "per batch, and training on it {training:.3g} ms. Plain training with larger batches is "
        "hard to beat."
    ),
    Bound.FORWARD: (
        "Do not use {what} here: the forward is too expensive. Scores take {scores:.3g} ms per "
        "batch and a training step {training:.3g} ms; at keep {keep:.2f} Selective-Backprop is "
        "{sb.measured:.2f} times as fast as plain training, and it {pays}."
    ),
}
_ALTERNATIVE = (
    "{start} {call}, the fastest with scores that are exact or agree with the exact ones: "
    "at keep {keep:.2f} an epoch is {best.measured:.2f} times as fast"
)
_TRACING = "A single pass traces the model once, which took {seconds:.1f} s."
_MAP_STYLE = (
    "Over a map-style data set, Memory() would choose before reading: no scoring pass, and what is "
    "left out is not read."
)


def advice_details(
    advice: Advice,
    seconds: Seconds,
    rows: Sequence[CostRow],
    seconds_compiling: float | None = None,
) -> list[str]:
    """Returns sentences that follow `advice_line`: the numbers behind it, and what they leave open.

    Args:
        advice: The recommendation.
        seconds: The measurements.
        rows: Costs computed from them.
        seconds_compiling: Seconds that the single pass took once; None if it was not measured.

    >>> from siftback.probing.costs import cost_rows
    >>> parts = Seconds(0.1, 1.0, 2.0, 4.0, 0.01, 0.01, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> table = cost_rows(parts, [0.5])
    >>> advice_details(advise(parts, table, {}, [0.5]), parts, table)[0].partition(":")[0]
    'Do not use selection here'
    """
    by_strategy = {row.strategy: row for row in rows if row.keep == advice.keep}
    even, sentences = by_strategy[SB].break_even, []
    if advice.strategy == MEMORY:
        sentences.append(_MEMORY_FIRST)
    if advice.bound_by is not None:
        reason = _REASONS[advice.bound_by].format(
            what="a scoring pass" if advice.strategy else "selection",
            loading=1000 * seconds.loading,
            training=1000 * seconds.training,
            choosing=1000 * seconds.choosing,
            scores=1000 * seconds.scores[SB],
            optimizer_share=seconds.optimizer / seconds.training,
            keep=advice.keep,
            sb=by_strategy[SB],
            pays=f"pays below keep {even:.2f}" if even else "pays at no keep",
        )
        sentences.append(reason)
    if advice.alternative is not None:
        best = by_strategy[advice.alternative]
        start = "Try" if advice.strategy == best.strategy else "To score every batch, use"
        call = _call_of(advice.alternative, advice.keep)
        text = _ALTERNATIVE.format(start=start, call=call, best=best, keep=advice.keep)
        below = best.break_even or 1.0
        sentences.append(text + (f", and it pays below keep {below:.2f}." if below < 1 else "."))
    if seconds_compiling is not None and SINGLE_PASS in (advice.strategy, advice.alternative):
        sentences.append(_TRACING.format(seconds=seconds_compiling))
    if not seconds.reads_chosen_only and advice.bound_by not in (Bound.OPTIMIZER, Bound.OVERHEAD):
        sentences.append(_MAP_STYLE)
    return [*sentences, CAVEAT]
