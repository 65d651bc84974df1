"""Imports cost little and go downwards, and the public names are those documented."""

import ast
import graphlib
import importlib
import inspect
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import siftback

SOURCE = Path(siftback.__file__).parent

# A module imports only from layers below its own; within a folder, sideways too. The layers are
# those of the table in the documentation.
TABLE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
LAYERS = {
    room: int(layer)
    for layer, room in re.findall(r"^\| (\d+) \| `(\w+)(?:\.py|/)`", TABLE, re.MULTILINE)
}
FILES = sorted(SOURCE.rglob("*.py"))
PUBLIC_ROOMS = ("contrib", "errors", "language", "pruning")  # whose names are public too


def name_of(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def names_of(room):
    """The public names of a module: those it lists, or else its classes."""
    classes = [name for name, value in vars(room).items() if inspect.isclass(value)]
    return getattr(room, "__all__", classes)


def room_of(module):
    return module.partition(".")[0]


def imports_of(path):
    """``(module, names)`` of each import from this package, the module without its prefix."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and room_of(node.module or "") == "siftback":
            names = [alias.name for alias in node.names]
            module = node.module.partition(".")[2]
            if module:
                yield module, names
            else:
                for name in names:
                    # `probe` names a module, and the function of it that is public.
                    is_module = name in LAYERS and name not in siftback.__all__
                    yield (name, []) if is_module else ("__init__", [name])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if room_of(alias.name) == "siftback":
                    yield alias.name.partition(".")[2] or "__init__", []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_strictly_downwards(path):
    room = room_of(name_of(path))
    assert room in LAYERS, f"say in the table which layer {room} is of"
    for module, _ in imports_of(path):
        below = room_of(module)
        sideways = room == below and (SOURCE / room).is_dir()
        assert sideways or LAYERS[below] < LAYERS[room], f"{room} imports {module}"


# The rooms of the lab, in the order of their own table.
LAB_LAYERS = {
    room: int(layer)
    for layer, room in re.findall(r"^\| (\d+) \| `lab/(\w+)(?:\.py|/)`", TABLE, re.MULTILINE)
}


def module_of(path):
    """The module of a file; that of a room for its ``__init__``."""
    return name_of(path).removesuffix("__init__").removesuffix(".")


MODULES = {module_of(path) for path in FILES}


def modules_imported_by(path):
    """The modules of this package that a file imports anything from."""
    for module, names in imports_of(path):
        module = module.removesuffix("__init__")
        for name in names or [""]:
            inner = f"{module}.{name}".strip(".")
            yield inner if inner in MODULES else module


def lab_room_of(module):
    return module.split(".")[1]


@pytest.mark.parametrize(
    "path", sorted(set((SOURCE / "lab").rglob("*.py")) - {SOURCE / "lab/__init__.py"}), ids=name_of
)
def test_imports_go_strictly_downwards_in_the_lab(path):
    room = lab_room_of(module_of(path))
    for module in modules_imported_by(path):
        if room_of(module) == "lab":
            below = lab_room_of(module)
            assert below == room or LAB_LAYERS[below] < LAB_LAYERS[room], f"imports {module}"


def test_no_files_import_each_other_in_a_circle():
    graph = {module_of(path): set(modules_imported_by(path)) for path in FILES}
    order = graphlib.TopologicalSorter(graph)
    order.prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    "path", [f for f in FILES if room_of(name_of(f)) in ("lab", "cli")], ids=name_of
)
def test_the_lab_uses_the_public_names_alone(path):
    for module, names in imports_of(path):
        if room_of(module) not in ("cli", "lab"):
            if module in (*PUBLIC_ROOMS, "installation"):
                assert set(names) <= set(names_of(importlib.import_module(f"siftback.{module}")))
                continue
            assert module == "__init__", f"import it from siftback, not from siftback.{module}"
            assert set(names) <= {*siftback.__all__, "__version__"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_named_after_a_noun(path):
    assert path.stem not in {"utils", "helpers", "misc", "common", "manager", "handler"}


def rooms_after(*statements):
    """The rooms whose modules each statement imported, in turn."""
    printing = "".join(f"{line}\nprint(*sys.modules)\n" for line in ("import sys", *statements))
    done = subprocess.run(
        [sys.executable, "-c", printing], capture_output=True, text=True, check=True
    )
    modules = [set(line.split()) for line in done.stdout.splitlines()]
    return [set(map(room_of, after - before)) for before, after in pairwise(modules)]


def test_importing_waits_for_torch_and_pulls_in_nothing_beyond_it_and_numpy():
    at_once, of_torch, when_used = rooms_after(
        "import siftback", "import torch, numpy.random", "from siftback import Memory"
    )
    assert at_once - sys.stdlib_module_names == {"siftback"}
    assert "torch" in of_torch
    assert when_used - sys.stdlib_module_names <= {"siftback", "torch", "numpy"}


def test_the_public_list_is_whole():
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    assert siftback.__all__ == sorted(alias.name for alias in aliases)
    # As type checkers want it of names that are public.
    assert all(alias.asname == alias.name for alias in aliases)
    assert set(siftback.__all__) <= set(dir(siftback))
    assert not set(siftback.__all__) & LAYERS.keys(), "a module of that name would take its place"
    with pytest.raises(AttributeError, match="has no attribute 'Memry'"):
        siftback.Memry  # noqa: B018


PUBLIC = {  # by name, the room; a name is imported on first use
    name: room
    for room in (siftback, *(importlib.import_module(f"siftback.{r}") for r in PUBLIC_ROOMS))
    for name in names_of(room)
}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_is_documented(name):
    value = getattr(PUBLIC[name], name)
    docstring = inspect.getdoc(value) or ""
    assert docstring.partition("\n")[0].endswith(".")
    assert docstring != (inspect.getdoc(type(value)) if not inspect.isclass(value) else None)
    if inspect.isclass(value):
        members = [member for member in vars(value) if not member.startswith("_")]
        functions = [vars(value)[m] for m in members if callable(vars(value)[m])]
        assert all(inspect.getdoc(function) for function in functions)


SHAPES_ALONE = {"Selection", "Selector", "SinglePassStats", "Stats"}
EXAMPLES = [n for n in PUBLIC if not n.endswith("Error") and n not in SHAPES_ALONE]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_used_directly_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(PUBLIC[name], name))
