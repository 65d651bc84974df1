"""Refusals of a Trainer with selection: arguments, settings, and a loss that is another one."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.data import IterableDataset

from siftback.batches import tree
from siftback.batches.collating import undisturbed
from siftback.errors import ConfigError
from siftback.frameworks.huggingface_weights import weighted_losses, weighted_mean
from siftback.frameworks.step_selection import epochs_of_steps
from siftback.frameworks.trained_loss import LossPair, ranks_alike
from siftback.installation import naming_extra
from siftback.losses.sequences import Head, find_head, find_logits, sequence_losses, summed_losses
from siftback.probing.probe import probe
from siftback.rules.rule import EpochRule, checked_rule
from siftback.scorers.selection_pass import untouched
from siftback.selectors.in_batch import count_in_batch, exact_selector
from siftback.selectors.selection import Selector

with naming_extra("huggingface", "transformers and accelerate"):
    from transformers import Trainer

Method = Literal["two_pass", "single_pass", "auto"]
"""The ways to choose rows within a step; see `SelectiveTrainerMixin`."""

GIVE_LOSSES = "give losses=fn(model, batch), which returns one loss per row as it is trained on"
OF_OUTPUTS = "with memory=, fn is called with what the model returned in place of the model"
MEASURED_SECONDS = 10
MOST_LOGITS = 1 << 26  # that are compared: those of a language model fill the memory
_SENTENCES = "sentence_transformers."
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def advice_on_losses(trainer: Any) -> str:
    """Returns the advice where the losses that rows are chosen by would not be trained on."""
    return f"{GIVE_LOSSES}; {OF_OUTPUTS}" if trainer._rule else GIVE_LOSSES


def resolve_selection(
    method: Method, memory: EpochRule | None, **others: Any
) -> tuple[EpochRule | None, Selector | None]:
    """Returns the rule or the selector that the arguments of a `SelectiveTrainerMixin` mean.

    Args:
        method: As for the mixin.
        memory: Likewise.
        others: ``selector``, ``keep``, ``beta`` and ``schedule``, likewise.

    Raises:
        ConfigError: If they exclude each other, or are out of range.

    >>> rule, selector = resolve_selection("two_pass", None, keep=0.5)
    >>> rule, selector.keep
    (None, 0.5)
    """
    if method not in get_args(Method):
        raise ConfigError(
            f'method={method!r}: give "two_pass", "single_pass" or "auto", or memory=Memory() alone'
        )
    if memory is None:
        return None, exact_selector(others.get("selector"), others.get("keep"), others.get("beta"))
    rule = checked_rule("memory", memory)
    passed = [f"{name}=" for name, value in others.items() if value is not None]
    passed += [f'method="{method}"'] if method != "two_pass" else []
    if passed:
        raise ConfigError(
            f"memory={type(rule).__name__}(...) and {passed[0]} given: a rule has settings of "
            "its own, such as memory=Memory(keep=0.5); leave one of the two out"
        )
    return rule, None


def find_trainer_head(trainer: Any) -> Head | None:
    """Returns the head of a trainer's model; None with losses of the user's own.

    Raises:
        ConfigError: If that is not known.
    """
    losses = trainer._losses
    function = losses if isinstance(losses, partial) else partial(losses)
    if function.func is not sequence_losses:
        return None
    try:
        return find_head(trainer.model, **function.keywords)
    except ConfigError as error:
        if not trainer._rule:
            raise
        raise ConfigError(f"{error}; {OF_OUTPUTS}") from error


def needs_own_losses(trainer: Any) -> bool:
    """Returns whether a trainer's rows are chosen by its model's own losses."""
    rule = trainer._rule
    by_losses = rule.learns if rule else trainer._selector.needs_scores
    return bool(by_losses) and find_trainer_head(trainer) is not None


def check_trainer(trainer: Any, mixin: type, trial: Any = None) -> None:
    """Refuses what selection cannot be right with, before training.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        mixin: That class, between which and the Trainer's own others may override methods.
        trial: That of a hyperparameter search, of which this training is one.

    Raises:
        ConfigError: If there is any such thing.
    """
    args, method, selector = trainer.args, trainer._method, trainer._selector
    name = "memory=" if trainer._rule else f'method="{method}"'
    check_has_rows(trainer, name)
    find_trainer_head(trainer)  # raises where it is not known
    # The last is unknown to older releases of Accelerate.
    split = any(getattr(trainer, f"get_{kind}_size", int)() > 1 for kind in ("tp", "cp", "sp"))
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
    if trainer._weight_column or (trainer._rule or selector).reweights:
        # The outputs that losses with weights are computed from are watched in eager mode alone.
        refused["torch_compile and weights: leave one out"] = args.torch_compile
        # The Trainer would not divide their mean by the batches of a step.
        has_function = trainer.compute_loss_func is not None and find_trainer_head(trainer) is None
        refused["weights, losses= and compute_loss_func: leave the last out"] = has_function
    column, columns = trainer._weight_column, getattr(trainer.train_dataset, "column_names", None)
    if column and columns is not None:
        what = f"weight_column={column!r}, as the data set has {', '.join(columns)}"
        refused[what] = column not in columns
    if selector and selector.keep < 1:
        size = trainer._train_batch_size
        what = f"batches of {size}, all of which keep={selector.keep:g} keeps: give larger batches"
        refused[what] = count_in_batch(selector.keep, size) >= size
        pairs = type(trainer.data_collator).__name__.endswith(("ForPreference", "VisionPreference"))
        refused["pairs in two rows each: give memory=, and losses= of one for each pair"] = pairs
    if method != "single_pass" and needs_own_losses(trainer):
        smooth = f"label_smoothing_factor={args.label_smoothing_factor}, as rows would be chosen by"
        what = f"{smooth} losses without it: {advice_on_losses(trainer)}"
        refused[what] = trainer.label_smoother is not None
    if method == "single_pass":
        refused |= refusals_of_single_pass(trainer)
    elif trainer._rule:
        another = "another trial of a search, whose losses it would remember: use a new Trainer"
        refused |= {another: trial is not None, **refusals_of_memory(trainer, mixin)}
    for what, applies in refused.items():
        if applies:
            raise ConfigError(f"{name} does not work with {what}")


def check_has_rows(trainer: Any, name: str) -> None:
    """Refuses the trainers of sentence-transformers, whose losses are one number of a batch.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        name: Name of the selection, for the error.

    Raises:
        ConfigError: If it is one of them.
    """
    kinds = [kind for kind in type(trainer).__mro__ if kind.__module__.startswith(_SENTENCES)]
    if not kinds:
        return
    loss = trainer.loss  # one, or one for each data set
    losses = loss.values() if isinstance(loss, Mapping) else [loss]
    names = ", ".join(dict.fromkeys(type(loss).__name__ for loss in losses))
    raise ConfigError(
        f"{name} does not work with a {kinds[0].__name__}, whose loss, {names}, is one number of a "
        "whole batch: train in a loop over a SelectiveLoader with loader.watch(loss), of a loss "
        'per row, such as CosineSimilarityLoss(model, loss_fct=torch.nn.MSELoss(reduction="none"))'
    )


def faster_pass(trainer: Any, keep: float) -> Literal["two_pass", "single_pass"]:
    """Returns which of both takes less time on the trainer's batches, measured for some seconds.

    Neither the model nor random numbers are changed by it.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        keep: Share of the rows of a batch to keep.

    Returns:
        "two_pass" too where a single pass would be refused, cannot be traced, or saves less than a
        tenth with its tracing (see `ProbeResult.faster_pass`).
    """
    if any(refusals_of_single_pass(trainer).values()) or not keep < 1:
        return "two_pass"
    with torch.random.fork_rng():
        loader = trainer.get_train_dataloader()
    result = probe(
        trainer.model,
        getattr(loader, "base_dataloader", loader),  # not the one that Accelerate keeps count of
        losses=partial(weighted_losses, trainer._losses),
        keep=(keep,),
        autocast=PRECISIONS.get(trainer.accelerator.mixed_precision),
        seconds=MEASURED_SECONDS,
    )
    batches = math.ceil(len(loader) * (count_epochs(trainer.args, len(loader)) or 0))
    return result.faster_pass(keep, steps=max(1, batches))


def count_epochs(args: Any, batches: int | None) -> float | None:
    """Returns the epochs of a training, as its arguments say; None of steps without an epoch.

    Args:
        args: Those of a Trainer.
        batches: Of an epoch; None where they are not known.
    """
    if args.max_steps <= 0:
        return float(args.num_train_epochs)
    if not batches:
        return None
    return epochs_of_steps(args.max_steps, batches, args.gradient_accumulation_steps)


def refusals_of_single_pass(trainer: Any) -> dict[str, bool]:
    """Returns the settings that exclude a loss in place of the Trainer's own, and which apply."""
    config = getattr(trainer.model, "config", None)
    kind = next(kind for kind in type(trainer).__mro__ if "compute_loss" in vars(kind))
    alone = f"leave it out, and {GIVE_LOSSES}"
    other = f"and where it is another loss than the model's, {GIVE_LOSSES}"
    return {
        f'a compute_loss of {kind.__name__}\'s own: give method="two_pass", {other}': (
            kind is not Trainer
        ),
        f"compute_loss_func: {alone}": trainer.compute_loss_func is not None,
        f"label_smoothing_factor: {alone}": trainer.label_smoother is not None,
        'a router\'s auxiliary loss: give method="two_pass"': getattr(
            config, "output_router_logits", False
        ),
        "torch_compile: leave it out": trainer.args.torch_compile,
    }


