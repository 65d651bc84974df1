"""Statistics as they are shown in a terminal and a notebook, and as loggers take them."""

from html.parser import HTMLParser

import pytest
import torch
from torch.nn import functional as F

import siftback
from siftback import Memory, SelectiveLoader, SinglePassStats, Stats
from toys import dataset, network, shuffled


@pytest.fixture(scope="module")
def stats():
    """Of a training with memory: 4 epochs of 44 examples, an epoch of them whole."""
    loader = SelectiveLoader(shuffled(), memory=Memory(keep=0.5), epochs=4, shorter_epochs=True)
    model = network()
    for _ in range(4):
        for x, y in loader:
            loader.loss(F.cross_entropy(model(x), y, reduction="none")).backward()
    return loader.stats


class Cells(HTMLParser):
    """The cells of a table, row by row."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.tags = [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.tags.remove(tag)

    def handle_data(self, data):
        if self.rows:
            self.rows[-1][-1] += data


def test_a_terminal_shows_what_selection_did_and_what_it_cost(stats):
    assert print_of(stats) == {
        "seen": "176",
        "kept": "66 50% of the 132 that were decided on",
        "unread": "66 left out before they were read",
        "forwards": "110",
        "backwards": "110",
        "cost": "330 62% of the 528 of training on all seen (a forward is 1, a backward 2)",
        "selection": f"{stats.seconds_selection:.1f} s",
    }
    _, *lines = str(stats).splitlines()
    ends = {line.index(number) + len(number) for line in lines for number in [line.split()[1]]}
    assert len(ends) <= 2, "numbers are aligned at their right"  # seconds have a unit behind


def print_of(stats):
    head, *lines = str(stats).splitlines()
    assert head == f"{type(stats).__name__}, in examples:"
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}


def test_a_notebook_shows_the_same_as_a_table(stats):
    cells = Cells(stats._repr_html_())
    assert cells.tags == [], "each element is closed"
    of_notebook = {name: f"{number} {remark}".strip() for name, number, remark in cells.rows}
    assert of_notebook == print_of(stats)


def test_a_loader_that_kept_all_costs_what_plain_training_does():
    stats = Stats(seen=1000, released=1000)
    assert (stats.cost, stats.cost_share, stats.kept_share) == (3000, 1.0, 1.0)
    assert print_of(stats)["kept"] == "0 none was decided on"
    assert Stats().cost_share == 1.0
    assert "cost" not in print_of(Stats()), "of nothing there is no share"


def test_a_scoring_pass_is_a_forward_more():
    stats = Stats(seen=900, considered=900, kept=300, scored=900, released=300)
    assert stats.cost == 900 + 3 * 300
    assert print_of(stats)["scored"].startswith("900 ")
    assert print_of(stats)["cost"].startswith("1,800 67% of the 2,700 of training on all seen")


def test_those_of_a_single_pass_are_shown_alike():
    sift = siftback.SinglePass(network(), F.cross_entropy, keep=1 / 2)
    x, y = dataset(32)[:]
    sift(x, y).backward()
    assert isinstance(sift.stats, SinglePassStats)
    shown = print_of(sift.stats)
    assert (shown["seen"], shown["forwards"], shown["backwards"]) == ("32", "32", "16")
    assert shown["cost"].startswith("64 67% of the 96 of training on all seen")
    assert shown["compiling"].endswith("s once")
    assert sift.stats.as_dict()["sift/compilations"] == 1.0


def test_loggers_get_one_flat_dict_of_floats(stats):
    logged = stats.as_dict()
    assert all(type(value) is float for value in logged.values())
    assert all(name.startswith("sift/") for name in logged)
    assert logged["sift/seen"] == 176
    assert logged["sift/kept_share"] == 0.5
    assert logged["sift/cost_share"] == 330 / 528
    fields = {f"sift/{name}" for name in vars(stats)}
    derived = {"kept_share", "forwards", "backwards", "cost", "cost_share"}
    assert logged.keys() == fields | {f"sift/{name}" for name in derived}
    assert stats.as_dict(prefix="train_")["train_cost"] == 330


def test_integrations_log_five_entries_of_either_kind(stats):
    logged = stats.log_entries(share=0.3)
    assert all(type(value) is float for value in logged.values())
    assert logged["sift/kept_share"] == stats.kept_share == 0.5
    assert logged["sift/backwards"] == stats.backwards
    assert logged["sift/left_out"] == stats.left_out == stats.considered - stats.kept > 0
    assert logged["sift/seconds_selection"] == stats.seconds_selection
    assert logged["sift/share"] == 0.3
    single = SinglePassStats(seen=100, considered=60, kept=20).log_entries(share=1.0)
    assert single.keys() == logged.keys()
    assert (single["sift/backwards"], single["sift/left_out"]) == (60.0, 40.0)
    assert Stats().log_entries(1.0)["sift/kept_share"] == 1.0, "before any was considered"


@pytest.mark.filterwarnings("ignore")  # of the package and of what it brings
def test_tensorboard_gets_them_in_one_line(stats, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        stats.to_tensorboard(writer, 7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert {name: event.step for name, [event] in found.items()} == dict.fromkeys(found, 7)
    values = {name: event.value for name, [event] in found.items()}
    assert values == pytest.approx(stats.as_dict())


def test_they_are_saved_and_compared_as_before(stats, tmp_path):
    torch.save(vars(stats), tmp_path / "stats.pt")
    assert Stats(**torch.load(tmp_path / "stats.pt", weights_only=True)) == stats
