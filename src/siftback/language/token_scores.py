"""Scores of tokens to select by, besides their losses."""

from typing import Any, cast

import torch
from torch import Tensor

from siftback.arguments import check_integer
from siftback.errors import LossError
from siftback.rules.rule import checked_table
from siftback.tables.score_table import ScoreTable
from siftback.tensor_arguments import check_tensor, check_within


def token_entropies(logits: Tensor) -> Tensor:
    """Computes the entropy of each token's predicted distribution, ``-sum(p log p)``, in nats.

    What a model is unsure of, whatever the label says.

    Args:
        logits: float[..., V].

    Returns:
        float32[...], detached, in [0, log V].

    >>> token_entropies(torch.tensor([[0.0, 0.0], [999.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    return cast(Tensor, torch.special.entr(logits.detach().float().softmax(-1)).sum(-1))


class TokenMemory:
    """The loss that each token of each example had when it was last seen.

    For examples whose tokens are the same at every visit, and at the same positions, as the fixed
    windows of a language model are: padding, if there is any, is on the right. A token whose loss
    is above what it was has been forgotten, or was never learned while others were: its excess is
    the score to select by, as Rho-1's is the excess over another model's loss (Lin et al. 2024,
    equation 3), which costs a second forward and this does not.

    Args:
        examples: Number of examples.
        length: T, tokens of the longest.
        table: Where losses are remembered, of T columns; None is a new one in memory.

    Raises:
        ConfigError: If a size is not an integer, at least 0, or the table has another number of
            columns.

    >>> memory = TokenMemory(examples=3, length=2)
    >>> mask = torch.tensor([[True, True]])
    >>> memory.excess(torch.tensor([1]), torch.tensor([[2.0, 1.0]]), mask)
    tensor([[2., 1.]])
    >>> memory.excess(torch.tensor([1]), torch.tensor([[1.5, 1.25]]), mask)
    tensor([[-0.5000,  0.2500]])
    """

    def __init__(self, examples: int, length: int, *, table: ScoreTable | None = None) -> None:
        self._table = checked_table("TokenMemory", table, check_integer("length", length, 0))
        self._table.grow(check_integer("examples", examples, 0))

    def excess(self, indices: Tensor, losses: Tensor, mask: Tensor) -> Tensor:
        """Computes the excess of tokens' losses over those remembered, which they then replace.

        Args:
            indices: int64[B], distinct examples.
            losses: float[B, t], t at most T.
            mask: bool[B, t], True for valid tokens.

        Returns:
            float32[B, t], on the device of the losses; of tokens never seen before their loss, as
            if 0 were remembered.

        Raises:
            BatchError: If the indices are not int64[B], of examples.
            LossError: If shapes or types do not fit.
        """
        check_tensor("indices", indices, "int64", "B")
        check_tensor("losses", losses, "float", len(indices), "t", error=LossError)
        check_tensor("mask", mask, "bool", *losses.shape, error=LossError)
        if losses.shape[1] > self._table.columns:
            raise LossError(
                f"sequences of {losses.shape[1]} tokens do not fit length={self._table.columns}: "
                "make the TokenMemory with the length of the longest"
            )
        values, rows = losses.detach().float().cpu(), indices.cpu()
        check_within("indices", rows, len(self._table), "make the TokenMemory with more examples")
        before = self._table.values[rows]
        remembered = before[:, : values.shape[1]]
        excess = values - remembered.nan_to_num()
        before[:, : values.shape[1]] = torch.where(mask.cpu(), values, remembered)
        self._table.record(rows, before)
        return excess.to(losses.device)

    def state_dict(self) -> dict[str, Any]:
        """Returns the losses remembered."""
        return self._table.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state.

        Raises:
            StateError: If it is of other examples, or of another length.
        """
        self._table.load_state_dict(state)
