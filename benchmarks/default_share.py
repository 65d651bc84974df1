"""Candidates for the default of `Memory`: small trainings at equal cost, on held-out examples.

Each case is a small network on small pictures, where a run takes from some seconds to a minute of
one core. What is tried trains for the cost of so many epochs of Traditional, with a one-cycle
learning rate by the cost spent, and is tested on training examples that are held out. Traditional
does so at several budgets, so that an error is worth a budget, as in `search.py`. The cases are of
the kinds that drew apart: training that is short, long on few examples, and nearly done. The
digits of fonts are others than those of the recipes.

Runs are lines of ``--out``, and those that are there are not repeated.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from goals import Goal, begin, options, report
from siftback.draws.ratio_draw import ratio_probabilities
from siftback.lab.data import load
from siftback.lab.data.augment import Augment
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.fonts import make_digits
from siftback.lab.figures.budget_ratios import budget_ratio
from siftback.lab.models import build
from siftback.lab.rates import onecycle

TITLE = "What the default of Memory might be: small networks and pictures, held-out examples"
BATCH, WARMUP, FLOOR = 128, 0.15, 0.1
FONTS_SEED = 7  # of digits of fonts, which no recipe has
HELD = 50  # one example in so many is held back, where a candidate needs some
LEAST = 16  # rows of a last batch, as BatchNorm's statistics of fewer say little
TRADITIONAL = "traditional"


class Case(NamedTuple):
    """A training at one budget.

    Attributes:
        data: Name of the data set, of which the pictures of 32x32 are halved.
        examples: How many are trained on.
        held_out: How many others the error is measured on.
        model: Name of the network.
        width: Its width.
        lr: Peak learning rate.
        augment: Of the pictures in training.
        budget: That of what is tried, in epochs of Traditional.
        curve: Traditional's budgets.
    """

    data: str
    examples: int
    held_out: int
    model: str
    width: int
    lr: float
    augment: Augment
    budget: float
    curve: tuple[float, ...]


_SHIFTED = Augment(padding=2, flip=True)
CASES = {
    "c10t": Case("cifar10", 4000, 12_000, "fastcnn", 16, 0.1, _SHIFTED, 48, (12, 24, 36, 48, 96)),
    "c10l": Case("cifar10", 40_000, 10_000, "fastcnn", 16, 0.1, _SHIFTED, 24, (12, 16, 24, 32, 48)),
    "c10s16": Case(
        "cifar10", 12_000, 12_000, "fastcnn", 16, 0.1, _SHIFTED, 48, (12, 24, 36, 48, 96)
    ),
    "c10w32short": Case(
        "cifar10", 40_000, 10_000, "fastcnn", 32, 0.1, _SHIFTED, 4, (2, 3, 4, 6, 8)
    ),
    "c10w16short": Case(
        "cifar10", 40_000, 10_000, "fastcnn", 16, 0.1, _SHIFTED, 4, (2, 3, 4, 6, 8)
    ),
    "c10w16long": Case(
        "cifar10", 40_000, 10_000, "fastcnn", 16, 0.1, _SHIFTED, 16, (8, 12, 16, 20, 32)
    ),
    "c10w16": Case("cifar10", 20_000, 10_000, "fastcnn", 16, 0.1, _SHIFTED, 8, (4, 6, 8, 12, 16)),
    "mnist": Case("mnist", 30_000, 20_000, "cnn", 8, 0.4, Augment(), 2, (1, 2, 3, 4, 8)),
    "mnist4": Case("mnist", 30_000, 20_000, "cnn", 8, 0.4, Augment(), 4, (2, 3, 4, 6, 8)),
    "mnist8": Case("mnist", 30_000, 20_000, "cnn", 8, 0.4, Augment(), 8, (4, 6, 8, 12, 16)),
    "gtsrb": Case("gtsrb", 30_000, 8000, "fastcnn", 8, 0.1, Augment(padding=2), 4, (1, 2, 4, 6, 8)),
    "gtsrb8": Case(
        "gtsrb", 30_000, 8000, "fastcnn", 8, 0.1, Augment(padding=2), 8, (4, 6, 8, 12, 16)
    ),
    "f20k4": Case("fonts", 20_000, 10_000, "fastcnn", 8, 0.1, Augment(), 4, (2, 3, 4, 6, 8)),
    "f80k8": Case("fonts", 80_000, 10_000, "fastcnn", 8, 0.1, Augment(), 8, (4, 6, 8, 12, 16)),
    "f20k8": Case("fonts", 20_000, 10_000, "fastcnn", 8, 0.1, Augment(), 8, (4, 6, 8, 12, 16)),
    "f20k": Case("fonts", 20_000, 10_000, "fastcnn", 8, 0.1, Augment(), 16, (4, 8, 12, 16, 24)),
    "f5k16": Case("fonts", 5000, 10_000, "fastcnn", 8, 0.1, Augment(), 16, (8, 12, 16, 24, 32)),
    "f5k": Case("fonts", 5000, 10_000, "fastcnn", 8, 0.1, Augment(), 32, (8, 16, 24, 32, 48, 64)),
}


class Candidate(NamedTuple):
    """A rule that is tried in place of plain training.

    Attributes:
        what: In words.
        probabilities: From the losses, float[N], and the share of the training that is done, to
            float64[N].
        tail: The last share of the training, on everything.
        least: The tail begins once a draw within it would have at least this share.
        passes: It does not begin before so many passes.
        exponent: Of the weights ``1 / p``, from the share of the training that is done.
        latest: The tail begins after so many epochs of the budget, if not before.
        warmup: Everything is trained on for no more than so many epochs at first.
        share: The share of the training in which everything is trained on at first.
        memorised: Whether examples are held back, and an example has at least the probability
            ``1 - (mean loss in training) / (mean loss of these)``.
        as_tail: Whether the draws are of `at_least` as large a share as the tail has of the
            training, in place of ``probabilities``.
        forgetting: Whether the probabilities are of losses to which is added by how much those that
            could have been left out rose when they were last drawn.
    """

    what: str
    probabilities: Callable[[Tensor, float], Tensor]
    tail: float = 0.0
    least: float = 0.0
    passes: int = 0
    exponent: Callable[[float], float] = lambda done: 0.0
    latest: float = math.inf
    warmup: float = math.inf
    share: float = WARMUP
    memorised: bool = False
    as_tail: bool = False
    forgetting: bool = False

    def tail_of(self, budget: float) -> float:
        """Returns the share of a training of so many epochs that is its tail."""
        return max(self.tail, 1 - self.latest / budget)


def ratios(losses: Tensor, floor: float = FLOOR, certain: float = 1.0) -> Tensor:
    """As `Memory` draws where the share follows the losses."""
    return ratio_probabilities(losses / certain, floor, float(losses.nanmean()))


def mixed(losses: Tensor, uniform: Callable[[float], float]) -> Tensor:
    """A mixture of uniform draws and of those by ratios, by the share that these would draw."""
    drawn = ratios(losses)
    part = uniform(float(drawn.mean()))
    return part + (1 - part) * drawn


def at_least(losses: Tensor, least: float) -> Tensor:
    """As `ratios`, mixed with uniform draws so that no smaller share is drawn."""
    return mixed(losses, lambda share: max(0.0, least - share) / (1 - min(share, least)))


def percentiles(losses: Tensor) -> Tensor:
    """As `Memory` of a share of 0.55 draws, but each example by itself."""
    known = losses.where(losses.isfinite(), losses.nanmean())
    ranks = known.argsort().argsort().double()
    drawn = FLOOR + (1 - FLOOR) * (ranks + 0.5) / len(losses)
    return drawn.where(losses.isfinite(), 1.0)


def capped(losses: Tensor, quantile: float) -> Tensor:
    """As `ratios`, of losses that are at most a quantile of them."""
    return ratios(losses.clamp(max=float(losses.nanquantile(quantile))))


def ending(ordinal: str, latest: int, least: float = 0.0) -> Candidate:
    """Draws by ratios, of a least share, that end with an epoch at the latest."""
    drawn = f"at least {least} drawn, " if least else ""
    what = f"loss over mean, {drawn}tail 0.45, and from the {ordinal} epoch at the latest"
    return Candidate(what, lambda losses, done: at_least(losses, least), 0.45, latest=latest)


CANDIDATES = {
    "cap.9": Candidate(
        "loss over mean, of losses capped at their quantile of 0.9",
        lambda losses, done: capped(losses, 0.9),
    ),
    "cap.9.tail.45": Candidate(
        "loss over mean, of losses capped at their quantile of 0.9, tail 0.45",
        lambda losses, done: capped(losses, 0.9),
        0.45,
    ),
    "now": Candidate("loss over mean", lambda losses, done: ratios(losses)),
    "tail.2": Candidate("loss over mean, tail 0.2", lambda losses, done: ratios(losses), 0.2),
    "tail.3": Candidate("loss over mean, tail 0.3", lambda losses, done: ratios(losses), 0.3),
    "tail.4": Candidate("loss over mean, tail 0.4", lambda losses, done: ratios(losses), 0.4),
    "tail.45": Candidate("loss over mean, tail 0.45", lambda losses, done: ratios(losses), 0.45),
    "tail.45.4": Candidate(
        "loss over mean, tail 0.45 from when 0.4 or more would be drawn",
        lambda losses, done: ratios(losses),
        0.45,
        0.4,
    ),
    "tail.45.4.6": Candidate(
        "loss over mean, tail 0.45 from when 0.4 or more would be drawn, after 6 passes",
        lambda losses, done: ratios(losses),
        0.45,
        0.4,
        6,
    ),
    "tail.45.p4": Candidate(
        "loss over mean, tail 0.45 after 4 passes", lambda losses, done: ratios(losses), 0.45, 0, 4
    ),
    "tail.45.p6": Candidate(
        "loss over mean, tail 0.45 after 6 passes", lambda losses, done: ratios(losses), 0.45, 0, 6
    ),
    "tail.45.p8": Candidate(
        "loss over mean, tail 0.45 after 8 passes", lambda losses, done: ratios(losses), 0.45, 0, 8
    ),
    "tail.5": Candidate("loss over mean, tail 0.5", lambda losses, done: ratios(losses), 0.5),
    "tail.45.by8.after2": Candidate(
        "loss over mean after two epochs, and everything from the eighth at the latest",
        lambda losses, done: ratios(losses),
        0.45,
        latest=8,
        warmup=2,
    ),
    "tail.45.by4": ending("fourth", 4),
    "tail.45.by5": ending("fifth", 5),
    "tail.45.by8": ending("eighth", 8),
    "tail.45.by9": ending("ninth", 9),
    "least.3.tail.45.by9": ending("ninth", 9, least=0.3),
    "least.5.tail.45.by9": ending("ninth", 9, least=0.5),
    "least.7.tail.45.by9": ending("ninth", 9, least=0.7),
    "as.tail.45.by9": ending("ninth", 9)._replace(
        what="loss over mean, tail 0.45, and from the ninth epoch at the latest, at least as large "
        "a share drawn as this tail has",
        as_tail=True,
    ),
    "late.5": Candidate(
        "loss over mean, in the second half alone", lambda losses, done: ratios(losses), share=0.5
    ),
    "late.75": Candidate(
        "loss over mean, in the last quarter alone",
        lambda losses, done: ratios(losses),
        share=0.75,
    ),
    "memorised": Candidate(
        "loss over mean, at least what held-back losses say",
        lambda losses, done: ratios(losses),
        memorised=True,
    ),
    "memorised.tail.45": Candidate(
        "loss over mean, at least what held-back losses say, tail 0.45",
        lambda losses, done: ratios(losses),
        0.45,
        memorised=True,
    ),
    "forgetting": Candidate(
        "loss over mean, of losses as they have risen",
        lambda losses, done: ratios(losses),
        forgetting=True,
    ),
    "forgetting.tail.2": Candidate(
        "loss over mean, of losses as they have risen, tail 0.2",
        lambda losses, done: ratios(losses),
        0.2,
        forgetting=True,
    ),
    "forgetting.tail.45": Candidate(
        "loss over mean, of losses as they have risen, tail 0.45",
        lambda losses, done: ratios(losses),
        0.45,
        forgetting=True,
    ),
    "half.tail.45": Candidate(
        "loss over half the mean, tail 0.45", lambda losses, done: ratios(losses, certain=0.5), 0.45
    ),
    "keep.55.tail.45": Candidate(
        "percentiles, a share of 0.55, tail 0.45", lambda losses, done: percentiles(losses), 0.45
    ),
    "half": Candidate("loss over half the mean", lambda losses, done: ratios(losses, certain=0.5)),
    "half.tail.3": Candidate(
        "loss over half the mean, tail 0.3", lambda losses, done: ratios(losses, certain=0.5), 0.3
    ),
    "floor.3": Candidate("loss over mean, floor 0.3", lambda losses, done: ratios(losses, 0.3)),
    "least.4": Candidate(
        "loss over mean, mixed with uniform so that at least 0.4 are drawn",
        lambda losses, done: at_least(losses, 0.4),
    ),
    "least.5": Candidate(
        "loss over mean, mixed with uniform so that at least 0.5 are drawn",
        lambda losses, done: at_least(losses, 0.5),
    ),
    "floor.5": Candidate("loss over mean, floor 0.5", lambda losses, done: ratios(losses, 0.5)),
    "keep.55": Candidate("percentiles, a share of 0.55", lambda losses, done: percentiles(losses)),
    "mixt": Candidate(
        "mixed with uniform, which grows from 0 to 1",
        lambda losses, done: mixed(losses, lambda share: done),
    ),
    "mixtail": Candidate(
        "mixed with uniform, which grows from 0 to 1 at 0.7",
        lambda losses, done: mixed(losses, lambda share: min(1.0, done / 0.7)),
    ),
    "smix": Candidate(
        "mixed with uniform by the share drawn",
        lambda losses, done: mixed(losses, lambda share: share),
    ),
    "smixtail": Candidate(
        "mixed with uniform by the share drawn, tail 0.3",
        lambda losses, done: mixed(losses, lambda share: share),
        0.3,
    ),
    "smixt": Candidate(
        "mixed with uniform by the share drawn to a power that falls from 1 to 0",
        lambda losses, done: mixed(losses, lambda share: share ** (1 - done)),
    ),
    "w1": Candidate(
        "loss over mean, weights 1/p", lambda losses, done: ratios(losses), 0.0, lambda done: 1.0
    ),
    "wt": Candidate(
        "loss over mean, weights that anneal to 1/p",
        lambda losses, done: ratios(losses),
        exponent=lambda done: done,
    ),
    "wtf.3": Candidate(
        "loss over mean, floor 0.3, weights that anneal to 1/p",
        lambda losses, done: ratios(losses, 0.3),
        exponent=lambda done: done,
    ),
    "halfwt": Candidate(
        "loss over half the mean, weights that anneal to 1/p",
        lambda losses, done: ratios(losses, certain=0.5),
        exponent=lambda done: done,
    ),
    "wtmix": Candidate(
        "mixed with uniform, which grows as the square, weights that anneal to 1/p",
        lambda losses, done: mixed(losses, lambda share: done**2),
        exponent=lambda done: done,
    ),
}


def pictures(case: Case) -> tuple[Tensor, ...]:
    """The pictures and labels to train on, and those held out: other groups, but for one."""
    if case.data == "fonts":
        splits = (case.examples, 0), (case.held_out, 1)
        made = [make_digits(count, 0.2, 1, FONTS_SEED, split) for count, split in splits]
        both = [(torch.as_tensor(images), torch.as_tensor(labels)) for images, labels in made]
        return tuple(
            part for images, labels in both for part in (halved(images.permute(0, 3, 1, 2)), labels)
        )
    data = load.read_named(case.data, None)
    assert isinstance(data, ImageData)
    inputs = halved(data.train_inputs)
    numbers, generator = data.group_numbers, torch.Generator().manual_seed(1)
    count = int(numbers.max()) + 1
    rank = torch.empty(count, dtype=torch.int64)
    rank[torch.randperm(count, generator=generator)] = torch.arange(count)
    order = rank[numbers].argsort(stable=True)
    held_out = order[: case.held_out]
    trained = order[case.held_out : case.held_out + case.examples]
    labels = data.train_labels
    return inputs[trained], labels[trained], inputs[held_out], labels[held_out]


def halved(images: Tensor) -> Tensor:
    """Returns images of half the height and width, uint8[N, channels, height, width]."""
    return F.avg_pool2d(images.contiguous().float(), 2).round().to(torch.uint8)


def error_of(case: Case, budget: float, candidate: Candidate | None, seed: int) -> float:
    """The error on what is held out, in percent, after a training of a budget."""
    inputs, labels, unseen, right = pictures(case)
    count, total, spent, epoch = len(inputs), 3 * len(inputs) * budget, 0, 0
    held = math.ceil(count / HELD) if candidate and candidate.memorised else 0
    warm_up = round(min(candidate.share * budget, candidate.warmup)) if candidate else 0
    back, known = (inputs[:held], labels[:held]), (inputs[held:], labels[held:])
    (inputs, labels), count = known, count - held
    mean = inputs.float().mean((0, 2, 3), keepdim=True)
    deviation = inputs.float().std((0, 2, 3), keepdim=True)

    def normalised(rows: Tensor) -> Tensor:
        return ((rows.float() - mean) / deviation).contiguous(memory_format=torch.channels_last)

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"channels": inputs.shape[1], "size": tuple(inputs.shape[2:])}
    classes = int(labels.max()) + 1
    model = build(case.model, width=case.width, classes=classes, **sizes)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), case.lr, 0.9, weight_decay=5e-4, nesterov=True)
    losses, has_tail, rise = torch.full((count,), torch.nan), False, 0.0
    while spent < total:
        generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
        order = torch.randperm(count, generator=generator)
        done, weights = spent / total, torch.ones(count)
        begun = epoch > 0 and spent >= 3 * count * warm_up
        in_tail = candidate and done >= 1 - candidate.tail_of(budget) and epoch >= candidate.passes
        if candidate and begun and in_tail and not has_tail:
            has_tail = float(candidate.probabilities(losses, done).mean()) >= candidate.least
        if candidate is None or not begun or has_tail:
            batches = order.split(BATCH)[: count // BATCH]
        else:
            assert candidate is not None
            probabilities = (
                at_least(losses, candidate.tail_of(budget))
                if candidate.as_tail
                else candidate.probabilities(losses + rise, done)
            )
            remembered = losses.clone()
            if held:
                model.eval()
                with torch.no_grad():
                    there = float(F.cross_entropy(model(normalised(back[0])), back[1]))
                model.train()
                spent += held
                learned = 1 - float(losses.nanmean()) / there
                probabilities = probabilities.clamp(min=max(0.0, learned))
            draws = torch.rand(count, dtype=torch.float64, generator=generator)
            drawn = draws < probabilities
            factors = probabilities ** -candidate.exponent(done)
            factors *= probabilities.sum() / (probabilities * factors).sum()
            weights, batches = factors.float(), order[drawn[order]].split(BATCH)
        for rows in batches:
            if len(rows) < LEAST:
                continue
            optimizer.param_groups[0]["lr"] = case.lr * onecycle(spent / total)
            outputs = model(normalised(case.augment(inputs[rows], generator)))
            batch = F.cross_entropy(outputs, labels[rows], reduction="none")
            (batch * weights[rows]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[rows] = batch.detach()
            spent += 3 * len(rows)
            if spent >= total:
                break
        if candidate and candidate.forgetting and begun and not has_tail:
            uncertain = drawn & (probabilities < 1)
            copies = 1 / probabilities[uncertain]  # how many examples like it there are
            rises = (losses - remembered)[uncertain] * copies
            rise = max(0.0, float(rises.sum() / copies.sum())) if len(copies) else rise
        epoch += 1
    model.eval()
    with torch.no_grad():
        guesses = torch.cat([model(normalised(rows)).argmax(1) for rows in unseen.split(1000)])
    return 100 * float((guesses != right).double().mean())


class Runs:
    """Errors of runs by case, candidate, budget and seed, kept as lines of a file.

    Args:
        path: The file; runs that are there are not repeated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.errors: dict[tuple[str, str, float, int], float] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                run = json.loads(line)
                key = run["case"], run["candidate"], float(run["budget"]), run["seed"]
                self.errors[key] = run["error"]

    def add(self, name: str, candidate: str, budget: float, seed: int) -> None:
        """Makes a run that is missing."""
        key = name, candidate, float(budget), seed
        if key in self.errors:
            return
        error = error_of(CASES[name], budget, CANDIDATES.get(candidate), seed)
        self.errors[key] = error
        run = dict(zip(("case", "candidate", "budget", "seed"), key, strict=True))
        print(run, f"{error:.2f} %", flush=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run | {"error": error}) + "\n")

    def of(self, name: str, candidate: str, budget: float) -> dict[int, float]:
        """Returns the errors of a candidate at a budget, by seed."""
        return {
            seed: error
            for (case, tried, spent, seed), error in self.errors.items()
            if (case, tried, spent) == (name, candidate, float(budget))
        }


