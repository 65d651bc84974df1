"""What selection has done so far, counted in examples."""

from dataclasses import dataclass


@dataclass
class Stats:
    """What a loader has done so far, in examples, since it was made.

    Attributes:
        seen: Examples that the wrapped loader gave or, left out by memory, did not have to read.
        unread: Those that were not read.
        considered: Those of them that selection decided on; the others passed through.
        kept: Those that it kept.
        scored: Examples forwarded by selection passes.
        released: Examples given to training.
        dropped: Kept examples that ``drop_last=True`` dropped at the ends of epochs, and those
            that were left of epochs that were broken off.
        nonfinite: Examples whose loss was not finite, in a scoring pass or in training.
        seconds_selection: Seconds in selection, its forward passes included. On an accelerator
            this counts waiting for work that was queued before.
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
        """Share of the considered examples that was kept; 1 before any was."""
        return self.kept / self.considered if self.considered else 1.0

    @property
    def forwards(self) -> int:
        """Forward passes of one example, where training forwards what is released once."""
        return self.scored + self.released

    @property
    def backwards(self) -> int:
        """Backward passes of one example, where training uses all that is released."""
        return self.released


@dataclass
class SinglePassStats:
    """What a `SinglePass` has done so far, in examples, since it was made.

    Attributes:
        seen: Examples given, each of them forwarded once.
        kept: Those whose losses were given back, each of them run backward once.
        compilations: How often the model was traced and compiled.
        seconds_compiling: Seconds of the calls that did so.
        seconds_selection: Seconds in choosing rows; the forward is training's own.
    """

    seen: int = 0
    kept: int = 0
    compilations: int = 0
    seconds_compiling: float = 0.0
    seconds_selection: float = 0.0

    @property
    def kept_share(self) -> float:
        """Share of the examples that was kept; 1 before any was seen."""
        return self.kept / self.seen if self.seen else 1.0

    @property
    def forwards(self) -> int:
        """Forward passes of one example."""
        return self.seen

    @property
    def backwards(self) -> int:
        """Backward passes of one example."""
        return self.kept
