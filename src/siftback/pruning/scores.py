"""Scores for pruning: how hard each example of a data set is for a model.

All scores are higher for harder examples. They are computed in eval mode; the model is not
changed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from siftback.arguments import check_integer, format_value
from siftback.batches import tree
from siftback.batches.indices import IndexCheck, examples_of
from siftback.batches.source import Source
from siftback.errors import ConfigError, LossError
from siftback.losses.per_example import Losses, LossFn, resolve_losses, split_pair
from siftback.pruning.recorders import check_logits
from siftback.scorers.selection_pass import untouched

Models = nn.Module | Sequence[nn.Module]
"""One model, or several to average over."""

Outputs = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""``outputs(model, batch) -> (logits[N, C], labels[N])``."""


def el2n(
    models: Models, data: Any, *, outputs: Outputs | None = None, batch_size: int = 256
) -> Tensor:
    """EL2N: the distance of predicted probabilities from the label, averaged over early models.

        EL2N(x, y) = E_w || softmax(f_w(x)) - onehot(y) ||_2

    Paul, Ganguli and Dziugaite 2021, *Deep Learning on a Data Diet*. The models have the same
    architecture and different initial weights, and are trained for a few epochs.

    Args:
        models: One model or several. The score by several is the mean of the scores by each; for
            a column per model, use ``torch.stack([el2n(model, data) for model in models], 1)``.
        data: A ``torch.utils.data.Dataset`` of ``(input, label)``, or batches of one: a
            ``DataLoader`` of a map-style or `Indexed` data set, in any order, or other batches in
            the order of the data set.
        outputs: For other batches: ``outputs(model, batch) -> (logits, labels)``, float[N, C]
            and int64[N].
        batch_size: Batch size used with a data set.

    Returns:
        float32[N] on the CPU, in the order of the data set, from 0 to the square root of 2.

    Raises:
        ConfigError: If there is no model, or the data are incomplete or in an unknown order.
        BatchError: If a batch is not a pair, or its logits and labels do not fit.
        LossError: If the outputs of a model are not finite.

    >>> data = [(torch.tensor([[0.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 0]))]
    >>> el2n(nn.Identity(), data)
    tensor([0.7071, 1.4142])
    """
    return score_predictions(error_norms, models, data, outputs or pair_outputs, batch_size)


def margin(
    models: Models, data: Any, *, outputs: Outputs | None = None, batch_size: int = 256
) -> Tensor:
    """One minus the margin between the two most probable classes, averaged over models.

        margin(x) = E_w [1 - (p_(1) - p_(2))],   p = softmax(f_w(x)),

    with p_(1) and p_(2) the largest and the second largest. The label is not used.

    Scheffer et al. 2001, *Active Hidden Markov Models for Information Extraction*; as a score for
    pruning in Guo et al. 2022, *DeepCore*.

    Args:
        models: As for `el2n`.
        data: As for `el2n`.
        outputs: As for `el2n`.
        batch_size: As for `el2n`.

    Returns:
        float32[N] on the CPU, in [0, 1].

    Raises:
        SiftbackError: As `el2n`.

    >>> margin(nn.Identity(), [(torch.tensor([[4.0, 4.0, 0.0]]), torch.tensor([2]))])
    tensor([1.])
    """
    return score_predictions(confidence_gaps, models, data, outputs or pair_outputs, batch_size)


def entropy(
    models: Models, data: Any, *, outputs: Outputs | None = None, batch_size: int = 256
) -> Tensor:
    """The entropy of the predicted probabilities, averaged over models.

        entropy(x) = E_w [-sum_c p_c log p_c],   p = softmax(f_w(x))

    The label is not used. As a score for pruning in Coleman et al. 2020, *Selection via Proxy*.

    Args:
        models: As for `el2n`.
        data: As for `el2n`.
        outputs: As for `el2n`.
        batch_size: As for `el2n`.

    Returns:
        float32[N] on the CPU, in nats, from 0 to log C.

    Raises:
        SiftbackError: As `el2n`.

    >>> entropy(nn.Identity(), [(torch.zeros(1, 2), torch.tensor([0]))])
    tensor([0.6931])
    """
    return score_predictions(entropies, models, data, outputs or pair_outputs, batch_size)


