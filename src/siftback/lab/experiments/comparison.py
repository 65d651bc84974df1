"""Several strategies from the same start, with an honest baseline beside each selective one."""

import itertools
import math
import shutil
import zlib
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from siftback import EpochRule, Epochs, Memory, Percentile
from siftback.errors import ConfigError
from siftback.lab.data.data_set import KINDS, DataSet, TextData
from siftback.lab.data.load import load
from siftback.lab.data.stream import BatchStream
from siftback.lab.experiments import example_scores as scores
from siftback.lab.forward import check_model_fits, training_device
from siftback.lab.length import BACKWARD, FORWARD, Length
from siftback.lab.rates import find_rate
from siftback.lab.records.comparison_record import Comparison, RecordWriter
from siftback.lab.records.environment import environment
from siftback.lab.records.folder import PACKED, atomic_write, is_comparison, locked, record_names
from siftback.lab.records.formatting import listed
from siftback.lab.records.observations import OBSERVED, folder_of, kinds_of
from siftback.lab.records.run_summary import RECORDS, RunSummary
from siftback.lab.run.checkpoints import CHECKPOINTS, CheckpointPolicy, Checkpoints
from siftback.lab.run.observer import Observer
from siftback.lab.run.progress import TENSORBOARD, Reporter
from siftback.lab.run.train import Training, train
from siftback.lab.settings import SETTINGS, Run, Settings, check_keep, check_run_seed, parse_numbers
from siftback.lab.strategies.after_reading import measure_score_cost
from siftback.lab.strategies.strategy import OWN_SHARE, learns
from siftback.lab.strategies.table import call_of, find_strategy, library_name, name_of_call

TOKENIZER = "tokenizer.json"  # of the texts that a comparison trained on
WEIGHTS = "weights.pt"  # of the model that `siftback train` trained

DEFAULT_POLICY = CheckpointPolicy()

Existing = Literal["refuse", "overwrite", "resume"]


