"""Pruning a data set once, before training: scores of its examples, and a choice by them.

>>> from siftback.pruning import el2n, prune
"""

from siftback.pruning.prune import prune
from siftback.pruning.recorders import AUM, Forgetting
from siftback.pruning.scores import el2n, entropy, grand, margin

__all__ = ["AUM", "Forgetting", "el2n", "entropy", "grand", "margin", "prune"]
