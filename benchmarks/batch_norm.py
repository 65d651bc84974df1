"""The cost of the single pass's treatment of BatchNorm, in gradients and in accuracy.

The exact gradient of the kept losses runs through the whole batch's statistics, and so through
every row. A backward over kept rows alone has to do without the other rows' terms. With
``h = (x - mean) / std`` and ``g`` the gradient of the layer's output, BatchNorm's backward is

    dx_i = weight / std * (g_i - c_i * (mean of g) - c_i * h_i * (mean of g * h))

with means over all N rows and c_i = 1 for each of them. The treatments differ in c_i for kept
rows, and have c_i = 0 for the others, whose gradient is then 0 as well:

    constants   c = 0       statistics seen as constants
    over N      c = 1       kept rows' own share of the statistics' terms
    over k      c = N / k   kept rows stand for all; the same as means over kept rows

First the gradients of each are compared with the exact one, on a fresh and on a trained network.
Then networks are trained from the same start, on the same rows (those that the exact way chose):
with the exact gradient, with the single pass (over k), and with a second forward on the kept rows.
"""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from goals import Goal, begin, options, report
from siftback import Percentile, Selection, SinglePass
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.load import load
from siftback.lab.data.stream import BatchStream, evaluation_batches
from siftback.lab.models import build
from siftback.lab.rates import RATES

KEPT, KEEP, RATE, TEST = 128, 1 / 3, 0.1, 500
TREATMENTS = {"constants": 0.0, "over N": 1.0, "over k": 1 / KEEP}
TITLE = "What single-pass treatment of BatchNorm costs: cnn of width 8 on MNIST, keep 1/3"
Batch = tuple[Tensor, Tensor]


class Statistics(torch.autograd.Function):
    """BatchNorm whose backward weighs the statistics' terms of each row by ``terms``."""

    terms: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalises by the statistics of the batch."""
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        ctx.scale = (variance + eps).rsqrt()
        ctx.normal = (x - mean) * ctx.scale
        ctx.weight = weight.detach().view(1, -1, 1, 1)
        return ctx.normal * ctx.weight + bias.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The formula above, with ``terms`` for c."""
        along = gradient * ctx.normal
        means = [each.mean((0, 2, 3), keepdim=True) for each in (gradient, along)]
        terms = Statistics.terms.view(-1, 1, 1, 1) * (means[0] + ctx.normal * means[1])
        inputs = ctx.weight * ctx.scale * (gradient - terms)
        return inputs, along.sum((0, 2, 3)), gradient.sum((0, 2, 3)), None


class BatchNorm(nn.BatchNorm2d):
    """As its parent, with `Statistics` for its backward."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalises by the batch's statistics; running ones are left alone."""
        return Statistics.apply(x, self.weight, self.bias, self.eps)


class Replay:
    """Keeps the rows that another run kept."""

    needs_scores, reweights, keep = True, False, KEEP

    def __init__(self, rows: list[Tensor]) -> None:
        self._rows = iter(rows)

    def select(self, scores: Tensor, generator: Any, count: int | None = None) -> Selection:
        """The next rows."""
        rows = next(self._rows)
        return Selection(rows, torch.ones(len(rows)))


