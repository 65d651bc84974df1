"""Selective training for PyTorch: choose the examples worth a backward pass.

>>> from siftback import SelectiveLoader
"""

from siftback.batching import BatchFormer
from siftback.errors import BatchError, ConfigError, LossError, SiftbackError, StateError
from siftback.history import LossHistory
from siftback.loader import SelectiveLoader
from siftback.losses import per_example
from siftback.schedule import Schedule
from siftback.selectors import (
    All,
    Percentile,
    Selection,
    Selector,
    Uniform,
    percentile_probabilities,
)
from siftback.stats import Stats

__version__ = "0.1.0"

__all__ = [
    "All",
    "BatchError",
    "BatchFormer",
    "ConfigError",
    "LossError",
    "LossHistory",
    "Percentile",
    "Schedule",
    "Selection",
    "SelectiveLoader",
    "Selector",
    "SiftbackError",
    "StateError",
    "Stats",
    "Uniform",
    "per_example",
    "percentile_probabilities",
]