def refusals_of_memory(trainer: Any, mixin: type) -> dict[str, bool]:
    """Returns the settings that exclude a rule's order and number of batches, and which apply."""
    args, data, rule = trainer.args, trainer.train_dataset, trainer._rule
    order = getattr(args, "train_sampling_strategy", "random")
    config = args.accelerator_config
    loading = ("_get_train_sampler", "get_train_dataloader", "_get_dataloader")
    kinds = type(trainer).__mro__
    between = kinds[kinds.index(mixin) + 1 :]  # and the Trainer, by which nothing is overridden
    overriding = [next(kind for kind in between if name in vars(kind)) for name in loading]
    owners = [*dict.fromkeys(owner.__name__ for owner in overriding if owner is not Trainer)]
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    indexed = indexed and not isinstance(data, IterableDataset)
    split = bool(config.split_batches or config.dispatch_batches)
    keeps_order = getattr(args, "dataloader_in_order", True) or not args.dataloader_num_workers
    return {
        f"{type(rule).__name__}, which needs predictions: give Memory()": rule.needs_predictions,
        f"{order}, an order of its own: leave it out": order not in ("random", "sequential"),
        f'a training loader of {owners}: give method="two_pass"': bool(owners),
        f"a {type(data).__name__} without length or index: give a map-style data set": not indexed,
        "split_batches or dispatch_batches: leave them out": split,
        "dataloader_in_order=False, by which draws cannot go: leave it out": not keeps_order,
        "torch_compile: leave it out": args.torch_compile,
    }


