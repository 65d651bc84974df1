"""Loops that read batches ahead: index and weight are each batch's own, or it is an error."""

import itertools
import queue
import threading
import time
import warnings
from collections import deque
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from remembering import Numbered, spread
from siftback import Epochs, Indexed, InfoBatch, Memory, Pool, Selection, SelectiveLoader
from siftback.errors import BatchError, ConfigError, LossError
from siftback.rules.rule import EpochRule
from toys import AT_ONCE, EveryOther, assert_same, at_once, given_losses, numbered

COUNT, EPOCHS = 60, 4
ahead_by = pytest.mark.parametrize("ahead", [0, 1, 2, 5])


def reading_ahead(loader, ahead):
    """Its batches, each given once so many more have been read."""
    waiting = deque()
    for batch in loader:
        waiting.append(batch)
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def weight_of(number):
    return 1 + number / 10


class Weighing(EpochRule):
    """Leaves every third example out, and weighs the others by their number."""

    def __init__(self):
        super().__init__(warmup=Epochs(1))
        self.found = {}

    def draw(self, epoch, generator):
        numbers = torch.arange(self.examples)
        return torch.where((numbers + epoch) % 3 == 0, 0.0, weight_of(numbers))

    def update(self, indices, losses, epoch, *, correct=None, confidence=None):
        self.found |= dict(zip(indices.tolist(), losses.tolist(), strict=True))


class Told(Weighing):
    """The same, not learning from training."""

    update = EpochRule.update


def loader_of(rule=None, **arguments):
    wrapped = DataLoader(Numbered(spread(COUNT)), 7, shuffle=True)
    if rule is not None:
        return SelectiveLoader(wrapped, memory=rule, epochs=EPOCHS, **arguments)
    arguments = {"selector": EveryOther()} | arguments
    return SelectiveLoader(wrapped, nn.Identity(), losses=given_losses, **at_once(arguments))


def expected_weights(loader, epoch, batch):
    if loader.memory is None:
        return batch["loss"]
    if epoch == 0 or isinstance(loader.memory, Memory):
        return torch.ones(len(batch["loss"]))
    return weight_of(batch["number"])


def losses_of(batch, epoch):
    """Losses that say which example in which epoch they are of."""
    return (batch["number"] + 100.0 * epoch).requires_grad_()


LOADERS = {
    "memory": lambda **arguments: loader_of(Memory(keep=0.5, warmup=Epochs(1)), **arguments),
    "weights": lambda **arguments: loader_of(Weighing(), **arguments),
    "weights that do not learn": lambda **arguments: loader_of(Told(), **arguments),
    "selector": loader_of,
    "selector, smaller batches": lambda **arguments: loader_of(pool=Pool(3), **arguments),
}
each_loader = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)


def known(loader, epoch, trained):
    """The losses that a learning rule must have of the examples trained on."""
    if isinstance(loader.memory, Memory):
        found = loader.memory.values[trained, 0]
    elif loader.memory is not None and not isinstance(loader.memory, Told):
        found = torch.tensor([loader.memory.found[number] for number in trained])
    else:
        return
    assert found.tolist() == [number + 100.0 * epoch for number in trained]


@ahead_by
@each_loader
def test_losses_are_matched_in_the_order_given(make, ahead):
    loader = make()
    for epoch in range(EPOCHS):
        trained = []
        for batch in reading_ahead(loader, ahead):
            losses = losses_of(batch, epoch)
            loader.loss(losses).backward()
            weights = expected_weights(loader, epoch, batch)
            torch.testing.assert_close(losses.grad, weights / len(weights))
            trained += batch["number"].tolist()
        known(loader, epoch, trained)


