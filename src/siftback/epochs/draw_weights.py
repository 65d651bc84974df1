"""The draw of a pass: the examples among which a rule draws, and the weights that it gives them."""

import torch
from torch import Tensor

from siftback.arguments import format_value
from siftback.errors import ConfigError
from siftback.rules.rule import EpochRule


def find_candidates(rule: EpochRule, order: Tensor | None, *, is_weighted: bool) -> Tensor:
    """Returns the examples that a rule draws among in an epoch of a user's sampler.

    Where a sampler gives some examples, each once, the rule draws among these. Where it gives them
    with probabilities of its own, the rule draws among all those that it knows, whatever the
    sampler gives in this epoch: that an example is trained on then has the product of both
    probabilities. One that the rule does not know yet is trained on as it first comes, and takes
    the place of no other.

    Args:
        rule: The rule.
        order: int64[n], what the sampler gives; None where that is not known beforehand.
        is_weighted: Whether it gives them with probabilities of its own.

    Returns:
        int64[m], ascending.

    >>> from siftback import Memory
    >>> rule = Memory()
    >>> rule.grow(9)
    >>> rule.update(torch.tensor([2, 3, 7]), torch.ones(3), epoch=0)
    >>> find_candidates(rule, torch.tensor([8, 0, 3]), is_weighted=False)
    tensor([0, 3, 8])
    >>> find_candidates(rule, torch.tensor([8, 8, 3]), is_weighted=False)  # an example twice
    tensor([2, 3, 7])
    """
    if order is not None and not is_weighted:
        candidates = order.sort().values
        if not (candidates.diff() == 0).any():
            return candidates
    return rule.has_value.nonzero().squeeze(1)


def draw_weights(
    rule: EpochRule, epoch: int, generator: torch.Generator, candidates: Tensor | None = None
) -> Tensor:
    """Returns the weights that a rule draws, among all examples or some of them.

    Args:
        rule: The rule.
        epoch: The epoch.
        generator: Source of random numbers, on the CPU.
        candidates: int64[m], ascending, the examples to draw among; None for all.

    Returns:
        float32[rows], 1 for examples that are no candidates.

    Raises:
        ConfigError: If the rule does not draw one weight for each.
    """
    if candidates is not None and len(candidates) == rule.examples:
        candidates = None  # all, as without a sampler
    elif candidates is not None and not len(candidates):
        return torch.ones(rule.rows, dtype=torch.float32)
    name = type(rule).__name__
    with rule.among(candidates):
        weights = rule.draw(epoch, generator)
        if rule.shards:
            rule.shards.check_drawn(name, weights, rule.count(epoch) or 0)
        elif getattr(weights, "shape", None) != (rule.rows,):
            kind = "examples" if candidates is None else "candidates"
            raise ConfigError(
                f"{name}.draw gave {format_value(weights)} in epoch {epoch}, and there are "
                f"{rule.rows} {kind}: have it give float32[{rule.rows}], one weight for each; "
                "state of its own per example is indexed by self.candidates, where a sampler "
                "gives some alone"
            )
    if candidates is None:
        return weights
    weights_of_all = torch.ones(rule.rows, dtype=torch.float32)
    weights_of_all[candidates] = weights
    return weights_of_all
