"""Pruning a data set once, before training: scores of its examples, and which to keep.

All scores are higher for harder examples. A model is scored with as it would be tested, in eval
mode, and is left as it was.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from siftback import loss_functions as of_losses
from siftback.errors import ConfigError, LossError
from siftback.loading import tree
from siftback.loading.indices import Indices
from siftback.loss_functions import Losses, LossFn
from siftback.pruning.recorders import check_predictions
from siftback.scorers.fresh import untouched

Models = nn.Module | Sequence[nn.Module]
"""One model, or several to average over."""

Outputs = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""``outputs(model, batch) -> (logits[N, C], labels[N])``."""


def prune(
    scores: Tensor,
    drop: float | None = None,
    *,
    keep: Literal["hardest", "easiest"] = "hardest",
    window: tuple[float, float] | None = None,
    per_class: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Chooses the examples to keep by their scores.

    With the n examples ranked from the easiest to the hardest and ``d = round(drop * n)``, the
    hardest are ranks d to n, the easiest 0 to n - d, and a window (a, b) is ranks
    ``round(a * n)`` to ``round(b * n)``, as the windows of Paul et al. 2021, which leave out
    the very hardest. Halves are rounded up.

    Args:
        scores: float[N], higher for harder examples; infinite ones have a rank too.
        drop: Share of the examples to leave out, in [0, 1).
        keep: Which ones to keep, the hardest or the easiest.
        window: In place of ``drop``: shares (a, b), 0 <= a < b <= 1.
        per_class: int64[N], the class of each example, to rank and drop within each class; None
            ranks all together.
        seed: Orders examples of equal scores, so that none is kept for its place in the data set.

    Returns:
        int64[k], the indices of those to keep, ascending, for
        ``torch.utils.data.Subset(dataset, kept)``.

    Raises:
        ConfigError: Where scores are no numbers, a share is out of range, both or neither of
            ``drop`` and ``window`` are given, classes do not fit, or nothing would be kept.

    >>> scores = torch.tensor([0.9, 0.1, 0.5, 0.3])
    >>> prune(scores, drop=0.25), prune(scores, drop=0.25, keep="easiest")
    (tensor([0, 2, 3]), tensor([1, 2, 3]))
    >>> prune(scores, window=(0.25, 0.75))
    tensor([2, 3])
    >>> prune(scores, drop=0.5, per_class=torch.tensor([0, 0, 1, 1]))
    tensor([0, 2])
    """
    scores = _numbers(scores)
    _check_shares(drop, keep, window)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(scores), generator=generator)
    order = order[scores[order].argsort(stable=True)]
    if per_class is None:
        ranked = [order]
    else:
        classes = _classes(per_class, len(scores))[order]
        ranked = [order[classes == each] for each in sorted(set(classes.tolist()))]
    kept = torch.cat([_part(group, drop, keep, window) for group in ranked])
    if not len(kept):
        asked = f"drop={drop}" if window is None else f"window={window}"
        raise ConfigError(f"{asked} keeps none of {len(scores)} examples: keep more of them")
    return kept.sort().values


def el2n(
    models: Models, data: Any, *, outputs: Outputs | None = None, batch_size: int = 256
) -> Tensor:
    """EL2N: how far predicted probabilities are from the label, in the mean over early models.

        EL2N(x, y) = E_w || softmax(f_w(x)) - onehot(y) ||_2

    Paul, Ganguli and Dziugaite 2021, *Deep Learning on a Data Diet*. The models
    are of the same architecture from different initial weights, trained for a few epochs.

    Args:
        models: One model or several. The score of several is the mean of each one's own, so
            ``torch.stack([el2n(model, data) for model in models], 1)`` has a column for each.
        data: A ``torch.utils.data.Dataset`` of ``(input, label)``, or batches of one: a loader
            that does not shuffle, or one over `Indexed` examples in any order.
        outputs: For other batches: ``outputs(model, batch) -> (logits, labels)``, float[N, C]
            and int64[N].
        batch_size: For a data set.

    Returns:
        float32[N] on the CPU, in the order of the data set, from 0 to the square root of 2.

    Raises:
        ConfigError: Where there is no model, or the data are shuffled or not given whole.
        BatchError: Where a batch is no pair, or its logits and labels do not fit.
        LossError: Where the outputs of a model are not finite.

    >>> data = [(torch.tensor([[0.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 0]))]
    >>> el2n(nn.Identity(), data)
    tensor([0.7071, 1.4142])
    """
    return _from_predictions(error_norms, models, data, outputs, batch_size)


def margin(
    models: Models, data: Any, *, outputs: Outputs | None = None, batch_size: int = 256
) -> Tensor:
    """How little the likeliest class leads the second likeliest, in the mean over models.

        margin(x) = E_w [1 - (p_(1) - p_(2))],   p = softmax(f_w(x)),

    with p_(1) and p_(2) the largest and the second largest. The label does not matter.

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
    return _from_predictions(lead, models, data, outputs, batch_size)


def entropy(
    models: Models, data: Any, *, outputs: Outputs | None = None, batch_size: int = 256
) -> Tensor:
    """The entropy of the predicted probabilities, in the mean over models.

        entropy(x) = E_w [-sum_c p_c log p_c],   p = softmax(f_w(x))

    The label does not matter. As a score for pruning in Coleman et al. 2020, *Selection via
    Proxy*.

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
    return _from_predictions(entropies, models, data, outputs, batch_size)


def grand(
    models: Models,
    data: Any,
    loss_fn: LossFn = F.cross_entropy,
    *,
    losses: Losses | None = None,
    batch_size: int = 64,
    chunk_size: int = 16,
) -> Tensor:
    """GraNd: the norm of an example's own gradient, in the mean over early models.

        GraNd(x, y) = E_w || gradient with respect to w of loss(f_w(x), y) ||_2

    over all weights that are trained, exactly, by ``torch.func``: as many examples at a time as
    ``chunk_size`` says, each taking the memory of the weights once more.

    Paul, Ganguli and Dziugaite 2021, *Deep Learning on a Data Diet*. In eval
    mode, as batch normalisation has no gradient of one example otherwise.

    Args:
        models: As for `el2n`.
        data: As for `el2n`.
        loss_fn: ``loss_fn(outputs, targets)``, for batches that are such pairs.
        losses: In its place, ``losses(model, batch) -> Tensor[N]`` for any batch of tensors. The
            model that it is given is a function that computes what the model does.
        batch_size: For a data set.
        chunk_size: Gradients that are held at a time.

    Returns:
        float32[N] on the CPU.

    Raises:
        ConfigError: As `el2n`; and where a model has no weights that are trained.
        BatchError: Where a batch is no pair.
        LossError: Where there is not one loss per example, or a gradient is not finite.

    >>> model = nn.Linear(1, 1, bias=False)  # the gradient is 2 (w x - y) x
    >>> _ = nn.init.ones_(model.weight)
    >>> batches = [(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]]))]
    >>> grand(model, batches, nn.functional.mse_loss)
    tensor([ 2., 12.])
    """
    each = of_losses.resolve(None if losses else loss_fn, losses)

    def score(model: nn.Module, batch: Any) -> Tensor:
        return gradient_norms(model, each, batch, chunk_size)

    return _mean_scores(score, models, data, batch_size)


def error_norms(logits: Tensor, labels: Tensor) -> Tensor:
    """float[N], ``|| softmax(logits) - onehot(labels) ||_2``, of float[N, C] and int64[N].

    >>> error_norms(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.7071])
    """
    errors = logits.softmax(1)
    errors = errors.scatter_add(1, labels.unsqueeze(1), errors.new_full((len(labels), 1), -1.0))
    norms: Tensor = torch.linalg.vector_norm(errors, dim=1)
    return norms


def lead(logits: Tensor, labels: Tensor) -> Tensor:
    """float[N], one minus the lead of the likeliest class over the second, of float[N, C]."""
    first, second = logits.softmax(1).topk(2, dim=1).values.unbind(1)
    return 1 - (first - second)


def entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """float[N], the entropy of ``softmax(logits)`` in nats, of float[N, C]."""
    each: Tensor = torch.special.entr(logits.softmax(1))
    return each.sum(1)


def gradient_norms(model: nn.Module, losses: Losses, batch: Any, chunk_size: int) -> Tensor:
    """float[N], the norm of the gradient of each example's loss.

    Args:
        model: Whose weights; in the mode it is to compute in.
        losses: ``losses(model, batch) -> Tensor[N]``.
        batch: A nested batch of N examples, tensors alone.
        chunk_size: Gradients that are held at a time.

    Raises:
        ConfigError: Where no weight is trained, or ``chunk_size`` is no number of examples.
        LossError: Where a batch of one example has not one loss.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}
    trained = {n: weights.pop(n) for n, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ConfigError(
            f"no weight of the {type(model).__name__} requires a gradient: thaw some of them"
        )
    if not isinstance(chunk_size, int) or chunk_size < 1:
        raise ConfigError(f"chunk_size={chunk_size!r}: give a number of examples, at least 1")
    rest = weights | dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], example: Any) -> Tensor:
        def same(*inputs: Any, **options: Any) -> Any:
            return functional_call(model, rest | parameters, inputs, options)

        alone = tree.map_tensors(lambda part: part.unsqueeze(0), example)
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

    norms: Tensor = torch.vmap(norm, chunk_size=chunk_size)(batch)
    return norms


