"""The notebooks, executed at a size of seconds: their pictures, and what they say was measured."""

import ast
import base64
import io
import json
import os
import statistics
from pathlib import Path

import pytest
from matplotlib import image

from lab.texts import write_sst2
from scripts import load_script
from siftback.lab.records.frame import judge

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("transformers")
NotebookClient = pytest.importorskip("nbclient").NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
MOST = 400_000  # bytes, of all of them with their outputs
SECONDS = 120  # of a processor, for each of them

# In place of the sizes in the cell tagged "parameters", as papermill replaces them.
SIZES = {
    "does_selection_pay": {"DATA": "digits", "EXAMPLES": 640, "EPOCHS": 3, "SEEDS": 2, "WIDTH": 4},
    "finding_mislabelled_examples": {"DATA": "digits", "EXAMPLES": None, "EPOCHS": 12, "WIDTH": 8},
    "fine_tuning_on_text": {"EXAMPLES": None, "EPOCHS": 3, "SEEDS": 2, "WIDTH": 16},
}


# What the tests ask of their variables: expressions, by name.
VALUES = {
    "does_selection_pay": {
        "conclusion": "conclusion",
        "errors": "errors",
        "costs": "costs",
        "budget": "budget",
        "epochs": "EPOCHS",
        "stats": "stats.as_dict()",
    },
    "finding_mislabelled_examples": {
        "conclusion": "conclusion",
        "scores": "scores",
        "wrong": "wrong.nonzero().flatten().tolist()",
        "listed": "guard.label_issues.tolist()",
    },
    "fine_tuning_on_text": {
        "conclusion": "conclusion",
        "errors": "errors",
        "costs": "costs",
        "budget": "budget",
        "tokens": "tokens",
    },
}


def is_parameters(cell):
    return "parameters" in cell.metadata.get("tags", [])


class Executed:
    """The outputs of the cells of a notebook.

    Args:
        cells: Its cells, the last of which printed values of its variables as JSON.
    """

    def __init__(self, cells):
        self.outputs = [out for cell in cells for out in cell.get("outputs", [])]
        self.text = "".join(out.text for out in self.outputs if out.output_type == "stream")
        self.values = json.loads(self.text.splitlines()[-1])

    def shown(self, kind):
        """The outputs of a MIME type, in order."""
        return [out.data[kind] for out in self.outputs if kind in out.get("data", {})]

    @property
    def pictures(self):
        """The pixels of its pictures."""
        files = [io.BytesIO(base64.b64decode(png)) for png in self.shown("image/png")]
        return [image.imread(file, format="png") for file in files]


