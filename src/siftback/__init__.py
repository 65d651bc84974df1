"""Selective training for PyTorch: choose the examples worth training on.

>>> from siftback import Memory, SelectiveLoader

Besides these names there are `siftback.errors`; `siftback.pruning`, which selects once before
training; and `siftback.contrib`, methods from the papers that gained nothing over
simpler ones in our measurements.
"""

import importlib
import typing

from siftback.errors import SiftbackError

if typing.TYPE_CHECKING:
    from siftback.batches.indices import Indexed
    from siftback.batches.pool import Pool
    from siftback.batches.stats import SinglePassStats, Stats
    from siftback.epochs.sampler import SelectiveSampler
    from siftback.loader.face import SelectiveLoader
    from siftback.losses.per_example import per_example
    from siftback.losses.sequences import sequence_losses, token_losses
    from siftback.probing.probe import probe
    from siftback.probing.result import ProbeResult
    from siftback.rules.ewma import Ewma
    from siftback.rules.ies import IES
    from siftback.rules.infobatch import InfoBatch
    from siftback.rules.kakurenbo import Kakurenbo
    from siftback.rules.memory import Memory
    from siftback.rules.noise_guard import NoiseGuard
    from siftback.rules.ratio_memory import RatioMemory
    from siftback.rules.rs2 import RS2
    from siftback.rules.rule import EpochRule, RefreshedRule
    from siftback.rules.seta import SeTa
    from siftback.rules.stale import Stale
    from siftback.rules.ucb import UCB
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
    from siftback.selectors.uniform import Uniform
    from siftback.single_pass.single_pass import SinglePass
    from siftback.tables.score_table import ScoreTable

__version__ = "0.2.0"

__all__ = [
    "IES",
    "RS2",
    "UCB",
    "Annealing",
    "Ema",
    "EpochRule",
    "Epochs",
    "Ewma",
    "Fresh",
    "GradientBound",
    "InBatch",
    "InBatchRank",
    "Indexed",
    "InfoBatch",
    "Irreducible",
    "Kakurenbo",
    "Kath18",
    "Memory",
    "NoiseGuard",
    "Percentile",
    "Pool",
    "ProbeResult",
    "RatioMemory",
    "Reduced",
    "RefreshedRule",
    "Schedule",
    "ScoreTable",
    "Scorer",
    "SeTa",
    "Selection",
    "SelectiveLoader",
    "SelectiveSampler",
    "Selector",
    "Share",
    "SiftbackError",
    "SinglePass",
    "SinglePassStats",
    "SoftTopK",
    "Stale",
    "Stats",
    "Threshold",
    "TopK",
    "Unbiased",
    "Uniform",
    "irreducible_losses",
    "per_example",
    "probe",
    "sequence_losses",
    "token_losses",
]


# Where each name is. It is imported on first use, so that a part is paid for by those who use it:
# PyTorch takes two seconds, and the single pass brings PyTorch's compiler.
_NAMES_OF = {
    "batches.indices": "Indexed",
    "batches.pool": "Pool",
    "batches.stats": "SinglePassStats Stats",
    "losses.per_example": "per_example",
    "probing.probe": "probe",
    "probing.result": "ProbeResult",
    "rules.ewma": "Ewma",
    "rules.ies": "IES",
    "rules.infobatch": "InfoBatch",
    "rules.kakurenbo": "Kakurenbo",
    "rules.memory": "Memory",
    "rules.noise_guard": "NoiseGuard",
    "rules.ratio_memory": "RatioMemory",
    "rules.rs2": "RS2",
    "rules.rule": "EpochRule RefreshedRule",
    "epochs.sampler": "SelectiveSampler",
    "tables.score_table": "ScoreTable",
    "rules.seta": "SeTa",
    "rules.stale": "Stale",
    "rules.ucb": "UCB",
    "schedule": "Annealing Epochs Schedule Share",
    "scorers.ema": "Ema",
    "scorers.fresh": "Fresh",
    "scorers.gradient_bound": "GradientBound",
    "scorers.irreducible": "Irreducible irreducible_losses",
    "scorers.reduced": "Reduced",
    "scorers.scorer": "Scorer",
    "loader.face": "SelectiveLoader",
    "selectors.importance": "Kath18",
    "selectors.in_batch": "InBatch",
    "selectors.percentile": "Percentile",
    "selectors.ranking": "InBatchRank SoftTopK Threshold TopK",
    "selectors.selection": "Selection Selector",
    "selectors.unbiased": "Unbiased",
    "selectors.uniform": "Uniform",
    "losses.sequences": "sequence_losses token_losses",
    "single_pass.single_pass": "SinglePass",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
