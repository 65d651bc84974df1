"""Tokens as examples: selecting among them, and a head that computes the selected ones alone.

Sequences as examples need nothing of this: `siftback.sequence_losses` gives one loss for each.
"""

from siftback.language.chunked_cross_entropy import chunked_cross_entropy, chunked_token_losses
from siftback.language.loss_weights import (
    dft_weights,
    inverse_probability_weights,
    linupper_weights,
)
from siftback.language.token_scores import TokenMemory, token_entropies

__all__ = [
    "TokenMemory",
    "chunked_cross_entropy",
    "chunked_token_losses",
    "dft_weights",
    "inverse_probability_weights",
    "linupper_weights",
    "token_entropies",
]
