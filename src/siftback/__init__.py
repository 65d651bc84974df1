"""Selective training for PyTorch: choose the examples worth a backward pass.

>>> from siftback import SelectiveLoader
"""

import typing

from siftback.contrib.downsampled import Downsampled
from siftback.contrib.pipelined import Pipelined
from siftback.contrib.proxy import Proxy
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
from siftback.loader import SelectiveLoader
from siftback.loading.indices import Indexed, SelectiveSampler
from siftback.loading.pool import BatchFormer
from siftback.loading.score_table import ScoreTable
from siftback.loading.stats import SinglePassStats, Stats
from siftback.loss_functions import per_example
from siftback.probing.probe import Probe, probe
from siftback.rules.ies import IES
from siftback.rules.infobatch import InfoBatch
from siftback.rules.kakurenbo import Kakurenbo
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.predicted import Ewma, GaussianProcess
from siftback.rules.remembered import Memory, Stale
from siftback.rules.rs2 import RS2
from siftback.rules.seta import SeTa
from siftback.rules.ucb import UCB
from siftback.schedule import Annealing, Schedule
from siftback.scorers.ema import Ema
from siftback.scorers.fresh import Fresh, Scorer
from siftback.scorers.gradient_bound import GradientBound
from siftback.scorers.irreducible import Irreducible, irreducible_losses
from siftback.scorers.reduced import Reduced
from siftback.selectors.history import LossHistory
from siftback.selectors.importance import Kath18
from siftback.selectors.in_batch import InBatch
from siftback.selectors.percentile import Percentile, percentile_probabilities
from siftback.selectors.ranking import InBatchRank, SoftTopK, Threshold, TopK
from siftback.selectors.selection import Selection, Selector
from siftback.selectors.unbiased import Unbiased
from siftback.selectors.uniform import All, Uniform

if typing.TYPE_CHECKING:
    from siftback.single_pass.single_pass import SinglePass

__version__ = "0.1.0"

__all__ = [
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
    "Fresh",
    "GaussianProcess",
    "GradientBound",
    "GradientError",
    "InBatch",
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
    "irreducible_losses",
    "per_example",
    "percentile_probabilities",
    "probe",
]


def __getattr__(name: str) -> typing.Any:
    """Imports `SinglePass` when it is asked for: it brings in the compiler, for two seconds."""
    if name == "SinglePass":
        from siftback.single_pass.single_pass import SinglePass

        return SinglePass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
