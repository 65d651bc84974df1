"""Commands made of functions, and the options that several of them share."""

import inspect
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from siftback.cli.app import app
from siftback.errors import ConfigError
from siftback.lab.settings import (
    DEFAULT_EPOCHS,
    DEFAULTS,
    DURATION_UNITS,
    LENGTHS,
    SETTINGS,
    TYPES,
    Settings,
    parse_duration,
    parse_numbers,
    parse_setting,
    parse_whole_number,
)

if TYPE_CHECKING:
    from siftback.lab.experiments.comparison import Existing
    from siftback.lab.run.checkpoints import CheckpointPolicy

Command = Callable[..., None]

OPTION_DEFAULTS = DEFAULTS | {"data": "digits"}

# More threads than these for each processor only wait, and very many end the process.
THREADS_PER_PROCESSOR = 8

# The help of options that mean the same in every command, by the name of the parameter.
HELP = {
    "beta": "In place of --keep: exponents of Selective-Backprop, separated by commas; keep is "
    "1/(beta+1).",
    "threads": "CPU threads; by default one for a small model, and as many as are free for others.",
    "checkpoint_every": "Save a run so often: a time such as 10m, a share such as 0.1, or none.",
    "checkpoints": "How many of the last checkpoints to keep.",
    "tensorboard": "Write evaluations for TensorBoard, too.",
    "overwrite": "Replace what --out holds.",
    "resume": "Skip the runs that --out holds; go on with one that was stopped.",
    "json": "Print JSON and nothing else.",
    "scale": "small, for two cores and the data at hand; or full, as the papers.",
}

# The panels of the help of a command that trains: the options that a short help has, in its order,
# and others. Those that are listed nowhere are others of "How to train".
PANELS = {
    "What to train": (
        ("data", "model", "width", "strategies", "strategy", "score", "models", "grid", "keep",
         "seed"),
        ("beta", "no_matched", "matched", "norm", "train_limit", "max_tokens", "subset",
         "validation", "flip", "rare"),
    ),
    "How to train": (("epochs", "budget", "batch_size", "lr", "device"), ()),
    "How to select": (
        (),
        ("warmup", "tail", "floor", "decay", "noise_guard", "history", "stale_every",
         "score_models", "score_epochs"),
    ),
    "Output": (
        ("out", "overwrite", "resume", "status", "json"),
        ("checkpoint_every", "checkpoints", "tensorboard", "evaluations", "evaluate_at", "observe",
         "help_all", "help"),
    ),
}  # fmt: skip
PANEL_OF = {name: title for title, groups in PANELS.items() for name in sum(groups, ())}
COMMON = {name for common, _ in PANELS.values() for name in common} | {"help_all", "help"}
ORDER = {name: place for place, name in enumerate(PANEL_OF)}

# A help of more options than these does not fit on a screen.
ON_A_SCREEN = 30

# In the metadata of a context whose help has every option.
HELP_ALL = "siftback.cli.help_all"

# Characters of a name and its value beside which the text still stands in their line.
WIDEST = 28

# What an option's value is, where its type does not say it.
VALUES = {
    "time_budget": "time",
    "checkpoint_every": "time|share|none",
    "warmup": "epochs|share",
    "tail": "share",
    "stop_at": "error=N%",
    "subset": "path",
    "grid": "name=list",
    "keep": "float",
    "window": "a,b",
    "drop": "float",
}