class FolderBusyError(ConfigError):
    """Another process works in a comparison's folder."""


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison.

    Attributes:
        settings: The settings that they share.
        strategies: Names, in the order of the table. ``kath18@0.33`` is ``kath18`` with that
            share kept, whatever ``keeps`` says; ``Memory(keep=0.5)``, a call of the library, is
            ``sb-memory@0.5``.
        keeps: Shares to keep; each selective strategy without a share of its own runs with each.
        seeds: Each is a start that all strategies share.
        matched: Whether to add, for each selective run, plain training of the same budget. A plan
            of equal budgets, or of equal times, needs none.

    Raises:
        ConfigError: If a list is empty, has an entry twice, or an entry is unknown; where two
            entries are one run; where a strategy cannot be used with the settings.
    """

    settings: Settings
    strategies: Sequence[str]
    keeps: Sequence[float]
    seeds: Sequence[int]
    matched: bool = True

    def __post_init__(self) -> None:
        # As records have them.
        object.__setattr__(self, "strategies", tuple(map(name_of_call, self.strategies)))
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
            check_run_seed(seed)
        for keep in self.keeps:
            check_keep(keep)
        runs = self.runs()  # which checks names and shares
        rows = [(run.label, run.seed) for run in runs]
        if twice := sorted({run.name for run in runs if rows.count((run.label, run.seed)) > 1}):
            raise ConfigError(
                f"strategies {list(self.strategies)} with keeps {list(self.keeps)}: "
                f"{', '.join(twice)} would run twice, or be one row; leave one out"
            )
        for run in {run.label: run for run in runs}.values():
            check_strategy(run, self.settings)

    def runs(self) -> list[Run]:
        """Returns every run, in order; a matched one follows the run whose cost it gets."""
        runs = []
        for seed, entry in itertools.product(self.seeds, self.strategies):
            name, keeps = parse_entry(entry, self.keeps)
            for keep in keeps:
                runs.append(Run(name, keep, seed))
                if self.matched and self.settings.epochs and find_strategy(name).selects:
                    runs.append(Run("matched", keep, seed, matched_to=name))
        return runs

    def arguments(self) -> dict[str, Any]:
        """Returns the settings and the lists, as the environment of a comparison records them."""
        lists = {name: list(getattr(self, name)) for name in ("strategies", "keeps", "seeds")}
        return self.settings.recorded() | lists | {"matched": self.matched}


def parse_entry(text: str, keeps: Sequence[float]) -> tuple[str, Sequence[float]]:
    """Returns a strategy's name and the shares that it keeps, after ``@`` or as passed.

    >>> parse_entry("sb", [0.5]), parse_entry("kath18@1/3", [0.5])
    (('sb', [0.5]), ('kath18', [0.3333333333333333]))
    >>> parse_entry("sb-memory-default", [0.25, 0.75])  # which has a share of its own
    ('sb-memory-default', [0.5])
    """
    name, at, share = text.partition("@")
    strategy = find_strategy(name)
    if not at:
        keeps = [OWN_SHARE] if strategy.has_own_share else keeps
        return name, keeps if strategy.selects else [1.0]
    if not strategy.selects:
        raise ConfigError(f"strategy {text!r}: {name} keeps everything, leave out @{share}")
    try:
        (keep,) = parse_numbers("share", share)
    except ValueError:  # none, or several
        raise ConfigError(
            f"strategy {text!r}: give a share after @, such as {name}@0.33 or {name}@1/3"
        ) from None
    if strategy.has_own_share and keep != OWN_SHARE:
        raise ConfigError(f"{text!r}: {call_of(strategy)} finds its share itself, omit @{share}")
    return name, [keep]


def goes_by_keep(entry: str) -> bool:
    """Returns whether a strategy selects, and has no share of its own.

    >>> [goes_by_keep(entry) for entry in ("sb", "traditional", "sb@0.5", "Memory()")]
    [True, False, False, False]
    """
    name, at, _ = name_of_call(entry).partition("@")
    strategy = find_strategy(name)
    return strategy.selects and not at and not strategy.has_own_share


def check_keep_used(option: str, entries: Sequence[str]) -> None:
    """Checks that a share to keep that was asked for is not ignored.

    Args:
        option: What an error begins with.
        entries: The strategies that it was asked for.

    Raises:
        ConfigError: If none of them goes by it.
    """
    if not any(map(goes_by_keep, entries)):
        raise ConfigError(
            f"{option}: {listed(entries)} would not go by it; give a strategy a share of its own, "
            "such as 'Memory(keep=0.5)', or leave it out"
        )


def check_settings_used(plans: Sequence[Plan], names: Container[str] = SETTINGS) -> None:
    """Checks that no setting of selection, and no rate, that was asked for is ignored.

    Args:
        plans: One or more, all with the settings that are checked.
        names: Settings; those among them that `settings_used` tells of are checked.

    Raises:
        ConfigError: If none of the plans' strategies goes by one that is not the default's. None of
            it, as no tail, is what a strategy without it has.
    """
    used = {run: settings_used(run, plan.settings) for plan in plans for run in plan.runs()}
    for name in filter(names.__contains__, next(iter(used.values()))):
        value, default = getattr(plans[0].settings, name), getattr(Settings, name)
        if value not in (default, 0, Epochs(0)) and not any(uses[name] for uses in used.values()):
            strategies = listed(library_name(run.label) for run in used if not run.matched_to)
            raise ConfigError(f"{name}={value}: {strategies} would not go by it; leave it out")


def settings_used(run: Run, settings: Settings) -> dict[str, bool]:
    """Returns whether a run goes by each of the settings of selection and the rate, by name."""
    strategy = find_strategy(run.strategy)
    choice = strategy.choice(run.keep, settings)
    is_rule, is_memory = isinstance(choice, EpochRule), isinstance(choice, Memory)
    rate = find_rate(settings.rate, settings.epochs or settings.budget)
    return {
        "rate": settings.rate == "constant" or rate(1.0) < 1,  # not by steps after the last epoch
        "warmup": bool(choice or strategy.tokens),
        "tail": is_rule and not choice.needs_passes,
        "floor": is_memory,
        "decay": is_memory,
        "noise_guard": strategy.has_guard(settings),
        "history": isinstance(choice, Percentile),
        "stale_every": is_rule and choice.needs_passes,
        "score_models": bool(strategy.prior),
        "score_epochs": bool(strategy.prior),
    }


def check_strategy(run: Run, settings: Settings) -> None:
    """Checks that a run's strategy can be used with its share and the settings.

    Raises:
        ConfigError: If it cannot.
    """
    strategy, name = find_strategy(run.strategy), library_name(run.label)
    try:
        choice = strategy.choice(run.keep, settings)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if settings.mixup and (learns(choice) or strategy.moment.fills_batches):
        raise ConfigError(
            f"mixup={settings.mixup} with {name}, which chooses by losses of training: they would "
            "be those of mixed images; leave one out, or take a strategy with a selection pass"
        )
    as_they_are = strategy.weighted or strategy.tokens or strategy.has_guard(settings)
    for setting in ("mixup", "label_smoothing") if as_they_are else ():
        if value := getattr(settings, setting):
            raise ConfigError(
                f"{setting}={value:g} with {name}, which goes by the losses of labels as "
                "they are: leave one of them out"
            )
    if settings.noise_guard and strategy.selects and not strategy.has_guard(settings):
        raise ConfigError(
            f"{name} cannot have a noise guard, which is a part of Memory: "
            "leave --noise-guard or the strategy out"
        )


def is_finished(plan: Plan, folder: Path) -> bool:
    """Returns whether a folder holds all runs of a plan, made with its settings."""
    if not is_comparison(folder):
        return False
    comparison = Comparison.read(folder)
    records = {summary.record for summary in comparison.runs}
    return {run.record for run in plan.runs()} <= records and not changed_settings(comparison, plan)


def compare(
    plan: Plan,
    folder: Path,
    reporter: Reporter,
    existing: Existing = "refuse",
    on_model: Callable[[Run, nn.Module], None] = lambda run, model: None,
    policy: CheckpointPolicy = DEFAULT_POLICY,
    data: DataSet | None = None,
) -> Comparison:
    """Runs a plan; each run that ends is at once in the folder's ``summary.json``.

    Args:
        plan: The runs.
        folder: The folder of records and summary.
        reporter: Reports what happens.
        existing: What to do with a folder that holds a comparison: refuse it, overwrite it, or
            resume it, which skips the runs that have ended, and goes on with one that has not
            from its last checkpoint.
        on_model: Gets each trained model, before its run counts as ended.
        policy: How often to save checkpoints.
        data: The result of `prepare_data`, for a caller that has it.

    Raises:
        ConfigError: If the folder holds a comparison and ``existing`` does not allow it, or one to
            resume was made with other settings.
        FolderBusyError: If another process works in the folder.
        StateError: If what is to be resumed is damaged.
    """
    data = data or prepare_data(plan)  # before the folder is made
    with locked(folder) as is_ours:
        if not is_ours:
            raise FolderBusyError(
                f"another process is at work in {folder}: wait until it has ended, or give "
                "another --out"
            )
        comparison = _open(plan, folder, existing, data)
        if isinstance(data, TextData):
            with atomic_write(folder / TOKENIZER) as path:
                path.write_text(data.tokenizer, encoding="utf-8")
        finished = {summary.record: summary for summary in comparison.runs}
        runs = plan.runs()
        order = {run.record: index for index, run in enumerate(runs)}
        for number, run in enumerate(runs, start=1):
            checkpoints = Checkpoints(folder / CHECKPOINTS / run.name, policy)
            if run.record not in finished:
                if run.matched_to is not None:
                    original = Run(run.matched_to, run.keep, run.seed)
                    run = replace(run, cost_budget=finished[original.record].cost_forward_units)
                reporter.start(run, number, len(runs))
                summary = finished[run.record] = _train(
                    run, plan.settings, data, comparison, reporter, checkpoints, on_model
                )
                comparison.runs.append(summary)
                # As if a plan that was added to had been whole; runs that it lacks come last.
                comparison.runs.sort(key=lambda summary: order.get(summary.record, len(order)))
                comparison.write()
                reporter.finish(summary)
            checkpoints.clear()
    return comparison


def prepare_data(plan: Plan) -> DataSet:
    """Returns the data of a plan, after checking that every one of its runs can be run.

    Raises:
        ConfigError: If one cannot, as there is no such data set or device, a batch is larger
            than what it trains on, or its length leaves it no step.
    """
    settings = plan.settings
    training_device(settings)
    limits = settings.train_limit, settings.validation, settings.flip, settings.max_tokens
    data: DataSet = load(settings.data, *limits, settings.rare)
    if settings.subset is not None:
        subset = scores.read_subset(Path(settings.subset), settings, data)
        data = data.subset(subset).rescale_costs()
    BatchStream(data, settings.batch_size, seed=0)  # which refuses a size that does not fit
    check_model_fits(settings, data)
    for name in ("mixup", "cutout"):
        if (value := getattr(settings, name)) and data.kind != "images":
            raise ConfigError(
                f"{name}={value} is of images, and {data.name} holds {KINDS[data.kind]}: leave it "
                "out"
            )
    if settings.label_smoothing and data.kind == "pixels":
        raise ConfigError(
            f"label_smoothing={settings.label_smoothing} of {data.name}, whose pixels have colours "
            "and no classes: leave it out"
        )
    if not data.has_classes and "confidence" in kinds_of(settings.observe):
        raise ConfigError(
            f"observe={settings.observe!r} of {data.name}: confidence is that in an example's "
            "class, and its examples have none; leave it out"
        )
    for run in plan.runs():
        check_run(run, settings, data)
    return data


def check_run(run: Run, settings: Settings, data: DataSet) -> None:
    """Checks what would have a run fail only once it has begun.

    Args:
        run: The run.
        settings: Those that it shares with the others.
        data: What it is to be trained on.

    Raises:
        ConfigError: If it would fail.
    """
    strategy, examples = find_strategy(run.strategy), len(data.train_labels)
    choice = strategy.choice(run.keep, settings)
    if data.kind not in strategy.kinds:
        kinds = " or ".join(KINDS[kind] for kind in strategy.kinds)
        raise ConfigError(
            f"{library_name(run.label)} is a strategy for {kinds}, and {data.name} holds "
            f"{KINDS[data.kind]}: leave it out"
        )
    if not data.has_classes and strategy.has_guard(settings):
        raise ConfigError(
            f"{library_name(run.label)} with a noise guard, which holds back wrong labels, and the "
            f"examples of {data.name} have none: leave it out"
        )
    scoring_cost = 0.0
    if name := strategy.score(run.keep):
        scores.check_score(name, settings, data)
        scoring_cost = scores.least_cost(settings, examples)
    whole = examples // settings.batch_size * settings.batch_size
    length = Length.of(run, settings, whole, scoring_cost)
    left = examples - int(strategy.dropped(run.keep) * examples + 0.5)
    size = strategy.selection_batch(run.keep, settings)
    if size > left:
        raise ConfigError(
            f"{library_name(run.label)} takes batches of {size} examples and has {left} to train "
            "on: give a smaller --batch-size, a larger --keep or more examples"
        )
    # A rule that learns trains on each example at least once; seconds tell nothing beforehand.
    if choice is None or length.kind == "seconds" or (learns(choice) and not choice.needs_passes):
        return
    price = strategy.cost.amount(run.keep, settings.stale_every)
    by_cost = 1 if length.kind == "epochs" else (FORWARD + BACKWARD) * left
    amount = length.amount / by_cost
    warm = strategy.warmed(settings).warmup_epochs(amount)
    epochs = (amount - warm) * (1 if length.kind == "epochs" else by_cost / (price * left))
    trained = (warm + math.ceil(epochs) * strategy.kept_of_left(run.keep)) * left
    if trained < settings.batch_size:
        raise ConfigError(
            f"{library_name(run.label)} keeps about {trained:.0f} examples in all of its training, "
            f"less than a batch of {settings.batch_size}: give more epochs, a larger --keep or a "
            "smaller --batch-size"
        )


def _train(
    run: Run,
    settings: Settings,
    data: DataSet,
    comparison: Comparison,
    reporter: Reporter,
    checkpoints: Checkpoints,
    on_model: Callable[[Run, nn.Module], None],
) -> RunSummary:
    folder, prices = comparison.folder, comparison.prices
    # What a score costs in forwards; where it is measured, that is recorded before the run.
    strategy = find_strategy(run.strategy)
    price = prices.get(run.strategy) or measure_score_cost(strategy, settings, data)
    if price and run.strategy not in prices:
        prices[run.strategy] = price
        comparison.write()
    # Its own environment: a comparison may be resumed with another version, or elsewhere.
    header = asdict(run) | {"environment": environment(settings.recorded())}
    scored = scores.score_for_run(run, settings, data, folder, reporter.scoring)
    state = checkpoints.latest()
    for path in checkpoints.damaged:
        reporter.note(f"{path} is damaged, and left aside: the run goes on from the one before")
    observer = None
    if settings.observe:
        observer = Observer(folder_of(folder, run.record), scored.data, settings, scored.kept)
    record = RecordWriter(folder / run.record, header, state and state["record"])
    try:
        training = Training(run, settings, data, scored, observer, price.median if price else 1.0)
        summary = train(training, record, reporter, checkpoints, state)
        on_model(run, training.stepper.tested)
        record.end(summary)  # from here on the run counts as ended
    finally:
        record.close()
    return summary


def describe_examples(data: DataSet) -> str:
    """Returns what tells examples from others: number, labels, tokenizer, width of a table.

    Not their inputs, of which another version of a decoder may give other last bits; nor the
    fractions of labels that are colours, as they are decoded too.
    """
    labels = data.train_labels, data.test_labels
    text = data.tokenizer.encode() if isinstance(data, TextData) else b""
    width = labels[0].new_tensor(data.train_inputs.shape[1:] if data.kind == "rows" else ())
    checksum = zlib.crc32(text, scores.label_checksum(*labels, width))
    return f"{len(labels[0])} and {len(labels[1])} of crc32 {checksum:08x}"


def _open(plan: Plan, folder: Path, existing: Existing, data: DataSet) -> Comparison:
    """Returns the folder's comparison, new or to be resumed."""
    arguments = plan.arguments() | {"examples": describe_examples(data)}
    refuse_begun(folder, existing, "with it")
    # A folder without a comparison may have one of these names that is somebody else's.
    if existing == "overwrite" and (is_comparison(folder) or record_names(folder)):
        for file in (PACKED, WEIGHTS, TOKENIZER):
            (folder / file).unlink(missing_ok=True)
        for name in (RECORDS, scores.SCORES_FOLDER, CHECKPOINTS, OBSERVED, TENSORBOARD):
            shutil.rmtree(folder / name, ignore_errors=True)
    comparison = Comparison.recover(folder) if existing == "resume" else None
    if comparison is None:
        comparison = Comparison(folder, environment(arguments), [])
    elif changed := changed_settings(comparison, plan, arguments["examples"]):
        raise ConfigError(
            f"{folder} was made with other settings ({'; '.join(changed)}): "
            "give the same ones to --resume, or another --out"
        )
    # The plan may have grown: the environment stays that of the first run, with these arguments.
    comparison.environment["arguments"] = arguments
    comparison.write()
    return comparison


