"""What can still be learnt of an example: its loss less that of a model that knows the rest."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from siftback.errors import BatchError, ConfigError, LossError, StateError
from siftback.loading import tree
from siftback.loading.indices import Indexed, IndexOf, Indices
from siftback.loading.score_table import ScoreTable
from siftback.loss_functions import Losses, LossFn, resolve
from siftback.scorers.fresh import Fresh, Scorer
from siftback.scorers.nested import load_nested, nested_state


class Irreducible(Scorer):
    """Scores a batch by the reducible holdout loss: the loss less the irreducible one.

    RHO-loss (Mindermann et al. 2022, *Prioritized Training on Points that are Learnable, Worth
    Learning, and Not Yet Learnt*)::

        score = L[y | x; the model] - L[y | x; a model of holdout data]

    The second loss is computed once for each example (`irreducible_losses`): it stays high where
    the label is noise, so that such examples score low. With ``selector=TopK(keep=...)`` this is
    what they train by. The loader must know indices: ``DataLoader(Indexed(dataset), ...)``, or
    ``index_of=``. It is the loader's own scorer; what makes the losses is given to it.

    Args:
        irreducible: float[examples], the irreducible losses by dataset index, or a table of them.
        scorer: What makes the losses of a batch; by default a `Fresh` forward.

    Raises:
        ConfigError: Where the losses are no floating-point tensor of one dimension, or the scorer
            needs indices itself or works ahead.
        BatchError: While scoring, where an index is beyond the losses.
        LossError: While scoring, where an example has no finite irreducible loss.

    >>> from torch.nn import functional as F
    >>> from siftback import SelectiveLoader, TopK
    >>> data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
    >>> model, holdout = nn.Linear(8, 4), nn.Linear(8, 4)  # trained on other data
    >>> scorer = Irreducible(irreducible_losses(holdout, data, F.cross_entropy))
    >>> loader = torch.utils.data.DataLoader(Indexed(data), batch_size=32)
    >>> loader = SelectiveLoader(
    ...     loader, model, F.cross_entropy, selector=TopK(keep=1 / 4), scorer=scorer, batch_size=8
    ... )
    >>> [len(targets) for _, targets in loader]
    [8, 8]
    """

    needs_indices = True

    def __init__(self, irreducible: Tensor | ScoreTable, scorer: Scorer | None = None) -> None:
        if isinstance(irreducible, ScoreTable):
            irreducible = irreducible.scores()
        if irreducible.ndim != 1 or not irreducible.is_floating_point():
            raise ConfigError(
                f"irreducible losses {irreducible.dtype} of shape {list(irreducible.shape)}: give "
                "one loss for each example of the data set, float[examples]"
            )
        self.scorer = scorer or Fresh()
        if self.scorer.needs_indices or self.scorer.depth:
            raise ConfigError(
                f"{type(self.scorer).__name__} cannot make the losses here: give a scorer that "
                "makes them from a batch in its turn, such as Fresh"
            )
        self.irreducible = irreducible.detach().float().cpu()

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        """Raises: without indices there is no irreducible loss to take off.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "Irreducible needs each example's index, which only the loader tells: give it as the "
            "loader's own scorer, and any other one to it, Irreducible(losses, scorer=...)"
        )

    def score_indexed(
        self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor
    ) -> Tensor:
        """See `Scorer.score_indexed`: float32[N], what is left to learn of each."""
        scores = self.scorer.score(losses, model, batch)
        indices = indices.cpu()
        known = len(self.irreducible)
        if len(indices) and int(indices.max()) >= known:
            raise BatchError(
                f"a batch has the index {int(indices.max())}, and there are {known} irreducible "
                "losses: compute them over the data set that is trained on"
            )
        floor = self.irreducible[indices]
        if not bool(floor.isfinite().all()):
            example = int(indices[~floor.isfinite()][0])
            raise LossError(
                f"example {example} has no finite irreducible loss: compute one for each example, "
                "as irreducible_losses does"
            )
        return scores - floor.to(scores.device, non_blocking=True)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Tells the inner scorer."""
        self.scorer.after_step(losses, model, batch)

    def state_dict(self) -> dict[str, Any]:
        """The irreducible losses and the inner scorer's state."""
        return {"irreducible": self.irreducible, "scorer": nested_state(self.scorer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state, with the irreducible losses of that one.

        Raises:
            StateError: Where those are of another number of examples.
        """
        if len(state["irreducible"]) != len(self.irreducible):
            raise StateError(
                f"irreducible losses of {len(state['irreducible'])} examples do not fit "
                f"{len(self.irreducible)}: resume with the data set that they were saved with"
            )
        load_nested(self.scorer, state["scorer"])
        self.irreducible = state["irreducible"].clone()


def irreducible_losses(
    model: nn.Module,
    data: Iterable[Any],
    loss_fn: LossFn | None = None,
    *,
    losses: Losses | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    index_of: IndexOf | None = None,
    scorer: Scorer | None = None,
) -> Tensor:
    """The loss of each example of a data set under a model: one forward pass over it.

    For `Irreducible`, the model is one trained on holdout data, data that is not trained on, by
    whatever loop trains it (Mindermann et al. 2022: it may be small). Without holdout
    data, train one model on each half and score the other half with it, as they do too.

    Args:
        model: The holdout model. It is read in eval mode, and left as it was.
        data: The data set that is to be trained on, map-style; or a loader that gives the indices
            of its examples: over `Indexed`, or with ``index_of``.
        loss_fn: ``loss_fn(outputs, targets)`` for batches that are ``(inputs, targets)`` pairs.
        losses: In its place, for any batch: ``losses(model, batch) -> Tensor[N]``.
        batch_size: Of the passes over a data set; a loader has its own.
        device: Where to move each batch first; None leaves it where it is.
        index_of: ``index_of(batch) -> int64[N]``, for a loader over examples without indices.
        scorer: What makes the losses; by default `Fresh`.

    Returns:
        float32[N], by dataset index, on the CPU; NaN for examples that a loader did not give.

    Raises:
        ConfigError: Where both or neither of ``loss_fn`` and ``losses`` are given, or a loader
            tells no indices.
        BatchError: Where indices are out of range or repeated.
        LossError: Where there is not one floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    >>> irreducible_losses(nn.Identity(), data, F.mse_loss)
    tensor([1., 9.])
    """
    each = resolve(loss_fn, losses)
    if index_of is None and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        data = DataLoader(Indexed(data), batch_size=batch_size)
    indices_of = Indices(data, index_of)
    if not indices_of.known:
        raise ConfigError(
            f"a {type(data).__name__} does not tell whose losses these would be: give the data "
            "set, or a DataLoader(Indexed(dataset), ...), or index_of=fn(batch) -> int64[N]"
        )
    table, scorer = ScoreTable(indices_of.examples or 0), scorer or Fresh()
    for position, given in enumerate(data):
        batch, indices = indices_of.take_off(given, f"batch {position}")
        if device is not None:
            batch = tree.to_device(batch, torch.device(device))
        if not len(indices):
            raise BatchError(f"batch {position} is empty: leave empty batches out of the loader")
        table.grow(int(indices.max()) + 1)
        table.record(indices, scorer.score(each, model, batch), epoch=0)
    return table.scores()
