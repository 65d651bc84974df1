"""Commands made of functions, and the options that several of them share."""

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer
from typer.core import TyperCommand

from siftback.cli.app import app
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

# The help of options that mean the same in every command, by the name of the parameter.
HELP = {
    "beta": "In place of --keep: exponents of Selective-Backprop, keep = 1/(beta+1).",
    "threads": "CPU threads; by default one for a small model, and as many as are free for others.",
    "checkpoint_every": "Save a run so often: a time such as 10m, a share such as 0.1, or none.",
    "checkpoints": "How many of the last checkpoints to keep.",
    "tensorboard": "Write evaluations for TensorBoard, too.",
    "overwrite": "Replace what --out holds.",
    "resume": "Skip the runs that --out holds; go on with one that was stopped.",
    "json": "Print JSON and nothing else.",
    "scale": "small, for two cores and the data at hand; or full, as the papers.",
}


class OnceCommand(TyperCommand):
    """A command that refuses an option that is given twice, of which the first would be lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Checks that each option that takes one value has one."""
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        given: dict[Any, int] = Counter(order)
        for option, count in given.items():
            if count > 1 and not (option.multiple or option.is_flag):
                is_list = "separated by commas" in " ".join((option.help or "").split())
                raise typer.BadParameter(
                    f"given {count} times, of which only the last would count: give it once"
                    f"{', its values separated by commas' if is_list else ''}",
                    ctx,
                    option,
                )
        return super().parse_args(ctx, args)


def command(name: str, *settings: str) -> Callable[[Command], Command]:
    """Makes a command of a function, whose docstring is its help.

    A parameter is an option, with the help that ``Args`` of the docstring or `HELP` has; one
    without a default is an argument, unless it is keyword only. A switch has no opposite. A
    parameter that says otherwise is annotated with its ``typer.Option``.

    Args:
        name: The command's name.
        settings: Fields of `Settings`, each an option after the function's own. The function gets
            a dictionary of their values as ``values``, to make settings of.
    """

    def decorate(function: Command) -> Command:
        text, described = _split_docstring(function)

        @wraps(function)
        def call(**arguments: Any) -> None:
            if settings:
                values = {name: arguments.pop(name) for name in settings}
                arguments["values"] = {
                    name: parse_setting(name, value) if isinstance(value, str) else value
                    for name, value in values.items()
                }
            function(**arguments)

        parameters = inspect.signature(function).parameters.values()
        options = [
            *(
                _own_option(parameter, described)
                for parameter in parameters
                if parameter.name != "values"
            ),
            *map(_setting_option, settings),
        ]
        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        app.command(name, cls=OnceCommand, help=text)(call)
        return call

    return decorate


def _split_docstring(function: Command) -> tuple[str, dict[str, str]]:
    """Returns the text of a docstring before ``Args``, and the descriptions of its arguments."""
    text, _, arguments = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    return text, {name: " ".join(entry.split()) for name, entry in entries}


def _own_option(parameter: inspect.Parameter, described: dict[str, str]) -> inspect.Parameter:
    """Returns a parameter of a function with its help."""
    name, kind = parameter.name, parameter.annotation
    if get_origin(kind) is Annotated:
        return parameter
    text = described.get(name) or HELP[name]
    is_argument = parameter.kind is not parameter.KEYWORD_ONLY
    if parameter.default is parameter.empty and is_argument:
        return parameter.replace(annotation=Annotated[kind, typer.Argument(help=text)])
    flags = ["--" + name.replace("_", "-")] if kind is bool else []
    return parameter.replace(annotation=Annotated[kind, typer.Option(*flags, help=text)])


def _setting_option(name: str) -> inspect.Parameter:
    """Returns the parameter of a setting: a switch, or text to be parsed."""
    default = DEFAULTS.get(name, Settings.__dataclass_fields__[name].default)
    kind: Any = bool if isinstance(default, bool) else str if default is not None else str | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=str(default) if kind is str else default,
        annotation=Annotated[kind, typer.Option(help=SETTINGS[name].help)],
    )


def settings_of(values: dict[str, Any]) -> Settings:
    """Returns settings of these values, of the default length where they have none."""
    if all(values.get(name) is None for name in LENGTHS):
        values = values | {"epochs": DEFAULT_EPOCHS}
    return Settings(**values)


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
