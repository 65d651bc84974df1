"""A pool by itself, of batches alone: how it is filled, and what it releases."""

import math
from dataclasses import replace

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.tree import read_structure


def add(pool, data, rows=None):
    """Adds a nested batch, or copies of some of its rows, int64[k]."""
    lists = pool.lists = pool.lists or read_structure(data, None).lists
    batch = Batch(data, *tree.measure(data, lists), lists=lists)
    if rows is not None:
        batch = replace(batch, data=tree.take(data, rows, lists), size=len(rows))
    pool.add_batch(batch, is_copy=rows is not None)


def release_full(pool, to_come=math.inf):
    """The full batches of an epoch that still adds ``to_come`` examples."""
    return (batch.data for batch in pool.release_full(to_come))


def release_last(pool, *, single=False):
    """The rest, as an epoch ends."""
    return (batch.data for batch in pool.release_last(single=single))
