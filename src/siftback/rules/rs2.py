"""RS2: another random subset every epoch."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_flag, check_share
from siftback.rules.base_weights import resolve_weights
from siftback.rules.rule import EpochRule
from siftback.schedule import Epochs, Moment, Share
from siftback.selectors.sampling import choose_exactly
from siftback.state import Check, raise_damaged, tensor


def take_from_permutations(
    waiting: Tensor,
    count: int,
    examples: int,
    generator: torch.Generator,
    among: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Takes the next k examples of a sequence of random permutations.

    If fewer than k are waiting, the others are taken from a new permutation, without those
    already taken: no example is taken twice, or again before all others were taken that could be.

    Args:
        waiting: int64[w], the rest of the current permutation, in order.
        count: k, the number of examples to take, at most ``examples``.
        examples: Number of examples.
        generator: On the CPU; used when a new permutation begins.
        among: int64[m], m >= k, the examples that can be taken; None for all of them.

    Returns:
        int64[k], the examples taken, and int64[...], the new rest.

    >>> take_from_permutations(torch.tensor([3, 1]), 1, 4, torch.Generator())
    (tensor([3]), tensor([1]))
    """
    free = torch.ones(examples, dtype=torch.bool)
    if among is not None:
        free = torch.zeros_like(free).index_fill_(0, among, True)
    ready = waiting[free[waiting]][:count]
    free[ready] = False
    if len(ready) == count:
        return ready, waiting[~torch.zeros_like(free).index_fill_(0, ready, True)[waiting]]
    order = torch.randperm(examples, generator=generator)
    fresh = order[free[order]][: count - len(ready)]
    taken = torch.zeros_like(free).index_fill_(0, fresh, True)
    return torch.cat((ready, fresh)), order[~taken[order]]


class RS2(EpochRule):
    """RS2: a new random subset in every epoch, independent of the losses.

    Okanovic et al. 2024, *Repeated Random Sampling for Minimizing the Time-to-Accuracy of
    Learning*: the baseline that most pruning methods do not beat. Exactly ``ceil(keep * N)`` of N
    examples are drawn, before they are read. Ideal cost per example of an epoch with share s
    kept, in forwards (1) and backwards (2): 3s.

    Args:
        keep: Share of the examples in an epoch, in (0, 1].
        replacement: Whether each epoch's subset is drawn from all examples. If False, epochs take
            successive parts of a permutation until all examples were used, which takes at most
            ``ceil(1 / keep)`` epochs, then of a new one.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        weights: float[N], finite and above 0, of any scale, with ``replacement=True``: an example
            with the base weight b is drawn with probability ``min(1, c * b)``, with c such that
            ``ceil(keep * N)`` are drawn.
        balance: In place of ``weights``, int[N], the label of each example: its base weight is 1
            over the number of examples of its class, so that classes are drawn equally often.

    Raises:
        ConfigError: If one of them is out of range, or weights are given without replacement.

    >>> rs2 = RS2(keep=0.5)
    >>> rs2.grow(6)
    >>> generator = torch.Generator().manual_seed(0)
    >>> first, second = rs2.draw(0, generator), rs2.draw(1, generator)
    >>> first, first + second
    (tensor([0., 0., 1., 1., 0., 1.]), tensor([1., 1., 1., 1., 1., 1.]))
    """

    setting_names = ("keep", "replacement")

    def __init__(
        self,
        keep: float = 0.5,
        *,
        replacement: bool = False,
        warmup: Moment = Epochs(0),
        tail: Moment = Share(0.0),
        weights: Tensor | Sequence[float] | None = None,
        balance: Tensor | Sequence[int] | None = None,
    ) -> None:
        super().__init__(warmup=warmup, tail=tail)
        self.keep = check_share("keep", keep, least=False, most=True)
        self.replacement = self.takes_weights = check_flag("replacement", replacement)
        weights = resolve_weights(weights, balance)
        if weights is not None:
            self.set_base_weights(weights)
        self._waiting = torch.empty(0, dtype=torch.int64)

    def count(self, epoch: int) -> int:
        """Returns how many examples a draw keeps: ``ceil(keep * N)``."""
        return math.ceil(self.keep * self.examples - 1e-9)  # 0.29 * 100 gives 29

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Returns 1 for drawn examples; see `take_from_permutations`."""
        base = self.base_weights
        if base is not None:
            drawn = choose_exactly(base, self.count(epoch), generator)
            return torch.zeros(len(base), dtype=torch.float32).index_fill_(0, drawn, 1.0)
        waiting = self._waiting[:0] if self.replacement else self._waiting
        drawn, self._waiting = take_from_permutations(
            waiting, self.count(epoch), self._examples, generator, self.candidates
        )
        weights = torch.zeros(self._examples, dtype=torch.float32).index_fill_(0, drawn, 1.0)
        return weights if self.candidates is None else weights[self.candidates]

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        return {**super().state_fields(), "_waiting": tensor(torch.int64, None, least=0)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: As for `EpochRule.check_state`, or if what waits of the permutation is not
                distinct examples.
        """
        super().check_state(state)
        waiting = state["waiting"]
        if len(waiting.unique()) < len(waiting) or not (waiting < state["examples"]).all():
            raise_damaged("RS2.waiting", waiting.tolist(), "distinct examples")