def cells_of(name):
    """A notebook's cells: its sizes replaced after the cell that has them, and its values asked."""
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    place = next(number for number, cell in enumerate(cells) if is_parameters(cell))
    sizes = "\n".join(f"{size} = {value!r}" for size, value in SIZES[name].items())
    values = ", ".join(f"{value!r}: {expression}" for value, expression in VALUES[name].items())
    printing = f"import json\nprint(json.dumps({{{values}}}, default=float))"
    own = nbformat.v4.new_code_cell(sizes), nbformat.v4.new_code_cell(printing)
    return [*cells[: place + 1], own[0], *cells[place + 1 :], own[1]]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """All notebooks by name, executed in one kernel, which forgets its variables in between.

    A kernel for each would take longer to import PyTorch than to execute them.
    """
    folder = tmp_path_factory.mktemp("notebooks")
    write_sst2(folder / "data", train=320, test=80)
    cells = {name: cells_of(name) for name in NAMES}
    every = []
    for each in cells.values():
        every += [*each, nbformat.v4.new_code_cell("%reset -f")]
    own = {"IPYTHONDIR": folder, "SIFTBACK_DATA": folder / "data", "OMP_NUM_THREADS": 1}
    own |= {"SIFTBACK_CACHE": folder / "cache", "HF_HUB_OFFLINE": 1}
    NotebookClient(
        nbformat.v4.new_notebook(cells=every),
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute(env=os.environ | {name: str(value) for name, value in own.items()})
    return {name: Executed(each) for name, each in cells.items()}


def test_all_of_them_are_executed_here():
    assert sorted(SIZES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_their_outputs_are_of_the_code_that_they_hold(name):
    """A notebook that fails was changed: python notebooks/execute.py executes all of them."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    executed = notebook.metadata["executed"]
    assert executed["code"] == load_script("notebooks/execute.py").digest(notebook)
    assert executed["seconds"] <= SECONDS
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "execute_result"}
    assert {output.name for output in outputs if "name" in output} == {"stdout"}
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert all(picture.metadata["image/png"]["alt"] for picture in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_their_sizes_are_in_one_cell(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (parameters,) = filter(is_parameters, code)
    assert parameters is code[0]
    assigned = {
        target.id
        for line in ast.parse(parameters.source).body
        if isinstance(line, ast.Assign)
        for target in line.targets
    }
    assert set(SIZES[name]) <= assigned


def test_they_are_small():
    assert sum((FOLDER / f"{name}.ipynb").stat().st_size for name in NAMES) <= MOST


def check_pictures(pictures, count):
    assert len(pictures) == count
    assert all(pixels.std() > 0.05 and min(pixels.shape[:2]) > 250 for pixels in pictures)


def check_verdict(executed, errors, costs, budget):
    """That the conclusion is the one that follows from the runs, at the same cost."""
    for each in costs.values():
        assert all(0.8 * budget < cost <= budget for cost in each)
    (plain, own), (_, seeds) = errors.values(), map(len, errors.values())
    differences = [after - before for before, after in zip(plain, own, strict=True)]
    mean = statistics.mean(differences)
    conclusion = executed.values["conclusion"]
    assert conclusion in executed.text
    assert f"{statistics.mean(plain):.2f} % test error" in conclusion
    assert f"at {statistics.mean(own):.2f} %" in conclusion
    assert f"a difference of {mean:+.2f} points" in conclusion
    assert f"{seeds} seeds" in conclusion
    assert f"The verdict on selection: {judge(differences)}." in conclusion


slow = pytest.mark.slow
jupyter = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own packages


@slow
@jupyter
def test_does_selection_pay(executed):
    done = executed["does_selection_pay"]
    check_pictures(done.pictures, 3)
    values = done.values
    check_verdict(done, values["errors"], values["costs"], values["budget"])
    assert values["epochs"] == SIZES["does_selection_pay"]["EPOCHS"]
    assert values["stats"]["sift/cost"] == values["costs"]["Memory()"][0]
    (table,) = done.shown("text/html")
    assert f"{values['stats']['sift/unread']:,.0f}" in table
    assert "Stats, in examples:\n  seen " in done.text


@slow
@jupyter
def test_finding_mislabelled_examples(executed):
    done = executed["finding_mislabelled_examples"]
    wrong, listed = set(done.values["wrong"]), set(done.values["listed"])
    check_pictures(done.pictures, 3 if listed - wrong else 2)
    precision = len(wrong & listed) / len(listed)
    recall = len(wrong & listed) / len(wrong)
    assert done.values["scores"]["the guard"] == pytest.approx([precision, recall])
    assert precision > 0.6, "by chance it is a tenth"
    assert recall > 0.6
    conclusion = done.values["conclusion"]
    assert conclusion in done.text
    assert f"{precision:.0%} of them have a wrong label, of all examples 10%" in conclusion
    assert f"found {recall:.0%} of the wrong labels" in conclusion


@slow
@jupyter
def test_fine_tuning_on_text(executed):
    done = executed["fine_tuning_on_text"]
    check_pictures(done.pictures, 1)
    values = done.values
    check_verdict(done, values["errors"], values["costs"], values["budget"])
    ratio = values["tokens"]["Memory()"] / values["tokens"]["traditional"]
    assert f"with {ratio:.2f} times the tokens" in values["conclusion"]
    assert max(values["errors"]["traditional"]) < 40, "the texts can be told apart"
    assert "Stats, in examples" in done.shown("text/html")[0]
