"""Fine-tuning on the examples that are least learned since the initial model, beside plain.

A small language model learns the first half of Tiny Shakespeare, and is fine-tuned on windows of
the second. TailSFT (arXiv:2608.25756) leaves out sequences that are fitted already: here half of
each batch is kept, that with the highest losses less the initial model's. Beside it are plain
fine-tuning, the same without the initial model's losses, random halves, and remembered losses
(`Memory`). All cost as many forwards and backwards, a scoring pass and the initial model's losses
included; "tail" is the mean loss of the tenth of the test windows that is the least likely.

``python benchmarks/guides/initial_losses.py --json results/guides/initial_losses.json`` trains all,
in some minutes on a core, and writes the record that docs/language.md quotes.
"""

import argparse
import copy
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from guide_records import runs_at_best_rate, spread, write_record
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import (
    Epochs,
    Irreducible,
    Memory,
    Schedule,
    SelectiveLoader,
    TopK,
    Uniform,
    irreducible_losses,
)
from siftback.lab import models
from siftback.lab.data.load import load

BATCH, LENGTH, WIDTH, KEEP = 32, 64, 32, 0.5
FORWARD, BACKWARD = 1, 2
RATES = (1e-3, 3e-3)
AT_ONCE = Schedule(warmup=Epochs(0))


def losses_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the mean loss of each window: float[N]."""
    logits = model(batch[0])
    return (
        F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), reduction="none")
        .view(len(logits), -1)
        .mean(1)
    )


def make_loader(method: str, model: nn.Module, plain: DataLoader, budget: float) -> tuple[Any, int]:
    """Returns a loader of training batches, and the cost of making it.

    Args:
        method: Name of a method.
        model: The model, which is still the initial one.
        plain: The loader to wrap.
        budget: Epochs of plain training that the training costs.
    """
    examples = len(plain.dataset)  # type: ignore[arg-type]
    scoring = {"losses": losses_of, "schedule": AT_ONCE, "epochs": 9 * budget}
    if method == "plain":
        return plain, 0
    if method == "memory":
        return SelectiveLoader(plain, memory=Memory(), epochs=budget), 0
    if method == "random":
        selector = Uniform(keep=KEEP)
        return SelectiveLoader(plain, selector=selector, epochs=9 * budget, schedule=AT_ONCE), 0
    if method == "loss":
        return SelectiveLoader(plain, model, selector=TopK(keep=KEEP), **scoring), 0
    initial = irreducible_losses(model, DataLoader(plain.dataset, BATCH), losses=losses_of)
    scorer = Irreducible(initial)
    loader = SelectiveLoader(plain, model, selector=TopK(keep=KEEP), scorer=scorer, **scoring)
    return loader, FORWARD * examples


NAMES = {
    "plain": "all",
    "random": "a random half",
    "memory": "what `Memory()` draws",
    "loss": "the half of the highest losses",
    "since the initial model": "the half of the highest losses less the initial model's",
}
METHODS = tuple(NAMES)


def train(
    model: nn.Module, data: TensorDataset, method: str, epochs: int, rate: float, seed: int
) -> None:
    """Trains a model until it cost as much as a number of epochs of plain training."""
    torch.manual_seed(seed)
    loader, cost = make_loader(method, model, DataLoader(data, BATCH, shuffle=True), epochs)
    budget = (FORWARD + BACKWARD) * epochs * len(data)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    while cost < budget:
        scored = loader.stats.scored if method != "plain" else 0
        for batch in loader:
            if method != "plain":  # what was scored for this batch, and not trained on
                cost += FORWARD * (loader.stats.scored - scored)
                scored = loader.stats.scored
            cost += (FORWARD + BACKWARD) * len(batch[0])
            optimizer.param_groups[0]["lr"] = rate * max(0.0, 1 - cost / budget)
            losses = losses_of(model, batch)
            (loader.loss(losses) if method == "memory" else losses.mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if cost >= budget:
                break


@torch.no_grad()
def test(model: nn.Module, data: TensorDataset) -> dict[str, float]:
    """Returns the mean loss of a token, and that of the least likely tenth of the windows."""
    losses = torch.cat([losses_of(model, batch) for batch in DataLoader(data, 128)])
    tail = losses.topk(len(losses) // 10).values
    return {"loss": float(losses.mean()), "tail": float(tail.mean())}


def best_rates(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the test results of each method at the rate of the lowest validation loss."""
    rows = []
    for method in METHODS:
        best = runs_at_best_rate([run for run in runs if run["method"] == method])
        tests = [run["test"] for run in best]
        row = {
            "method": method,
            "rate": best[0]["rate"],
            "losses": [test["loss"] for test in tests],
        }
        rows.append(row | {"tails": [test["tail"] for test in tests]})
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of a table in Markdown: means over the seeds, and their range."""
    lines = [
        "| trained on | test loss | of the least likely tenth of the windows |",
        "|---|---:|---:|",
    ]
    for row in rows:
        cells = [spread(values, 3) for values in (row["losses"], row["tails"])]
        lines.append(f"| {NAMES[row['method']]} | {cells[0]} | {cells[1]} |")
    return lines


def main() -> None:
    """Trains, prints a table and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4, help="of plain fine-tuning")
    parser.add_argument("--examples", type=int, default=1600, help="windows to fine-tune on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the numbers to")
    asked = parser.parse_args()
    data = load("tinyshakespeare", max_tokens=LENGTH)
    inputs, labels = data.train_inputs.long(), data.train_labels
    half, count = len(inputs) // 2, asked.examples
    spans = ((half - 2 * count, half), (half, half + count), (half + count, half + 2 * count))
    before, tuned, validation = (
        TensorDataset(inputs[start:end], labels[start:end]) for start, end in spans
    )
    tests = TensorDataset(data.test_inputs.long(), data.test_labels)
    runs = []
    for seed in range(asked.seeds):
        torch.manual_seed(seed)
        initial = models.build("gpt", width=WIDTH, **data.model_sizes)
        train(initial, before, "plain", asked.epochs, 3e-3, seed)
        start = test(initial, tests)
        print(json.dumps({"seed": seed, "initial": start}), flush=True)
        for method, rate in itertools.product(METHODS, RATES):
            model = copy.deepcopy(initial)
            train(model, tuned, method, asked.epochs, rate, seed)
            runs.append(
                {
                    "seed": seed, "method": method, "rate": rate, "initial": start,
                    "validation": test(model, validation), "test": test(model, tests),
                }
            )  # fmt: skip
            print(json.dumps(runs[-1]), flush=True)
    rows = best_rates(runs)
    print("\n".join(table(rows)))
    write_record(asked, __doc__.partition("\n")[0], rows, runs)


if __name__ == "__main__":
    main()
