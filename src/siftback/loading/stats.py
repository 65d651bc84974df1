"""Statistics of selection, counted in examples."""

from dataclasses import dataclass


@dataclass
class Stats:
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
    """

    seen: int = 0
    unread: int = 0
    considered: int = 0
    kept: int = 0
    scored: int = 0
    released: int = 0
    dropped: int = 0
    nonfinite: int = 0
    seconds_selection: float = 0.0

    @property
    def kept_share(self) -> float:
        """Share of the considered examples that was kept; 1 if none was considered yet."""
        return self.kept / self.considered if self.considered else 1.0

    @property
    def forwards(self) -> int:
        """Forward passes, counted per example, if training forwards each released example once."""
        return self.scored + self.released

    @property
    def backwards(self) -> int:
        """Backward passes, counted per example, if training uses all released examples."""
        return self.released


@dataclass
class SinglePassStats:
    """Statistics of a `SinglePass`, in examples, since it was created.

    Attributes:
        seen: Examples passed, each forwarded once.
        considered: Examples of ``seen`` that selection decided on; the others were all kept.
        kept: Examples of ``considered`` that selection kept.
        compilations: Number of times the model was traced and compiled.
        seconds_compiling: Seconds of the calls that did so.
        seconds_selection: Seconds in choosing rows; the forward pass is training's own.
    """

    seen: int = 0
    considered: int = 0
    kept: int = 0
    compilations: int = 0
    seconds_compiling: float = 0.0
    seconds_selection: float = 0.0

    @property
    def kept_share(self) -> float:
        """Share of the considered examples that was kept; 1 if none was considered yet."""
        return self.kept / self.considered if self.considered else 1.0

    @property
    def forwards(self) -> int:
        """Forward passes, counted per example."""
        return self.seen

    @property
    def backwards(self) -> int:
        """Backward passes, counted per example: all but those that selection left out."""
        return self.seen - self.considered + self.kept
