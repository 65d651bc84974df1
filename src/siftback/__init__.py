"""Selective training for PyTorch: choose the examples worth a backward pass.

>>> from siftback import SelectiveLoader
"""

import typing

from siftback.batching import BatchFormer
from siftback.errors import (
    BatchError,
    ConfigError,
    GradientError,
    LossError,
    ReplicaError,
    SiftbackError,
    StateError,
    TraceError,
)
from siftback.guard import SelectionCostWarning
from siftback.history import LossHistory
from siftback.importance import Kath18
from siftback.indexed import Indexed, SelectiveSampler
from siftback.loader import SelectiveLoader
from siftback.losses import per_example
from siftback.noise import NoiseGuard
from siftback.probe import Probe, probe
from siftback.pruning import el2n, entropy, grand, margin, prune
from siftback.ranking import InBatchRank, SoftTopK, Threshold, TopK
from siftback.recorders import AUM, Forgetting
from siftback.schedule import Annealing, Schedule
from siftback.scorers.downsampled import Downsampled
from siftback.scorers.ema import Ema
from siftback.scorers.gradient_bound import GradientBound
from siftback.scorers.ies import IES
from siftback.scorers.infobatch import InfoBatch
from siftback.scorers.irreducible import Irreducible, irreducible_losses
from siftback.scorers.kakurenbo import Kakurenbo
from siftback.scorers.pipelined import Pipelined
from siftback.scorers.predicted import Ewma, GaussianProcess
from siftback.scorers.proxy import Proxy
from siftback.scorers.reduced import Reduced
from siftback.scorers.remembered import Memory, Stale
from siftback.scorers.rs2 import RS2
from siftback.scorers.seta import SeTa
from siftback.scorers.ucb import UCB
from siftback.scoring import Fresh, Scorer
from siftback.selectors import (
    All,
    Percentile,
    Selection,
    Selector,
    Uniform,
    percentile_probabilities,
)
from siftback.stats import SinglePassStats, Stats
from siftback.table import ScoreTable
from siftback.unbiased import Unbiased

if typing.TYPE_CHECKING:
    from siftback.single_pass import SinglePass

__version__ = "0.1.0"

__all__ = [
    "AUM",
    "IES",
    "RS2",
    "UCB",
    "All",
    "Annealing",
    "BatchError",
    "BatchFormer",
    "ConfigError",
    "Downsampled",
    "Ema",
    "Ewma",
    "Forgetting",
    "Fresh",
    "GaussianProcess",
    "GradientBound",
    "GradientError",
    "InBatchRank",
    "Indexed",
    "InfoBatch",
    "Irreducible",
    "Kakurenbo",
    "Kath18",
    "LossError",
    "LossHistory",
    "Memory",
    "NoiseGuard",
    "Percentile",
    "Pipelined",
    "Probe",
    "Proxy",
    "Reduced",
    "ReplicaError",
    "Schedule",
    "ScoreTable",
    "Scorer",
    "SeTa",
    "Selection",
    "SelectionCostWarning",
    "SelectiveLoader",
    "SelectiveSampler",
    "Selector",
    "SiftbackError",
    "SinglePass",
    "SinglePassStats",
    "SoftTopK",
    "Stale",
    "StateError",
    "Stats",
    "Threshold",
    "TopK",
    "TraceError",
    "Unbiased",
    "Uniform",
    "el2n",
    "entropy",
    "grand",
    "irreducible_losses",
    "margin",
    "per_example",
    "percentile_probabilities",
    "probe",
    "prune",
]


def __getattr__(name: str) -> typing.Any:
    """Imports `SinglePass` when it is asked for: it brings in the compiler, for two seconds."""
    if name == "SinglePass":
        from siftback.single_pass import SinglePass

        return SinglePass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
