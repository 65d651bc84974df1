"""The circumstances of a measurement, without a word on whose machine it was."""

import getpass
import json
import platform
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from siftback.lab.records.environment import commit, environment


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def import_from(folder, monkeypatch):
    monkeypatch.setattr("siftback.__file__", str(folder / "__init__.py"))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package in a checkout, from which Siftback is imported."""
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("one = 1\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet", "checkout")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "First")
    import_from(folder, monkeypatch)
    return folder


def test_holds_versions_machine_and_arguments():
    found = environment({"epochs": 3, "keep": [0.33, 0.5]})
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
    assert found["arguments"] == {"epochs": 3, "keep": [0.33, 0.5]}
    assert found["cpu"]
    assert found["cores"] >= 1
    date = datetime.fromisoformat(found["date"])
    assert date.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - date) < timedelta(minutes=1)


def test_names_no_place_no_host_and_no_person(tmp_path):
    found = environment({"out": tmp_path, "data": str(tmp_path), "model": "cnn"})
    assert found["arguments"] == {"model": "cnn"}
    text = json.dumps(found)
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    words = text.replace('"', " ").replace(",", " ").split()
    assert platform.node() not in words
    assert getpass.getuser() not in words


def test_the_device_is_that_which_was_asked_for():
    assert environment({"device": "cpu"})["device"] == "cpu"
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert (environment({})["device"] != "cpu") == accelerated


def test_commit_of_a_clean_and_of_a_changed_checkout(package, monkeypatch):
    head = git(package, "rev-parse", "HEAD")
    assert commit() == head
    (package.parent / "results.md").write_text("new\n", encoding="utf-8")
    assert commit() == head  # A result is no change to what made it.
    (package / "__init__.py").write_text("one = 2\n", encoding="utf-8")
    assert commit() == f"{head}+changes"
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert commit() == f"{head}+changes"


def test_no_commit_outside_of_a_checkout(tmp_path, monkeypatch):
    import_from(tmp_path, monkeypatch)
    assert commit() is None


def test_no_commit_of_a_checkout_that_siftback_is_merely_installed_under(package, monkeypatch):
    installed = package / ".venv" / "siftback"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("", encoding="utf-8")
    import_from(installed, monkeypatch)
    assert commit() is None


def test_no_commit_without_git(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit() is None
