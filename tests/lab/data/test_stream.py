"""The stream against single images, and the promise that only seed and epoch decide."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siftback import Epochs, Memory, Pool, SelectiveLoader
from siftback.errors import ConfigError
from siftback.lab.data import stream
from siftback.lab.data.augment import Augment
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.stream import BatchStream

EXAMPLES, TESTED = 53, 11
LAYOUTS = {True: torch.channels_last, False: torch.contiguous_format}


@pytest.fixture(scope="module", params=[1, 3], ids=["grey", "colour"])
def data(request) -> ImageData:
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> torch.Tensor:
        shape = (count, request.param, 6, 5)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)

    return ImageData(
        "noise",
        images(EXAMPLES),
        torch.arange(EXAMPLES),  # a label tells which example it is
        images(TESTED),
        torch.arange(TESTED),
        names=tuple(map(str, range(EXAMPLES))),
        augmentation=Augment(padding=1, flip=True),
    )


def normalised(data: ImageData, images: torch.Tensor) -> torch.Tensor:
    mean, std = (moment.view(-1, 1, 1) for moment in data.moments)
    return (images / 255 - mean) / std


def epoch(batches: BatchStream, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    batches.set_epoch(number)
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("channels_last", LAYOUTS)
def test_batches_are_the_images_normalised(data, channels_last):
    batches = BatchStream(data, 8, 0, Augment(), channels_last=channels_last)
    for images, labels in batches:
        assert images.shape == (8, *data.train_inputs.shape[1:])
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert images.is_contiguous(memory_format=LAYOUTS[channels_last])
        torch.testing.assert_close(images, normalised(data, data.train_inputs[labels]))


@settings(deadline=None)
@given(size=st.integers(1, EXAMPLES), seed=st.integers(0, 2**40), number=st.integers(0, 2**40))
def test_an_epoch_repeats_nothing_and_drops_less_than_a_batch(data, size, seed, number):
    batches = BatchStream(data, size, seed, Augment())
    _, labels = epoch(batches, number)
    assert batches.drop_last
    assert len(batches) == EXAMPLES // size
    assert len(labels) == len(batches) * size
    assert len(labels.unique()) == len(labels)


def test_only_seed_and_epoch_decide(data):
    one, other = BatchStream(data, 8, 3), BatchStream(data, 8, 3, channels_last=False)
    epoch(one, 0)  # what was drawn before, by whomever, does not matter
    torch.manual_seed(99)
    for mine, theirs in zip(epoch(one, 7), epoch(other, 7), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("chosen", [None, torch.arange(0, EXAMPLES, 3)], ids=["all", "some"])
@pytest.mark.parametrize("given", range(7))
def test_a_state_goes_on_at_every_batch(data, given, chosen):
    one, other = BatchStream(data, 8, 3, indexed=True), BatchStream(data, 8, 3, indexed=True)
    one.only(chosen)
    list(one)  # an epoch, whose last batch may be short
    epoch_of = iter(one)
    one.set_epoch(5)
    for _ in range(given):
        next(epoch_of, None)
    state = one.state_dict()
    other.load_state_dict(state)
    other.set_epoch(5)
    other.only(chosen)
    assert other.state_dict().keys() == state.keys()
    rest, resumed = list(epoch_of), list(other)
    assert len(rest) == len(resumed) == max(0, len(one) - given)
    for (indices, batch), (there, batch_there) in zip(rest, resumed, strict=True):
        assert indices.equal(there)
        assert batch[0].equal(batch_there[0])
    assert len(list(other)) == len(other), "the epoch after it is whole"


def test_the_first_batch_of_an_epoch_completes_the_last_one_of_the_epoch_before(data):
    batches, total = BatchStream(data, 8, 3, indexed=True), 0
    for number, chosen in enumerate((13, 3, 2, EXAMPLES - 1, None, None)):
        batches.set_epoch(number)
        batches.only(None if chosen is None else torch.arange(chosen))
        count = len(batches)
        sizes = torch.tensor([len(indices) for indices, _ in batches])
        ends = total + sizes.cumsum(0)
        assert len(sizes) == count
        assert (ends[:-1] % 8 == 0).all()
        assert sizes.max() <= 8
        assert sizes.sum() == (chosen or EXAMPLES // 8 * 8)
        total = int(ends[-1])


def test_a_resumed_stream_may_move_on(data):
    one, other = BatchStream(data, 8, 3), BatchStream(data, 8, 3)
    next(iter(one))
    other.load_state_dict(one.state_dict())
    assert torch.equal(epoch(other, 1)[1], epoch(one, 1)[1])


def test_each_seed_and_epoch_has_its_own_order(data):
    orders = [
        tuple(epoch(BatchStream(data, 8, seed), number)[1].tolist())
        for seed in range(4)
        for number in range(4)
    ]
    assert len(set(orders)) == len(orders)


def test_augmentation_is_the_datas_own_unless_given(data):
    own = epoch(BatchStream(data, 8, 0), 0)[0]
    assert torch.equal(own, epoch(BatchStream(data, 8, 0, data.augmentation), 0)[0])
    assert not torch.equal(own, epoch(BatchStream(data, 8, 0, Augment()), 0)[0])


def test_cutout_leaves_the_mean(data):
    (images, labels), *_ = BatchStream(data, 8, 0, Augment(cutout=3))
    plain = normalised(data, data.train_inputs[labels])
    cut = (images - plain).abs().amax(1, keepdim=True).expand_as(images) > 1e-4
    assert cut.any()
    # Half a byte's step is as near to the mean as a byte can be.
    assert images[cut].abs().max() <= 0.501 / (255 * data.moments[1].min())


def test_normalised_training_images_are_standard(data):
    images, _ = epoch(BatchStream(data, EXAMPLES, 0, Augment()), 0)
    std, mean = torch.std_mean(images, (0, 2, 3), correction=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-5)
    torch.testing.assert_close(std, torch.ones_like(std))


@pytest.mark.parametrize("channels_last", LAYOUTS)
@pytest.mark.parametrize("size", [1, 4, TESTED, 100])
def test_test_batches_hold_every_test_image_in_order(data, size, channels_last):
    batches = list(stream.evaluation_batches(data, size, channels_last=channels_last))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert labels.tolist() == list(range(TESTED))
    torch.testing.assert_close(images, normalised(data, data.test_inputs))
    assert all(images.is_contiguous(memory_format=LAYOUTS[channels_last]) for images, _ in batches)


@pytest.mark.parametrize("size", [-1, 0, EXAMPLES + 1])
def test_batch_sizes_that_do_not_fit_are_refused(data, size):
    with pytest.raises(ConfigError, match=f"batch_size={size} .* {EXAMPLES}"):
        BatchStream(data, size, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_an_accelerator_sees_the_same_batches(data):
    augment = Augment(padding=2, flip=True, cutout=3)
    here, there = (BatchStream(data, 8, 0, augment, device) for device in ("cpu", "cuda"))
    for (images, labels), (images_there, labels_there) in zip(here, there, strict=True):
        assert torch.equal(labels, labels_there.cpu())
        torch.testing.assert_close(images, images_there.cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_an_accelerator_is_not_waited_for_within_an_epoch(data):
    augment = Augment(padding=2, flip=True, cutout=3)
    batches = BatchStream(data, 8, 0, augment, "cuda", indexed=True)
    rule = Memory(keep=0.5, warmup=Epochs(1))
    loader = SelectiveLoader(
        batches, memory=rule, epochs=3, pool=Pool(8, drop_last="carry"), shorter_epochs=True
    )
    for _ in range(3):
        remaining = iter(loader)  # what is drawn waits for the losses of the epoch before
        loader.loss(next(remaining)[0].mean((1, 2, 3)))
        torch.cuda.set_sync_debug_mode("error")
        try:
            for images, _ in remaining:
                loader.loss(images.mean((1, 2, 3)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert loader.stats.unread
