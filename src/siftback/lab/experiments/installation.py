"""The installation: packages, devices, threads and data sets at hand."""

import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

from siftback.installation import install_command
from siftback.lab.data.load import NAMES
from siftback.lab.data.tables import local_folder
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
        alone = f'pip install "{self.name}{self.needed}"'
        return install_command(self.extra) if self.extra else alone


def packages() -> list[Package]:
    """Returns every package that users of this release may need."""
    by_name: dict[str, Package] = {}
    for text in metadata.requires(_SELF) or []:
        requirement = Requirement(text)
        name, match = requirement.name, _EXTRA.search(str(requirement.marker or ""))
        extra = match[1] if match else ""
        if extra not in _NOT_FOR_USERS and name not in (_SELF, *by_name):
            by_name[name] = find_package(requirement, extra)
    return sorted(by_name.values(), key=lambda package: (package.extra, package.name))


def find_package(requirement: Requirement, extra: str) -> Package:
    """Returns a package that an extra needs, with the version that is installed."""
    installed = metadata.distributions(name=requirement.name)
    version = next((distribution.version for distribution in installed), None)
    return Package(requirement.name, extra, str(requirement.specifier), version)


def machine() -> dict[str, Any]:
    """Returns the machine's part of the `environment`, and how busy it is.

    Besides: ``load``, the processes that wanted a processor in the last minute on average; None
    where the system does not say; and ``cuda``, the release that torch was built for, or None.
    """
    facts = environment({})
    del facts["arguments"], facts["date"]
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return facts | {"load": load, "cuda": torch.version.cuda}


def busy(facts: dict[str, Any]) -> bool:
    """Returns whether other work takes half of the processors of a `machine` or more."""
    return facts["load"] is not None and facts["load"] >= (facts["cores"] or 1) / 2


def data_sets() -> dict[str, Path | None]:
    """Returns the path of each data set of the laboratory; None where this machine lacks it.

    ``digits`` comes with the laboratory, and lies nowhere.
    """
    named = [name for name in NAMES if name != "digits" and not {":", "+"} & set(name)]
    return {name: local_folder(name) for name in named}
