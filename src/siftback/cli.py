"""The command line: parses, calls the laboratory, prints."""

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as error:  # the library alone does not bring them
    sys.exit(f'{error}: the command line needs the laboratory: pip install "siftback[lab]"')

import torch

from siftback import ConfigError, SiftbackError, __version__
from siftback.lab import models, pruning, rates
from siftback.lab.compare import Existing, Plan, compare
from siftback.lab.data import DATASETS
from siftback.lab.plots import draw
from siftback.lab.probing import measure, report
from siftback.lab.progress import Terminal
from siftback.lab.records import SUMMARY, Comparison
from siftback.lab.report.page import write_report
from siftback.lab.results_page import write_page
from siftback.lab.settings import Settings
from siftback.lab.strategies import STRATEGIES
from siftback.lab.table import comparison_table

app = typer.Typer(
    help="Siftback: choose the examples worth a backward pass, and see whether it paid.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DEFAULT_EPOCHS = 10

Data = Annotated[str, typer.Option(help=f"Data set: {', '.join(DATASETS)}.")]
Model = Annotated[str, typer.Option(help=f"Model: {', '.join(models.MODELS)}.")]
Width = Annotated[int | None, typer.Option(help="Width of the model; its own by default.")]
Norm = Annotated[str, typer.Option(help="Normalisation: batch or group.")]
Beta = Annotated[
    str | None,
    typer.Option(help="In place of --keep: exponents of Selective-Backprop, keep = 1/(beta+1)."),
]
Epochs = Annotated[
    float | None,
    typer.Option(help=f"Length in epochs of the training set; {DEFAULT_EPOCHS} by default."),
]
Budget = Annotated[
    float | None,
    typer.Option(
        help="In place of --epochs: train until forwards and backwards cost as much as so many "
        "epochs of Traditional. The fairest comparison: every strategy costs the same."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for summary, records and plots.")]
BatchSize = Annotated[int, typer.Option(help="Examples per batch.")]
History = Annotated[int, typer.Option(help="Losses that a loss is ranked among.")]
Rate = Annotated[str, typer.Option(help=f"Learning rates: {', '.join(rates.RATES)}.")]
Lr = Annotated[float, typer.Option(help="Peak learning rate.")]
Momentum = Annotated[float, typer.Option(help="Nesterov momentum of SGD.")]
WeightDecay = Annotated[float, typer.Option(help="L2 penalty of SGD.")]
Cutout = Annotated[int, typer.Option(help="Side of the square cut out of each image, in pixels.")]
TrainLimit = Annotated[
    int | None, typer.Option(help="Train on a fixed, class-balanced subset of so many examples.")
]
Precision = Annotated[str, typer.Option(help="fp32 or bf16 (mixed precision).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; PyTorch's choice by default.")]
Evaluations = Annotated[
    int | None, typer.Option(help="How often to test, evenly; once an epoch by default.")
]
Validation = Annotated[
    int | None,
    typer.Option(help="Test on so many held-out training examples, to choose settings by."),
]
Flip = Annotated[float, typer.Option(help="Share of the training labels to make wrong.")]
StaleEvery = Annotated[int, typer.Option(help="Epochs between stale-sb's selection passes.")]
Floor = Annotated[float, typer.Option(help="Least chance of an example in sb-memory.")]
Warmup = Annotated[float, typer.Option(help="Share of training before sb-memory selects.")]
Tail = Annotated[float, typer.Option(help="Share at the end in which it selects no more.")]
Decay = Annotated[float, typer.Option(help="How much of an old loss stays in its memory.")]
Subset = Annotated[
    str | None,
    typer.Option(help="File of siftback prune: its examples are the training set."),
]
ScoreModels = Annotated[int, typer.Option(help="Early models that el2n and diet-sb score by.")]
ScoreEpochs = Annotated[float, typer.Option(help="Epochs that each of those is trained for.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")]
Resume = Annotated[bool, typer.Option("--resume", help="Skip the runs that --out holds.")]


@app.command("compare")
def compare_command(
    data: Data = "digits",
    model: Model = "cnn",
    strategies: Annotated[str, typer.Option(help="Names, separated by commas.")] = (
        "traditional,sb,random"
    ),
    keep: Annotated[
        str | None,
        typer.Option(help="Shares of the examples to keep, separated by commas; 0.33 by default."),
    ] = None,
    beta: Beta = None,
    epochs: Epochs = None,
    budget: Budget = None,
    seed: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    out: Out = Path("runs/compare"),
    no_matched: Annotated[
        bool,
        typer.Option("--no-matched", help="Leave out Traditional of each selective run's budget."),
    ] = False,
    width: Width = None,
    norm: Norm = "batch",
    batch_size: BatchSize = 128,
    history: History = 1024,
    rate: Rate = "onecycle",
    lr: Lr = 0.1,
    momentum: Momentum = 0.9,
    weight_decay: WeightDecay = 5e-4,
    cutout: Cutout = 0,
    train_limit: TrainLimit = None,
    precision: Precision = "fp32",
    device: Device = "auto",
    threads: Threads = None,
    evaluations: Evaluations = None,
    validation: Validation = None,
    flip: Flip = 0.0,
    stale_every: StaleEvery = 3,
    floor: Floor = 0.1,
    warmup: Warmup = 0.15,
    tail: Tail = 0.0,
    decay: Decay = 0.0,
    subset: Subset = None,
    score_models: ScoreModels = 2,
    score_epochs: ScoreEpochs = 1.0,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Train with several strategies from the same start; print one table, draw the errors."""
    settings = _settings(locals())
    plan = Plan(
        settings,
        strategies=[name.strip() for name in strategies.split(",")],
        keeps=_shares(keep, beta),
        seeds=_seeds(seed),
        matched=not no_matched,
    )
    _run(plan, out, _existing(overwrite, resume), threads)


@app.command("train")
def train_command(
    data: Data = "digits",
    model: Model = "cnn",
    strategy: Annotated[str, typer.Option(help="Name of the strategy.")] = "sb",
    keep: Annotated[
        float | None, typer.Option(help="Share of the examples to keep; 0.33 by default.")
    ] = None,
    beta: Beta = None,
    epochs: Epochs = None,
    budget: Budget = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and selection.")] = 0,
    out: Out = Path("runs/train"),
    width: Width = None,
    norm: Norm = "batch",
    batch_size: BatchSize = 128,
    history: History = 1024,
    rate: Rate = "onecycle",
    lr: Lr = 0.1,
    momentum: Momentum = 0.9,
    weight_decay: WeightDecay = 5e-4,
    cutout: Cutout = 0,
    train_limit: TrainLimit = None,
    precision: Precision = "fp32",
    device: Device = "auto",
    threads: Threads = None,
    evaluations: Evaluations = None,
    validation: Validation = None,
    flip: Flip = 0.0,
    stale_every: StaleEvery = 3,
    floor: Floor = 0.1,
    warmup: Warmup = 0.15,
    tail: Tail = 0.0,
    decay: Decay = 0.0,
    subset: Subset = None,
    score_models: ScoreModels = 2,
    score_epochs: ScoreEpochs = 1.0,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Train one model with one strategy; keep its weights as weights.pt."""
    settings = _settings(locals())
    keeps = _shares(None if keep is None else str(keep), beta)
    plan = Plan(settings, [strategy], keeps, [seed], matched=False)

    def save(_: Any, trained: torch.nn.Module) -> None:
        torch.save(trained.state_dict(), out / "weights.pt")

    _run(plan, out, _existing(overwrite, resume), threads, save)


@app.command("probe")
def probe_command(
    data: Data = "digits",
    model: Model = "cnn",
    width: Width = None,
    norm: Norm = "batch",
    batch_size: BatchSize = 128,
    precision: Precision = "fp32",
    keep: Annotated[
        str, typer.Option(help="Shares of the examples to keep, separated by commas.")
    ] = "1/2,1/3,1/4",
    threads: Threads = None,
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(help="How long to take.")] = 45,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure what selection would cost and save per epoch on a model; say whether it pays."""
    settings = _settings(locals() | {"epochs": None, "budget": None})
    _use_threads(threads)
    with Console(stderr=True).status("measuring"):
        found = measure(settings, _numbers("keep", keep), seconds)
    if as_json:
        typer.echo(found.to_json())
    else:
        Console().print(report(found, f"{settings.model_name} on {data}"))


@app.command("score")
def score_command(
    data: Data = "digits",
    model: Model = "cnn",
    score: Annotated[str, typer.Option(help=f"Score: {', '.join(pruning.NAMES)}.")] = "el2n",
    models: Annotated[int, typer.Option(help="Models to average over.")] = 3,
    epochs: Annotated[float, typer.Option(help="Epochs that each is trained for.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Decides the models' own seeds.")] = 0,
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")] = Path(
        "runs/scores.parquet"
    ),
    overlap: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="In place of scoring: two tables, to see how far they agree."),
    ] = None,
    drop: Annotated[
        str, typer.Option(help="Shares to drop for --overlap, separated by commas.")
    ] = "0.1,0.25,0.5,0.75,0.9",
    width: Width = None,
    norm: Norm = "batch",
    batch_size: BatchSize = 128,
    rate: Rate = "onecycle",
    lr: Lr = 0.1,
    momentum: Momentum = 0.9,
    weight_decay: WeightDecay = 5e-4,
    cutout: Cutout = 0,
    train_limit: TrainLimit = None,
    precision: Precision = "fp32",
    device: Device = "auto",
    threads: Threads = None,
    validation: Validation = None,
) -> None:
    """Score the training set by models trained for a little; or compare two tables of scores."""
    if overlap is not None:
        Console().print(pruning.agreement_of(*overlap, _numbers("drop", drop)))
        return
    _use_threads(threads)
    early = {"epochs": 1.0, "budget": None, "score_models": models, "score_epochs": epochs}
    settings = _settings(locals() | early)
    with Console(stderr=True).status(f"scoring by {models} models"):
        told = pruning.score_to(out, score, settings, seed)
    typer.echo(told)


@app.command("prune")
def prune_command(
    scores: Annotated[Path, typer.Option(help="A table that siftback score wrote.")],
    out: Annotated[Path, typer.Option(help="The Parquet file of indices to write.")] = Path(
        "runs/kept.parquet"
    ),
    drop: Annotated[float | None, typer.Option(help="Share of the examples to drop.")] = None,
    easiest: Annotated[
        bool, typer.Option("--easiest/--hardest", help="Which to keep; the hardest by default.")
    ] = False,
    window: Annotated[
        str | None, typer.Option(help="In place of --drop: a,b keeps the ranks between, as shares.")
    ] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="Rank within each class.")] = False,
    seed: Annotated[int, typer.Option(help="Orders examples of equal scores.")] = 0,
) -> None:
    """Choose the examples to keep by their scores, for train and compare --subset."""
    bounds = None if window is None else _numbers("window", window)
    typer.echo(pruning.prune_to(out, scores, drop, easiest, bounds, per_class, seed))


@app.command("strategies")
def strategies_command() -> None:
    """List the strategies, each with its ideal cost of one example."""
    table = Table(
        "strategy",
        "what it does",
        "ideal cost",
        caption="ideal cost of one example in forwards; a backward costs 2, s is the share kept, "
        "n the interval of selection passes, r the price of one in forwards",
        caption_justify="left",
    )
    for strategy in STRATEGIES.values():
        table.add_row(strategy.name, strategy.summary, strategy.cost)
    Console().print(table)


@app.command("results")
def results_command(
    folder: Annotated[Path, typer.Argument(help="Folder of recorded comparisons.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md"),
) -> None:
    """Build the page of results from recorded comparisons."""
    write_page(folder, out)
    typer.echo(out)


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of recorded comparisons.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("report"),
) -> None:
    """Make one page for a reader, index.html, of recorded comparisons; each figure beside it."""
    page, problems = write_report(runs, out)
    for problem in problems:
        typer.echo(problem, err=True)
    typer.echo(page)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Shown with --help; the application's own help stands in its place."""
    if version:
        typer.echo(f"siftback {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; an error of ours is a line, not a traceback."""
    try:
        app()
    except SiftbackError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"error: {error}", markup=False, highlight=False, style="red"
        )
        sys.exit(2)


def _run(
    plan: Plan,
    out: Path,
    existing: Existing,
    threads: int | None,
    on_model: Callable[[Any, torch.nn.Module], None] = lambda run, model: None,
) -> None:
    _use_threads(threads)
    stopped = False
    try:
        with Terminal(Console(stderr=True)) as reporter:
            compare(plan, out, reporter, existing, on_model)
    except KeyboardInterrupt:
        stopped = True
    if (out / SUMMARY).exists() and (comparison := Comparison.read(out)).runs:
        pictures = draw(comparison, out)
        Console().print(comparison_table(comparison))
        typer.echo(f"picture: {pictures[0]}")
    if stopped:
        typer.echo(f"stopped; go on with --out {out} --resume", err=True)
        sys.exit(130)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"--threads {threads}: give at least 1")
        torch.set_num_threads(threads)


def _settings(options: dict[str, Any]) -> Settings:
    names = Settings.__dataclass_fields__
    chosen = {name: value for name, value in options.items() if name in names}
    if chosen["epochs"] is None and chosen["budget"] is None:
        chosen["epochs"] = float(DEFAULT_EPOCHS)
    return Settings(**chosen)


def _shares(keep: str | None, beta: str | None) -> list[float]:
    if keep is not None and beta is not None:
        raise ConfigError(f"--keep {keep} and --beta {beta}: give one, keep = 1/(beta+1)")
    if beta is None:
        return _numbers("keep", keep or "0.33")
    exponents = _numbers("beta", beta)
    if any(exponent < 0 for exponent in exponents):
        raise ConfigError(f"--beta {beta}: give exponents of at least 0")
    return [1 / (exponent + 1) for exponent in exponents]


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(Fraction(part.strip())) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"--{name} {text!r}: give numbers separated by commas, such as 0.25,1/3"
        ) from None


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seed {text!r}: give whole numbers separated by commas, such as 0,1,2"
        ) from None


def _existing(overwrite: bool, resume: bool) -> Existing:
    if overwrite and resume:
        raise ConfigError("both --overwrite and --resume given: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "refuse"


if __name__ == "__main__":
    main()