def goals_of(name: str, runs: Runs) -> Iterator[Goal]:
    """Yields the errors of a case, and the budget ratios on Traditional's curve."""
    case = CASES[name]
    curve = {budget: runs.of(name, TRADITIONAL, budget) for budget in case.curve}
    plain = curve[case.budget]
    for key, candidate in CANDIDATES.items():
        ends = runs.of(name, key, case.budget)
        seeds = sorted(ends.keys() & plain.keys())
        if not seeds:
            continue
        setting = f"{described(case)}: {candidate.what}"
        yield Goal(setting, "seeds", len(seeds))
        yield Goal(setting, "Traditional's error, %", mean(plain, seeds))
        yield Goal(setting, "error, %", mean(ends, seeds))
        if all(curve.values()):
            ratio = budget_ratio(curve, case.budget, ends).ratio.value
            yield Goal(setting, "budget ratio", ratio, "at least 0.97", ratio >= 0.97)


def described(case: Case) -> str:
    """Returns a case in words."""
    return f"{case.examples:,} of {case.data}, {case.model}-{case.width}, {case.budget:g} epochs"


def mean(errors: dict[int, float], seeds: list[int]) -> float:
    """Returns the mean over some seeds."""
    return statistics.fmean(errors[seed] for seed in seeds)


def main() -> None:
    parser = options(__doc__, quick="one seed of the case of MNIST, three candidates")
    parser.add_argument("--out", type=Path, default=Path("runs/default_share.jsonl"))
    parser.add_argument("--only", choices=CASES, help="one of the cases")
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, help="by default all")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds; by default one")
    parser.add_argument(
        "--read", action="store_true", help="make no run, and report those in --out"
    )
    asked = begin(parser)
    runs = Runs(asked.out)
    names = [asked.only] if asked.only else ["mnist"] if asked.quick else list(CASES)
    for name in [] if asked.read else names:
        for seed in range(asked.seeds):
            for budget in CASES[name].curve:
                runs.add(name, TRADITIONAL, budget, seed)
            for candidate in asked.candidates or list(CANDIDATES)[: 3 if asked.quick else None]:
                runs.add(name, candidate, CASES[name].budget, seed)
    report(TITLE, [goal for name in names for goal in goals_of(name, runs)], asked)


if __name__ == "__main__":
    main()
