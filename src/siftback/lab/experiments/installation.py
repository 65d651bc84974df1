"""What is installed and at hand: packages, devices, threads and data sets."""

import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

from siftback.lab.data import parquet
from siftback.lab.data.datasets import NAMES
from siftback.lab.records.environment import environment

_SELF = "siftback"
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
_NOT_FOR_USERS = ("dev", "docs")


@dataclass(frozen=True)
class Package:
    """A package that Siftback can use.

    Attributes:
        name: Its name on an index.
        extra: The extra that brings it; empty where the library itself needs it.
        needed: The releases that fit, such as ``>=2.11``.
        version: The one that is installed; None where none is.
    """

    name: str
    extra: str
    needed: str
    version: str | None

    @property
    def fits(self) -> bool:
        """Whether a release that fits is installed."""
        needed = Requirement(f"{self.name}{self.needed}").specifier
        return self.version is not None and needed.contains(self.version, prereleases=True)

    @property
    def install(self) -> str:
        """The command that installs it."""
        if not self.extra:
            return f'pip install "{self.name}{self.needed}"'
        return f'pip install "{_SELF}[{self.extra}]"'


def packages() -> list[Package]:
    """Every package that this release of Siftback names, those for its developers apart."""
    found: dict[str, Package] = {}
    for text in metadata.requires(_SELF) or []:
        asked = Requirement(text)
        extra = _EXTRA.search(str(asked.marker or ""))
        name = extra[1] if extra else ""
        if name not in _NOT_FOR_USERS and asked.name != _SELF:
            found.setdefault(asked.name, _package(asked, name))
    return sorted(found.values(), key=lambda one: (one.extra, one.name))


def _package(asked: Requirement, extra: str) -> Package:
    try:
        version = metadata.version(asked.name)
    except metadata.PackageNotFoundError:
        version = None
    return Package(asked.name, extra, str(asked.specifier), version)


def machine() -> dict[str, Any]:
    """What `environment` says of the machine, and how busy it is.

    Besides: ``load``, the processes that wanted a processor in the last minute on average; None
    where the system does not say; and ``cuda``, the release that torch was built for, or None.
    """
    found = environment({})
    found = {name: value for name, value in found.items() if name not in ("arguments", "date")}
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return found | {"load": load, "cuda": torch.version.cuda}


def busy(found: dict[str, Any]) -> bool:
    """Whether the processors of a `machine` are taken by other work, by half or more."""
    return found["load"] is not None and found["load"] >= (found["cores"] or 1) / 2


def data_sets() -> dict[str, Path | None]:
    """Where each data set of the laboratory lies; None where it is not on this machine.

    ``digits`` comes with the laboratory, and lies nowhere.
    """
    named = [name for name in NAMES if name != "digits" and not {":", "+"} & set(name)]
    return {name: parquet.at_hand(name) for name in named}