class OptionsCommand(TyperCommand):
    """A command with its options in panels, which refuses an option that is given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Checks that each option that takes one value has one, as the first would be lost."""
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        given: dict[Any, int] = Counter(order)
        for option, count in given.items():
            if count > 1 and not (option.multiple or option.is_flag):
                raise typer.BadParameter(
                    f"given {count} times, of which only the last would count: give it once"
                    f"{', its values separated by commas' if option.metavar == '<list>' else ''}",
                    ctx,
                    option,
                )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, in panels where the command trains."""
        parameters = self.get_params(ctx)
        names = {parameter.name for parameter in parameters}
        in_panels, is_short = "data" in names, "help_all" in names and HELP_ALL not in ctx.meta
        sections: dict[str, list[tuple[str, str]]] = {}
        if in_panels:
            parameters = sorted(parameters, key=lambda option: ORDER.get(option.name, len(ORDER)))
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record and (parameter.name in COMMON or not is_short):
                title = f"{parameter.param_type_name}s".capitalize()  # arguments come first
                if in_panels:
                    title = PANEL_OF.get(parameter.name, "How to train")
                sections.setdefault(title, []).append(record)
        widest = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(min(widest, WIDEST)), text) for name, text in rows])


def show_all(ctx: typer.Context, asked: bool) -> None:
    """Prints the help with every option, and ends."""
    if asked:
        ctx.meta[HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def command(
    name: str, *settings: str, options_of: Command | None = None
) -> Callable[[Command], Command]:
    """Makes a command of a function, whose docstring is its help.

    A parameter is an option, with the help that ``Args`` of the docstring or `HELP` has; one
    without a default is an argument, unless it is keyword only. A switch has no opposite. A
    parameter that says otherwise is annotated with its ``typer.Option``.

    Args:
        name: The command's name.
        settings: Fields of `Settings`, each an option after the function's own. The function gets
            a dictionary of their values as ``values``, to make settings of.
        options_of: A function whose keyword-only parameters are options, too. The command's own
            function gets their values as ``**options``, to call it with.
    """

    def decorate(function: Command) -> Command:
        text, _, arguments = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
        described = {name: " ".join(entry.split()) for name, entry in entries}

        @wraps(function)
        def call(**arguments: Any) -> None:
            arguments.pop("help_all", None)
            if settings:
                values = {name: arguments.pop(name) for name in settings}
                arguments["values"] = {
                    name: parse_setting(name, value) if isinstance(value, str) else value
                    for name, value in values.items()
                }
            function(**arguments)

        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name not in ("values", "options")
        ]
        if options_of:
            shared = inspect.signature(options_of).parameters.values()
            parameters += [option for option in shared if option.kind is option.KEYWORD_ONLY]
        options = [_own_option(parameter, described) for parameter in parameters]
        options += map(_setting_option, settings)
        if len(options) > ON_A_SCREEN:
            options.append(_HELP_ALL_OPTION)
        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        app.command(name, cls=OptionsCommand, help=text)(call)
        return call

    return decorate


def _own_option(parameter: inspect.Parameter, described: dict[str, str]) -> inspect.Parameter:
    """Returns a parameter of a function with its help."""
    name, kind = parameter.name, parameter.annotation
    if get_origin(kind) is Annotated:
        return parameter
    text = described.get(name) or HELP[name]
    if parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY:
        return parameter.replace(annotation=Annotated[kind, typer.Argument(help=text)])
    flags = ["--" + name.replace("_", "-")] if kind is bool else []
    option = typer.Option(*flags, help=text, metavar=_value(name, kind, text))
    return parameter.replace(annotation=Annotated[kind, option])


def _setting_option(name: str) -> inspect.Parameter:
    """Returns the parameter of a setting: a switch, or text to be parsed."""
    default = OPTION_DEFAULTS[name]
    kind: Any = bool if isinstance(default, bool) else str if default is not None else str | None
    text = SETTINGS[name].help
    option = typer.Option(help=text, metavar=_value(name, TYPES[name], text))
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=str(default) if kind is str else default,
        annotation=Annotated[kind, option],
    )


def _value(name: str, kind: Any, text: str) -> str | None:
    """Returns the value of an option as its help shows it; None where Typer knows."""
    if "separated by commas" in text:
        return "<list>"
    words = VALUES.get(name, "|".join(get_args(kind)) if get_origin(kind) is Literal else "")
    numbers = [number.__name__ for number in (int, float) if number in (kind, *get_args(kind))]
    return f"<{words or numbers[0]}>" if words or numbers else None


_help_all = typer.Option(
    "--help-all", is_eager=True, callback=show_all, help="Show every option and exit."
)
_HELP_ALL_OPTION = inspect.Parameter(
    "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, _help_all]
)


def settings_of(values: dict[str, Any]) -> Settings:
    """Returns settings of these values, of the default length where they have none."""
    if all(values.get(name) is None for name in LENGTHS):
        values = values | {"epochs": DEFAULT_EPOCHS}
    return Settings(**values)


def warn_of_varied(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Says which of the options that were given are not used, as a grid has other values of them.

    Args:
        values: What the options say, by name.
        names: Names that the grid has.
    """
    for name in names:
        if values[name] != OPTION_DEFAULTS.get(name):
            option = f"--{name.replace('_', '-')} {values[name]}"
            typer.echo(f"{option} is not used, as --grid has values of {name}", err=True)


