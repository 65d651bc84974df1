"""Memory: who is drawn, who is read, what is remembered, and what it costs."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from reference import shared_probability
from remembering import (
    Counting,
    Numbered,
    Read,
    Streamed,
    epoch_of,
    plain,
    ruled,
    seeded,
    selective,
    spread,
)
from selections import check_shares
from siftback import Indexed, SelectiveLoader
from siftback.errors import ConfigError, LossError, StateError
from siftback.rules.evolved import EvolvedSampling
from siftback.rules.memory import Memory
from siftback.rules.noise_guard import NoiseGuard
from siftback.schedule import Annealing, Epochs, Schedule, Share
from siftback.tables.score_table import ScoreTable
from toys import assert_same, dataset, optimizer_of


def remembering(losses, **arguments):
    rule = Memory(**arguments)
    rule.grow(len(losses))
    rule.update(torch.arange(len(losses)), losses, 0)
    return rule


@pytest.mark.parametrize(
    ("beta", "floor", "count"), [(1.0, 0.1, 22), (3.0, 0.0, 10), (0.5, 0.25, 30), (0.0, 0.1, 40)]
)
def test_exactly_k_are_drawn_by_percentile_to_the_power_of_beta_with_a_floor(beta, floor, count):
    losses, generator = spread(40), seeded(3)
    rule = remembering(losses, beta=beta, floor=floor)
    assert rule.keep == pytest.approx(count / 40)
    assert rule.count(1) == count
    drawn = torch.stack([rule.draw(1, generator) for _ in range(1000)])
    assert (drawn.count_nonzero(1) == count).all()
    assert ((drawn == 0) | (drawn == 1)).all()
    percentiles = [shared_probability(losses.tolist(), loss, beta) for loss in losses.tolist()]
    check_shares(drawn, [floor + (1 - floor) * share for share in percentiles])


@pytest.mark.parametrize("shift", [-1.0, -0.3], ids=["below a mean of 0", "some"])
@pytest.mark.parametrize("make", [Memory, EvolvedSampling])
def test_draws_by_ratios_warn_of_negative_losses(make, shift):
    losses, rules = torch.linspace(0, 1, 40), []
    for values in (losses, losses - 1e-6, losses + shift):
        rules.append(make())
        rules[-1].grow(40)
        for _ in range(9):  # until an average is near the losses
            rules[-1].update(torch.arange(40), values, 0)
    fixed = remembering(losses + shift, keep=0.5)
    assert fixed.draw(1, seeded(0)).equal(remembering(losses, keep=0.5).draw(1, seeded(0)))
    for rule in rules[:2]:
        rule.draw(1, seeded(0))
    with pytest.warns(UserWarning, match=r"negative, and \w+.* Give Memory\(keep=0.5\)"):
        rules[2].draw(1, seeded(0))


MISFITS = torch.cat((torch.full((180,), 0.1), torch.full((20,), 4.0)))


@pytest.mark.parametrize("arguments", [{}, {"unbiased": True}, {"balance": torch.arange(200) % 2}])
def test_once_labels_seem_wrong_all_are_drawn_from_then_on(arguments):
    rule = remembering(torch.full((200,), 2.3), **arguments)
    generator, everything = seeded(0), [1.0] * 200
    rule.draw(1, generator)  # nothing is learned yet
    rule.update(torch.arange(200), MISFITS, 1)
    assert rule.draw(2, generator).tolist() == everything
    other = Memory(**arguments)
    other.grow(200)
    other.load_state_dict(rule.state_dict())
    for one in (rule, other):
        with pytest.warns(UserWarning, match=r"worse than by chance.* guard=NoiseGuard"):
            assert one.draw(3, generator).tolist() == everything
        one.update(torch.arange(180, 200), torch.zeros(20), 3)  # which were fitted
        one.update(torch.arange(100), torch.zeros(100), 3)
        assert one.draw(4, generator).tolist() == everything


def test_labels_that_seem_wrong_before_one_draw_alone_are_drawn_from_again():
    rule, generator = remembering(torch.full((200,), 2.3)), seeded(0)
    rule.update(torch.arange(200), MISFITS, 1)
    assert rule.draw(2, generator).all()
    rule.update(torch.arange(182, 200), torch.zeros(18), 2)
    assert not rule.draw(3, generator).all()
    rule.update(torch.arange(200), MISFITS, 3)
    assert rule.draw(4, generator).all()  # and without a warning


@pytest.mark.parametrize("arguments", [{"keep": 0.5}, {"guard": NoiseGuard(10)}])
def test_a_fixed_share_and_a_guard_draw_though_labels_seem_wrong(arguments):
    rule = remembering(torch.full((200,), 2.3), **arguments)
    rule.update(torch.arange(200), MISFITS, 1)
    assert rule.draw(2, seeded(0)).count_nonzero() < 200


def trained(model, inputs, targets, loss_fn, *, lr, batch_size, epochs):
    """The loader of a training by `Memory()`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    data = torch.utils.data.TensorDataset(inputs, targets)
    plain = torch.utils.data.DataLoader(data, batch_size, shuffle=True)
    loader = SelectiveLoader(plain, memory=Memory(), epochs=epochs, seed=0)
    for _ in range(epochs):
        for x, y in loader:
            losses = loss_fn(model(x), y, reduction="none").reshape(len(x))
            loader.loss(losses).backward()
            optimizer.step()
            optimizer.zero_grad()
    return loader


