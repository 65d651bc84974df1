"""Every model, at every size of image, through the same checks."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from siftback import Percentile, SinglePass
from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.models import (
    LISTED,
    MODELS,
    build,
    convolutional,
    count,
    find_architecture,
)
from siftback.lab.models.attention import encode_positions
from siftback.lab.models.convolutional import padding
from siftback.lab.models.layers import NORMS, groups_for
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings

IMAGES = [(1, 8), (1, 28), (3, 32)]  # channels and size
NAMES = [
    *(n for n in MODELS if find_architecture(n).takes == "images"),
    "wrn-10-2-drop0.3",
    "densenet-bc-16",
]
NORMED = [(n, norm) for n in NAMES for norm in NORMS if norm == "batch" or n not in ("mlp", "vit")]

# In millions: the papers' own numbers, and pytorch-cifar's for its forms of ImageNet's networks.
PUBLISHED = {
    "wrn-28-10": "36.5",
    "wrn-16-2": "0.7",
    "resnet18": "11.17",
    "resnet34": "21.28",
    "resnet50": "23.52",
    "resnet20": "0.27",
    "resnet32": "0.46",
    "densenet-bc-100": "0.77",
    "densenet121": "6.96",
    "mobilenetv2": "2.30",
    "googlenet": "6.2",
}


@pytest.mark.parametrize(("channels", "size"), IMAGES)
@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize(("name", "norm"), NORMED)
@pytest.mark.sampled(5)
def test_every_parameter_learns(name, width, norm, channels, size):
    torch.manual_seed(0)
    model = build(name, width=width, classes=7, channels=channels, norm=norm, size=(size, size))
    logits = model(torch.randn(4, channels, size, size))
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize(("name", "norm"), NORMED)
def test_channels_last_changes_the_layout_only(name, norm):
    torch.manual_seed(0)
    model = build(name, width=4, classes=10, channels=3, norm=norm).eval()  # for dropout
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    actual = model.to(memory_format=torch.channels_last)(
        images.to(memory_format=torch.channels_last)
    )
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "norm"), NORMED)
def test_examples_are_kept_apart_when_tested(name, norm):
    torch.manual_seed(0)
    model = build(name, width=4, classes=10, channels=3, norm=norm).eval()
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(images)[1:3], model(images[1:3]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_weights_follow_the_global_seed(name):
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(build(name, width=2, classes=10, channels=1).parameters())

    assert all(torch.equal(*pair) for pair in zip(weights(), weights(), strict=True))


@pytest.mark.parametrize(("name", "millions"), PUBLISHED.items())
def test_parameters_are_as_many_as_published(name, millions):
    digits = len(millions.partition(".")[2])
    assert f"{count(name) / 1e6:.{digits}f}" == millions


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18", 11_173_962), ("cnn", 18_626), ("fastcnn", 125_850), ("mlp", 1_841_162)],
)
def test_parameters_are_counted_as_they_are_built(name, parameters):
    model = build(name, classes=10, channels=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert count(name) == parameters


def test_what_is_listed_is_told_with_its_width():
    assert len(set(LISTED)) == len(LISTED)
    assert all("width: " in find_architecture(name).what for name in LISTED)
    assert count("mlp", width=8, classes=2, channels=1) == 1024 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> dict[int, str]:
    """The embedded digits, enlarged to the shapes of MNIST and of CIFAR-10."""
    data, folder = load("digits"), tmp_path_factory.mktemp("pictures")
    arrays = {}
    for split, most in (("train", 100), ("test", 20)):
        large = np.kron(getattr(data, f"{split}_inputs")[:most, 0], np.ones((4, 4), np.uint8))
        labels = getattr(data, f"{split}_labels")[:most].numpy()
        grey, colour = arrays.setdefault(28, {}), arrays.setdefault(32, {})
        grey |= {f"x_{split}": large[:, 2:30, 2:30], f"y_{split}": labels}
        colour |= {f"x_{split}": np.stack([large, 255 - large, large], 3), f"y_{split}": labels}
    for size, parts in arrays.items():
        np.savez(folder / f"{size}.npz", **parts)
    return {size: f"npz:{folder / f'{size}.npz'}" for size in arrays}


@pytest.mark.parametrize(("name", "size"), [("mlp", 28), ("vit", 28), *((n, 32) for n in NAMES)])
@pytest.mark.sampled(2)
def test_every_model_trains(name, size, pictures, tmp_path: Path):
    sizes = {"width": 2, "train_limit": 32, "batch_size": 16}
    asked = Settings(data=pictures[size], model=name, epochs=1, device="cpu", **sizes)
    comparison = compare(Plan(asked, ["traditional"], [1.0], [0]), tmp_path / "c", Reporter())
    (run,) = comparison.runs
    assert run.steps == 2
    assert math.isfinite(run.test_error_final)
    assert run.data == f"npz:{size}.npz"


@pytest.mark.parametrize(
    "name",
    [
        *("fastcnn", "mlp", "vit", "resnet20", "mobilenetv2", "googlenet"),
        *("wrn-10-2-drop0.3", "densenet-bc-10"),
    ],
)
@pytest.mark.sampled(6)
def test_the_single_pass_takes_it(name, monkeypatch):
    # Shallow, as tracing takes long: each kind of block once or more.
    monkeypatch.setattr(convolutional, "MOBILE_STAGES", convolutional.MOBILE_STAGES[:3])
    monkeypatch.setattr(convolutional, "INCEPTIONS", convolutional.INCEPTIONS[:4])
    torch.manual_seed(0)
    norm = "batch" if name in ("mlp", "vit") else "group"
    model = build(name, width=8, classes=4, channels=3, norm=norm, size=(16, 16))
    images, labels = torch.randn(12, 3, 16, 16), torch.randint(4, (12,))
    sift = SinglePass(model, F.cross_entropy, selector=Percentile(keep=1 / 3), check=False)

    def gradients(loss):
        model.zero_grad()
        torch.manual_seed(1)  # of dropout
        loss().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    ours = gradients(lambda: sift(images, labels))
    rows = sift.selection.positions
    assert len(rows) == 4
    theirs = gradients(
        lambda: F.cross_entropy(model(images), labels, reduction="none")[rows].mean()
    )
    floor = max(float(gradient.abs().max()) for gradient in theirs) / 100
    for mine, expected in zip(ours, theirs, strict=True):
        scale = max(float(expected.abs().max()), floor)
        assert float((mine - expected).abs().max()) <= 1e-4 * scale


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ("digits", "cnn"),
        ("imagefolder:photos,size=64", "cnn"),
        ("sst2", "transformer"),
        ("hf:reviews,text=text", "transformer"),
        ("tinyshakespeare", "gpt"),
        ("text:book.txt", "gpt"),
        ("table:adult.csv", "tabular-mlp"),
        ("picture:hopper.jpg", "siren"),
    ],
)
def test_a_model_is_of_the_kind_of_the_data_where_none_is_asked_for(data, model):
    chosen = Settings(data=data, epochs=1.0)
    assert (chosen.model, chosen.lr) == (model, find_architecture(model).lr)
    assert Settings(data=data, model="mlp", epochs=1.0).model == "mlp"


def test_dropout_is_that_of_the_name():
    layers = build("wrn-10-1-drop0.4", width=2, classes=2, channels=1).modules()
    assert {layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)} == {0.4}


def test_padding_takes_every_other_pixel_and_adds_zeros():
    features = torch.randn(2, 3, 5, 4)
    expected = torch.zeros(2, 5, 3, 2)
    for row in range(3):
        for column in range(2):
            expected[:, :3, row, column] = features[:, :, 2 * row, 2 * column]
    assert torch.equal(padding(3, 5, 2, "batch")(features), expected)
    assert padding(3, 3, 1, "batch")(features) is features


@pytest.mark.parametrize("features", [8, 7])
def test_places_are_waves_of_row_and_column(features):
    found = encode_positions(3, 2, features)
    for row in range(3):
        for column in range(2):
            waves = [
                wave(place * 10_000 ** (-i / 2))
                for place in (row, column)
                for wave in (math.sin, math.cos)
                for i in range(2)
            ]
            torch.testing.assert_close(found[2 * row + column], torch.tensor(waves[:features]))


def test_vit_takes_any_size():
    model = build("vit", width=8, classes=3, channels=1)
    assert model(torch.zeros(2, 1, 12, 20)).shape == (2, 3)


def test_kaiming_initialisation():
    torch.manual_seed(0)
    convolution = build("cnn", width=64, classes=10, channels=3)[4][3]
    assert convolution.weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)


@settings(deadline=None)
@given(st.integers(1, 4096))
def test_groups_divide_the_channels(channels):
    groups = groups_for(channels)
    assert channels % groups == 0
    assert 1 <= groups <= 32
    assert groups == 1 or channels // groups >= 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "vgg"}, "no model 'vgg': give one of cnn, fastcnn, .*, wrn-D-K, densenet-bc-D"),
        ({"name": "fastcnn-16"}, "no model 'fastcnn-16': give --model fastcnn --width 16"),
        ({"name": "wrn-27-10"}, "depth 27: .* 6n"),
        ({"name": "wrn-4-10"}, "depth 4: .* 6n"),
        ({"name": "wrn-28-0"}, "no model 'wrn-28-0'"),
        ({"name": "wrn-28-10-drop1.5"}, "no model"),
        ({"name": "densenet-bc-101"}, "depth 101"),
        ({"width": 0}, "width=0"),
        ({"width": 1.5}, "width=1.5"),
        ({"classes": -1}, "classes=-1"),
        ({"channels": 0}, "channels=0"),
        ({"norm": "layer"}, "batch, group"),
        ({"name": "mlp", "norm": "group"}, "norm='group' with mlp, which has another or none"),
        ({"name": "vit", "norm": "group"}, "norm='group' with vit"),
    ],
)
def test_what_cannot_be_built_is_refused(change, message):
    asked = {"name": "cnn", "width": 4, "classes": 10, "channels": 3} | change
    with pytest.raises(ConfigError, match=message):
        build(**asked)
