"""Regression by remembered errors, beside plain, with targets that are exact and that are noisy.

A small network learns the function of Friedman (1991, section 4.3) of ten inputs, of which five
matter, once from exact targets and once with normal noise of standard deviation 1 on them. The
errors on noisy targets that stay high are the noise. Compared are all examples, random halves
(``RS2``), ``Memory()`` and ``Memory(keep=0.55)``, on as many examples; tests are of exact targets.

``python benchmarks/guides/regression.py --json results/guides/regression.json`` trains all, in some
minutes on a core, and writes the record that docs/which_method.md quotes.
"""

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from guide_records import beside_plain, spread, start_training, write_record
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from siftback import RS2, Memory

BATCH, WIDTH, INPUTS = 64, 64, 10
HELD_OUT = 10_000
RATES = (2e-2, 4e-2, 8e-2)
NOISE = {"exact": 0.0, "noisy": 1.0}
CODE = {
    "plain": "all examples",
    "random": "`RS2(keep=0.5)`",
    "memory": "`Memory()`",
    "fixed": "`Memory(keep=0.55)`",
}


def friedman(inputs: Tensor) -> Tensor:
    """Returns the function of inputs in [0, 1), float[N, 10]: float[N]."""
    x = inputs.T
    return 10 * (math.pi * x[0] * x[1]).sin() + 20 * (x[2] - 0.5).square() + 10 * x[3] + 5 * x[4]


def make_data(count: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets with normal noise, divided by 5 to be of about unit variance."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, INPUTS, generator=generator)
    errors = noise * torch.randn(count, generator=generator)
    return inputs, (friedman(inputs) + errors) / 5


def train(method: str, data: TensorDataset, epochs: int, rate: float, seed: int) -> nn.Module:
    """Trains a network by a method."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(INPUTS, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
    )
    rules = {"random": RS2(keep=0.5), "memory": Memory(), "fixed": Memory(keep=0.55)}
    loader, optimizer, schedule = start_training(
        model, data, rules.get(method), batch_size=BATCH, epochs=epochs, rate=rate, seed=seed
    )
    for _ in range(epochs):
        for x, y in loader:
            losses = F.mse_loss(model(x).squeeze(1), y, reduction="none")
            loss = losses.mean() if method == "plain" else loader.loss(losses)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the highest rate diverged without
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model


@torch.no_grad()
def test(model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Returns the root mean squared error in the function's own units."""
    error = F.mse_loss(model(data[0]).squeeze(1), data[1]).sqrt()
    return {"loss": 5 * float(error)}


def best_rates(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the test results of each method at the rate of the lowest validation loss."""
    return [row for row, _ in beside_plain(runs, "targets", "loss")]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of a table in Markdown: means over the seeds, and their range."""
    lines = [
        "| targets | trained on | test error (RMSE) | less that of all examples |",
        "|---|---|---:|---:|",
    ]
    for row in rows:
        less = "" if row["method"] == "plain" else spread(row["differences"], 4)
        cells = row["targets"], CODE[row["method"]], spread(row["losses"], 4), less
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Trains, prints a table and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--examples", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the numbers to")
    asked = parser.parse_args()
    held_out, tests = (make_data(HELD_OUT, 0.0, seed) for seed in (1, 2))
    runs: list[dict[str, Any]] = []
    for targets, noise in NOISE.items():
        data = TensorDataset(*make_data(asked.examples, noise, 3))
        for seed, method, rate in itertools.product(range(asked.seeds), CODE, RATES):
            model = train(method, data, asked.epochs, rate, seed)
            run = {"targets": targets, "method": method, "rate": rate, "seed": seed}
            runs.append(run | {"validation": test(model, held_out), "test": test(model, tests)})
            print(json.dumps(runs[-1]), flush=True)
    rows = best_rates(runs)
    print("\n".join(table(rows)))
    write_record(asked, __doc__.partition("\n")[0], rows, runs)


if __name__ == "__main__":
    main()
