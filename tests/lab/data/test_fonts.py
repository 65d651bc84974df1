"""Digits of fonts: always the same, the beginning of any larger set, and told apart."""

import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch

from siftback.errors import ConfigError
from siftback.lab.data import fonts
from siftback.lab.data.augment import Augment
from siftback.lab.data.fonts import FACES, RARE_FACES, VARIANTS, draw_glyphs, make_digits
from siftback.lab.data.load import load
from siftback.lab.settings import Settings


@pytest.mark.parametrize("copies", [1, 7, 1000])
def test_a_smaller_set_is_the_beginning_of_a_larger(copies):
    images, labels = make_digits(2100, copies=copies)
    for count in (1, 2047, 2049):  # around the first block
        fewer, fewer_labels = make_digits(count, copies=copies)
        assert np.array_equal(fewer, images[:count])
        assert np.array_equal(fewer_labels, labels[:count])


def test_another_process_makes_the_same_images():
    images, labels = make_digits(200)
    code = (
        "import zlib; from siftback.lab.data.fonts import make_digits\n"
        "images, labels = make_digits(200); print(zlib.crc32(images), zlib.crc32(labels))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(zlib.crc32(images)), str(zlib.crc32(labels))]


def test_seeds_splits_and_shares_make_other_images():
    sets = [
        make_digits(300)[0],
        make_digits(300, seed=1)[0],
        make_digits(300, split=1)[0],
        make_digits(300, hard=1.0)[0],
    ]
    whole = {image.tobytes() for images in sets[:3] for image in images}
    assert len(whole) == 900
    # With another share the same scenes are hard or not: some images stay as they were.
    same = (sets[0] == sets[3]).all((1, 2, 3)).mean()
    assert 0.1 < same < 0.3


def test_classes_are_equally_frequent():
    counts = np.bincount(make_digits(20_000)[1])
    assert (np.abs(counts - 2000) < 5 * np.sqrt(2000)).all()


def test_copies_of_a_scene_are_alike_and_of_a_group():
    data = load("fonts:600,copies=30")
    assert torch.equal(data.groups, torch.arange(600) // 30)
    labels = data.train_labels.reshape(20, 30)
    assert (labels == labels[:, :1]).all()
    images = data.train_inputs.double().reshape(20, 30, -1)
    assert len({image.numpy().tobytes() for image in data.train_inputs}) == 600
    within = (images - images.mean(1, keepdim=True)).square().mean()
    between = (images.mean(1) - images.mean((0, 1))).square().mean()
    assert within < between
    held_out = load("fonts:600,copies=30", validation=100)
    assert len(held_out.test_labels) == 120
    assert load("fonts:600").groups is None


def test_every_digit_of_every_face_is_drawn_and_unlike_the_others():
    masks, _ = draw_glyphs()
    assert len(masks) == (len(FACES) + len(RARE_FACES)) * 10 * VARIANTS
    assert masks.max() == 127
    ink = masks.reshape(len(masks), -1).sum(1, dtype=np.int64) / 127
    assert ink.min() > 12  # pixels: the thinnest digit one
    drawn = masks.reshape(-1, 10, VARIANTS, *masks.shape[1:])
    for face in drawn:
        assert len({digit.tobytes() for digit in face}) == 10
    # A face without digits would draw a box for each of them.
    assert len({face.tobytes() for face in drawn}) == len(drawn)


@pytest.mark.parametrize(("ground", "ink"), [(None, None), (0, 255), (255, 0)])
def test_images_are_composed_without_an_overflow(ground, ink):
    scenes = fonts.draw_scenes(np.random.default_rng(0), 512, 1.0)
    if ground is not None:
        scenes.ground[:], scenes.ink[:], scenes.bar_ink[:] = ground, ink, ink
    wide = fonts.Scenes._make(
        values.astype(np.int64) if values.dtype == np.int16 else values for values in scenes
    )
    narrow = fonts.compose(scenes, np.random.default_rng(1), 2)
    assert narrow.dtype == np.uint8
    assert np.array_equal(narrow, fonts.compose(wide, np.random.default_rng(1), 2))


def test_a_set_of_fonts_has_a_name_a_test_set_and_the_augmentation_that_is_asked_for():
    data = load("fonts:50,crop=2,seed=3")
    assert data.name == "fonts:50,crop=2,seed=3"
    assert Settings(data="fonts:50,hard=0.1", epochs=1).recorded()["data"] == "fonts:50,hard=0.1"
    assert data.train_inputs.shape == (50, 3, 32, 32)
    assert data.test_inputs.shape == (fonts.TEST_EXAMPLES, 3, 32, 32)
    assert (data.classes, data.augmentation) == (10, Augment(padding=2))
    assert data.test_inputs.is_contiguous(memory_format=torch.channels_last)
    larger = load("fonts:90,seed=3")
    assert torch.equal(data.train_inputs, larger.train_inputs[:50])
    assert torch.equal(data.test_inputs, larger.test_inputs)


def test_digits_are_told_apart_across_the_splits():
    # By the nearest mean of a class of bright-on-dark images, which is far above chance.
    images, labels = make_digits(6000, hard=0.0)
    tests, test_labels = make_digits(1000, hard=0.0, split=1)

    def prepared(pixels):
        grey = pixels.mean(-1).reshape(len(pixels), -1)
        grey = grey - grey.mean(1, keepdims=True)
        return grey / grey.std(1, keepdims=True)

    train, test = prepared(images), prepared(tests)
    means = np.stack([train[labels == digit].mean(0) for digit in range(10)])
    assert ((test @ means.T).argmax(1) == test_labels).mean() > 0.3


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("fonts:9", "N=9: give an integer from 10 to"),
        ("fonts:many", "N=many: give an integer"),
        ("fonts:50,hard=1.5", "hard=1.5: give the share of hard images"),
        ("fonts:50,hard=nan", "hard=nan: give the share"),
        ("fonts:50,copies=0", "copies=0: give an integer from 1"),
        ("fonts:50,seed=-1", "seed=-1: give an integer from 0"),
        ("fonts:50,size=8", "fonts has no option 'size'"),
        ("fonts:50,crop=32", "crop=32 of images of 32x32"),
    ],
)
def test_sets_that_cannot_be_made_are_refused(address, message):
    with pytest.raises(ConfigError, match=message):
        load(address)
