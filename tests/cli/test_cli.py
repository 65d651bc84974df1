"""The command line, as a user calls it."""

import importlib
import io
import json
import os
import signal
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from command_line import Call, start
from siftback import Epochs
from siftback.cli.app import MODULES, SECTIONS, app, print_warning
from siftback.cli.options import use_threads
from siftback.lab import models
from siftback.lab.records.comparison_record import Comparison, parse_evaluations
from siftback.lab.report.verdict import verdicts
from siftback.lab.settings import SETTINGS, Settings

QUICK = ("--data", "digits", "--model", "mlp", "--width", "4", "--epochs", "1", "--device", "cpu")
QUICK += ("--warmup", "0")

SUMMARY_FIELDS = {
    "strategy", "seed", "data", "model", "keep_asked", "keep_measured", "epochs", "steps",
    "examples_forwarded", "examples_backpropped", "seconds_train", "seconds_selection",
    "cost_forward_units", "test_error_final", "test_error_best",
}  # fmt: skip


def test_compare_leaves_table_summary_records_and_pictures(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "c"
    asked = ("--strategies", "traditional,sb,random", "--keep", "1/2", "--seed", "0,1")
    status, printed, err = call("compare", *QUICK, *asked, "--out", out)
    assert status == 0
    assert "matched to" in printed
    *_, last = printed.splitlines()
    assert last == f"picture: {out / 'error.png'}"
    sentences = [one.sentence for one in verdicts([Comparison.read(out)])]
    assert len(sentences) == 2
    assert " ".join(sentences) in " ".join(printed.split())
    assert "one seed" not in err
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["runs"]) == 10
    assert summary["environment"]["threads"] == torch.get_num_threads() == 1
    assert err.startswith("1 thread: ")
    assert all(run.keys() >= SUMMARY_FIELDS for run in summary["runs"])
    assert {"python", "torch", "commit", "arguments"} <= summary["environment"].keys()
    for run in Comparison.read(out).runs:
        assert len(list(parse_evaluations((out / run.record).read_text().splitlines()))) == 1
        header = json.loads((out / run.record).read_text().splitlines()[0])
        assert header["environment"]["arguments"]["data"] == "digits"
    for picture in ("error.png", "error.svg"):
        assert (out / picture).stat().st_size > 10_000


def test_a_full_folder_is_refused_resumed_or_overwritten(call: Call, tmp_path: Path) -> None:
    compare = ("compare", *QUICK, "--strategies", "traditional", "--out", tmp_path / "c")
    assert call(*compare, "--seed", "0")[0] == 0
    first = Comparison.read(tmp_path / "c").runs

    status, _, err = call(*compare, "--seed", "0")
    assert status == 2
    assert "--resume to go on with it, or --overwrite" in err

    status, _, err = call(*compare, "--seed", "0,1", "--resume")
    assert status == 0
    resumed = Comparison.read(tmp_path / "c").runs
    assert resumed[:1] == first, "the finished run was not run again"
    assert [run.seed for run in resumed] == [0, 1]

    status, _, err = call(*compare, "--seed", "0", "--lr", "0.2", "--resume")
    assert status == 2
    assert "lr was 0.1, is 0.2" in err

    assert call(*compare, "--seed", "0", "--lr", "0.2", "--overwrite")[0] == 0
    assert [run.seed for run in Comparison.read(tmp_path / "c").runs] == [0]
    assert len(list((tmp_path / "c/records").iterdir())) == 1


def test_a_short_run_has_three_seeds_and_json_is_all_that_is_printed(
    call: Call, tmp_path: Path
) -> None:
    asked = ("compare", *QUICK, "--strategies", "traditional,random", "--no-matched", "--json")
    status, printed, _ = call(*asked, "--out", tmp_path / "c")
    assert status == 0
    made = json.loads(printed)
    assert [one["label"] for one in made["configurations"]] == ["traditional", "random 0.33"]
    assert [one["seeds"] for one in made["configurations"]] == [[0, 1, 2]] * 2
    assert [one["outcome"] for one in made["verdicts"]] == ["undecided"]
    assert Path(made["picture"]).exists()


def test_one_seed_is_warned_of_before_it_is_trained(call: Call, tmp_path: Path) -> None:
    asked = ("compare", *QUICK, "--strategies", "random", "--seed", "0", "--batch-size", "5000")
    _, _, err = call(*asked, "--out", tmp_path / "c")
    assert "one seed" not in err, "nothing is to be trained"
    _, printed, err = call(*asked[:-2], "--no-matched", "--out", tmp_path / "c")
    assert "one seed decides nothing: --seed 0,1,2" in err
    assert "Uniform(keep=0.33) is undecided, as there is no run of the same budget.\n" in printed


