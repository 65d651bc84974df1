"""Every model, at every size of image, through the same checks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siftback.errors import ConfigError
from siftback.lab.models import MODELS, build
from siftback.lab.models.norm import NORMS, groups_for

IMAGES = [(1, 8), (1, 28), (3, 32)]  # channels and size


@pytest.mark.parametrize(("channels", "size"), IMAGES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns(name, width, norm, channels, size):
    torch.manual_seed(0)
    model = build(name, width=width, classes=7, channels=channels, norm=norm)
    logits = model(torch.randn(4, channels, size, size))
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_channels_last_changes_the_layout_only(name):
    torch.manual_seed(0)
    model = build(name, width=4, classes=10, channels=3, norm="group")
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    actual = model.to(memory_format=torch.channels_last)(
        images.to(memory_format=torch.channels_last)
    )
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_group_norm_keeps_examples_apart(name):
    torch.manual_seed(0)
    model = build(name, width=4, classes=10, channels=3, norm="group")
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(images)[1:3], model(images[1:3]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_weights_follow_the_global_seed(name):
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(build(name, width=2, classes=10, channels=1).parameters())

    assert all(torch.equal(*pair) for pair in zip(weights(), weights(), strict=True))


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_173_962), ("cnn", 18_626)])
def test_parameter_count_at_default_width(name, parameters):
    model = build(name, classes=10, channels=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


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
        ({"name": "vgg"}, "cnn, resnet18"),
        ({"width": 0}, "width=0"),
        ({"width": 1.5}, "width=1.5"),
        ({"classes": -1}, "classes=-1"),
        ({"channels": 0}, "channels=0"),
        ({"norm": "layer"}, "batch, group"),
    ],
)
def test_what_cannot_be_built_is_refused(change, message):
    asked = {"name": "cnn", "width": 4, "classes": 10, "channels": 3} | change
    with pytest.raises(ConfigError, match=message):
        build(**asked)
