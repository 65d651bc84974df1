"""Refusals of a Trainer with selection: arguments that exclude each other, and settings."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch.utils.data import IterableDataset

from siftback.errors import ConfigError
from siftback.losses.sequences import Head, find_head, sequence_losses
from siftback.probing.probe import probe
from siftback.rules.memory import Memory
from siftback.rules.rule import EpochRule, checked_rule
from siftback.selectors.in_batch import count_in_batch, exact_selector
from siftback.selectors.selection import Selector

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        "siftback.frameworks.huggingface needs transformers and accelerate: "
        "pip install siftback[huggingface]"
    ) from error

Method = Literal["two_pass", "single_pass", "auto", "memory"]
"""When the Trainer's examples are chosen; see `SelectiveTrainerMixin`."""

GIVE_LOSSES = "give losses=fn(model, batch), which returns one loss per row as it is trained on"
OF_OUTPUTS = 'with method="memory", fn is called with what the model returned in place of the model'
MEASURED_SECONDS = 10
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def advice_on_losses(method: Method) -> str:
    """Returns the advice where the losses that rows are chosen by would not be trained on."""
    return f"{GIVE_LOSSES}; {OF_OUTPUTS}" if method == "memory" else GIVE_LOSSES


def resolve_method(
    method: Method,
    memory: EpochRule | None,
    selector: Selector | None,
    keep: float | None,
    beta: float | None,
) -> tuple[EpochRule | None, Selector | None]:
    """The rule or the selector that the arguments of a `SelectiveTrainerMixin` mean.

    Raises:
        ConfigError: If they exclude each other, or are out of range.

    >>> rule, selector = resolve_method("two_pass", None, None, keep=0.5, beta=None)
    >>> rule, selector.keep
    (None, 0.5)
    """
    if method not in get_args(Method):
        raise ConfigError(f'method={method!r}: give "two_pass", "single_pass", "auto" or "memory"')
    other, name = (selector, "selector") if method == "memory" else (memory, "memory")
    if other is not None:
        raise ConfigError(
            f'{name}={type(other).__name__}(...) with method="{method}": give another method, or '
            f"leave {name}= out"
        )
    if method == "memory":
        if memory is None:
            return Memory(keep=keep, beta=beta), None
        if keep is not None or beta is not None:
            raise ConfigError(
                f"memory={memory!r}, keep={keep} and beta={beta}: give either a rule, such as "
                "memory=Memory(), or one of the others"
            )
        return checked_rule("memory", memory), None
    selector = exact_selector(selector, keep, beta)
    if method in ("two_pass", "auto") and selector.reweights:
        raise ConfigError(
            f"{type(selector).__name__} gives losses weights, which the loss of a Trainer cannot "
            'take: give method="single_pass", or another selector'
        )
    return None, selector


def head_by(losses: Callable[[Any, Any], Any], model: Any, method: Method) -> Head | None:
    """Returns the head of a model; None with losses of the user's own.

    Raises:
        ConfigError: If that is not known.
    """
    function = losses if isinstance(losses, partial) else partial(losses)
    if function.func is not sequence_losses:
        return None
    try:
        return find_head(model, **function.keywords)
    except ConfigError as error:
        if method != "memory":
            raise
        raise ConfigError(f"{error}; {OF_OUTPUTS}") from error


def needs_own_losses(trainer: Any) -> bool:
    """Whether a trainer's rows are chosen by its model's own losses."""
    rule = trainer._rule
    if rule is None:
        return bool(trainer._selector.needs_scores) and trainer.head() is not None
    return rule.learns and trainer.head() is not None


