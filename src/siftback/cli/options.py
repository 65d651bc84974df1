"""Options that several commands share; each setting's is said once, here."""

import inspect
import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siftback.cli.names import DATA, MODELS
from siftback.errors import ConfigError
from siftback.lab.training import rates
from siftback.lab.training.parsing import UNITS, duration, numbers, parse
from siftback.lab.training.settings import LENGTHS, Settings

if TYPE_CHECKING:
    from siftback.lab.experiments.comparison import Existing
    from siftback.lab.training.checkpoints import Often

Command = Callable[..., None]

DEFAULT_EPOCHS = 10.0

# Of every setting, in the order of the commands' help.
HELP = {
    "data": f"Data set: {', '.join(DATA)}.",
    "model": f"Model: {', '.join(MODELS)}.",
    "width": "Width of the model; its own by default.",
    "norm": "Normalisation: batch or group.",
    "epochs": f"Length in epochs of the training set; {DEFAULT_EPOCHS:g} by default.",
    "budget": "In place of --epochs: train until forwards and backwards cost as much as so many "
    "epochs of Traditional. The fairest comparison: every strategy costs the same.",
    "cost_budget": "The same in forwards of one example. Beside --epochs, training may end early.",
    "time_budget": "Length as a time, such as 90s, 30m or 12h, which learning rates follow. Beside "
    "another length, training may end early.",
    "batch_size": "Examples per batch; 128 for models of images, by default the model's own.",
    "history": "Losses that a loss is ranked among.",
    "rate": f"Learning rates: {', '.join(rates.RATES)}, or {rates.STEPS}.",
    "rate_by": "What moves them: examples seen, or trained on, as in the papers' own code.",
    "lr": "Peak learning rate; 0.1 for models of images, by default the model's own.",
    "momentum": "Nesterov momentum of SGD, for models of images; AdamW's first decay, for texts.",
    "weight_decay": "L2 penalty of SGD, or AdamW's decay; by default the model's own.",
    "cutout": "Side of the square cut out of each image, in pixels.",
    "train_limit": "Train on a fixed, class-balanced subset of so many examples.",
    "max_tokens": "Where texts are cut, and how long windows of text are; by default the data's.",
    "label_smoothing": "Share of each training target that is spread over all classes.",
    "mixup": "Alpha of mixup, after selection; 0 is none.",
    "clip": "The most that a gradient's norm may be.",
    "ema": "Decay of an average of the weights, which is tested and kept, such as 0.999; it is "
    "shorter at first.",
    "precision": "fp32, or mixed: bf16, or fp16 with a scaled loss (CUDA).",
    "channels_last": "Whether images and weights lie channels last, mostly the faster.",
    "compile": "Train and select through torch.compile: faster steps after a minute or more, "
    "which count as training time. Resumed runs may then differ in the last digits.",
    "device": "auto, cpu, cuda or mps.",
    "evaluations": "How often to test, evenly; once per epoch by default.",
    "evaluate_at": "Shares of training to test after besides, separated by commas: 0.01,0.02,0.05.",
    "stop_at": "End at the first test with so low an error: error=5%.",
    "stop_at_loss": "End at the first test with so low a loss, such as 1.6.",
    "observe": "What to record at each test besides, its time apart: losses,gradients,confidence.",
    "validation": "Test on so many held-out training examples, to choose settings by.",
    "flip": "Share of the training labels to make wrong.",
    "stale_every": "Epochs between stale-sb's selection passes.",
    "floor": "Least probability of an example in sb-memory.",
    "warmup": "Training on everything before a strategy selects: epochs such as 1e, a share such "
    "as 15%, or 0. By default 15% for sb-memory, and 1e for those that select in batches.",
    "tail": "Share of training at the end in which a rule selects no more, such as 10%.",
    "decay": "How much of an old loss stays in the memory of sb-memory.",
    "subset": "File of siftback prune: its examples are the training set.",
    "score_models": "Models that el2n, diet-sb and rho score by.",
    "score_epochs": "Epochs that each of those is trained for.",
    "noise_guard": "Have sb-memory and sb-memory-ratio hold back examples that seem mislabelled.",
}

# Where an option's default is not the setting's, or is written in percent.
DEFAULTS = {"data": "digits", "tail": "0%"}

# More threads than these for each processor only wait, and very many end the process.
THREADS_PER_PROCESSOR = 8

