"""Encoded images become bytes."""

import io
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.address import Size
from siftback.lab.data.data_set import check_memory

GREY = {"1", "L"}
# What Pillow raises for damaged files, and for those of far more pixels than bytes.
BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
DEEP = ("I", "F")  # how the names of modes begin whose values are not bytes

Encoded = bytes | Path


def survey(encoded: Iterable[Encoded], title: str, size: Size | None) -> tuple[str, Size]:
    """The mode and the size that images have in common, from their headers alone.

    Args:
        encoded: All images of a set.
        title: What to call the set in errors.
        size: What they will be brought to; None where they have to be of one size.

    Returns:
        Pillow's mode, ``"L"`` where all are grey, else ``"RGB"``; and height and width.

    Raises:
        ConfigError: If there is no image, one cannot be read, or the sizes differ.
    """
    modes: set[str] = set()
    sizes: Counter[Size] = Counter()
    for number, each in enumerate(encoded):
        with _opened(each, number, title) as image:
            modes.add(image.mode)
            sizes[image.height, image.width] += 1
    if not sizes:
        raise ConfigError(f"{title} holds no images: give a set that does")
    if size is None and len(sizes) > 1:
        some = " and ".join(f"{height}x{width}" for (height, width), _ in sizes.most_common(2))
        raise ConfigError(
            f"{title} holds images of {len(sizes)} sizes, such as {some}: add ,size=32 or "
            ",size=HEIGHTxWIDTH to bring all to one"
        )
    return "L" if modes <= GREY else "RGB", size or next(iter(sizes))


def decode(encoded: Iterable[Encoded], count: int, mode: str, size: Size, title: str) -> Tensor:
    """Decodes images, with a progress bar on stderr.

    One thread: for images this small, several only wait for each other's Python.

    Args:
        encoded: Files, or what they hold.
        count: How many, N.
        mode: Pillow's mode: ``"L"`` for grey, ``"RGB"`` for colour.
        size: Height and width. An image of another size is cut to their ratio about its middle,
            then scaled.
        title: What to write beside the bar.

    Returns:
        uint8 [N, C, H, W], in ``channels_last`` memory format.

    Raises:
        ConfigError: If an image cannot be read.
    """
    bands = Image.getmodebands(mode)
    check_memory(count * size[0] * size[1] * bands, f"{count} images of {size[0]}x{size[1]} pixels")
    pixels = np.empty((count, *size, bands), np.uint8)
    likely: str | None = None
    for number, each in enumerate(_progress(encoded, count, title)):
        with _opened(each, number, title, likely) as image:
            likely = image.format
            try:
                whole = image.convert(mode)
            except BROKEN as error:  # its header was whole
                raise _unreadable(each, number, title, error) from error
        if (whole.height, whole.width) != size:
            whole = ImageOps.fit(whole, size[::-1], Image.Resampling.BICUBIC)
        pixels[number] = np.asarray(whole).reshape(pixels.shape[1:])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def _opened(encoded: Encoded, number: int, title: str, likely: str | None = None) -> Image.Image:
    """An image whose header is read; ``likely`` is the format to try before all others."""
    if isinstance(encoded, Path) and not encoded.is_file():  # reading a pipe would wait for ever
        raise _unreadable(encoded, number, title, "it is not a file")
    source = encoded if isinstance(encoded, Path) else io.BytesIO(encoded)
    try:
        image = _read_header(source, likely)
    except BROKEN as error:
        raise _unreadable(encoded, number, title, error) from error
    if image.mode.startswith(DEEP):  # conversion to bytes would clip most values to 255
        image.close()
        raise _unreadable(
            encoded, number, title, f"mode {image.mode} has more than 8 bits in each channel"
        )
    return image


def _read_header(source: Path | io.BytesIO, likely: str | None) -> Image.Image:
    if likely is not None:
        with suppress(UnidentifiedImageError):
            return Image.open(source, formats=[likely])
    return Image.open(source)


def _unreadable(encoded: Encoded, number: int, title: str, error: Exception | str) -> ConfigError:
    which = encoded if isinstance(encoded, Path) else f"image {number} of {title}"
    return ConfigError(f"{which} cannot be read as an image ({error}): fix it or leave it out")


def _progress(items: Iterable[Encoded], count: int, title: str) -> Iterable[Encoded]:
    """The items, under a progress bar on a terminal and a plain line elsewhere."""
    if sys.stderr.isatty():
        console = Console(stderr=True)
        return track(items, title, total=count, console=console, transient=True)
    print(f"{title}: {count:,} images", file=sys.stderr)
    return items
