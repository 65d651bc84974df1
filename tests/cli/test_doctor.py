"""`siftback doctor`: what is installed and at hand."""

import json
import os
import shlex

import pytest
import torch
from packaging.requirements import Requirement

from siftback.installation import command_from
from siftback.lab.experiments import installation


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with one data set, and a folder of another that is empty."""
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-0.parquet").touch()
    (tmp_path / "cifar10").mkdir()
    monkeypatch.setenv("SIFTBACK_DATA", str(tmp_path))
    return tmp_path


def test_it_says_what_there_is_and_what_is_not(call, data):
    status, printed, _ = call("doctor")
    assert status == 0
    assert f"torch {torch.__version__}" in printed
    assert f"data, in SIFTBACK_DATA={data}: digits, mnist\n" in printed
    assert "not here: cifar10, cifar100, svhn, fashion_mnist" in printed
    for name in ("numpy", "lightning", "transformers", "keras", "cleanlab"):
        assert f"\n{name} " in printed


def test_a_script_reads_the_same(call, data):
    status, printed, _ = call("doctor", "--json")
    said = json.loads(printed)
    assert status == 0
    assert said["machine"]["torch"] == torch.__version__
    assert said["machine"]["cores"] == os.cpu_count()
    assert said["data"]["mnist"] == str(data / "mnist")
    assert said["data"]["cifar10"] is None
    assert {"torch", "numpy", "datasets", "keras"} <= {one["name"] for one in said["packages"]}
    assert not {"pytest", "siftback"} & {one["name"] for one in said["packages"]}
    assert all(one["fits"] for one in said["packages"] if one["extra"] != "energy")


@pytest.mark.parametrize(
    ("asked", "extra", "fits", "install"),
    [
        ("torch>=2.11", "", True, 'pip install "torch>=2.11"'),
        ("torch>=99", "", False, 'pip install "torch>=99"'),
        ("keras>=3.10", "keras", True, '[keras]"'),
        ("no-such-package>=1", "lab", False, '[lab]"'),
    ],
)
def test_a_release_fits_or_does_not(asked, extra, fits, install):
    one = installation.find_package(Requirement(asked), extra)
    assert one.fits is fits
    assert one.install.endswith(install)
    assert (one.version is None) == (one.name == "no-such-package")


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, '"siftback[lab]"'),
        ({"url": "file:///code/sift%20back", "dir_info": {}}, '"/code/sift back[lab]"'),
        ({"url": "file:///code", "dir_info": {"editable": True}}, '-e "/code[lab]"'),
        (
            {"url": "file:///a/siftback-1-py3-none-any.whl", "archive_info": {}},
            '"siftback[lab] @ file:///a/siftback-1-py3-none-any.whl"',
        ),
        (
            {"url": "https://host/sift", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            '"siftback[lab] @ git+https://host/sift@12ab"',
        ),
    ],
)
def test_an_extra_is_installed_from_where_siftback_is(origin, requirement):
    text = None if origin is None else json.dumps(origin)
    command = command_from("lab", text)
    assert command == f"pip install {requirement}"
    parsed = shlex.split(command)[-1]
    if "@" in parsed or origin is None:
        assert Requirement(parsed).extras == {"lab"}


def test_what_the_library_cannot_do_without_is_a_failure(call, data, monkeypatch):
    old = installation.Package("numpy", "", ">=99", "2.4")
    monkeypatch.setattr(installation, "packages", lambda: [old])
    status, printed, _ = call("doctor")
    assert status == 1
    assert 'pip install "numpy>=99"' in printed
    optional = installation.Package("keras", "keras", ">=3", None)
    monkeypatch.setattr(installation, "packages", lambda: [optional])
    assert call("doctor")[0] == 0, "a framework is for those who want it"


@pytest.mark.parametrize(("load", "busy"), [(None, False), (0.9, False), (1.0, True), (5.0, True)])
def test_a_machine_is_busy_from_half_of_its_processors_on(load, busy):
    assert installation.busy({"load": load, "cores": 2}) is busy
