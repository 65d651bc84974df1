"""Help, completion and misspelt options, none of which waits for PyTorch to be imported."""

import json
import os
import re
import subprocess
import sys
from typing import Any, get_args

import pytest
import typer

from siftback.cli.app import MODULES, app
from siftback.lab import models
from siftback.lab.data import load
from siftback.lab.experiments import example_scores
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.models.layers import NORMS
from siftback.lab.settings import SETTINGS, TYPES

# Asks for all of it in one process, which prints what it got and, after each command, what of the
# slow packages is imported.
ASKING = """
import json
import sys

from typer.testing import CliRunner

from siftback.cli.app import MODULES, app

SLOW = {"torch", "numpy", "scipy", "matplotlib", "pandas", "pyarrow", "sklearn", "plotly"}

def called(*arguments, **environment):
    result = CliRunner().invoke(app, arguments, env=environment, prog_name="siftback")
    return result.exit_code, result.output

def completed(*words):
    words = {"COMP_WORDS": " ".join(("siftback", *words)), "COMP_CWORD": str(len(words))}
    return called(_SIFTBACK_COMPLETE="complete_bash", **words)[1].split()

def asked(*command):
    return {
        "help": called(*command, "--help"),
        "all": called(*command, "--help-all"),
        "completed": completed(*command, "--"),
        "misspelt": called(*command, "--hlep"),
        "imported": sorted(SLOW & sys.modules.keys()),
    }

found = {"": asked() | {"completed": completed("s")}} | {name: asked(name) for name in MODULES}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-c", ASKING]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_commands_are_listed_and_completed_at_once(found: dict[str, dict[str, Any]]) -> None:
    status, printed = found[""]["help"]
    assert status == 0
    assert all(f"  {name}  " in printed for name in MODULES)
    assert found[""]["completed"] == ["sweep", "score", "suspects", "strategies"]
    assert found[""]["imported"] == []


@pytest.mark.parametrize("name", MODULES)
def test_options_are_listed_completed_and_guessed_at_once(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    own = typer.main.get_command(app).resolve_command(None, [name])[1].params
    options = {each for one in own for each in (*one.opts, *one.secondary_opts) if each[0] == "-"}
    (status, printed), completed = found[name]["help"], found[name]["completed"]
    assert status == 0
    if "--help-all" in options:
        assert set(printed.replace(",", " ").split()) & options < options
        status, printed = found[name]["all"]
        assert status == 0
    assert options <= set(printed.replace(",", " ").split())
    assert set(completed) == {*options, "--help"}
    status, said = found[name]["misspelt"]
    assert status == 2
    # In the words of click up to 8.3, and of later ones.
    assert re.search(
        r"No such option:? '?--hlep'?\.? \((Possible options|Did you mean one of): ", said
    )
    assert "--help" in said.partition("(")[2]
    assert found[name]["imported"] == []


@pytest.mark.parametrize("name", ["compare", "train", "sweep"])
def test_the_help_of_what_trains_fits_on_a_screen(name: str) -> None:
    command = [sys.executable, "-m", "siftback", name, "-h"]
    wide = os.environ | {"COLUMNS": "100"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=wide).stdout
    lines = printed.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["What to train:", "How to train:", "Output:"]


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("compare", "--strategies", "<list>"),
        ("compare", "--keep", "<list>"),
        ("train", "--keep", "<float>"),
        ("compare", "--seed", "<list>"),
        ("train", "--seed", "<int>"),
        ("compare", "--width", "<int>"),
        ("compare", "--budget", "<float>"),
        ("compare", "--norm", "<batch|group>"),
        ("compare", "--time-budget", "<time>"),
        ("compare", "--warmup", "<epochs|share>"),
        ("compare", "--evaluate-at", "<list>"),
        ("compare", "--out", "<path>"),
        ("sweep", "--grid", "<name=list>"),
        ("figures", "--only", "<list>"),
    ],
)
def test_an_option_shows_the_kind_of_its_value(
    found: dict[str, dict[str, Any]], name: str, option: str, value: str
) -> None:
    printed = found[name]["help" if name == "figures" else "all"][1]
    assert re.search(rf"^  {option} {re.escape(value)} ", printed, re.MULTILINE)


def test_the_help_names_what_there_is(found: dict[str, dict[str, Any]]) -> None:
    assert SETTINGS["data"].help == f"Data set: {', '.join(load.NAMES)}."
    names = ", ".join(models.NAMES)
    by_default = "By default one for the kind of data, cnn for images."
    assert SETTINGS["model"].help == f"Model: {names}. {by_default}"
    assert get_args(TYPES["norm"]) == NORMS
    # Lines are broken at spaces and hyphens.
    scores, figures = ("".join(found[name]["help"][1].split()) for name in ("score", "figures"))
    assert f"Score:{','.join(example_scores.SCORES)}." in scores
    assert f"of{','.join(ANALYSES)};bydefaultall." in figures
