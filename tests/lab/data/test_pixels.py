"""Pixels of a picture: their coordinates and colours, runs on them, and how these are judged."""

import math
from pathlib import Path
from typing import Any

import matplotlib.cbook
import numpy as np
import pytest
import torch
from PIL import Image

from siftback.errors import ConfigError
from siftback.lab.data.load import flip, load, make_rare
from siftback.lab.experiments.comparison import Plan, compare, prepare_data
from siftback.lab.experiments.example_scores import score_examples
from siftback.lab.experiments.probe_run import probe_settings
from siftback.lab.experiments.summary_table import rows
from siftback.lab.experiments.sweep import cells, sweep, sweep_table
from siftback.lab.forward import example_losses
from siftback.lab.models import build
from siftback.lab.models.convolutional import FREQUENCY, SINE_LAYERS
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import peak_signal_to_noise
from siftback.lab.report.page import write_report
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import STRATEGIES
from stopped_runs import check_a_run_goes_on

HOPPER = Path(str(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
SMALL = f"picture:{HOPPER},size=24x20"


def test_examples_are_the_coordinates_and_colours_of_each_pixel(tmp_path: Path) -> None:
    bytes_of = np.random.default_rng(0).integers(256, size=(3, 5, 3), dtype=np.uint8)
    Image.fromarray(bytes_of).save(tmp_path / "a.png")
    data = load(f"picture:{tmp_path / 'a.png'}")
    examples = zip(data.train_inputs.tolist(), data.train_labels.tolist(), strict=True)
    for number, (coordinates, colours) in enumerate(examples):
        row, column = divmod(number, 5)
        assert coordinates == pytest.approx([-1 + 2 * column / 4, -1 + 2 * row / 2])
        expected = [-1 + 2 * int(byte) / 255 for byte in bytes_of[row, column]]
        assert colours == pytest.approx(expected, abs=1e-6)
    assert number == 14
    assert torch.equal(data.test_labels, data.train_labels)
    assert (data.name, data.kind, data.classes) == ("picture:a.png", "pixels", 3)
    assert data.names == ("red", "green", "blue")


def test_pictures_are_brought_to_a_size_and_grey_ones_have_equal_colours(tmp_path: Path) -> None:
    data = load(SMALL)
    assert data.name == "picture:grace_hopper.jpg,size=24x20"
    assert data.train_inputs.shape == (24 * 20, 2)
    assert Settings(SMALL, "siren", epochs=1).recorded()["data"] == data.name
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    colours = load(f"picture:{tmp_path / 'grey.png'}").train_labels
    assert torch.equal(colours[:, 0], colours[:, 2])
    torch.testing.assert_close(colours[:, 1], torch.arange(12) / 127.5 - 1)
    held_out = load(SMALL, train_limit=200, validation=50)
    assert (len(held_out.train_labels), len(held_out.test_labels)) == (150, 50)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.png").write_bytes(b"junk")
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    Image.fromarray(np.zeros((4, 4), np.uint16) + 700).save(tmp_path / "deep.png")
    whole = HOPPER.read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    for address, message in (
        (f"{tmp_path / 'none.png'}", "it is not a file"),
        (f"{tmp_path}", "it is not a file"),
        (f"{tmp_path / 'junk.png'}", "cannot be read as an image"),
        (f"{tmp_path / 'cut.jpg'}", "cut.jpg cannot be read as an image"),
        (f"{tmp_path / 'deep.png'}", "more than 8 bits"),
        (f"{tmp_path / 'red.png'}", "of a single colour"),
        (f"{HOPPER},crop=2", "picture has no option 'crop'"),
        (f"{HOPPER},size=big", "give pixels"),
        (f"{HOPPER},size=99999", "GiB, and this machine has"),
        ("", "give picture:PATH"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(f"picture:{address}")
    data = load(SMALL)
    for change in (lambda: flip(data, 0.1), lambda: make_rare(data, 2)):
        with pytest.raises(ConfigError, match="whose examples have no class"):
            change()
    with pytest.raises(ConfigError, match=r"max_tokens=9 of .* pixels of a picture"):
        load(SMALL, max_tokens=9)


def test_weights_of_sines_begin_within_the_bounds_of_their_paper() -> None:
    torch.manual_seed(0)
    width = 64
    model = build("siren", width=width, classes=3, channels=2)
    first, *hidden, last = model
    assert len(hidden) == SINE_LAYERS - 1
    hidden_bound = math.sqrt(6 / width) / 30
    for layer, bound in ((first, 1 / 2), *((layer, hidden_bound) for layer in (*hidden, last))):
        largest = float(layer.weight.detach().abs().max())
        assert 0.9 * bound < largest <= bound
        # Of a uniform distribution, whose standard deviation is its bound over the root of 3.
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    # So that sums within the sines have a standard deviation of 1, biases apart.
    features = first(torch.rand(4000, 2) * 2 - 1)
    for layer in hidden:
        sums = FREQUENCY * features @ layer.weight.T
        assert float(sums.detach().std()) == pytest.approx(1.0, abs=0.15)
        torch.testing.assert_close(layer(features), (sums + FREQUENCY * layer.bias).sin())
        features = layer(features)


def test_the_loss_of_a_pixel_is_the_mean_of_its_squared_errors() -> None:
    torch.manual_seed(0)
    model = build("siren", width=8, classes=3, channels=2)
    coordinates, colours = torch.rand(5, 2), torch.rand(5, 3)
    losses = example_losses(model, (coordinates, colours))
    for loss, place, colour in zip(losses.tolist(), coordinates, colours, strict=True):
        output = model(place[None])[0].tolist()
        squares = [(a - b) ** 2 for a, b in zip(output, colour.tolist(), strict=True)]
        assert loss == pytest.approx(sum(squares) / 3, rel=1e-5)


def quick(**changes: Any) -> Settings:
    """Settings of a few steps on a small picture."""
    of_picture = {"width": 16, "epochs": 6.0, "batch_size": 32, "device": "cpu"}
    return Settings(SMALL, "siren", **of_picture | changes)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, dict[str, Any]]:
    """All strategies of pixels, and the models that they trained."""
    names = [n for n, row in STRATEGIES.items() if "pixels" in row.kinds and n != "matched"]
    names = [name for name in names if not STRATEGIES[name].guarded]
    folder = tmp_path_factory.mktemp("pixels") / "out"
    models: dict[str, Any] = {}
    plan = Plan(quick(score_models=1, epochs=2.0), names, [0.5], [0], matched=False)
    comparison = compare(
        plan,
        folder,
        Reporter(),
        on_model=lambda run, model: models.update({run.strategy: model}),
    )
    return comparison, models


def test_runs_are_judged_by_the_psnr_of_the_whole_picture(
    learnt: tuple[Comparison, dict[str, Any]],
) -> None:
    comparison, models = learnt
    assert len(models) == len(comparison.runs) > 20
    data = load(SMALL)
    picture = np.asarray(data.test_labels, np.float64)
    table = {row["strategy"]: row for row in rows(comparison)}
    for run in comparison.runs:
        with torch.no_grad():
            drawn = models[run.strategy](data.test_inputs).double().numpy()
        # In bytes, as the definition has it: 255^2 over the mean squared error, in dB.
        errors = [(127.5 * (a - b)) ** 2 for a, b in zip(drawn.flat, picture.flat, strict=True)]
        psnr = 10 * math.log10(255**2 / (math.fsum(errors) / len(errors)))
        assert peak_signal_to_noise(run.final) == pytest.approx(psnr, abs=1e-3), run.strategy
        assert run.final == run.test_error_final
        assert run.metric == "rmse"
    plain = table["plain training"]
    run = comparison.by_label()["traditional"][0]
    assert plain["final RMSE %"] == f"{run.final:.3f}"
    assert plain["PSNR, dB"] == f"{peak_signal_to_noise(run.final):.2f}"
    assert run.final < comparison.evaluations(run)[0].test_error


def test_a_report_names_the_rmse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siftback.lab.report.page.ANALYSES", ["fig7"])  # few pictures to draw
    plan = Plan(quick(observe="losses,gradients"), ["traditional", "sb-memory"], [0.5], [0])
    compare(plan, tmp_path / "out", Reporter())
    page, problems = write_report([tmp_path / "out"], tmp_path / "report.html")
    assert not problems
    text = page.read_text()
    assert all(
        words in text for words in ("test RMSE (% of the range)", "final RMSE %", "PSNR, dB")
    )


def test_a_sweep_shows_the_rmse(tmp_path: Path) -> None:
    def plan_of(values: dict[str, Any]) -> Plan:
        return Plan(quick(epochs=1.0, **values), ["traditional"], [0.5], [0], matched=False)

    grid = cells({"lr": ["1e-3", "2e-3"]}, plan_of, tmp_path)
    sweep(grid, Reporter())
    headers = [str(column.header) for column in sweep_table(grid).columns]
    assert {"RMSE %", "PSNR, dB"} <= {*headers}
    assert not any("error" in header for header in headers)


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    check_a_run_goes_on(quick(), tmp_path)


def test_pixels_are_probed_and_scored() -> None:
    assert probe_settings(quick(), [0.5], 1.0).answer
    assert score_examples("loss", quick(), 0).labels.tolist() == [0] * 480


@pytest.mark.parametrize(
    ("changes", "strategy", "message"),
    [
        ({"model": "mlp"}, "traditional", "takes images, and .* pixels of a picture: .*siren"),
        ({"mixup": 0.2}, "traditional", "mixup=0.2 is of images"),
        ({"label_smoothing": 0.1}, "traditional", "colours and no classes"),
        ({"observe": "confidence"}, "traditional", "its examples have none"),
        ({"flip": 0.1}, "traditional", "whose examples have no class"),
        ({}, "kakurenbo", r"Kakurenbo\(ratio=0.5\) is a strategy for images"),
        ({}, "dft", "dft is a strategy for images"),
        ({}, "el2n", r"el2n\(models, dataset\), drop=0.5\) is a strategy for images"),
        ({}, "sb-memory-guarded", "a noise guard"),
    ],
)
def test_what_pixels_do_not_have_is_refused(
    changes: dict[str, Any], strategy: str, message: str
) -> None:
    settings = Settings(**vars(quick()) | changes)
    with pytest.raises(ConfigError, match=message):
        prepare_data(Plan(settings, [strategy], [0.5], [0], matched=False))
