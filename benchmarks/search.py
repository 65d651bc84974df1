"""Other draws by remembered losses: candidates beside `Memory`, at one budget.

Each candidate trains ``fastcnn`` on CIFAR-10 for the cost of so many epochs of Traditional, and is
tested on 10,000 training examples that are held out of its training. Traditional does so at five
budgets, so that an error is worth a budget (`siftback.lab.figures.budget_ratios`): what is
measured is that budget over the candidate's own. A candidate earns a place in the library where
this is above what `Memory` has, with a share and without; those that did not are here alone.

Runs that ended are skipped when it is started again with the same ``--out``.
"""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from goals import Goal, begin, options, report
from siftback import EpochRule, Fresh, TopK
from siftback.contrib import Proxy
from siftback.draws.percentile_draw import draw_probabilities
from siftback.draws.ratio_draw import ratio_probabilities
from siftback.lab.data import load
from siftback.lab.data.data_set import DataSet, ImageData
from siftback.lab.experiments import comparison
from siftback.lab.experiments.comparison import Plan, compare, prepare_data
from siftback.lab.figures.budget_ratios import budget_ratio
from siftback.lab.models import build
from siftback.lab.records.run_summary import ScoringCost
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.after_reading import AfterReading, measure_score_cost
from siftback.lab.strategies.before_reading import BeforeReading
from siftback.lab.strategies.strategy import IdealCost, Strategy
from siftback.lab.strategies.table import STRATEGIES
from siftback.rules.rule import LastLossRule
from siftback.schedule import Share
from strong_augment import StrongAugment

TITLE = "What else examples might be drawn by: fastcnn on CIFAR-10, held-out examples"
CIFAR10 = "cifar10"
read = load.read_named
COMMON: dict[str, Any] = {
    "data": CIFAR10,
    "model": "fastcnn",
    "precision": "bf16",
    "validation": 10_000,
    "evaluations": 2,
}
SEEDS = 2
QUICK = {"train_limit": 4000, "validation": 2000}

# Of the library, by strategy and share, which are those of the recipe `pays`.
KNOWN = {"sb-memory@0.55": "Memory(keep=0.55)", "sb-memory-ratio@0.5": "Memory(tail=Epochs(0))"}
SHARES = {f"sb-memory@{share}": f"Memory(keep={share})" for share in (0.33, 0.25)}


class Case(NamedTuple):
    """A trial at one setting.

    Attributes:
        changes: The setting, beside what is common to all.
        magnitude: Of `StrongAugment`'s changes of each image; None is crop and flip alone.
        methods: Of the library, by the name of their strategy.
        alone: Those of `candidates`, by the name of their strategy.
        budget: That of what is tried.
        curve: Traditional's budgets.
    """

    changes: dict[str, Any]
    magnitude: float | None = None
    methods: dict[str, str] = KNOWN
    alone: tuple[str, ...] = ()
    budget: float = 8.0
    curve: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0, 12.0)


CASES = {
    "width 16": Case(
        {},
        alone=(
            "evolved",
            "pairs",
            "class-quotas",
            "ratio-0.55",
            "ratio-root",
            "ratio-square",
            "tiny-proxy",
        ),
    ),
    "width 8": Case({"width": 8}),
    "width 32": Case({"width": 32}),
    "cutout of 8x8": Case({"cutout": 8}),
    "RandAugment": Case({}, magnitude=0.5),
    "24 epochs": Case(
        {},
        methods=KNOWN | SHARES,
        alone=("tiny-proxy",),
        budget=24.0,
        curve=(8.0, 12.0, 16.0, 24.0, 36.0),
    ),
    "48 epochs": Case(
        {},
        methods=KNOWN | SHARES,
        budget=48.0,
        curve=(16.0, 24.0, 36.0, 48.0, 72.0),
    ),
}


