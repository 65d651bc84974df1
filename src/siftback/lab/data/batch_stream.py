"""Batches of examples: one epoch in an order that only the seed and the epoch's number decide."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.datasets import ImageData
from siftback.lab.data.text_data import IGNORED, PAD, TextData, lengths_of

Batch = tuple[Tensor, Tensor]

PADDING = {0: PAD, 1: IGNORED}
"""What fills shorter rows as batches of texts are joined: their inputs and their labels."""

BUCKET = 8
"""Batches of which texts are sorted by length, so that each of them holds little padding."""


class BatchStream:
    """Training batches, shuffled and augmented; each ``iter()`` gives one epoch.

    Order and augmentation of epoch e depend on ``(seed, e)`` alone, so every strategy sees the
    same. Its state is a place within an epoch; a stream that loads it goes on there.

    Images stay uint8 on ``device`` as long as they can: rows are gathered and augmented as bytes,
    and turned into floats last, ``(image / 255 - mean) / std`` with the training images' own mean
    and standard deviation per channel. Texts are padded to the longest of their batch; of each
    `BUCKET` batches they come in the order of their lengths, by turns rising and falling, so that
    batches next to each other hold texts of like length, and can be joined with little padding.

    Args:
        data: Whose training examples to give.
        batch_size: Examples a batch, B; a last short batch is dropped.
        seed: At least 0.
        augment: What to do to images; ``data.augmentation`` where None. A cutout leaves the
            training images' mean, which is 0 once normalised.
        device: Where the batches are made.
        channels_last: Whether images have torch's ``channels_last`` memory format, the
            faster one for convolutions.
        indexed: Whether to give each example's index too.

    Attributes:
        examples: How many there are.

    Yields:
        ``(inputs, labels)``: images float32 [B, C, H, W] or tokens int64 [B, T], and int64 [B], or
        of language [B, T]; or ``(indices, (inputs, labels))``, the indices int64 [B].

    Raises:
        ConfigError: For a batch size below 1 or above the number of examples, or a negative seed.
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
        if seed < 0:
            raise ConfigError(f"seed={seed} is negative: give 0 or more")
        self.batch_size = batch_size
        self.examples = len(data.train_labels)
        self.indexed = indexed
        self._chosen: Tensor | None = None
        self._batches = self.examples // batch_size
        self._seed, self._epoch = seed, 0
        self._given = 0  # batches of this epoch
        self._generator = torch.Generator()
        self._resumed: Tensor | None = None  # the generator's state at the place to go on from
        self._examples = _examples_of(data, augment, device, channels_last)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, from 0, that the next ``iter()`` gives."""
        if epoch != self._epoch:
            self._epoch, self._given, self._resumed = epoch, 0, None

    def only(self, indices: Tensor | None) -> None:
        """Leaves all other examples out, from the next epoch on; None leaves none out.

        What is left comes in the order of the whole epoch, all of it: the last batch is short.
        """
        if indices is None:
            self._chosen = None
            self._batches = self.examples // self.batch_size
            return
        self._chosen = torch.zeros(self.examples, dtype=torch.bool)
        self._chosen[indices] = True
        self._batches = -(-int(self._chosen.sum()) // self.batch_size)

    def resize(self, batch_size: int) -> None:
        """Gives batches of another size from the next epoch on."""
        self.batch_size = batch_size
        self._batches = self.examples // batch_size

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        # SeedSequence spreads neighbouring pairs far apart, where adding them would collide.
        state = np.random.SeedSequence([self._seed, self._epoch]).generate_state(1)
        generator = self._generator = torch.Generator().manual_seed(int(state[0]))
        order = torch.randperm(self.examples, generator=generator)
        if self._chosen is None:
            order = order[: len(self) * self.batch_size]
        else:
            order = order[self._chosen[order]]
        order = self._examples.arranged(order, self.batch_size)
        if self._resumed is None:
            self._given = 0
        else:
            generator.set_state(self._resumed)
            self._resumed = None
        for indices in torch.split(order, self.batch_size)[self._given :]:
            batch = self._examples.batch(indices, generator)
            self._given += 1
            yield (indices, batch) if self.indexed else batch

    def state_dict(self) -> dict[str, Any]:
        """The epoch, how many of its batches were given, and where its random numbers are.

        What `only` leaves is no part of it: whoever chose it chooses it again.
        """
        generator = self._generator.get_state() if self._resumed is None else self._resumed
        return {"epoch": self._epoch, "given": self._given, "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next ``iter()`` give the rest of the epoch that another one was within."""
        self._epoch, self._given = state["epoch"], state["given"]
        self._resumed = state["generator"] if self._given else None

    def plain(self, count: int) -> Iterator[Batch]:
        """Yields the first training examples, by index, not augmented."""
        for rows in torch.split(torch.arange(min(count, self.examples)), self.batch_size):
            yield self.plain_of(rows)

    def plain_of(self, indices: Tensor) -> Batch:
        """Training examples by index, int64[n], not augmented."""
        return self._examples.batch(indices, None)


