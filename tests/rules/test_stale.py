"""Stale: passes every n-th epoch, and draws by their losses in between."""

import pytest
import torch
from torch.nn import functional as F

from remembering import Counting, Numbered, Read, epoch_of, plain, ruled, selective, spread
from siftback import Fresh, Schedule, SelectiveLoader, SelectiveSampler
from siftback.contrib.ewma import Ewma
from siftback.errors import ConfigError
from siftback.rules.memory import Memory
from siftback.rules.stale import Stale
from siftback.schedule import Epochs
from siftback.tables.score_table import ScoreTable
from toys import assert_same, at_once, dataset, network, optimizer_of


def train(loader, model, epochs):
    """The loop of the documentation; gives batches and weights of each epoch."""
    optimizer, trained = optimizer_of(model), []
    for _ in range(epochs):
        trained.append([])
        for inputs, targets in loader:
            loss = loader.loss(F.cross_entropy(model(inputs), targets, reduction="none"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trained[-1].append((inputs, targets))
    return trained


@pytest.mark.parametrize("rule", [Stale, Ewma])
def test_a_pass_every_epoch_is_plain_selection_bit_for_bit(rule):
    def trained(**arguments):
        model, data = network(), dataset(150)
        wrapped = plain(data, shuffle=False, sampler=SelectiveSampler(data, seed=4))
        loader = SelectiveLoader(wrapped, model, F.cross_entropy, epochs=3, **at_once(arguments))
        return train(loader, model, 3), model.state_dict(), loader.stats.scored

    assert_same(trained(memory=rule(0.4, every=1, warmup=Epochs(0))), trained(keep=0.4))


class Following(Fresh):
    """Counts the steps that it follows."""

    steps = 0

    def after_step(self, losses, model, batch):
        self.steps += 1


def test_a_scorer_follows_each_step_between_passes_too():
    model, scorer = network(), Following()
    memory = Stale(0.4, every=2, scorer=scorer, warmup=Epochs(0))
    loader = SelectiveLoader(
        plain(dataset(150)), model, F.cross_entropy, memory=memory, epochs=4, shorter_epochs=True
    )
    trained = train(loader, model, 4)
    assert scorer.steps == sum(map(len, trained))


@pytest.mark.parametrize("every", [2, 3, 5])
def test_an_epoch_between_passes_reads_and_forwards_the_chosen_alone(every):
    data, model = Read(dataset(300)), Counting()
    loader = SelectiveLoader(
        plain(data),
        model,
        F.cross_entropy,
        memory=Stale(0.3, every=every, warmup=Epochs(0)),
        epochs=2 * every,
        shorter_epochs=True,
    )
    stats, unread = loader.stats, 0
    for epoch in range(2 * every):
        released, scored, trained = stats.released, stats.scored, []
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets)
            trained += loader.indices.tolist()
        reads = data.take_reads()
        assert len(trained) == stats.released - released
        if epoch % every == 0:
            assert 50 < len(trained) < 130
            assert sorted(reads) == list(range(300))
            assert stats.scored - scored == 300
        else:
            assert len(trained) == 90
            assert reads == trained  # these, in this order
            assert stats.scored == scored
            unread += 300 - len(reads)
    assert stats.scored == 2 * 300
    assert model.forwarded == stats.forwards == 600 + stats.released
    assert stats.seen == stats.considered == 2 * every * 300
    assert (stats.unread, stats.kept) == (unread, stats.released)
    assert loader.epochs_done == 2 * every


def test_passes_are_the_first_epoch_and_every_nth_after_it():
    rule = Stale(0.5, every=3, warmup=Epochs(0))
    rule.grow(4)
    passes = []
    for epoch in range(2, 12):
        passes.append(rule.is_pass(epoch))
        if passes[-1]:
            rule.rescore(torch.arange(4), torch.rand(4), epoch)
            assert rule.is_pass(epoch)  # still within it
            assert rule.last_pass == epoch
    assert passes == [True, False, False] * 3 + [True]


def test_the_table_holds_each_examples_own_score_whatever_the_order():
    losses = spread(500)
    tables = []
    for shuffle in (True, False):
        rule = Stale(0.3, warmup=Epochs(0))
        epoch_of(ruled(rule, wrapped=plain(Numbered(losses), 16, shuffle=shuffle)))
        assert_same(rule.table.scores(), losses)
        tables.append(rule.table.scores())
    # The same examples under other numbers have the same losses, under those numbers.
    order = torch.randperm(500, generator=torch.Generator().manual_seed(9))
    permuted = Stale(0.3, warmup=Epochs(0))
    epoch_of(ruled(permuted, wrapped=plain(Numbered(losses[order]))))
    assert_same(permuted.table.scores(), tables[0][order])


def test_a_draw_takes_examples_by_their_own_losses():
    losses = spread(2000)
    loader = ruled(Stale(beta=8, every=2, warmup=Epochs(0)), wrapped=plain(Numbered(losses), 100))
    epoch_of(loader)
    drawn = losses[epoch_of(loader)]
    assert len(drawn) == 222
    ranks = (losses < drawn[:, None]).float().mean(1)
    # E[u * u^8] / E[u^8] = 9/10, with a variance of 9/11 - 81/100 over the 222 examples
    assert abs(float(ranks.mean()) - 0.9) < 4 * (9 / 11 - 0.81) ** 0.5 / 222**0.5


@pytest.mark.parametrize(
    ("rule", "refreshed"),
    [(Stale(0.5, warmup=Epochs(0)), False), (Ewma(0.5, decay=0, warmup=Epochs(0)), True)],
    ids=["stale", "refreshed by training"],
)
def test_training_refreshes_the_table_of_a_rule_that_learns_from_it(rule, refreshed):
    losses, seen = spread(200), set()
    loader = ruled(rule, wrapped=plain(Numbered(losses)))
    for _ in range(3):
        seen |= set(epoch_of(loader, lambda _, batch: batch["loss"] + 10))
        expected = losses.clone()
        if refreshed:
            expected[list(seen)] += 10
        assert_same(rule.table.scores(), expected)


def test_a_score_that_was_never_made_is_kept():
    rule = Stale(0.3, warmup=Epochs(0))
    loader = ruled(rule, 50)
    epoch_of(loader)
    rule.table.values[:9] = torch.nan
    numbers = epoch_of(loader)
    assert set(range(9)) <= set(numbers)
    assert len(numbers) == 15


def test_a_score_that_is_not_finite_is_unknown_or_the_highest():
    rule = Stale(0.5, warmup=Epochs(0))
    rule.grow(4)
    rule.rescore(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), 0)
    rule.rescore(torch.arange(4), torch.tensor([torch.nan, torch.inf, 0.5, 0.5]), 3)
    assert rule.table.scores().tolist() == [1.0, torch.inf, 0.5, 0.5]
    weights = torch.stack([rule.draw(4, torch.Generator().manual_seed(n)) for n in range(200)])
    assert weights.mean(0).argmax() == 1


