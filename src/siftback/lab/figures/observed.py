"""What was observed of runs, configuration by configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siftback.lab.figures.configurations import Configuration, configurations, titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look, looks
from siftback.lab.records.run_summary import TRADITIONAL


@dataclass(frozen=True)
class Watched:
    """A configuration of which something was observed.

    Attributes:
        title: Its comparison's.
        configuration: It.
        seeds: What was seen, look by look, of each of its runs that was observed.
    """

    title: str
    configuration: Configuration
    seeds: Sequence[Sequence[Look]]

    @property
    def heading(self) -> str:
        """The title of its comparison, and its label."""
        return f"{self.title}, {self.configuration.label}"

    @property
    def origin(self) -> tuple[str, Comparison]:
        """The title of its comparison, and the comparison."""
        return self.title, self.configuration.comparison


def watched(comparisons: Sequence[Comparison], kind: str) -> Iterator[list[Watched]]:
    """Yields, of each comparison, the configurations of which something was observed.

    Comparisons of which nothing was are left out.

    Args:
        comparisons: Where to look.
        kind: One of `siftback.lab.records.observations.KINDS`.
    """
    for title, comparison in titled(comparisons):
        watched_group = []
        for config in configurations(comparison):
            seen = [looks(comparison.folder, run.record, kind) for run in config.runs]
            if seeds := [observations for observations in seen if observations]:
                watched_group.append(Watched(title, config, seeds))
        if watched_group:
            yield watched_group


def watched_once(comparisons: Sequence[Comparison], kind: str) -> list[Watched]:
    """Returns, of each comparison, what was observed of Traditional, or of the first that was."""
    return [
        next((run for run in runs if run.configuration.label == TRADITIONAL), runs[0])
        for runs in watched(comparisons, kind)
    ]


def watched_selective(comparisons: Sequence[Comparison], kind: str) -> list[Watched]:
    """Returns, of each comparison, what was observed of the first selective configuration."""
    groups = (
        [run for run in runs if not run.configuration.plain] for runs in watched(comparisons, kind)
    )
    return [runs[0] for runs in groups if runs]


def command(kind: str, strategies: str = "traditional,sb") -> str:
    """Returns the command that records it.

    >>> command("losses")
    'Record it: siftback compare --strategies traditional,sb --observe losses'
    """
    return f"Record it: siftback compare --strategies {strategies} --observe {kind}"
