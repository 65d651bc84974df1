"""Several strategies from the same start, with an honest baseline beside each selective one."""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from torch import nn

from siftback import RS2, EpochRule, RefreshedRule
from siftback.errors import ConfigError
from siftback.lab.data.batch_stream import BatchStream
from siftback.lab.data.data_set import KINDS, DataSet
from siftback.lab.data.datasets import load, subset, with_own_unit
from siftback.lab.data.text_data import TextData
from siftback.lab.experiments import example_scores as scores
from siftback.lab.forward import check_model_fits, training_device
from siftback.lab.records import run_files
from siftback.lab.records.atomic_write import atomic_write
from siftback.lab.records.comparison_record import SUMMARY, Comparison, RecordWriter, is_begun
from siftback.lab.records.environment import environment
from siftback.lab.records.folder_lock import locked
from siftback.lab.records.observations import OBSERVED, folder_of, kinds_of
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.run import suspects
from siftback.lab.run.checkpoints import CHECKPOINTS, CheckpointPolicy, Checkpoints
from siftback.lab.run.observer import Observer
from siftback.lab.run.progress import TENSORBOARD, Reporter
from siftback.lab.run.train import Scored, train
from siftback.lab.settings import Run, Settings, check_keep, check_seed, parse_numbers
from siftback.lab.training import strategies
from siftback.lab.training.length import BACKWARD, FORWARD, NOTHING, Length
from siftback.lab.training.rule_schedule import warmup_epochs
from siftback.lab.training.score_price import measure
from siftback.lab.training.strategy import has_guard, learns

TOKENIZER = "tokenizer.json"  # of the texts that a comparison trained on

Existing = Literal["refuse", "overwrite", "resume"]


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison.

    Attributes:
        settings: What they share.
        strategies: Names, in the order of the table. ``kath18@0.33`` is ``kath18`` with that
            share kept, whatever ``keeps`` says.
        keeps: Shares to keep; each selective strategy runs once with each, unless it has its own.
        seeds: Each is a start that all strategies share.
        matched: Whether to add, for each selective run, Traditional of the same budget. A plan
            of equal budgets, or of equal times, needs none.

    Raises:
        ConfigError: If a list is empty, has an entry twice, or an entry is unknown; where two
            entries are one run; where a strategy cannot be had with the settings.
    """

    settings: Settings
    strategies: Sequence[str]
    keeps: Sequence[float]
    seeds: Sequence[int]
    matched: bool = True

    def __post_init__(self) -> None:
        for name in ("strategies", "keeps", "seeds"):
            entries = list(getattr(self, name))
            if not entries or len(set(entries)) < len(entries):
                raise ConfigError(f"{name} {entries}: give at least one, and none twice")
        if "matched" in self.strategies:
            raise ConfigError(
                "matched is not a strategy of its own: it is added for each selective one, "
                "unless --no-matched or --budget says otherwise; leave it out of the list"
            )
        for seed in self.seeds:
            check_seed(seed)
        for keep in self.keeps:
            check_keep(keep)
        runs = self.runs()  # made, names and shares are checked
        names = [run.name for run in runs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"strategies {list(self.strategies)} with keeps {list(self.keeps)}: "
                f"{', '.join(twice)} would run twice; leave one out"
            )
        for run in runs:
            self._check(run)

    def _check(self, run: Run) -> None:
        """Makes what chooses a run's examples, which refuses what it cannot have."""
        strategy, settings = strategies.find(run.strategy), self.settings
        try:
            choice = strategy.choice(run.keep, settings)
        except ConfigError as error:
            raise ConfigError(f"{strategy.name} at keep={run.keep:g}: {error}") from None
        if settings.mixup and (learns(choice) or strategy.single_pass):
            raise ConfigError(
                f"mixup={settings.mixup} with {strategy.name}, which chooses by losses "
                "of training itself: they would be those of mixed images; leave one of them "
                "out, or take a strategy with a selection pass"
            )
        for name in ("mixup", "label_smoothing"):
            if strategy.plain_losses and (value := getattr(settings, name)):
                raise ConfigError(
                    f"{name}={value:g} with {strategy.name}, which goes by the losses of labels as "
                    "they are: leave one of them out"
                )
        if settings.noise_guard and strategy.selects and not has_guard(choice):
            raise ConfigError(
                f"{strategy.name} cannot have a noise guard, which is a part of sb-memory "
                "and sb-memory-ratio: leave --noise-guard or the strategy out"
            )

    def runs(self) -> list[Run]:
        """Every run, in order; a matched one after the run it is matched to, its budget open."""
        return [run for seed in self.seeds for run in self._of_seed(seed)]

    def _of_seed(self, seed: int) -> Iterator[Run]:
        for entry in self.strategies:
            name, keep_of_its_own = _entry(entry)
            if not strategies.find(name).selects:
                yield Run(name, 1.0, seed)
                continue
            for keep in self.keeps if keep_of_its_own is None else [keep_of_its_own]:
                yield Run(name, keep, seed)
                if self.matched and self.settings.epochs is not None:
                    yield Run("matched", keep, seed, matched_to=name)


