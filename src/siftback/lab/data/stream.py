"""Batches of examples: one epoch in an order that only the seed and the epoch's number decide."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment, on_device
from siftback.lab.data.data_set import IGNORED, PAD, DataSet, ImageData, TableData, lengths_of

Batch = tuple[Tensor, Tensor]

PADDING = {0: PAD, 1: IGNORED}
"""The filling of shorter rows as batches of texts are joined: of their inputs and their labels."""

BUCKET = 8
"""Batches of which texts are sorted by length, so that each of them holds little padding."""


class BatchStream:
    """Training batches, shuffled and augmented; each ``iter()`` gives one epoch.

    Order and augmentation of epoch e depend on ``(seed, e)`` alone, so every strategy sees the
    same. Its state is a position in an epoch; a stream that loads it goes on from it.

    Images stay uint8 on ``device`` as long as they can: rows are gathered and augmented as bytes,
    and turned into floats last, ``(image / 255 - mean) / std`` with the training images' own mean
    and standard deviation per channel. Numbers of rows are standardised likewise, by those of the
    training rows, and are 0, the mean, where they are missing. Texts are padded to the longest of
    their batch; of each `BUCKET` batches they come in the order of their lengths, by turns rising
    and falling, so that batches next to each other hold texts of like length, and can be joined
    with little padding.

    Args:
        data: The data set.
        batch_size: Examples a batch, B; a last short batch is dropped.
        seed: At least 0.
        augment: Augmentation of images; ``data.augmentation`` where None. A cutout leaves the
            training images' mean, which is 0 once normalised.
        device: Device of the batches.
        channels_last: Whether images have torch's ``channels_last`` memory format, the
            faster one for convolutions.
        indexed: Whether to give each example's index too.

    Attributes:
        examples: Number of training examples.

    Yields:
        ``(inputs, labels)``: images float32 [B, C, H, W], rows float32 [B, F], coordinates float32
        [B, 2] or tokens int64 [B, T]; and int64 [B], of language [B, T], of pixels float32 [B, C].
        Or ``(indices, (inputs, labels))``, the indices int64 [B].

    Raises:
        ConfigError: For a batch size below 1 or above the number of examples.
    """

    drop_last = True

    def __init__(
        self,
        data: DataSet,
        batch_size: int,
        seed: int,
        augment: Augment | None = None,
        device: str | torch.device = "cpu",
        channels_last: bool = True,
        indexed: bool = False,
    ) -> None:
        if not 1 <= batch_size <= len(data.train_labels):
            raise ConfigError(
                f"batch_size={batch_size} does not fit {len(data.train_labels)} training "
                "examples: give an integer from 1 up to theirs"
            )
        self.batch_size = batch_size
        self.examples = len(data.train_labels)
        self.indexed = indexed
        self.only(None)
        self._short = 0  # examples of a last batch that this epoch's first one completes
        self._seed, self._epoch = seed, 0
        self._position = 0  # examples of this epoch that were given
        self._generator = torch.Generator()
        self._resumed: Tensor | None = None  # the generator's state at the position to go on from
        self._finish = finisher(data, device, channels_last, augment)
        self._sizes = data.sizes(data.train_inputs)
        self._channels_last = channels_last and data.kind == "images"
        # Rows that are contiguous, channels last or not, are gathered several times faster.
        inputs = data.train_inputs.to(device)
        self._inputs = (inputs.permute(0, 2, 3, 1) if self._channels_last else inputs).contiguous()
        self._labels = data.train_labels.to(device)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, from 0, that the next ``iter()`` gives."""
        if epoch != self._epoch:
            self._short = (self._short + self._position) % self.batch_size
            self._epoch, self._position, self._resumed = epoch, 0, None

    def only(self, indices: Tensor | None) -> None:
        """Leaves all other examples out, from the next epoch on; None leaves none out.

        The examples that are left come in the order of the whole epoch. The last batch is short,
        and the first one of the next epoch has as many examples as complete it, so that a pool of
        them copies no others.
        """
        self._left = torch.full((self.examples,), indices is None)
        self._count = self.examples // self.batch_size * self.batch_size  # of an epoch
        if indices is not None:
            self._left[indices] = True
            self._count = int(self._left.sum())

    def resize(self, batch_size: int) -> None:
        """Gives batches of another size from the next epoch on."""
        self.batch_size, self._short = batch_size, 0
        self.only(None)

    def __len__(self) -> int:
        return -(-(self._short + self._count) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        # SeedSequence spreads neighbouring pairs far apart, where adding them would collide.
        state = np.random.SeedSequence([self._seed, self._epoch]).generate_state(1)
        generator = self._generator = torch.Generator().manual_seed(int(state[0]))
        order = torch.randperm(self.examples, generator=generator)
        order = order[self._left[order]][: self._count]
        if self._sizes is not None:
            buckets = enumerate(torch.split(order, BUCKET * self.batch_size))
            by_length = [
                rows[self._sizes[rows].argsort(stable=True, descending=number % 2 == 1)]
                for number, rows in buckets
            ]
            order = torch.cat(by_length)
        if self._resumed is None:
            self._position = 0
        else:
            generator.set_state(self._resumed)
            self._resumed = None
        while self._position < len(order):
            in_batch = (self._short + self._position) % self.batch_size
            indices = order[self._position :][: self.batch_size - in_batch]
            batch = self.batch_of(indices, generator)
            self._position += len(indices)
            yield (indices, batch) if self.indexed else batch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position among the batches, and the random numbers' state.

        The examples that `only` leaves are no part of it: the caller chooses them again.
        """
        generator = self._generator.get_state() if self._resumed is None else self._resumed
        return {"at": (self._epoch, self._position, self._short), "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next ``iter()`` give the remaining batches of an interrupted epoch."""
        self._epoch, self._position, self._short = state["at"]
        self._resumed = state["generator"] if self._position else None

    def plain(self, count: int) -> Iterator[Batch]:
        """Returns batches of the first training examples, by index, not augmented."""
        return map(self.batch_of, torch.split(torch.arange(self.examples)[:count], self.batch_size))

    def batch_of(self, indices: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Returns training examples by index, int64[n], augmented where there is a generator."""
        rows = on_device(indices, self._labels.device)
        inputs = self._inputs.index_select(0, rows)
        inputs = inputs.permute(0, 3, 1, 2) if self._channels_last else inputs
        return self._finish(inputs, self._labels.index_select(0, rows), generator)


def evaluation_batches(
    data: DataSet, batch_size: int, device: str | torch.device = "cpu", channels_last: bool = True
) -> Iterator[Batch]:
    """Yields the test examples in order, as ``BatchStream``'s but not augmented.

    Args:
        data: The data set.
        batch_size: Examples a batch; the last one holds the remaining.
        device: Device of the batches.
        channels_last: As for ``BatchStream``.

    Yields:
        ``(inputs, labels)``, as ``BatchStream`` does.
    """
    finish = finisher(data, device, channels_last)
    for start in range(0, len(data.test_labels), batch_size):
        rows = slice(start, start + batch_size)
        yield finish(data.test_inputs[rows].to(device), data.test_labels[rows].to(device), None)


def finisher(
    data: DataSet, device: str | torch.device, channels_last: bool, augment: Augment | None = None
) -> Callable[[Tensor, Tensor, torch.Generator | None], Batch]:
    """Returns the last step to a batch of a data set, with its arguments as in `BatchStream`."""
    if isinstance(data, ImageData):
        return image_finisher(data, device, channels_last, augment or data.augmentation)
    if isinstance(data, TableData):
        mean, std = (moment.to(device) for moment in data.moments)
        # A number that is missing becomes 0, the mean.
        return lambda rows, labels, generator: (((rows - mean) / std).nan_to_num(0.0), labels)
    if data.kind == "pixels":
        return lambda coordinates, colours, generator: (coordinates, colours)
    return trim_texts


def trim_texts(tokens: Tensor, labels: Tensor, generator: torch.Generator | None) -> Batch:
    """Cuts tokens, int64[B, T], at the longest text, and labels to as many positions."""
    longest = max(1, int(lengths_of(tokens).max())) if len(tokens) else 1
    return tokens[:, :longest].long(), labels if labels.ndim == 1 else labels[:, :longest]


def image_finisher(
    data: ImageData, device: str | torch.device, channels_last: bool, augment: Augment
) -> Callable[[Tensor, Tensor, torch.Generator | None], Batch]:
    """Returns what augments images, where there is a generator, and turns their bytes to floats.

    These are ``image * 1 / (255 * std) - mean / std``, float32[B, C, H, W].
    """
    layout = torch.channels_last if channels_last else torch.contiguous_format
    mean, std = data.moments
    # The byte nearest to the mean of each channel, which becomes 0.
    zero = (255 * mean).round().to(torch.uint8)
    # A whole image of constants, in the batch's own layout, lets torch run over both as over
    # one long vector: several times faster than broadcasting three numbers.
    shape = (1, *data.train_inputs.shape[1:])
    scale, shift = (
        constants.view(1, -1, 1, 1).expand(shape).contiguous(memory_format=layout)
        for constants in ((1 / (255 * std)).to(device), (-mean / std).to(device))
    )

    def finish(images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Batch:
        if generator is not None:
            images = augment(images, generator, zero)
        return images.to(torch.float32, memory_format=layout).mul_(scale).add_(shift), labels

    return finish