def use_threads(threads: int | None, work: Callable[[], float], paths: Iterable[Path] = ()) -> None:
    """Has torch compute with this many threads, and says how many where none were asked for.

    Args:
        threads: The number that was asked for; None chooses.
        work: Gives the work of the largest model, as `batch_work` does.
        paths: Folders of comparisons to go on with: the first's number is taken again, as
            with another one results differ in the last digits.
    """
    import torch

    from siftback.lab.records.comparison_record import threads_of
    from siftback.lab.run.workload import threads_for

    processors = os.cpu_count() or 1
    most = THREADS_PER_PROCESSOR * processors
    if threads is not None:
        if not 1 <= threads <= most:
            raise ConfigError(f"--threads {threads}: give 1 to {most} on {processors} processors")
        torch.set_num_threads(threads)
        return
    before = next(filter(None, map(threads_of, paths)), None)
    count, why = (min(before, most), "as before") if before else threads_for(work)
    torch.set_num_threads(count)
    typer.echo(f"{count} thread{'s' if count > 1 else ''}: {why}", err=True)


def keeps_of(keep: str | None, beta: str | None, strategies: Sequence[str]) -> list[float]:
    """Returns the shares to keep that ``--keep`` or ``--beta`` says.

    Raises:
        ConfigError: If both are given, if one is no list of shares, or if none of the strategies
            goes by it.
    """
    from siftback.lab.experiments.comparison import check_keep_used

    if keep is not None and beta is not None:
        raise ConfigError(f"--keep {keep} and --beta {beta}: give one, keep = 1/(beta+1)")
    if beta is None:
        shares = parse_numbers("--keep", "0.33" if keep is None else keep)
    else:
        exponents = parse_numbers("--beta", beta)
        if any(exponent < 0 for exponent in exponents):
            raise ConfigError(f"--beta {beta}: give exponents of at least 0")
        shares = [1 / (exponent + 1) for exponent in exponents]
    if keep or beta:
        check_keep_used(f"--{'keep' if keep else 'beta'} {keep or beta}", strategies)
    return shares


def parse_seeds(text: str) -> list[int]:
    """Returns the integers of ``--seed``."""
    return [parse_whole_number("--seed", seed.strip()) for seed in text.split(",")]


def checkpoint_policy(every: str, keep: int) -> "CheckpointPolicy":
    """Returns the policy of ``--checkpoint-every`` and ``--checkpoints``."""
    from siftback.lab.run.checkpoints import CheckpointPolicy

    if keep < 1:
        raise ConfigError(f"--checkpoints {keep}: give at least 1")
    if every == "none":
        return CheckpointPolicy(seconds=math.inf, keep=keep)
    if every[-1:] in tuple(DURATION_UNITS):
        return CheckpointPolicy(seconds=parse_duration("--checkpoint-every", every), keep=keep)
    shares = parse_numbers("--checkpoint-every", every)
    if len(shares) > 1 or not 1e-6 <= shares[0] <= 1:
        raise ConfigError(
            f"--checkpoint-every {every}: give a time such as 10m, a share of training from 1e-6 "
            "to 1 such as 0.1, or none"
        )
    return CheckpointPolicy(shares[0], math.inf, keep)


def existing_policy(overwrite: bool, resume: bool) -> "Existing":
    """Returns what to do with a folder that holds a comparison."""
    if overwrite and resume:
        raise ConfigError("both --overwrite and --resume given: give one of them")
    return "overwrite" if overwrite else "resume" if resume else "refuse"