@ahead_by
@each_loader
def test_or_by_what_is_attached_to_the_batch(make, ahead):
    loader = make(attach=True)
    for epoch in range(EPOCHS):
        trained = []
        for place, batch in enumerate(reading_ahead(loader, ahead)):
            assert batch["sift_index"].equal(batch["number"])
            weights = expected_weights(loader, epoch, batch)
            assert_same(batch["sift_weight"], weights)
            losses = losses_of(batch, epoch)
            indices, given = batch["sift_index"], batch["sift_weight"]
            if place % 3 == 0:
                loss = loader.loss(losses, indices=indices, weights=given)
            elif place % 3 == 1:
                loss = loader.loss(losses, indices=indices)  # which knows their weights
            else:
                loader.record(losses, indices=indices)
                loss = (losses * given).mean()
            loss.backward()
            torch.testing.assert_close(losses.grad, weights / len(weights))
            trained += batch["number"].tolist()
        known(loader, epoch, trained)


@ahead_by
@each_loader
def test_a_batch_may_be_trained_on_in_parts(make, ahead):
    loader = make(attach=True)
    for epoch in range(EPOCHS):
        trained = []
        for batch in reading_ahead(loader, ahead):
            weights = expected_weights(loader, epoch, batch)
            for rows in torch.arange(len(weights)).split(2):
                losses = losses_of({"number": batch["number"][rows]}, epoch)
                loader.loss(losses, indices=batch["sift_index"][rows]).backward()
                torch.testing.assert_close(losses.grad, weights[rows] / len(rows))
            trained += batch["number"].tolist()
        known(loader, epoch, trained)


READS = {
    "before": lambda loader, losses: (loader.weights, loader.record(losses))[0],
    "after": lambda loader, losses: (loader.record(losses), loader.weights)[1],
    "alone": lambda loader, losses: loader.weights,
    "indices": lambda loader, losses: (loader.indices, loader.weights)[1],
}


@ahead_by
@each_loader
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_weights_of_the_loader_are_those_of_the_batch_or_an_error(make, ahead, read):
    loader, given = make(), []

    def train():
        for epoch in range(EPOCHS):
            for batch in reading_ahead(loader, ahead):
                weights = read(loader, losses_of(batch, epoch))
                assert_same(weights, expected_weights(loader, epoch, batch))
                assert loader.indices.equal(batch["number"])
                given.append(batch)

    learns = isinstance(loader.memory, EpochRule) and not isinstance(loader.memory, Told)
    if ahead == 0 and not (learns and read in (READS["alone"], READS["indices"])):
        train()
        assert len(given) >= 4 * 3
    else:
        with pytest.raises(ConfigError, match="the loop reads ahead, or did not record the losses"):
            train()
        assert len(given) == (ahead == 0)


@each_loader
def test_weights_that_a_loop_changes_in_place_are_its_own(make):
    loader = make()
    for epoch in range(EPOCHS):
        for batch in loader:
            loader.weights.zero_()
            losses = losses_of(batch, epoch)
            loader.loss(losses).backward()
            expected = expected_weights(loader, epoch, batch)
            torch.testing.assert_close(losses.grad, expected / len(expected))


@each_loader
def test_the_next_batch_may_be_fetched_before_the_last_is_recorded(make):
    loader = make()
    batches = iter(loader)
    batch = next(batches)
    weights = loader.weights
    assert_same(weights, expected_weights(loader, 0, batch))
    other = next(batches)
    if loader.memory is None or isinstance(loader.memory, Told):
        assert_same(loader.weights, expected_weights(loader, 0, other))
        return
    loader.record(losses_of(batch, 0))
    with pytest.raises(ConfigError, match="the loop reads ahead"):
        _ = loader.weights


def learning(**arguments):
    return loader_of(Memory(keep=0.5, warmup=Epochs(1)), **arguments)


def test_forgetting_to_record_is_an_error_at_the_end_of_the_first_epoch():
    for attach in (False, True):
        loader = learning(attach=attach)
        with pytest.raises(ConfigError, match=r"Memory learns .* of 9 batches no losses were reco"):
            list(loader)
        assert loader.stats.released == COUNT
    loader = loader_of(Memory(), pool=Pool(20))  # of three batches, which a loop may read ahead
    list(loader)
    with pytest.raises(ConfigError, match=r"of 3 batches no losses .*call loader.lo"):
        list(loader)


