"""Strategies that leave no example out: they select among its tokens, or weigh its loss."""

from functools import partial

from siftback import Epochs
from siftback.lab.data.data_set import Kind
from siftback.lab.forward import weighted_example_loss, weighted_token_loss
from siftback.lab.training.ideal_cost import IdealCost
from siftback.lab.training.strategy import Strategy
from siftback.language import dft_weights, inverse_probability_weights, linupper_weights

_OF_TOKENS: tuple[Kind, ...] = ("language",)

# The layers cost what they cost; h is the head's share of the cost of all tokens.
_SCORED = IdealCost(offered=3, note="less h(2 - 3s) for a head's share h")
_SCORED_APART = IdealCost(offered=3, note=f"{_SCORED.note}, scoring apart")
_UNSCORED = IdealCost(offered=3, note="less 3h(1 - s) for a head's share h")
_WEIGHTED = IdealCost(offered=3)

LOSS_STRATEGIES = (
    Strategy(
        "token-loss",
        "the tokens of the highest losses of each batch; only the head leaves the others out",
        _SCORED,
        tokens="loss",
        kinds=_OF_TOKENS,
    ),
    Strategy(
        "token-rho",
        "Rho-1: as token-loss, by the loss less that of a model trained on other text",
        _SCORED_APART,
        tokens="reference",
        kinds=_OF_TOKENS,
    ),
    Strategy(
        "token-memory",
        "as token-loss, by the loss less that of the same token when it was last seen",
        _SCORED,
        tokens="memory",
        kinds=_OF_TOKENS,
    ),
    Strategy(
        "token-entropy",
        "as token-loss, by the entropy of the prediction, whatever the token is",
        _SCORED,
        tokens="entropy",
        kinds=_OF_TOKENS,
    ),
    Strategy(
        "token-random",
        "as token-loss, random tokens: what the scores must beat",
        _UNSCORED,
        warmup=Epochs(0),
        tokens="random",
        kinds=_OF_TOKENS,
    ),
    Strategy(
        "linupper",
        "every example; weights rise with the loss up to the middle of the batch, and stay",
        _WEIGHTED,
        weighted=partial(weighted_example_loss, linupper_weights),
    ),
    Strategy(
        "dft",
        "every example, or token of language, weighted by the probability of its label",
        _WEIGHTED,
        weighted=partial(weighted_token_loss, dft_weights),
    ),
    Strategy(
        "inverse-probability",
        "as dft, weighted by one over that probability, up to a cap",
        _WEIGHTED,
        weighted=partial(weighted_token_loss, inverse_probability_weights),
    ),
)
