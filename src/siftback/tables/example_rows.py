"""Rows for examples whose number, or whose numbering, is not known beforehand."""

from typing import Any

import torch
from torch import Tensor

from siftback.errors import BatchError
from siftback.state import Check, Stateful, raise_damaged, tensor


class ExampleRows(Stateful):
    """Gives each example a row of a table, in the order in which they first come.

    The indices of a stream may be any integers from 0 on, such as the keys of a database. Rows
    between them that no example has would count as examples that were never seen.

    >>> rows = ExampleRows()
    >>> rows.add(torch.tensor([700, 30]))
    >>> rows.add(torch.tensor([30, 55]))
    >>> rows.rows_of(torch.tensor([55, 700])), rows.indices_of(torch.tensor([1]))
    (tensor([2, 0]), tensor([30]))
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def indices(self) -> Tensor:
        """int64[rows], the index of the example of each row."""
        return torch.tensor([*self._rows], dtype=torch.int64)

    @indices.setter
    def indices(self, indices: Tensor) -> None:
        self._rows = {index: row for row, index in enumerate(indices.tolist())}

    def add(self, indices: Tensor) -> None:
        """Gives a row to each of int64[n] that has none."""
        for index in indices.tolist():
            self._rows.setdefault(index, len(self._rows))

    def indices_of(self, rows: Tensor) -> Tensor:
        """Returns int64[n], the examples of rows."""
        return self.indices[rows]

    def rows_of(self, indices: Tensor) -> Tensor:
        """Returns int64[n], the rows of examples.

        Raises:
            BatchError: If one of them never came.
        """
        try:
            return torch.tensor([self._rows[i] for i in indices.tolist()], dtype=torch.int64)
        except KeyError as error:
            raise BatchError(
                f"no example of index {error.args[0]} came so far: give those that the loader gave"
            ) from None

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {"indices": tensor(torch.int64, None)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is not distinct indices.
        """
        super().check_state(state)
        if len(state["indices"].unique()) < len(state["indices"]):
            raise_damaged("ExampleRows.indices", "with an index twice", "distinct indices")