def test_a_training_on_wrong_labels_is_one_on_everything_and_others_leave_out():
    def seen(flipped):
        torch.manual_seed(0)
        inputs = 2 * torch.randn(1000, 10)
        labels = inputs.argmax(1)
        labels[:flipped] = (labels[:flipped] + 1) % 10
        model = torch.nn.Linear(10, 10)
        torch.nn.init.zeros_(model.weight)
        loader = trained(model, inputs, labels, F.cross_entropy, lr=4.0, batch_size=125, epochs=6)
        return loader.stats.seen

    assert seen(0) > 8 * 1000
    with pytest.warns(UserWarning, match="Memory\\(\\) leaves nothing out from here on"):
        assert seen(100) < 6.5 * 1000


def test_losses_of_the_first_pass_say_nothing_of_labels():
    rule = remembering(torch.full((200,), 2.3))
    rule.update(torch.arange(200), MISFITS, 1)
    assert not rule.draw(1, seeded(0)).all()
    for number in (2, 3):
        with nullcontext() if number == 2 else pytest.warns(UserWarning, match="from here on"):
            assert rule.draw(number, seeded(0)).all()


def test_a_state_with_losses_whose_square_is_not_finite_can_be_loaded():
    rule = remembering(torch.full((40,), 1e30))
    other = Memory()
    other.grow(40)
    other.load_state_dict(rule.state_dict())


SQUARES = torch.randn(128, 8, generator=seeded(0)).square()


# Before training: squared errors of one number and of eight, losses of two classes, and of six.
@pytest.mark.parametrize(
    "first",
    [40 * SQUARES[:, 0], 40 * SQUARES.mean(1), torch.full((128,), 0.69), torch.full((128,), 1.8)],
)
def test_losses_that_are_not_of_several_classes_say_nothing_of_labels(first):
    rule = Memory()
    rule.grow(200)
    rule.update(torch.arange(128), first, 0)
    rule.update(torch.arange(200), MISFITS * first.mean() / 2.3, 1)
    for number in (2, 3):
        assert rule.draw(number, seeded(0)).count_nonzero() < 100


@pytest.mark.parametrize("classes", [8, 16, 32])
def test_the_loss_of_chance_does_not_depend_on_how_sure_a_network_is_before_training(classes):
    logits = torch.linspace(-2.0, 2.0, classes).expand(128, classes)
    first = F.cross_entropy(logits, torch.arange(128) % classes, reduction="none")
    assert first.mean() > math.log(classes) + 0.5
    rule = Memory()
    rule.grow(200)
    rule.update(torch.arange(128), first, 0)
    # Three tenths wrong, and the others as well predicted as that allows.
    wrong = torch.arange(200) < 60
    losses = torch.where(wrong, math.log((classes - 1) / 0.3), math.log(1 / 0.7))
    rule.update(torch.arange(200), losses, 1)
    assert rule.draw(2, seeded(0)).all()