def _entry(text: str) -> tuple[str, float | None]:
    """A strategy's name, and the share after ``@`` where it has one of its own.

    >>> _entry("sb"), _entry("kath18@1/3")
    (('sb', None), ('kath18', 0.3333333333333333))
    """
    name, at, share = text.partition("@")
    if not at:
        return name, None
    if not strategies.find(name).selects:
        raise ConfigError(f"strategy {text!r}: {name} keeps everything, leave out @{share}")
    try:
        (kept,) = parse_numbers("share", share)
        return name, kept
    except ValueError:  # none, or several
        raise ConfigError(
            f"strategy {text!r}: give a share after @, such as {name}@0.33 or {name}@1/3"
        ) from None


def is_finished(plan: Plan, folder: Path) -> bool:
    """Whether a folder holds all runs of a plan, made with its settings."""
    if not (folder / SUMMARY).is_file():
        return False
    comparison = Comparison.read(folder)
    done = {_key(summary) for summary in comparison.runs}
    return all(run.key in done for run in plan.runs()) and not _changed(
        comparison, _arguments(plan)
    )


def compare(
    plan: Plan,
    folder: Path,
    reporter: Reporter,
    existing: Existing = "refuse",
    on_model: Callable[[Run, nn.Module], None] = lambda run, model: None,
    often: CheckpointPolicy | None = None,
    data: DataSet | None = None,
) -> Comparison:
    """Runs a plan; each run that ends is at once in the folder's ``summary.json``.

    Args:
        plan: What to run.
        folder: Where records and summary go.
        reporter: Reports what happens.
        existing: What to do with a folder that holds a comparison: refuse it, overwrite it, or
            resume it, which skips the runs that have ended, and goes on with one that has not
            from its last checkpoint.
        on_model: Gets each trained model, before its run counts as ended.
        often: How often to save checkpoints; None is the default of `CheckpointPolicy`.
        data: What `prepare_data` gave of the plan, for a caller that has it.

    Raises:
        ConfigError: If the folder holds a comparison and ``existing`` does not allow it, one to
            resume was made with other settings, or another process works in it.
        StateError: If what is to be resumed is damaged.
    """
    data = prepare_data(plan) if data is None else data  # before anything is made
    with locked(folder) as is_ours:
        if not is_ours:
            raise ConfigError(
                f"another process is at work in {folder}: wait until it has ended, or give "
                "another --out"
            )
        return compare_locked(plan, data, folder, reporter, existing, on_model, often)


def compare_locked(
    plan: Plan,
    data: DataSet,
    folder: Path,
    reporter: Reporter,
    existing: Existing = "refuse",
    on_model: Callable[[Run, nn.Module], None] = lambda run, model: None,
    often: CheckpointPolicy | None = None,
) -> Comparison:
    """As `compare`, for a caller that has prepared the data and locked the folder."""
    comparison = _open(plan, folder, existing)
    if isinstance(data, TextData):
        _keep_tokenizer(data, folder, existing)
    finished = {_key(summary): summary for summary in comparison.runs}
    runs = plan.runs()
    places = {run.key: place for place, run in enumerate(runs)}
    for number, run in enumerate(runs, start=1):
        checkpoints = Checkpoints(folder / CHECKPOINTS / run.name, often or CheckpointPolicy())
        if run.key in finished:
            checkpoints.clear()
            continue
        if run.matched_to is not None:
            origin = Run(run.matched_to, run.keep, run.seed)
            run = _with_budget(run, finished[origin.key].cost_forward_units)
        reporter.start(run, number, len(runs))
        price = _price(run, plan.settings, data, comparison)
        summary = _train(run, plan.settings, data, folder, reporter, checkpoints, on_model, price)
        finished[run.key] = summary
        comparison.runs.append(summary)
        # Of a plan that was added to, as if it had been whole; what is no part of it comes last.
        comparison.runs.sort(key=lambda one: places.get(_key(one), len(places)))
        comparison.write()
        checkpoints.clear()
        reporter.finish(summary)
    return comparison


