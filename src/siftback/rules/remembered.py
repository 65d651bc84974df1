"""Scores that an example had before: no forward pass for those that are left out."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from siftback.errors import ConfigError
from siftback.loading.score_table import ScoreTable
from siftback.loss_functions import Losses
from siftback.schedule import Moment, Schedule
from siftback.scorers.fresh import Fresh, Scorer
from siftback.selectors.percentile import Percentile, Selector, is_number


class Remembering(Scorer):
    """Scores from memory, by dataset index; the base of `Stale`, `Memory` and the predictors.

    In an epoch that it `draws`, the loader has its selector choose among all examples by the
    scores `predicted` before any is read; what is left out is neither read nor forwarded. An
    example that there is no score of is kept.

    Attributes:
        learns: Whether it wants training's own losses, by ``loader.remember(losses)``.
        judges: Whether it wants to be told with them what was predicted right, how confidently.
        scales_rate: Whether the learning rate is to grow as an epoch shrinks, by
            ``loader.lr_scale``.
        floor: The least chance of an example, for the selector that the loader makes of its
            ``keep`` or ``beta``.
        schedule: When selection is on, where the loader is not told otherwise; or None.
    """

    learns = False
    judges = False
    scales_rate = False
    floor = 0.0
    schedule: Schedule | None = None

    def selector(self) -> Selector | None:
        """The selector where the loader is given none; None where it must be given one."""
        return None

    @abstractmethod
    def grow(self, examples: int) -> None:
        """Makes room for so many examples."""

    @abstractmethod
    def draws(self, epoch: int) -> bool:
        """Whether the examples of an epoch, counted from 0, are chosen before they are read."""

    @abstractmethod
    def predicted(self, epoch: int) -> Tensor:
        """float32[examples], the scores to choose by; NaN for an example never scored."""

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor | None:
        """Chooses an epoch's examples by a rule of its own; see `EveryEpoch`.

        Returns:
            float32[examples], their loss weights, 0 for those left out; None, as here, where the
            loader's selector is to choose by the scores `predicted`.
        """
        return None

    @abstractmethod
    def scored(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Remembers what a selection pass gave: int64[n], float32[n]."""

    @abstractmethod
    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers training's own losses: int64[n], float[n]."""

    def judged(self, indices: Tensor, correct: Tensor, confidence: Tensor) -> None:
        """Told what training predicted, where it ``judges``: int64[n], bool[n], float[n]."""