def fresh(data: ImageData, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build("cnn", width=8, classes=data.classes, channels=1)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(
    model: nn.Module, data: ImageData, seed: int, epochs: int, loss_of: Callable[[Batch], Tensor]
) -> float:
    """Trains, and gives the test error in percent."""
    stream = BatchStream(data, round(KEPT / KEEP), seed)
    optimizer = torch.optim.SGD(
        model.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = epochs * len(stream)
    for step, batch in enumerate(batches(stream, epochs)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * RATES["onecycle"]((step + 0.5) / steps)
        loss_of(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        wrong = sum(
            int((model(images).argmax(1) != labels).sum())
            for images, labels in evaluation_batches(data, TEST)
        )
    model.train()
    return 100 * wrong / len(data.test_labels)


def batches(stream: BatchStream, epochs: int) -> Iterator[Batch]:
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        yield from stream


def exactly(model: nn.Module, seed: int, kept: list[Tensor]) -> Callable[[Batch], Tensor]:
    """The mean of the losses that SB keeps, through all rows; its rows are noted."""
    selector, generator = Percentile(keep=KEEP), torch.Generator().manual_seed(seed)

    def loss_of(batch: Batch) -> Tensor:
        losses = losses_of(model, batch)
        kept.append(selector.select(losses.detach(), generator, KEPT).positions)
        return losses[kept[-1]].mean()

    return loss_of


def second_forward(model: nn.Module, kept: list[Tensor]) -> Callable[[Batch], Tensor]:
    """The same rows by a forward of their own, as two-pass SB trains on them."""
    rows = iter(kept)

    def loss_of(batch: Batch) -> Tensor:
        chosen = next(rows)
        return losses_of(model, (batch[0][chosen], batch[1][chosen])).mean()

    return loss_of


def gradients(model: nn.Module, data: ImageData, where: str) -> list[Goal]:
    """Each treatment's gradient against the exact one, over a few batches."""
    found: dict[str, list[tuple[float, float]]] = {}
    stream = BatchStream(data, round(KEPT / KEEP), seed=0)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    selector, generator = Percentile(keep=KEEP), torch.Generator().manual_seed(0)
    for _, batch in zip(range(10), stream, strict=False):
        for norm in norms:
            norm.__class__ = BatchNorm
        losses = losses_of(model, batch)
        kept = selector.select(losses.detach(), generator, KEPT).positions
        loss = losses[kept].mean()

        def flat(loss: Tensor) -> Tensor:
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            return torch.cat([each.flatten() for each in grads])

        Statistics.terms = torch.ones(len(losses))
        exact = flat(loss)
        others = {}
        for name, weight in TREATMENTS.items():
            Statistics.terms = torch.zeros(len(losses)).index_fill_(0, kept, weight)
            others[name] = flat(loss)
        for norm in norms:
            norm.__class__ = nn.BatchNorm2d
        others["second forward"] = flat(losses_of(model, (batch[0][kept], batch[1][kept])).mean())
        for name, other in others.items():
            cosine = float(F.cosine_similarity(other, exact, dim=0))
            difference = float((other - exact).norm() / exact.norm())
            found.setdefault(name, []).append((cosine, difference))
    goals = []
    for name, pairs in found.items():
        cosines, differences = zip(*pairs, strict=True)
        goals.append(Goal(where, f"cosine to exact, {name}", statistics.mean(cosines)))
        goals.append(Goal(where, f"relative difference, {name}", statistics.mean(differences)))
    return goals


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="one seed, two epochs")
    parser.add_argument("--seeds", type=int, default=7, help="how many networks of each kind")
    asked = begin(parser)
    epochs, seeds, examples = (2, 1, 12_000) if asked.quick else (8, asked.seeds, 20_000)
    data = load("mnist", train_limit=examples)
    errors: dict[str, list[float]] = {}
    goals = gradients(fresh(data, 0), data, "fresh network")
    for seed in track(range(seeds), "training"):
        kept: list[Tensor] = []
        model = fresh(data, seed)
        exact = train(model, data, seed, epochs, exactly(model, seed, kept))
        errors.setdefault("exact", []).append(exact)
        if seed == 0:
            goals += gradients(model, data, "trained network")
        model = fresh(data, seed)
        sift = SinglePass(model, F.cross_entropy, selector=Replay(kept), check=False)
        sliced = train(model, data, seed, epochs, lambda batch: sift(*batch))  # noqa: B023
        errors.setdefault("single pass, over k", []).append(sliced)
        model = fresh(data, seed)
        second = train(model, data, seed, epochs, second_forward(model, kept))
        errors.setdefault("second forward", []).append(second)
    where = f"{epochs} epochs of {examples}, {seeds} seeds"
    for name, each in errors.items():
        goals.append(Goal(where, f"test error in percent, {name}", statistics.mean(each)))
        if seeds > 1:
            goals.append(Goal(where, f"its standard deviation, {name}", statistics.stdev(each)))
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
