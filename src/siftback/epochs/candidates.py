"""The examples that a rule draws among, where a sampler of the user's gives some of them alone."""

import torch
from torch import Tensor

from siftback.errors import BatchError, ConfigError
from siftback.rules.rule import EpochRule


def candidates_of(rule: EpochRule, order: Tensor | None, *, is_weighted: bool) -> Tensor:
    """The examples that a rule draws among in an epoch.

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
    >>> candidates_of(rule, torch.tensor([8, 0, 3]), is_weighted=False)
    tensor([0, 3, 8])
    >>> candidates_of(rule, torch.tensor([8, 8, 3]), is_weighted=False)  # an example twice
    tensor([2, 3, 7])
    """
    if order is not None and not is_weighted:
        candidates = order.sort().values
        if not (candidates.diff() == 0).any():
            return candidates
    return rule.has_value.nonzero().squeeze(1)


def weights_drawn(
    rule: EpochRule, epoch: int, generator: torch.Generator, candidates: Tensor | None = None
) -> Tensor:
    """The weights that a rule draws, among all examples or some of them.

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
    if candidates is None or len(candidates) == rule.examples:  # among all, as without a sampler
        return _checked(rule, rule.draw(epoch, generator), epoch)
    weights = torch.ones(rule.rows, dtype=torch.float32)
    if len(candidates):
        with rule.among(candidates):
            weights[candidates] = _checked(rule, rule.draw(epoch, generator), epoch)
    return weights


def check_count(rule: EpochRule, epoch: int, count: int, world: int) -> None:
    """Checks that each process has an example to train on.

    Raises:
        BatchError: If not.
    """
    if count < world:
        raise BatchError(
            f"{type(rule).__name__} draws {count} of {rule.examples} examples in epoch {epoch}, "
            f"fewer than there are processes, {world}: have it keep more, or end training before"
        )


def _checked(rule: EpochRule, weights: Tensor, epoch: int) -> Tensor:
    if rule.shards is not None:
        rule.shards.check_drawn(type(rule).__name__, weights, rule.count(epoch) or 0)
        return weights
    if not isinstance(weights, Tensor) or weights.shape != (rule.rows,):
        shape = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        of = "examples" if rule.candidates is None else "candidates"
        raise ConfigError(
            f"{type(rule).__name__}.draw gave {shape} in epoch {epoch}, and there are {rule.rows} "
            f"{of}: have it give float32[{rule.rows}], one weight for each; state of its own per "
            "example is indexed by self.candidates, where a sampler gives some examples alone"
        )
    return weights