def test_forgetting_to_record_is_an_error_before_many_batches_are_given():
    loader = SelectiveLoader(DataLoader(torch.arange(900.0), 1), memory=Memory(), epochs=2)
    with pytest.raises(ConfigError, match=r"of 100 batches no losses were recorded"):
        list(loader)
    assert loader.stats.released == 101  # the last of which was not given


def test_recording_twice_is_an_error():
    loader = learning()
    for batch in loader:
        loader.record(batch["loss"])
        with pytest.raises(ConfigError, match=r"no batch waits for its losses: call.*LBFGS"):
            loader.record(batch["loss"])


def test_a_cycle_of_the_batches_of_one_epoch_is_an_error_that_names_it():
    loader = learning()

    def train():
        for batch in itertools.cycle(loader):
            loader.record(batch["loss"])

    with pytest.raises(ConfigError, match=r"itertools.cycle repeats .* iterate anew"):
        train()
    assert loader.stats.released == COUNT


def test_a_second_gradient_of_a_step_has_the_weights_of_the_first():
    plain = DataLoader(torch.arange(64.0), 8, shuffle=True)
    loader, weights = SelectiveLoader(plain, memory=InfoBatch(), epochs=6), set()
    for _ in range(6):
        for losses in loader:
            recorded = loader.loss(losses)
            assert torch.equal((losses * loader.weights).mean(), recorded)
            weights |= {*loader.weights.tolist()}
    assert weights == {1.0, 2.0}


def counted(loader):
    """Epochs of which a loop takes as many batches as there are, and does not ask for the end."""
    for _ in range(EPOCHS):
        yield from itertools.islice(loader, len(loader))


def counted_and_set(loader):
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        yield from itertools.islice(loader, len(loader))


def to_the_end(loader):
    for _ in range(EPOCHS):
        yield from loader


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("size", [7, 8])  # of which the last batch is smaller, and is not
@pytest.mark.parametrize("epochs_of", [to_the_end, counted, counted_and_set])
def test_losses_that_come_after_the_next_epoch_has_begun_are_an_error(ahead, size, epochs_of):
    wrapped = DataLoader(Numbered(spread(64)), size, shuffle=True)
    loader = SelectiveLoader(wrapped, memory=Memory(keep=0.5), epochs=EPOCHS)

    def train():
        for batch in reading_ahead(epochs_of(loader), ahead):
            loader.record(batch["loss"])

    with pytest.raises((ConfigError, LossError), match="before the next epoch begins"):
        train()


@pytest.mark.parametrize("epochs_of", [counted, counted_and_set])
def test_a_last_batch_that_a_loop_leaves_untrained_may_be_its_last(epochs_of):
    loader = learning()
    for place, batch in enumerate(epochs_of(loader)):
        if place % len(loader) < len(loader) - 1:
            loader.record(batch["loss"])
    assert loader.stats.released == EPOCHS * COUNT


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_recording_twice_is_an_error_by_the_last_batch_of_a_loop_that_reads_ahead(ahead):
    loader = learning()

    def train():
        for place, batch in enumerate(reading_ahead(loader, ahead)):
            loader.record(batch["loss"])
            if place == 2:
                loader.record(batch["loss"])

    with pytest.raises((ConfigError, LossError), match=r"no batch waits|losses were given, and"):
        train()


@ahead_by
@pytest.mark.parametrize("skipped", [0, 3, 7])
def test_skipping_one_batch_is_an_error_at_the_latest_when_the_next_epoch_begins(ahead, skipped):
    loader = learning()

    def train():
        for _ in range(2):
            for place, batch in enumerate(reading_ahead(loader, ahead)):
                if place != skipped:
                    loader.record(batch["loss"])

    message = rf"of [1-{ahead + 1}] batches no losses|losses were given"
    with pytest.raises((ConfigError, LossError), match=message):
        train()
    assert loader.epoch in (0, 1)
    assert loader.stats.released <= COUNT


