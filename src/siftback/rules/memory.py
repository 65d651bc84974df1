"""Memory: selection without extra cost, by the loss of each example when last trained on."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from siftback.arguments import check_flag, check_share, format_value
from siftback.draws.histogram_draw import draw_in_shards
from siftback.draws.percentile_draw import draw_by_percentile, draw_probabilities
from siftback.draws.ratio_draw import (
    are_mislabelled,
    draw_by_ratio,
    draw_independently,
    ratio_probabilities,
    warn_of_negative,
)
from siftback.draws.weighted_draw import (
    exact_probabilities,
    independent_probabilities,
    unbiased_weights,
)
from siftback.errors import ConfigError
from siftback.rules.base_weights import resolve_weights
from siftback.rules.noise_guard import NoiseGuard
from siftback.rules.rule import LastLossRule
from siftback.schedule import Epochs, Moment, Schedule, Share
from siftback.selectors.percentile import beta_of_keep, keep_of_beta
from siftback.selectors.sampling import choose_exactly, count_of
from siftback.state import Check, integer, number
from siftback.tables.score_table import ScoreTable

# In `benchmarks/default_share.py`, trainings of 8 epochs and more end lower with it, or about where
# those on everything do. In shorter ones it costs what was gained: much of it on MNIST. Draws after
# more epochs than `END` cost more than they save.
TAIL, TAIL_AFTER, END = Share(0.45), Epochs(4), Epochs(9)

_FIRST = 128  # losses that say what chance predicts: those of the first batches

_MISLABELLED = (
    "labels seem to be wrong, or classes to be rare: much of the loss is of examples that are "
    "predicted worse than by chance. Memory() leaves nothing out from here on: for wrong labels "
    "give guard=NoiseGuard(classes), for rare classes keep= and balance=labels"
)


class Memory(LastLossRule):
    """Selection without extra cost, by the loss of each example when it was last trained on.

    There are no scoring passes. During warm-up, every example is trained on and its training loss
    remembered. From then on, the examples of each epoch are drawn before they are read, by their
    remembered losses, and their new losses are remembered. How many are drawn follows what is
    learned, or is fixed. This rule is new in this project, after Jiang et al. 2019, section 3.3.
    Ideal cost per example of an epoch with share s drawn, in forwards (1) and backwards (2):
    ``3 s``.

    **The share follows what is learned**, by default. Each example is drawn independently of the
    others, with probability::

        max(floor, min(1, loss / mean loss))

    with the mean over all examples. While all losses are alike nearly all examples are drawn; once
    a few have most of the loss, little more than these and the floor. So nothing is saved where
    little is learned yet, and much where nearly all is. Losses must be at least 0, as ratios of
    others say nothing, or there is a warning; ``keep`` has draws by ranks, of any losses. The
    number of examples is not known before the draw. The last 0.45 of training is on all examples,
    as draws by loss fit what is hard at the expense of the rest, and in a long training that cost
    more than it saved. But that does not begin within the first 4 epochs, so that a training of no
    more has no such end, and it begins after 9 at the latest, unless ``warmup`` is as many epochs:
    in trainings of 32 epochs and more nothing was gained by draws after that, and much lost with a
    large weight decay. So nothing is left out in 60 epochs or more, which is a warning.

    Draws by loss also fit labels that are wrong, and end far worse than without selection. So once
    much of the loss is of examples that are predicted worse than by chance (see
    `are_mislabelled`), all are drawn, and if it is so before the next draw too, from then on, with
    a warning. Losses of the first pass do not tell, as the network has only begun to learn. The
    loss of chance is ``-log(mean(exp(-loss)))`` over the first 128 losses: log C
    for C classes, however sure the untrained network is, as it gives the labels of balanced classes
    a mean probability of 1 / C. It says nothing where it is not above 2, so that there are
    fewer than eight classes, or where the mean loss is 1.5 times as high, as of squared errors.
    All this is left to a ``guard``, where there is one.

    **The share is fixed** with ``keep`` or ``beta``. Exactly ``round(keep * N)`` of N examples are
    drawn, at least one, with probability::

        floor + (1 - floor) * percentile^beta,    keep = floor + (1 - floor) / (beta + 1)

    where the percentile is that of the remembered loss among all of them (see
    `draw_by_percentile`).

    **Base weights** multiply these probabilities p. With b the weight of an example, and as many
    drawn as without, the probability is::

        pi = min(1, c * b * p),    c such that round(keep * N) are drawn, of a fixed share
        pi = min(1, b / mean(b) * p),                              where it follows the losses

    An example is drawn at most once, so that the most weighted of a strongly imbalanced set are all
    drawn and no more. Without a loss yet, examples are certain to be drawn, as far as the count
    allows. During warm-up and tail everything is read once, whatever the weights.

    **Unbiased** loss weights, for an example that is drawn, are::

        v = sum(pi) / sum(b) * b / pi,    b = 1 without base weights

    by which ``sum of v * loss / sum(pi)`` over the drawn has the expectation
    ``sum(b * loss) / sum(b)`` over all examples. So they undo what p favours, and not what the
    weights do: the mean over classes, with ``balance``, also where an example would have to be
    drawn more than once.

    Args:
        keep: Share of the examples in an epoch, in (floor, 1]; by default it follows the losses.
        beta: In place of ``keep``, the exponent, at least 0.
        floor: The minimum probability, in [0, 1), so that no example is forgotten.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end, however short training is; by default
            as above where the share of an epoch follows the losses, and not at all where it is
            fixed.
        decay: Weight of the old loss in the remembered one, in [0, 1):
            ``decay * old + (1 - decay) * new``; 0 remembers only the last loss.
        guard: Holds back examples whose label is probably wrong. Of S that are held back exactly
            ``round(cap * S)`` are drawn, all with the same probability, and the others as if those
            were not there. Of a fixed share these are ``round(min(cap, keep) * S)``, and the rest
            of the epoch is drawn from the other examples. If there are too few of those, more of
            the S are drawn, so that the count does not change. The others are drawn in
            proportion to ``max(floor, min(1, loss / mean loss))`` (see `draw_by_ratio`), and
            ``beta`` sets only the share: percentiles are high for losses that are only a little
            above the others, and wrong labels that are not suspected yet have the highest losses.
            While the guard holds nothing back since most suspects seem to be merely hard
            (`NoiseGuard.released`), all are drawn as without a guard.
        table: Stores the losses, such as a `ScoreTable` in a file; by default in memory, 4 bytes
            per example.
        shards: S, so that each of several processes remembers only the examples that it reads, in
            all epochs those of its share of S `Shards`, and nothing per example is exchanged. A
            multiple of all numbers of processes that the training is to run on, such as 960. Of
            each shard ``round(keep * N) // S`` are drawn (see `draw_in_shards`), and the draw does
            not depend on the number of processes. The share has to be fixed.
        weights: float[N], base weights, finite and above 0, of any scale; see above. A draw of a
            fixed share then sorts all losses, however many: about 110 bytes per example.
        balance: In place of ``weights``, int[N], the label of each example: its base weight is 1
            over the number of examples of its class, so that classes are drawn equally often.
        unbiased: Whether the loss of an example that is drawn has the weight v above.

    Attributes:
        keep: The share of an epoch; None where it follows the losses.
        beta: The exponent; where the share is fixed.

    Raises:
        ConfigError: If one of them is out of range, both ``keep`` and ``beta`` are given, or
            ``shards`` with neither of these, with a guard, with weights or with a table in a file;
            or ``unbiased`` with a guard, with shards or without a floor.

    >>> memory = Memory()
    >>> memory.grow(5)
    >>> memory.update(torch.arange(4), torch.tensor([0.01, 0.01, 0.02, 3.96]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(0))
    tensor([0., 0., 0., 1., 1.])

    A fixed share:

    >>> memory = Memory(keep=0.5, floor=0.0)
    >>> memory.grow(6)
    >>> memory.update(torch.arange(6), torch.tensor([9.0, 0.1, 0.2, 8.0, 0.3, 7.0]), epoch=0)
    >>> memory.draw(1, torch.Generator().manual_seed(1))
    tensor([1., 0., 0., 1., 0., 1.])

    Of classes of unlike size:

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> memory = Memory(keep=0.15, balance=labels)
    >>> memory.grow(100)
    >>> memory.update(torch.arange(100), torch.ones(100), epoch=0)
    >>> drawn = memory.draw(1, torch.Generator().manual_seed(0))
    >>> drawn[labels == 0].sum(), drawn[labels == 1].sum()
    (tensor(8.), tensor(7.))

    In a training loop:

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import SelectiveLoader
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> model = torch.nn.Linear(8, 4)
    >>> loader = DataLoader(data, batch_size=32, shuffle=True)
    >>> loader = SelectiveLoader(loader, memory=Memory(), epochs=4)
    >>> for _ in range(4):
    ...     for x, y in loader:
    ...         loss = loader.loss(F.cross_entropy(model(x), y, reduction="none"))
    ...         loss.backward()
    >>> loader.stats.scored, loader.stats.forwards, loader.stats.seen > 4 * 256
    (0, 1024, True)
    """

    beta: float
    updates_by_example = True
    setting_names = ("floor", "decay", "guard")

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        *,
        floor: float = 0.1,
        warmup: Moment = Share(0.15),
        tail: Moment | None = None,
        decay: float = 0.0,
        guard: NoiseGuard | None = None,
        table: ScoreTable | None = None,
        shards: int | None = None,
        weights: Tensor | Sequence[float] | None = None,
        balance: Tensor | Sequence[int] | None = None,
        unbiased: bool = False,
    ) -> None:
        has_own_tail = keep is beta is None and tail is None
        tail = Share(0.0) if tail is None else tail
        super().__init__(table, warmup=warmup, tail=tail, decay=decay, guard=guard, shards=shards)
        if has_own_tail:
            end = None if isinstance(warmup, Epochs) and warmup.value >= END.value else END
            self.schedule = Schedule(warmup=warmup, end=end, tail=TAIL, tail_after=TAIL_AFTER)
        self.floor = check_share("floor", floor)
        self.takes_weights = shards is None
        weights = resolve_weights(weights, balance)
        if weights is not None:
            self.set_base_weights(weights)
        self.unbiased = self.reweights = check_flag("unbiased", unbiased)
        if unbiased and (guard or shards is not None or not floor):
            raise ConfigError(
                f"unbiased=True with a guard, shards={shards} or floor={floor}: a guard leaves out "
                "what it suspects, shards draw as many each, and without a floor above 0 some are "
                "never drawn: leave those out"
            )
        self.keep: float | None = None
        if keep is not None and beta is not None:
            raise ConfigError(
                f"keep={format_value(keep)} and beta={format_value(beta)}: give one of them, "
                "keep = floor + (1 - floor) / (beta + 1)"
            )
        if keep is not None:
            self.set_keep(keep)
        elif beta is not None:
            # Not by `keep`, which would change the exponent by its rounding.
            self.beta, self.keep = beta, keep_of_beta(beta, self.floor)
        elif shards is not None:
            raise ConfigError(
                f"shards={shards} with a share that follows the losses: processes that remember "
                "only their own examples need a fixed one, such as keep=0.5"
            )
        self._keep = self.keep  # a schedule may change `keep`
        # Losses of an untrained network; none of a fixed share.
        self._first_count = 0 if self.keep is None else _FIRST
        self._first_sum = self._first_probability = 0.0
        self._alarms = 0  # draws in a row before which labels seemed to be wrong; no more than 2

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (floor, 1]; a `Schedule` that anneals needs it."""
        self.beta, self.keep = beta_of_keep(keep, self.floor), float(keep)

    def count(self, epoch: int) -> int | None:
        """Returns how many examples a draw keeps: ``round(keep * N)``, at least 1; None without.

        Of shards it is rounded down to a multiple of their number.
        """
        if self.keep is None:
            return None
        count = count_of(self.keep, self.examples)
        return self.shards.quota(count) * self.shards.count if self.shards else count

    def draw(self, epoch: int, generator: Generator) -> Tensor:
        """Draws examples by the remembered losses, exactly `count` where the share is fixed."""
        count, losses = self.count(epoch), self.scores(epoch)
        if count is None:
            warn_of_negative(losses, "Memory() without keep=")
            # Losses of the first pass are of a network that has only begun to learn.
            if not self.guard and self._alarms < 2 and epoch > 1:
                self._alarms = self._alarms + 1 if are_mislabelled(losses, self._chance_loss) else 0
                if self._alarms == 2:
                    warnings.warn(_MISLABELLED, stacklevel=2)
            if self._alarms:
                return torch.ones(len(losses), dtype=torch.float32)
        if self.base_weights is not None or self.unbiased:
            return self._draw_weighted(losses, count, generator)
        if count is None:
            suspects = self.suspects
            weights = draw_independently(losses, self.floor, generator, excluded=suspects)
            if self.guard:
                weights[suspects] = self._admit(self.guard, len(suspects), None, generator).float()
            return weights
        if self.shards:
            return draw_in_shards(losses, self.shards, self.beta, self.floor, count, generator)
        if not self.guard or self.guard.released:
            return draw_by_percentile(losses, self.beta, self.floor, count, generator)
        suspects = self.suspects
        admitted = self._admit(self.guard, len(suspects), count, generator)
        count -= int(admitted.sum())
        weights = draw_by_ratio(losses, self.floor, count, generator, excluded=suspects)
        weights[suspects] = admitted.float()
        return weights

    @property
    def _chance_loss(self) -> float:
        """The loss of predictions by chance, of eight classes or more; 0 where it is not known.

        Before training a network knows nothing of any class, so that losses are alike. Squared
        errors are not, and those of a network that is trained already are low. Of few classes,
        examples that are hard, or of a rare class, cannot be told from wrong labels: most of what
        is predicted wrong is predicted worse than by chance.
        """
        count, total = self._first_count, self._first_probability
        chance = math.log(count / total) if total else 0.0
        return chance if chance > 2 and self._first_sum < 1.5 * chance * count else 0.0

    def _draw_weighted(self, losses: Tensor, count: int | None, generator: Generator) -> Tensor:
        """Draws as `draw` does, with base weights, loss weights or both."""
        base = self.base_weights
        if base is None:
            base = torch.ones(self.examples, dtype=torch.float64)
        weights = torch.zeros(self.examples, dtype=torch.float32)
        trusted, by_percentile = torch.arange(self.examples), True
        if self.guard:
            suspects = self.suspects
            weights[suspects] = self._admit(self.guard, len(suspects), count, generator).float()
            is_suspect = torch.zeros(self.examples, dtype=torch.bool).index_fill_(0, suspects, True)
            trusted = (~is_suspect).nonzero().squeeze(1)
            losses, base, by_percentile = losses[trusted], base[trusted], self.guard.released
        if count is None:
            probabilities = independent_probabilities(losses, self.floor, base)
            draws = torch.rand(len(losses), dtype=torch.float64, generator=generator)
            drawn = (draws < probabilities).nonzero().squeeze(1)
        else:

            def proportions(known: Tensor) -> Tensor:
                if by_percentile:
                    return draw_probabilities(known, self.beta, self.floor)
                return ratio_probabilities(known, self.floor)

            count -= int(weights.sum())
            probabilities = exact_probabilities(losses, proportions, base, count)
            drawn = choose_exactly(probabilities, count, generator)
        factors = unbiased_weights(probabilities, base) if self.unbiased else torch.ones(len(base))
        weights[trusted[drawn]] = factors[drawn].float()
        return weights

    def _admit(
        self, guard: NoiseGuard, suspects: int, count: int | None, generator: Generator
    ) -> Tensor:
        """Draws among a number of suspects: bool[suspects]."""
        others = self.examples - suspects
        limits = {} if count is None else {"least": count - others, "most": count}
        return guard.admit(suspects, self.keep or 1.0, generator, **limits)

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **others: Tensor | None) -> None:
        """Remembers the losses as `LastLossRule` does, and the sums of the first ones."""
        first = losses[: _FIRST - self._first_count].float()
        self._first_count += len(first)
        # As double, in which sums are exact in any order.
        self._first_sum += float(first.double().sum())
        self._first_probability += float(first.clamp(min=0).neg().exp().double().sum())
        super().update(indices, losses, epoch, **others)

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        first = {"_first_count": integer(most=_FIRST), "_first_sum": number()}
        first |= {"_first_probability": number(0, _FIRST), "_alarms": integer(most=2)}
        return {**super().state_fields(), **first}

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        settings = {**super().settings(), "keep": self._keep, "shards": self.shard_count}
        settings |= {"unbiased": True} if self.unbiased else {}
        if self.schedule.tail_after.value:
            settings["tail"] += f" after {self.schedule.tail_after!r}"
        return settings
