"""Digits of fonts: a set of any size, made from the faces that come with matplotlib.

An image, 32x32 in colour, has a digit in its middle, parts of others beside it, and cluttered
ground behind it, as cropped house numbers have. Most images are easy, a share is hard. It is not
SVHN: it is made to be as large and as redundant, where that is not at hand.
"""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from siftback.errors import ConfigError
from siftback.lab.data.data_set import ImageData, check_memory
from siftback.lab.data.source import Address, parse_integer

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int16]

SIDE = 32
TEST_EXAMPLES = 10_000
MOST_EXAMPLES = 10_000_000
MOST_COPIES = 1000

FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmb10", "cmss10", "cmtt10"),
)
RARE_FACES = ("cmmi10", "cmti10", "STIXGeneralBolIta", "DejaVuSansMono-BoldOblique")
"""Faces of hard images alone, beside `FACES`: digits that hang below the line, and slanted ones."""

VARIANTS = 16
"""Sizes, slants and widths that each digit of a face is drawn in."""

HEIGHTS = (17, 27)  # of a digit, in pixels
PATCH = 80  # a digit in the middle of it can be shifted out of sight of its 32 pixels
DRAWN, FINER = 40, 4  # pixels that a digit is drawn on, each of this many squared
SCENES = 2048  # of a block of images; a set is made block by block, each from its random numbers

DARK_INK = 0.15  # share of images whose digits are darker than their ground

# What makes a hard image hard; they are equally frequent.
FAINT, COVERED, NOISY, RARE, CROWDED, HOLLOW = range(6)
HARD_KINDS = 6


class Scenes(NamedTuple):
    """The part that stays the same in all copies of an image, [S, ...] for S scenes.

    Attributes:
        labels: The digit in the middle.
        glyphs: Rows of `draw_glyphs` of the digit, and of those on its left and right, [S, 3].
        offsets: Columns of each of the three from the middle, [S, 3].
        center: Row and column of the digit from the middle, [S, 2].
        ground: Two colours of the ground, [S, 2, 3].
        ink: Colour of the digits, [S, 3].
        line: Of the border between the two colours of the ground: slopes, place and width, [S, 4].
        bar: Likewise, of a bar in front of the digit.
        bar_ink: Its colour, [S, 3].
        covered: Whether there is one.
        hollow: Whether digits are outlines.
        waves: Brightness of the ground at the corners of a grid, [S, 5, 5].
        noise: Largest noise of a pixel.
        blurred: Whether edges are soft.
    """

    labels: NDArray[np.int64]
    glyphs: NDArray[np.int64]
    offsets: NDArray[np.int64]
    center: NDArray[np.int64]
    ground: Numbers
    ink: Numbers
    line: Numbers
    bar: Numbers
    bar_ink: Numbers
    covered: NDArray[np.bool_]
    hollow: NDArray[np.bool_]
    waves: Numbers
    noise: Numbers
    blurred: NDArray[np.bool_]


def read_fonts(address: Address) -> ImageData:
    """Makes the set of an address: ``fonts:N`` with N images to train on.

    The options are ``hard``, the share of hard images, a fifth by default; ``copies``, the images
    of a scene, which differ by a shift of up to two pixels, brightness and noise, 1 by default; and
    ``seed``. The images are a function of them, bit for bit with the same versions of matplotlib
    and Pillow; the first of a larger set are those of a smaller one. The `TEST_EXAMPLES` to test on
    have the same faces and the same share of hard ones, random numbers of their own, and a scene
    each.

    Raises:
        ConfigError: If the number or an option is none that a set can have.
    """
    count = images_of_address(address)
    copies = address.integer("copies", 1, 1, MOST_COPIES)
    seed = address.integer("seed", 0, 0, 2**32 - 1)
    written = address.options.get("hard", "0.2")
    if not re.fullmatch(r"[01]|[01]?\.\d{1,9}", written) or not 0 <= float(written) <= 1:
        raise ConfigError(f"{address}: hard={written}: give the share of hard images, in [0, 1]")
    hard = float(written)
    check_memory(count * SIDE * SIDE * 3, f"{count} images of {SIDE}x{SIDE} pixels")
    images, labels = make_digits(count, hard, copies, seed)
    test_images, test_labels = make_digits(TEST_EXAMPLES, hard, 1, seed, split=1)
    return ImageData(
        address.title,
        torch.from_numpy(images).permute(0, 3, 1, 2),
        torch.from_numpy(labels),
        torch.from_numpy(test_images).permute(0, 3, 1, 2),
        torch.from_numpy(test_labels),
        tuple("0123456789"),
        augmentation=address.augmentation,
        groups=torch.arange(count) // copies if copies > 1 else None,
    )