@pytest.mark.parametrize("make", [learning, lambda: loader_of(Weighing())])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_skipping_the_first_batch_of_a_later_epoch_is_an_error_at_once(make, ahead):
    # The losses of the second would be those of the first: a loop reads ahead as it did before.
    loader, recorded = make(), []
    for batch in reading_ahead(loader, ahead):
        loader.loss(losses_of(batch, 0))

    def train():
        for place, batch in enumerate(reading_ahead(loader, ahead)):
            if place > 0:
                loader.loss(losses_of(batch, 1))
                recorded.append(place)

    with pytest.raises(ConfigError, match=rf"of {ahead + 1} batches no losses were recorded"):
        train()
    assert recorded == [1]


@ahead_by
@pytest.mark.parametrize("make", [learning, lambda: loader_of(Weighing())])
def test_a_last_batch_that_is_not_full_may_be_left_out(make, ahead):
    loader = make()
    for epoch in range(EPOCHS):
        trained = []
        for batch in reading_ahead(loader, ahead):
            if len(batch["loss"]) < loader.batch_size:
                continue
            loader.loss(losses_of(batch, epoch))
            trained += batch["number"].tolist()
        known(loader, epoch, trained)


def test_another_than_the_last_batch_of_losses_of_whole_batches_may_not():
    loader = learning()

    def train():
        for _ in range(2):
            for place, batch in enumerate(loader):
                if place > 0:
                    loader.loss(batch["loss"].mean(), reduced=True)

    with pytest.raises(ConfigError, match="of 1 batches no losses"):
        train()


LEARNING = {
    "memory": learning,
    "weights": lambda: loader_of(Weighing()),
    "selector": loader_of,
}


@ahead_by
@pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
def test_a_skipped_batch_is_an_error_before_others_have_its_losses_for_long(make, ahead):
    loader, trained = make(), []

    def train():
        for place, batch in enumerate(reading_ahead(loader, ahead)):
            if place == 2:
                continue  # as after an error of the step
            loader.loss(losses_of(batch, 0))
            trained.append(place)

    if ahead < 5:  # else all batches were read before the second was trained on
        message = rf"of {ahead + 1} batches (no losses|were never)|6 losses were given"
        with pytest.raises((ConfigError, LossError), match=message):
            train()
        assert trained[2:] in ([], [3])


def in_groups(loader):
    """Its batches, of which now more, now fewer are read before the first of them is given."""
    batches, sizes = iter(loader), itertools.cycle([1, 3, 2])
    while group := list(itertools.islice(batches, next(sizes))):
        yield from group


def in_a_thread(loader):
    """Its batches, which another thread reads as far ahead as it comes."""
    waiting = queue.Queue(3)

    def read():
        for place, batch in enumerate(loader):
            time.sleep(0.002 * (place % 3))
            waiting.put(batch)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    for place, batch in enumerate(iter(waiting.get, None)):
        time.sleep(0.002 * (place % 4))
        yield batch


@pytest.mark.parametrize("reading", [in_groups, in_a_thread])
def test_a_loop_may_read_now_more_batches_ahead_now_fewer(reading):
    loader = learning()
    for epoch in range(EPOCHS):
        trained = []
        for batch in reading(loader):
            loader.loss(losses_of(batch, epoch))
            trained += batch["number"].tolist()
        known(loader, epoch, trained)


@pytest.mark.parametrize("attach", [False, True])
def test_indices_may_be_overwritten_as_soon_as_losses_were_recorded(attach):
    loader, buffer = learning(attach=attach), torch.zeros(7, dtype=torch.int64)
    for epoch in range(EPOCHS):
        trained = []
        for batch in loader:
            trained += batch["number"].tolist()
            if attach:
                indices = buffer[: len(batch["number"])].copy_(batch["sift_index"])
                batch["sift_index"].zero_(), batch["sift_weight"].zero_()
                loader.loss(losses_of(batch, epoch), indices=indices)
            else:
                loader.indices.zero_()
                loader.loss(losses_of(batch, epoch))
            buffer.zero_()
        known(loader, epoch, trained)