def test_draws_leave_the_history_of_passes_as_it_was():
    rule = Stale(0.5, warmup=Epochs(0))
    loader = ruled(rule)
    epoch_of(loader)
    history = rule.selector.state_dict()
    epoch_of(loader)
    assert_same(rule.selector.state_dict(), history)


def test_off_schedule_all_is_read_and_passed_through():
    data = Read(Numbered(spread(40)))
    schedule = Schedule(warmup=Epochs(1), end=Epochs(3))
    loader = ruled(Stale(0.3, every=2, warmup=Epochs(0)), wrapped=plain(data), schedule=schedule)
    scored = []
    for epoch in range(5):
        numbers = epoch_of(loader)
        assert (sorted(numbers) == list(range(40))) == (epoch in (0, 3, 4))
        assert (len(data.take_reads()) < 40) == (epoch == 2)
        scored.append(loader.stats.scored)
    assert scored == [0, 40, 40, 40, 40]


def test_the_scorer_given_makes_the_passes():
    class Negative(Fresh):
        def score(self, losses, model, batch, indices):
            return -super().score(losses, model, batch, indices)

    losses, rule = spread(60), Stale(beta=4, every=2, scorer=Negative(), warmup=Epochs(0))
    loader = ruled(rule, wrapped=plain(Numbered(losses)))
    for _ in range(2):
        assert losses[epoch_of(loader)].mean() < losses.mean()
    assert_same(rule.table.scores(), -losses)


def test_it_needs_no_losses_of_training_and_needs_a_model():
    loader = ruled(Stale(0.5, every=2, warmup=Epochs(0)), 20)
    for _ in range(4):
        list(loader)
    with pytest.raises(ConfigError, match="model"):
        selective(
            plain(Numbered(spread(20))),
            model=None,
            losses=None,
            memory=Stale(0.5, warmup=Epochs(0)),
        )


REFUSED = {
    "every": (
        lambda: Stale(0.5, every=0, warmup=Epochs(0)),
        "every=0: give an integer, at least 1",
    ),
    "neither": (lambda: Stale(warmup=Epochs(0)), "keep=None and beta=None: give one of them"),
    "both": (lambda: Stale(0.5, 1.0, warmup=Epochs(0)), "keep=0.5 and beta=1.0: give one of them"),
    "a rule": (
        lambda: Stale(0.5, scorer=Memory(), warmup=Epochs(0)),
        "is a rule: give Stale a scorer",
    ),
    "table": (
        lambda: Ewma(0.5, table=ScoreTable(), warmup=Epochs(0)),
        "Ewma remembers 2 numbers per example",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
