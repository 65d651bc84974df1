"""How far training is, in epochs."""


class EpochsDone:
    """Epochs of source examples done, spread evenly over the training batches made of them.

    Attributes:
        now: Before the batch given last.
        next: Before the next one.

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
        """Is at the beginning of an epoch."""
        self.now = self.next = self._after = float(epoch)

    def read(self, epochs: float) -> None:
        """Notes that the source is so far, before the batches are given that come of that."""
        self._after = epochs

    def give(self, left: int) -> None:
        """Notes that the first of the batches is given that are left until then."""
        self.now, self.next = self.next, self.next + (self._after - self.next) / left

    def finish(self) -> None:
        """Notes that training is done with all that was given."""
        self.now = self.next = self._after

    def state_dict(self) -> tuple[float, float]:
        """Where the next batch begins, and where the source is."""
        return self.next, self._after

    def load_state_dict(self, state: tuple[float, float]) -> None:
        """Goes on before the next batch."""
        self.next, self._after = state
        self.now = self.next