def test_batches(
    data: DataSet,
    batch_size: int,
    device: str | torch.device = "cpu",  # noqa: PT028
    channels_last: bool = True,  # noqa: PT028
) -> Iterator[Batch]:
    """Yields the test examples in order, as ``BatchStream``'s but not augmented.

    Args:
        data: Whose test examples to give.
        batch_size: Examples a batch; the last one holds what is left.
        device: Where the batches are made.
        channels_last: As for ``BatchStream``.

    Yields:
        ``(inputs, labels)``, as ``BatchStream`` does.
    """
    normalise = _Normalise(data, device, channels_last) if isinstance(data, ImageData) else None
    for start in range(0, len(data.test_labels), batch_size):
        rows = slice(start, start + batch_size)
        labels = data.test_labels[rows].to(device)
        if isinstance(data, TextData):
            yield _trimmed(data.test_tokens[rows].to(device), labels)
        elif isinstance(data, ImageData) and normalise is not None:
            yield normalise(data.test_images[rows].to(device)), labels


# The name is the field's; pytest would otherwise take it for a test wherever it is imported.
test_batches.__test__ = False  # type: ignore[attr-defined]


class _Examples(Protocol):
    """The training examples of a set, on a device."""

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """An epoch's order, int64[n], as its batches are best made of it."""

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> Batch:
        """Examples by index, int64[B], augmented where there is a generator."""


def _examples_of(
    data: DataSet, augment: Augment | None, device: str | torch.device, channels_last: bool
) -> _Examples:
    if isinstance(data, TextData):
        return _Texts(data, device)
    assert isinstance(data, ImageData)
    return _Images(data, augment, device, channels_last)


class _Images:
    def __init__(
        self,
        data: ImageData,
        augment: Augment | None,
        device: str | torch.device,
        channels_last: bool,
    ) -> None:
        self._augment = data.augmentation if augment is None else augment
        self._normalise = _Normalise(data, device, channels_last)
        # Rows that are contiguous, channels last or not, are gathered several times faster.
        images = data.train_images.to(device)
        self._rows = (images.permute(0, 2, 3, 1) if channels_last else images).contiguous()
        self._channels_last = channels_last
        self._labels = data.train_labels.to(device)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        return order

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> Batch:
        chosen = indices.to(self._labels.device)
        images = self._rows.index_select(0, chosen)
        if self._channels_last:
            images = images.permute(0, 3, 1, 2)
        if generator is not None:
            images = self._augment(images, generator, self._normalise.zero)
        return self._normalise(images), self._labels.index_select(0, chosen)


class _Texts:
    def __init__(self, data: TextData, device: str | torch.device) -> None:
        self._tokens, self._labels = data.train_tokens.to(device), data.train_labels.to(device)
        self._lengths = lengths_of(data.train_tokens)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        parts = torch.split(order, BUCKET * batch_size)
        return torch.cat(
            [
                part[self._lengths[part].argsort(stable=True, descending=bool(number % 2))]
                for number, part in enumerate(parts)
            ]
        )

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> Batch:
        chosen = indices.to(self._labels.device)
        return _trimmed(self._tokens.index_select(0, chosen), self._labels.index_select(0, chosen))


def _trimmed(tokens: Tensor, labels: Tensor) -> Batch:
    """Texts up to the longest of them, and the labels of as many positions."""
    longest = max(1, int(lengths_of(tokens).max())) if len(tokens) else 1
    return tokens[:, :longest].long(), labels if labels.ndim == 1 else labels[:, :longest]


class _Normalise:
    """Bytes to floats: ``image * 1 / (255 * std) - mean / std``.

    Attributes:
        zero: uint8 [C], the byte nearest to the mean, which becomes 0.
    """

    def __init__(self, data: ImageData, device: str | torch.device, channels_last: bool) -> None:
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self.zero = (255 * data.mean).round().to(torch.uint8).to(device)
        # A whole image of constants, in the batch's own layout, lets torch run over both as over
        # one long vector: several times faster than broadcasting three numbers.
        shape = (1, *data.train_images.shape[1:])
        self._scale, self._shift = (
            constants.view(1, -1, 1, 1).expand(shape).contiguous(memory_format=self._layout)
            for constants in ((1 / (255 * data.std)).to(device), (-data.mean / data.std).to(device))
        )

    def __call__(self, images: Tensor) -> Tensor:
        floats = images.to(torch.float32, memory_format=self._layout)
        return floats.mul_(self._scale).add_(self._shift)
