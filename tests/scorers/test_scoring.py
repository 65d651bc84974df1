"""The selection pass changes nothing in the model."""

import copy
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.ao.quantization import MovingAverageMinMaxObserver, PerChannelMinMaxObserver
from torch.nn import functional as F

from siftback import Fresh
from siftback.errors import BatchError, ConfigError, LossError
from siftback.losses.per_example import pair_losses
from traces import assert_untouched, failing, traces

MODES = ("eval", "train")
CROSS_ENTROPY = pair_losses(F.cross_entropy)
every_mode = pytest.mark.parametrize("mode", MODES)


class Replacing(nn.Module):
    """Replaces its buffer in every forward, in either mode, where BatchNorm writes into its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


def network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), Replacing(), nn.Linear(8, 3)
    )
    model[3].eval()  # modules of a model may be in modes of their own
    return model


def batch(count=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(
        3, (count,), generator=generator
    )


@every_mode
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_nothing_is_left_behind(mode, training, gradients):
    model = network().train(training)
    model[1].train(not training)
    if gradients:
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    before, buffers = traces(model), [id(buffer) for buffer in model.buffers()]
    losses = Fresh(mode).score(CROSS_ENTROPY, model, batch(), None)
    assert not losses.requires_grad
    assert_untouched(model, before)
    assert [id(buffer) for buffer in model.buffers()] == buffers


@every_mode
@pytest.mark.parametrize(
    ("losses", "error"),
    [(failing, RuntimeError), (lambda model, batch: model(batch[0]).mean(), LossError)],
)
def test_nothing_is_left_behind_where_the_pass_fails(mode, losses, error):
    model = network()
    before = traces(model)
    with pytest.raises(error):
        Fresh(mode).score(losses, model, batch(), None)
    assert_untouched(model, before)


@every_mode
def test_losses_are_those_of_the_model_in_that_mode(mode):
    model, (inputs, targets) = network(), batch()
    twin = copy.deepcopy(model)
    if mode == "eval":
        twin.eval()  # and in "train" its dropout, which is in eval mode, stays so
    rng = torch.get_rng_state()
    expected = F.cross_entropy(twin(inputs), targets, reduction="none").detach()
    torch.set_rng_state(rng)
    assert Fresh(mode).score(CROSS_ENTROPY, model, (inputs, targets), None).equal(expected)


class Counting(nn.Module):
    """Writes into its buffers in every forward, in either mode, and by ways autograd cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(0))

    def forward(self, x):
        self.calls += 1
        self.total.data.add_(x.detach().sum(0)[:3])
        self.last.resize_(len(x)).copy_(x.detach()[:, 0])
        return x


def weight_normed():
    """A user's module that torch gives a class of its own, made in ``torch.nn``."""

    class Tracking(nn.Linear):
        def __init__(self):
            super().__init__(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    return nn.utils.parametrizations.weight_norm(Tracking())


WRITING = {
    "a user's own module": lambda: nn.Sequential(Counting(), nn.Linear(6, 3)),
    "a parametrised one": weight_normed,
    "an observer": lambda: nn.Sequential(MovingAverageMinMaxObserver(), nn.Linear(6, 3)),
    "an observer by channel": lambda: nn.Sequential(PerChannelMinMaxObserver(), nn.Linear(6, 3)),
}


@every_mode
@pytest.mark.parametrize("make", WRITING.values(), ids=WRITING)
@pytest.mark.parametrize("losses", [CROSS_ENTROPY, failing])
def test_buffers_that_modules_write_in_either_mode_are_put_back(mode, make, losses):
    model = make()
    for used in (False, True):
        if used:
            model(batch(16, seed=2)[0])
        before, buffers = traces(model), [id(buffer) for buffer in model.buffers()]
        with suppress(RuntimeError):
            Fresh(mode).score(losses, model, batch(8), None)
        assert_untouched(model, before)
        assert [id(buffer) for buffer in model.buffers()] == buffers


def test_a_graph_built_before_a_pass_is_still_valid_after_it():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(6, 3)
            self.register_buffer("mask", torch.ones(3))

        def forward(self, x):
            return super().forward(x) * self.mask  # which the graph keeps

    model, (inputs, targets) = Masked(), batch()
    loss = F.cross_entropy(model(inputs), targets)
    for mode in MODES:
        Fresh(mode).score(CROSS_ENTROPY, model, batch(), None)
    loss.backward()
    assert model.weight.grad is not None


def test_buffers_of_a_loss_module_are_left_to_its_user():
    class Losses(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, model, batch):
            self.calls += 1
            return CROSS_ENTROPY(model, batch)

    losses = Losses()
    Fresh().score(losses, network(), batch(), None)
    assert losses.calls == 1


@every_mode
def test_a_module_that_does_more_than_change_its_mode_is_left_alone(mode):
    class Merging(nn.Linear):
        merged = False

        def train(self, training=True):
            self.merged = not training
            return super().train(training)

    model = Merging(6, 3)
    Fresh(mode).score(CROSS_ENTROPY, model, batch(), None)
    assert model.training
    assert not model.merged


def test_mode_train_puts_a_model_in_eval_mode_in_train_mode():
    model, seen = network().eval(), []
    hook = model[3].register_forward_hook(lambda module, *_: seen.append(module.training))
    Fresh("train").score(CROSS_ENTROPY, model, batch(), None)
    hook.remove()
    assert seen == [True]
    assert not any(module.training for module in model.modules())


def test_a_tensor_that_the_model_caches_is_fit_for_training():
    class Positions(nn.Linear):
        table = None

        def forward(self, x):
            self.table = torch.arange(6.0) if self.table is None else self.table
            return super().forward(x + self.table)

    model = Positions(6, 3)
    Fresh().score(CROSS_ENTROPY, model, batch(), None)
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    assert model.weight.grad is not None


def test_autocast_follows_the_argument_and_losses_are_float32():
    seen = []

    def losses(model, batch):
        outputs = model(batch[0])
        seen.append(outputs.dtype)
        return outputs.square().mean(1)

    for autocast in (None, torch.bfloat16):
        scores = Fresh(autocast=autocast).score(losses, network(), batch(), None)
        assert scores.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):  # which is in force around the loop
        Fresh().score(losses, network(), batch(), None)
    assert seen == [torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("losses", [pair_losses(F.cross_entropy), failing])
def test_autocast_around_the_loop_leaves_training_its_gradients(autocast, losses):
    model, (inputs, targets) = network(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        with suppress(RuntimeError):  # and continues, as a loop may
            Fresh(autocast=autocast).score(losses, model, (inputs, targets), None)
        F.cross_entropy(model(inputs), targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_batch_on_another_device_is_named():
    with pytest.raises(BatchError, match=r'on cpu and the model on meta: .*\.to\("meta"\)'):
        Fresh().score(CROSS_ENTROPY, network().to("meta"), batch(), None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "test"}, 'mode=\'test\': give "eval" or "train"'),
        ({"autocast": "bf16"}, "autocast='bf16': give a floating-point dtype"),
        ({"autocast": torch.int8}, "autocast=torch.int8"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Fresh(**arguments)
