"""Selective training for PyTorch: choose the examples worth training on.

>>> from siftback import Memory, SelectiveLoader

Beside these names there are `siftback.errors`, `siftback.pruning`, for a choice once before
training, and `siftback.contrib`, methods by which nothing was gained.
"""

import typing

from siftback.errors import SiftbackError
from siftback.loader import SelectiveLoader
from siftback.loading.indices import Indexed
from siftback.loading.pool import Pool
from siftback.loading.source import ScoredBatch
from siftback.loading.stats import Stats
from siftback.loss_functions import per_example
from siftback.rules.memory import Memory
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.rule import EpochRule
from siftback.rules.sampler import SelectiveSampler
from siftback.rules.score_table import ScoreTable
from siftback.schedule import Annealing, Epochs, Schedule, Share
from siftback.scorers.ema import Ema
from siftback.scorers.fresh import Fresh
from siftback.scorers.gradient_bound import GradientBound
from siftback.scorers.irreducible import Irreducible, irreducible_losses
from siftback.scorers.reduced import Reduced
from siftback.scorers.scorer import Scorer
from siftback.selectors.importance import Kath18
from siftback.selectors.in_batch import InBatch
from siftback.selectors.percentile import Percentile
from siftback.selectors.ranking import InBatchRank, SoftTopK, Threshold, TopK
from siftback.selectors.selection import Selection, Selector
from siftback.selectors.unbiased import Unbiased
from siftback.selectors.uniform import All, Uniform

if typing.TYPE_CHECKING:
    from siftback.single_pass.single_pass import SinglePass

__version__ = "0.1.0"


def __getattr__(name: str) -> typing.Any:
    """Imports `SinglePass` when it is asked for: it brings in the compiler, for two seconds."""
    if name == "SinglePass":
        from siftback.single_pass.single_pass import SinglePass

        return SinglePass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