def refuse_begun(folder: Path, existing: Existing, what: str) -> None:
    """Checks that a folder holds no comparison, unless it may.

    Raises:
        ConfigError: If it does.
    """
    if existing == "refuse" and (is_comparison(folder) or record_names(folder)):
        raise ConfigError(
            f"{folder} holds a comparison already: give another --out, or --resume to go on "
            f"{what}, or --overwrite to lose it"
        )


def changed_settings(comparison: Comparison, plan: Plan, examples: str = "") -> list[str]:
    """Returns in words what a plan has and a comparison was not made with.

    These are settings; examples; and a share to keep whose runs have the label of another's, and
    so would be of one row.

    Args:
        comparison: The comparison.
        plan: The plan.
        examples: The `describe_examples` of the plan's data; empty where it is not compared.
    """
    before = comparison.arguments
    if "rate_by" not in before:  # made when a warm-up was of sb-memory alone
        of_memory = any("memory" in str(name) for name in before.get("strategies", ()))
        before = before | {"warmup": before.get("warmup", 0.15) if of_memory else 0}
    before = before | {f"keep of {run.label}": f"{run.keep_asked:.4g}" for run in comparison.runs}
    now = plan.settings.recorded() | ({"examples": examples} if examples else {})
    now |= {f"keep of {run.label}": f"{run.keep:.4g}" for run in plan.runs()}
    defaults = now | {field.name: field.default for field in fields(Settings)}
    return [
        f"{name} was {was!r}, is {value!r}"
        for name, value in now.items()
        if (was := before.get(name, defaults[name])) != value
    ]