Beta = Annotated[
    str | None,
    typer.Option(help="In place of --keep: exponents of Selective-Backprop, keep = 1/(beta+1)."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads; by default one for a small model, and as many as are free for others."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Skip the runs that --out holds; go on with one that was stopped."
    ),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(help="Save a run so often: a time such as 10m, a share such as 0.1, or none."),
]
Checkpoints = Annotated[int, typer.Option(help="How many of the last checkpoints to keep.")]
ToTensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write evaluations for TensorBoard, too.")
]


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Gives a command an option for each of these settings, after its own options.

    The command gets what was chosen as ``settings``, the others having their defaults; or, where
    it has a parameter ``chosen`` in its place, as a dictionary to make settings of.

    Args:
        names: Fields of `Settings`; all of them where none is named.
    """

    def decorate(command: Command) -> Command:
        options = names or tuple(HELP)
        own = dict(inspect.signature(command).parameters)
        target = "settings" if own.pop("settings", None) else "chosen"
        own.pop("chosen", None)

        @wraps(command)
        def called(**given: Any) -> None:
            chosen = {name: _parsed(name, given.pop(name)) for name in options}
            given[target] = settings_of(chosen) if target == "settings" else chosen
            command(**given)

        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own.values(), *map(_option, options)]
        )
        return called

    return decorate


def settings_of(chosen: dict[str, Any]) -> Settings:
    """Settings of what was chosen, of the default length where none was."""
    if all(chosen.get(name) is None for name in LENGTHS):
        chosen = chosen | {"epochs": DEFAULT_EPOCHS}
    return Settings(**chosen)


def _option(name: str) -> inspect.Parameter:
    """A switch, or what is written, to be parsed."""
    default = DEFAULTS.get(name, Settings.__dataclass_fields__[name].default)
    kind: Any = bool if isinstance(default, bool) else str if default is not None else str | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=str(default) if kind is str else default,
        annotation=Annotated[kind, typer.Option(help=HELP[name])],
    )


def _parsed(name: str, value: Any) -> Any:
    return parse(name, value) if isinstance(value, str) else value


def use_threads(
    threads: int | None, work: Callable[[], float], resumed: Iterable[Path] = ()
) -> None:
    """Has torch compute with so many threads, and says how many where nobody did.

    Args:
        threads: What was asked for; None chooses.
        work: Gives that of the largest model, as `batch_work` does, where it is asked.
        resumed: Folders of comparisons to go on with: the first's number is taken again, as
            with another one results differ in the last digits.
    """
    import torch

    from siftback.lab.records.comparison_record import threads_of
    from siftback.lab.training.workload import threads_for

    processors = os.cpu_count() or 1
    if threads is not None:
        if not 1 <= threads <= THREADS_PER_PROCESSOR * processors:
            raise ConfigError(
                f"--threads {threads}: give at least 1, and at most "
                f"{THREADS_PER_PROCESSOR * processors} on {processors} processors"
            )
        torch.set_num_threads(threads)
        return
    before = [found for folder in resumed if (found := threads_of(folder)) is not None]
    if before:
        chosen, why = min(before[0], THREADS_PER_PROCESSOR * processors), "as before"
    else:
        chosen, why = threads_for(work)
    torch.set_num_threads(chosen)
    typer.echo(f"{chosen} thread{'s' if chosen > 1 else ''}: {why}", err=True)


def shares(keep: str | None, beta: str | None) -> list[float]:
    """What ``--keep`` or ``--beta`` says, as shares."""
    if keep is not None and beta is not None:
        raise ConfigError(f"--keep {keep} and --beta {beta}: give one, keep = 1/(beta+1)")
    if beta is None:
        return numbers("--keep", "0.33" if keep is None else keep)
    exponents = numbers("--beta", beta)
    if any(exponent < 0 for exponent in exponents):
        raise ConfigError(f"--beta {beta}: give exponents of at least 0")
    return [1 / (exponent + 1) for exponent in exponents]


def seeds(text: str) -> list[int]:
    """The integers of ``--seed``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seed {text!r}: give integers separated by commas, such as 0,1,2"
        ) from None


def often(every: str, keep: int) -> "Often":
    """What ``--checkpoint-every`` and ``--checkpoints`` say."""
    from siftback.lab.training.checkpoints import Often

    if keep < 1:
        raise ConfigError(f"--checkpoints {keep}: give at least 1")
    if every == "none":
        return Often(None, None, keep)
    if every[-1:] in tuple(UNITS):
        return Often(None, duration("--checkpoint-every", every), keep)
    (share, *more) = numbers("--checkpoint-every", every)
    if more or not 1e-6 <= share <= 1:
        raise ConfigError(
            f"--checkpoint-every {every}: give a time such as 10m, a share of training from 1e-6 "
            "to 1 such as 0.1, or none"
        )
    return Often(share, None, keep)


def existing(overwrite: bool, resume: bool) -> "Existing":
    """What to do with a folder that holds a comparison."""
    if overwrite and resume:
        raise ConfigError("both --overwrite and --resume given: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "refuse"
