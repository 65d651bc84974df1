"""The strip of images and the moving losses, from observations with a known answer."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib import image

from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.choices import COLUMNS, ROWS, strip_of_images
from siftback.lab.figures.drawing import render
from siftback.lab.figures.figure import Figure, Gallery, Missing
from siftback.lab.figures.loss_distributions import LEAST, losses_over_training
from siftback.lab.records.observations import Look
from written_records import add_look

EXAMPLES = 100
EASIEST_LAST = np.linspace(5.0, 0.1, EXAMPLES)  # losses: example 0 is the hardest


@pytest.fixture(scope="module")
def data():
    return load("digits", EXAMPLES)


def look(epoch, uses, losses=EASIEST_LAST):
    columns = {"index": np.arange(EXAMPLES), "loss": np.asarray(losses), "uses": np.asarray(uses)}
    return Look(float(epoch), columns)


def looks(epochs, hard=50):
    """From the second epoch on, the so many hardest examples alone are trained on."""
    found, uses = [], np.zeros(EXAMPLES, np.int64)
    for epoch in range(1, epochs + 1):
        uses = uses + (np.arange(EXAMPLES) < (EXAMPLES if epoch == 1 else hard))
        found.append(look(epoch, uses))
    return found


def rows_of(gallery):
    rows = {}
    for picture in gallery.pictures:
        rows.setdefault(picture.row, []).append(picture)
    return rows


def test_a_column_is_an_example_and_the_easiest_is_at_the_left(data):
    rows = rows_of(strip_of_images(data, looks(3), "a net"))
    assert list(rows) == ["epoch 2: a net, 50% kept", "epoch 3: a net, 50% kept"]
    middles = [EXAMPLES - 1 - (10 * place + 5) for place in range(COLUMNS)]
    for shown in rows.values():
        names = [data.names[int(data.train_labels[index])] for index in middles]
        assert [picture.label for picture in shown] == names
        words = [picture.caption.split(",")[0] for picture in shown]
        assert words == ["dropped"] * 5 + ["kept"] * 5
        assert shown[-1].caption == f"kept, loss {EASIEST_LAST[middles[-1]]:.2g}"


def test_what_was_dropped_is_faded_and_what_was_kept_is_as_it_is(data):
    (shown,) = rows_of(strip_of_images(data, looks(2), "a net")).values()
    for picture, place in ((shown[0], 94), (shown[-1], 4)):
        own = data.train_inputs[place].permute(1, 2, 0).numpy()
        if place == 4:
            assert np.array_equal(picture.image, own)
        else:
            assert picture.image.dtype == np.uint8
            assert np.array_equal(picture.image, np.rint(own * 0.25 + 255 * 0.75))


def test_a_long_training_is_shown_at_six_epochs_with_both_ends(data):
    rows = rows_of(strip_of_images(data, looks(30), "a net"))
    epochs = [int(row.split()[1].rstrip(":")) for row in rows]
    assert len(epochs) == ROWS
    assert (epochs[0], epochs[-1]) == (2, 30)


def test_the_sentence_has_the_shares_of_the_easy_and_the_hard(data):
    gallery = strip_of_images(data, looks(4, hard=90), "a net")
    assert (
        "a net: of the fifth of the examples with the least loss 50% were trained on in the next "
        "epoch, of the fifth with the most 100%, on average over 3 epochs." in gallery.sentence
    )


def test_looks_within_an_epoch_are_left_out(data):
    whole = looks(3)
    between = look(2.5, whole[1].columns["uses"])
    shown = strip_of_images(data, [whole[0], whole[1], between, whole[2]], "a net").pictures
    expected = strip_of_images(data, whole, "a net").pictures
    assert [one.caption for one in shown] == [one.caption for one in expected]
    with pytest.raises(ConfigError, match=r"fewer than two among \[1.0, 2.5\]"):
        strip_of_images(data, [whole[0], between], "a net")


def test_percentiles_of_the_losses_are_lines_over_the_epochs():
    moving = {"a": [look(1, [0], np.arange(101.0)), look(2, [0], np.arange(101.0) / 10)]}
    figure = losses_over_training(moving | {"b": [look(1, [0], np.zeros(101))]})
    first, second = figure.views["epoch"]
    lines = {line.label.removesuffix(" of the examples are below"): line for line in first.series}
    assert {name: line.y for name, line in lines.items()} == {
        "all but a hundredth": pytest.approx([99, 9.9]),
        "nine tenths": pytest.approx([90, 9]),
        "half": pytest.approx([50, 5]),
        "a tenth": pytest.approx([10, 1]),
    }
    assert lines["half"].x == [1.0, 2.0]
    assert [line.y for line in second.series] == [[LEAST]] * 4  # a loss of 0 has no logarithm
    assert first.y_range == second.y_range
    assert first.y_range[0] < LEAST < 99 < first.y_range[1]
    assert "a: at the end half of the losses are below 5 and a tenth above 9." in figure.sentence


def test_a_figure_and_a_gallery_are_png_for_a_notebook(data):
    strip, moving = strip_of_images(data, looks(2), "a net"), losses_over_training({"a": looks(2)})
    for shown in (strip, moving):
        pixels = image.imread(BytesIO(render(shown)), format="png")
        assert pixels.std() > 0.05
        assert pixels.shape[1] > 700


def test_records_of_a_selective_run_are_enough(comparison, add_run):
    comparison.environment["arguments"] |= {"data": "digits", "train_limit": EXAMPLES}
    plain = add_run("traditional", 0, [(1, 1, 1, 1)])
    own = add_run("sb-memory", 0, [(1, 1, 1, 1)], keep=0.5)
    for run in (plain, own):
        for one in looks(3):
            add_look(comparison, run, "losses", one.epoch, **one.columns)
    gallery, figure = (ANALYSES[name]([comparison]) for name in ("strip", "losses"))
    assert isinstance(gallery, Gallery)
    assert list(rows_of(gallery)) == [
        f"epoch {epoch}: cnn on digits, Memory(keep=0.5), 50% kept" for epoch in (2, 3)
    ]
    assert isinstance(figure, Figure)
    titles = [panel.title for panel in figure.views["epoch"]]
    assert titles == ["cnn on digits, plain training", "cnn on digits, Memory(keep=0.5)"]


def test_what_is_missing_says_what_to_record(comparison, add_run):
    run = add_run("traditional", 0, [(1, 1, 1, 1)])
    assert "--observe losses" in ANALYSES["losses"]([comparison]).why
    for one in looks(3):
        add_look(comparison, run, "losses", one.epoch, **one.columns)
    missing = ANALYSES["strip"]([comparison])  # plain training dropped nothing
    assert isinstance(missing, Missing)
    assert "--observe losses" in missing.why
