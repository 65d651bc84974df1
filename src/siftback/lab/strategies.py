"""The strategies that the laboratory compares, one table."""

from collections.abc import Callable
from dataclasses import dataclass

from siftback import ConfigError, Percentile, Selector, Uniform


@dataclass(frozen=True)
class Strategy:
    """A named way to train.

    Attributes:
        name: What the command line calls it.
        summary: What it does, in one line.
        cost: Its ideal cost of one source example in forwards (1) and backwards (2), where s is
            the share kept.
        selector: Makes its selector from the share to keep and the history's size; None for
            training on everything.
        single_pass: Whether it chooses among the rows of a larger training batch, of which only
            the kept ones are run backward.
    """

    name: str
    summary: str
    cost: str
    selector: Callable[[float, int], Selector] | None = None
    single_pass: bool = False

    @property
    def selects(self) -> bool:
        """Whether it leaves examples out."""
        return self.selector is not None


def _table(*strategies: Strategy) -> dict[str, Strategy]:
    return {strategy.name: strategy for strategy in strategies}


STRATEGIES = _table(
    Strategy("traditional", "every example, every epoch", "3"),
    Strategy(
        "sb",
        "Selective-Backprop: a forward pass scores each example, high losses are kept",
        "1 + 3s",
        lambda keep, history: Percentile(keep=keep, history=history),
    ),
    Strategy(
        "random",
        "Random-Backprop: a random share of the examples, no scores",
        "3s",
        lambda keep, history: Uniform(keep=keep),
    ),
    Strategy(
        "sb-single-pass",
        "Selective-Backprop with one forward: its kept rows alone are run backward",
        "1 + 2s",
        lambda keep, history: Percentile(keep=keep, history=history),
        single_pass=True,
    ),
    Strategy(
        "random-single-pass",
        "a forward of everything, a backward of a random share: what the scores must beat",
        "1 + 2s",
        lambda keep, history: Uniform(keep=keep),
        single_pass=True,
    ),
    Strategy(
        "matched",
        "Traditional given the budget of a selective run, its learning rates fully decayed",
        "that of the run it is matched to",
    ),
)


def find(name: str) -> Strategy:
    """The strategy of a name.

    Raises:
        ConfigError: Where there is none.

    >>> find("sb").cost
    '1 + 3s'
    """
    if name not in STRATEGIES:
        raise ConfigError(f"no strategy {name!r}: give one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