def test_resumed_runs_have_the_threads_they_began_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Comparison(tmp_path / "c", {"threads": 2}, []).write()
    before = torch.get_num_threads()
    try:
        use_threads(None, lambda: 0.0, [tmp_path / "none", tmp_path / "c"])
        assert torch.get_num_threads() == 2
        assert capsys.readouterr().err == "2 threads: as before\n"
        use_threads(None, lambda: 0.0, [tmp_path / "none"])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_train_keeps_the_weights(call: Call, tmp_path: Path) -> None:
    asked = ("--strategy", "sb", "--beta", "1", "--out", tmp_path)
    status, printed, _ = call("train", *QUICK, *asked)
    assert status == 0
    assert printed.splitlines()[-1] == f"weights: {tmp_path / 'weights.pt'}"
    assert "undecided" not in printed, "there is nothing beside it"
    (run,) = Comparison.read(tmp_path).runs
    assert run.keep_asked == 0.5
    model = models.build("mlp", width=4, classes=10, channels=1, size=(8, 8))
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))


def test_one_model_is_trained_into_a_folder(call: Call, tmp_path: Path) -> None:
    train = ("train", *QUICK, "--strategy", "traditional", "--out", tmp_path)
    assert call(*train)[0] == 0
    recorded = Comparison.read(tmp_path).environment["arguments"]
    asked = Settings("digits", "mlp", width=4, epochs=1.0, device="cpu", warmup=Epochs(0))
    assert recorded.items() >= asked.recorded().items(), "what is not said is as settings have it"
    weights = (tmp_path / "weights.pt").read_bytes()
    assert call(*train, "--resume")[0] == 0
    status, _, err = call(*train, "--resume", "--seed", "1")
    assert status == 2
    assert f"{tmp_path} holds records/traditional-seed0.jsonl, and one model is" in err
    assert (tmp_path / "weights.pt").read_bytes() == weights
    other = ("--strategies", "traditional", "--seed", "0", "--out", tmp_path, "--overwrite")
    assert call("compare", *QUICK, *other)[0] == 0
    assert not (tmp_path / "weights.pt").exists(), "a comparison is in the model's place"


