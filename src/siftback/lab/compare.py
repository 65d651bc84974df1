"""Several strategies from the same start, with an honest baseline beside each selective one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from torch import nn

from siftback import ConfigError
from siftback.lab import scores, strategies
from siftback.lab.data import ImageData, load, subset
from siftback.lab.environment import environment
from siftback.lab.progress import Reporter
from siftback.lab.records import RECORDS, SUMMARY, Comparison, RecordWriter, RunSummary
from siftback.lab.settings import Run, Settings, resolve_device
from siftback.lab.stream import BatchStream
from siftback.lab.train import train

Existing = Literal["refuse", "overwrite", "resume"]


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison.

    Attributes:
        settings: What they share.
        strategies: Names, in the order of the table.
        keeps: Shares to keep; each selective strategy runs once with each.
        seeds: Each is a start that all strategies share.
        matched: Whether to add, for each selective run, Traditional of the same budget. A plan
            of equal budgets needs none.

    Raises:
        ConfigError: Where a list is empty, has an entry twice, or an entry is unknown.
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
                "matched is no strategy of its own: it is added for each selective one, "
                "unless --no-matched or --budget says otherwise; leave it out of the list"
            )
        if any(seed < 0 for seed in self.seeds):
            raise ConfigError(f"seeds {list(self.seeds)}: give whole numbers, at least 0")
        self.runs()  # names and shares are checked by making them

    def runs(self) -> list[Run]:
        """Every run, in order; a matched one after the run it is matched to, its budget open."""
        return [run for seed in self.seeds for run in self._of_seed(seed)]

    def _of_seed(self, seed: int) -> Iterator[Run]:
        for name in self.strategies:
            if not strategies.find(name).selects:
                yield Run(name, 1.0, seed)
                continue
            for keep in self.keeps:
                yield Run(name, keep, seed)
                if self.matched and self.settings.budget is None:
                    yield Run("matched", keep, seed, matched_to=name)


def compare(
    plan: Plan,
    folder: Path,
    reporter: Reporter,
    existing: Existing = "refuse",
    on_model: Callable[[Run, nn.Module], None] = lambda run, model: None,
) -> Comparison:
    """Runs a plan; each run that ends is at once in the folder's ``summary.json``.

    Args:
        plan: What to run.
        folder: Where records and summary go.
        reporter: Is told what happens.
        existing: What to do with a folder that holds a comparison: refuse it, overwrite it, or
            resume it, which skips the runs that have ended.
        on_model: Gets each trained model.

    Raises:
        ConfigError: Where the folder holds a comparison and ``existing`` does not allow it, or
            one to resume was made with other settings.
    """
    settings = plan.settings
    resolve_device(settings.device)
    data = load(settings.data, settings.train_limit, settings.validation, settings.flip)
    if settings.subset is not None:
        data = subset(data, scores.read_kept(Path(settings.subset), settings, data))
    BatchStream(data, settings.batch_size, seed=0)  # a size that does not fit is told here
    comparison = _open(plan, folder, existing)
    finished = {_key(summary): summary for summary in comparison.runs}
    runs = plan.runs()
    for number, run in enumerate(runs, start=1):
        if run.key in finished:
            continue
        if run.matched_to is not None:
            origin = Run(run.matched_to, run.keep, run.seed)
            run = _with_budget(run, finished[origin.key].cost_forward_units)
        reporter.start(run, number, len(runs))
        summary, model = _train(run, settings, data, folder, reporter)
        finished[run.key] = summary
        comparison.runs.append(summary)
        comparison.write()
        reporter.finish(summary)
        on_model(run, model)
    return comparison


def _train(
    run: Run, settings: Settings, data: ImageData, folder: Path, reporter: Reporter
) -> tuple[RunSummary, nn.Module]:
    # Its own environment: a comparison may be resumed with another version, or elsewhere.
    header = asdict(run) | {"environment": environment(settings.recorded())}
    scored = scores.scored(run, settings, data, folder, reporter.scoring)
    record = RecordWriter(folder / run.record, header)
    try:
        return train(run, settings, data, record, reporter, scored)
    finally:
        record.close()


def _open(plan: Plan, folder: Path, existing: Existing) -> Comparison:
    """The folder's comparison, new or to be resumed."""
    arguments = _arguments(plan)
    if not (folder / SUMMARY).exists():
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file: give a folder to --out")
        comparison = Comparison(folder, environment(arguments), [])
    elif existing == "refuse":
        raise ConfigError(
            f"{folder} holds a comparison already: give another --out, or --resume to go on "
            "with it, or --overwrite to lose it"
        )
    elif existing == "overwrite":
        for old in (folder / RECORDS).glob("*.jsonl"):
            old.unlink()
        scores.forget(folder)
        comparison = Comparison(folder, environment(arguments), [])
    else:
        comparison = Comparison.read(folder)
        _refuse_other_settings(comparison, arguments)
        # The plan may have grown; where it ran first is kept, what was asked last is told.
        comparison.environment["arguments"] = arguments
    comparison.write()
    return comparison


def _refuse_other_settings(comparison: Comparison, arguments: dict[str, Any]) -> None:
    before = comparison.environment["arguments"]
    changed = [
        f"{field.name} was {was!r}, is {arguments[field.name]!r}"
        for field in fields(Settings)
        if (was := before.get(field.name, field.default)) != arguments[field.name]
    ]
    if changed:
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
