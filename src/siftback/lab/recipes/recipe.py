"""What a recipe says, and how its file is read."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from siftback.errors import ConfigError
from siftback.lab.analyses import ANALYSES
from siftback.lab.experiments.comparison import Plan
from siftback.lab.records.formatting import one_of
from siftback.lab.settings import (
    TYPES,
    Settings,
    parse_numbers,
    parse_setting,
    parse_share,
    parse_warmup,
)

Scale = Literal["full", "small"]
SCALES: tuple[Scale, ...] = get_args(Scale)

# What a comparison is given beside its settings: the type of each, and what it is left out.
_PLAN: dict[str, tuple[Any, Any]] = {
    "strategies": (tuple[str, ...], None),
    "keep": (tuple[float, ...], (0.33,)),
    "seeds": (tuple[int, ...], (0,)),
    "matched": (bool, False),
}
_TYPES = TYPES | {name: kind for name, (kind, _) in _PLAN.items()}
_ABOUT = {
    "title": str,
    "source": str,
    "draw": tuple[str, ...],
    "uses": tuple[str, ...],
    "note": str,
}

# Settings that are written as parts of the training, in a file too.
_PARTS_OF_TRAINING: dict[str, Callable[[str, Any], Any]] = {
    "warmup": parse_warmup,
    "tail": parse_share,
}

# Each length of a training stands for the others.
_LENGTHS = ("epochs", "budget")


@dataclass(frozen=True)
class Recipe:
    """One experiment: what to train at the papers' scale and at a small one, and what to draw.

    Attributes:
        name: That of its file.
        title: What it shows.
        source: The paper, and its figure, table or section.
        draw: Names of ``ANALYSES``.
        uses: Names of the recipes whose comparisons it draws from too.
        note: What the source leaves open, or where the full scale departs from it.
        comparisons: Of each scale the comparisons by name, each with its keys as they are in the
            file: those of `Settings`, and ``strategies``, ``keep``, ``seeds`` and ``matched``. A
            comparison that is the only one may have the empty name.
    """

    name: str
    title: str
    source: str
    draw: tuple[str, ...]
    uses: tuple[str, ...]
    note: str
    comparisons: Mapping[Scale, Mapping[str, Mapping[str, Any]]]

    def plans(self, scale: Scale, changes: Mapping[str, Any] | None = None) -> dict[str, Plan]:
        """Its comparisons as plans, by name; none for a recipe that only draws.

        Args:
            scale: Which scale.
            changes: What to take in place of what the file says, for every comparison.

        Raises:
            ConfigError: If a key or a value is none that a comparison can have.
        """
        return {
            name: _plan(f"recipe {self.name} [{_section(scale, name)}]", given, changes or {})
            for name, given in self.comparisons[scale].items()
        }


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe from its file.

    The file has ``title``, ``source``, ``draw``, and where there is something to say ``uses`` and
    ``note``. Comparisons are in the tables ``[full]`` and ``[small]``: their keys, and tables of
    their own where there are several, whose keys are added to them. What both scales share is in
    ``[both]``. A comparison's table ``budgets``, from budgets to strategies, makes one of each
    budget, with the budget in its name.

    Raises:
        ConfigError: Names the file and the key, and says what is wrong.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    where = str(path)
    _check_names(where, given, [*_ABOUT, "both", *SCALES])
    for name in ("title", "source", "draw"):
        if name not in given:
            raise ConfigError(f"{where} says no {name}: add it")
    about = {
        name: _value(where, name, given[name], _ABOUT[name]) for name in _ABOUT if name in given
    }
    if unknown := [name for name in about["draw"] if name not in ANALYSES]:
        raise ConfigError(
            f"{where}: draw: no analysis {', '.join(unknown)}; {one_of(unknown[0], ANALYSES)}"
        )
    for table in ("both", *SCALES):
        if not isinstance(given.get(table, {}), dict):
            raise ConfigError(f"{where}: {table} is a table, write it as [{table}]")
    shared = given.get("both", {})
    comparisons = {
        scale: dict(_comparisons(shared, given[scale])) if scale in given else {}
        for scale in SCALES
    }
    recipe = Recipe(path.stem, **({"uses": (), "note": ""} | about), comparisons=comparisons)
    for scale in SCALES:
        if not comparisons[scale] and not recipe.uses:
            raise ConfigError(f"{where} trains nothing: add [{scale}], or uses = [...]")
        for name, keys in comparisons[scale].items():
            if not re.fullmatch(r"[\w-]*|[\w.-]*\w", name):
                raise ConfigError(
                    f"{where}: {name!r} is not a name of a folder: take letters and -"
                )
            _plan(f"{where} [{_section(scale, name)}]", keys, {})
    return recipe


def changes_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Changes as they are written on a command line, lists with commas between.

    Raises:
        ConfigError: For a key that no comparison has, or a value that it cannot have.

    >>> changes_of({"time_budget": "12h", "strategies": "traditional,sb"})
    {'time_budget': 43200.0, 'strategies': ['traditional', 'sb']}
    """
    _check_names("--set", texts, [name for name in _TYPES if name != "seeds"])
    return {name: _OWN.get(name, parse_setting)(name, text) for name, text in texts.items()}