def observe_outputs(
    trainer: Any, compute: Callable[[Any, Any], Any], model: Any, inputs: Any
) -> tuple[Any, list[Any]]:
    """Returns a function's result, and the outputs of a trainer's model with gradients."""
    calls: list[Any] = []

    def note(module: Any, arguments: Any, outputs: Any) -> None:
        calls.extend([outputs] if torch.is_grad_enabled() else [])

    hook = trainer.model.register_forward_hook(note)
    compiled = trainer.args.torch_compile  # whose code does not call the hook
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            return compute(model, inputs), calls
    finally:
        hook.remove()


def check_loss(
    trainer: Any,
    compute: Callable[[Any, Any], tuple[Any, list[Any]]],
    result: Any,
    calls: list[Any],
    inputs: Any,
) -> None:
    """Makes sure that a trainer prefers the rows with the highest of its model's losses.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        compute: Computes its loss for a model and a batch; see `observe_outputs`.
        result: What that returned for a batch.
        calls: What it got of the model.
        inputs: The batch.

    Raises:
        ConfigError: If the loss that is trained on is another one.
    """

    def pair(result: Any, calls: list[Any], inputs: Any) -> LossPair:
        loss = result[0] if isinstance(result, tuple) else result
        (outputs,) = calls
        return loss_pair(cast(Head, find_trainer_head(trainer)), loss, outputs, inputs)

    def on_rows(rows: Tensor) -> LossPair:
        some = tree.take(inputs, rows)
        labelled = dict(some)
        with undisturbed(trainer), untouched(trainer.model, "eval", tree.device(some)):
            trainer.log = lambda *_, **__: None
            return pair(*compute(trainer.model, some), labelled)

    advice = advice_on_losses(trainer)
    if len(calls) != 1:
        raise ConfigError(
            f"a training step called {type(trainer.model).__name__} {len(calls)} times with "
            f"gradients, so that the losses that it trains on are not known: {advice}"
        )
    batch_term = getattr(calls[0], "aux_loss", None) is not None  # of a router
    pairs = pair(result, calls, inputs)
    if not ranks_alike(pairs, len(inputs["labels"]), on_rows, has_batch_term=batch_term):
        raise ConfigError(
            f"{type(trainer).__name__} trains on another loss than the mean of the losses that "
            "rows are chosen by, which are those of the model itself, such as one with class "
            f"weights or with another term: {advice}"
        )


