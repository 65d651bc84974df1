"""Between a loader and a scorer that remembers: whose score it is, and who is drawn by it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from siftback.errors import ConfigError, LossError
from siftback.loading.distributed import of_all_ranks, of_first_rank, rank_and_world
from siftback.loading.indices import Indices
from siftback.rules.every_epoch import EveryEpoch, Ruled
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.remembered import Remembering
from siftback.scorers.fresh import Scorer
from siftback.selectors.percentile import Percentile, Selection, Selector, resolve_selector


def selector_for(
    scorer: Scorer | None,
    selector: Selector | None,
    keep: float | None,
    beta: float | None,
    history: int,
) -> Selector:
    """The selector given, or the scorer's own, or Selective-Backprop's of a share or an exponent.

    Raises:
        ConfigError: Where more than one is given, or none, or one is out of its range.
    """
    if isinstance(scorer, Remembering) and selector is None:
        if keep is None and beta is None:
            selector = scorer.selector()
        else:
            return Percentile(keep=keep, beta=beta, history=history, floor=scorer.floor)
    return resolve_selector(selector, keep, beta, history)


class Recall:
    """Draws an epoch's examples from memory before they are read, and takes losses back to it.

    Where a sampler shares the examples among several processes, each has the whole table: as an
    epoch begins, each takes up what the others were told during the last one, and the draw of
    rank 0 is that of all.

    Args:
        loader: The wrapped loader. For its unchosen examples not to be read, it or its sampler
            has a method ``only(indices)``, as `SelectiveSampler` has.
        scorer: What remembers.
        indices: Takes the indices off batches.
        selector: Chooses, of the loader.
        guard: Holds suspects of a wrong label back; None where nothing does.

    Raises:
        ConfigError: Where no index can be had, or a map-style data set is sampled by something
            that examples cannot be left out of; where a scorer with a rule of its own is given a
            selector or a guard too; or where a sampler shares among processes that are not there.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        scorer: Remembering,
        indices: Indices,
        selector: Selector,
        guard: NoiseGuard | None = None,
    ) -> None:
        name = type(scorer).__name__
        sampler = getattr(loader, "sampler", None)
        self._drawer: Any = next((o for o in (loader, sampler) if hasattr(o, "only")), None)
        data = getattr(loader, "dataset", None)
        if self._drawer is None and sampler is not None and not isinstance(data, IterableDataset):
            raise ConfigError(
                f"{name} leaves examples out before they are read, which a "
                f"{type(sampler).__name__} cannot: give the DataLoader "
                "sampler=SelectiveSampler(dataset) in place of shuffle="
            )
        indices.require(name)
        if isinstance(scorer, EveryEpoch) and not isinstance(selector, Ruled):
            raise ConfigError(
                f"{name} chooses by a rule of its own, and a selector, keep or beta was given to "
                f"the loader: leave it out, and give {name} the shares that it is to keep"
            )
        if isinstance(scorer, EveryEpoch) and guard is not None:
            raise ConfigError(
                f"{name} chooses by a rule of its own, which suspects cannot be taken from: leave "
                "guard=NoiseGuard(...) out, or give another scorer"
            )
        self._rank, self._world = (
            getattr(self._drawer, "rank", 0),
            getattr(self._drawer, "world", 1),
        )
        if self._world > 1 and rank_and_world() != (self._rank, self._world):
            raise ConfigError(
                f"a sampler of rank={self._rank}, world={self._world} shares what {name} remembers "
                "with other processes: call torch.distributed.init_process_group before it is "
                "made, or give it rank=0, world=1"
            )
        self._told: list[tuple[Any, ...]] = []  # in this epoch, where others are to know it too
        self.scorer, self._guard = scorer, guard
        self._selector, self._blank = selector, selector.state_dict()
        if indices.examples is not None:
            scorer.grow(indices.examples)
        self._drawn: Selection | None = None  # of all examples, for this epoch
        self._weights = torch.empty(0)  # float32[examples], 0 for those not drawn
        self._read = self._passed = 0  # of the drawn examples and of all, in this epoch

    @property
    def draws(self) -> bool:
        """Whether this epoch's examples were drawn from memory."""
        return self._drawn is not None

    def begin_epoch(self, on: bool, epoch: int, generator: torch.Generator) -> None:
        """Draws, where selection is on and the scorer says so."""
        self._hear_others()
        self._read = self._passed = 0
        if on and self.scorer.draws(epoch):
            self._draw(epoch, generator)
        else:
            self._choose(None, 0)

    def keep(self, indices: Tensor) -> Selection:
        """Which rows of a batch were drawn, by the indices of its examples.

        What was not there as the draw was made is kept, with weight 1.
        """
        known = indices < len(self._weights)
        weights = torch.ones(len(indices))
        weights[known] = self._weights[indices[known]]
        rows = weights.nonzero().squeeze(1)
        return Selection(rows, weights[rows])

    def passed(self, count: int) -> int:
        """How many examples of the source a batch of the drawn ones stands for.

        Over an epoch these are all of its examples, each step having its share.
        """
        if self._drawer is None:
            return count
        self._read += count
        before, self._passed = self._passed, self._share(self._read)
        return self._passed - before

    def end_epoch(self) -> int:
        """What is missing of the source's examples, where the last short batch was dropped."""
        if self._drawn is None or self._drawer is None:
            return 0
        return int(self._drawer.examples) // self._world - self._passed

    @property
    def left_out(self) -> Tensor:
        """int64[n], the examples that this epoch's draw left out; of several processes, a share."""
        return (self._weights == 0).nonzero().squeeze(1)[self._rank :: self._world]

    @property
    def lr_scale(self) -> float:
        """All examples over those drawn, where the scorer scales the learning rate so; or 1."""
        if self._drawn is None or not self.scorer.scales_rate:
            return 1.0
        return len(self._weights) / max(len(self._drawn.indices), 1)

    def learn(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Takes training's losses to the scorer, and what was predicted to one that judges.

        Raises:
            ConfigError: Where one that judges is not told what was predicted.
            LossError: Where there is not one of each a row of the batch given last.
        """
        if losses.shape != indices.shape or not losses.is_floating_point():
            raise LossError(
                f"the losses to remember are {losses.dtype} of shape {list(losses.shape)}: give "
                f"those of the batch just given, one an example, float[{len(indices)}]"
            )
        if self.scorer.judges:
            if correct is None or confidence is None:
                missing = "correct" if correct is None else "confidence"
                raise ConfigError(
                    f"{type(self.scorer).__name__} was told no {missing}=: call loader.remember("
                    "losses, correct=guess == y, confidence=confidence), with confidence, guess = "
                    "outputs.softmax(1).max(1)"
                )
            if correct.shape != indices.shape or correct.dtype != torch.bool:
                raise LossError(
                    f"correct is {correct.dtype} of shape {list(correct.shape)}: give whether each "
                    f"example was predicted right, bool[{len(indices)}]"
                )
            if confidence.shape != indices.shape or not confidence.is_floating_point():
                raise LossError(
                    f"confidence is {confidence.dtype} of shape {list(confidence.shape)}: give the "
                    f"probability of each prediction, float[{len(indices)}]"
                )
            self._tell("judged", indices, correct.detach(), confidence.detach())
        if self.scorer.learns:
            self._tell("trained", indices, losses.detach(), epoch)

    def scored(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Takes the scores of a selection pass to the scorer."""
        self._tell("scored", indices, scores, epoch)

    def resume(self) -> None:
        """Tells the wrapped loader what a loaded state had drawn."""
        if self._drawer is not None:
            self._drawer.only(None if self._drawn is None else self._drawn.indices)

    def state_dict(self) -> dict[str, Any]:
        """What was drawn for this epoch, among how many, how far it was read, and what was told."""
        return {
            "drawn": None if self._drawn is None else tuple(self._drawn),
            "among": len(self._weights),
            "read": self._read,
            "passed": self._passed,
            "told": list(self._told),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on within another's epoch."""
        drawn = state["drawn"]
        self._choose(None if drawn is None else Selection(*drawn), state["among"])
        self._read, self._passed = state["read"], state["passed"]
        self._told = list(state["told"])

    def _tell(self, what: str, *told: Any) -> None:
        getattr(self.scorer, what)(*told)
        if self._world > 1:
            self._told.append(
                (what, *(part.cpu() if isinstance(part, Tensor) else part for part in told))
            )

    def _hear_others(self) -> None:
        if self._world == 1:
            return
        for rank, told in enumerate(of_all_ranks(self._told)):
            for what, *parts in told if rank != self._rank else ():
                getattr(self.scorer, what)(*parts)
        self._told = []

    def _draw(self, epoch: int, generator: torch.Generator) -> None:
        weights = self.scorer.draw(epoch, generator)
        if weights is None:
            weights = self._select(epoch, generator)
        if self._world > 1:
            weights = of_first_rank(weights.cpu())
        indices = weights.nonzero().squeeze(1)
        self._choose(Selection(indices.cpu(), weights[indices].cpu()), len(weights))

    def _select(self, epoch: int, generator: torch.Generator) -> Tensor:
        """float32[examples], loss weights by the selector, 0 for those left out."""
        scores = self.scorer.predicted(epoch)
        weights = scores.isnan().float()  # what was never scored is kept
        known = (weights == 0).nonzero().squeeze(1)
        if self._guard is not None:
            self._guard.grow(len(weights))
            suspects = self._guard.suspects
            let_in = self._guard.let_in(len(suspects), self._selector.keep, generator)
            known = known[~self._guard.suspected(known.cpu()).to(known.device)]
            weights[suspects.to(weights.device)] = let_in.to(weights)
        if len(known):
            # Ranked among what is remembered alone, and no part of the history of selection
            # passes: what is predicted need not be a loss.
            history = self._selector.state_dict()
            self._selector.load_state_dict(self._blank)
            # A selector is promised finite scores: an infinite one becomes the largest number.
            rows, factors = self._selector.select(scores[known].nan_to_num(), generator)
            self._selector.load_state_dict(history)
            weights[known[rows]] = factors.to(weights)
        return weights

    def _choose(self, drawn: Selection | None, among: int) -> None:
        self._drawn = drawn
        self._weights = torch.zeros(among)
        if drawn is not None:
            self._weights[drawn.indices] = drawn.weights
        self.resume()

    def _share(self, read: int) -> int:
        assert self._drawn is not None
        drawn = len(self._drawn.indices) // self._world
        return round(int(self._drawer.examples) // self._world * read / max(drawn, 1))
