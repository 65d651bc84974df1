"""The share that each strategy keeps, by percentile of the score: simulated with the library."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from siftback import EpochRule, RefreshedRule, Selection, TopK, Uniform
from siftback.lab.settings import Settings
from siftback.lab.strategies.strategy import Strategy
from siftback.lab.strategies.table import STRATEGIES
from siftback.language import dft_weights, inverse_probability_weights, linupper_weights
from siftback.pruning import prune

BINS = 20
CLASSES = 10
KEEP = 1 / 3
EXAMPLES = 2000
BATCHES, WARM = 140, 20  # of which the first fill histories and moving averages
SLIDES = (0, 2, 7)  # draws of a window that slides: its first, its third and its last place
EPOCHS, FIRST = 24, 6  # those shown begin once the rules have seen some
SETTINGS = Settings("mnist", epochs=EPOCHS)
FALL, NOISE = 0.95, 0.02  # an epoch multiplies each loss by the first, and varies it by the second

_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "linupper": linupper_weights,
    "dft": dft_weights,
    "inverse-probability": inverse_probability_weights,
}


class Kept(NamedTuple):
    """The share kept of each twentieth of the examples, from the lowest scores to the highest.

    Attributes:
        title: Of which draws, if not of all.
        shares: The share kept of each.
        weights: The mean weight of each, 0 for those left out; None where all that is kept has 1.
    """

    title: str
    shares: Sequence[float]
    weights: Sequence[float] | None


@cache
def losses() -> Tensor:
    """float32[examples], ascending: log-normal, with a few high ones, as of a network half trained.

    >>> round(losses().median().item(), 2), round(losses().mean().item(), 2)
    (0.1, 0.31)
    """
    normal = NormalDist()
    middle = [normal.inv_cdf((place + 0.5) / EXAMPLES) for place in range(EXAMPLES)]
    return 0.1 * torch.tensor(middle).mul(1.5).exp()


@cache
def kept_by(name: str) -> Sequence[Kept]:
    """Returns what a strategy keeps: one picture, or several where the epochs differ."""
    strategy = STRATEGIES[name]
    if strategy.tokens is not None:
        choice = Uniform(keep=KEEP) if strategy.tokens == "random" else TopK(keep=KEEP)
    else:
        choice = strategy.choice(KEEP, SETTINGS)
    if isinstance(choice, EpochRule):
        return _of_rule(choice, strategy)
    if choice is not None:
        size = strategy.selection_batch(KEEP, SETTINGS)
        count = round(KEEP * size) if strategy.moment.fills_batches else None
        return [_of_batches(partial(choice.select, count=count), strategy)]
    if strategy.weighted is not None:
        return [_of_batches(partial(_all, _WEIGHTS[name]), strategy)]
    if strategy.prunes:
        return [_kept("", left := _pruned(strategy).float(), left, torch.ones(EXAMPLES))]
    return []


def _all(
    weigh: Callable[[Tensor], Tensor], scores: Tensor, generator: torch.Generator
) -> Selection:
    return Selection(torch.arange(len(scores)), weigh(scores))


def _pruned(strategy: Strategy) -> Tensor:
    """bool[examples], those that are left."""
    left = torch.zeros(EXAMPLES, dtype=torch.bool)
    left[prune(losses(), drop=strategy.dropped(KEEP))] = True
    return left


def _of_batches(choose: Callable[[Tensor, torch.Generator], Selection], strategy: Strategy) -> Kept:
    """Batches of random examples, of those that pruning left."""
    generator = torch.Generator().manual_seed(0)
    scores, offered = losses(), torch.zeros(EXAMPLES)
    left = _pruned(strategy).nonzero().flatten()
    gone = torch.ones(EXAMPLES)
    gone[left] = 0
    kept, weighed = torch.zeros(EXAMPLES), torch.zeros(EXAMPLES)
    size = strategy.selection_batch(KEEP, SETTINGS)
    for batch in range(BATCHES):
        chosen = left[torch.randperm(len(left), generator=generator)[:size]]
        positions, weights = choose(scores[chosen], generator)
        if batch >= WARM:
            offered[chosen] += 1
            kept[chosen[positions]] += 1
            weighed[chosen[positions]] += weights
    return _kept("", kept, weighed, offered + gone * offered.max())


def _of_rule(rule: EpochRule, strategy: Strategy) -> Sequence[Kept]:
    """Epochs of a training in which losses fall, those of what is not read staying unknown."""
    rule.grow(EXAMPLES)
    if rule.needs_labels:
        rule.set_labels(torch.arange(EXAMPLES) % CLASSES)
    generator = torch.Generator().manual_seed(0)
    everyone, drawn = torch.arange(EXAMPLES), []
    for epoch in range(EPOCHS):
        noise = 1 + NOISE * torch.randn(EXAMPLES, generator=generator)
        now = losses() * FALL**epoch * noise
        weights = torch.ones(EXAMPLES)
        if isinstance(rule, RefreshedRule) and rule.is_pass(epoch):
            rule.rescore(everyone, now, epoch)
        elif epoch:
            weights = rule.draw(epoch, generator)
            drawn.append(weights)
        learned = everyone if strategy.forwards_left_out else weights.nonzero().flatten()
        guesses = {}
        if rule.needs_predictions:
            label = now[learned].neg().exp()  # the label's probability
            guesses = {"correct": label > 0.5, "confidence": label.maximum(1 - label)}
        rule.update(learned, now[learned], epoch, **guesses)
    shown = drawn[FIRST:]
    if strategy.name == "seta":  # its window slides
        return [_drawn(f"draw {draw + 1}", [drawn[draw]]) for draw in SLIDES]
    return [_drawn("", shown)]


def _drawn(title: str, draws: Sequence[Tensor]) -> Kept:
    kept, weighed = torch.zeros(EXAMPLES), torch.zeros(EXAMPLES)
    for weights in draws:
        kept += weights > 0
        weighed += weights
    return _kept(title, kept, weighed, torch.full([EXAMPLES], float(len(draws))))


def _kept(title: str, kept: Tensor, weighed: Tensor, offered: Tensor) -> Kept:
    """Weights are left out where there are none but 1."""
    of_bin = _summed(offered)
    shares, weights = _summed(kept) / of_bin, _summed(weighed) / of_bin
    plain = torch.allclose(shares, weights)
    return Kept(title, shares.tolist(), None if plain else weights.tolist())


def _summed(values: Tensor) -> Tensor:
    return values.view(BINS, -1).sum(1)
