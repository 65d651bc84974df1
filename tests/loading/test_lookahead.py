"""Batches read before their turn."""

import pytest

from siftback.loading.lookahead import Lookahead
from siftback.loading.source import Source


@pytest.mark.parametrize("depth", [0, 1, 3, 50])
def test_reading_ahead_keeps_the_order_and_reads_no_further_than_asked(depth):
    begun = []

    def begin(batch):
        begun.append(batch)
        return batch, 10 * batch

    source = Source(list(range(9)))
    for turn, (batch, tenfold) in enumerate(Lookahead(source, depth).batches(begin)):
        assert (batch, tenfold) == (turn, 10 * turn)
        assert begun == list(range(min(9, turn + 1 + depth)))
        assert source.ahead == len(begun) - turn - 1
        source.position += 1
    assert turn == 8
