"""Experiments of the papers, each a TOML file in this folder, at two scales."""

from enum import StrEnum


class Scale(StrEnum):
    """The size of an experiment: as the papers have it, or for two cores and the data at hand."""

    FULL = "full"
    SMALL = "small"
