"""Help, completion and misspelt options, none of which waits for PyTorch to be imported."""

import json
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
    assert options <= set(printed.replace(",", " ").split())
    assert set(completed) == {*options, "--help"}
    status, said = found[name]["misspelt"]
    assert status == 2
    assert "No such option: --hlep (Possible options: " in said
    assert "--help" in said.partition("(")[2]
    assert found[name]["imported"] == []


def test_the_help_names_what_there_is(found: dict[str, dict[str, Any]]) -> None:
    assert SETTINGS["data"].help == f"Data set: {', '.join(load.NAMES)}."
    assert SETTINGS["model"].help == f"Model: {', '.join(models.NAMES)}."
    assert get_args(TYPES["norm"]) == NORMS
    # Lines are broken at spaces and hyphens.
    scores, figures = ("".join(found[name]["help"][1].split()) for name in ("score", "figures"))
    assert f"Score:{','.join(example_scores.SCORE_NAMES)}." in scores
    assert f"Someof{','.join(ANALYSES)};bydefaultall." in figures
