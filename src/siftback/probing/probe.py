"""What selection would cost and save on a user's own model, measured in a minute."""

import copy
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from siftback.arguments import is_number
from siftback.device_time import now
from siftback.errors import ConfigError
from siftback.loader import SelectiveLoader
from siftback.loading import tree
from siftback.loss_functions import Losses, LossFn, check, resolve
from siftback.probing.advice import Advice, advise
from siftback.probing.agreement import Agreement, agreement
from siftback.probing.costs import SB, SINGLE_PASS, Row, Seconds, rows
from siftback.probing.sample import Sample, unmoved
from siftback.scorers.fresh import Fresh, Scorer, device_of, untouched
from siftback.selectors.percentile import Percentile
from siftback.selectors.selection import Selector
from siftback.selectors.uniform import Uniform
from siftback.single_pass.self_check import gradients

T = TypeVar("T")

# A median needs a few; a model so small that it gets to the most has used a fraction of the time.
LEAST_ROUNDS, MOST_ROUNDS = 3, 50
# Passes of the loader's own part that one round times together, each being so short.
REPEATS = 8


@dataclass(frozen=True)
class Probe:
    """What was measured on one model, its batches and its device.

    Attributes:
        device: Where it was measured.
        batch_size: N, examples of a batch.
        parameters: How many numbers of the model are trained.
        optimizer: The type of the optimizer measured; "SGD" where none was given.
        rounds: How often each part was measured, in turns.
        noise: Half the interquartile range of the training steps' seconds, over their median.
        seconds: Medians over the rounds, by part.
        seconds_compiling: What the single pass takes once, before its first step.
        rows: Each strategy at each share kept; the first is Traditional.
        agreement: Of each cheaper scorer with the exact one, by name.
        failures: Why something could not be measured, by its name.
        advice: What to do, and why.
        seconds_taken: How long all of this took.

    >>> from torch.nn import functional as F
    >>> batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(2)]
    >>> found = probe(nn.Linear(8, 4), batches, F.cross_entropy, keep=[0.5], single_pass=False)
    >>> [row["strategy"] for row in found.table()]
    ['traditional', 'sb', 'stale-sb', 'sb-memory', 'random']
    """

    device: str
    batch_size: int
    parameters: int
    optimizer: str
    rounds: int
    noise: float
    seconds: Seconds
    seconds_compiling: float | None
    rows: tuple[Row, ...]
    agreement: Mapping[str, Agreement]
    failures: Mapping[str, str]
    advice: Advice
    seconds_taken: float

    @property
    def forward_share(self) -> float:
        """f, the forward's share of a forward and a backward."""
        return self.seconds.forward_share

    @property
    def recommendation(self) -> str:
        """What to do, in plain words, with the reason and what was not measured."""
        return self.advice.text

    def table(self) -> list[dict[str, Any]]:
        """A dict a strategy and share kept, with the fields of `siftback.probing.costs.Row`."""
        return [asdict(row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data: dicts, lists, numbers, texts and None."""
        seconds = asdict(self.seconds)
        seconds["single_pass"] = [
            {"keep": keep, "seconds": each} for keep, each in self.seconds.single_pass.items()
        ]
        whole: dict[str, Any] = asdict(self) | {"seconds": seconds, "rows": self.table()}
        return {"forward_share": self.forward_share, **whole}

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


def probe(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: LossFn | None = None,
    *,
    losses: Losses | None = None,
    keep: Sequence[float] = (1 / 2, 1 / 3, 1 / 4),
    scorers: Mapping[str, Scorer] | None = None,
    single_pass: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    seconds: float = 45,
    seed: int = 0,
) -> Probe:
    """Measures whether selection would pay for a model, on its own batches and device.

    Loading, forward, backward, optimizer, the loader's own part of a selection, each scorer and
    the single pass have a turn in every round, so that a busy machine slows all alike; medians
    over the rounds count. `siftback.probing.costs.rows` has the formulas for what they add up to.

    The model is not changed: its parameters are never stepped, and its buffers, modes and
    gradients, and the random states of PyTorch, NumPy, Python and the loader, are afterwards
    what they were. Scorers and the optimizer are copied, and the copies used. Up to eight batches
    are held while it measures. Communication between processes is not measured.

    Args:
        model: The model to train, on its device.
        loader: The batches it is trained on; where it is of PyTorch and has workers, loading
            counts as going on beside training.
        loss_fn: ``loss_fn(outputs, targets)``, as for `SelectiveLoader`.
        losses: In place of ``loss_fn``: ``losses(model, batch) -> Tensor[N]``.
        keep: Shares of the examples to keep, each in (0, 1).
        scorers: Cheaper scorers than a fresh forward by name; "sb-" goes before the name.
        single_pass: Whether to measure the single pass, which compiles the model.
        optimizer: The optimizer of training; SGD with momentum stands in for one not given.
        device: Where to move each batch; None leaves it where it is.
        autocast: The type of mixed precision that training computes in, and the exact scores.
        seconds: How long to measure. Three rounds after warming up are made however long it takes.
        seed: Of draws.

    Raises:
        BatchError: Where the loader gives no batch, or one on another device than the model.
        ConfigError: Where an argument is out of its range.
        LossError: Where there is not one floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> batches = [(torch.randn(64, 8), torch.randint(4, (64,))) for _ in range(4)]
    >>> found = probe(model, batches, F.cross_entropy, single_pass=False)
    >>> 0 < found.forward_share < 1, len(found.rows), found.rounds > 0
    (True, 13, True)
    """
    started = time.monotonic()
    keeps = _checked(loader, keep, scorers, seconds)
    compute = resolve(loss_fn, losses)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"no parameter of {type(model).__name__} takes a gradient: give a model to be trained"
        )
    with unmoved(loader):
        sample = Sample(loader, None if device is None else torch.device(device))
        where = device_of(model, sample.first())
        with untouched(model, "train", where):
            rounds = _Rounds(model, compute, sample, where, keeps, autocast, seed)
            rounds.prepare(scorers or {}, optimizer, single_pass)
            rounds.run(started + seconds)
    measured = rounds.seconds()
    table = rows(measured, keeps)
    agreements = rounds.agreements()
    steps = [
        sum(pair) for pair in zip(rounds.took["forward"], rounds.took["backward"], strict=True)
    ]
    return Probe(
        device=str(where),
        batch_size=sample.size,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        optimizer="SGD" if optimizer is None else type(optimizer).__name__,
        rounds=len(steps),
        noise=_noise(steps),
        seconds=measured,
        seconds_compiling=rounds.seconds_compiling,
        rows=table,
        agreement=agreements,
        failures=rounds.failures,
        advice=advise(measured, table, agreements, keeps),
        seconds_taken=time.monotonic() - started,
    )


class _Given(Scorer):
    """Scores that are there already: what is left is the loader's own part."""

    def __init__(self, scores: Tensor) -> None:
        self._scores = scores

    def score(self, losses: Losses, model: nn.Module, batch: Any) -> Tensor:
        return self._scores


class _Rounds:
    """Everything that is measured, each in its turn, round after round."""

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        sample: Sample,
        device: torch.device,
        keeps: Sequence[float],
        autocast: torch.dtype | None,
        seed: int,
    ) -> None:
        self.model, self.losses, self.sample, self.device = model, losses, sample, device
        self.keeps, self.autocast, self.seed = keeps, autocast, seed
        self.took: dict[str, list[float]] = defaultdict(list)
        self.failures: dict[str, str] = {}
        self.seconds_compiling: float | None = None
        self._scorers: dict[str, Scorer] = {SB: Fresh(autocast=autocast)}
        self._scores: dict[str, dict[int, Tensor]] = defaultdict(dict)  # by name and batch
        self._optimizer: torch.optim.Optimizer | None = None
        self._sift: Any = None

    def prepare(
        self,
        scorers: Mapping[str, Scorer],
        optimizer: torch.optim.Optimizer | None,
        single_pass: bool,
    ) -> None:
        """Copies what would be changed by measuring it."""
        for name, scorer in scorers.items():
            with self._reporting(f"sb-{name}"):
                self._scorers[f"sb-{name}"] = copy.deepcopy(scorer)
        with self._reporting("optimizer"):
            self._optimizer = _stepped(self.model, optimizer)
        if single_pass:
            from siftback.single_pass.single_pass import SinglePass  # brings in the compiler

            self._sift = SinglePass(self.model, losses=self.losses, keep=self.keeps[0])

    def run(self, deadline: float) -> None:
        """Rounds until the deadline: one to warm up, and no less than a few that count."""
        if self.sample.workers:
            self.sample.read_ahead((time.monotonic() + deadline) / 2)
        for turn in range(MOST_ROUNDS + 1):
            started = time.monotonic()
            self._round(turn)
            if turn == 0:
                self.took.clear()
            ended = time.monotonic()
            if turn >= LEAST_ROUNDS and 2 * ended - started > deadline:
                break

    def seconds(self) -> Seconds:
        """The medians; the mean of what a scorer does after a step, as it may do it seldom."""
        middle = {name: statistics.median(each) for name, each in self.took.items()}
        scorers = [name for name in self._scorers if name not in self.failures]
        return Seconds(
            loading=statistics.median(self.sample.took[1:] or self.sample.took),
            forward=middle["forward"],
            backward=middle["backward"],
            optimizer=middle.get("optimizer", 0.0),
            choosing=middle["choosing"],
            drawing=middle["drawing"],
            scores={name: middle[name] for name in scorers},
            refreshes={name: statistics.fmean(self.took[_after(name)]) for name in scorers},
            single_pass={
                keep: middle[_single(keep)] for keep in self.keeps if _single(keep) in middle
            },
            loads_ahead=self.sample.workers > 0,
        )

    def agreements(self) -> dict[str, Agreement]:
        """Of each scorer with the exact one, on the batches that both have scored."""
        exact = self._scores[SB]
        found = {}
        for name, scores in self._scores.items():
            places = sorted(exact.keys() & scores.keys())
            if name != SB and name not in self.failures and places:
                one, other = (torch.cat([each[at] for at in places]) for each in (exact, scores))
                found[name] = agreement(one, other, self.keeps, self.seed)
        return found

    def _round(self, turn: int) -> None:
        place, batch = self.sample.next(turn)
        self._train(batch)
        if self._optimizer is not None:
            with self._reporting("optimizer"):
                self._timed("optimizer", self._optimizer.step)
        for name, scorer in self._scorers.items():
            if name not in self.failures:
                with self._reporting(name) if name != SB else nullcontext():
                    self._score(name, scorer, place, batch)
        scores = self._scores[SB][place]
        self._select("choosing", batch, Percentile(keep=_middle(self.keeps)), scores)
        self._select("drawing", batch, Uniform(keep=_middle(self.keeps)), scores)
        if self._sift is not None:
            with self._reporting(SINGLE_PASS):
                self._single_pass(place, batch)

    def _train(self, batch: Any) -> None:
        def forward() -> Tensor:
            with self._casting():
                return self.losses(self.model, batch)

        losses = self._timed("forward", forward)
        check(losses, self.sample.size)
        self._timed("backward", lambda: gradients(self.model, losses.mean()))

    def _score(self, name: str, scorer: Scorer, place: int, batch: Any) -> None:
        scores = self._timed(name, lambda: scorer.score(self.losses, self.model, batch))
        self._scores[name].setdefault(place, check(scores, self.sample.size))
        self._timed(_after(name), lambda: scorer.after_step(self.losses, self.model, batch))

    def _select(self, name: str, batch: Any, selector: Selector, scores: Tensor) -> None:
        """Times the loader's own part, with scores that are given."""
        loader = SelectiveLoader(
            [batch] * REPEATS,
            self.model,
            losses=self.losses,
            selector=selector,
            scorer=_Given(scores.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)),
            batch_size=self.sample.size,
            drop_last="carry",
            seed=self.seed,
        )
        self._timed(name, lambda: sum(1 for _ in loader))
        self.took[name][-1] /= REPEATS

    def _single_pass(self, place: int, batch: Any) -> None:
        sift = self._sift
        # The compiler marks the tensors it is given, and these are the user's.
        batch = tree.take(batch, torch.arange(self.sample.size, device=self.device))

        def step() -> None:
            with self._casting():
                loss = sift(batch)
            gradients(self.model, loss)

        for keep in self.keeps:
            sift.selector = Percentile(keep=keep)
            self._timed(_single(keep), step)
        self._scores[SINGLE_PASS].setdefault(place, sift.losses)
        self.seconds_compiling = sift.stats.seconds_compiling

    def _timed(self, name: str, run: Callable[[], T]) -> T:
        started = now(self.device)
        result = run()
        self.took[name].append(now(self.device) - started)
        return result

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """An error is a finding: whatever it is, the rest is measured all the same."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"
            if name == SINGLE_PASS:
                self._sift = None
                for keep in self.keeps:
                    self.took.pop(_single(keep), None)
            elif name == "optimizer":
                self._optimizer = None

    def _casting(self) -> Any:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)


def _checked(
    loader: Iterable[Any],
    keeps: Sequence[float],
    scorers: Mapping[str, Scorer] | None,
    seconds: float,
) -> tuple[float, ...]:
    """The shares to keep, once and in their order, after all arguments were looked at."""
    if isinstance(loader, SelectiveLoader):
        raise ConfigError("a SelectiveLoader given: give the loader that it wraps")
    if not keeps or not all(is_number(share) and 0 < share < 1 for share in keeps):
        raise ConfigError(f"keep={keeps!r}: give shares in (0, 1), such as (1/2, 1/3)")
    for name, scorer in (scorers or {}).items():
        if not isinstance(scorer, Scorer):
            raise ConfigError(
                f"scorers[{name!r}] is a {type(scorer).__name__}: give a siftback.Scorer"
            )
    if not is_number(seconds) or seconds <= 0:
        raise ConfigError(f"seconds={seconds!r}: give how long to measure, more than 0")
    return tuple(dict.fromkeys(float(share) for share in keeps))


def _stepped(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
    """An optimizer that steps copies of the parameters; SGD with momentum where none is given."""
    if optimizer is None:
        copies = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        stepped: torch.optim.Optimizer = torch.optim.SGD(copies, lr=1e-9, momentum=0.9)
    else:
        stepped = copy.deepcopy(optimizer)
    for group in stepped.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    return stepped


def _noise(seconds: Sequence[float]) -> float:
    if len(seconds) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def _middle(keeps: Sequence[float]) -> float:
    return sorted(keeps)[len(keeps) // 2]


def _after(name: str) -> str:
    return f"after {name}"


def _single(keep: float) -> str:
    return f"{SINGLE_PASS} {keep}"
