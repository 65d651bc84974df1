"""A plain recommendation from what was measured; and when not to select at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siftback.probing.agreement import Agreement
from siftback.probing.costs import MEMORY, RANDOM, SB, SINGLE_PASS, STALE, TRADITIONAL, Row, Seconds

PAYS = 1.1
"""Times Traditional's speed per epoch from which a strategy is worth its trouble."""

AGREES = 0.8
"""Rank correlation with the exact scores from which cheap ones stand in for them."""

CAVEAT = (
    "Faster per epoch is not better per second: plain training of fewer epochs is as fast, and "
    "examples left out are not learned from. In this project's experience so far, scores that are "
    "free (remembered, as sb-memory's, or the single pass's own) beat those of a second forward "
    "when Traditional gets the same budget. Compare at equal budget before you rely on it: "
    "siftback compare --budget, or Traditional with its schedule cut to the same time."
)


@dataclass(frozen=True)
class Advice:
    """What to do, and why.

    Attributes:
        strategy: The strategy to try first; None where selection is not worth it.
        keep: The share kept that the text speaks of.
        bound_by: What makes selection, or a selection pass, not pay: "loading", "optimizer",
            "overhead" or "forward"; None where nothing does.
        text: In plain words, with the numbers.
    """

    strategy: str | None
    keep: float
    bound_by: str | None
    text: str


def advise(
    seconds: Seconds,
    rows: Sequence[Row],
    agreement: Mapping[str, Agreement],
    keeps: Sequence[float],
) -> Advice:
    """Recommends a strategy, or none, at the share kept that is nearest to a third.

    None where more than half of the time goes into loading or more than half of a training step
    into the optimizer, or where the loader's own part of a selection takes more than a quarter of
    a training step. No selection pass where the best of those that make one, with scores that
    agree with the exact ones, is less than `PAYS` times as fast as Traditional.

    Args:
        seconds: What was measured.
        rows: What it adds up to.
        agreement: By scorer.
        keeps: The shares measured.

    >>> from siftback.probing.costs import rows
    >>> parts = Seconds(0.1, 1.0, 2.0, 0.1, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> advise(parts, rows(parts, [0.5, 0.3]), {}, [0.5, 0.3]).strategy
    'sb-memory'
    >>> slow = Seconds(9.0, 1.0, 2.0, 0.1, 0.01, 0.01, {"sb": 0.9}, {}, {})
    >>> advise(slow, rows(slow, [0.5]), {}, [0.5]).text.partition(":")[0]
    'Do not use selection here'
    """
    keep = min(keeps, key=lambda share: abs(share - 1 / 3))
    faster = {row.strategy: row for row in rows if row.keep == keep}
    memory = faster[MEMORY].measured

    def refuse(bound_by: str, why: str) -> Advice:
        return Advice(None, keep, bound_by, f"Do not use selection here: {why}. {CAVEAT}")

    if seconds.loading_share > 1 / 2:
        return refuse(
            "loading",
            f"loading takes {_ms(seconds.loading)} a batch and training on it "
            f"{_ms(seconds.training)}, and a selection pass must load every example too. Load "
            "faster first: more workers, data decoded or cached once. Only what is drawn before "
            f"it is read saves loading, and at keep {keep:.2f} would make an epoch {memory:.2f} "
            f"(sb-memory) or {faster[STALE].measured:.2f} (stale-sb) times as fast",
        )
    if seconds.optimizer > seconds.training / 2:
        return refuse(
            "optimizer",
            f"the optimizer takes {seconds.optimizer / seconds.training:.0%} of a training step, "
            "so what an epoch saves is mostly steps, which a larger batch saves without leaving "
            "anything out",
        )
    if seconds.choosing > seconds.training / 4:
        return refuse(
            "overhead",
            f"the model is so small that choosing alone takes {_ms(seconds.choosing)} a batch, "
            f"and training on it {_ms(seconds.training)}. Plain training with larger batches is "
            "hard to beat",
        )
    best = _best_pass(faster, agreement)
    first = (
        f"Try {MEMORY} first: it makes no selection pass and does not read what it leaves out, "
        f"so at keep {keep:.2f} an epoch is {memory:.2f} times as fast (it needs each example's "
        "index)"
    )
    if best is None or best.measured < PAYS:
        score = seconds.scores[SB]
        even = faster[SB].break_even
        pays = f"pays below keep {even:.2f}" if even else "pays at no keep"
        why = (
            f"Do not use a selection pass here: the forward is too dear. Scores take {_ms(score)} "
            f"a batch and a training step {_ms(seconds.training)}; at keep {keep:.2f} sb is "
            f"{faster[SB].measured:.2f} times as fast as Traditional, and it {pays}"
        )
        return Advice(MEMORY, keep, "forward", f"{why}. {first}. {CAVEAT}")
    without = (
        f"Where examples have no index, {best.strategy} is the fastest whose scores are exact or "
        f"agree with the exact ones, {best.measured:.2f} times as fast"
    )
    if best.break_even is not None and best.break_even < 1:
        without += f" (it pays below keep {best.break_even:.2f})"
    return Advice(MEMORY, keep, None, f"{first}. {without}. {CAVEAT}")


def _best_pass(faster: Mapping[str, Row], agreement: Mapping[str, Agreement]) -> Row | None:
    """The fastest strategy that scores every batch, among those whose scores can be trusted."""

    def is_trusted(name: str) -> bool:
        # The single pass's own losses are those of training: no copy of the exact ones.
        if name in (SB, SINGLE_PASS):
            return True
        correlation = agreement[name].rank_correlation if name in agreement else None
        return correlation is not None and correlation >= AGREES

    others = (TRADITIONAL, STALE, MEMORY, RANDOM)
    passes = [row for name, row in faster.items() if name not in others and is_trusted(name)]
    return max(passes, key=lambda row: row.measured, default=None)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
