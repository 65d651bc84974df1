"""Batches read before their turn."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from siftback.loading import tree
from siftback.loading.source import Source

Begin = Callable[[Any], tuple[Any, Any]]


class Lookahead:
    """Reads batches before their turn, so that something may be begun on them meanwhile.

    Args:
        source: Where they come from; is told how many were read ahead, and when there are no
            more.
        depth: How many to read beyond the one whose turn it is; 0 reads each in its turn.

    >>> lookahead = Lookahead(Source([10, 20, 30]), depth=1)
    >>> def begin(number):
    ...     print("begun", number)
    ...     return number, "what was begun"
    >>> for number, begun in lookahead.batches(begin):
    ...     print(number)
    begun 10
    begun 20
    10
    begun 30
    20
    30
    """

    def __init__(self, source: Source, depth: int) -> None:
        self.depth = depth
        self._source = source
        self._waiting: deque[tuple[Any, Any]] = deque()

    def batches(self, begin: Begin) -> Iterator[tuple[Any, Any]]:
        """The batches of this epoch, as `Source.batches`, each with what was begun on it.

        Args:
            begin: Called with each batch as it is read; gives the batch, which it may move, and
                what was begun on it, in a form fit for ``torch.save``.
        """
        if not self._source.is_resumed:
            self._waiting.clear()
        return self._in_turn(self._source.batches(), begin)

    def _in_turn(self, batches: Iterator[Any], begin: Begin) -> Iterator[tuple[Any, Any]]:
        while True:
            while not self._source.ended and len(self._waiting) <= self.depth:
                try:
                    batch = next(batches)
                except StopIteration:
                    self._source.ended = True
                    break
                self._waiting.append(begin(batch))
                self._source.ahead += 1
            if not self._waiting:
                return
            self._source.ahead -= 1
            yield self._waiting.popleft()

    def state_dict(self) -> list[tuple[Any, Any]]:
        """Copies of the batches that wait for their turn, each with what was begun on it."""
        return [(tree.clone(batch), begun) for batch, begun in self._waiting]

    def load_state_dict(self, state: list[tuple[Any, Any]]) -> None:
        """Takes up the waiting batches of another one."""
        self._waiting = deque((tree.clone(batch), begun) for batch, begun in state)
