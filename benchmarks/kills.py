"""Trainings in two processes, killed with ``kill -9`` at a random time and resumed from DCP.

``python benchmarks/kills.py`` runs `examples/ddp.py` and `examples/fsdp2.py`: once undisturbed, and
then twenty times each from the start, killed, and resumed. It prints a row per kill, and how many
ended with the weights, the optimizer's state and the counts of the undisturbed one, bit for bit.
Every other kill is of one process, whose end ``torchrun`` notices; the others are of all at once.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import tree_flatten

EXAMPLES = Path(__file__).parents[1] / "examples"
SETTINGS = ["--epochs", "4", "--save-every", "3"]
# Now and then a thread of gloo's ends so when the interpreter does (pytorch/pytorch#179291).
ABORTED_AT_EXIT = "terminate called without an active exception"


def started(example: str, out: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", "--nproc-per-node=2"]
    command += [str(EXAMPLES / f"{example}.py"), "--out", str(out), *SETTINGS]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipe)


def counts_of(process: "subprocess.Popen[str]") -> str:
    """Returns what a training says at its end, when all is saved.

    Raises:
        RuntimeError: If it failed before.
    """
    printed, _ = process.communicate(timeout=300)
    said = [line for line in printed.splitlines() if " steps; each process " in line]
    if not said or (process.returncode and ABORTED_AT_EXIT not in printed):
        raise RuntimeError(printed)
    return said[0]


def steps_saved(out: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in out.glob("step-*"))


def processes_of(out: Path) -> list[int]:
    """Ids of the processes that train into a folder; that of ``torchrun`` itself is the least."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if str(out).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return sorted(found)


def killed(example: str, out: Path, steps: int, chance: random.Random, *, all_at_once: bool) -> int:
    """Starts a training, kills it at a random time, and says which step was the last saved."""
    process = started(example, out)
    target = chance.randrange(steps * 9 // 10)
    while not any(step >= target for step in steps_saved(out)):
        if process.poll() is not None:
            raise RuntimeError(process.communicate()[0])
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.05))  # within a step or a save
    torchrun, *workers = processes_of(out)
    for one in [torchrun, *workers] if all_at_once else [chance.choice(workers)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.communicate(timeout=120)
    return steps_saved(out)[-1]


def end_of(out: Path) -> list[torch.Tensor]:
    """The tensors of the model and the optimizer in the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(out / f"step-{steps_saved(out)[-1]}", whole := Path(folder) / "end.pt")
        state: dict[str, Any] = torch.load(whole, weights_only=False)
    parts = tree_flatten((state["model"], state["optimizer"]))[0]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def run(example: str, kills: int, seed: int, folder: Path) -> int:
    """Kills and resumes an example; gives how many ended as the undisturbed one."""
    counts = counts_of(started(example, folder / "whole"))
    expected, steps = end_of(folder / "whole"), steps_saved(folder / "whole")[-1]
    print(f"{example}, undisturbed: {counts}", flush=True)
    same, chance = 0, random.Random(seed)
    for kill in range(kills):
        out, began = folder / f"kill-{kill}", time.perf_counter()
        all_at_once = kill % 2 == 0
        last = killed(example, out, steps, chance, all_at_once=all_at_once)
        again = counts_of(started(example, out)), steps_saved(out)[-1]
        end = end_of(out)
        equal = again == (counts, steps) and len(end) == len(expected) >= 12
        equal = equal and all(map(torch.equal, end, expected))
        same += equal
        whom = "all processes" if all_at_once else "one process"
        print(
            f"{example}, kill {kill + 1}: {whom} after step {last} of {steps}; resumed, ended "
            f"{'with the same' if equal else 'WITH OTHER'} weights, in "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    print(f"{example}: {same} of {kills} ended as the undisturbed training", flush=True)
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="+", default=["ddp", "fsdp2"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    failed = 0
    for example in asked.examples:
        with tempfile.TemporaryDirectory() as folder:
            failed += asked.kills - run(example, asked.kills, asked.seed, Path(folder))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
