"""Joint selection for a contrastive loss, beside random batches of the same cost.

Two towers learn which upper half of a digit of MNIST belongs to which lower half, by the loss of
CLIP. Batches are chosen from super-batches of four times their size, in chunks, by the joint loss
of the model ("hardness") or by that loss less the joint loss of a reference model ("learnability";
Evans et al. 2024, JEST). The reference is trained on halves that belong together and of which no
other model learns; neither its training nor its embeddings of the data are charged.
In "mismatched" three in ten training pairs are halves of two digits.

``python benchmarks/guides/joint_selection.py --json results/guides/joint_selection.json`` trains
all, in some minutes on a core, and writes the record that docs/guides/contrastive.md quotes.
"""

import argparse
import itertools
import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from guide_records import runs_at_best_rate, spread, write_record
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab.data.load import load

BATCH, TIMES, CHUNKS, TEMPERATURE = 64, 4, 8, 0.1
FORWARD, STEP = 1, 3  # the costs of an example in a scoring forward, and in a step
CURATED, HELD_OUT, MISMATCHED = 5000, 5000, 0.3
RATES, REFERENCE_RATE = (5e-4, 1e-3, 2e-3, 4e-3), 1e-3
METHODS = ("random", "hardness", "learnability")


def conditional_losses(similarities: Tensor, chosen: Tensor) -> Tensor:
    """Computes the contrastive loss that each pair has in a batch with the chosen pairs.

    It is the mean of the cross-entropies in both directions::

        l_i = (log sum_j exp s_ij + log sum_j exp s_ji) / 2 - s_ii,    j in {i} and the chosen

    Args:
        similarities: float[N, N], of each first half (rows) with each second half, over the
            temperature.
        chosen: int64[k], the pairs of the batch so far.

    Returns:
        float[N]; those of the chosen pairs count themselves twice, and have no meaning.
    """
    own = similarities.diag()[:, None]
    rows = torch.cat([own, similarities[:, chosen]], 1).logsumexp(1)
    columns = torch.cat([own, similarities[chosen].T], 1).logsumexp(1)
    return (rows + columns) / 2 - own.squeeze(1)


def choose_jointly(
    learner: Tensor, reference: Tensor, count: int, chunks: int, generator: torch.Generator
) -> Tensor:
    """Chooses pairs of a super-batch in chunks, each by its losses among those chosen before.

    A chunk is drawn without replacement with probabilities in proportion to ``exp(score)``, by
    the highest scores with Gumbel noise (Evans et al. 2024, section 3.2). The first is at random.

    Args:
        learner: float[N, N], the similarities of the model in training.
        reference: float[N, N], those of a reference model; zeros choose by hardness.
        count: k, of the pairs to choose.
        chunks: Number of chunks.
        generator: On the CPU.

    Returns:
        int64[k], each pair once.
    """
    size = math.ceil(count / chunks)
    chosen = torch.randperm(len(learner), generator=generator)[:size]
    while len(chosen) < count:
        scores = conditional_losses(learner, chosen) - conditional_losses(reference, chosen)
        scores[chosen] = -torch.inf
        noise = -torch.empty(len(scores)).exponential_(generator=generator).log()
        following = (scores + noise).topk(min(size, count - len(chosen))).indices
        chosen = torch.cat([chosen, following])
    return chosen


class Towers(nn.Module):
    """Two networks that embed the halves of an image on a sphere."""

    def __init__(self, pixels: int = 392, width: int = 256, features: int = 32) -> None:
        super().__init__()
        self.upper, self.lower = (
            nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, features))
            for _ in range(2)
        )

    def forward(self, upper: Tensor, lower: Tensor) -> Tensor:
        """Returns the similarities over the temperature: float[N, N]."""
        rows, columns = F.normalize(self.upper(upper)), F.normalize(self.lower(lower))
        similarities: Tensor = rows @ columns.T / TEMPERATURE
        return similarities


def contrastive_loss(similarities: Tensor) -> Tensor:
    """Returns the loss of a batch: the mean over both directions."""
    targets = torch.arange(len(similarities))
    both = F.cross_entropy(similarities, targets) + F.cross_entropy(similarities.T, targets)
    return both / 2