@pytest.mark.sampled(3)
@ahead_by
@pytest.mark.parametrize("attach", [False, True])
def test_a_loop_that_gives_indices_may_leave_out_batches_and_examples(ahead, attach):
    wrapped = DataLoader(Numbered(spread(750)), 7, shuffle=True)  # more batches than may wait
    loader = SelectiveLoader(wrapped, memory=Memory(keep=0.5), epochs=EPOCHS, attach=attach)
    expected = torch.full((750,), torch.nan)
    for epoch in range(EPOCHS):
        for place, batch in enumerate(reading_ahead(loader, ahead)):
            some = batch["number"] % 3 > 0
            if place % 2:
                losses = losses_of(batch, epoch)[some]
                loader.loss(losses, indices=batch["number"][some].long())
                expected[batch["number"][some].long()] = losses.detach()
    assert loader.epoch == EPOCHS
    assert_same(loader.memory.values[:, 0].nan_to_num(-1), expected.nan_to_num(-1))


@pytest.mark.filterwarnings("ignore:epoch 0 was left after 3 batches")
def test_an_epoch_with_losses_of_some_examples_does_not_begin_again():
    loader = learning(attach=True)
    for epoch in range(2):
        assert loader.epoch == epoch
        for place, batch in enumerate(loader):
            loader.record(batch["loss"][:3], indices=batch["sift_index"][:3])
            if place == 2:
                break


def test_an_epoch_may_be_broken_off():
    loader = loader_of(Memory(keep=0.5, warmup=Epochs(3.5)))
    for epoch in range(3):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for place, batch in enumerate(loader):
                if place == 4:
                    break  # before its losses are recorded
                loader.loss(batch["loss"])
        assert len(found) == (epoch == 1)
        assert loader.epoch == epoch + 1
    for place, _ in enumerate(loader):  # but not without any
        if place == 7:
            break
    with pytest.raises(ConfigError, match=r"of 8 batches no losses were recorded"):
        next(iter(loader))


SIZES = {
    "too few": (torch.zeros(6), r"6 losses were given, and the batch has 7 examples: give one"),
    "reduced": (torch.zeros(()), r"reduced to one number: .* reduction=\"none\".* reduced=True"),
    "two dimensions": (torch.zeros(7, 1), r"losses=float32\[7, 1\]: give .* averaged"),
    "integers": (torch.zeros(7).long(), r"losses=int64\[7\]: give .* float\[n\]"),
    "a list": ([0.0] * 7, r"losses=\[0.0, .*: give a dense tensor, float\[n\]"),
}