def grand(
    models: Models,
    data: Any,
    loss_fn: LossFn = F.cross_entropy,
    *,
    losses: Losses | None = None,
    batch_size: int = 64,
    chunk_size: int = 16,
) -> Tensor:
    """GraNd: the norm of each example's gradient, averaged over early models.

        GraNd(x, y) = E_w || gradient with respect to w of loss(f_w(x), y) ||_2

    over all trained weights, exactly, by ``torch.func``: ``chunk_size`` examples at a time, each
    taking as much memory as the weights.

    Paul, Ganguli and Dziugaite 2021, *Deep Learning on a Data Diet*. It uses eval mode, as in
    training mode batch normalisation has no per-example gradients.

    Args:
        models: As for `el2n`.
        data: As for `el2n`.
        loss_fn: ``loss_fn(outputs, targets)``, for batches that are such pairs.
        losses: In place of ``loss_fn``: ``losses(model, batch) -> Tensor[N]`` for any batch of
            tensors. It is called with a function that computes the same as the model.
        batch_size: Batch size used with a data set.
        chunk_size: Number of gradients computed at a time.

    Returns:
        float32[N] on the CPU.

    Raises:
        ConfigError: As `el2n`; and if a model has no trained weights.
        BatchError: If a batch is not a pair.
        LossError: If there is not one loss per example, or a gradient is not finite.

    >>> model = nn.Linear(1, 1, bias=False)  # the gradient is 2 (w x - y) x
    >>> _ = nn.init.ones_(model.weight)
    >>> batches = [(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]]))]
    >>> grand(model, batches, nn.functional.mse_loss)
    tensor([ 2., 12.])
    """
    example_losses = resolve_losses(None if losses else loss_fn, losses)

    def score(model: nn.Module, batch: Any) -> Tensor:
        return gradient_norms(model, example_losses, batch, chunk_size)

    return mean_scores(score, models, data, batch_size)


def error_norms(logits: Tensor, labels: Tensor) -> Tensor:
    """Computes float[N], ``|| softmax(logits) - onehot(labels) ||_2``, of float[N, C] and int64[N].

    >>> error_norms(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.7071])
    """
    errors = logits.softmax(1) - F.one_hot(labels, logits.shape[1])
    return cast(Tensor, torch.linalg.vector_norm(errors, dim=1))


def confidence_gaps(logits: Tensor, labels: Tensor) -> Tensor:
    """Computes float[N], one minus the margin between the two most probable classes."""
    first, second = logits.softmax(1).topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Computes float[N], the entropy of ``softmax(logits)`` in nats, of float[N, C]."""
    return cast(Tensor, torch.special.entr(logits.softmax(1)).sum(1))


def gradient_norms(model: nn.Module, losses: Losses, batch: Any, chunk_size: int) -> Tensor:
    """Computes float[N], the norm of the gradient of each example's loss.

    Args:
        model: The model, in the mode to compute in.
        losses: ``losses(model, batch) -> Tensor[N]``.
        batch: A nested batch of N examples that has only tensors.
        chunk_size: Number of gradients computed at a time.

    Raises:
        ConfigError: If no weight is trained, or ``chunk_size`` is not a positive integer.
        LossError: If a batch of one example does not have one loss.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}
    trained = {n: weights.pop(n) for n, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ConfigError(
            f"no weight of the {type(model).__name__} requires a gradient: unfreeze some of them"
        )
    chunk_size = check_integer("chunk_size", chunk_size, 1)
    fixed = weights | dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], example: Any) -> Tensor:
        def same(*inputs: Any, **options: Any) -> Any:
            return functional_call(model, fixed | parameters, inputs, options)

        same.get_base_model = lambda: model  # type: ignore[attr-defined]  # as of an adapter
        alone = tree.map_tensors(lambda tensor: tensor.unsqueeze(0), example)
        value: Any = losses(same, alone)  # type: ignore[arg-type]
        if not isinstance(value, Tensor) or value.shape != (1,):
            raise LossError(
                f"one example's losses are {getattr(value, 'shape', type(value).__name__)}: "
                'give one loss per example, of shape [1]: use reduction="none"'
            )
        return value[0]

    def norm(example: Any) -> Tensor:
        gradients = grad(loss)(trained, example)
        return torch.stack([g.float().square().sum() for g in gradients.values()]).sum().sqrt()

    return torch.vmap(norm, chunk_size=chunk_size)(batch)