@torch.no_grad()
def test(model: nn.Module, halves: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Returns the loss and the share of pairs not found, over batches of 250 pairs."""
    losses, errors = [], []
    for upper, lower in zip(halves[0].split(250), halves[1].split(250), strict=True):
        similarities = model(upper, lower)
        losses.append(float(contrastive_loss(similarities)))
        wrong = similarities.argmax(1) != torch.arange(len(similarities))
        errors.append(100 * float(wrong.float().mean()))
    return {"loss": fmean(losses), "error": fmean(errors)}


def train(
    method: str,
    halves: tuple[Tensor, Tensor],
    reference: nn.Module | None,
    steps: int,
    rate: float,
    seed: int,
) -> nn.Module:
    """Trains two towers for a number of steps."""
    torch.manual_seed(seed)
    model = Towers()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        size = BATCH if method == "random" else TIMES * BATCH
        rows = torch.randint(len(halves[0]), (size,), generator=generator)
        upper, lower = halves[0][rows], halves[1][rows]
        if method != "random":
            with torch.no_grad():
                learner = model(upper, lower)
                learned = reference(upper, lower) if reference else torch.zeros_like(learner)
            chosen = choose_jointly(learner, learned, BATCH, CHUNKS, generator)
            upper, lower = upper[chosen], lower[chosen]
        contrastive_loss(model(upper, lower)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def best_rates(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the test results of each method at the rate of the lowest validation loss."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["pairs"], run["method"], run["length"]), []).append(run)
    rows = []
    for (pairs, method, length), group in groups.items():
        best = runs_at_best_rate(group)
        rows.append(
            {
                "pairs": pairs, "method": method, "length": length, "steps": best[0]["steps"],
                "rate": best[0]["rate"], "losses": [run["test"]["loss"] for run in best],
                "errors": [run["test"]["error"] for run in best],
            }
        )  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of a table in Markdown: means over the seeds, and their range."""
    lines = [
        "| training pairs | batches | beside random | steps | test loss | pairs not found, % |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        losses, errors = row["losses"], row["errors"]
        lines.append(
            f"| {row['pairs']} | {row['method']} | {row['length']} | {row['steps']} "
            f"| {spread(losses, 3)} | {spread(errors, 1)} |"
        )
    return lines


def main() -> None:
    """Trains, prints a table and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1400, help="of random batches")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the numbers to")
    asked = parser.parse_args()
    data = load("mnist")
    images, tests = (x.float().div(255).flatten(1) for x in (data.train_inputs, data.test_inputs))
    middle = images.shape[1] // 2
    curated, held_out, rest = images.split([CURATED, HELD_OUT, len(images) - CURATED - HELD_OUT])
    validation, test_halves = (tuple(x.split(middle, 1)) for x in (held_out, tests))
    cost_of_step = STEP * BATCH
    budget = asked.steps * cost_of_step
    chosen_steps = budget // (cost_of_step + FORWARD * TIMES * BATCH)
    runs: list[dict[str, Any]] = []
    references = {}
    for seed in range(asked.seeds):
        reference = train(
            "random", curated.split(middle, 1), None, asked.steps, REFERENCE_RATE, 100 + seed
        )
        references[seed] = reference
        runs.append(
            {
                "pairs": "curated", "seed": seed, "method": "random", "length": "the reference",
                "steps": asked.steps, "rate": REFERENCE_RATE,
                "validation": test(reference, validation), "test": test(reference, test_halves),
            }
        )  # fmt: skip
    for pairs, seed in itertools.product(("clean", "mismatched"), range(asked.seeds)):
        upper, lower = rest.split(middle, 1)
        if pairs == "mismatched":
            generator = torch.Generator().manual_seed(seed)
            wrong = torch.rand(len(lower), generator=generator).lt(MISMATCHED).nonzero().squeeze(1)
            lower = lower.clone()
            lower[wrong] = lower[wrong[torch.randperm(len(wrong), generator=generator)]]
        for method, rate in itertools.product(METHODS, RATES):
            lengths = {"equal cost": asked.steps if method == "random" else chosen_steps}
            if method == "random":
                lengths["equal steps"] = chosen_steps
            for length, steps in lengths.items():
                model = train(
                    method,
                    (upper, lower),
                    references[seed] if method == "learnability" else None,
                    steps,
                    rate,
                    seed,
                )
                runs.append(
                    {
                        "pairs": pairs, "seed": seed, "method": method, "length": length,
                        "steps": steps, "rate": rate, "validation": test(model, validation),
                        "test": test(model, test_halves),
                    }
                )  # fmt: skip
                print(json.dumps(runs[-1]), flush=True)
    rows = best_rates(runs)
    print("\n".join(table(rows)))
    write_record(asked, __doc__.partition("\n")[0], rows, runs)


if __name__ == "__main__":
    main()
