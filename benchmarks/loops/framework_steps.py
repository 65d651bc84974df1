"""Milliseconds that a rule adds to a training step within each framework, beside its own step.

Each loop of ``equal_steps.py`` trains a linear model for a few epochs and for many; a step is the
difference, over the steps between, so that starting a training is no part of it. Without and with
the rule have their turns. ``benchmarks/step.py`` runs it for its table.
"""

import argparse
import contextlib
import io
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import equal_steps
import torch

from siftback import Memory

FEW, LOOPS = 2, ("plain PyTorch", "Lightning", "Hugging Face Trainer", "Accelerate", "Keras")


def seconds_of(loop: Callable[[Any], equal_steps.Run], rule: Any, epochs: int) -> float:
    """Times a training of some epochs."""
    equal_steps.EPOCHS = epochs
    started = time.process_time()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        loop(rule)
    return time.process_time() - started


def step_times(name: str, *, examples: int, batch: int, epochs: int, rounds: int) -> dict[str, Any]:
    """Returns milliseconds of a step without and with the rule, a number for each round."""
    equal_steps.EXAMPLES, equal_steps.BATCH = examples, batch
    batches = (epochs - FEW) * -(-examples // batch)
    times: dict[str, list[float]] = {"without": [], "with": []}
    loop = equal_steps.LOOPS[name]
    seconds_of(loop, Memory(), FEW)  # imports
    for _ in range(rounds):
        for kind in times:
            few, many = (
                seconds_of(loop, Memory() if kind == "with" else None, count)
                for count in (FEW, epochs)
            )
            times[kind].append((many - few) / batches * 1e3)
    pairs = zip(times["with"], times["without"], strict=True)
    added = statistics.median(chosen - plain for chosen, plain in pairs)
    return {"step": statistics.median(times["without"]), "added": added}


def main() -> None:
    """Prints the times of the loops as JSON, by name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", type=int, default=12_800)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=12, help=f"above {FEW}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("loops", nargs="*", default=LOOPS)
    asked = vars(parser.parse_args())
    torch.set_num_threads(1)
    print(json.dumps({name: step_times(name, **asked) for name in asked.pop("loops")}))


if __name__ == "__main__":
    main()
