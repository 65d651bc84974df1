"""The reducible holdout loss: an example's loss minus its loss under a holdout model."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from siftback.batches.indices import IndexCheck, examples_of
from siftback.batches.source import Source
from siftback.errors import ConfigError
from siftback.host_reads import move
from siftback.losses.per_example import Losses, LossFn, resolve_losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import WrappingScorer, check_scorer
from siftback.state import Check, shaped_like
from siftback.tensor_arguments import check_module, check_tensor, check_within


class Irreducible(WrappingScorer):
    """Scores a batch by the reducible holdout loss: the loss minus the irreducible loss.

    RHO-loss (Mindermann et al. 2022, *Prioritized Training on Points that are Learnable, Worth
    Learning, and Not Yet Learnt*)::

        score = L[y | x; the model] - L[y | x; a model of holdout data]

    The second loss is computed once per example (`irreducible_losses`): it is high for noisy
    labels, so that such examples score low. The paper selects by it with
    ``selector=TopK(keep=...)``. The loader must know each example's index, as it does for a
    map-style data set.

    Args:
        losses: float[examples], the irreducible losses by dataset index.
        scorer: Computes the losses of a batch; by default a `Fresh` forward pass.

    Attributes:
        known_examples: Number of examples that it knows by index, which has to be the data set's.

    Raises:
        ConfigError: If the losses are not a floating-point tensor of one dimension. While
            scoring: if the indices are not known, or an example has no irreducible loss.

    >>> from torch.nn import functional as F
    >>> from siftback import Epochs, Pool, Schedule, SelectiveLoader, TopK
    >>> data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
    >>> model, holdout = nn.Linear(8, 4), nn.Linear(8, 4)  # trained on other data
    >>> loader = torch.utils.data.DataLoader(data, batch_size=32)
    >>> scorer = Irreducible(irreducible_losses(holdout, loader, F.cross_entropy))
    >>> settings = {"pool": Pool(8), "schedule": Schedule(warmup=Epochs(0))}
    >>> loader = SelectiveLoader(
    ...     loader, model, F.cross_entropy, selector=TopK(keep=1 / 4), scorer=scorer, **settings
    ... )
    >>> [len(targets) for _, targets in loader]
    [8, 8]
    """

    def __init__(self, losses: Tensor, scorer: Scorer | None = None) -> None:
        super().__init__(scorer)
        advice = ", the irreducible loss of each example of the data set"
        check_tensor("losses", losses, "float", "examples", advice=advice, error=ConfigError)
        self.losses, self.known_examples = losses.detach().float().cpu(), len(losses)

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes the reducible loss of each example, float32[N].

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``.
            model: The model; read only.
            batch: A nested batch of N examples on the model's device.
            indices: int64[N], their dataset indices.

        Raises:
            ConfigError: If ``indices`` is None, or an example has no irreducible loss.
        """
        if indices is None:
            raise ConfigError(
                "Irreducible needs each example's index, and the loader does not know it: give a "
                "DataLoader over a map-style data set, or one over Indexed(dataset)"
            )
        indices = indices.cpu()
        advice = "compute irreducible losses over the training data set"
        check_within("the indices of a batch", indices, len(self.losses), advice, ConfigError)
        irreducible = self.losses[indices]
        if not bool(irreducible.isfinite().all()):
            example = int(indices[~irreducible.isfinite()][0])
            raise ConfigError(
                f"example {example} has no finite irreducible loss: give irreducible_losses(...)"
            )
        scores = self.scorer.score(losses, model, batch, indices)
        return scores - move(irreducible, scores.device)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {**super().settings(), "examples": self.known_examples}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"losses": shaped_like(self.losses)}


def irreducible_losses(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: LossFn | None = None,
    *,
    losses: Losses | None = None,
    scorer: Scorer | None = None,
) -> Tensor:
    """Computes the loss of each example under a model: one forward pass over a data set.

    For `Irreducible`, the model is trained on holdout data, which is not part of the training
    data, by any training loop (Mindermann et al. 2022: it may be small). Without holdout data,
    train one model on each half and score the other half with it, as the paper also does.

    Args:
        model: The holdout model. It is evaluated in eval mode and not changed. Batches are moved
            to its device.
        loader: A ``DataLoader`` over the training data set, in any order, if that is map-style or
            `Indexed`; or another loader that gives ``(indices, batch)`` and has the attribute
            ``indexed = True``.
        loss_fn: ``loss_fn(outputs, targets)`` for batches that are ``(inputs, targets)`` pairs.
        losses: In its place, for any batch: ``losses(model, batch) -> Tensor[N]``.
        scorer: Computes the losses; by default `Fresh`.

    Returns:
        float32[N], by dataset index, on the CPU; NaN for examples that the loader did not give.

    Raises:
        ConfigError: If both or neither of ``loss_fn`` and ``losses`` are given, or the loader
            does not give the indices of the examples.
        BatchError: If an index is outside the data set, or repeated.
        LossError: If there is not one floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    >>> loader = torch.utils.data.DataLoader(data, shuffle=True)
    >>> irreducible_losses(nn.Identity(), loader, F.mse_loss)
    tensor([1., 9.])
    """
    losses, scorer = resolve_losses(loss_fn, losses), check_scorer(scorer)
    check_module(model)
    source, check = Source(loader), IndexCheck(examples_of(loader))
    indices, values = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
    for item in source.batches():
        if item.indices is None:
            raise ConfigError(
                f"a {type(loader).__name__} does not give the indices of its examples: give a "
                "DataLoader over a map-style data set, or one over Indexed(dataset)"
            )
        check.check(item.indices, source.place)
        indices.append(item.indices)
        batch = item.to_device_of(model).data
        values.append(scorer.score(losses, model, batch, item.indices).cpu())
        source.position += 1
    seen, examples = torch.cat(indices), check.examples
    if examples is None:
        examples = int(seen.max()) + 1 if len(seen) else 0
    by_index = torch.full((examples,), torch.nan, dtype=torch.float32)
    by_index[seen] = torch.cat(values)
    return by_index
