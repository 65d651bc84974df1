"""The strategies that the laboratory compares, one table."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from string import Formatter
from typing import Any, cast

from torch import Tensor

import siftback
from siftback import EpochRule, Epochs, Selector, Share
from siftback.contrib import IES, Downsampled, Ewma, GaussianProcess, Int8
from siftback.errors import ConfigError
from siftback.lab.data.data_set import DataSet, Kind
from siftback.lab.forward import autocast_of, weighted_example_loss, weighted_token_loss
from siftback.lab.records.formatting import one_of
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.settings import Settings, parse_number
from siftback.lab.strategies.after_forward import SinglePassBatches, TokenBatches
from siftback.lab.strategies.after_reading import AfterReading, ScoredElsewhere, proxy_scorer
from siftback.lab.strategies.before_reading import BeforeReading, annealed_memory, memory_options
from siftback.lab.strategies.strategy import IdealCost, Strategy, fresh_scorer
from siftback.language import dft_weights, inverse_probability_weights, linupper_weights

# What Diet-SB prunes in all of its runs, those of 1/2 and of 3/8 kept in all: its table 1.
DIET_SHARE = 0.25

# Costs. Plain training keeps everything; the layers cost what they cost, and h is the head's share
# of the cost of all tokens.
_ALL = IdealCost(offered=3)
_KEPT = IdealCost(3)
_FORWARDED = IdealCost(2, offered=1)
_APART = "scoring apart"
_TOKENS = IdealCost(offered=3, note="less h(2 - 3s) for a head's share h")

# How long rules train on everything at first, where not for one epoch.
_OF_MEMORY, _AT_ONCE = Share(0.15), Epochs(0)

_IMAGES: tuple[Kind, ...] = ("images",)
_LABELLED: tuple[Kind, ...] = ("images", "texts", "rows")
_LANGUAGE: tuple[Kind, ...] = ("language",)
_PROBABLE: tuple[Kind, ...] = (*_LABELLED, *_LANGUAGE)


def _selector(make: Callable[..., Selector]) -> Callable[[float, Settings], Selector]:
    """Returns the builder of a selector that takes the share to keep alone."""
    return lambda keep, settings: make(keep=keep)


def _percentile(keep: float, settings: Settings) -> Selector:
    return siftback.Percentile(keep=keep, history=settings.history)


def _memory(**options: Any) -> Callable[[float, Settings], EpochRule]:
    """Returns the builder of a memory of the last losses."""
    return lambda keep, settings: siftback.Memory(keep, **memory_options(settings), **options)


def _ratio_memory(keep: float, settings: Settings) -> siftback.Memory:
    return siftback.Memory(floor=settings.floor, decay=settings.decay)


def _irreducible(settings: Settings, data: DataSet, scores: Tensor | None) -> siftback.Irreducible:
    return siftback.Irreducible(cast(Tensor, scores), fresh_scorer(settings))


def _refreshed(make: Callable[..., EpochRule]) -> Callable[[float, Settings], EpochRule]:
    """Returns the builder of a rule that a pass refreshes every ``stale_every`` epochs."""
    return lambda keep, s: make(keep, every=s.stale_every, scorer=fresh_scorer(s))


_uniform, _topk = _selector(siftback.Uniform), _selector(siftback.TopK)

# The cost and the moment of those that choose alike. What `Memory` draws, in one way or another,
# has one warm-up too.
_scored = partial(Strategy, cost=IdealCost(3, offered=1), moment=AfterReading)
_cheap = partial(_scored, cost=IdealCost(3, offered=1, cheap_scores=True), build=_percentile)
_stale = partial(Strategy, cost=IdealCost(3, offered=1, interval=None), moment=BeforeReading)
_ruled = partial(Strategy, cost=_KEPT, moment=BeforeReading)
_drawn = partial(_ruled, warmup=_OF_MEMORY)
_token = partial(Strategy, cost=_TOKENS, moment=TokenBatches, kinds=_LANGUAGE)

# Each row: name, summary, cost, moment, and how the selector or the rule is built. Rules have their
# own warm-ups and tails off, as the laboratory's schedule says when selection is on. The share to
# keep is to InfoBatch and RePB the least that stays of those below the mean, to KAKURENBO and IES
# the least that stays in all, to SeTa the window's share of the groups, whose sizes differ, and the
# product of OrderDP's two shares.
# fmt: off
_ROWS = (
    Strategy("traditional", "plain training: every example, every epoch", _ALL),
    _scored("sb", "Selective-Backprop: a forward pass scores each example, high losses are kept",
            build=_percentile, library="SelectiveLoader(..., keep={keep:g})"),
    Strategy("random", "Random-Backprop: a random share of the examples, no scores", _KEPT,
             AfterReading, _uniform,
             library="Uniform(keep={keep:g})"),
    Strategy("sb-single-pass",
             "Selective-Backprop with one forward: its kept rows alone are run backward",
             _FORWARDED, SinglePassBatches, _percentile,
             library="SinglePass(..., keep={keep:g})"),
    Strategy("random-single-pass",
             "a forward of everything, a backward of a random share: what the scores must beat",
             _FORWARDED, SinglePassBatches, _uniform,
             library="SinglePass(..., selector=Uniform(keep={keep:g}))"),
    _stale("stale-sb",
           "Stale-SB: a selection pass every n-th epoch, its losses used again in between",
           build=_refreshed(siftback.Stale), library="Stale(keep={keep:g}, every=n)"),
    _drawn("sb-memory",
           "no selection pass: examples are drawn by the loss they had when last trained on",
           build=_memory(), guardable=True, own_schedule=True,
           library="Memory(keep={keep:g})"),
    _drawn("sb-memory-guarded",
           "as Memory(keep=s), but examples whose labels stay doubtful are held back",
           build=_memory(), guarded=True, own_schedule=True,
           library="Memory(keep={keep:g}, guard=NoiseGuard(classes))"),
    _drawn("sb-memory-weighted",
           "as Memory(keep=s), losses weighted by one over the probability, which undoes its bias",
           build=_memory(unbiased=True), own_schedule=True,
           library="Memory(keep={keep:g}, unbiased=True)"),
    _drawn("sb-memory-annealed",
           "as Memory(keep=s, unbiased=True), its weights rising from none to whole over training",
           build=annealed_memory, own_schedule=True),
    _drawn("sb-memory-ratio",
           "as Memory(keep=s), but by the loss over the mean of all, which sets the share drawn",
           build=_ratio_memory, guardable=True, has_own_share=True,
           library="Memory(tail=Epochs(0))"),
    _drawn("sb-memory-default",
           "as Memory(tail=Epochs(0)), but trains on everything at the end, from 4 to 9 epochs on",
           build=_ratio_memory, guardable=True, has_own_share=True,
           tail=siftback.Memory().schedule.tail.value,
           schedule=siftback.Memory().schedule,
           library="Memory()"),
    _drawn("sb-memory-ratio-guarded",
           "as Memory(tail=Epochs(0)), but examples whose labels stay doubtful are held back",
           build=_ratio_memory, guarded=True, has_own_share=True,
           library="Memory(tail=Epochs(0), guard=NoiseGuard(classes))"),
    _drawn("sb-memory-balanced",
           "as Memory(keep=s), all classes drawn equally often, each example at most once an epoch",
           build=_memory(), balanced=True, own_schedule=True, kinds=_LABELLED,
           library="Memory(keep={keep:g}, balance=labels)"),
    _drawn("sb-memory-balanced-weighted",
           "as Memory(keep=s, balance=labels), weighted so that its mean is that over the classes",
           build=_memory(unbiased=True), balanced=True, own_schedule=True, kinds=_LABELLED,
           library="Memory(keep={keep:g}, balance=labels, unbiased=True)"),
    _drawn("sb-memory-ratio-balanced",
           "as Memory(tail=Epochs(0)), an example of a rare class as much likelier as it is rarer",
           build=_ratio_memory, balanced=True, has_own_share=True, kinds=_LABELLED,
           library="Memory(tail=Epochs(0), balance=labels)"),
    _stale("sb-ewma", "as stale-sb, but by an average of past losses, those of training among them",
           build=_refreshed(Ewma), library="contrib.Ewma(keep={keep:g})"),
    _stale("sb-gp", "as sb-ewma, but by the prediction of a Gaussian process over epochs",
           build=_refreshed(GaussianProcess), library="contrib.GaussianProcess(keep={keep:g})"),
    _cheap("sb-bf16", "as sb, its passes in bfloat16",
           scorer=lambda *_: siftback.Reduced("bf16", channels_last=True),
           library='SelectiveLoader(..., keep={keep:g}, scorer=Reduced("bf16"))'),
    _cheap("sb-int8", "as sb, its passes in eight-bit integers",
           scorer=lambda *_: Int8(channels_last=True), kinds=_IMAGES,
           library="SelectiveLoader(..., keep={keep:g}, scorer=contrib.Int8())"),
    _cheap("sb-small", "as sb, its passes on images of half the side",
           scorer=lambda settings, *_: Downsampled(2, fresh_scorer(settings)), kinds=_IMAGES,
           library="SelectiveLoader(..., keep={keep:g}, scorer=contrib.Downsampled())"),
    _cheap("sb-proxy", "as sb, its passes with a smaller model that is trained alongside",
           cost=IdealCost(3, offered=1, cheap_scores=True, proxy=3),
           scorer=lambda settings, data, _: proxy_scorer(settings, data), kinds=_IMAGES),
    Strategy("sb-pipelined",
             "as sb, its passes made a step before by a replica in another process",
             IdealCost(3, offered=1, note="the 1 elsewhere"), ScoredElsewhere, _percentile,
             kinds=_IMAGES),
    _ruled("infobatch",
           "InfoBatch: of the examples below the mean loss a share is pruned, the rest weighted up",
           build=lambda keep, _: siftback.InfoBatch(ratio=1 - keep, delta=1.0),
           warmup=_AT_ONCE, tail=0.125, library="InfoBatch(ratio={left_out:g})"),
    _ruled("rs2", "RS2: every epoch the next random subset, until all were used",
           build=lambda keep, _: siftback.RS2(keep),
           warmup=_AT_ONCE, library="RS2(keep={keep:g})"),
    _ruled("rs2-balanced", "a new random subset every epoch, all classes drawn equally often",
           build=lambda keep, _: siftback.RS2(keep, replacement=True),
           balanced=True, warmup=_AT_ONCE, kinds=_LABELLED,
           library="RS2(keep={keep:g}, replacement=True, balance=labels)"),
    Strategy("kakurenbo",
             "KAKURENBO: hides low losses that are confidently right, and scales the learning rate",
             _FORWARDED, BeforeReading, lambda keep, _: siftback.Kakurenbo(ratio=1 - keep),
             forwards_left_out=True, warmup=_AT_ONCE, kinds=_LABELLED,
             library="Kakurenbo(ratio={left_out:g})"),
    _ruled("ucb", "prunes the lowest upper confidence bounds of the losses an example had",
           build=lambda keep, _: siftback.UCB(keep),
           warmup=_AT_ONCE, library="UCB(keep={keep:g})"),
    _ruled("seta", "SeTa: a random subset, of it a window of losses that slides from easy to hard",
           build=lambda keep, _: siftback.SeTa(window=keep, delta=1.0),
           warmup=_AT_ONCE, tail=0.125, library="SeTa(window={keep:g})"),
    Strategy("ies", "IES: leaves out an example once its loss has settled", _FORWARDED,
             BeforeReading, lambda keep, _: IES(keep=min(keep, 0.999)),
             forwards_left_out=True, warmup=_AT_ONCE,
             library="contrib.IES(keep={keep:g})"),
    _ruled("evolved",
           "Evolved Sampling: drawn in proportion to the loss and a slow average of those before",
           build=lambda keep, _: siftback.EvolvedSampling(keep),
           library="EvolvedSampling(keep={keep:g})"),
    _ruled("orderdp", "OrderDP: the highest remembered losses of a new random subset each epoch",
           build=lambda keep, _: siftback.OrderDP(keep**0.5, keep**0.5),
           library="OrderDP(subset={root:.2g}, top={root:.2g})"),
    _ruled("repb",
           "RePB: as infobatch, by the mean of each batch, weighted by how often each was drawn",
           build=lambda keep, _: siftback.RePB(ratio=1 - keep),
           warmup=_AT_ONCE, library="RePB(ratio={left_out:g})"),
    _ruled("rcap",
           "RCAP: each class has a share by its losses, within which high losses are likelier",
           build=lambda keep, _: siftback.RCAP(keep=keep),
           kinds=_LABELLED, library="RCAP(labels, keep={keep:g})"),
    _ruled("alignprune",
           "AlignPrune: as infobatch, by how an example's losses go along with the mean loss",
           build=lambda keep, _: siftback.AlignPrune(ratio=1 - keep, window=5, delta=1.0),
           warmup=_AT_ONCE, tail=0.125, library="AlignPrune(ratio={left_out:g}, window=5)"),
    _ruled("evos",
           "EVOS: the highest losses of every fourth epoch, which is whole, and random others",
           cost=IdealCost(2.25, offered=0.75), build=lambda keep, _: siftback.EVOS(keep),
           library="EVOS(keep={keep:g})"),
    Strategy("el2n", "pruned once: the examples of the highest EL2N scores, every epoch",
             IdealCost(3, note=_APART), prior="el2n", prunes=1.0, warmup=_AT_ONCE, kinds=_LABELLED,
             library="pruning.prune(el2n(models, dataset), drop={left_out:g})"),
    Strategy("diet-sb",
             f"Diet-SB: the {DIET_SHARE:.0%} of lowest EL2N scores pruned once, then sb on the "
             "others",
             IdealCost(3, offered=1 - DIET_SHARE, note=_APART), AfterReading, _percentile,
             prior="el2n", prunes=DIET_SHARE, kinds=_LABELLED),
    Strategy("diet-random", "as diet-sb, with random in place of sb", IdealCost(3, note=_APART),
             AfterReading, _uniform, prior="el2n", prunes=DIET_SHARE, kinds=_LABELLED),
    _scored("kath18",
            "importance sampling by the loss once its variance reduction pays, not reweighted",
            build=lambda keep, _: siftback.Kath18(keep=keep, reweight=False),
            library="Kath18(keep={keep:g}, reweight=False)"),
    _scored("kath18-bound",
            "as kath18, by the bound of the gradient's norm, and reweighted to be unbiased",
            build=_selector(siftback.Kath18),
            scorer=lambda settings, *_: siftback.GradientBound(
                autocast=autocast_of(settings), compile=settings.compile),
            library="SelectiveLoader(..., selector=Kath18(keep={keep:g}), scorer=GradientBound())"),
    _scored("topk", "the highest losses of each batch",
            build=_topk, library="TopK(keep={keep:g})"),
    _scored("rho",
            "RHO-LOSS: the highest losses less those of a model that was trained on other examples",
            cost=IdealCost(3, offered=1, note=_APART),
            build=_topk, scorer=_irreducible, prior="irreducible"),
    _scored("soft-topk", "the highest of the losses of each batch plus noise",
            build=_selector(siftback.SoftTopK), library="SoftTopK(keep={keep:g})"),
    _scored("in-batch", "exactly k of each batch, by the rank of the loss within it",
            build=_selector(siftback.InBatchRank), library="InBatchRank(keep={keep:g})"),
    _token("token-loss",
           "the tokens of the highest losses of each batch; only the head leaves the others out",
           tokens="loss"),
    _token("token-rho",
           "Rho-1: as token-loss, by the loss less that of a model trained on other text",
           cost=replace(_TOKENS, note=f"{_TOKENS.note}, {_APART}"),
           prior="token-irreducible", tokens="reference"),
    _token("token-memory",
           "as token-loss, by the loss less that of the same token when it was last seen",
           tokens="memory"),
    _token("token-entropy",
           "as token-loss, by the entropy of the prediction, whatever the token is",
           tokens="entropy"),
    _token("token-random", "as token-loss, random tokens: what the scores must beat",
           cost=IdealCost(offered=3, note="less 3h(1 - s) for a head's share h"),
           tokens="random", warmup=_AT_ONCE),
    Strategy("linupper",
             "every example; weights rise with the loss up to the middle of the batch, and stay",
             _ALL, weighted=partial(weighted_example_loss, linupper_weights)),
    Strategy("dft",
             "every example, or token of language, weighted by the probability of its label",
             _ALL, weighted=partial(weighted_token_loss, dft_weights), kinds=_PROBABLE),
    Strategy("inverse-probability", "as dft, weighted by one over that probability, up to a cap",
             _ALL, weighted=partial(weighted_token_loss, inverse_probability_weights),
             kinds=_PROBABLE),
    Strategy("matched",
             "plain training given the budget of a selective run, its learning rates fully decayed",
             IdealCost(note="that of the run it is matched to")),
)
# fmt: on

STRATEGIES = {row.name: row for row in _ROWS}

PLAIN = "plain training"
"""The name of `traditional` for pages and pictures."""


def call_of(strategy: Strategy) -> str:
    """Returns the call of the library that a strategy is, s being the share to keep; or "".

    >>> call_of(STRATEGIES["infobatch"]), call_of(STRATEGIES["sb-memory-default"])
    ('InfoBatch(ratio=1-s)', 'Memory()')
    """
    return re.sub(r"\{(\w+)[^}]*\}", lambda field: _NUMBERS[field[1]][0], strategy.library)


def strategy_name(name: str) -> str:
    """Returns a strategy's call, as `call_of` has it, for pages and pictures, whatever its share.

    It is the name itself where there is no single call, and for strategies of other releases.

    >>> strategy_name("infobatch"), strategy_name("rho"), strategy_name("traditional")
    ('InfoBatch(ratio=1-s)', 'rho', 'plain training')
    >>> strategy_name("stale-sb-3"), strategy_name("of another release")
    ('Stale(keep=s, every=3)', 'of another release')
    """
    try:
        return call_of(find_strategy(name)) or library_name(name)
    except ConfigError:
        return library_name(name)


def find_strategy(name: str) -> Strategy:
    """Returns the strategy of a name; ``stale-sb-5`` is ``stale-sb`` with n = 5 in any settings.

    Raises:
        ConfigError: If there is none.

    >>> str(find_strategy("sb").cost), str(find_strategy("stale-sb-5").cost)
    ('1 + 3s', '1/5 + 3s')
    """
    if match := re.fullmatch(r"stale-sb-([1-9]\d{0,8})", name):
        every, stale = int(match[1]), STRATEGIES["stale-sb"]
        build = _refreshed(siftback.Stale)
        return replace(
            stale,
            name=name,
            cost=replace(stale.cost, interval=every),
            library=f"Stale(keep={{keep:g}}, every={every})",
            build=lambda keep, settings: build(keep, replace(settings, stale_every=every)),
        )
    if name not in STRATEGIES:
        raise ConfigError(f"no strategy {name!r}: {one_of(name, STRATEGIES)}")
    return STRATEGIES[name]


@cache
def name_of_call(text: str) -> str:
    """Returns a strategy's name and share, from the call of the library that it is.

    Args:
        text: A call as `library_name` returns it; ``keep=`` may be left out, and a number that has
            a default in the library. What is neither a call nor the name of one is returned as it
            is.

    Raises:
        ConfigError: If no strategy is this call, or an argument is not a number.

    >>> [name_of_call(text) for text in ("Memory()", "Memory(1/2)", "InfoBatch(ratio=0.75)", "sb")]
    ['sb-memory-default', 'sb-memory@0.5', 'infobatch@0.25', 'sb']
    >>> [name_of_call(text) for text in ("InfoBatch()", "RCAP(labels)")]
    ['infobatch@0.5', 'rcap@0.5']
    """
    head = text.partition("(")[0].lower() + "("
    calls = [library_name(f"{name} 0.5") for name in STRATEGIES]
    calls = [call for call in calls if call.lower().startswith(head)]
    if "(" not in text and (text in STRATEGIES or not calls):
        return text
    every = re.search(r"every=([1-9]\d{0,8})\b", text)
    strategies = [find_strategy(f"stale-sb-{every[1]}")] if every else STRATEGIES.values()
    for strategy in strategies:
        if match := _call_pattern(strategy.library).fullmatch(text.replace(" ", "")):
            numbers = match.groupdict().items()
            shares = [_NUMBERS[field][2](parse_number(text, number)) for field, number in numbers]
            return "@".join([strategy.name, *(f"{share:.12g}" for share in shares)])
        if (default := _default_share(strategy, text)) is not None:
            return f"{strategy.name}@{default:.12g}"
    advice = " or ".join(calls) or "a name, or a call, as siftback strategies lists both"
    raise ConfigError(f"no strategy {text!r}: give {advice}")


# Of the numbers that a call may hold: in letters, from the share to keep, and that share from it.
_NUMBERS: dict[str, tuple[str, Callable[[float], float], Callable[[float], float]]] = {
    "keep": ("s", lambda keep: keep, lambda keep: keep),
    "left_out": ("1-s", lambda keep: 1 - keep, lambda left_out: 1 - left_out),
    "root": ("s**0.5", lambda keep: keep**0.5, lambda root: root**2),
}


def _default_share(strategy: Strategy, text: str) -> float | None:
    """Returns the share that a call keeps which leaves its number to the library; None of others.

    >>> _default_share(STRATEGIES["kakurenbo"], "Kakurenbo()")
    0.7
    """
    argument = re.search(r"(, )?(\w+)={(\w+)[^}]*}", strategy.library)
    if not argument or text != strategy.library.replace(argument[0], "", 1):
        return None
    kind: Any = attrgetter(text.partition("(")[0])(siftback)
    default = inspect.signature(kind).parameters[argument[2]].default
    return _NUMBERS[argument[3]][2](default) if isinstance(default, float) and default else None


def _call_pattern(library: str) -> re.Pattern[str]:
    """Returns what matches the calls of a strategy, without spaces."""
    pattern = ""
    for literal, field, *_ in Formatter().parse(library.replace(" ", "")):
        pattern += re.escape(literal).replace(r"\(keep=", r"\((?:keep=)?")
        if field:  # the same number wherever it comes again
            pattern += f"(?P={field})" if f"<{field}>" in pattern else f"(?P<{field}>[^,()=]+)"
    return re.compile(pattern)


def library_name(label: str) -> str:
    """Returns the call of the library that a configuration is, for pages and pictures.

    Args:
        label: As `run_label` writes it: the strategy, and the share to keep.

    Returns:
        The call; the label where there is no single one, and for strategies of other releases.

    >>> [library_name(label) for label in ("sb-memory 0.55", "sb-memory-default 0.5", "rho 0.5")]
    ['Memory(keep=0.55)', 'Memory()', 'rho 0.5']
    >>> library_name("traditional"), library_name("infobatch 0.25"), library_name("stale-sb-5 0.5")
    ('plain training', 'InfoBatch(ratio=0.75)', 'Stale(keep=0.5, every=5)')
    >>> library_name("matched to rs2 0.5"), library_name("sb")  # which keeps everything
    ('matched to RS2(keep=0.5)', 'SelectiveLoader(..., keep=1)')
    """
    if label == TRADITIONAL:
        return PLAIN
    if label.startswith(matched := "matched to "):
        return matched + library_name(label.removeprefix(matched))
    name, _, share = label.partition(" ")
    try:
        keep = float(share or 1)
        call = find_strategy(name).library
    except (ValueError, ConfigError):
        return label
    return call.format(**{name: number(keep) for name, (_, number, _) in _NUMBERS.items()}) or label
