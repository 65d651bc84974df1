"""The strategies that the laboratory compares, one table."""

import re
from dataclasses import replace
from typing import Any

import torch

from siftback import (
    IES,
    RS2,
    UCB,
    EpochRule,
    Epochs,
    Ewma,
    Fresh,
    GradientBound,
    InBatchRank,
    InfoBatch,
    Irreducible,
    Kakurenbo,
    Kath18,
    Memory,
    Percentile,
    RatioMemory,
    Reduced,
    Scorer,
    Selector,
    SeTa,
    Share,
    SoftTopK,
    Stale,
    TopK,
    Uniform,
)
from siftback.contrib import Downsampled, GaussianProcess, Int8, Proxy
from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import DataSet, Kind
from siftback.lab.forward import autocast_of, memory_format_of, training_device
from siftback.lab.records.formatting import one_of
from siftback.lab.settings import Settings
from siftback.lab.training.ideal_cost import IdealCost
from siftback.lab.training.loss_strategies import LOSS_STRATEGIES
from siftback.lab.training.rule_schedule import warmup_share
from siftback.lab.training.strategy import Strategy
from siftback.lab.training.weighted_memory import WeightedMemory


def _percentile(keep: float, settings: Settings) -> Selector:
    return Percentile(keep=keep, history=settings.history)


def _uniform(keep: float, settings: Settings) -> Selector:
    return Uniform(keep=keep)


def _memory(keep: float, settings: Settings) -> Memory:
    return Memory(keep, **_of_memory(settings))


def _weighted_memory(keep: float, settings: Settings) -> Memory:
    return WeightedMemory(keep, **_of_memory(settings))


def _annealed_memory(keep: float, settings: Settings) -> Memory:
    """Its weights are whole once the training ends."""
    epochs = settings.epochs
    if settings.budget is not None:  # as `rule_schedule` spreads it
        warmup = warmup_share(settings)
        epochs = settings.budget * (warmup + (1 - warmup) / keep)
    if epochs is None:
        raise ConfigError("its weights rise over a known number of epochs: give epochs or budget")
    return WeightedMemory(keep, epochs=epochs - 1, **_of_memory(settings))


def _of_memory(settings: Settings) -> dict[str, Any]:
    return {
        "floor": settings.floor,
        "warmup": settings.warmup or Epochs(0),
        "tail": Share(settings.tail),
        "decay": settings.decay,
    }


def _stale(keep: float, settings: Settings) -> Stale:
    return Stale(keep, every=settings.stale_every, scorer=_fresh(settings))


# What the share to keep is to the other rules. When selection is on, the laboratory's schedule
# says, so that their own warm-ups and tails are off here.


def _infobatch(keep: float, settings: Settings) -> EpochRule:
    """Its r is the share pruned of those below the mean alone: more than ``keep`` stay."""
    return InfoBatch(ratio=1 - keep, delta=1.0)


def _ratio_memory(keep: float, settings: Settings) -> EpochRule:
    """Any share may stay, of at least the floor."""
    return RatioMemory(floor=settings.floor)


def _kakurenbo(keep: float, settings: Settings) -> EpochRule:
    """Its F is the most that it hides: ``keep`` is the least that stays."""
    return Kakurenbo(ratio=1 - keep)


def _seta(keep: float, settings: Settings) -> EpochRule:
    """The window is that share of the groups, whose sizes differ: any share may stay."""
    return SeTa(window=keep, delta=1.0)


def _ies(keep: float, settings: Settings) -> EpochRule:
    """A threshold decides: ``keep`` is the least that stays."""
    return IES(keep=min(keep, 0.999))


def _fresh(settings: Settings) -> Fresh:
    return Fresh(autocast=autocast_of(settings), compile=settings.compile)


