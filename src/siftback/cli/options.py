"""Options that several commands share; those of settings follow from `Settings`."""

import inspect
import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siftback.errors import ConfigError
from siftback.lab.settings import (
    DEFAULT_EPOCHS,
    DURATION_UNITS,
    LENGTHS,
    SETTINGS,
    Settings,
    parse_duration,
    parse_numbers,
    parse_setting,
)

if TYPE_CHECKING:
    from siftback.lab.experiments.comparison import Existing
    from siftback.lab.run.checkpoints import CheckpointPolicy

Command = Callable[..., None]

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
KeepCheckpoints = Annotated[int, typer.Option(help="How many of the last checkpoints to keep.")]
ToTensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write evaluations for TensorBoard, too.")
]


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Gives a command an option for each of these settings, after its own options.

    The command gets a dictionary of their values as ``values``, to make settings of.

    Args:
        names: Fields of `Settings`; all of them where none is named.
    """

    def decorate(command: Command) -> Command:
        options = names or tuple(SETTINGS)

        @wraps(command)
        def call(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in options}
            command(
                values={
                    name: parse_setting(name, value) if isinstance(value, str) else value
                    for name, value in values.items()
                },
                **arguments,
            )

        parameters = dict(inspect.signature(command).parameters)
        del parameters["values"]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*parameters.values(), *map(_option, options)]
        )
        return call

    return decorate


def settings_of(values: dict[str, Any]) -> Settings:
    """Returns settings of these values, of the default length where they have none."""
    if all(values.get(name) is None for name in LENGTHS):
        values = values | {"epochs": DEFAULT_EPOCHS}
    return Settings(**values)


def _option(name: str) -> inspect.Parameter:
    """Returns the parameter of a switch, or of text to be parsed."""
    default = DEFAULTS.get(name, Settings.__dataclass_fields__[name].default)
    kind: Any = bool if isinstance(default, bool) else str if default is not None else str | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=str(default) if kind is str else default,
        annotation=Annotated[kind, typer.Option(help=SETTINGS[name].help)],
    )


def use_threads(
    threads: int | None, work: Callable[[], float], resumed: Iterable[Path] = ()
) -> None:
    """Has torch compute with so many threads, and says how many where none were asked for.

    Args:
        threads: The number that was asked for; None chooses.
        work: Gives the work of the largest model, as `batch_work` does.
        resumed: Folders of comparisons to go on with: the first's number is taken again, as
            with another one results differ in the last digits.
    """
    import torch

    from siftback.lab.records.comparison_record import threads_of
    from siftback.lab.run.workload import threads_for

    processors = os.cpu_count() or 1
    most = THREADS_PER_PROCESSOR * processors
    if threads is not None:
        if not 1 <= threads <= most:
            raise ConfigError(
                f"--threads {threads}: give at least 1, and at most {most} on {processors} "
                "processors"
            )
        torch.set_num_threads(threads)
        return
    before = next(filter(None, map(threads_of, resumed)), None)
    count, why = (min(before, most), "as before") if before else threads_for(work)
    torch.set_num_threads(count)
    typer.echo(f"{count} thread{'s' if count > 1 else ''}: {why}", err=True)


def keeps_of(keep: str | None, beta: str | None) -> list[float]:
    """Returns the shares to keep that ``--keep`` or ``--beta`` says."""
    if keep is not None and beta is not None:
        raise ConfigError(f"--keep {keep} and --beta {beta}: give one, keep = 1/(beta+1)")
    if beta is None:
        return parse_numbers("--keep", "0.33" if keep is None else keep)
    exponents = parse_numbers("--beta", beta)
    if any(exponent < 0 for exponent in exponents):
        raise ConfigError(f"--beta {beta}: give exponents of at least 0")
    return [1 / (exponent + 1) for exponent in exponents]


def parse_seeds(text: str) -> list[int]:
    """Returns the integers of ``--seed``."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seed {text!r}: give integers separated by commas, such as 0,1,2"
        ) from None


def checkpoint_policy(every: str, keep: int) -> "CheckpointPolicy":
    """Returns the policy of ``--checkpoint-every`` and ``--checkpoints``."""
    from siftback.lab.run.checkpoints import CheckpointPolicy

    if keep < 1:
        raise ConfigError(f"--checkpoints {keep}: give at least 1")
    if every == "none":
        return CheckpointPolicy(None, None, keep)
    if every[-1:] in tuple(DURATION_UNITS):
        return CheckpointPolicy(None, parse_duration("--checkpoint-every", every), keep)
    shares = parse_numbers("--checkpoint-every", every)
    if len(shares) > 1 or not 1e-6 <= shares[0] <= 1:
        raise ConfigError(
            f"--checkpoint-every {every}: give a time such as 10m, a share of training from 1e-6 "
            "to 1 such as 0.1, or none"
        )
    return CheckpointPolicy(shares[0], None, keep)


def existing_policy(overwrite: bool, resume: bool) -> "Existing":
    """Returns what to do with a folder that holds a comparison."""
    if overwrite and resume:
        raise ConfigError("both --overwrite and --resume given: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "refuse"