class Tried(LastLossRule):
    """Draws each example by a probability of its own.

    Args:
        probabilities: From the values remembered, float32[N, columns], to float64[N].
        columns: Values remembered of each example; the first is its last loss.
    """

    def __init__(self, probabilities: Callable[[Tensor], Tensor], columns: int = 1) -> None:
        super().__init__(columns=columns)
        self._probabilities = probabilities

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Independent draws."""
        probabilities = self._probabilities(self.values)
        draws = torch.rand(len(probabilities), dtype=torch.float64, generator=generator)
        return (draws < probabilities).float()


class Evolved(Tried):
    """Evolved Sampling: by a mix of the last loss and a slow average of the losses before it.

    With loss l and slow average s, the score is ``0.2 s + 0.8 l``, and then s becomes
    ``0.9 s + 0.1 l``; drawn as `Memory` without a share does.
    """

    def __init__(self, floor: float) -> None:
        super().__init__(lambda values: ratio_probabilities(values[:, 0], floor), columns=2)

    def update(self, indices: Tensor, losses: Tensor, epoch: int, **_: Any) -> None:
        """Remembers the score, and the slow average."""
        slow = self.values[indices, 1]
        slow = torch.where(slow.isfinite(), slow, losses)
        self.table.record(indices, 0.2 * slow + 0.8 * losses, column=0)
        self.table.record(indices, 0.9 * slow + 0.1 * losses, column=1)


class Pairs(Tried):
    """Visits in pairs: an example that is drawn after an epoch without it is drawn again.

    The share of epochs with a visit is that of `Memory(keep=0.55)`: r, if a pair begins with
    probability ``r / (2 - r)`` in each epoch that is not the second of a pair.
    """

    def __init__(self, beta: float, floor: float) -> None:
        super().__init__(lambda values: draw_probabilities(values[:, 0], beta, floor), columns=2)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """The second visits, and those that begin a pair."""
        second = self.values[:, 1] == 1
        share = self._probabilities(self.values)
        draws = torch.rand(len(share), dtype=torch.float64, generator=generator)
        first = ~second & (draws < share / (2 - share))
        self.values[:, 1] = first.float()
        return (first | second).float()


def of_classes(labels: Tensor, beta: float, floor: float) -> Callable[[Tensor], Tensor]:
    """Percentiles within the class, so that each has its share, of losses clipped at 95 %."""

    def probabilities(values: Tensor) -> Tensor:
        losses = values[:, 0]
        losses = losses.clamp(max=float(losses.sort().values[int(0.95 * len(losses))]))
        drawn = torch.empty(len(losses), dtype=torch.float64)
        for label in labels.unique():
            own = labels == label
            drawn[own] = draw_probabilities(losses[own], beta, floor)
        return drawn

    return probabilities


def powered(exponent: float, floor: float) -> Callable[[Tensor], Tensor]:
    """As `Memory` without a share, by a power of the losses."""
    return lambda values: ratio_probabilities(values[:, 0] ** exponent, floor)


def ratio_of_share(keep: float, floor: float) -> Callable[[Tensor], Tensor]:
    """As `Memory` without a share, of losses times the factor by which ``keep`` are drawn."""

    def probabilities(values: Tensor) -> Tensor:
        losses = values[:, 0]
        low, high = 0.0, 1e6  # factors of loss over mean, by bisection
        for _ in range(60):
            factor = (low + high) / 2
            share = (factor * losses / losses.mean()).clamp(floor, 1).mean()
            low, high = (factor, high) if share < keep else (low, factor)
        return (low * losses.double() / losses.mean()).clamp(floor, 1)

    return probabilities


def tiny_proxy(settings: Settings, data: DataSet) -> Proxy:
    """A ``fastcnn`` of a quarter of the width, trained alongside."""
    with torch.random.fork_rng([]):  # the model's own weights are those of every strategy
        small = build("fastcnn", width=4, classes=data.classes, channels=3)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    return Proxy(small, optimizer, Fresh(autocast=torch.bfloat16))


def price(strategy: Strategy, settings: Settings, data: DataSet) -> ScoringCost | None:
    """As measured, but for the tiny proxy, which has the price that the goal allows it.

    On a processor a small network is slow for its size. Scoring a batch and training on half of
    it then cost 0.05 forwards of the model in all.
    """
    if strategy.name == "tiny-proxy":
        return ScoringCost(0.02, 0.02, 0.02, 1)
    return measure_score_cost(strategy, settings, data)


def candidates(labels: Tensor) -> dict[str, Strategy]:
    """Returns what is tried besides the library's own, by the name of its strategy."""

    def by_rule(name: str, what: str, make: Callable[[float], EpochRule]) -> Strategy:
        return Strategy(
            name,
            what,
            IdealCost(3),
            BeforeReading,
            lambda keep, settings: make(settings.floor),
            warmup=Share(0.15),
        )

    tried = (
        by_rule("evolved", "Evolved Sampling", Evolved),
        by_rule("pairs", "visits in pairs", lambda floor: Pairs(1.0, floor)),
        by_rule(
            "class-quotas",
            "class quotas of clipped losses",
            lambda floor: Tried(of_classes(labels, 1.0, floor)),
        ),
        by_rule(
            "ratio-0.55",
            "ratios with a share of 0.55",
            lambda floor: Tried(ratio_of_share(0.55, floor)),
        ),
        by_rule("ratio-root", "ratios of roots", lambda floor: Tried(powered(0.5, floor))),
        by_rule("ratio-square", "ratios of squares", lambda floor: Tried(powered(2.0, floor))),
        Strategy(
            "tiny-proxy",
            "a tiny proxy's harder half",
            IdealCost(3, offered=1, cheap_scores=True, proxy=3),
            AfterReading,
            lambda keep, settings: TopK(keep=keep),
            lambda settings, data, _: tiny_proxy(settings, data),
        ),
    )
    return {strategy.name: strategy for strategy in tried}


