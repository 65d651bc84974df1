"""What a strategy is: how a run chooses what it trains on, and what that costs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeGuard

from torch import Tensor

from siftback import EpochRule, Epochs, Memory, NoiseGuard, RatioMemory, Scorer, Selector, Share
from siftback.lab.data.data_set import DataSet, Kind
from siftback.lab.settings import Settings
from siftback.lab.training.ideal_cost import IdealCost
from siftback.lab.training.token_selection import TokenScore

AN_EPOCH = Epochs(1)


@dataclass(frozen=True)
class Strategy:
    """A named way to train.

    Attributes:
        name: What the command line calls it.
        summary: What it does, in one line.
        cost: Its ideal cost of one source example.
        selector: Makes, from the share to keep and the settings, what selects among the examples
            of a scored batch; None for training on everything, or where a rule chooses.
        scorer: Makes its scorer from the settings and the data; None for a fresh forward pass.
        rule: Makes, from the share to keep and the settings, what chooses each epoch's examples
            before they are read.
        guarded: Whether its rule, a `Memory` or a `RatioMemory`, has a noise guard; the settings
            may ask for one.
        pipelined: Whether a replica in another process scores batches before their turn.
        forwards_left_out: Whether what it left out of an epoch is forwarded after it, as its
            paper does, so that what is remembered of it stays fresh.
        single_pass: Whether it chooses among the rows of a larger training batch, of which only
            the kept ones are run backward.
        warmup: How long it trains on everything at first, if the settings do not say. By default
            one epoch, as the authors of Selective-Backprop had it; strategies that choose in
            batches at random have it too, so that they differ by what they choose alone.
        tail: The last share of training on everything, as its paper has it; the settings may ask
            for another. Only of rules.
        drop: Share of the examples that it prunes by EL2N before training, from the share to
            keep; None prunes nothing. The selector keeps its share of what is left.
        irreducible: Makes its scorer from the settings and the irreducible losses of the
            examples, which holdout models give before training.
        weighted: From logits and labels, the loss of a batch whose losses it weighs in place of a
            selection; None weighs none.
        tokens: What it selects the tokens of each batch by; None selects among no tokens.
        kinds: Of which examples it can be had.
    """

    name: str
    summary: str
    cost: IdealCost
    selector: Callable[[float, Settings], Selector] | None = None
    scorer: Callable[[Settings, DataSet], Scorer] | None = None
    single_pass: bool = False
    rule: Callable[[float, Settings], EpochRule] | None = None
    guarded: bool = False
    pipelined: bool = False
    forwards_left_out: bool = False
    warmup: Epochs | Share = AN_EPOCH
    tail: float = 0.0
    drop: Callable[[float], float] | None = None
    irreducible: Callable[[Settings, Tensor], Scorer] | None = None
    weighted: Callable[[Tensor, Tensor], Tensor] | None = None
    tokens: TokenScore | None = None
    kinds: tuple[Kind, ...] = ("images", "texts", "language")

    @property
    def selects(self) -> bool:
        """Whether it leaves examples out, or tokens."""
        return any((self.selector, self.rule, self.drop, self.tokens))

    @property
    def plain_losses(self) -> bool:
        """Whether the losses it trains on must be those of examples and labels as they are."""
        return any((self.weighted, self.tokens))

    def warmed(self, settings: Settings) -> Settings:
        """Settings that say how long it trains on everything at first.

        Raises:
            ConfigError: If that leaves no training to select in.
        """
        if settings.warmup is not None or not self.selects:
            return settings
        return replace(settings, warmup=self.warmup)

    def choice(
        self, keep: float, settings: Settings, classes: int = 2
    ) -> Selector | EpochRule | None:
        """What chooses the examples to train on; None where all are, or all that are left.

        Args:
            keep: The share to keep.
            settings: Those of the run.
            classes: How many the data have, for a noise guard; where nothing is drawn it may be
                left out.

        Raises:
            ConfigError: If it cannot be had with the share to keep, or with the settings.
        """
        settings = self.warmed(settings)
        if self.rule is not None:
            rule = self.rule(keep, settings)
            if (self.guarded or settings.noise_guard) and type(rule) in (Memory, RatioMemory):
                rule.guard = NoiseGuard(classes)
            return rule
        return None if self.selector is None else self.selector(self.kept_of_left(keep), settings)

    def kept_of_left(self, keep: float) -> float:
        """Share to keep of what pruning leaves, where a share is to be kept in all."""
        return min(1.0, keep / (1 - self.dropped(keep)))

    def selection_batch(self, keep: float, settings: Settings) -> int:
        """Examples in each batch that it chooses among; the kept ones of a single pass fill one."""
        size = settings.batch_size
        return round(size / self.kept_of_left(keep)) if self.single_pass else size

    def dropped(self, keep: float) -> float:
        """Share of the examples pruned before training, where a share is to be kept in all."""
        return 0.0 if self.drop is None else self.drop(keep)

    def score(self, keep: float) -> str | None:
        """The score that it needs of each example before it trains; None where it needs none."""
        if self.irreducible is not None:
            return "irreducible"
        if self.tokens == "reference":
            return "token-irreducible"
        return "el2n" if self.dropped(keep) else None


def learns(choice: Selector | EpochRule | None) -> bool:
    """Whether what chooses is a rule that goes by training's own losses.

    >>> from siftback import RS2, Uniform
    >>> learns(RS2(0.5)), learns(Memory(0.5)), learns(Uniform(keep=0.5))
    (False, True, False)
    """
    return getattr(choice, "learns", False)


def has_guard(choice: Selector | EpochRule | None) -> TypeGuard[EpochRule]:
    """Whether what chooses has a noise guard."""
    return getattr(choice, "guard", None) is not None


def needs_passes(choice: Selector | EpochRule | None) -> bool:
    """Returns whether what chooses is a rule that scoring passes refresh."""
    return getattr(choice, "needs_passes", False)