def test_losses_so_high_that_their_probability_is_zero_say_nothing_of_labels():
    rule = remembering(torch.full((200,), 1e4))
    rule.update(torch.arange(200), MISFITS, 1)
    assert not rule.draw(2, seeded(0)).all()


@pytest.mark.parametrize("positives", [0.05, 0.2, None])
def test_squared_errors_and_rare_classes_are_drawn_from_though_misfits_have_much_of_the_loss(
    positives,
):
    torch.manual_seed(0)
    inputs = torch.randn(1000, 8)
    targets = inputs[:, :1] * inputs[:, 1:2] + inputs[:, 2:3]
    if positives:
        targets = (targets > targets.quantile(1 - positives)).float()
    loss_fn = F.binary_cross_entropy_with_logits if positives else F.mse_loss
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    loader = trained(model, inputs, targets, loss_fn, lr=0.02, batch_size=50, epochs=8)
    assert loader.stats.unread > 300


@pytest.mark.parametrize("keep", [0.11, 0.25, 0.5, 0.55, 1.0])
@pytest.mark.parametrize("size", [1, 2, 5, 97])
def test_so_many_are_drawn_as_the_share_says(keep, size):
    rule = remembering(spread(size), keep=keep)
    assert rule.count(0) == max(1, round(keep * size))
    assert int(rule.draw(1, seeded(0)).sum()) == rule.count(0)


def test_keep_and_beta_are_one_knob():
    for keep, beta in ((0.55, 1.0), (0.4, 2.0), (1.0, 0.0)):
        assert Memory(keep).beta == pytest.approx(beta)
        assert Memory(beta=beta).keep == pytest.approx(keep)
    assert Memory().keep is None


def test_a_loader_reads_and_forwards_what_was_drawn_alone():
    data, model = Read(dataset(300)), Counting()
    loader = SelectiveLoader(
        plain(data), memory=Memory(keep=0.55, warmup=Epochs(1)), epochs=5, shorter_epochs=True
    )
    optimizer, trained = optimizer_of(model), []
    for _ in range(5):
        trained.append([])
        for inputs, targets in loader:
            loss = loader.loss(F.cross_entropy(model(inputs), targets, reduction="none"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trained[-1].append(len(inputs))
        reads = data.take_reads()
        assert len(set(reads)) == len(reads) == sum(trained[-1])
    assert [sum(epoch) for epoch in trained] == [300, 165, 165, 165, 165]  # 0.55 * 300
    assert all(size == 8 for epoch in trained for size in epoch[:-1])
    assert [len(epoch) for epoch in trained] == [38, 21, 21, 21, 21]
    assert model.forwarded == 300 + 4 * 165 == loader.stats.forwards
    assert (loader.stats.scored, loader.stats.seen) == (0, 1500)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_table_holds_each_examples_own_loss_whatever_the_order(shuffle):
    losses = spread(500)
    rule = Memory(warmup=Epochs(1))
    epoch_of(ruled(rule, wrapped=plain(Numbered(losses), 16, shuffle=shuffle)))
    assert_same(rule.table.scores(), losses)


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ({"warmup": Epochs(2)}, [0, 1]),
        ({"warmup": Share(0.25)}, [0, 1]),
        ({"warmup": Epochs(1), "tail": Share(0.25)}, [0, 6, 7]),
        ({"warmup": Epochs(1), "tail": Epochs(1)}, [0, 7]),
        ({"warmup": Epochs(0), "tail": Share(0.5)}, [4, 5, 6, 7]),
    ],
)
def test_everything_is_trained_on_while_warming_up_and_in_the_tail(arguments, whole):
    loader = ruled(Memory(keep=0.55, **arguments))
    lengths = [len(epoch_of(loader)) for _ in range(8)]
    assert lengths == [60 if epoch in whole else 33 for epoch in range(8)]


FEW_LEFT = torch.cat((torch.full((50,), 1e-3), torch.ones(10)))  # of which 0.25 are drawn


