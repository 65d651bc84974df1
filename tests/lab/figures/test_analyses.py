"""Each analysis on records whose answer is known."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.experiments.example_scores import Scores
from siftback.lab.figures.analyses import ANALYSES, WORDS, analyse
from siftback.lab.figures.curves import frontier
from siftback.lab.figures.figure import Figure, Gallery, Grid, Missing
from siftback.lab.figures.reading import read
from siftback.lab.records.frame import Range
from written_records import add, add_look, comparison

SB = "SelectiveLoader(..., keep=0.5)"


@pytest.fixture
def made(tmp_path):
    return comparison(tmp_path / "abacus")


def series_of(figure, view=None, panel=0):
    views = figure.views
    shown = views[view or next(iter(views))][panel]
    return {one.label: one for one in shown.series}


def test_an_analysis_that_fails_says_why_under_its_title(made):
    add(made, "traditional", [(9, 1, 300, 10)], epochs=0)
    (found,) = analyse([made], ["ideal"]).values()
    assert isinstance(found, Missing)
    assert found.title == WORDS["ideal"]["title"]
    assert "ZeroDivisionError" in found.why


def test_names_are_those_of_the_library(made):
    phases = [{"phases": {"forward": 1.0, "backward": 2.0}, "agreement": 0.5}] * 2
    add(made, "traditional", [(9, 1, 100, 20), (18, 2, 200, 10)], each=phases)
    for name in ("sb-memory-default", "sb-memory", "sb", "infobatch", "stale-sb"):
        add(made, name, [(5, 1, 50, 20), (9, 2, 100, 10)], keep=0.5, each=phases)
        add(made, "matched", [(9, 1, 100, 15)], keep=0.5, matched_to=name)
    add(made, "sb", [(5, 1, 50, 20), (9, 2, 100, 10)], keep=0.25, each=phases)
    texts, of_records = [], ("sb-memory", "sb 0.", "infobatch", "stale-sb", "raditional")
    for analysis in analyse([made]).values():
        if isinstance(analysis, Figure):
            panels = [panel for panels in analysis.views.values() for panel in panels]
            series = [line for panel in panels for line in panel.series]
            names = [name for panel in panels for name in panel.names]
            texts += [panel.title + panel.x_label + panel.y_label for panel in panels]
            texts += [analysis.alt, *(line.label for line in series), *names]
        if isinstance(analysis, Grid):
            texts += [
                analysis.alt,
                *analysis.columns,
                *(str(cell) for row in analysis.rows for cell in row),
            ]
    assert any("InfoBatch(ratio=0.5)" in text for text in texts)
    assert [text for text in texts if any(name in text for name in of_records)] == []


def test_each_says_what_to_record_where_there_is_nothing():
    for name, found in analyse([]).items():
        assert isinstance(found, Missing), name
        assert found.name == name
        assert "siftback compare" in found.why or "siftback run" in found.why


def test_error_over_steps_time_and_cost(made):
    for seed in (0, 1):
        add(made, "traditional", [(10, 4, 100, 30), (20 + seed, 8, 200, 10 + 2 * seed)], seed)
        add(made, "sb", [(6, 2, 50, 40), (12, 4, 100, 12)], seed, keep=0.5)
    steps, time = ANALYSES["fig6"]([made]), ANALYSES["fig7"]([made])
    assert list(steps.views) == ["steps", "time", "cost"]
    assert list(time.views) == ["time", "steps", "cost"]
    plain = series_of(steps)["plain training"]
    assert (plain.x, plain.y) == ([4, 8], [30, 11])
    assert (plain.low, plain.high) == ([30, 10], [30, 12])
    assert series_of(time)["plain training"].x == [10, 20.5]
    assert series_of(steps, "cost")[SB].x == [50, 100]
    assert steps.sentence == (
        f"cnn-8 on digits: {SB} ends at 12.00 %, plain training at 11.00 %, with 0.50 of its steps."
    )
    assert "with 0.59 of its seconds" in time.sentence
    assert steps.alt.startswith("Test error over training iterations. cnn-8 on digits:")


def test_time_to_error_is_interpolated(made):
    phases = [
        {"phases": {"forward": 4.0, "backward": 6.0}},
        {"phases": {"forward": 8.0, "backward": 12.0}},
    ]
    selective = [
        {"phases": {"selection": 2.0, "forward": 1.0, "backward": 1.0}},
        {"phases": {"selection": 4.0, "forward": 2.0, "backward": 4.0}},
    ]
    add(made, "traditional", [(10, 1, 100, 20), (20, 2, 200, 10)], each=phases)
    add(made, "sb", [(4, 1, 50, 20), (10, 2, 100, 10)], keep=0.5, each=selective)
    add(made, "random", [(4, 1, 50, 20), (10, 2, 100, 15)], keep=0.5, each=selective)
    # 1.2 times 10 is 0.8 of the way from 20 to 10, and 1.4 times 0.6 of it.
    near, nearby = ANALYSES["fig1"]([made]), ANALYSES["fig10"]([made])
    assert series_of(near)["backward"].y == pytest.approx([10.8, 3.4])
    assert series_of(nearby)["forward"].y == pytest.approx([6.4, 1.6])
    assert series_of(nearby)["selection, its forwards among it"].y == pytest.approx([0, 3.2])
    assert series_of(near)["backward"].x == ["plain training", SB]
    assert near.sentence == (
        f"cnn-8 on digits: {SB} took 8.8 s, 39% of it backward, and plain training 18.0 s, 60% of "
        "it backward. Not reached in every seed: Uniform(keep=0.5)."
    )
    table = ANALYSES["table1"]([made])
    assert isinstance(table, Grid)
    (sb, random) = table.rows
    # Plain training needs 19 s for an error of 11, sb 9.4 s; 18 and 8.8 for 12; 16 and 7.6 for 14.
    assert [cell.median for cell in sb[4:7]] == pytest.approx([19 / 9.4, 18 / 8.8, 16 / 7.6])
    assert [cell.median for cell in sb[7:]] == pytest.approx([190 / 95, 180 / 90, 160 / 80])
    assert random[4:] == [None] * 6
    assert table.sentence == (
        f"cnn-8 on digits: {SB} reaches 1.1 times the final error of plain training at "
        "1/2.00 of its cost."
    )


def test_table_1_is_the_median_over_the_seeds(made):
    for seed, seconds in enumerate((2.0, 5.0, 4.0)):
        add(made, "traditional", [(10, 1, 100, 10)], seed)
        add(made, "sb", [(seconds, 1, 50, 10)], seed, keep=0.5)
    (row,) = ANALYSES["table1"]([made]).rows
    assert row[4] == Range(2.5, 2.0, 5.0)
    assert row[2:4] == ["3", 10.0]


def test_staleness_has_each_interval(made):
    add(made, "traditional", [(9, 1, 300, 10)])
    assert isinstance(ANALYSES["fig11"]([made]), Missing)
    add(made, "sb", [(9, 1, 300, 10)], keep=0.5, examples_forwarded=4_000_000)
    add(made, "stale-sb-2", [(9, 1, 300, 11)], keep=0.5, examples_forwarded=3_000_000)
    add(made, "random", [(9, 1, 300, 11)], keep=0.5)
    figure = ANALYSES["fig11"]([made])
    assert list(series_of(figure)) == [
        "plain training",
        SB,
        "Stale(keep=0.5, every=2)",
    ]
    forwards = series_of(figure, panel=1)
    stale = forwards["Stale(keep=0.5, every=2)"]
    assert (stale.x, stale.y) == ([3_000_000], [11])
    assert (
        "SelectiveLoader(..., keep=0.5) 4 M forwards and 10.00 %; Stale(keep=0.5, every=2) 3 M"
        in figure.sentence
    )


def test_label_noise_goes_from_clean_to_noisy(tmp_path):
    runs = []
    for share in (0.2, 0.0, 0.1):
        one = comparison(tmp_path / f"flip{share}", flip=share)
        add(one, "traditional", [(9, 1, 300, 10)])
        runs.append(one)
    other = comparison(tmp_path / "other")
    add(other, "traditional", [(9, 1, 300, 10)], data="mnist")
    figure = ANALYSES["fig12"]([*runs, other])
    assert [panel.title for panel in figure.views["time"]] == [
        "cnn-8 on digits",
        "cnn-8 on digits, 10% of the labels wrong",
        "cnn-8 on digits, 20% of the labels wrong",
    ]
    assert isinstance(ANALYSES["fig12"]([runs[1], other]), Missing)


def test_selectivity_takes_the_strategy_at_several_shares(made):
    add(made, "traditional", [(9, 1, 300, 10)])
    add(made, "sb", [(9, 1, 300, 11)], keep=0.5)
    add(made, "random", [(9, 1, 300, 11)], keep=0.5)
    assert isinstance(ANALYSES["fig13"]([made]), Missing)
    add(made, "sb", [(9, 1, 300, 12)], keep=0.25)
    figure = ANALYSES["fig13"]([made])
    assert list(series_of(figure)) == [
        "plain training",
        SB,
        "SelectiveLoader(..., keep=0.25)",
    ]
    assert figure.sentence == (
        "cnn-8 on digits, final error of SelectiveLoader(..., keep=s): 0.25 kept 12.00 %, 0.5 kept "
        "11.00 %; plain training 10.00 %."
    )


def test_a_sweep_over_shares_is_one_panel(tmp_path):
    cells = []
    for keep in (0.5, 0.25):
        cells.append(comparison(tmp_path / f"keep={keep}", keeps=[keep]))
        add(cells[-1], "traditional", [(9, 1, 300, 10)])
        add(cells[-1], "sb", [(9, 1, 300, 12)], keep=keep)
    other = comparison(tmp_path / "other", lr=0.2)
    add(other, "sb", [(9, 1, 300, 12)], keep=0.1)
    figure = ANALYSES["fig13"]([*cells, other])
    assert list(series_of(figure)) == [
        "plain training",
        SB,
        "SelectiveLoader(..., keep=0.25)",
    ]


@pytest.mark.parametrize(("name", "differs"), [("fig16", "model"), ("fig17", "rate")])
def test_what_differs_has_a_panel_each(tmp_path, name, differs):
    runs = []
    for number, value in enumerate(("one", "two")):
        arguments = {"rate": value} if differs == "rate" else {}
        one = comparison(tmp_path / str(number), **arguments)
        add(one, "traditional", [(9, 1, 300, 10)], model=value if differs == "model" else "cnn-8")
        runs.append(one)
    assert isinstance(ANALYSES[name](runs[:1]), Missing)
    titles = [panel.title for panel in ANALYSES[name](runs).views["time"]]
    if differs == "model":
        assert titles == ["one on digits", "two on digits"]
    else:
        assert titles == ["cnn-8 on digits, one rates", "cnn-8 on digits, two rates"]


# Drawn by hand: the stairs go down through a (1, 9), b (2, 5), c (5, 4) and e (8, 1).
STAIRS = [
    (1, 9, True),
    (2, 5, True),
    (2, 6, False),
    (3, 5, False),
    (5, 4, True),
    (5, 4, True),
    (6, 4.5, False),
    (8, 1, True),
    (9, 1, False),
]


def test_frontier_drawn_by_hand():
    points = pd.DataFrame(STAIRS, columns=["spent", "error", "optimal"])
    assert frontier(points).tolist() == points.optimal.tolist()


def test_frontier_is_that_of_every_pair_compared():
    generator = np.random.default_rng(0)
    points = pd.DataFrame(generator.integers(0, 12, (200, 2)), columns=["spent", "error"])

    def beaten(point):
        return any(
            other.spent <= point.spent
            and other.error <= point.error
            and (other.spent, other.error) != (point.spent, point.error)
            for other in points.itertuples()
        )

    assert frontier(points).tolist() == [not beaten(point) for point in points.itertuples()]


def test_trade_off_over_all_configurations(made):
    add(made, "traditional", [(1, 1, 10, 90), (8, 2, 200, 10)])
    add(made, "matched", [(4, 1, 100, 30)], keep=0.5, matched_to="sb")
    add(made, "sb", [(2, 1, 50, 50), (5, 2, 100, 40)], keep=0.5)
    figure = ANALYSES["fig14"]([made])
    assert figure.sentence == (
        "cnn-8 on digits, on Abacus 9: of 4 Pareto-optimal points, plain training 75%, "
        "SelectiveLoader(..., keep=s) 25%."
    )
    found = series_of(figure)
    assert (found["plain training"].x, found["plain training"].y) == ([1, 8, 4], [90, 10, 30])
    fainter = found["SelectiveLoader(..., keep=s), not optimal"]
    assert (fainter.x, fainter.faint) == ([5], True)


def losses_of(made, run, *epochs, uses=None):
    for epoch, losses in enumerate(epochs, start=1):
        index = list(range(len(losses)))
        add_look(
            made, run, "losses", epoch, index=index, loss=losses, uses=uses or [1] * len(index)
        )


def test_pictures_of_least_and_most_loss(made):
    run = add(made, "traditional", [(9, 1, 300, 10)])
    losses = [1.0] * 100
    losses[7], losses[9] = 0.25, 3.0
    losses_of(made, run, losses, [1.0] * 100)
    gallery = ANALYSES["fig2"]([made])
    assert isinstance(gallery, Gallery)
    rows = {one.row: one for one in reversed(gallery.pictures)}  # the first one of each
    least, most = rows["least loss: cnn-8 on digits"], rows["most loss: cnn-8 on digits"]
    data = load("digits")
    assert (least.caption, most.caption) == ("loss 0.625", "loss 2")
    for picture, index in ((least, 7), (most, 9)):
        assert torch.from_numpy(picture.image).permute(2, 0, 1).equal(data.train_inputs[index])
        assert picture.label == str(int(data.train_labels[index]))
    assert "mean losses of 100 examples over training go from 0.62 to 2" in gallery.sentence


def test_a_wrong_label_is_told(tmp_path):
    made = comparison(tmp_path / "noisy", flip=0.2)
    run = add(made, "traditional", [(9, 1, 300, 10)])
    data = load("digits", flipped=0.2)
    wrong = int((data.train_labels != data.true_labels).nonzero()[0])
    losses_of(made, run, [5.0 if index == wrong else 1.0 for index in range(1437)])
    most = ANALYSES["fig2"]([made]).pictures[10]
    label, true = int(data.train_labels[wrong]), int(data.true_labels[wrong])
    assert (most.label, most.caption) == (str(label), f"loss 5, truly {true}")


def test_images_that_cannot_be_had_are_told(tmp_path):
    made = comparison(tmp_path / "gone", data="nowhere")
    run = add(made, "traditional", [(9, 1, 300, 10)])
    losses_of(made, run, [1.0, 2.0])
    found = ANALYSES["fig2"]([made])
    assert isinstance(found, Missing)
    assert "nowhere" in found.why


def test_distribution_of_losses(made):
    run = add(made, "traditional", [(9, 1, 300, 10)])
    losses_of(made, run, [4.0, 2.0, 0.0], [3.0, 1.0, 0.0])
    figure = ANALYSES["fig3"]([made])
    found = series_of(figure)
    assert list(found) == ["epoch 1", "epoch 2"]
    line = found["epoch 1"]
    half = line.y.index(50.0)
    assert (line.x[0], line.x[half], line.x[-1]) == (0.0, 2.0, 4.0)
    assert "half of the losses are below 1" in figure.sentence


def test_chance_by_loss_follows_equation_1(made):
    run = add(made, "traditional", [(9, 1, 300, 10)])
    losses_of(made, run, [0.1, 0.3, 0.2, 0.4])
    found = series_of(ANALYSES["fig4"]([made]))
    one, two = found["beta = 1, 50% kept"], found["beta = 2, 33% kept"]
    assert one.x == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert one.y == pytest.approx([0.125, 0.375, 0.625, 0.875])
    # The mean of p^2 over each quarter.
    assert two.y == pytest.approx([1 / 48, 7 / 48, 19 / 48, 37 / 48])


def test_chance_over_training_and_its_variance(made):
    plain = add(made, "traditional", [(9, 1, 300, 10)])
    sb = add(made, "sb", [(9, 1, 300, 10)], keep=0.5)
    losses_of(made, plain, [1.0, 2, 3, 4, 5], [1.0, 2, 3, 4, 5])
    losses_of(made, sb, [1.0, 2, 3, 4, 5], [5.0, 2, 3, 4, 1])
    figure = ANALYSES["fig15"]([made])
    first, second, spread = figure.views["epoch"]
    assert [one.label for one in first.series] == [f"example {i}" for i in range(5)]
    assert first.series[4].y == pytest.approx([0.9, 0.9])
    assert second.series[4].y == pytest.approx([0.9, 0.1])
    # Two of five examples go from 0.1 to 0.9 or back: a sample variance of 0.32 each.
    assert spread.series[0].x == ["plain training", SB]
    assert spread.series[0].y == pytest.approx([0, 2 * 0.32 / 5])
    assert f"0.000 under plain training, 0.128 under {SB}" in figure.sentence


def test_gradient_similarity_over_training(made):
    run = add(made, "traditional", [(9, 1, 300, 10)])
    names = ("high", "low", "random")
    for epoch in (1, 2):
        rows = [
            (batch, subset, share, 0.1 * (batch + place) + share, epoch / 4)
            for batch in (0, 1)
            for share in (0.1, 0.25, 0.5)
            for place, subset in enumerate(names)
        ]
        columns = zip(
            ("batch", "subset", "share", "cosine", "same_sign"),
            zip(*rows, strict=True),
            strict=True,
        )
        add_look(made, run, "gradients", epoch, **{name: list(c) for name, c in columns})
    figure = ANALYSES["fig5"]([made])
    assert list(figure.views) == ["10% of the batch", "25% of the batch", "50% of the batch"]
    high = series_of(figure)["highest losses"]
    assert (high.x, high.y) == ([1, 2], pytest.approx([0.15, 0.15]))
    assert series_of(figure, "50% of the batch")["random"].y == pytest.approx([0.75, 0.75])
    assert series_of(figure, panel=1)["lowest losses"].y == [25, 50]
    assert "cosine 0.15 highest losses, 0.25 lowest losses, 0.35 random" in figure.sentence


def test_confidence_and_accuracy_by_percentile(made):
    run = add(made, "traditional", [(9, 1, 300, 10)])
    # 40 test examples of confidence 0 to 0.975, right from 0.5 on; the training set is aside.
    confidence = [place / 40 for place in range(40)]
    columns = {
        "split": ["test"] * 40 + ["train"] * 3,
        "index": [*range(40), 0, 1, 2],
        "confidence": [*confidence, 1.0, 1.0, 1.0],
        "correct": [value >= 0.5 for value in confidence] + [False] * 3,
    }
    for epoch in (9, 10, 11):
        right = [epoch == 10 and one for one in columns["correct"]]
        add_look(made, run, "confidence", epoch, **columns | {"correct": right})
    curve = series_of(ANALYSES["fig8"]([made]))["plain training"]
    assert curve.x[0] == 2.5
    assert curve.y == pytest.approx(np.percentile(100 * np.array(confidence), curve.x))
    accuracy = ANALYSES["fig9"]([made])
    assert accuracy.views["percentile"][0].title == "cnn-8 on digits, epoch 10"
    assert series_of(accuracy)["plain training"].y == [0] * 10 + [100] * 10


def test_seconds_of_a_batch_by_model(tmp_path):
    runs = []
    for number, (forward, backward) in enumerate([(1.0, 2.0), (2.0, 5.0)]):
        one = comparison(tmp_path / str(number))
        phases = {"forward": forward, "backward": backward}
        add(one, "traditional", [(9, 100, 3, 1)], model=f"m{number}", seconds_by_phase=phases)
        runs.append(one)
    figure = ANALYSES["fig18"](runs)
    found = series_of(figure)
    assert found["backward"].x == ["m0 on digits", "m1 on digits"]
    assert (found["forward"].y, found["backward"].y) == ([10, 20], [20, 50])
    assert "takes 2.00 to 2.50 times" in figure.sentence
    runs[1] = replace(runs[1], environment=runs[1].environment | {"cpu": "Slide rule"})
    assert series_of(ANALYSES["fig18"](runs))["backward"].x == [
        "m0 on digits, Abacus 9",
        "m1 on digits, Slide rule",
    ]
    runs[0].environment["device"] = "cuda"  # whose phases are not those of the device
    assert series_of(ANALYSES["fig18"](runs))["forward"].y == [20]


def test_diet_accuracy_by_share_left_out(made):
    add(made, "traditional", [(9, 1, 300, 10)])
    for keep, error in ((0.25, 20), (0.5, 12)):
        add(made, "random", [(9, 1, 300, error)], keep=keep)
        add(made, "el2n", [(9, 1, 300, error + 1)], keep=keep)
    backprop, pruning = ANALYSES["diet-a"]([made]), ANALYSES["diet-b"]([made])
    found = series_of(backprop)
    assert list(found) == ["plain training", "Uniform(keep=s)"]
    assert (found["Uniform(keep=s)"].x, found["Uniform(keep=s)"].y) == ([50, 75], [88, 80])
    assert series_of(pruning)["pruning.prune(el2n(models, dataset), drop=1-s)"].y == [87, 79]
    assert "Uniform(keep=0.5) 88.00 %" in backprop.sentence


def scores_in(made, values, model="cnn", labels=None, name="el2n"):
    table = Scores(
        torch.tensor(values)[:, None],
        torch.zeros(len(values), dtype=torch.int64) if labels is None else labels,
        {"score": name, "environment": {"arguments": {"data": "digits", "model": model}}},
    )
    table.write(made.folder / "scores" / f"{name}-seed0.parquet")


def test_overlap_of_two_models_and_of_two_methods(tmp_path):
    one, two = comparison(tmp_path / "one"), comparison(tmp_path / "two")
    run = add(one, "sb", [(9, 1, 300, 10)], keep=0.5)
    scores_in(one, [float(place) for place in range(20)])
    reversed_halves = [float((place + 10) % 20) for place in range(20)]
    scores_in(two, reversed_halves, "resnet18")
    figure = ANALYSES["diet-c"]([one, two])
    found = series_of(figure)["pruned by both"]
    assert found.x == [10, 25, 50, 75, 90]
    # Of the lowest 15 of 20, 0 to 14, the other has 10 to 19 and 0 to 4.
    assert found.y == pytest.approx([0, 0, 0, 100 * 10 / 15, 100 * 16 / 18])
    # SB used the even ones.
    uses = [1 - place % 2 for place in range(20)]
    losses_of(one, run, [1.0] * 20, uses=uses)
    methods = ANALYSES["diet-d"]([one])
    # Least used: all ten odd ones, in order; of the five first of them, 1 and 3 are below 5.
    at = dict(zip(found.x, series_of(methods)["lowest by both"].y, strict=True))
    assert (at[25], at[50]) == (40, 50)


def test_pictures_of_the_lowest_scores(made):
    run = add(made, "sb", [(9, 1, 300, 10)], keep=0.5)
    data = load("digits")
    scores = [1.0] * len(data.train_labels)
    scores[3], scores[4] = 0.1, 0.2
    scores_in(made, scores, labels=data.train_labels)
    lowest = ANALYSES["diet-e"]([made])
    assert [one.caption for one in lowest.pictures[:3]] == ["EL2N 0.1", "EL2N 0.2", "EL2N 1"]
    assert len(lowest.pictures) == 20
    uses = [2] * len(scores)
    uses[3], uses[5] = 9, 1
    losses_of(made, run, [1.0] * len(scores), uses=uses)
    # Of the two lowest scores one is used most; the least used one has a score like all others.
    together = ANALYSES["diet-f"]([made])
    captions = [one.caption for one in together.pictures[:3]]
    assert captions == ["EL2N 0.2, used 2x", "EL2N 1, used 1x", "EL2N 0.1, used 9x"]


def test_diet_table(made):
    add(made, "traditional", [(20, 1, 300, 10), (40, 2, 600, 10)])
    add(made, "diet-sb", [(11, 1, 300, 10)], keep=0.5, seconds_scoring=1.0)
    table = ANALYSES["diet-table"]([made])
    assert [row[0] for row in table.rows] == ["plain training", "diet-sb 0.5"]
    assert table.rows[1][2:] == [50, 25, Range(10, 10, 10), 0.5]
    assert table.rows[0][2:4] == [0, 0]
    assert "an epoch of diet-sb 0.5 takes 0.50 of that of plain training" in table.sentence


def test_the_diet_table_leaves_out_the_first_epoch(made):
    add(made, "traditional", [(24, 1, 300, 10), (40, 2, 600, 10), (60, 3, 900, 10)])
    add(made, "sb", [(24, 1, 300, 10), (30, 2, 500, 10), (42, 3, 700, 10)], keep=0.5)
    table = ANALYSES["diet-table"]([made])
    assert [row[-2:] for row in table.rows] == [
        [Range(18, 18, 18), 1.0],
        [Range(9, 9, 9), 0.5],
    ]


def test_measured_against_ideal(made):
    add(made, "traditional", [(10, 1, 300, 10), (20, 2, 600, 10)])
    add(made, "sb", [(8, 1, 200, 10)], keep=0.33)
    figure = ANALYSES["ideal"]([made])
    found = series_of(figure)
    assert (found["ideal"].y, found["measured"].y) == (
        [pytest.approx(2 / 3)],
        [pytest.approx(0.8)],
    )
    assert "SelectiveLoader(..., keep=0.33) takes +20% on its ideal time" in figure.sentence


def test_agreement_over_training(made):
    each = [{"agreement": None}, {"agreement": 0.5}, {"agreement": 0.7}]
    points = [(number, number, number, 10) for number in (1, 2, 3)]
    add(made, "sb-memory", points, keep=0.5, each=each)
    add(made, "sb", points, keep=0.5)
    figure = ANALYSES["agreement"]([made])
    (line,) = series_of(figure).values()
    assert (line.label, line.x, line.y) == ("Memory(keep=0.5)", [2, 3], [0.5, 0.7])
    assert "agrees by 0.60 on average" in figure.sentence


def test_budget_matched_difference_with_its_interval(made):
    for seed, (error, plain) in enumerate([(9.0, 10.0), (8.0, 10.0), (7.0, 10.0)]):
        add(made, "traditional", [(9, 1, 300, plain)], seed)
        add(made, "sb", [(9, 1, 301, error)], seed, keep=0.5)
        if seed == 0:
            add(made, "random", [(9, 1, 300, 11)], seed, keep=0.5)
    figure = ANALYSES["budget"]([made])
    found = series_of(figure)
    sb = found[SB]
    # Differences of -1, -2 and -3: s is 1, and t(0.975, 2) is 4.303.
    assert sb.y == [-2]
    assert sb.low == [pytest.approx(-2 - 4.30265 / math.sqrt(3), abs=1e-4)]
    assert sb.high == [pytest.approx(-2 + 4.30265 / math.sqrt(3), abs=1e-4)]
    assert (found["Uniform(keep=0.5)"].y, found["Uniform(keep=0.5)"].low) == ([1], [])
    assert (
        "same budget 1 likely better; the lowest, SelectiveLoader(..., keep=0.5),"
        in figure.sentence
    ), "as verdicts have it"


def test_a_changed_record_changes_what_is_seen(made):
    run = add(made, "traditional", [(9, 1, 300, 10)])
    before = ANALYSES["fig6"]([made]).sentence
    path = made.folder / run.record
    path.write_text(path.read_text().replace('"test_error": 10', '"test_error": 11'))
    made.runs[0] = add(made, "traditional", [(9, 1, 300, 11)])
    del made.runs[1:]
    assert ANALYSES["fig6"]([made]).sentence != before


def test_only_some_and_unknown_ones():
    assert list(analyse([], ["fig6", "table1"])) == ["fig6", "table1"]
    with pytest.raises(ConfigError, match=r"no analysis fig99: .*give one of table1"):
        analyse([], ["fig99"])


def test_damaged_records_are_told_and_the_rest_is_read(made):
    runs = [add(made, "sb", [(9, 1, 300, 10)], seed, keep=0.5) for seed in range(5)]
    records = [made.folder / run.record for run in runs]
    records[1].unlink()
    records[2].write_text("torn")
    lines = records[3].read_text().splitlines()
    records[3].write_text(lines[0] + "\n" + lines[1].replace('"steps"', '"stops"'))
    (made.folder / "records" / "random-seed0.jsonl").write_text(lines[0])
    look = add_look(made, runs[4], "losses", 1, index=[0], loss=[1.0], uses=[1])
    look.write_bytes(look.read_bytes()[:-10])
    table = made.folder / "scores" / "el2n-seed0.parquet"
    table.parent.mkdir()
    table.write_bytes(b"torn")
    broken = made.folder.parent / "broken"
    broken.mkdir()
    (broken / "summary.json").write_text('{"runs": [{')
    (found,), problems = read([made.folder.parent])
    assert [run.seed for run in found.runs] == [0, 4]
    told = "\n".join(problems)
    for part in (
        "sb-None-0.50-1.jsonl is missing, and left out",
        "sb-None-0.50-2.jsonl is damaged in line 1, and left out",
        "sb-None-0.50-3.jsonl is damaged (TypeError",
        "abacus/records/random-seed0.jsonl was broken off, and left out",
        "losses-000000100.parquet is damaged",
        "abacus/scores/el2n-seed0.parquet is damaged",
        "broken/summary.json is damaged, and left out (JSONDecodeError",
    ):
        assert part in told
    assert len(problems) == 7
    assert isinstance(ANALYSES["fig6"]([found]), Figure)
    assert isinstance(ANALYSES["fig3"]([found]), Missing)


def test_what_is_no_folder_of_comparisons(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        read([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"holds no summary\.json"):
        read([tmp_path])


def test_one_that_cannot_be_made_does_not_stop_the_others(made):
    add(made, "traditional", [(9, 1, 300, 10)])
    add(made, "sb", [(9, 1, 300, 10)], keep=0.5, epochs=0)
    found = analyse([made], ["ideal", "fig6"])
    assert isinstance(found["ideal"], Missing)
    assert "ZeroDivisionError" in found["ideal"].why
    assert isinstance(found["fig6"], Figure)