def check_trainer(trainer: Any, mixin: type, trial: Any = None) -> None:
    """Refuses what selection cannot be right with, before training.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        mixin: That class, between which and the Trainer's own others may override methods.
        trial: That of a hyperparameter search, of which this training is one.

    Raises:
        ConfigError: If there is any such thing.
    """
    args, method, keep = trainer.args, trainer._method, trainer._selector
    trainer.head()  # raises where it is not known
    kinds = ("tp", "cp", "sp")  # the last is unknown to older releases of Accelerate
    split = any(getattr(trainer, f"get_{kind}_size", lambda: 1)() > 1 for kind in kinds)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    loaded = getattr(trainer, "is_distributed_loading_by_transformers", False)
    flat = getattr(trainer, "padding_free", False)  # of TRL
    refused = {
        "several GPUs in one process: start one for each, by torchrun": args.n_gpu > 1,
        "FSDP or DeepSpeed: use DistributedDataParallel": sharded,
        "a model that is sharded as it is loaded: leave distributed_config out": loaded,
        "tensor, context or sequence parallelism: leave it out": split,
        "auto_find_batch_size: give a batch size": args.auto_find_batch_size,
        "padding_free=True, whose batches have no rows: leave it out, and packing too": flat,
    }
    if keep is not None and keep.keep < 1:
        size = trainer._train_batch_size
        what = f"batches of {size}, all of which keep={keep.keep:g} keeps: give larger batches"
        refused[what] = count_in_batch(keep.keep, size) >= size
    if method != "single_pass" and needs_own_losses(trainer):
        smooth = f"label_smoothing_factor={args.label_smoothing_factor}, as rows would be chosen by"
        what = f"{smooth} losses without it: {advice_on_losses(method)}"
        refused[what] = trainer.label_smoother is not None
    if method == "single_pass":
        refused |= _single_pass(trainer, _owner(trainer, mixin, "compute_loss"))
    elif method == "memory":
        loading = ("_get_train_sampler", "get_train_dataloader", "_get_dataloader")
        owners = [_owner(trainer, mixin, name) for name in loading]
        another = "another trial of a search, whose losses it would remember: use a new Trainer"
        refused[another] = trial is not None
        refused |= _memory(trainer, [owner for owner in owners if owner is not None])
    for what, applies in refused.items():
        if applies:
            raise ConfigError(f'method="{method}" does not work with {what}')


def faster_pass(trainer: Any, mixin: type, keep: float) -> Literal["two_pass", "single_pass"]:
    """Which of both takes less time on this model and its batches; measured for some seconds.

    Neither the model nor random numbers are changed by it.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        mixin: That class.
        keep: Share of the rows of a batch to keep.

    Returns:
        "two_pass" too where a single pass would be refused, or cannot be traced.
    """
    owner = _owner(trainer, mixin, "compute_loss")
    if any(_single_pass(trainer, owner).values()) or not keep < 1:
        return "two_pass"
    with torch.random.fork_rng():
        loader = trainer.get_train_dataloader()
    result = probe(
        trainer.model,
        getattr(loader, "base_dataloader", loader),  # not the one that Accelerate keeps count of
        losses=trainer._losses,
        keep=(keep,),
        autocast=PRECISIONS.get(trainer.accelerator.mixed_precision),
        seconds=MEASURED_SECONDS,
    )
    return result.faster_pass(keep)


def _single_pass(trainer: Any, owner: str | None) -> dict[str, bool]:
    """Returns the settings that exclude a loss in place of the Trainer's own."""
    config = getattr(trainer.model, "config", None)
    alone = f"leave it out, and {GIVE_LOSSES}"
    other = f"and where it is another loss than the model's, {GIVE_LOSSES}"
    return {
        f'a compute_loss of {owner}\'s own: give method="two_pass", {other}': owner is not None,
        f"compute_loss_func: {alone}": trainer.compute_loss_func is not None,
        f"label_smoothing_factor: {alone}": trainer.label_smoother is not None,
        'a router\'s auxiliary loss: give method="two_pass"': getattr(
            config, "output_router_logits", False
        ),
        "torch_compile: leave it out": trainer.args.torch_compile,
    }


def _memory(trainer: Any, owners: list[str]) -> dict[str, bool]:
    """Returns the settings that exclude an order and a number of batches of a rule's."""
    args, data = trainer.args, trainer.train_dataset
    order = getattr(args, "train_sampling_strategy", "random")
    config = args.accelerator_config
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    indexed = indexed and not isinstance(data, IterableDataset)
    split = bool(config.split_batches or config.dispatch_batches)
    return {
        "this release of transformers: upgrade it": not hasattr(Trainer, "_run_epoch"),
        f"{order}, an order of its own: leave it out": order not in ("random", "sequential"),
        f'a training loader of {owners}: give method="two_pass"': bool(owners),
        f"a {type(data).__name__} without length or index: give a map-style data set": not indexed,
        "split_batches or dispatch_batches: leave them out": split,
        "torch_compile: leave it out": args.torch_compile,
    }


def _owner(trainer: Trainer, mixin: type, method: str) -> str | None:
    """The class between the mixin and the Trainer that overrides a method; None where none does."""
    kinds = type(trainer).__mro__
    after = kinds[kinds.index(mixin) + 1 :]
    owner = next(kind for kind in after if method in vars(kind))
    return None if owner is Trainer else owner.__name__
