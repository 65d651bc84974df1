"""Timing of each part of training and of selection, in alternating rounds."""

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.pool import Pool
from siftback.batches.source import ScoredBatch
from siftback.device_time import now
from siftback.errors import LossError
from siftback.loader.face import SelectiveLoader
from siftback.losses.per_example import Losses, check_losses
from siftback.probing.agreement import Agreement, agreement
from siftback.probing.costs import SB, SINGLE_PASS, Seconds
from siftback.probing.sample import Sample
from siftback.rules.memory import Memory
from siftback.schedule import Epochs, Schedule
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import Fresh
from siftback.selectors.percentile import Percentile
from siftback.selectors.selection import Selector
from siftback.selectors.uniform import Uniform
from siftback.single_pass.self_check import gradients

T = TypeVar("T")

# Quartiles need two; only small models reach the maximum, whose medians change little with more.
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 24
# Batches that one round times together for the loader's own part, as each is short.
_REPEATS = 8
# Maximum number of examples to time memory's draw on; its time grows in proportion beyond.
_MOST_EXAMPLES = 1_000_000


class Rounds:
    """Measures every part once per round.

    Args:
        model: The model, in training mode; `run` does not change its parameters.
        losses: ``losses(model, batch) -> Tensor[N]``.
        sample: The batches to measure on; the first was already read.
        device: Device of the model.
        keeps: Shares of the examples to keep.
        autocast: The dtype that training computes in; None follows the active autocast.
        seed: Seed of the random numbers.

    Attributes:
        took: Seconds by name of the part, one value per round.
        failures: Reasons why something could not be measured, by name.
        seconds_compiling: Seconds that the single pass took once; None if it was not measured.
    """

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
        self._model, self._losses, self._sample, self._device = model, losses, sample, device
        self._keeps, self._seed = keeps, seed
        self._keep = sorted(keeps)[len(keeps) // 2]
        self._cast = torch.autocast(device.type, autocast) if autocast else nullcontext()
        self.took: dict[Any, list[float]] = defaultdict(list)
        self.failures: dict[str, str] = {}
        self.seconds_compiling: float | None = None
        self._scores: dict[str, dict[int, Tensor]] = defaultdict(dict)  # by name and batch
        self._exact = Fresh(autocast=autocast)
        self._memory = _Remembered(sample, self._keep, seed)
        # What may fail, by name; everything else is then still measured.
        self._fallible: dict[str, Callable[[int, Batch], None]] = {}
        self._lasted: dict[str, float] = {}  # seconds of each of these, when last measured

    def prepare(
        self,
        scorers: Mapping[str, Scorer],
        optimizer: torch.optim.Optimizer | None,
        single_pass: bool,
    ) -> None:
        """Copies objects that measuring would change."""
        with self._reporting("optimizer"):
            copied = optimizer_of_copies(self._model, optimizer)
            self._fallible["optimizer"] = lambda *_: self._time("optimizer", copied.step)
        for name, scorer in scorers.items():
            with self._reporting(f"sb-{name}"):
                score = partial(self._score, f"sb-{name}", copy.deepcopy(scorer))
                self._fallible[f"sb-{name}"] = score
        if single_pass:
            from siftback.single_pass.single_pass import SinglePass  # brings in the compiler

            now, keep = Schedule(warmup=Epochs(0)), self._keeps[0]
            sift = SinglePass(self._model, losses=self._losses, keep=keep, schedule=now)
            self._fallible[SINGLE_PASS] = partial(self._step_once, sift)

    def run(self, deadline: float) -> None:
        """Runs rounds until the deadline: one to warm up, and a minimum number that count.

        Every part is measured at least once; beyond that, what has no more time is left out.
        """
        if self._sample.workers:
            self._sample.read_ahead((time.monotonic() + deadline) / 2)
        for turn in range(_MOST_ROUNDS + 1):
            started = time.monotonic()
            self._round(turn, deadline)
            if turn == 0:
                self.took.clear()
            if turn >= _LEAST_ROUNDS and 2 * time.monotonic() - started > deadline:
                break

    def seconds(self) -> Seconds:
        """Returns medians over the rounds; means for a scorer's work after a step, often rare."""
        middle = {name: statistics.median(took) for name, took in self.took.items()}
        scorers = [name for name in self._scores if name not in (SINGLE_PASS, *self.failures)]
        shares = self._keeps if SINGLE_PASS in self._scores.keys() - self.failures else ()
        return Seconds(
            loading=statistics.median(self._sample.took[1:] or self._sample.took),
            forward=middle["forward"],
            backward=middle["backward"],
            optimizer=middle.get("optimizer", 0.0),
            choosing=middle["choosing"],
            choosing_uniformly=middle["choosing uniformly"],
            drawing=middle["drawing"],
            recording=middle["recording"],
            scores={name: middle[name] for name in scorers},
            refreshes={name: statistics.fmean(self.took["after", name]) for name in scorers},
            single_pass={keep: middle[SINGLE_PASS, keep] for keep in shares},
            loads_ahead=self._sample.workers > 0,
            reads_chosen_only=self._sample.reads_chosen_only,
        )

    def agreements(self) -> dict[str, Agreement]:
        """Computes each scorer's agreement with the exact one, on batches that both have scored."""
        exact, agreements = self._scores[SB], {}
        for name, scores in self._scores.items():
            common = sorted(exact.keys() & scores.keys())
            if common and name not in (SB, *self.failures):
                first, second = (torch.cat([by[i] for i in common]) for by in (exact, scores))
                agreements[name] = agreement(first, second, self._keeps, self._seed)
        return agreements

    def _round(self, turn: int, deadline: float) -> None:
        index, item = self._sample.next(turn)
        self._train(tree.clone(item.data))  # copies, as a model may write to its inputs
        self._score(SB, self._exact, index, item)
        for name, measure in list(self._fallible.items()):
            started = time.monotonic()
            if turn < _LEAST_ROUNDS or started + self._lasted[name] <= deadline:
                with self._reporting(name):
                    measure(index, item)
                self._lasted[name] = time.monotonic() - started
        scores = self._scores[SB][index].nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        self._select("choosing", item.data, scores, Percentile(keep=self._keep))
        self._select("choosing uniformly", item.data, scores, Uniform(keep=self._keep))
        self._remember(item.data, scores)

    def _train(self, batch: Any) -> None:
        def forward() -> Tensor:
            with self._cast:
                return self._losses(self._model, batch)

        losses = self._time("forward", forward)
        finite = check_losses(losses, self._sample.size).isfinite()
        if not bool(finite.all()):
            raise LossError(
                f"the loss of example {int((~finite).nonzero()[0])} of a batch is not finite, and "
                "what selection saves cannot be told from such losses: give a model and a loss "
                "function whose losses are finite, and data without NaN"
            )
        self._time("backward", lambda: gradients(self._model, losses.mean()))

    def _score(self, name: str, scorer: Scorer, index: int, item: Batch) -> None:
        losses, model, batch = self._losses, self._model, tree.clone(item.data)
        scores = self._time(name, lambda: scorer.score(losses, model, batch, item.indices))
        self._scores[name].setdefault(index, check_losses(scores, self._sample.size))
        self._time(("after", name), lambda: scorer.after_step(losses, model, batch))

    def _step_once(self, sift: Any, index: int, item: Batch) -> None:
        def step(batch: Any) -> None:
            with self._cast:
                loss = sift(batch)
            gradients(self._model, loss)

        # The first call compiles, for every share; of batches of one row none does.
        for keep in self._keeps if self._scores[SINGLE_PASS] else self._keeps[:1]:
            sift.selector = Percentile(keep=keep)
            # The compiler marks its input tensors, and these are the user's.
            self._time((SINGLE_PASS, keep), partial(step, tree.clone(item.data)))
        self._scores[SINGLE_PASS].setdefault(index, sift.losses)
        self.seconds_compiling = sift.stats.seconds_compiling

    def _select(self, name: str, batch: Any, scores: Tensor, selector: Selector) -> None:
        """Times the loader's own work in a selection, with given scores."""
        loader = SelectiveLoader(
            [ScoredBatch(batch, scores)] * _REPEATS,
            self._model,
            losses=self._losses,
            selector=selector,
            schedule=Schedule(warmup=Epochs(0)),
            pool=Pool(self._sample.size, drop_last="carry"),
            seed=self._seed,
        )
        self._time(name, lambda: sum(1 for _ in loader), share=1 / _REPEATS)

    def _remember(self, batch: Any, losses: Tensor) -> None:
        """Times memory's draw of an epoch, giving drawn batches, and recording their losses."""
        memory = self._memory
        batches = memory.begin(batch)
        self._time("drawing", lambda: next(batches), share=self._sample.size / memory.examples)

        def record() -> None:
            for _ in range(_REPEATS):
                memory.loader.record(losses)
                next(batches)

        self._time("recording", record, share=1 / _REPEATS)
        memory.loader.record(losses)

    def _time(self, name: Any, run: Callable[[], T], share: float = 1.0) -> T:
        started = now(self._device)
        result = run()
        self.took[name].append((now(self._device) - started) * share)
        return result

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """Reports an error as a failure, so that everything else is still measured."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"
            self._fallible.pop(name, None)


class _Remembered:
    """A loader with a memory of as many examples as the data set has, all with a known loss.

    It always gives the same batch, so that only the loader's own work is timed.

    Args:
        sample: Gives the number of examples and the batch size.
        keep: Share of the examples to draw.
        seed: Seed of the random numbers.

    Attributes:
        examples: Number of examples to draw from.
        loader: The loader that draws and records losses.
    """

    indexed = True

    def __init__(self, sample: Sample, keep: float, seed: int) -> None:
        least = round((_REPEATS + 2) * sample.size / keep)  # so that a draw has enough batches
        self.examples = max(least, min(sample.examples or 0, _MOST_EXAMPLES))
        self._size = sample.size
        self._batch: Any = None
        self._drawn = torch.arange(self.examples)
        memory = Memory(keep=keep, floor=0.0, warmup=Epochs(0))
        self.loader = SelectiveLoader(self, memory=memory, pool=Pool(sample.size), seed=seed)
        losses = torch.rand(
            self.examples, generator=torch.Generator().manual_seed(seed), dtype=torch.float32
        )
        memory.update(torch.arange(self.examples), losses, epoch=0)

    def begin(self, batch: Any) -> Iterator[Any]:
        """An epoch of drawn examples, each batch of them given as ``batch``."""
        self._batch = batch
        self.loader.set_epoch(0)  # again, as only some batches of it are taken
        return iter(self.loader)

    def only(self, drawn: Tensor | None) -> None:
        """Gives only the drawn examples in the next epoch."""
        assert drawn is not None
        self._drawn = drawn

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        for indices in torch.split(self._drawn, self._size):
            if len(indices) == self._size:
                yield indices, self._batch


def optimizer_of_copies(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> torch.optim.Optimizer:
    """Returns an optimizer that steps copies of the parameters; by default SGD with momentum."""
    if optimizer is None:
        copies = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        copied: torch.optim.Optimizer = torch.optim.SGD(copies, lr=1e-9, momentum=0.9)
    else:
        copied = copy.deepcopy(optimizer)
    for group in copied.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    return copied
