"""Loggers of four frameworks write the statistics of the selection, which a picture shows."""

import pytest

from scripts import load_script

statistics = load_script("benchmarks/loops/logged_statistics.py")

NEEDS = {
    "Lightning, CSVLogger": ["lightning"],
    "Trainer, TensorBoard": ["transformers", "tensorboard"],
    "Accelerate, TensorBoard": ["accelerate", "tensorboard"],
    "Keras, CSVLogger": ["keras"],
}
statistics.EXAMPLES = 256  # a quarter of those in the picture
STEPS = statistics.EPOCHS * statistics.EXAMPLES // statistics.BATCH


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", statistics.LOGGERS)
def test_a_logger_s_file_has_every_statistic_at_each_logging_step(name, tmp_path, monkeypatch):
    for module in NEEDS[name]:
        pytest.importorskip(module)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path))
    series = statistics.LOGGERS[name](tmp_path)
    entries = statistics.EPOCHS if "Keras" in name else STEPS // statistics.EVERY
    assert list(map(len, map(series.get, statistics.STATISTICS))) == [entries] * 5
    values = {statistic: [value for _, value in series[statistic]] for statistic in series}
    assert values["share"][0] == values["kept_share"][0] == 1  # in the warm-up
    assert 0 < min(values["share"]) < 1 == values["share"][-1]  # in the tail
    assert values["left_out"] == sorted(values["left_out"])
    step, backwards = series["backwards"][-1]
    assert backwards == statistics.EPOCHS * statistics.EXAMPLES
    assert step in (STEPS, STEPS - 1)  # Lightning counts from 0


def test_a_picture_has_a_column_of_each_logger(tmp_path):
    series = {name: [(8, 1.0), (16, 0.5)] for name in statistics.STATISTICS}
    statistics.draw({"one": series, "the same": series}, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 1000
