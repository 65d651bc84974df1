"""What a strategy should cost, counted in forwards of one example."""

from dataclasses import dataclass


@dataclass(frozen=True)
class IdealCost:
    """The ideal cost of one source example: a forward counts 1, a backward 2.

    With s the share kept, n the epochs from one selection pass to the next, and r what a score
    costs in forwards, it is ``offered * r / n + proxy * r * s + kept * s``. As text, numbers
    stand for themselves and s, n and r for what the settings or a measurement say.

    Attributes:
        kept: Forwards that each kept example costs.
        offered: Forwards that each example costs, kept or not.
        interval: n, where it is fixed; None leaves it to the settings.
        cheap_scores: Whether a score costs r forwards in place of one.
        proxy: Forwards of a smaller model, of r each, that each kept example costs.
        note: What the number leaves out, in words.

    >>> str(IdealCost(3, offered=1)), str(IdealCost(3, offered=1, interval=None))
    ('1 + 3s', '1/n + 3s')
    >>> IdealCost(3, offered=1, interval=None).amount(keep=0.5, stale_every=2)
    2.0
    """

    kept: float = 0.0
    offered: float = 0.0
    interval: int | None = 1
    cheap_scores: bool = False
    proxy: float = 0.0
    note: str = ""

    def amount(self, keep: float, stale_every: int = 3, price: float = 1.0) -> float:
        """The number of forwards.

        Args:
            keep: s, the share kept.
            stale_every: n, where it is not fixed.
            price: r, what a score costs in forwards.
        """
        interval = stale_every if self.interval is None else self.interval
        offered = self.offered * (price if self.cheap_scores else 1.0) / interval
        return offered + self.proxy * price * keep + self.kept * keep

    def __str__(self) -> str:
        interval = "n" if self.interval is None else str(self.interval)
        offered = f"{self.offered:g}" + (f"/{interval}" if interval != "1" else "")
        terms = {
            "r" if self.cheap_scores else offered: self.offered,
            f"{self.proxy:g}rs": self.proxy,
            f"{self.kept:g}s": self.kept,
        }
        text = " + ".join(term for term, forwards in terms.items() if forwards)
        return ", ".join(filter(None, (text, self.note)))
