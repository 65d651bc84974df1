"""Experiments of the papers, each a TOML file in this folder, at two scales."""

from enum import StrEnum

from siftback.errors import ConfigError
from siftback.lab.records.formatting import one_of


class Scale(StrEnum):
    """The size of an experiment: as the papers have it, or for two cores and the data at hand."""

    FULL = "full"
    SMALL = "small"


def find_scale(name: str) -> Scale:
    """Returns the scale of a name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in [*Scale]:
        raise ConfigError(f"--scale {name}: {one_of(name, Scale)}")
    return Scale(name)
