"""The statistics of selection in Lightning's own loggers, read back from the files they write."""

import csv
import warnings
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs siftback[lightning]")

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning_parts import EXPECTED_WARNINGS
from lightning_ranks import (
    BATCH,
    COUNT,
    EPOCHS,
    Net,
    fit_remembering,
    fit_selecting,
    plain,
    trainer_of,
    validation,
)

from siftback import Epochs, Memory, Schedule
from siftback.frameworks.lightning import SelectiveCallback

pytestmark = EXPECTED_WARNINGS
STEPS = COUNT // BATCH
FIRST_EPOCH = Schedule(warmup=Epochs(1))
ENTRIES = {
    f"sift/{name}" for name in ("kept_share", "backwards", "seconds_selection", "left_out", "share")
}


def select(**options):
    callback = SelectiveCallback(keep=1 / 2, schedule=FIRST_EPOCH)
    return fit_selecting(callback, Net(), **options), callback.stats


def remember(**options):
    memory = Memory(keep=1 / 2, warmup=Epochs(1))
    trainer, selective = fit_remembering(Net(), memory=memory, **options)
    return trainer, selective.stats


def rows_of(logger):
    logger.save()
    with Path(logger.log_dir, "metrics.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["sift/share"]]


@pytest.mark.parametrize("fit", [select, remember])
def test_a_csv_file_has_the_statistics_at_each_logging_step(fit, tmp_path):
    logger = CSVLogger(tmp_path)
    trainer, stats = fit(logger=logger, log_every_n_steps=2)
    rows = rows_of(logger)
    assert [int(row["step"]) for row in rows] == list(range(1, trainer.global_step, 2))
    assert rows[-1].keys() > ENTRIES
    assert float(rows[0]["sift/kept_share"]) == 1.0
    assert float(rows[0]["sift/backwards"]) == 2 * BATCH
    assert float(rows[-1]["sift/backwards"]) == stats.backwards
    assert 0 < float(rows[-1]["sift/seconds_selection"]) <= stats.seconds_selection
    left_out = [float(row["sift/left_out"]) for row in rows]
    assert left_out == sorted(left_out)
    assert left_out[0] == 0 < left_out[-1] <= stats.left_out


def test_the_share_is_the_schedule_s_and_stands_in_the_progress_bar(tmp_path):
    bars = []

    class Bar(TQDMProgressBar):
        def get_metrics(self, *args):
            bars.append(super().get_metrics(*args))
            return bars[-1]

    logger, callback = CSVLogger(tmp_path), SelectiveCallback(keep=1 / 2, schedule=FIRST_EPOCH)
    shown = {"log_every_n_steps": 1, "enable_progress_bar": True}
    trainer_of(callback, Bar(), logger=logger, **shown).fit(Net(), plain(), validation())
    shares = [float(row["sift/share"]) for row in rows_of(logger)]
    assert shares == [1.0] * STEPS + [0.5] * STEPS * (EPOCHS - 1)
    assert {name for name in bars[-1] if name.startswith("sift/")} == {"sift/share"}
    assert bars[-1]["sift/share"] == 0.5


def test_without_a_logger_or_bare_nothing_is_said():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*log.*")
        trainer, _ = select()
        assert float(trainer.logged_metrics["sift/share"]) == 0.5
        bare = {"barebones": True, "accelerator": "cpu", "max_epochs": 1, "limit_val_batches": 0}
        callback = SelectiveCallback(keep=1 / 2, schedule=Schedule(warmup=Epochs(0)))
        Trainer(callbacks=[callback], **bare).fit(Net(), plain(), validation())
        assert callback.stats.kept == COUNT // 2