def _proxy(settings: Settings, data: DataSet) -> Scorer:
    """A `cnn`, half as wide as the model if that is one too, and at its rate after the peak."""
    width = models.MODELS["cnn"].width
    if settings.model == "cnn":
        width = max(1, (settings.width or width) // 2)
    # Its weights are drawn aside, so that the run's random state is that of every strategy.
    with torch.random.fork_rng([]):
        small = models.build(
            "cnn",
            width=width,
            classes=data.classes,
            channels=data.model_sizes["channels"],
            norm=settings.norm,
        )
    small.to(training_device(settings), memory_format=memory_format_of(settings))  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        small.parameters(),
        lr=settings.lr / 5,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    return Proxy(small, optimizer, _fresh(settings))


# What Diet-SB prunes in all of its runs, those of 1/2 and of 3/8 kept in all: its table 1.
DIET = 0.25


def _diet(keep: float) -> float:
    return min(DIET, 1 - keep)


def _table(*strategies: Strategy) -> dict[str, Strategy]:
    return {strategy.name: strategy for strategy in strategies}


# What they cost. Traditional keeps everything; "the run it is matched to" is what `matched` costs.
_TRADITIONAL = IdealCost(offered=3)
_MATCHED = IdealCost(note="that of the run it is matched to")
_SCORED = IdealCost(3, offered=1)
_KEPT = IdealCost(3)
_FORWARDED = IdealCost(2, offered=1)
_STALE = IdealCost(3, offered=1, interval=None)
_CHEAP = IdealCost(3, offered=1, cheap_scores=True)
_APART = "scoring apart"

# How long they train on everything at first, where not for one epoch. Other rules see to it.
_OF_MEMORY, _AT_ONCE = Share(0.15), Epochs(0)

_IMAGES: tuple[Kind, ...] = ("images",)
_OF_A_CLASS: tuple[Kind, ...] = ("images", "texts")


STRATEGIES = _table(
    Strategy("traditional", "every example, every epoch", _TRADITIONAL),
    Strategy(
        "sb",
        "Selective-Backprop: a forward pass scores each example, high losses are kept",
        _SCORED,
        _percentile,
    ),
    Strategy(
        "random",
        "Random-Backprop: a random share of the examples, no scores",
        _KEPT,
        _uniform,
    ),
    Strategy(
        "sb-single-pass",
        "Selective-Backprop with one forward: its kept rows alone are run backward",
        _FORWARDED,
        _percentile,
        single_pass=True,
    ),
    Strategy(
        "random-single-pass",
        "a forward of everything, a backward of a random share: what the scores must beat",
        _FORWARDED,
        _uniform,
        single_pass=True,
    ),
    Strategy(
        "stale-sb",
        "Stale-SB: a selection pass every n-th epoch, its losses used again in between",
        _STALE,
        rule=_stale,
    ),
    Strategy(
        "sb-memory",
        "no selection pass: examples are drawn by the loss they had when last trained on",
        _KEPT,
        warmup=_OF_MEMORY,
        rule=_memory,
    ),
    Strategy(
        "sb-memory-guarded",
        "as sb-memory, but examples whose labels stay doubtful are held back",
        _KEPT,
        warmup=_OF_MEMORY,
        rule=_memory,
        guarded=True,
    ),
    Strategy(
        "sb-memory-weighted",
        "as sb-memory, each loss weighted by one over its probability, which undoes its bias",
        _KEPT,
        warmup=_OF_MEMORY,
        rule=_weighted_memory,
    ),
    Strategy(
        "sb-memory-annealed",
        "as sb-memory-weighted, the weights rising from none to whole over the training",
        _KEPT,
        warmup=_OF_MEMORY,
        rule=_annealed_memory,
    ),
    Strategy(
        "sb-memory-ratio",
        "as sb-memory, but drawn by the loss over the mean of all, so that the share follows them",
        _KEPT,
        warmup=_OF_MEMORY,
        rule=_ratio_memory,
    ),
    Strategy(
        "sb-memory-ratio-guarded",
        "as sb-memory-ratio, but examples whose labels stay doubtful are held back",
        _KEPT,
        warmup=_OF_MEMORY,
        rule=_ratio_memory,
        guarded=True,
    ),
    Strategy(
        "sb-ewma",
        "as stale-sb, but by an average of past losses, those of training among them",
        _STALE,
        rule=lambda keep, settings: Ewma(keep, every=settings.stale_every, scorer=_fresh(settings)),
    ),
    Strategy(
        "sb-gp",
        "as sb-ewma, but by the prediction of a Gaussian process over epochs",
        _STALE,
        rule=lambda keep, settings: GaussianProcess(
            keep, every=settings.stale_every, scorer=_fresh(settings)
        ),
    ),
    Strategy(
        "sb-bf16",
        "as sb, its passes in bfloat16",
        _CHEAP,
        _percentile,
        lambda settings, data: Reduced("bf16", channels_last=True),
    ),
    Strategy(
        "sb-int8",
        "as sb, its passes in eight-bit integers",
        _CHEAP,
        _percentile,
        lambda settings, data: Int8(channels_last=True),
        kinds=_IMAGES,
    ),
    Strategy(
        "sb-small",
        "as sb, its passes on images of half the side",
        _CHEAP,
        _percentile,
        lambda settings, data: Downsampled(2, _fresh(settings)),
        kinds=_IMAGES,
    ),
    Strategy(
        "sb-proxy",
        "as sb, its passes with a smaller model that is trained alongside",
        IdealCost(3, offered=1, cheap_scores=True, proxy=3),
        _percentile,
        lambda settings, data: _proxy(settings, data),
        kinds=_IMAGES,
    ),
    Strategy(
        "sb-pipelined",
        "as sb, its passes made a step before by a replica in another process",
        IdealCost(3, offered=1, note="the 1 elsewhere"),
        _percentile,
        pipelined=True,
        kinds=_IMAGES,
    ),
    Strategy(
        "infobatch",
        "InfoBatch: of the examples below the mean loss a share is pruned, the rest weighted up",
        _KEPT,
        warmup=_AT_ONCE,
        rule=_infobatch,
        tail=0.125,
    ),
    Strategy(
        "rs2",
        "RS2: every epoch the next random subset, until all were used",
        _KEPT,
        warmup=_AT_ONCE,
        rule=lambda keep, settings: RS2(keep),
    ),
    Strategy(
        "kakurenbo",
        "KAKURENBO: hides low losses that are confidently right, and scales the learning rate",
        _FORWARDED,
        warmup=_AT_ONCE,
        rule=_kakurenbo,
        forwards_left_out=True,
        kinds=_OF_A_CLASS,
    ),
    Strategy(
        "ucb",
        "prunes the lowest upper confidence bounds of the losses an example had",
        _KEPT,
        warmup=_AT_ONCE,
        rule=lambda keep, settings: UCB(keep),
    ),
    Strategy(
        "seta",
        "SeTa: a random subset, of it a window of losses that slides from easy to hard",
        _KEPT,
        warmup=_AT_ONCE,
        rule=_seta,
        tail=0.125,
    ),
    Strategy(
        "ies",
        "IES: leaves out an example once its loss has settled",
        _FORWARDED,
        warmup=_AT_ONCE,
        rule=_ies,
        forwards_left_out=True,
    ),
    Strategy(
        "el2n",
        "pruned once: the examples of the highest EL2N scores, every epoch",
        IdealCost(3, note=_APART),
        warmup=_AT_ONCE,
        drop=lambda keep: 1 - keep,
        kinds=_OF_A_CLASS,
    ),
    Strategy(
        "diet-sb",
        f"Diet-SB: the {DIET:.0%} of lowest EL2N scores pruned once, then sb on the others",
        IdealCost(3, offered=1 - DIET, note=_APART),
        _percentile,
        drop=_diet,
        kinds=_OF_A_CLASS,
    ),
    Strategy(
        "diet-random",
        "as diet-sb, with random in place of sb",
        IdealCost(3, note=_APART),
        _uniform,
        drop=_diet,
        kinds=_OF_A_CLASS,
    ),
    Strategy(
        "kath18",
        "importance sampling by the loss once its variance reduction pays, not reweighted",
        _SCORED,
        lambda keep, settings: Kath18(keep=keep, reweight=False),
    ),
    Strategy(
        "kath18-bound",
        "as kath18, by the bound of the gradient's norm, and reweighted to be unbiased",
        _SCORED,
        lambda keep, settings: Kath18(keep=keep),
        lambda settings, data: GradientBound(
            autocast=autocast_of(settings), compile=settings.compile
        ),
    ),
    Strategy(
        "topk",
        "the highest losses of each batch",
        _SCORED,
        lambda keep, settings: TopK(keep=keep),
    ),
    Strategy(
        "rho",
        "RHO-LOSS: the highest losses less those of a model that was trained on other examples",
        IdealCost(3, offered=1, note=_APART),
        lambda keep, settings: TopK(keep=keep),
        irreducible=lambda settings, losses: Irreducible(losses, _fresh(settings)),
    ),
    Strategy(
        "soft-topk",
        "the highest of the losses of each batch plus noise",
        _SCORED,
        lambda keep, settings: SoftTopK(keep=keep),
    ),
    Strategy(
        "in-batch",
        "exactly k of each batch, by the rank of the loss within it",
        _SCORED,
        lambda keep, settings: InBatchRank(keep=keep),
    ),
    *LOSS_STRATEGIES,
    Strategy(
        "matched",
        "Traditional given the budget of a selective run, its learning rates fully decayed",
        _MATCHED,
    ),
)


def find(name: str) -> Strategy:
    """The strategy of a name; ``stale-sb-5`` is ``stale-sb`` with n = 5, whatever the settings.

    Raises:
        ConfigError: If there is none.

    >>> str(find("sb").cost), str(find("stale-sb-5").cost)
    ('1 + 3s', '1/5 + 3s')
    """
    if every := re.fullmatch(r"stale-sb-([1-9]\d{0,8})", name):
        n = int(every[1])
        return replace(
            STRATEGIES["stale-sb"],
            name=name,
            cost=replace(_STALE, interval=n),
            rule=lambda keep, settings: _stale(keep, replace(settings, stale_every=n)),
        )
    if name not in STRATEGIES:
        raise ConfigError(f"no strategy {name!r}: {one_of(name, STRATEGIES)}")
    return STRATEGIES[name]