@pytest.mark.parametrize(("losses", "message"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("method", ["loss", "record"])
def test_losses_that_are_not_one_for_each_example_are_refused(losses, message, method):
    loader = learning()
    batch = next(iter(loader))
    with pytest.raises(LossError, match=message):
        getattr(loader, method)(losses)
    loader.loss(batch["loss"])  # which is still waited for


@pytest.mark.parametrize("method", ["loss", "record"])
def test_losses_within_a_transform_are_refused_and_outside_of_it_recorded(method):
    loader = learning()
    batch = next(iter(loader))

    def loss(scale):
        getattr(loader, method)(batch["loss"] * scale)
        return scale

    for transform in torch.func.grad, partial(torch.func.vmap, randomness="same"):
        with pytest.raises(LossError, match=r"within torch.func.grad, .* with has_aux=True, and"):
            transform(loss)(torch.ones(() if transform is torch.func.grad else 2))

    def with_losses(scale):
        losses = batch["loss"] * scale
        return losses.mean(), losses

    _, losses = torch.func.grad(with_losses, has_aux=True)(torch.ones(()))
    getattr(loader, method)(losses)
    assert_same(loader.memory.values[batch["number"], 0], losses)


def test_distributed_losses_are_refused_by_name(tmp_path):
    tensors = pytest.importorskip("torch.distributed.tensor")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        loader = learning()
        batch = next(iter(loader))
        losses = tensors.distribute_tensor(batch["loss"], mesh, [tensors.Shard(0)])
        with pytest.raises(LossError, match=r"are a DTensor: give losses.full_tensor\(\)"):
            loader.loss(losses)
        loader.loss(losses.full_tensor())
    finally:
        dist.destroy_process_group()


BY_INDEX = {
    "too few indices": ({"indices": torch.arange(6)}, BatchError, r"7 examples, and its indices"),
    "negative": ({"indices": torch.arange(7) - 1}, BatchError, r"-1 to 5, outside of \[0, 60\)"),
    "too large": ({"indices": torch.arange(7) + 60}, BatchError, r"60 to 66, outside of"),
    "floats": ({"indices": torch.zeros(7)}, BatchError, r"its indices are torch.float32"),
    "weights alone": ({"weights": torch.ones(7)}, ConfigError, r"give both, or neither"),
    "too few weights": (
        {"indices": torch.arange(7), "weights": torch.ones(6)}, LossError, r"weights=float32\[6\]"
    ),
    "too few judgements": (
        {"correct": torch.ones(6, dtype=torch.bool)}, LossError, r"correct=bool\[6\]",
    ),
    "a list of judgements": ({"confidence": [0.5] * 7}, LossError, "confidence="),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), BY_INDEX.values(), ids=BY_INDEX)
def test_what_is_given_with_losses_is_checked(arguments, error, message):
    loader = learning()
    next(iter(loader))
    with pytest.raises(error, match=message):
        loader.loss(torch.zeros(7), **arguments)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("rule", [InfoBatch, partial(Memory, keep=0.3, unbiased=True)])
@pytest.mark.sampled(2)
def test_losses_of_some_examples_have_the_weights_of_their_batch_or_are_refused(rule, size):
    data, refusals = TensorDataset(torch.rand(128) ** 3), []
    plain = DataLoader(data, size, shuffle=True)
    loader = SelectiveLoader(plain, memory=rule(), epochs=10, attach=True)
    for _ in range(10):
        for losses, index, weight in loader:
            rows = slice(1, None)  # an example without a loss may be in a later batch again
            losses, index, weight = losses[rows] * torch.rand(()), index[rows], weight[rows]
            try:
                loss = loader.loss(losses, indices=index)
            except ConfigError as error:
                refusals.append(str(error))
                loss = loader.loss(losses, indices=index, weights=weight)
            torch.testing.assert_close(loss, (losses * weight).mean())
    assert all("or in several with unlike weights" in refusal for refusal in refusals)
    assert len(refusals) <= 10 or size == 2  # a loss by itself may be of either


def test_weights_of_examples_that_do_not_wait_must_be_given():
    loader = loader_of(Weighing(), attach=True)
    for _ in range(2):
        for batch in loader:
            loader.loss(batch["loss"], indices=batch["sift_index"])
    left_out = loader.left_out[:4]
    with pytest.raises(ConfigError, match=r"weights are not known: give weights="):
        loader.loss(torch.zeros(4), indices=left_out)
    loader.record(torch.full((4,), 7.0), indices=left_out)
    assert [loader.memory.found[index] for index in left_out.tolist()] == [7.0] * 4


@ahead_by
def test_weights_are_attached_where_no_indices_are_known(ahead):
    loader = SelectiveLoader(
        numbered(spread(COUNT), 7), nn.Identity(), losses=given_losses, selector=EveryOther(),
        attach=True, schedule=AT_ONCE,
    )  # fmt: skip
    for epoch in range(2):
        for batch in reading_ahead(loader, ahead):
            assert batch["sift_index"].tolist() == [-1] * len(batch["loss"])
            losses = losses_of(batch, epoch)
            loader.loss(
                losses, indices=batch["sift_index"], weights=batch["sift_weight"]
            ).backward()
            torch.testing.assert_close(losses.grad, batch["loss"] / len(losses))
            with pytest.raises(ConfigError, match="give weights= too"):
                loader.loss(losses, indices=batch["sift_index"])


def test_tuples_and_lists_carry_it_behind_their_parts_and_others_are_refused():
    for kind in (tuple, list):
        source = [kind([torch.arange(4), torch.arange(4)])]
        indexed = Indexed(source, lambda batch: batch[0] + 3)
        loader = SelectiveLoader(indexed, selector=EveryThird(), attach=True, schedule=AT_ONCE)
        ((first, second, indices, weights),) = loader
        assert (first.tolist(), second.tolist()) == ([0, 3], [0, 3])
        assert (indices.tolist(), weights.tolist()) == ([3, 6], [1.0, 1.0])
    for batch, message in (
        (torch.arange(4), "attach=True adds .* and the batch is a Tensor: have the collate"),
        (
            {"x": torch.arange(4), "sift_index": torch.arange(4)},
            "already has a key 'sift_index': rename",
        ),
    ):
        with pytest.raises(BatchError, match=message):
            list(SelectiveLoader([batch], selector=EveryThird(), attach=True, schedule=AT_ONCE))


class EveryThird(EveryOther):
    needs_scores, reweights = False, False

    def select(self, scores, generator, count=None):
        rows = torch.arange(0, len(scores), 3)
        return Selection(rows, torch.ones(len(rows)))


@pytest.mark.parametrize("policy", ["error", "keep", "drop"])
@pytest.mark.parametrize("rule", [lambda: Memory(keep=0.5, warmup=Epochs(1)), Told, None])
def test_a_loss_that_is_not_finite_is_counted_and_never_remembered(policy, rule):
    loader = loader_of(None if rule is None else rule(), on_nonfinite=policy)
    batch = next(iter(loader))
    losses = torch.ones(len(batch["loss"]))
    losses[1], losses[2] = torch.nan, torch.inf
    losses.requires_grad_()
    if policy == "error":
        number = int(batch["number"][1])
        with pytest.raises(LossError, match=rf"the loss of example {number} is nan: lower .*drop"):
            loader.loss(losses)
    else:
        loss = loader.loss(losses)
        assert loss.isfinite() == (policy == "drop")
        loss.backward()
        weights = expected_weights(loader, 0, batch)
        if policy == "drop":
            assert losses.grad[1:3].tolist() == [0, 0]
            weights = weights.clone().index_fill(0, torch.tensor([1, 2]), 0.0)
            torch.testing.assert_close(losses.grad, weights / (len(losses) - 2))
    assert loader.stats.nonfinite == 2
    if isinstance(loader.memory, Memory):
        remembered = loader.memory.values[batch["number"], 0]
        assert remembered[1:3].isnan().all()
        assert bool(remembered[[0, 3]].isnan().all()) == (policy == "error")


def test_a_forward_that_is_not_finite_is_not_trained_on_in_silence():
    inputs = torch.randn(44, 5, generator=torch.Generator().manual_seed(2))
    inputs[9, 3] = torch.nan
    plain = DataLoader(TensorDataset(inputs, torch.arange(44) % 3), 8, shuffle=True)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = SelectiveLoader(plain, memory=Memory(), epochs=3, on_nonfinite="drop")

    def train():
        for _ in range(3):
            for x, y in loader:
                loader.loss(F.cross_entropy(model(x), y, reduction="none")).backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(LossError, match=r"no loss of two batches is finite"):
        train()


def test_the_mean_of_half_precision_is_one_of_its_numbers_where_some_are_dropped():
    loader = SelectiveLoader(
        DataLoader(torch.arange(512.0), 256), memory=Memory(), epochs=2, on_nonfinite="drop"
    )
    next(iter(loader))
    losses = torch.full((256,), 300.0, dtype=torch.float16)
    losses[7] = torch.inf
    assert loader.loss(losses).item() == pytest.approx(300, rel=1e-2)  # of a sum beyond 65,504


def test_a_batch_without_any_finite_loss_is_dropped_whole():
    loader = learning(on_nonfinite="drop")
    next(iter(loader))
    losses = torch.full((7,), torch.nan, requires_grad=True)
    loss = loader.loss(losses)
    loss.backward()
    assert (loss.item(), losses.grad.tolist(), loader.stats.nonfinite) == (0.0, [0.0] * 7, 7)
    assert loader.memory.values.isnan().all()