def score_predictions(
    formula: Callable[[Tensor, Tensor], Tensor],
    models: Models,
    data: Any,
    outputs: Outputs,
    batch_size: int,
) -> Tensor:
    """Averages over models a score that is a function of logits and labels."""

    def score(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            logits, labels = outputs(model, batch)
            check_logits(logits, labels, tree.size(batch))
            return formula(logits.float(), labels.to(logits.device))

    return mean_scores(score, models, data, batch_size)


def pair_outputs(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Returns the logits and the labels of a batch of (inputs, labels)."""
    inputs, labels = split_pair(batch)
    return model(inputs), labels


def mean_scores(
    score: Callable[[nn.Module, Any], Tensor], models: Models, data: Any, batch_size: int
) -> Tensor:
    """Averages the scores of all examples over models: float32[N], in the data set's order."""
    check_integer("batch_size", batch_size, 1)
    listed: list[Any] = [models]
    if isinstance(models, Iterable) and not isinstance(models, nn.Module | str | bytes | Tensor):
        listed = list(models)
    if not listed or not all(isinstance(model, nn.Module) for model in listed):
        raise ConfigError(
            f"no model given, models={format_value(models)}: give a torch.nn.Module or several"
        )
    loader = data
    if isinstance(data, Dataset):  # with a generator, so that the global one is not used
        loader = DataLoader(data, batch_size, generator=torch.Generator())
    source = Source(loader)
    if not source.knows_indices:
        check_order(loader)
    check = IndexCheck(examples_of(loader))
    scores: list[Tensor] = []
    rows: list[Tensor] = []
    for number, item in enumerate(source.batches()):
        if source.knows_indices:
            if item.indices is None:
                raise ConfigError(
                    f"batch {number} has other examples than those sampled: give the data set "
                    "itself, or a loader with a collate function that leaves none out"
                )
            check.check(item.indices, f"batch {number}")
            rows.append(item.indices)
        by_model = []
        for model in listed:
            batch = item.to_device_of(model)
            with untouched(model, "eval", batch.device):
                # A copy, as a model may write to its inputs, and the next one has the same.
                values = score(model, tree.clone(batch.data))
            by_model.append(values.detach().float().cpu())
        scores.append(torch.stack(by_model).mean(0))
        if not scores[-1].isfinite().all():
            raise LossError(
                f"batch {number} has scores that are not finite: check the outputs and "
                "gradients of the models, and train them at a lower learning rate"
            )
    if not scores:
        raise ConfigError("the data gave no batch: give a data set, or an iterable of batches")
    values = torch.cat(scores)
    order = torch.cat(rows) if rows else torch.arange(len(values))
    examples = len(values) if check.examples is None else check.examples
    if len(values) != examples or int(order.max()) >= examples:
        raise ConfigError(
            f"the data gave {len(values)} examples of {max(examples, int(order.max()) + 1)}: give "
            "all of them, with drop_last=False and no sampler that leaves any out"
        )
    return values[order.argsort()]


def check_order(loader: Iterable[Any]) -> None:
    """Checks that a loader gives the examples in the order of its data set, as far as it says it.

    Raises:
        ConfigError: If the order may differ.
    """
    # A DataLoader, or what wraps one. Of a stream, several workers take turns.
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    is_stream = isinstance(dataset, IterableDataset) and getattr(loader, "num_workers", 0) < 2
    is_ordered = isinstance(sampler, SequentialSampler) and getattr(loader, "in_order", True)
    if hasattr(loader, "sampler") and not (is_stream or is_ordered):
        raise ConfigError(
            "the order of the loader may differ from the data set's, and scores must match their "
            "examples: give the data set itself, or a loader with a batch size of Indexed(dataset)"
        )
