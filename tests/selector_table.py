"""Every selector of the library: how it is made, and all selections that its paper allows."""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

import selections as slow
from siftback import InBatchRank, Kath18, Percentile, SoftTopK, Threshold, TopK, Unbiased, Uniform
from siftback.state import seal
from toys import All

FLOOR, TEMPERATURE = 0.2, 0.8


@dataclass(frozen=True)
class Row:
    """A selector: how it is made from a share, and every first selection that it may make.

    Attributes:
        make: ``make(keep)``.
        outcomes: ``outcomes(scores, keep, k)``, see `selections`.
        keeps: Whether the share kept is the one asked for; not where a threshold is fixed, or
            draws come up twice.
        exact: Whether it always keeps exactly k.
        floor: What is kept beyond the share, of what is left.
    """

    make: Callable[[float], Any]
    outcomes: Callable[[list[float], float, int], Iterable[slow.Outcome]]
    keeps: bool = True
    exact: bool = False
    floor: float = 0.0


def ones(scores):
    return [1.0] * len(scores)


def beta(keep):
    return 1 / keep - 1


def started(**arguments):
    """Past its variable start."""

    def make(keep):
        selector = Kath18(keep=keep, threshold=0, **arguments)
        selector.load_state_dict(seal(selector.state_dict() | {"tau": torch.tensor(1.5)}))
        return selector

    return make


def proportional(scores, keep, count, reweight):
    probabilities = slow.in_proportion(scores, count)
    weights = [count / (len(scores) * probability) for probability in probabilities]
    return slow.systematic(probabilities, weights if reweight else ones(scores))


def horvitz_thompson(scores, keep, count):
    probabilities = [FLOOR + (1 - FLOOR) * p for p in slow.power_probabilities(scores, beta(keep))]
    share = FLOOR + (1 - FLOOR) * keep
    return slow.independent(probabilities, [share / probability for probability in probabilities])


def floored_top(scores, keep, count):
    tops = [slow.moment(list(slow.highest(scores, count)), r, 1) for r in range(len(scores))]
    probabilities = [FLOOR + (1 - FLOOR) * p for p in tops]
    share = FLOOR + (1 - FLOOR) * keep
    return slow.independent(probabilities, [share / probability for probability in probabilities])


FAMILY = {
    "percentile": Row(
        lambda keep: Percentile(keep=keep, history=50),
        lambda s, keep, k: slow.independent(slow.power_probabilities(s, beta(keep)), ones(s)),
    ),
    "uniform": Row(
        lambda keep: Uniform(keep=keep), lambda s, keep, k: slow.independent([keep] * 6, ones(s))
    ),
    "all": Row(
        lambda keep: All(), lambda s, keep, k: slow.independent(ones(s), ones(s)), keeps=False
    ),
    "kath18": Row(
        started(), lambda s, keep, k: slow.with_replacement(s, k, reweight=True), keeps=False
    ),
    "kath18, not reweighted": Row(
        started(reweight=False),
        lambda s, keep, k: slow.with_replacement(s, k, reweight=False),
        keeps=False,
    ),
    "kath18 without replacement": Row(
        started(replace=False), functools.partial(proportional, reweight=True), exact=True
    ),
    "kath18 without replacement, not reweighted": Row(
        started(replace=False, reweight=False),
        functools.partial(proportional, reweight=False),
        exact=True,
    ),
    "kath18 before its start": Row(
        lambda keep: Kath18(keep=keep), lambda s, keep, k: slow.uniform_draw(6, k), exact=True
    ),
    "top-k": Row(lambda keep: TopK(keep=keep), lambda s, keep, k: slow.highest(s, k), exact=True),
    "soft top-k": Row(
        lambda keep: SoftTopK(keep=keep, temperature=TEMPERATURE),
        lambda s, keep, k: slow.successive([math.exp(x / TEMPERATURE) for x in s], k),
        exact=True,
    ),
    "in-batch rank": Row(
        lambda keep: InBatchRank(keep=keep),
        lambda s, keep, k: slow.systematic(
            slow.in_proportion(slow.power_probabilities(s, beta(keep)), k), ones(s)
        ),
        exact=True,
    ),
    "fixed threshold": Row(
        lambda keep: Threshold(above=1.0),
        lambda s, keep, k: slow.independent([float(x > 1) for x in s], ones(s)),
        keeps=False,
    ),
    "moving threshold": Row(
        lambda keep: Threshold(keep=keep, history=50),
        lambda s, keep, k: slow.independent(slow.quantile_probabilities(s, keep), ones(s)),
    ),
    "unbiased": Row(
        lambda keep: Unbiased(Percentile(keep=keep, history=50), floor=FLOOR),
        horvitz_thompson,
        floor=FLOOR,
    ),
    "unbiased, self-normalised": Row(
        lambda keep: Unbiased(Percentile(keep=keep, history=50), floor=FLOOR, self_normalised=True),
        lambda s, keep, k: slow.normalised(horvitz_thompson(s, keep, k)),
        floor=FLOOR,
    ),
    "unbiased top-k": Row(
        lambda keep: Unbiased(TopK(keep=keep), floor=FLOOR), floored_top, floor=FLOOR
    ),
}