def _from_predictions(
    of: Callable[[Tensor, Tensor], Tensor],
    models: Models,
    data: Any,
    outputs: Outputs | None,
    batch_size: int,
) -> Tensor:
    """The mean over models of a score that is a function of logits and labels."""

    def score(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            logits, labels = (outputs or _pair_outputs)(model, batch)
            check_predictions(logits, labels, tree.size(batch))
            return of(logits.float(), labels.to(logits.device))

    return _mean_scores(score, models, data, batch_size)


def _pair_outputs(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = of_losses.pair(batch)
    return model(inputs), labels


def _mean_scores(
    score: Callable[[nn.Module, Any], Tensor], models: Models, data: Any, batch_size: int
) -> Tensor:
    """float32[N], the mean over models of the scores of all examples, in the data set's order."""
    listed = [models] if isinstance(models, nn.Module) else list(models)
    if not listed:
        raise ConfigError("no model given: give at least one")
    loader = data
    if isinstance(data, Dataset):  # a loader draws a seed each time: not from the global generator
        loader = DataLoader(data, batch_size, generator=torch.Generator())
    _refuse_shuffled(loader)
    indices = Indices(loader, None)
    found: list[Tensor] = []
    places: list[Tensor] = []
    for number, batch in enumerate(loader):
        if indices.known:
            batch, place = indices.take_off(batch, f"batch {number}")
            places.append(place)
        each = [_of_model(score, model, batch) for model in listed]
        found.append(torch.stack(each).mean(0))
        if not found[-1].isfinite().all():
            raise LossError(
                f"batch {number} has scores that are not finite: look for outputs or gradients "
                "of the models that are not, and train them at a lower rate"
            )
    if not found:
        raise ConfigError("the data gave no batch: give a data set, or batches that can be read")
    return _in_order(torch.cat(found), places, indices.examples)


def _of_model(score: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any) -> Tensor:
    weight = next(model.parameters(), None)
    device = tree.device(batch) if weight is None else weight.device
    with untouched(model, "eval", device):
        return score(model, tree.to_device(batch, device)).detach().float().cpu()


def _refuse_shuffled(loader: Iterable[Any]) -> None:
    if not isinstance(loader, DataLoader) or Indices(loader, None).known:
        return
    if isinstance(loader.dataset, IterableDataset):
        return
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", None)
    if not isinstance(sampler, SequentialSampler):
        raise ConfigError(
            "the loader has an order of its own, and a score must find its example: give the "
            "data set itself, a loader with shuffle=False, or one over Indexed(dataset)"
        )


def _in_order(values: Tensor, places: list[Tensor], examples: int | None) -> Tensor:
    count = len(values) if examples is None else examples
    place = torch.cat(places) if places else torch.arange(len(values))
    if len(values) != count or int(place.max()) >= count:
        raise ConfigError(
            f"the data gave {len(values)} examples of {max(count, int(place.max()) + 1)}: give "
            "all of them, with drop_last=False and no sampler that leaves any out"
        )
    ordered = torch.empty_like(values)
    ordered[place] = values
    return ordered


def _numbers(scores: Tensor) -> Tensor:
    if not isinstance(scores, Tensor) or scores.ndim != 1 or not len(scores):
        given = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ConfigError(f"scores of {given}: give a tensor with one score per example, float[N]")
    missing = scores.isnan().nonzero().flatten()
    if len(missing):
        raise ConfigError(
            f"{len(missing)} of {len(scores)} scores are no numbers, the first is that of example "
            f"{int(missing[0])}: score every example, or take those that have none away"
        )
    return scores.detach().cpu()


def _check_shares(drop: float | None, keep: str, window: tuple[float, float] | None) -> None:
    if (drop is None) == (window is None):
        raise ConfigError(
            f"drop={drop} and window={window}: give one of them, a share to leave out or the "
            "shares that bound what is kept"
        )
    if drop is not None and not 0 <= drop < 1:
        raise ConfigError(f"drop={drop} is not a share to leave out: give a number in [0, 1)")
    if keep not in ("hardest", "easiest"):
        raise ConfigError(f'keep={keep!r}: give "hardest" or "easiest"')
    if window is not None and not (len(window) == 2 and 0 <= window[0] < window[1] <= 1):
        raise ConfigError(f"window={window}: give shares (a, b) with 0 <= a < b <= 1")


def _classes(per_class: Tensor, count: int) -> Tensor:
    if not isinstance(per_class, Tensor) or per_class.shape != (count,):
        given = list(per_class.shape) if isinstance(per_class, Tensor) else per_class
        raise ConfigError(
            f"per_class={given} for {count} scores: give the class of each example, int64[{count}]"
        )
    if per_class.is_floating_point():
        raise ConfigError(f"per_class is {per_class.dtype}: give whole numbers, int64[{count}]")
    return per_class.cpu()


def _part(
    ranked: Tensor, drop: float | None, keep: str, window: tuple[float, float] | None
) -> Tensor:
    """The part that is kept of examples that are ranked from the easiest to the hardest."""
    n = len(ranked)
    if window is not None:
        return ranked[int(window[0] * n + 0.5) : int(window[1] * n + 0.5)]
    dropped = int((drop or 0.0) * n + 0.5)
    return ranked[dropped:] if keep == "hardest" else ranked[: n - dropped]
