"""The walk of a reader: the functions and files that one batch, or one command, passes through.

Three walks, counted by a profile of the interpreter's calls:

1. One training step with `Memory`, from asking the loader for a batch to the end of its loss.
2. One step with Selective-Backprop, from asking the loader for a batch until training has it.
3. ``siftback compare`` on the embedded digits: the files of the laboratory and the command line.

A function is counted once however often it is called; one step in the middle of an epoch is taken,
as the first batch of all is checked more. ``tests/test_style.py`` holds the numbers as ceilings.
"""

import argparse
import gc
import io
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import siftback
from siftback import Epochs, Memory, Schedule, SelectiveLoader

SOURCE = Path(siftback.__file__).parent
BATCH, CLASSES, EXAMPLES, FEATURES = 8, 3, 256, 5
IMPORTED = ("matplotlib.pyplot", "pandas", "rich.table", "scipy.stats", "sklearn.datasets", "sympy")


class Walk(NamedTuple):
    """The functions that a call passed through.

    Attributes:
        functions: Names of functions of the project, each after its file.
        files: Their files.
        calls: The number of calls of these functions.
    """

    functions: list[str]
    files: list[str]
    calls: int


def walk_through(action: Callable[[], Any], folders: tuple[str, ...] = ("",)) -> Walk:
    """Runs an action and returns the project's functions that it entered.

    Args:
        action: Called once.
        folders: The folders below ``src/siftback`` to count; by default all.
    """
    entered: dict[CodeType, int] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            entered[code] = entered.get(code, 0) + 1

    gc.collect()  # else an iterator of an earlier walk may be closed within this one
    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    functions: dict[str, int] = {}
    for code, calls in entered.items():
        path = Path(code.co_filename)
        # Modules and comprehensions are entered too, and are nothing that a reader walks to.
        if SOURCE in path.parents and not code.co_name.startswith("<"):
            relative = path.relative_to(SOURCE).as_posix()
            if relative.startswith(folders):
                name = f"{relative}: {code.co_qualname}"
                functions[name] = functions.get(name, 0) + calls
    files = sorted({name.partition(":")[0] for name in functions})
    return Walk(sorted(functions), files, sum(functions.values()))


def training() -> tuple[DataLoader[Any], nn.Module]:
    """Returns a loader of random examples, and a linear model."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    loader = DataLoader(TensorDataset(inputs, targets), BATCH, shuffle=True, generator=generator)
    torch.manual_seed(0)
    return loader, nn.Linear(FEATURES, CLASSES)


def memory_step() -> Walk:
    """Walks through one step of training with `Memory`, in an epoch that it draws."""
    source, model = training()
    loader = SelectiveLoader(source, memory=Memory(0.5, warmup=Epochs(1)), epochs=3)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        loader.loss(F.cross_entropy(model(inputs), targets, reduction="none")).backward()

    for inputs, targets in loader:
        step(inputs, targets)
    batches = iter(loader)
    for _ in range(4):
        step(*next(batches))
    return walk_through(lambda: step(*next(batches)))


def selective_step() -> Walk:
    """Walks through one step of Selective-Backprop: reading, scoring, selecting, pooling."""
    source, model = training()
    schedule = Schedule(warmup=Epochs(0))
    loader = SelectiveLoader(source, model, F.cross_entropy, keep=0.5, schedule=schedule)
    batches = iter(loader)

    def step() -> None:
        inputs, targets = next(batches)
        F.cross_entropy(model(inputs), targets).backward()

    for _ in range(4):
        step()
    return walk_through(step)


def compare_digits() -> Walk:
    """Walks through ``siftback compare`` on the digits, by Traditional and two strategies."""
    for module in IMPORTED:  # no part of the walk, and slow under a profile
        import_module(module)
    from siftback.cli import main

    with tempfile.TemporaryDirectory() as folder:
        asked = "--strategies traditional,sb,random --epochs 2 --seed 0"
        sys.argv = f"siftback compare --data digits {asked} --out {folder}/digits".split()

        def compare() -> None:
            with redirect_stdout(io.StringIO()), suppress(SystemExit):
                main()

        return walk_through(compare, ("lab/", "cli/"))


WALKS = {"memory": memory_step, "selective-backprop": selective_step, "compare": compare_digits}


def main() -> None:
    """Prints the walks, as counts or with the names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="by default all")
    parser.add_argument("--names", action="store_true", help="print the functions too")
    options = parser.parse_args()
    counts = {}
    for name in options.walks or WALKS:
        walk = WALKS[name]()
        counts[name] = {
            "functions": len(walk.functions),
            "files": len(walk.files),
            "calls": walk.calls,
        }
        if options.names:
            print("\n".join(walk.functions), file=sys.stderr)
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
