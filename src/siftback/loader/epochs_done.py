"""Training progress in epochs."""


class EpochsDone:
    """Epochs of source examples done, spread evenly over the training batches made from them.

    Attributes:
        now: Epochs done before the batch given last.
        next: Epochs done before the next batch.

    >>> done = EpochsDone()
    >>> done.read(0.5)  # half an epoch, of which two batches come
    >>> done.give(left=2), done.now, done.give(left=1), done.now
    (None, 0.0, None, 0.25)
    >>> done.finish(), done.now
    (None, 0.5)
    """

    def __init__(self) -> None:
        self.now = self.next = self._after = 0.0

    def begin(self, epoch: int) -> None:
        """Moves to the beginning of an epoch."""
        self.now = self.next = self._after = float(epoch)

    def read(self, epochs: float) -> None:
        """Records how far the source was read, before the batches made from that are given."""
        self._after = epochs

    def give(self, left: int) -> None:
        """Records that a batch is given: the first of ``left`` until the source reads on."""
        self.now, self.next = self.next, self.next + (self._after - self.next) / left

    def finish(self) -> None:
        """Records that training is done with all batches given."""
        self.now = self.next = self._after

    def state_dict(self) -> tuple[float, float]:
        """Epochs done before the next batch, and those the source has read."""
        return self.next, self._after

    def load_state_dict(self, state: tuple[float, float]) -> None:
        """Continues before the next batch."""
        self.next, self._after = state
        self.now = self.next