def _strategies(name: str, text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _matched(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(f"--set {name}={text}: give true or false")
    return text == "true"


# How the keys are written that are no settings.
_OWN: Mapping[str, Callable[[str, str], Any]] = {
    "strategies": _strategies,
    "keep": parse_numbers,
    "matched": _matched,
    # As in a file, and read with it.
    **dict.fromkeys(_PARTS_OF_TRAINING, lambda name, text: text),
}


def _comparisons(
    shared: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The comparisons of one scale's table, each with what it shares with the others."""
    common = {**shared, **{k: v for k, v in table.items() if not isinstance(v, dict)}}
    named = {name: value for name, value in table.items() if isinstance(value, dict)}
    for name, own in named.items():
        budgets = own.get("budgets")
        if not isinstance(budgets, dict):
            yield name, common | own
            continue
        rest = common | {key: value for key, value in own.items() if key != "budgets"}
        for budget, given in budgets.items():
            yield f"{name}-{budget}", rest | {"budget": _budget(budget), "strategies": given}
    if not named:
        yield "", common


def _budget(text: str) -> float:
    """The budget that is a key; what is none, `Settings` refuse."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def _plan(where: str, given: Mapping[str, Any], changes: Mapping[str, Any]) -> Plan:
    """The plan of a comparison's keys.

    Args:
        where: What an error begins with.
        given: The keys.
        changes: What to take in place of some.
    """
    if any(name in changes for name in _LENGTHS):
        given = {name: value for name, value in given.items() if name not in _LENGTHS}
    given = {**given, **changes}
    _check_names(where, given, list(_TYPES))
    values = {name: _value(where, name, value, _TYPES[name]) for name, value in given.items()}
    for name in ("data", "model", "strategies"):
        if name not in values:
            raise ConfigError(f"{where} says no {name}: add it")
    own = {name: values.pop(name, default) for name, (_, default) in _PLAN.items()}
    try:
        return Plan(
            Settings(**values), own["strategies"], own["keep"], own["seeds"], own["matched"]
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_names(where: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"give some of {', '.join(known)}"
            raise ConfigError(f"{where}: no key {name!r}; {hint}")


def _value(where: str, name: str, value: Any, kind: Any) -> Any:
    """A value as its key has it: a list as a tuple, and nothing of another type."""
    if name in _PARTS_OF_TRAINING:
        return _PARTS_OF_TRAINING[name](f"{where}: {name}", value)
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    lists = [option for option in options if get_origin(option) in (tuple, Sequence)]
    if lists:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: {name} = {value!r} is not a list; write it as [...]")
        return tuple(_value(where, name, each, get_args(lists[0])[0]) for each in value)
    types = {str if get_origin(option) is Literal else option for option in options}
    if float in types:
        types.add(int)
    if type(value) not in types:
        names = " or ".join(sorted(t.__name__ for t in types - {type(None)}))
        raise ConfigError(f"{where}: {name} = {value!r} is not {names}")
    return value


def _section(scale: str, name: str) -> str:
    return f"{scale}.{name}" if name else scale