def prepare_data(plan: Plan) -> DataSet:
    """The data of a plan, once it is made sure that every one of its runs can be run.

    Raises:
        ConfigError: If one cannot, as there is no such data set or device, a batch is larger
            than what it trains on, or its length leaves it no step.
    """
    settings = plan.settings
    training_device(settings)
    data: DataSet = load(
        settings.data,
        settings.train_limit,
        settings.validation,
        settings.flip,
        settings.max_tokens,
    )
    if settings.subset is not None:
        kept = scores.read_subset(Path(settings.subset), settings, data)
        data = with_own_unit(subset(data, kept))
    BatchStream(data, settings.batch_size, seed=0)  # a size that does not fit is refused here
    check_model_fits(settings, data)
    _check_settings(settings, data)
    for run in plan.runs():
        _check_run(run, settings, data)
    return data


def _check_settings(settings: Settings, data: DataSet) -> None:
    """Refuses what is not to be had of examples of this kind."""
    of_images = {"mixup": settings.mixup, "cutout": settings.cutout}
    for name, value in of_images.items():
        if value and data.kind != "images":
            raise ConfigError(
                f"{name}={value} is of images, and {data.name} holds texts: leave it out"
            )
    if data.kind == "language" and "confidence" in kinds_of(settings.observe):
        raise ConfigError(
            f"observe={settings.observe!r} of {data.name}: confidence is that in an example's "
            "class, and its examples have none; leave it out"
        )


