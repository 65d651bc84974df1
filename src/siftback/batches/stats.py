"""Statistics of selection, counted in examples, and how they are shown and logged."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from siftback.state import dict_of, integer, number

FORWARD, BACKWARD = 1, 2  # costs of one example

Line = tuple[str, str, str]
"""A line of statistics: what is counted, the number, and what puts it into proportion."""


@dataclass(repr=False)
class SelectionStats(ABC):
    """Statistics of selection: costs, and how they are shown.

    Printed, they are a few aligned lines; as the last expression of a notebook's cell, a table.
    """

    seen: int = 0
    considered: int = 0
    kept: int = 0
    seconds_selection: float = 0.0

    @property
    @abstractmethod
    def forwards(self) -> int:
        """Forward passes, counted per example."""

    @property
    @abstractmethod
    def backwards(self) -> int:
        """Backward passes, counted per example."""

    @property
    def kept_share(self) -> float:
        """Share of the considered examples that was kept; 1 if none was considered yet."""
        return self.kept / self.considered if self.considered else 1.0

    @property
    def left_out(self) -> int:
        """Examples that selection left out, whether they were read or not."""
        return self.considered - self.kept

    @property
    def cost(self) -> int:
        """Forward and backward passes, a forward of an example being 1 and a backward 2."""
        return FORWARD * self.forwards + BACKWARD * self.backwards

    @property
    def cost_share(self) -> float:
        """The cost over that of plain training on all examples seen; 1 if none was seen yet."""
        return self.cost / self._plain_cost if self.seen else 1.0

    def as_dict(self, prefix: str = "sift/") -> dict[str, float]:
        """All numbers by name, as every logger takes them.

        Such as ``wandb.log(stats.as_dict(), step)``, ``self.log_dict(stats.as_dict())`` in a
        ``LightningModule``, ``accelerator.log(stats.as_dict(), step)`` and
        ``trainer.log(stats.as_dict())`` of Hugging Face.

        Args:
            prefix: What names begin with.

        Returns:
            The attributes, ``kept_share``, ``forwards``, ``backwards``, ``cost`` and
            ``cost_share``.

        >>> stats = Stats(seen=100, considered=50, kept=20, released=70)
        >>> stats.as_dict()["sift/kept_share"], stats.as_dict(prefix="")["cost"]
        (0.4, 210.0)
        """
        derived = ("kept_share", "forwards", "backwards", "cost", "cost_share")
        numbers = vars(self) | {name: getattr(self, name) for name in derived}
        return {f"{prefix}{name}": float(number) for name, number in numbers.items()}

    def check(self, name: str, value: Any) -> None:
        """Checks for all numbers, as they are in a state."""
        checks = {key: number(0) if key.startswith("seconds") else integer() for key in vars(self)}
        dict_of(checks)(name, value)

    def log_entries(self, share: float) -> dict[str, float]:
        """Returns the statistics that integrations log at each logging step of their framework.

        Args:
            share: Share of the examples that is kept now, in (0, 1]: by the pass over the data that
                is under way, or by the selector as its schedule has it; 1 while all are kept.

        Returns:
            Five entries: ``sift/kept_share``, the share of the considered examples that was kept
            so far, 1 before any was considered; ``sift/backwards``, backward passes so far, in
            examples; ``sift/seconds_selection``, seconds in selection so far;
            ``sift/left_out``, examples left out so far, read or not; and ``sift/share``, as passed.

        >>> stats = Stats(seen=100, unread=30, considered=50, kept=20, released=70)
        >>> for name, number in stats.log_entries(share=0.4).items():
        ...     print(name, number)
        sift/kept_share 0.4
        sift/backwards 70.0
        sift/seconds_selection 0.0
        sift/left_out 30.0
        sift/share 0.4
        """
        return {
            "sift/kept_share": self.kept_share,
            "sift/backwards": float(self.backwards),
            "sift/seconds_selection": self.seconds_selection,
            "sift/left_out": float(self.left_out),
            "sift/share": share,
        }

    def to_tensorboard(self, writer: Any, step: int) -> None:
        """Writes all numbers of `as_dict` as scalars.

        Args:
            writer: A ``torch.utils.tensorboard.SummaryWriter``, or another object with
                ``add_scalar(name, number, step)``.
            step: The step that they belong to.
        """
        for name, value in self.as_dict().items():
            writer.add_scalar(name, value, step)

    def __repr__(self) -> str:
        names, numbers, remarks = zip(*self._lines(), strict=True)
        left, right = (max(map(len, texts)) for texts in (names, numbers))
        lines = zip(names, numbers, remarks, strict=True)
        rows = [f"{name:<{left}}  {number:>{right}}  {remark}" for name, number, remark in lines]
        return "\n  ".join([f"{type(self).__name__}, in examples:", *map(str.rstrip, rows)])

    def _repr_html_(self) -> str:
        """A table, as notebooks show it."""
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:right">{escape(number)}</td>'
            f'<td style="text-align:left">{escape(remark)}</td></tr>'
            for name, number, remark in self._lines()
        )
        title = f"{type(self).__name__}, in examples"
        return f'<table><caption style="text-align:left">{title}</caption>{rows}</table>'

    def _lines(self) -> Iterator[Line]:
        """Yields the lines: numbers that are always of interest, and others that are not 0."""
        yield "seen", f"{self.seen:,}", ""
        decided = f"{self.kept_share:.0%} of the {self.considered:,} that were decided on"
        yield "kept", f"{self.kept:,}", decided if self.considered else "none was decided on"
        yield from self._own_lines()
        yield "forwards", f"{self.forwards:,}", ""
        yield "backwards", f"{self.backwards:,}", ""
        if self.seen:
            plain = f"{self.cost_share:.0%} of the {self._plain_cost:,} of training on all seen"
            units = f"{plain} (a forward is {FORWARD}, a backward {BACKWARD})"
            yield "cost", f"{self.cost:,}", units
        yield "selection", f"{self.seconds_selection:.1f} s", ""

    @abstractmethod
    def _own_lines(self) -> Iterator[Line]:
        """Those of one kind of statistics alone."""

    @property
    def _plain_cost(self) -> int:
        return (FORWARD + BACKWARD) * self.seen


@dataclass(repr=False)
class Stats(SelectionStats):
    """Statistics of a loader, in examples, since it was created.

    Attributes:
        seen: Examples that the wrapped loader gave, or that memory left out unread.
        unread: Examples of ``seen`` that were not read.
        considered: Examples of ``seen`` that selection decided on; the others passed through.
        kept: Examples of ``considered`` that selection kept.
        scored: Examples forwarded by selection passes.
        released: Examples given to training.
        dropped: Kept examples that ``drop_last=True`` dropped at the ends of epochs, and the
            rest of interrupted epochs.
        nonfinite: Examples whose loss was not finite, in a scoring pass or in training.
        seconds_selection: Seconds in selection, including its forward passes. On an accelerator
            this includes waiting for work that was queued before.

    >>> Stats(seen=1024, unread=345, considered=768, kept=423, released=679)
    Stats, in examples:
      seen       1,024
      kept         423  55% of the 768 that were decided on
      unread       345  left out before they were read
      forwards     679
      backwards    679
      cost       2,037  66% of the 3,072 of training on all seen (a forward is 1, a backward 2)
      selection  0.0 s
    """

    unread: int = 0
    scored: int = 0
    released: int = 0
    dropped: int = 0
    nonfinite: int = 0

    @property
    def forwards(self) -> int:
        """Forward passes, counted per example, if training forwards each released example once."""
        return self.scored + self.released

    @property
    def backwards(self) -> int:
        """Backward passes, counted per example, if training uses all released examples."""
        return self.released

    def _own_lines(self) -> Iterator[Line]:
        remarks = {
            "unread": "left out before they were read",
            "scored": "forwarded in order to select",
            "dropped": "kept, and not trained on",
            "nonfinite": "losses that were not finite",
        }
        for name, remark in remarks.items():
            if number := getattr(self, name):
                yield name, f"{number:,}", remark


@dataclass(repr=False)
class SinglePassStats(SelectionStats):
    """Statistics of a `SinglePass`, in examples, since it was created.

    Attributes:
        seen: Examples passed, each forwarded once.
        considered: Examples of ``seen`` that selection decided on; the others were all kept.
        kept: Examples of ``considered`` that selection kept.
        compilations: Number of times the model was traced and compiled.
        seconds_compiling: Seconds of the calls that did so.
        seconds_selection: Seconds in choosing rows; the forward pass is training's own.
    """

    compilations: int = 0
    seconds_compiling: float = 0.0

    @property
    def forwards(self) -> int:
        """Forward passes, counted per example."""
        return self.seen

    @property
    def backwards(self) -> int:
        """Backward passes, counted per example: all but those that selection left out."""
        return self.seen - self.considered + self.kept

    def _own_lines(self) -> Iterator[Line]:
        if self.compilations:
            times = f"{self.compilations} times" if self.compilations > 1 else "once"
            yield "compiling", f"{self.seconds_compiling:.1f} s", times
