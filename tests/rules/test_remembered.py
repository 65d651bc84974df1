"""Stale and Memory: whose loss is whose, who is read, and what it costs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from reference import shared_chance
from remembering import Numbered, Read, Streamed, epoch_of, indexed, selective, spread
from siftback import (
    ConfigError,
    Fresh,
    Indexed,
    LossError,
    Memory,
    Schedule,
    ScoreTable,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
)
from toys import CLASSES, FEATURES, assert_same, dataset, network, optimizer_of


class Counting(nn.Linear):
    """Counts the examples that it forwards."""

    def __init__(self):
        super().__init__(FEATURES, CLASSES)
        self.forwarded = 0

    def forward(self, inputs):
        self.forwarded += len(inputs)
        return super().forward(inputs)


def train(loader, model, epochs):
    """The loop of the documentation; gives batches, weights and indices of each epoch."""
    optimizer, trained = optimizer_of(model), []
    for _ in range(epochs):
        trained.append([])
        for inputs, targets in loader:
            losses = F.cross_entropy(model(inputs), targets, reduction="none")
            loader.remember(losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            trained[-1].append((inputs, targets, loader.weights))
    return trained


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("batch_size", [8, 5])
def test_a_pass_every_epoch_is_plain_selection_bit_for_bit(refresh, batch_size):
    def trained(wrap, **arguments):
        model, data = network(), dataset(150)
        wrapped = DataLoader(wrap(data), 8, sampler=SelectiveSampler(data, seed=4))
        loader = SelectiveLoader(
            wrapped, model, F.cross_entropy, keep=0.4, history=50, batch_size=batch_size,
            **arguments,
        )  # fmt: skip
        return train(loader, model, 3), model.state_dict(), loader.stats.scored

    stale = Stale(every=1, refresh_from_training=refresh)
    assert_same(trained(Indexed, scorer=stale), trained(lambda data: data))


@pytest.mark.parametrize("every", [2, 3, 5])
def test_an_epoch_between_passes_reads_and_forwards_the_chosen_alone(every):
    data, model = Read(dataset(300)), Counting()
    loader = SelectiveLoader(indexed(data), model, F.cross_entropy, keep=0.3, scorer=Stale(every))
    stats, unread = loader.stats, 0
    for epoch in range(2 * every):
        released, scored, trained = stats.released, stats.scored, []
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets)
            trained += loader.indices.tolist()
        reads = data.take_reads()
        assert len(trained) == stats.released - released
        assert 50 < len(trained) < 130
        if epoch % every == 0:
            assert sorted(reads) == list(range(300))
            assert stats.scored - scored == 300
        else:
            assert reads == trained  # these, in this order
            assert stats.scored == scored
            unread += 300 - len(reads)
    assert stats.scored == 2 * 300
    assert model.forwarded == stats.forwards == 600 + stats.released
    assert stats.seen == stats.considered == 2 * every * 300
    assert (stats.unread, stats.kept) == (unread, stats.released)
    assert loader.epochs_done == 2 * every


def test_the_table_holds_each_examples_own_loss_whatever_the_order():
    losses = spread(500)
    tables = []
    for shuffle in (True, False):
        table = ScoreTable()
        wrapped = indexed(Numbered(losses), 16, shuffle=shuffle)
        loader = selective(wrapped, keep=0.3, scorer=Stale(3, table=table), batch_size=7)
        epoch_of(loader)
        assert_same(table.scores(), losses)
        assert table.counts().tolist() == [1] * 500
        tables.append(table)
    # The same examples under other numbers have the same losses, under those numbers.
    order = torch.randperm(500, generator=torch.Generator().manual_seed(9))
    permuted = ScoreTable()
    epoch_of(selective(indexed(Numbered(losses[order])), keep=0.3, scorer=Stale(table=permuted)))
    assert_same(permuted.scores(), tables[0].scores()[order])


def test_a_draw_takes_examples_by_their_own_losses():
    losses = spread(2000)
    loader = selective(indexed(Numbered(losses), 100), beta=8, scorer=Stale(2))
    epoch_of(loader)
    drawn = losses[epoch_of(loader)]
    ranks = (losses < drawn[:, None]).float().mean(1)
    # E[u * u^8] / E[u^8] = 9/10, with a variance of 9/11 - 81/100 over about 222 examples
    assert abs(float(ranks.mean()) - 0.9) < 4 * (9 / 11 - 0.81) ** 0.5 / 222**0.5


@pytest.mark.parametrize("refresh", [False, True])
def test_training_refreshes_the_table_where_it_is_asked_to(refresh):
    losses, table = spread(200), ScoreTable()
    scorer = Stale(3, refresh_from_training=refresh, table=table)
    loader, refreshed = selective(indexed(Numbered(losses)), keep=0.5, scorer=scorer), set()
    for epoch in range(3):
        numbers = epoch_of(loader, lambda _, batch: batch["loss"] + 10)
        refreshed |= set(numbers)
        expected = losses.clone()
        if refresh:
            expected[list(refreshed)] += 10
        assert_same(table.scores(), expected)
        assert (table.ages(epoch)[numbers] == 0).all() == (refresh or epoch == 0)


def test_the_last_batch_of_an_epoch_is_of_that_epoch():
    table = ScoreTable()
    loader = selective(
        indexed(Numbered(spread(20))), losses=None, scorer=Memory(warmup=3, table=table)
    )
    for epoch in range(3):
        epoch_of(loader)
        assert table.ages(epoch + 5).tolist() == [5] * 20


def test_a_score_that_was_never_made_is_kept():
    table = ScoreTable(50)
    scorer = Stale(3, table=table)
    loader = selective(indexed(Numbered(spread(50))), keep=0.2, scorer=scorer)
    epoch_of(loader)
    table.load_state_dict({"rows": table.state_dict()["rows"].index_fill(0, torch.arange(9), 0)})
    assert set(range(9)) <= set(epoch_of(loader))


def test_draws_leave_the_history_of_passes_as_it_was():
    loader = selective(indexed(Numbered(spread(60))), keep=0.5, scorer=Stale(3))
    epoch_of(loader)
    history = loader.selector.state_dict()
    epoch_of(loader)
    assert_same(loader.selector.state_dict(), history)


def test_off_schedule_all_is_read_and_passed_through():
    data = Read(Numbered(spread(40)))
    schedule = Schedule(warmup=1, end=3)
    loader = selective(indexed(data), keep=0.3, scorer=Stale(2), schedule=schedule)
    scored = []
    for epoch in range(5):
        numbers = epoch_of(loader)
        assert (sorted(numbers) == list(range(40))) == (epoch in (0, 3, 4))
        assert (len(data.take_reads()) < 40) == (epoch == 2)
        scored.append(loader.stats.scored)
    assert scored == [0, 40, 40, 40, 40]


def chance_counts(loader, examples, epochs):
    counts = torch.zeros(examples)
    for _ in range(epochs):
        counts[epoch_of(loader)] += 1
    return counts


@pytest.mark.parametrize(("beta", "floor"), [(1.0, 0.1), (2.0, 0.0), (0.5, 0.3), (3.0, 0.05)])
def test_memory_draws_by_percentile_to_the_power_of_beta_with_a_floor(beta, floor):
    losses, epochs = spread(30), 1500
    batch = [{"number": torch.arange(30), "loss": losses}]
    scorer = Memory(beta, floor, warmup=2)
    loader = selective(batch, losses=None, scorer=scorer, index_of=lambda batch: batch["number"])
    assert chance_counts(loader, 30, 2).tolist() == [2] * 30
    shares = chance_counts(loader, 30, epochs) / epochs
    for loss, share in zip(losses.tolist(), shares.tolist(), strict=True):
        chance = floor + (1 - floor) * shared_chance(losses.tolist(), loss, beta)
        assert abs(share - chance) < 4.5 * (chance * (1 - chance) / epochs) ** 0.5 + 1e-9
    assert loader.stats.scored == 0


def test_memory_never_forwards_but_to_train():
    data, model = Read(dataset(300)), Counting()
    loader = SelectiveLoader(indexed(data), model, scorer=Memory(warmup=1))
    trained = train(loader, model, 5)
    examples = [sum(len(inputs) for inputs, _, _ in epoch) for epoch in trained]
    assert examples[0] == 300
    assert all(120 < count < 210 for count in examples[1:])  # 0.1 + 0.9 / 2 in the mean
    assert model.forwarded == sum(examples) == loader.stats.forwards == len(data.reads)
    assert (loader.stats.scored, loader.stats.seen) == (0, 1500)
    assert all(len(inputs) == 8 for epoch in trained for inputs, _, _ in epoch[:-1])


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ({"warmup": 2}, [0, 1]),
        ({"warmup": 0.25}, [0, 1]),
        ({"warmup": 1, "tail": 0.25}, [0, 6, 7]),
        ({"warmup": 0, "tail": 0.5}, [0, 4, 5, 6, 7]),  # nothing is known before the first
    ],
)
def test_memory_trains_on_everything_while_warming_up_and_in_the_tail(arguments, whole):
    loader = selective(
        indexed(Numbered(spread(60))), losses=None, scorer=Memory(**arguments), epochs=8
    )
    lengths = [len(epoch_of(loader)) for _ in range(8)]
    assert [epoch for epoch, length in enumerate(lengths) if length == 60] == whole


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_memory_averages_an_examples_losses(decay):
    table, expected = ScoreTable(), {}
    scorer = Memory(warmup=1, decay=decay, table=table)
    loader = selective(indexed(Numbered(spread(50))), losses=None, scorer=scorer)
    generator = torch.Generator().manual_seed(2)
    for epoch in range(5):
        for batch in loader:
            losses = torch.rand(len(batch["number"]), generator=generator)
            if epoch == 1:
                losses[0] = torch.inf  # forgotten with the next
            loader.remember(losses)
            for number, loss in zip(batch["number"].tolist(), losses.tolist(), strict=True):
                old = expected.get(number, torch.inf)
                known = old != torch.inf
                expected[number] = decay * old + (1 - decay) * loss if known else loss
    means = torch.tensor([expected[number] for number in range(50)])
    torch.testing.assert_close(table.scores(), means)


def test_memory_takes_its_share_from_the_loader_where_that_is_told_one():
    scorer = Memory(warmup=1, floor=0.2)
    loader = selective(indexed(Numbered(spread(900))), losses=None, scorer=scorer, keep=0.4)
    assert (loader.selector.keep, loader.selector.floor) == (0.4, 0.2)
    epoch_of(loader)
    assert abs(len(epoch_of(loader)) - 360) < 4 * (900 * 0.24) ** 0.5


@pytest.mark.parametrize("scorer", [Memory(), Stale(refresh_from_training=True)])
def test_who_learns_from_training_must_be_told_its_losses(scorer):
    wrapped = indexed(Numbered(spread(20)))
    loader = selective(wrapped, keep=0.5, scorer=scorer, epochs=9)
    with pytest.raises(ConfigError, match=r"was not told its losses: call loader.remember"):
        list(loader)


@pytest.mark.parametrize("losses", [torch.zeros(7), torch.zeros(8, 1), torch.zeros(8).long()])
def test_losses_to_remember_are_one_an_example(losses):
    loader = selective(indexed(Numbered(spread(20))), losses=None, scorer=Memory(), epochs=9)
    next(iter(loader))
    with pytest.raises(LossError, match=r"losses to remember are torch.* give .* float\[8\]"):
        loader.remember(losses)


def test_to_others_what_is_remembered_means_nothing():
    loader = SelectiveLoader([dataset(8).tensors], network(), F.cross_entropy, keep=1)
    next(iter(loader))
    loader.remember(torch.zeros(8))


REFUSED = {
    "every": (lambda: Stale(every=0), "every=0: give a whole number of epochs, at least 1"),
    "nested": (lambda: Stale(scorer=Memory()), "Memory remembers scores itself: give Stale a"),
    "beta": (lambda: Memory(beta=-1), "beta=-1 is no exponent"),
    "floor": (lambda: Memory(floor=1), "floor=1: give a chance"),
    "warmup": (lambda: Memory(warmup=-1), "warmup=-1: give"),
    "tail": (lambda: Memory(tail=1.0), "tail=1.0: give a share of training"),
    "decay": (lambda: Memory(decay=1), "decay=1: give a number in"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("make", [Stale, Memory])
def test_an_empty_table_that_was_given_is_used(make, tmp_path):
    table = ScoreTable(path=tmp_path / "scores.table")
    assert make(table=table).table is table


def in_lists(losses, size=8):
    numbers = torch.arange(len(losses))
    return [{"number": part, "loss": losses[part]} for part in numbers.split(size)]


def streamed(losses, **options):
    return DataLoader(Indexed(Streamed(losses)), 8, **options)


FILTERED = {
    "list": (in_lists, {"index_of": lambda batch: batch["number"]}),
    "stream": (streamed, {}),
}


@pytest.mark.parametrize(("source", "arguments"), FILTERED.values(), ids=FILTERED)
def test_where_no_order_can_be_told_the_drawn_are_filtered_out(source, arguments):
    losses, table = spread(90), ScoreTable()
    loader = selective(source(losses), keep=0.3, scorer=Stale(3, table=table), **arguments)
    for epoch in range(6):
        numbers = epoch_of(loader)
        assert numbers == sorted(numbers)
        assert 8 < len(numbers) < 50
        assert loader.stats.scored == 90 * (epoch // 3 + 1)
        assert_same(table.scores(), losses)
    assert loader.stats.seen == loader.stats.considered == 6 * 90
    assert loader.stats.unread == 0


def test_the_inner_scorer_makes_the_passes():
    class Negative(Fresh):
        def score(self, losses, model, batch):
            return -super().score(losses, model, batch)

    losses, table = spread(60), ScoreTable()
    scorer = Stale(2, scorer=Negative(), table=table)
    loader = selective(indexed(Numbered(losses)), beta=4, scorer=scorer)
    for _ in range(2):
        assert losses[epoch_of(loader)].mean() < losses.mean()
    assert_same(table.scores(), -losses)


def test_what_a_pass_did_not_score_keeps_its_old_score():
    losses, table = spread(400), ScoreTable()
    scorer = Stale(2, table=table)
    loader = selective(indexed(Numbered(losses)), keep=0.5, scorer=scorer, score_share=0.5)
    epoch_of(loader)
    known = ~table.scores().isnan()
    assert int(known.sum()) == loader.stats.scored == 200
    assert_same(table.scores()[known], losses[known])
    assert set((~known).nonzero().squeeze(1).tolist()) <= set(epoch_of(loader))


def test_an_epochs_examples_are_all_counted_where_a_short_batch_is_dropped():
    wrapped = indexed(Numbered(spread(100)), drop_last=True)
    loader = selective(wrapped, losses=None, scorer=Memory(warmup=1))
    for epoch in range(4):
        epoch_of(loader)
        assert loader.stats.seen == 96 + 100 * epoch
        assert loader.epochs_done == epoch + 1
