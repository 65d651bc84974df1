"""The example with Hugging Face's Trainer, on real text."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")


EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface_sst2.py"
SST2 = Path(os.environ.get("SIFTBACK_DATA", EXAMPLE.parents[2] / "shared" / "data"), "sst2")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning")
@pytest.mark.skipif(not SST2.is_dir(), reason="needs SST-2 in SIFTBACK_DATA or ../shared/data")
@pytest.mark.parametrize("method", ["two_pass", "single_pass", "memory"])
def test_the_example_learns_and_says_what_it_saved(method, tmp_path, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("tokenizers")
    given = {"method": method, "keep": 0.5, "examples": 1600, "epochs": 4, "out": tmp_path / "out"}
    options = [f"--{name}={value}" for name, value in given.items()]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    monkeypatch.setenv("SIFTBACK_DATA", str(SST2.parent))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    accuracy, steps = re.search(r"accuracy ([\d.]+)% after (\d+) steps", printed).groups()
    assert float(accuracy) > 60  # of two classes, of 872 sentences: six standard deviations
    counts = r"(\d+) backwards and (\d+) forwards; plain training of as many epochs: (\d+)"
    backwards, forwards, plain = map(int, re.search(counts, printed).groups())
    whole = 4 * 1600
    assert plain == whole
    expected = {  # steps, backwards, forwards
        "two_pass": (200, 1600 + 3 * 800, 1600 + 3 * (800 + 1600)),
        "single_pass": (200, 1600 + 3 * 800, whole),
        "memory": (200, whole, whole),  # an epoch of everything, and six passes over half
    }
    assert (int(steps), backwards, forwards) == expected[method]
