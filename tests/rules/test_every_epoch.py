"""Rules that draw every epoch, all of them: what is read, counted, saved and refused."""

import io

import pytest
import torch
from torch.utils.data import DataLoader

from remembering import Numbered, Read, indexed, selective, spread
from rule_methods import METHODS, epoch_of, loader_of, seeded, steps_of
from siftback import (
    IES,
    RS2,
    UCB,
    ConfigError,
    Indexed,
    InfoBatch,
    Kakurenbo,
    Percentile,
    SelectiveSampler,
    SeTa,
    StateError,
)
from toys import assert_same


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_read_but_what_was_drawn(name):
    data = Read(Numbered(spread(60)))
    loader = loader_of(METHODS[name](), wrapped=indexed(data))
    left_out = 0
    for epoch in range(8):
        found = epoch_of(loader, epoch)
        assert data.take_reads() == list(found)  # these, in this order
        out = set(loader.left_out.tolist())
        assert out == set(range(60)) - found.keys()
        assert (epoch or name.startswith("rs2")) or not out
        left_out += len(out)
    assert left_out == loader.stats.unread > 0
    assert loader.stats.seen == 8 * 60
    assert loader.stats.scored == 0
    assert loader.stats.forwards + left_out == 8 * 60


@pytest.mark.parametrize("name", METHODS)
def test_a_single_example_and_equal_losses_are_trained_on(name):
    for count in (1, 40):
        wrapped = indexed(Numbered(torch.ones(count)))
        loader = selective(wrapped, losses=None, scorer=METHODS[name](), epochs=8)
        for _ in range(3):
            numbers = []
            for batch in loader:
                right = torch.zeros(len(batch["number"]), dtype=torch.bool)
                loader.remember(batch["loss"], correct=right, confidence=batch["loss"])
                numbers += loader.weights.tolist()
            assert numbers or name == "ies"


@pytest.mark.parametrize("name", METHODS)
def test_what_joins_later_is_kept(name):
    scorer = METHODS[name]()
    scorer.grow(20)
    for epoch in range(4):
        losses, indices = torch.linspace(0.1, 2, 20), torch.arange(20)
        scorer.trained(indices, losses, epoch)
        scorer.judged(indices, losses < 1, losses)
        scorer.draw(epoch, seeded(epoch))
    scorer.grow(25)
    weights = scorer.draw(4, seeded(4))
    assert len(weights) == 25
    if not name.startswith("rs2"):  # to which all are alike
        assert weights[20:].tolist() == [1.0] * 5


def trained(name, checkpoint=None, **options):
    """Steps, checkpoints after each of them, and the end."""
    wrapped = indexed(Numbered(spread(44)), **options)
    loader = loader_of(METHODS[name](), wrapped=wrapped, epochs=5)
    if checkpoint:
        loader.load_state_dict(torch.load(io.BytesIO(checkpoint), weights_only=True))
    steps, checkpoints = [], []

    def save():
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        checkpoints.append((len(steps), file.getvalue()))

    save()
    while loader.epoch < 5:
        for step in steps_of(loader, loader.epoch):
            steps.append((step, loader.lr_scale))
            save()
        save()
    return steps, checkpoints, loader.state_dict()["scorer"]


@pytest.mark.parametrize("name", METHODS)
def test_stopping_anywhere_equals_never_stopping(name):
    steps, checkpoints, end = trained(name)
    for done, checkpoint in checkpoints[:: 1 if name in ("infobatch", "rs2") else 5]:
        rest, _, same_end = trained(name, checkpoint)
        assert rest == steps[done:]
        assert_same(same_end, end)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("name", ["infobatch", "rs2"])
def test_with_persistent_workers_too(name):
    steps, checkpoints, end = trained(name)
    workers = {"num_workers": 2, "persistent_workers": True}
    same_steps, _, same_end = trained(name, **workers)
    assert same_steps == steps
    assert_same(same_end, end)
    done, checkpoint = checkpoints[len(checkpoints) // 2]
    assert trained(name, checkpoint, **workers)[0] == steps[done:]


def test_a_state_of_fewer_examples_is_refused():
    few, more = UCB(), UCB()
    few.grow(4)
    more.grow(5)
    with pytest.raises(StateError, match="2 numbers for 4 examples does not fit 2 for 5"):
        more.load_state_dict(few.state_dict())


@pytest.mark.parametrize("given", [{"keep": 0.5}, {"beta": 1}, {"selector": Percentile(keep=0.5)}])
def test_a_rule_of_its_own_and_another_are_refused(given):
    with pytest.raises(ConfigError, match="UCB chooses by a rule of its own"):
        loader_of(UCB(), **given)


def test_delta_needs_the_length_of_training():
    with pytest.raises(ConfigError, match="epochs="):
        loader_of(InfoBatch(), epochs=None)
    loader_of(InfoBatch(delta=1.0), epochs=None)


def test_another_sampler_is_refused():
    with pytest.raises(ConfigError, match="RS2 leaves examples out before they are read"):
        loader_of(RS2(), wrapped=DataLoader(Indexed(Numbered(spread(9))), shuffle=True))
    sampler = SelectiveSampler(range(9))
    loader_of(RS2(), wrapped=DataLoader(Indexed(Numbered(spread(9))), sampler=sampler))


REFUSED = {
    "ratio": (lambda: InfoBatch(ratio=1), r"ratio=1: give a share in \[0, 1\)"),
    "delta": (lambda: InfoBatch(delta=0), r"delta=0: give a share in \(0, 1\]"),
    "keep": (lambda: RS2(0), r"keep=0: give a share in \(0, 1\]"),
    "tail": (lambda: RS2(tail=1), r"tail=1: give a share of training in \[0, 1\)"),
    "threshold": (lambda: Kakurenbo(threshold=2), r"threshold=2: give a share in \[0, 1\]"),
    "c": (lambda: UCB(c=-1), "c=-1: give a weight of the deviation"),
    "every": (lambda: UCB(every=0), "every=0: give a whole number of epochs"),
    "groups": (lambda: SeTa(groups=0), "groups=0: give a whole number of groups"),
    "window": (lambda: IES(window=0), "window=0: give a whole number of losses"),
    "settled": (lambda: IES(threshold=0), "threshold=0: give a number above 0"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