def check_unweighted(
    trainer: Any, loss: Tensor, losses: Tensor, items: Tensor, count: Tensor | int | None
) -> None:
    """Checks that a trainer would train on the mean of the losses that get weights.

    Args:
        trainer: A `SelectiveTrainerMixin`.
        loss: The loss that it computes without weights.
        losses: float[B], as for `weighted_mean`.
        items: int64[B], likewise.
        count: Likewise.

    Raises:
        ConfigError: If that is another loss, such as one with class weights or another term.
    """
    if not items.any():
        return
    is_half = trainer.accelerator.mixed_precision != "no" or loss.dtype != torch.float32
    with torch.no_grad():
        loss, ones = loss.float(), torch.ones_like(losses)
        # Some models ignore the number of labels that the Trainer passes them.
        means = [weighted_mean(losses, items, ones, number) for number in (None, count)]
        rounding = 2e-2 if is_half else 1e-3
        if not any(torch.isclose(loss, mean.float(), rounding, 1e-5) for mean in means):
            raise ConfigError(
                f"the loss of a step without weights is {loss.item()}, and the mean of the losses "
                f"that get weights is {means[0].item()}: {advice_on_losses(trainer)}"
            )


def loss_pair(head: Head, loss: Tensor, outputs: Any, inputs: Mapping[str, Any]) -> LossPair:
    """Returns the loss that is trained on, beside the losses of the rows by the same outputs.

    Args:
        head: Of the model.
        loss: What the Trainer computed of the outputs.
        outputs: What the model returned.
        inputs: The batch, with its labels.

    Raises:
        LossError: If the outputs and labels do not fit together.
    """
    is_fused = getattr(outputs, "log_probs", None) is not None  # TRL's head, without logits
    values: Tensor = outputs.log_probs if is_fused else find_logits(outputs)
    rows = max(1, min(len(values), MOST_LOGITS * len(values) // max(values.numel(), 1)))
    some = values.detach()[:rows].requires_grad_()
    mask = outputs.label_mask[:rows] if is_fused else None
    alone = {"log_probs": some, "label_mask": mask} if is_fused else {"logits": some}
    named = ((name, inputs.get(name)) for name in ("labels", "shift_labels"))
    labels = {name: label[:rows] for name, label in named if isinstance(label, Tensor)}
    with torch.no_grad():
        ranked = summed_losses(head, outputs, inputs)  # names what the batch lacks
    with torch.enable_grad():
        first = summed_losses(head, SimpleNamespace(**alone), labels)
    (gradient,) = torch.autograd.grad(first, some)
    # A probability without a label is 1, and may have any gradient.
    return LossPair(loss, ranked, _edge(values), gradient, 1.0 if mask is None else mask.float())


def _edge(values: Tensor) -> GradientEdge:
    """Where outputs are in the graph, before Accelerate makes them float32.

    The model itself computes its loss from what it made before that.
    """
    edge = get_gradient_edge(values)
    while edge.node.name().startswith("ToCopyBackward"):
        edge = GradientEdge(*cast(Any, edge.node.next_functions[0]))
    return edge