class Periodic(Remembering):
    """Selection passes every n-th epoch, and draws from memory in the n - 1 epochs between.

    The base of `Stale` and of the predictors, which differ in what they remember.

    Args:
        every: n, the epochs from one selection pass to the next, at least 1.
        scorer: What makes the selection passes; by default a `Fresh` forward.
        refresh_from_training: Whether losses of training are remembered too.

    Raises:
        ConfigError: Where ``every`` is no whole number, at least 1, or the scorer remembers.
    """

    def __init__(self, every: int, scorer: Scorer | None, refresh_from_training: bool) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ConfigError(f"every={every!r}: give a whole number of epochs, at least 1")
        if isinstance(scorer, Remembering):
            raise ConfigError(
                f"{type(scorer).__name__} remembers scores itself: give {type(self).__name__} a "
                "scorer that makes them from a batch, such as Fresh"
            )
        self.every = every
        self.scorer = scorer or Fresh()
        self.learns = refresh_from_training
        self._last_pass: int | None = None

    @abstractmethod
    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers losses, wherever they are from: int64[n], float[n]."""

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        """What the scorer of the selection passes gives."""
        return self.scorer.score(losses, model, batch)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Passes it on to the scorer of the selection passes."""
        self.scorer.after_step(losses, model, batch)

    def draws(self, epoch: int) -> bool:
        """True in the n - 1 epochs after one in which a selection pass began."""
        return self._last_pass is not None and 0 < epoch - self._last_pass < self.every

    def scored(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Remembers the scores, and that there was a selection pass."""
        self._last_pass = epoch
        self.observe(indices, scores, epoch)

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers the losses, where they are wanted."""
        self.observe(indices, losses, epoch)

    def state_dict(self) -> dict[str, Any]:
        """When the last selection pass was, and the inner scorer's state."""
        return {"last_pass": self._last_pass, "scorer": self.scorer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        self._last_pass = state["last_pass"]
        self.scorer.load_state_dict(state["scorer"])


def record_average(
    table: ScoreTable, indices: Tensor, losses: Tensor, epoch: int, decay: float
) -> None:
    """Puts ``decay * old + (1 - decay) * new`` in a table.

    Where there is no old one, or no finite one, the new one itself.
    """
    if decay:
        old = table.scores(indices)
        new = losses.detach().to(old)
        losses = torch.where(old.isfinite(), decay * old + (1 - decay) * new, new)
    table.record(indices, losses, epoch)


class Stale(Periodic):
    """Stale-SB: selection passes every n-th epoch, their losses used again in between.

    Jiang et al. 2019, section 3.3, "Re-using previous losses". In the n - 1 epochs after a
    selection pass, examples are chosen by the loss that they had in it, before they are read.
    With share s kept, n epochs cost ``1 + 3ns`` forwards an example; n = 1 is plain
    Selective-Backprop, bit for bit.

    Args:
        every: n, the epochs from one selection pass to the next, at least 1.
        scorer: What makes the selection passes; by default a `Fresh` forward.
        refresh_from_training: Whether losses of training, given by ``loader.remember(losses)``,
            take the place of those of the selection pass. In the paper they do not.
        table: Where scores are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example.

    Raises:
        ConfigError: Where ``every`` is no whole number, at least 1.

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import Indexed, SelectiveLoader, SelectiveSampler
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> loader = DataLoader(Indexed(data), batch_size=32, sampler=SelectiveSampler(data))
    >>> model = nn.Linear(8, 4)
    >>> loader = SelectiveLoader(loader, model, F.cross_entropy, keep=1 / 2, scorer=Stale(every=3))
    >>> for _ in range(3):
    ...     for inputs, targets in loader:
    ...         F.cross_entropy(model(inputs), targets).backward()
    >>> loader.stats.seen, loader.stats.scored
    (768, 256)
    """

    def __init__(
        self,
        every: int = 3,
        *,
        scorer: Scorer | None = None,
        refresh_from_training: bool = False,
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(every, scorer, refresh_from_training)
        self.table = ScoreTable() if table is None else table  # an empty one is false

    def grow(self, examples: int) -> None:
        """See `Remembering.grow`."""
        self.table.grow(examples)

    def predicted(self, epoch: int) -> Tensor:
        """The last score of each."""
        return self.table.scores()

    def observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Puts the losses in the table."""
        self.table.record(indices, losses, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The table, when the last selection pass was, and the inner scorer's state."""
        return {"table": self.table.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        self.table.load_state_dict(state["table"])
        super().load_state_dict(state)


class Memory(Remembering):
    """Selection that costs nothing: by the loss an example had when it was last trained on.

    No selection pass is ever made. While warming up, every example is trained on and its
    training loss remembered. From then on, the examples of each epoch are drawn before they are
    read, with chance ``floor + (1 - floor) * percentile^beta`` of what is remembered (over the
    whole table), and their new losses remembered. Ideal cost of an epoch with share s kept, in
    forwards (1) and backwards (2): 3s. The share is ``floor + (1 - floor) / (beta + 1)``; a
    ``keep`` or ``beta`` given to the loader takes the place of the one here.

    The training loop tells the loader its losses, one an example::

        for x, y in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            loader.remember(losses)
            losses.mean().backward()

    Args:
        beta: Exponent, at least 0.
        floor: The least chance, in [0, 1), so that no example is forgotten.
        warmup: How long everything is trained on: epochs (an int), or a share of training (a
            float), which needs the loader's ``epochs=``.
        tail: The last part of training in which everything is trained on, a share.
        decay: How much of an old loss stays in what is remembered, in [0, 1):
            ``decay * old + (1 - decay) * new``; 0 remembers the last loss alone.
        table: Where losses are remembered, such as a `ScoreTable` in a file; by default in
            memory, 8 bytes an example.

    Raises:
        ConfigError: Where one of them is out of its range.

    >>> from torch.nn import functional as F
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from siftback import Indexed, SelectiveLoader, SelectiveSampler
    >>> data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> loader = DataLoader(Indexed(data), batch_size=32, sampler=SelectiveSampler(data))
    >>> model = nn.Linear(8, 4)
    >>> loader = SelectiveLoader(loader, model, scorer=Memory(warmup=1))
    >>> for _ in range(3):
    ...     for inputs, targets in loader:
    ...         losses = F.cross_entropy(model(inputs), targets, reduction="none")
    ...         loader.remember(losses)
    ...         losses.mean().backward()
    >>> loader.stats.seen, loader.stats.scored, loader.stats.forwards < 768
    (768, 0, True)
    """

    learns = True
    makes_passes = False

    def __init__(
        self,
        beta: float = 1.0,
        floor: float = 0.1,
        warmup: Moment = 0.15,
        tail: float = 0.0,
        *,
        decay: float = 0.0,
        table: ScoreTable | None = None,
    ) -> None:
        if not is_number(tail) or not 0 <= tail < 1:
            raise ConfigError(f"tail={tail!r}: give a share of training in [0, 1)")
        if not is_number(decay) or not 0 <= decay < 1:
            raise ConfigError(f"decay={decay!r}: give a number in [0, 1)")
        self.beta, self.floor, self.decay = beta, floor, decay
        self.selector()  # whose arguments are checked now
        self.schedule = Schedule(warmup=warmup, end=1.0 - tail if tail else None)
        self.table = ScoreTable() if table is None else table  # an empty one is false

    def selector(self) -> Selector:
        """Percentile^beta over all that is remembered, with the floor."""
        # A history no longer than what is ranked: the percentiles are those of the table.
        return Percentile(beta=self.beta, floor=self.floor, history=1)

    def grow(self, examples: int) -> None:
        """See `Remembering.grow`."""
        self.table.grow(examples)

    def draws(self, epoch: int) -> bool:
        """Always, as long as selection is on."""
        return True

    def predicted(self, epoch: int) -> Tensor:
        """The remembered loss of each."""
        return self.table.scores()

    def scored(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Never called: there is no selection pass."""

    def trained(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        """Remembers the losses, averaged with the old ones where ``decay`` says so."""
        record_average(self.table, indices, losses, epoch, self.decay)

    def state_dict(self) -> dict[str, Any]:
        """The table."""
        return {"table": self.table.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        self.table.load_state_dict(state["table"])