def test_going_on_with_a_model_reads_its_record_no_more_often_than_a_comparison(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("train", *QUICK, "--strategy", "traditional", "--out", tmp_path)[0] == 0
    opened: list[str] = []
    io_open = io.open  # of all that pathlib opens

    def watched_open(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith("traditional-seed0.jsonl"):
            opened.append(str(file))
        return io_open(file, *arguments, **options)

    monkeypatch.setattr(io, "open", watched_open)
    resume = ("--seed", "0", "--out", tmp_path, "--resume")
    assert call("compare", *QUICK, "--strategies", "traditional", *resume)[0] == 0
    of_comparison = len(opened)
    assert call("train", *QUICK, "--strategy", "traditional", *resume)[0] == 0
    assert len(opened) - of_comparison == of_comparison > 0


@pytest.mark.filterwarnings("default:Memory leaves nothing out")
def test_a_warning_is_a_line_without_a_path(call: Call, tmp_path: Path) -> None:
    status, _, err = call("train", *QUICK[:-2], "--strategy", "Memory()", "--out", tmp_path)
    assert status == 0
    assert "warning: Memory leaves nothing out of 1 epoch," in err
    assert "UserWarning" not in err
    assert ".py" not in err


def test_a_stopped_run_goes_on_and_keeps_the_weights(call: Call, tmp_path: Path) -> None:
    train = ("train", *QUICK, "--strategy", "sb", "--keep", "0.5", "--checkpoint-every", "0.2")
    assert call(*train, "--out", tmp_path / "whole")[0] == 0
    process = start(tmp_path, *train, "--out", tmp_path / "killed")
    while not list((tmp_path / "killed").glob("checkpoints/*/*.pt")):
        assert process.is_alive(), "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.join()
    assert call(*train, "--resume", "--out", tmp_path / "killed")[0] == 0
    whole, killed = (
        torch.load(tmp_path / name / "weights.pt", weights_only=True)
        for name in ("whole", "killed")
    )
    assert all(killed[name].equal(tensor) for name, tensor in whole.items())


def test_every_setting_is_an_option_and_says_what_it_is() -> None:
    assert list(SETTINGS) == [field.name for field in fields(Settings)]
    assert all(setting.help.endswith(".") for setting in SETTINGS.values())


def test_options_are_read_into_settings(call: Call, tmp_path: Path) -> None:
    more = ("--time-budget", "1m30s", "--stop-at", "error=99%", "--evaluate-at", "0.1,1/2")
    more += ("--no-channels-last", "--ema", "0.9", "--mixup", "0.2", "--clip", "5")
    more += ("--strategy", "sb")
    assert call("train", *QUICK, *more, "--out", tmp_path)[0] == 0
    recorded = Comparison.read(tmp_path).environment["arguments"]
    expected = {"time_budget": 90.0, "stop_at": 99.0, "evaluate_at": [0.1, 0.5],
                "channels_last": False, "ema": 0.9, "mixup": 0.2, "clip": 5.0}  # fmt: skip
    assert {name: recorded[name] for name in expected} == expected
    assert call("train", *QUICK, *more, "--out", tmp_path, "--resume")[0] == 0


def test_runs_that_diverge_end_with_a_table_and_a_page(call: Call, tmp_path: Path) -> None:
    Image.effect_noise((10, 8), 64).save(tmp_path / "a.png")
    model = ("--data", f"picture:{tmp_path / 'a.png'}", "--model", "siren", "--width", "4")
    how = ("--batch-size", "16", "--epochs", "2", "--lr", "1e25", "--device", "cpu")
    asked = ("--strategies", "traditional,random,Memory(),sb", "--seed", "0,1")
    status, printed, err = call("compare", *model, *how, *asked, "--out", tmp_path / "c")
    assert status == 0, err
    assert "test RMSE nan points" in printed
    assert err.count("loss not finite") == err.count("test RMSE nan %") == 14
    assert call("report", tmp_path / "c", "--out", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "could not be made" not in page
    assert "nan%" not in page


def test_a_sweep_prints_what_is_missing_and_what_is_done(call: Call, tmp_path: Path) -> None:
    command = ("sweep", *QUICK, "--strategies", "traditional", "--grid", "lr=0.05,0.1")
    command += ("--out", tmp_path / "sweep")
    status, printed, _ = call(*command, "--status")
    assert (status, printed.count("missing")) == (0, 2)
    cells = json.loads(call(*command, "--status", "--json")[1])
    assert [(one["values"], one["state"]) for one in cells] == [
        ({"lr": lr}, "missing") for lr in ("0.05", "0.1")
    ]
    assert not (tmp_path / "sweep").exists()
    status, printed, _ = call(*command)
    assert (status, printed.count("done"), printed.count("1 of 1")) == (0, 2, 2)
    status, printed, _ = call(*command, "--resume", "--grid", "epochs=1,2")
    assert printed.count("done") == 4


def test_an_option_of_which_the_grid_has_values_is_named(call: Call, tmp_path: Path) -> None:
    command = ("sweep", *QUICK, "--status", "--keep", "1/2", "--out", tmp_path)
    grid = ("--grid", "batch_size=16,64", "--grid", "keep=1/4,1/3", "--grid", "lr=0.1")
    status, _, err = call(*command, *grid, "--batch-size", "32", "--strategies", "sb")
    assert status == 0, err
    assert "--batch-size 32 is not used, as --grid has values of batch_size" in err
    assert "--keep 1/2 is not used, as --grid has values of keep" in err
    assert "--lr" not in err


def test_strategies_and_help_read_well(call: Call) -> None:
    status, printed, _ = call("strategies")
    assert status == 0
    assert all(name in printed for name in ("traditional", "sb", "random", "matched", "1 + 3s"))
    status, printed, _ = call("models")
    assert status == 0
    assert all(name in printed for name in ("wrn-28-10", "36,479,194", "resnet18", "11,173,962"))
    assert call("--version")[1].startswith("siftback 0.")


@pytest.mark.parametrize(
    ("command", "key", "known"),
    [
        ("strategies", "strategy", "sb-memory"),
        ("models", "model", "resnet18"),
        ("recipes", "recipe", "pays"),
    ],
)
def test_what_there_is_can_be_read_by_a_script(
    call: Call, command: str, key: str, known: str
) -> None:
    status, printed, err = call(command, "--json")
    assert (status, err) == (0, "")
    assert known in [one[key] for one in json.loads(printed)]


def test_the_help_lists_every_command_by_its_own_first_line(call: Call) -> None:
    status, printed, _ = call("-h")
    assert status == 0
    lines = {name: line for section in SECTIONS.values() for name, line in section.items()}
    for name, line in lines.items():
        importlib.import_module(f"siftback.cli.{MODULES[name]}")
        assert f"  {name:<10}  {line}\n" in printed
    added = {one.name: one.callback.__doc__ for one in app.registered_commands}
    assert {name: text.partition("\n")[0] for name, text in added.items()} == lines


def test_colons_of_a_warning_stay_colons(capsys: pytest.CaptureFixture[str]) -> None:
    print_warning("table:x: [red] is :100:")
    assert capsys.readouterr().err == "warning: table:x: [red] is :100:\n"


def test_a_misspelt_command_is_guessed(call: Call) -> None:
    assert "Did you mean 'compare'?" in call("compar")[2]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("compare", "--strategies", "sb-memry"), "sb-memory"),
        (("compare", "--data", "digit"), "digits"),
        (("compare", "--model", "resnt18"), "resnet18"),
        (("compare", "--rate", "onecyle"), "onecycle"),
        (("compare", "--norm", "bach"), "batch"),
        (("compare", "--precision", "bf6"), "bf16"),
        (("compare", "--observe", "loses"), "losses"),
        (("compare", "--data", "npz:a.npz,crp=3"), "crop"),
        (("sweep", "--grid", "batchsize=1,2"), "batch_size"),
        (("run", "fig55"), "fig5"),
        (("run", "fig5", "--scale", "smal"), "small"),
        (("run", "fig5", "--set", "epoch=2"), "epochs"),
        (("figures", ".", "--only", "figg6"), "fig6"),
    ],
)
def test_every_misspelt_name_is_guessed(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    meant: str,
) -> None:
    Comparison(tmp_path / "c", {}, []).write()
    monkeypatch.chdir(tmp_path)
    status, _, err = call(*arguments)
    assert status == 2
    assert f"did you mean {meant}?" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--strategies", "sb", "--keep", "2"), "keep=2.0 is not a share"),
        (("compare", "--keep", "a"), "give numbers separated by commas"),
        (("compare", "--keep", "0.5", "--beta", "1"), "give one, keep = 1/(beta+1)"),
        (("compare", "--beta=-1"), "give exponents of at least 0"),
        (("compare", "--seed", "x"), "give an integer"),
        (("compare", "--data", "imagenet"), "'imagenet' is not known: give one of digits"),
        (("compare", "--strategies", "traditional,foo"), "no strategy 'foo'"),
        (("compare", "--epochs", "1", "--budget", "1"), "give one of them"),
        (("compare", "--strategies", "sb", "--strategies", "random"), "once, its values separated"),
        (("compare", "--lr=0.1", "--lr", "0.2"), "'--lr': given 2 times, of which only the last"),
        (("compare", "--overwrite", "--resume"), "give one of them"),
        (("compare", "--budget", "1", "--cost-budget", "9"), "budget=1.0 and cost_budget=9.0"),
        (("compare", "--time-budget", "12"), "give a time such as 90s, 30m, 12h"),
        (("compare", "--stop-at", "5"), "such as error=5%"),
        (("compare", "--evaluate-at", "0.1,1.5"), "evaluate_at=1.5"),
        (("compare", "--checkpoint-every", "often"), "give numbers separated by commas"),
        (("compare", "--checkpoint-every", "2"), "a share of training from 1e-6 to 1"),
        (("compare", "--checkpoints", "0"), "--checkpoints 0: give at least 1"),
        (("compare", "--precision", "fp16", "--device", "cpu"), "need CUDA"),
        (
            ("compare", "--mixup", "1", "--strategies", "sb-memory"),
            "mixup=1.0 with Memory(keep=0.33)",
        ),
        (("sweep",), "a sweep without a grid"),
        (("sweep", "--grid", "speed=1,2"), "no setting 'speed'"),
        (("compare", "--device", "tpu"), "no device 'tpu': give auto"),
        (("compare", "--threads", "0"), "give 1 to"),
        (("compare", "--train-limit", "0"), "train_limit=0"),
        (("compare", "--batch-size", "5000"), "batch_size=5000 does not fit"),
        (("results", "nowhere"), "nowhere"),
    ],
)
def test_bad_options_are_a_line_and_no_traceback(
    call: Call, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    out = ("--out", tmp_path / "page.md" if arguments[0] == "results" else tmp_path / "c")
    status, _, err = call(*arguments, *out)
    assert status == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "c/summary.json").exists(), "nothing was begun"


def test_ctrl_c_leaves_the_finished_runs(tmp_path: Path) -> None:
    out = tmp_path / "c"
    seeds = ("--seed", ",".join(map(str, range(500))))
    process = start(tmp_path, "compare", *QUICK, "--out", out, *seeds)
    while not (out / "summary.json").exists() or len(Comparison.read(out).runs) < 2:
        assert process.is_alive(), (tmp_path / "err.txt").read_text()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    printed, err = ((tmp_path / name).read_text() for name in ("out.txt", "err.txt"))
    assert process.exitcode == 130, err
    assert "plain training" in printed
    assert "error.png" in printed
    assert f"--out {out} --resume" in err
    for record in (out / "records").iterdir():
        list(parse_evaluations(record.read_text().splitlines()))