def images_of_address(address: Address) -> int:
    """Returns the number of images to train on of an address.

    Raises:
        ConfigError: If it is none that a set can have.
    """
    return parse_integer(f"{address}: N", address.target, 10, MOST_EXAMPLES)


def make_digits(
    count: int, hard: float = 0.2, copies: int = 1, seed: int = 0, split: int = 0
) -> tuple[Bytes, NDArray[np.int64]]:
    """Makes images of digits.

    Args:
        count: Number of images, N.
        hard: Probability of a scene to be hard, in [0, 1].
        copies: Images of each scene; they come one after the other.
        seed: At least 0.
        split: Another number makes other images of the same seed.

    Returns:
        Images, uint8 [N, 32, 32, 3], and labels, int64 [N].

    >>> images, labels = make_digits(3)
    >>> images.shape, labels.tolist() == make_digits(100)[1][:3].tolist()
    ((3, 32, 32, 3), True)
    """
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    labels = np.empty(count, np.int64)
    scenes = max(1, SCENES // copies)
    for number, start in enumerate(range(0, count, scenes * copies)):
        random = np.random.default_rng([seed, split, number])
        drawn = draw_scenes(random, scenes, hard)
        rows = slice(start, start + scenes * copies)
        size = len(labels[rows])
        labels[rows] = drawn.labels.repeat(copies)[:size]
        images[rows] = compose(drawn, random, copies)[:size]
    return images, labels


def draw_scenes(random: Generator, count: int, hard: float) -> Scenes:
    """Draws scenes, each of which is hard with probability ``hard``."""
    kind = np.where(random.random(count) < hard, random.integers(HARD_KINDS, size=count), -1)
    labels = random.integers(10, size=count)
    common = random.integers(len(FACES), size=count)
    rare = len(FACES) + random.integers(len(RARE_FACES), size=count)
    digits = np.stack([labels, *random.integers(10, size=(2, count))], 1)
    # Neighbours are of the same number, so of the same face and drawn alike.
    variant = random.integers(VARIANTS, size=count)
    numbers = (np.where(kind == RARE, rare, common)[:, None] * 10 + digits) * VARIANTS
    numbers = numbers + variant[:, None]
    _, ink_widths = draw_glyphs()
    widths = ink_widths[numbers]
    gap = random.integers(1, 5, (count, 2))
    gap = np.where((kind == CROWDED)[:, None], -random.integers(2, 5, (count, 2)), gap)
    apart = (widths[:, :1] + widths[:, 1:]) // 2 + gap
    # A neighbour that is not there is shifted out of sight.
    is_seen = (random.random((count, 2)) < 0.5) | (kind == CROWDED)[:, None]
    apart = np.where(is_seen, apart, PATCH)
    offsets = np.stack([np.zeros_like(labels), -apart[:, 0], apart[:, 1]], 1)

    # The ink is lighter than both colours of the ground; in a share of the scenes all is inverted.
    ground = random.integers(25, 120, (count, 1, 1)) + random.integers(-25, 26, (count, 1, 3))
    ground = ground + random.integers(-30, 31, (count, 2, 3))
    contrast = random.integers(50, 140, count)
    contrast = np.where(kind == FAINT, random.integers(16, 32, count), contrast)
    hue = random.integers(-100, 101, (count, 3)) * np.where(kind == FAINT, 4, 30)[:, None] // 100
    ink = ground.max(1) + contrast[:, None] + hue
    is_dark = random.random(count) < DARK_INK
    ground = np.where(is_dark[:, None, None], 255 - ground, ground)
    ink = np.where(is_dark[:, None], 255 - ink, ink)
    return Scenes(
        labels,
        numbers,
        offsets,
        random.integers(-3, 4, (count, 2)),
        np.clip(ground, 0, 255).astype(np.int16),
        np.clip(ink, 0, 255).astype(np.int16),
        draw_lines(random, count, place=14, narrowest=4, widest=20),
        draw_lines(random, count, place=4, narrowest=2, widest=3),
        random.integers(0, 256, (count, 3)).astype(np.int16),
        kind == COVERED,
        kind == HOLLOW,
        random.integers(-24, 25, (count, 5, 5)).astype(np.int16),
        np.select(
            [kind == NOISY, kind == FAINT],
            [random.integers(80, 130, count), random.integers(4, 12, count)],
            random.integers(6, 40, count),
        ).astype(np.int16),
        random.random(count) < 0.4,
    )


def draw_lines(random: Generator, count: int, place: int, narrowest: int, widest: int) -> Numbers:
    """Draws stripes ``|a y + b x + c| < w``, in eighths of a pixel: a, b, c, w, [S, 4]."""
    # Eight directions whose slopes are of nearly one length, so that w is about half a width.
    directions = np.array([(8, 0), (7, 3), (6, 6), (3, 7), (0, 8), (-3, 7), (-6, 6), (-7, 3)])
    slopes = directions[random.integers(len(directions), size=count)]
    constants = 8 * random.integers(-place, place + 1, (count, 1))
    widths = 8 * random.integers(narrowest, widest + 1, (count, 1))
    return np.concatenate([slopes, constants, widths], 1).astype(np.int16)


def compose(scenes: Scenes, random: Generator, copies: int) -> Bytes:
    """Composes the images of scenes, uint8 [S * copies, 32, 32, 3], in whole numbers alone."""
    # Floating-point numbers could differ in their last digits from machine to machine.
    scenes = Scenes._make(values.repeat(copies, 0) for values in scenes)
    count = len(scenes.labels)
    jitter = random.integers(-2, 3, (count, 2)) * (copies > 1)
    brightness = (random.integers(-12, 13, count) * (copies > 1)).astype(np.int16)
    masks, _ = draw_glyphs()
    windows = np.lib.stride_tricks.sliding_window_view(masks, (SIDE, SIDE), (1, 2))
    middle = (PATCH - SIDE) // 2
    top = middle - scenes.center[:, 0] - jitter[:, 0]
    left = middle - scenes.center[:, 1:] - jitter[:, 1:] - scenes.offsets
    left = np.clip(left, 0, PATCH - SIDE)
    mask = windows[scenes.glyphs[:, 0], top, left[:, 0]].astype(np.int16)
    for neighbor in (1, 2):
        mask = np.maximum(mask, windows[scenes.glyphs[:, neighbor], top, left[:, neighbor]])
    if (hollow := scenes.hollow.nonzero()[0]).size:
        inside = np.pad(mask[hollow], ((0, 0), (1, 1), (1, 1)))
        around = np.maximum(inside[:, 2:], inside[:, :-2])[..., 1:-1]
        around = np.maximum(around, np.maximum(inside[..., 2:], inside[..., :-2])[:, 1:-1])
        mask[hollow] = np.maximum(around - mask[hollow], 0)
    soft = mask.copy()
    soft[:, 1:] += mask[:, :-1]
    soft[:, :, 1:] += soft[:, :, :-1].copy()
    mask = np.where(scenes.blurred[:, None, None], soft >> 2, mask)

    first, second = (colour[:, None, None] for colour in scenes.ground.swapaxes(0, 1))
    images: Numbers = first + (((second - first) * stripes(scenes.line, 16)[..., None]) >> 7)
    images += (smooth(scenes.waves) + brightness[:, None, None])[..., None]
    np.clip(images, 0, 255, out=images)  # so that 127 times a difference of colours is an int16
    images += ((scenes.ink[:, None, None] - images) * mask[..., None]) >> 7
    if (covered := scenes.covered.nonzero()[0]).size:
        cover = stripes(scenes.bar[covered], 127)[..., None]
        images[covered] += ((scenes.bar_ink[covered][:, None, None] - images[covered]) * cover) >> 7
    noise = random.integers(-128, 128, images.shape, np.int8)
    images += (noise * scenes.noise[:, None, None, None]) >> 7
    return np.clip(images, 0, 255).astype(np.uint8)


def stripes(lines: Numbers, sharpness: int) -> Numbers:
    """Returns how much of each pixel is in a stripe of `draw_lines`: [S, 32, 32], up to 127."""
    pixels = np.arange(SIDE, dtype=np.int16) - SIDE // 2
    slopes, constants, widths = lines[:, :2, None, None], lines[:, 2], lines[:, 3]
    distance = slopes[:, 0] * pixels[:, None] + slopes[:, 1] * pixels
    distance = np.abs(distance + constants[:, None, None])
    return cast(Numbers, np.clip((widths[:, None, None] - distance) * sharpness >> 3, 0, 127))


def smooth(corners: Numbers) -> Numbers:
    """Fills a grid of 5x5 corners up to 32x32 pixels, by lines between them: int16 [S, 32, 32]."""
    share = np.arange(8, dtype=np.int16)
    rows: Numbers = (
        corners[:, :-1, None] * (8 - share)[:, None] + corners[:, 1:, None] * share[:, None]
    )
    rows = rows.reshape(len(corners), SIDE, 5)
    columns = rows[..., :-1, None] * (8 - share) + rows[..., 1:, None] * share
    return cast(Numbers, columns.reshape(len(corners), SIDE, SIDE) >> 6)


@cache
def draw_glyphs() -> tuple[Bytes, NDArray[np.int64]]:
    """Draws each digit of each face, in `VARIANTS` sizes, slants and widths.

    Returns:
        The ink of each pixel from 0 to 127, uint8 [faces * 10 * VARIANTS, PATCH, PATCH]; and the
        number of columns with ink of each glyph.
    """
    masks = np.zeros(((len(FACES) + len(RARE_FACES)) * 10 * VARIANTS, PATCH, PATCH), np.uint8)
    edge = (PATCH - DRAWN) // 2
    for number, drawn in enumerate(glyph_images()):
        masks[number, edge:-edge, edge:-edge] = np.asarray(drawn) >> 1
    return masks, (masks.max(1) > 40).sum(1)


def glyph_images() -> Iterator[Image.Image]:
    """Yields each digit amid a grey image of `DRAWN` pixels: by face, digit and variant."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    random = np.random.default_rng(0)
    side = DRAWN * FINER
    for face in (*FACES, *RARE_FACES):
        size, slant, turn, stretch = (
            random.integers(low, high, VARIANTS).tolist()
            for low, high in (HEIGHTS, (-15, 16), (-20, 21), (80, 121))
        )
        large = ImageFont.truetype(folder / f"{face}.ttf", 200)
        height = large.getbbox("0")[3] - large.getbbox("0")[1]
        for digit in "0123456789":
            for variant in range(VARIANTS):
                font = large.font_variant(size=round(200 * size[variant] * FINER / height))
                image = Image.new("L", (side, side))
                x0, y0, x1, y1 = font.getbbox(digit)
                at = (side - x0 - x1) // 2, (side - y0 - y1) // 2
                ImageDraw.Draw(image).text(at, digit, fill=255, font=font)
                tangent, shear, wide = turn[variant] / 100, slant[variant] / 100, stretch[variant]
                cosine = 1 / math.sqrt(1 + tangent * tangent)
                sine = tangent * cosine
                a, b, d, e = cosine * 100 / wide, sine + shear, -sine * 100 / wide, cosine
                middle = side / 2
                matrix = (a, b, middle * (1 - a - b), d, e, middle * (1 - d - e))
                turned = image.transform(
                    image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
                )
                yield turned.resize((DRAWN, DRAWN), Image.Resampling.BOX)
