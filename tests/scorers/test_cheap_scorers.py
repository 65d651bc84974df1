"""Scores from fewer bits, smaller images, averaged weights and smaller models."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pictures import CROSS_ENTROPY, batch, change, network, proxy_network, step, trained
from resuming import check_resumes, training
from siftback import Ema, Fresh, Pool, Reduced
from siftback.contrib import Downsampled, Int8, Proxy
from siftback.errors import BatchError, ConfigError, StateError
from siftback.scorers.snapshot import tensors_of
from toys import assert_same
from traces import assert_untouched, failing, traces


def trained_proxy(**options):
    proxy = proxy_network()
    return Proxy(proxy, torch.optim.SGD(proxy.parameters(), lr=0.1, momentum=0.9), **options)


SCORERS = {
    "bf16": lambda: Reduced("bf16"),
    "bf16 every 3": lambda: Reduced("bf16", 3),
    "bf16 channels_last": lambda: Reduced("bf16", 2, channels_last=True),
    "bf16 in train mode": lambda: Reduced("bf16", 2, mode="train"),
    "fp16": lambda: Reduced("fp16"),
    "int8": Int8,
    "int8 every 3": lambda: Int8(3),
    "int8 channels_last": lambda: Int8(2, channels_last=True),
    "int8 in train mode": lambda: Int8(2, mode="train"),
    "int8 static": lambda: Int8(3, activations="static"),
    "downsampled": lambda: Downsampled(2),
    "downsampled bf16": lambda: Downsampled(2, Reduced("bf16", 2)),
    "ema": lambda: Ema(0.9),
    "ema in bf16": lambda: Ema(0.9, Reduced("bf16", 2)),
    "proxy": trained_proxy,
    "proxy in int8": lambda: trained_proxy(scorer=Int8(2)),
    "proxy, not trained": lambda: Proxy(proxy_network()),
}
every_scorer = pytest.mark.parametrize("make", SCORERS.values(), ids=SCORERS)


@every_scorer
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_in_the_model(make, training):
    scorer, model = make(), network().train(training)
    model[0][1].train(not training)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch(0))
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    before, ids = traces(model), [id(t) for t in tensors_of(model).values()]
    for seed in range(2):
        scores = scorer.score(CROSS_ENTROPY, model, batch(seed), None)
        assert scores.shape == (24,)
        assert scores.dtype == torch.float32
        assert not scores.requires_grad
        scorer.after_step(CROSS_ENTROPY, model, batch(seed))
    assert_untouched(model, before)
    assert [id(t) for t in tensors_of(model).values()] == ids


@every_scorer
def test_nothing_is_left_in_the_model_where_the_pass_fails(make):
    scorer, model = make(), network()
    before = traces(model)
    with pytest.raises((RuntimeError, ConfigError), match="the user's losses fail"):
        scorer.score(failing, model, batch(0), None)
    assert_untouched(model, before)


@every_scorer
@pytest.mark.sampled(4)
def test_stopping_anywhere_equals_never_stopping(make):
    arguments = {"keep": 0.5, "pool": Pool(6), "scorer": make()}
    make = training(lambda: [batch(seed, 8) for seed in range(6)], arguments, network)
    check_resumes(make, every=2)  # of five places in each epoch


@every_scorer
def test_a_state_does_not_change_as_its_scorer_goes_on(make):
    scorer, model = make(), network()
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    state = scorer.state_dict()
    kept = copy.deepcopy(state)
    for seed in range(4):
        change(model)
        scorer.after_step(CROSS_ENTROPY, model, batch(seed))
        scorer.score(CROSS_ENTROPY, model, batch(seed), None)
    assert_same(state, kept)


def means_of_squares(images, factor):
    count, channels, height, width = images.shape
    squares = images.reshape(count, channels, height // factor, factor, width // factor, factor)
    return squares.mean((3, 5))


@pytest.mark.parametrize("factor", [2, 4])
def test_downsampled_scores_are_losses_on_means_of_squares(factor):
    model, (images, targets) = trained(network()).eval(), batch(100, side=16)
    expected = F.cross_entropy(
        model(means_of_squares(images, factor)), targets, reduction="none"
    ).detach()
    scores = Downsampled(factor).score(CROSS_ENTROPY, model, (images, targets), None)
    torch.testing.assert_close(scores, expected)


def test_sizes_that_do_not_divide_and_integers_are_interpolated():
    seen = []

    def losses(model, batch):
        seen.append(batch["image"])
        return batch["image"].float().mean((1, 2, 3))

    def inputs(batch, shrink):
        return {**batch, "image": shrink(batch["image"])}

    for images in (torch.full((2, 3, 7, 9), 5.0), torch.full((2, 3, 8, 8), 5, dtype=torch.uint8)):
        scorer = Downsampled(2, inputs=inputs)
        scores = scorer.score(losses, nn.Identity(), {"image": images, "name": ["a", "b"]}, None)
        torch.testing.assert_close(scores, torch.tensor([5.0, 5.0]))
    assert [tuple(images.shape) for images in seen] == [(2, 3, 4, 4), (2, 3, 4, 4)]


def test_a_model_of_one_size_is_reported():
    with pytest.raises(ConfigError, match=r"images of \[24, 1, 4, 4\] \(from \[24, 1, 8"):
        Downsampled(2).score(CROSS_ENTROPY, proxy_network(), batch(0), None)


def test_what_is_not_an_image_is_reported():
    with pytest.raises(BatchError, match=r"\[4, 3\] are not images .* give inputs=fn"):
        Downsampled(2).score(CROSS_ENTROPY, network(), (torch.zeros(4, 3), torch.zeros(4)), None)
    with pytest.raises(BatchError, match="leaves nothing of images of 8x8"):
        Downsampled(20).score(CROSS_ENTROPY, network(), batch(0), None)
    with pytest.raises(BatchError, match="returned 1 examples for 24"):
        Downsampled(2, inputs=lambda b, shrink: (b[0][:1], b[1][:1])).score(
            CROSS_ENTROPY, network(), batch(0), None
        )


def test_ema_is_the_average_written_by_hand():
    model, scorer = network(), Ema(0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    average = copy.deepcopy(model)
    for seed in range(5):
        step(model, optimizer, batch(seed))
        scorer.after_step(CROSS_ENTROPY, model, batch(seed))
        for name, value in average.state_dict().items():
            now = model.state_dict()[name]
            value.copy_(0.8 * value + 0.2 * now if value.is_floating_point() else now)
    for name, value in scorer._snapshot.model.state_dict().items():
        torch.testing.assert_close(value, average.state_dict()[name])
    torch.testing.assert_close(
        scorer.score(CROSS_ENTROPY, model, batch(9), None),
        Fresh().score(CROSS_ENTROPY, average, batch(9), None),
    )
    assert scorer.seconds_refresh > 0


def test_ema_shares_frozen_weights_until_they_thaw():
    model, scorer = network(), Ema(0.5)
    frozen = model[0][0].weight.requires_grad_(False)
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    assert scorer._snapshot.model[0][0].weight is frozen
    head = model[-1].weight.detach().clone()
    change(model[-1])
    scorer.after_step(CROSS_ENTROPY, model, batch(0))
    average = (head + model[-1].weight.detach()) / 2
    torch.testing.assert_close(scorer._snapshot.model[-1].weight.detach(), average)
    frozen.requires_grad_(True)
    scorer.score(CROSS_ENTROPY, model, batch(0), None)
    assert scorer._snapshot.model[0][0].weight is not frozen
    torch.testing.assert_close(scorer._snapshot.model[-1].weight.detach(), average)


def test_a_proxy_learns_from_the_batches_as_a_plain_loop_does():
    scorer, model = trained_proxy(), network()
    twin = proxy_network()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for seed in range(5):
        torch.manual_seed(seed)
        scorer.after_step(CROSS_ENTROPY, model, batch(seed))
        after = torch.rand(1)
        torch.manual_seed(seed)
        assert torch.rand(1) == after  # the proxy's dropout drew nothing from the loop's generator
        torch.manual_seed(seed)
        step(twin, optimizer, batch(seed))
    assert_same(scorer.model.state_dict(), twin.state_dict())
    assert_same(
        scorer.score(CROSS_ENTROPY, model, batch(9), None),
        Fresh().score(CROSS_ENTROPY, twin, batch(9), None),
    )
    assert (scorer.forwards, scorer.backwards) == (6 * 24, 5 * 24)
    assert all(parameter.grad is None for parameter in scorer.model.parameters())
    assert scorer.seconds_refresh > 0


def test_a_proxy_without_an_optimizer_stays_as_it_is():
    scorer, before = Proxy(proxy_network()), proxy_network().state_dict()
    scorer.after_step(CROSS_ENTROPY, network(), batch(0))
    assert_same(scorer.model.state_dict(), before)
    assert (scorer.forwards, scorer.backwards) == (0, 0)


def test_a_model_that_cannot_be_copied_is_reported():
    model = network()
    model.features = torch.ones(2, requires_grad=True) * 2  # of a graph, as no copy can be
    for scorer in (Reduced("bf16"), Ema()):
        said = r"Sequential cannot be copied .*autocast=torch.bfloat16"
        with pytest.raises(ConfigError, match=said):
            scorer.score(CROSS_ENTROPY, model, batch(0), None)


BAD = {
    "precision": (lambda: Reduced("int4"), "precision='int4': give"),
    "refresh": (lambda: Reduced(refresh=0), "refresh=0: give an integer, at least 1"),
    "refresh of parts": (lambda: Reduced(refresh=1.5), "refresh=1.5"),
    "mode": (lambda: Reduced(mode="test"), "mode='test'"),
    "refresh of int8": (lambda: Int8(0), "refresh=0: give an integer, at least 1"),
    "mode of int8": (lambda: Int8(mode="test"), "mode='test'"),
    "activations": (lambda: Int8(activations="both"), "activations='both'"),
    "factor": (lambda: Downsampled(1), "factor=1: give a finite number above 1"),
    "decay": (lambda: Ema(1), r"decay=1: give a share in \[0, 1\)"),
    "optimizer": (
        lambda: Proxy(proxy_network(), torch.optim.SGD(network().parameters())),
        r"parameters that are not the proxy's: give .*SGD\(proxy.parameters",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_proxy_is_not_the_model():
    model = network()
    with pytest.raises(ConfigError, match="the proxy is the model that is trained"):
        Proxy(model).score(CROSS_ENTROPY, model, batch(0), None)


def test_states_of_others_are_refused():
    used = Reduced("bf16", 5)
    used.score(CROSS_ENTROPY, network(), batch(0), None)
    other = Reduced("bf16", 5)
    other.load_state_dict(used.state_dict())
    with pytest.raises(StateError, match=r"the copy of a model.* should be"):
        other.score(CROSS_ENTROPY, network("resnet18"), batch(0), None)
    with pytest.raises(StateError, match=r"inner='Reduced', .*has inner='Fresh'"):
        Downsampled(2).load_state_dict(Downsampled(2, Reduced()).state_dict())
    with pytest.raises(StateError, match="trained=True, and this Proxy has trained=False"):
        Proxy(proxy_network()).load_state_dict(trained_proxy().state_dict())
    larger = nn.Linear(2, 2)
    with pytest.raises(StateError, match=r"Proxy.model\S* is .*, and should be"):
        Proxy(larger, torch.optim.SGD(larger.parameters(), momentum=0.9)).load_state_dict(
            trained_proxy().state_dict()
        )
