"""What was observed of runs, configuration by configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siftback.lab.analyses.configurations import Configuration, configurations, titled
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look, looks


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


def watched(comparisons: Sequence[Comparison], kind: str) -> Iterator[list[Watched]]:
    """Yields, of each comparison, the configurations of which something was observed.

    Comparisons of which nothing was are left out.

    Args:
        comparisons: Where to look.
        kind: One of `siftback.lab.records.observations.KINDS`.
    """
    for title, comparison in titled(comparisons):
        found = []
        for one in configurations(comparison):
            seen = [looks(comparison.folder, run.record, kind) for run in one.runs]
            if seeds := [each for each in seen if each]:
                found.append(Watched(title, one, seeds))
        if found:
            yield found


def command(kind: str, strategies: str = "traditional,sb") -> str:
    """What records it.

    >>> command("losses")
    'Record it: siftback compare --strategies traditional,sb --observe losses'
    """
    return f"Record it: siftback compare --strategies {strategies} --observe {kind}"