@pytest.mark.parametrize(
    ("epochs", "arguments", "whole"),
    [
        (4, {}, [0]),
        (5, {}, [0, 4]),
        (7, {}, [0, *range(4, 7)]),
        (16, {}, [0, *range(9, 16)]),
        (20, {}, [0, *range(9, 20)]),
        (20, {"warmup": Epochs(9)}, [*range(9), *range(11, 20)]),
        (4, {"tail": Share(0.45)}, [0, 3]),
        (12, {"tail": Epochs(0)}, [0]),
        (12, {"keep": 0.5}, [0]),
    ],
)
def test_a_share_that_follows_the_losses_has_a_tail_after_4_to_9_epochs(epochs, arguments, whole):
    rule = Memory(**{"warmup": Epochs(1)} | arguments)
    loader = ruled(rule, wrapped=plain(Numbered(FEW_LEFT)), epochs=epochs)
    lengths = [len(epoch_of(loader)) for _ in range(epochs)]
    assert [epoch for epoch, length in enumerate(lengths) if length == 60] == whole


def test_of_a_training_of_sixty_epochs_nothing_is_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="never selects in a training of epochs=60"):
        loader = ruled(Memory(), wrapped=plain(Numbered(FEW_LEFT)), epochs=60)
    assert {len(epoch_of(loader)) for _ in range(60)} == {60}


def test_a_schedule_of_the_loader_s_own_has_its_tail():
    schedule = Schedule(warmup=Epochs(1), tail=Share(0.45))
    loader = ruled(Memory(), wrapped=plain(Numbered(FEW_LEFT)), schedule=schedule)
    lengths = [len(epoch_of(loader)) for _ in range(8)]
    assert [epoch for epoch, length in enumerate(lengths) if length == 60] == [0, 5, 6, 7]


def test_a_fixed_share_has_no_tail_and_one_that_follows_needs_the_number_of_epochs():
    assert Memory(0.5).schedule.tail == Memory(beta=1).schedule.tail == Share(0.0)
    assert (
        Memory(0.5).schedule.tail_after == Memory(tail=Share(0.45)).schedule.tail_after == Epochs(0)
    )
    with pytest.raises(ConfigError, match="epochs= is missing: "):
        selective(plain(Numbered(FEW_LEFT)), memory=Memory(warmup=Epochs(1)))


def test_a_tail_as_asked_for_is_another_setting_than_the_default():
    for tail in (None, Share(0.45)):
        state = Memory(tail=tail).state_dict()
        other = Memory(tail=Share(0.45) if tail is None else None)
        with pytest.raises(StateError, match="tail="):
            other.load_state_dict(state)


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_an_examples_losses_are_averaged(decay):
    rule, expected = Memory(keep=0.5, warmup=Epochs(1), decay=decay), {}
    loader, generator = ruled(rule, 50), seeded(2)
    for _ in range(5):
        for batch in loader:
            losses = torch.rand(len(batch["number"]), generator=generator)
            loader.record(losses)
            for number, loss in zip(batch["number"].tolist(), losses.tolist(), strict=True):
                old = expected.get(number, loss)
                expected[number] = decay * old + (1 - decay) * loss
    means = torch.tensor([expected[number] for number in range(50)])
    torch.testing.assert_close(rule.table.scores(), means)


def test_a_loss_that_was_not_finite_is_forgotten_with_the_next():
    rule = Memory(decay=0.5)
    rule.grow(3)
    rule.update(torch.arange(2), torch.tensor([torch.inf, 1.0]), 0)
    rule.update(torch.arange(2), torch.tensor([2.0, 3.0]), 1)
    assert rule.table.scores()[:2].tolist() == [2.0, 2.0]
    assert rule.table.scores()[2].isnan()


def test_what_has_no_loss_yet_is_kept():
    rule = remembering(spread(50), keep=0.3)
    rule.table.values[:9] = torch.nan
    for seed in range(20):
        weights = rule.draw(1, seeded(seed))
        assert weights[:9].tolist() == [1.0] * 9
        assert int(weights.sum()) == 15


@pytest.mark.parametrize("losses", [torch.zeros(7), torch.zeros(8, 1), torch.zeros(8).long()])
def test_losses_to_remember_are_one_per_example(losses):
    loader = ruled(Memory(), 20)
    next(iter(loader))
    with pytest.raises(LossError):
        loader.record(losses)


