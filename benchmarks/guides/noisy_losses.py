"""Selection by losses that are partly the luck of a draw: a diffusion model and a VAE.

A network learns to predict the noise in digits of MNIST, at a noise level that is drawn anew for
each example of each batch. How large its loss is says more of that level than of the example, so
that a draw by remembered losses is nearly a random one. Compared are plain training, the losses as
they are, their running average (``Memory(decay=0.9)``), the losses over the mean of their noise
level, both of these, and random halves (``RS2``); with a variational autoencoder, whose losses have
far less noise, all but the noise levels. All train on as many examples as plain training.

"Example" is the share of the variance of what is remembered that is the example's own, at the end
of plain training: the variance of the examples' means, over that of all draws.

``python benchmarks/guides/noisy_losses.py --json results/guides/noisy_losses.json`` trains all, in
some minutes on a core, and writes the record that docs/which_method.md quotes.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from guide_records import beside_plain, spread, start_training, write_record
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from siftback import RS2, Memory
from siftback.lab.data.load import load

BATCH, WIDTH, LATENT, LEVELS = 128, 512, 16, 10
EXAMPLES, HELD_OUT, DRAWS = 5_000, 2_000, 16
RATES = (2e-3, 4e-3)
METHODS = {
    "diffusion": ("plain", "random", "memory", "averaged", "over level", "averaged over level"),
    "VAE": ("plain", "random", "memory", "averaged"),
}
CODE = {
    "plain": "all examples",
    "random": "`RS2(keep=0.5)`",
    "memory": "`Memory()`",
    "averaged": "`Memory(decay=0.9)`",
    "over level": "`Memory()`, losses over their level's mean",
    "averaged over level": "`Memory(decay=0.9)`, losses over their level's mean",
}


class Denoiser(nn.Module):
    """Predicts the noise in images from them and their noise level."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(pixels + 2, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(),
            nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, pixels),
        )  # fmt: skip

    def losses(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss of each image at a level drawn for it, and the level, in [0, 1).

        The images are mixed with noise by the cosine schedule of Nichol and Dhariwal 2021.
        """
        levels, noise = torch.rand(len(images)), torch.randn_like(images)
        angles = (torch.pi / 2 * levels)[:, None]
        noisy = angles.cos() * images + angles.sin() * noise
        found = self.layers(torch.cat([noisy, angles.cos(), angles.sin()], 1))
        return (found - noise).square().mean(1), levels


class Autoencoder(nn.Module):
    """A variational autoencoder of binary pixels, with a normal code."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2 * LATENT)
        )
        self.decoder = nn.Sequential(nn.Linear(LATENT, WIDTH), nn.SiLU(), nn.Linear(WIDTH, pixels))

    def losses(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the negative evidence lower bound of each image, and zeros: it has no levels."""
        mean, log_variance = self.encoder(images).chunk(2, 1)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        pixels = (images + 1) / 2
        fit = F.binary_cross_entropy_with_logits(self.decoder(code), pixels, reduction="none")
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance) / 2
        return fit.sum(1) + divergence.sum(1), torch.zeros(len(images))


class LevelMeans:
    """The mean loss of each noise level, a running average over the batches."""

    def __init__(self) -> None:
        self.means = torch.ones(LEVELS)

    def relative(self, losses: Tensor, levels: Tensor) -> Tensor:
        """Returns losses over the mean of their level, and takes them into it."""
        bins = (LEVELS * levels).long()
        counts = torch.zeros(LEVELS).index_add_(0, bins, torch.ones(len(bins)))
        sums = torch.zeros(LEVELS).index_add_(0, bins, losses)
        seen = counts > 0
        self.means[seen] = 0.9 * self.means[seen] + 0.1 * sums[seen] / counts[seen]
        return losses / self.means[bins]


@torch.no_grad()
def many_draws(model: nn.Module, images: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the losses and levels of images over draws that depend on the seed alone.

    Both are float[DRAWS, N].
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        losses, levels = zip(*(model.losses(images) for _ in range(DRAWS)), strict=True)
    return torch.stack(losses), torch.stack(levels)


def example_share(losses: Tensor) -> float:
    """Returns the share of the variance of losses, float[draws, N], that is the examples' own.

    The variance of the means holds a part of the draws' too, which is subtracted: the usual
    estimate of a random effect (Searle et al. 1992).
    """
    within = losses.var(0).mean()
    between = losses.mean(0).var() - within / len(losses)
    return float(between.clamp(min=0) / (between.clamp(min=0) + within))


def shares(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Returns `example_share` of the losses, and of the losses over their level's mean."""
    losses, levels = many_draws(model, images, seed=1)
    bins = (LEVELS * levels).long().flatten()
    means = torch.stack([losses.flatten()[bins == level].mean() for level in range(LEVELS)])
    return {
        "memory": example_share(losses),
        "over level": example_share(losses / means[bins].view_as(losses)),
    }


def train(task: str, method: str, images: Tensor, epochs: int, rate: float, seed: int) -> nn.Module:
    """Trains a model by a method."""
    torch.manual_seed(seed)
    model = {"diffusion": Denoiser, "VAE": Autoencoder}[task](images.shape[1])
    rules = {
        "random": RS2(keep=0.5),
        "memory": Memory(),
        "over level": Memory(),
        "averaged": Memory(decay=0.9),
        "averaged over level": Memory(decay=0.9),
    }
    loader, optimizer, schedule = start_training(
        model,
        TensorDataset(images),
        rules.get(method),
        batch_size=BATCH,
        epochs=epochs,
        rate=rate,
        seed=seed,
    )
    level_means = LevelMeans()
    for _ in range(epochs):
        for (batch,) in loader:
            losses, levels = model.losses(batch)
            if method != "plain":
                remembered = losses.detach()
                if "level" in method:
                    remembered = level_means.relative(remembered, levels)
                loader.record(remembered)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model


def best_rates(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the test results of each method at the rate of the lowest validation loss."""
    rows = []
    for row, plain in beside_plain(runs, "task", "loss"):
        level = "over level" if "level" in row["method"] else "memory"
        rows.append(row | {"example": [run["shares"][level] for run in plain]})
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of a table in Markdown: means over the seeds, and their range."""
    lines = [
        "| model | trained on | example, % | test loss | less that of all examples |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        digits = 4 if row["task"] == "diffusion" else 2
        share = ""
        if row["method"] in ("memory", "over level"):
            share = spread([100 * value for value in row["example"]], 0)
        less = "" if row["method"] == "plain" else spread(row["differences"], digits)
        lines.append(
            f"| {row['task']} | {CODE[row['method']]} | {share} "
            f"| {spread(row['losses'], digits)} | {less} |"
        )
    return lines


def main() -> None:
    """Trains, prints a table and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the numbers to")
    asked = parser.parse_args()
    data = load("mnist")
    images, tests = (
        F.avg_pool2d(x.float().div(255).view(-1, 1, 28, 28), 2).flatten(1) * 2 - 1
        for x in (data.train_inputs, data.test_inputs)
    )
    held_out, images = images[:HELD_OUT], images[HELD_OUT : HELD_OUT + asked.examples]
    tests = tests[:HELD_OUT]
    runs: list[dict[str, Any]] = []
    for task, methods in METHODS.items():
        for seed, method, rate in itertools.product(range(asked.seeds), methods, RATES):
            model = train(task, method, images, asked.epochs, rate, seed)
            runs.append(
                {
                    "task": task, "method": method, "rate": rate, "seed": seed,
                    "validation": {"loss": float(many_draws(model, held_out, 2)[0].mean())},
                    "test": {"loss": float(many_draws(model, tests, 3)[0].mean())},
                    "shares": shares(model, images[:HELD_OUT]) if method == "plain" else {},
                }
            )  # fmt: skip
            print(json.dumps(runs[-1]), flush=True)
    rows = best_rates(runs)
    print("\n".join(table(rows)))
    write_record(asked, __doc__.partition("\n")[0], rows, runs)


if __name__ == "__main__":
    main()