def _check_run(run: Run, settings: Settings, data: DataSet) -> None:
    """Refuses a run that would fail only once it has begun.

    Args:
        run: Which run.
        settings: What it shares with the others.
        data: What it is to be trained on.
    """
    strategy, examples = strategies.find(run.strategy), len(data.train_labels)
    if data.kind not in strategy.kinds:
        these = " and ".join(KINDS[kind] for kind in strategy.kinds)
        raise ConfigError(
            f"{strategy.name} is a strategy for {these}, and {data.name} holds {KINDS[data.kind]}: "
            "leave it out"
        )
    if data.kind == "language" and has_guard(strategy.choice(run.keep, settings)):
        raise ConfigError(
            f"{strategy.name} with a noise guard, which holds back wrong labels, and the examples "
            f"of {data.name} have none: leave it out"
        )
    spent = NOTHING
    if (name := strategy.score(run.keep)) is not None:
        scores.check_score(name, settings, data)
        spent = NOTHING._replace(cost=scores.least_cost(settings, examples))
    length = Length.of(run, settings, examples // settings.batch_size * settings.batch_size, spent)
    left = examples - int(strategy.dropped(run.keep) * examples + 0.5)
    size = strategy.selection_batch(run.keep, settings)
    if size > left:
        raise ConfigError(
            f"{run.name} takes batches of {size} examples and has {left} to train on: give a "
            "smaller --batch-size, a larger --keep or more examples"
        )
    choice = strategy.choice(run.keep, settings)
    # Other rules train on each example at least once; how long a time is, nobody knows beforehand.
    keeps_its_share = not isinstance(choice, EpochRule) or isinstance(choice, RefreshedRule | RS2)
    if choice is not None and keeps_its_share and length.kind != "seconds":
        price = strategy.cost.amount(run.keep, settings.stale_every)
        by_cost = 1 if length.kind == "epochs" else (FORWARD + BACKWARD) * left
        whole = length.amount / by_cost
        warm = warmup_epochs(strategy.warmed(settings), whole)
        epochs = (whole - warm) * (1 if length.kind == "epochs" else by_cost / (price * left))
        kept = (warm + math.ceil(epochs) * strategy.kept_of_left(run.keep)) * left
        if kept < settings.batch_size:
            raise ConfigError(
                f"{run.name} keeps about {kept:.0f} examples in all of its training, less than a "
                f"batch of {settings.batch_size}: give more epochs, a larger --keep or a smaller "
                "--batch-size"
            )


def _price(run: Run, settings: Settings, data: DataSet, comparison: Comparison) -> float:
    """What a score costs in forwards; where it is measured, that is recorded before the run."""
    if run.strategy not in comparison.prices:
        measured = measure(strategies.find(run.strategy), settings, data)
        if measured is None:
            return 1.0
        comparison.prices[run.strategy] = measured
        comparison.write()
    return comparison.prices[run.strategy].median


def _train(
    run: Run,
    settings: Settings,
    data: DataSet,
    folder: Path,
    reporter: Reporter,
    checkpoints: Checkpoints,
    on_model: Callable[[Run, nn.Module], None],
    price: float,
) -> RunSummary:
    # Its own environment: a comparison may be resumed with another version, or elsewhere.
    header = asdict(run) | {"environment": environment(settings.recorded())}
    scored = scores.score_for_run(run, settings, data, folder, reporter.scoring)
    state = checkpoints.latest()
    for path in checkpoints.damaged:
        reporter.note(f"{path} is damaged, and left aside: the run goes on from the one before")
    observer = _observer(run, settings, data, scored, folder)
    record = RecordWriter(folder / run.record, header, None if state is None else state["record"])
    try:
        summary, model = train(
            run, settings, data, record, reporter, scored, checkpoints, state, observer, price
        )
        on_model(run, model)
        record.end(summary)  # from here on the run counts as ended
    finally:
        record.close()
    return summary


def _keep_tokenizer(data: TextData, folder: Path, existing: Existing) -> None:
    """Writes the tokenizer beside the records.

    Raises:
        ConfigError: If the folder's runs were trained on texts that another one made tokens of.
    """
    path = folder / TOKENIZER
    tokenizer = data.text.tokenizer
    if existing == "resume" and path.exists() and path.read_text(encoding="utf-8") != tokenizer:
        raise ConfigError(
            f"{path} is not the tokenizer of {data.name} as it is now: its texts are others than "
            "those that the runs here were trained on; put them back, or give another --out"
        )
    with atomic_write(path) as whole:
        whole.write_text(tokenizer, encoding="utf-8")


def _observer(
    run: Run, settings: Settings, data: DataSet, scored: Scored | None, folder: Path
) -> Observer | None:
    """What looks at the model, where something is asked for."""
    kinds = kinds_of(settings.observe)
    if not kinds:
        return None
    return Observer(
        kinds,
        folder_of(folder, run.record),
        data if scored is None else scored.data,
        settings,
        training_device(settings),
        None if scored is None else scored.kept,
    )


def _open(plan: Plan, folder: Path, existing: Existing) -> Comparison:
    """The folder's comparison, new or to be resumed."""
    arguments = _arguments(plan)
    if existing == "refuse" and is_begun(folder):
        raise ConfigError(
            f"{folder} holds a comparison already: give another --out, or --resume to go on "
            "with it, or --overwrite to lose it"
        )
    if existing == "overwrite":
        run_files.forget(folder)
        suspects.forget(folder)
        scores.remove_scores(folder)
        for old in (CHECKPOINTS, OBSERVED, TENSORBOARD):
            shutil.rmtree(folder / old, ignore_errors=True)
    comparison = Comparison.recover(folder) if existing == "resume" else None
    if comparison is None:
        comparison = Comparison(folder, environment(arguments), [])
    else:
        _refuse_other_settings(comparison, arguments)
        # The plan may have grown; where it ran first is kept, what was asked last is recorded.
        comparison.environment["arguments"] = arguments
    comparison.write()
    return comparison


def _changed(comparison: Comparison, arguments: dict[str, Any]) -> list[str]:
    """The settings that a comparison was not made with."""
    before = comparison.environment.get("arguments") or {}
    if "rate_by" not in before:  # made when a warm-up was of sb-memory alone
        of_memory = any("memory" in str(name) for name in before.get("strategies", ()))
        before = before | {"warmup": before.get("warmup", 0.15) if of_memory else 0}
    return [
        f"{field.name} was {was!r}, is {arguments[field.name]!r}"
        for field in fields(Settings)
        if (was := before.get(field.name, field.default)) != arguments[field.name]
    ]


def _refuse_other_settings(comparison: Comparison, arguments: dict[str, Any]) -> None:
    if changed := _changed(comparison, arguments):
        raise ConfigError(
            f"{comparison.folder} was made with other settings ({'; '.join(changed)}): "
            "give the same ones to --resume, or another --out"
        )


def _arguments(plan: Plan) -> dict[str, Any]:
    return plan.settings.recorded() | {
        "strategies": list(plan.strategies),
        "keeps": list(plan.keeps),
        "seeds": list(plan.seeds),
        "matched": plan.matched,
    }


def _key(summary: RunSummary) -> tuple[Any, ...]:
    return Run(
        summary.strategy, summary.keep_asked, summary.seed, matched_to=summary.matched_to
    ).key


def _with_budget(run: Run, cost: float) -> Run:
    return Run(run.strategy, run.keep, run.seed, run.matched_to, cost)