def test_it_must_be_given_the_losses():
    loader = ruled(Memory(), 20)
    list(loader)
    with pytest.raises(ConfigError, match=r"Memory learns from training, and of 3 batches no"):
        list(loader)


REFUSED = {
    "keep and beta": (lambda: Memory(0.5, 1.0), "keep=0.5 and beta=1.0: give one of them"),
    "keep": (lambda: Memory(1.5), "keep=1.5"),
    "shards of a share that follows the losses": (
        lambda: Memory(shards=4),
        "shards=4 with a share that follows .* such as keep=0.5",
    ),
    "keep below the floor": (lambda: Memory(0.1), "keep=0.1 is not above floor=0.1"),
    "beta": (lambda: Memory(beta=-1), "beta=-1: give a finite number, at least 0"),
    "floor": (lambda: Memory(floor=1), r"floor=1: give a share in \[0, 1\)"),
    "warmup": (lambda: Memory(warmup=-1), "warmup=-1: give"),
    "tail": (lambda: Memory(tail=Share(1)), r"tail=Share\(1.0\) is the whole of training"),
    "decay": (lambda: Memory(decay=1), r"decay=1: give a share in \[0, 1\)"),
    "table": (lambda: Memory(table=ScoreTable(columns=2)), "remembers 1 numbers per example"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_empty_table_that_was_given_is_used(tmp_path):
    table = ScoreTable(path=tmp_path / "scores.table")
    assert Memory(table=table).table is table


def test_a_share_that_follows_the_losses_is_not_annealed():
    schedule = Schedule(warmup=Epochs(1), anneal=Annealing(until=Epochs(3)))
    selective(plain(Numbered(spread(40))), memory=Memory(0.5), epochs=4, schedule=schedule)
    with pytest.raises(ConfigError, match=r"Memory has no share .* Memory\(keep=0.5\)"):
        selective(plain(Numbered(spread(40))), memory=Memory(), epochs=4, schedule=schedule)


def test_a_state_of_another_share_is_refused():
    for keep in (0.2, None):
        with pytest.raises(StateError, match=f"keep=0.5, and this Memory has keep={keep}"):
            Memory(keep, tail=Epochs(0)).load_state_dict(Memory(0.5, tail=Epochs(0)).state_dict())
    with pytest.raises(StateError, match=r"keep=None, and this Memory has keep=0.5"):
        Memory(0.5).load_state_dict(Memory(tail=Share(0)).state_dict())
    annealed = Memory(0.5)
    annealed.set_keep(0.7)  # by a schedule, which sets it again
    Memory(0.5).load_state_dict(annealed.state_dict())


def in_lists(losses, size=8):
    numbers = torch.arange(len(losses))
    batches = [{"number": part, "loss": losses[part]} for part in numbers.split(size)]
    return Indexed(batches, index_of=lambda batch: batch["number"])


def streamed(losses):
    return torch.utils.data.DataLoader(Indexed(Streamed(losses)), 8)


@pytest.mark.parametrize("source", [in_lists, streamed])
def test_where_the_order_is_not_known_the_drawn_are_filtered_out(source):
    losses, rule = spread(90), Memory(0.3, warmup=Epochs(1))
    loader = ruled(rule, wrapped=source(losses))
    for epoch in range(4):
        numbers = epoch_of(loader)
        assert numbers == sorted(numbers)
        assert len(numbers) == (27 if epoch else 90)
        assert_same(rule.table.scores()[: len(losses)], losses)
    assert loader.stats.seen == 4 * 90
    assert loader.stats.considered == 3 * 90
    assert loader.stats.unread == 0


def test_an_epochs_examples_are_all_counted_where_a_short_batch_is_dropped():
    wrapped = plain(Numbered(spread(100)), drop_last=True)
    loader = selective(wrapped, memory=Memory(warmup=Epochs(1), tail=Epochs(0)), epochs=4)
    for epoch in range(4):
        epoch_of(loader)
        assert loader.stats.seen == 96 + 100 * epoch
        assert loader.epochs_done == epoch + 1
