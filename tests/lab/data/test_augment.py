"""Each augmentation against the same thing done to one image at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from siftback.lab.data.augment import Augment, cutout, random_crop, random_flip

SEEDS = st.integers(0, 2**31)


@st.composite
def batches(draw: st.DrawFn) -> Tensor:
    shape = [draw(st.integers(1, most)) for most in (6, 3, 7, 7)]
    images = torch.randint(1, 256, shape, dtype=torch.uint8, generator=seeded(draw(SEEDS)))
    images = images.float() / 7 if draw(st.booleans()) else images
    layout = draw(st.sampled_from([torch.contiguous_format, torch.channels_last]))
    return images.contiguous(memory_format=layout)


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def crop_one(image: Tensor, padding: int, top: int, left: int) -> Tensor:
    channels, height, width = image.shape
    padded = image.new_zeros(channels, height + 2 * padding, width + 2 * padding)
    padded[:, padding : padding + height, padding : padding + width] = image
    return padded[:, top : top + height, left : left + width]


def cutout_one(image: Tensor, length: int, y: int, x: int, fill: Tensor) -> Tensor:
    image = image.clone()
    for row in range(y - length // 2, y - length // 2 + length):
        for column in range(x - length // 2, x - length // 2 + length):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                image[:, row, column] = fill
    return image


@settings(deadline=None)
@given(batches(), st.integers(0, 4), SEEDS)
def test_random_crop_is_that_of_each_image(images, padding, seed):
    offsets = torch.randint(2 * padding + 1, (2, len(images)), generator=seeded(seed))
    expected = [
        crop_one(image, padding, top, left)
        for image, (top, left) in zip(images, offsets.T.tolist(), strict=True)
    ]
    cropped = random_crop(images, padding, seeded(seed))
    assert cropped.dtype == images.dtype
    assert torch.equal(cropped, torch.stack(expected))


@settings(deadline=None)
@given(batches(), SEEDS)
def test_random_flip_is_that_of_each_image(images, seed):
    flips = torch.randint(2, (len(images),), generator=seeded(seed), dtype=torch.bool)
    expected = [
        image.flip(2) if flip else image for image, flip in zip(images, flips.tolist(), strict=True)
    ]
    flipped = random_flip(images, seeded(seed))
    assert flipped.dtype == images.dtype
    assert torch.equal(flipped, torch.stack(expected))


@settings(deadline=None)
@given(batches(), st.integers(0, 9), st.booleans(), SEEDS)
def test_cutout_is_that_of_each_image(images, length, filled, seed):
    batch, channels, height, width = images.shape
    fill = torch.arange(1, channels + 1).to(images.dtype) if filled else None
    generator = seeded(seed)
    y = torch.randint(height, (batch,), generator=generator).tolist()
    x = torch.randint(width, (batch,), generator=generator).tolist()
    blank = images.new_zeros(channels) if fill is None else fill
    expected = [cutout_one(images[i], length, y[i], x[i], blank) for i in range(batch)]
    cut = cutout(images, length, seeded(seed), fill)
    assert cut.dtype == images.dtype
    assert torch.equal(cut, torch.stack(expected))


@settings(deadline=None)
@given(batches(), SEEDS)
def test_images_given_are_left_alone(images, seed):
    before = images.clone()
    Augment(padding=2, flip=True, cutout=3)(images, seeded(seed))
    assert torch.equal(images, before)


def test_draws_are_uniform():
    ramp = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).expand(9000, 1, 3, 3)
    centre = random_crop(ramp, 1, seeded(0))[:, 0, 1, 1]  # tells the offset
    assert centre.bincount(minlength=10)[1:].sub(1000).abs().max() < 150
    corner = random_flip(ramp, seeded(0))[:, 0, 0, 0]
    assert abs(int((corner == 1).sum()) - 4500) < 250
    hole = cutout(ramp, 1, seeded(0)).flatten(1).argmin(1)
    assert hole.bincount(minlength=9).sub(1000).abs().max() < 150


def test_augment_does_its_parts_in_order():
    images = torch.rand(8, 3, 9, 9)
    fill = torch.tensor([0.1, 0.2, 0.3])
    generator = seeded(5)
    expected = random_crop(images, 2, generator)
    expected = random_flip(expected, generator)
    expected = cutout(expected, 4, generator, fill)
    assert torch.equal(Augment(2, True, 4)(images, seeded(5), fill), expected)


def test_nothing_asked_draws_nothing():
    images, generator = torch.rand(2, 1, 4, 4), seeded(0)
    assert Augment()(images, generator) is images
    assert torch.equal(generator.get_state(), seeded(0).get_state())