def errors(settings: Settings, names: list[str], seeds: list[int], out: Path) -> dict[str, Any]:
    """Final errors in percent by strategy and share, and of each by seed."""
    print(out.name, flush=True)
    plan = Plan(settings, names, (0.5,), seeds, matched=False)
    runs = compare(plan, out, Reporter(), existing="resume" if out.exists() else "refuse").runs
    found: dict[str, dict[int, float]] = {}
    for run in (run for run in runs if run.seed in seeds):
        name = f"{run.strategy}@{run.keep_asked}"
        found.setdefault(name, {})[run.seed] = run.test_error_final
        print(f"  {name} {run.seed}: {run.test_error_final:.2f} %", flush=True)
    return found


def data_of(case: Case) -> ImageData:
    """CIFAR-10 with the augmentation of a case."""
    data = read(CIFAR10, None)
    assert isinstance(data, ImageData)
    if case.magnitude is None:
        return data
    plain = data.augmentation
    strong = StrongAugment(plain.padding, plain.flip, magnitude=case.magnitude)
    return replace(data, augmentation=strong)


def measure(name: str, quick: bool, out: Path) -> list[Goal]:
    """The budget ratios of one case."""
    case, scale = CASES[name], 1 / 2 if quick else 1.0
    seeds = list(range(1 if quick else SEEDS))
    common = COMMON | case.changes | (QUICK if quick else {})
    at = {budget * scale: Settings(**common, budget=budget * scale) for budget in case.curve}
    own, place = case.budget * scale, out / name.replace(" ", "-")
    load.read_named = lambda name, max_tokens: data_of(case)
    labels = prepare_data(Plan(at[own], ["traditional"], (0.5,), seeds, matched=False)).train_labels
    tried = {key: candidates(labels)[key] for key in case.alone}
    STRATEGIES.update(tried)
    comparison.measure_score_cost = price
    methods = case.methods | {f"{key}@0.5": strategy.summary for key, strategy in tried.items()}
    curve, found = {}, {}
    for budget, settings in at.items():
        names = ["traditional", *(methods if budget == own else ())]
        ends = errors(settings, names, seeds, place / f"{budget:g}")
        curve[budget] = ends.pop("traditional@1.0")
        found |= ends
    goals = []
    for key, what in methods.items():
        made = budget_ratio(curve, own, found[key])
        setting, ratio = f"{name}: {what}, budget {own:g}", made.ratio
        goals += [
            Goal(setting, "seeds", made.seeds),
            Goal(setting, "Traditional's error, %", mean(curve[own])),
            Goal(setting, "error, %", mean(found[key])),
            Goal(setting, "budget ratio", ratio.value, "at least 1.5", ratio.value >= 1.5),
        ]
        if made.seeds > 1:
            goals.append(Goal(setting, "lower end of its 95 % interval", made.low.value))
            goals.append(Goal(setting, "upper end", made.high.value))
    return goals


def mean(ends: Mapping[int, float]) -> float:
    """The mean over the seeds."""
    return statistics.fmean(ends.values())


def recorded(path: Path, quick: bool) -> dict[str, list[Goal]]:
    """The ratios of an earlier record, by case; none where there is no file."""
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["environment"]["arguments"]["quick"] != quick:
        raise SystemExit(
            f"{path} was made {'without' if quick else 'with'} --quick, and --only would keep its "
            "other cases: expected a record made alike; name another file as --json"
        )
    found: dict[str, list[Goal]] = {}
    for row in record["rows"]:
        goal = Goal(**row)
        found.setdefault(goal.setting.partition(":")[0], []).append(goal)
    return found


def main() -> None:
    parser = options(
        __doc__, quick="one seed of 4,000 examples, half of them held out, half the budgets"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/search"), help="folder of the runs")
    parser.add_argument(
        "--only", choices=CASES, help="one of the cases; a file at --json keeps its other cases"
    )
    asked = begin(parser)
    found = recorded(asked.json, asked.quick) if asked.only and asked.json else {}
    for name in [asked.only] if asked.only else CASES:
        found[name] = measure(name, asked.quick, asked.out)
    goals = [goal for name in CASES for goal in found.get(name, [])]
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
