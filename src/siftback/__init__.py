"""Selective training for PyTorch: choose the examples worth training on.

>>> from siftback import Memory, SelectiveLoader

Besides these names there are `siftback.errors`; `siftback.pruning`, which selects once before
training; and `siftback.contrib`, methods from the papers that gained nothing over
simpler ones in our measurements.
"""

import ast
import importlib
import linecache
import typing

from siftback.errors import SiftbackError as SiftbackError

__version__ = "0.2.0"

if typing.TYPE_CHECKING:
    from siftback.batches.indices import Indexed as Indexed
    from siftback.batches.pool import Pool as Pool
    from siftback.batches.stats import SinglePassStats as SinglePassStats
    from siftback.batches.stats import Stats as Stats
    from siftback.epochs.sampler import SelectiveSampler as SelectiveSampler
    from siftback.loader.face import SelectiveLoader as SelectiveLoader
    from siftback.losses.per_example import per_example as per_example
    from siftback.losses.sequences import sequence_losses as sequence_losses
    from siftback.losses.sequences import token_losses as token_losses
    from siftback.probing.probe import probe as probe
    from siftback.probing.result import ProbeResult as ProbeResult
    from siftback.rules.alignprune import AlignPrune as AlignPrune
    from siftback.rules.evolved import EvolvedSampling as EvolvedSampling
    from siftback.rules.evos import EVOS as EVOS
    from siftback.rules.forecast import Forecast as Forecast
    from siftback.rules.forecast import forecast as forecast
    from siftback.rules.infobatch import InfoBatch as InfoBatch
    from siftback.rules.kakurenbo import Kakurenbo as Kakurenbo
    from siftback.rules.memory import Memory as Memory
    from siftback.rules.noise_guard import NoiseGuard as NoiseGuard
    from siftback.rules.orderdp import OrderDP as OrderDP
    from siftback.rules.rcap import RCAP as RCAP
    from siftback.rules.repb import RePB as RePB
    from siftback.rules.rs2 import RS2 as RS2
    from siftback.rules.rule import EpochRule as EpochRule
    from siftback.rules.rule import RefreshedRule as RefreshedRule
    from siftback.rules.seta import SeTa as SeTa
    from siftback.rules.stale import Stale as Stale
    from siftback.rules.ucb import UCB as UCB
    from siftback.schedule import Annealing as Annealing
    from siftback.schedule import Epochs as Epochs
    from siftback.schedule import Schedule as Schedule
    from siftback.schedule import Share as Share
    from siftback.scorers.ema import Ema as Ema
    from siftback.scorers.gradient_bound import GradientBound as GradientBound
    from siftback.scorers.irreducible import Irreducible as Irreducible
    from siftback.scorers.irreducible import irreducible_losses as irreducible_losses
    from siftback.scorers.reduced import Reduced as Reduced
    from siftback.scorers.scorer import Scorer as Scorer
    from siftback.scorers.selection_pass import Fresh as Fresh
    from siftback.selectors.importance import Kath18 as Kath18
    from siftback.selectors.in_batch import InBatch as InBatch
    from siftback.selectors.percentile import Percentile as Percentile
    from siftback.selectors.ranking import InBatchRank as InBatchRank
    from siftback.selectors.ranking import SoftTopK as SoftTopK
    from siftback.selectors.ranking import Threshold as Threshold
    from siftback.selectors.ranking import TopK as TopK
    from siftback.selectors.selection import Selection as Selection
    from siftback.selectors.selection import Selector as Selector
    from siftback.selectors.unbiased import Unbiased as Unbiased
    from siftback.selectors.uniform import Uniform as Uniform
    from siftback.single_pass.single_pass import SinglePass as SinglePass
    from siftback.tables.score_table import ScoreTable as ScoreTable

# The public names are those imported above, where type checkers see them. Each is imported on first
# use, as PyTorch takes two seconds, and the single pass brings PyTorch's compiler.
_MODULE_OF = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse("".join(linecache.getlines(__file__, globals()))))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
if not typing.TYPE_CHECKING:
    __all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> typing.Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
