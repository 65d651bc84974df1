"""The result of a probe, as data, as a table and in words."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from siftback.arguments import check_integer, format_value
from siftback.errors import ConfigError
from siftback.probing.advice import Advice, advice_details, advice_line
from siftback.probing.agreement import Agreement
from siftback.probing.costs import SB, SINGLE_PASS, CostRow, Seconds
from siftback.rules.forecast import Forecast

MARGIN = 0.1
"""Share of the time of two passes that a single pass must save to be the faster of both."""


@dataclass(frozen=True)
class ProbeResult:
    """Measurements of one model on its batches and device.

    Attributes:
        device: The device measured on.
        batch_size: N, examples per batch.
        parameters: Number of trained parameters of the model.
        optimizer: The type of the optimizer measured; "SGD" by default.
        epochs: Length of the training that `CostRow.training` is of.
        rounds: Number of times each part was measured.
        noise: Half the interquartile range of the training steps' seconds, over their median.
        seconds: Medians over the rounds, by part.
        seconds_compiling: Seconds that the single pass takes once, before its first step.
        rows: Each strategy at each share kept; the first is plain training.
        agreement: Agreement of each cheaper scorer with the exact one, by name.
        failures: Reasons why something could not be measured, by name.
        advice: The recommendation.
        seconds_taken: Total time of the probe.
        forecast: What ``Memory()`` is expected to be worth, where a warm-up was
            trained.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> from siftback import probe
    >>> model = torch.nn.Linear(8, 4)
    >>> batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(2)]
    >>> result = probe(model, batches, F.cross_entropy, keep=[0.5], single_pass=False)
    >>> [row["strategy"] for row in result.table()]
    ['traditional', 'sb', 'stale-sb', 'sb-memory', 'random']
    >>> result.faster_pass(0.5)  # as the single pass was not measured
    'two_pass'
    """

    device: str
    batch_size: int
    parameters: int
    optimizer: str
    epochs: int
    rounds: int
    noise: float
    seconds: Seconds
    seconds_compiling: float | None
    rows: tuple[CostRow, ...]
    agreement: Mapping[str, Agreement]
    failures: Mapping[str, str]
    advice: Advice
    seconds_taken: float
    forecast: Forecast | None = None

    @property
    def forward_share(self) -> float:
        """f, the forward's share of a forward and a backward."""
        return self.seconds.forward_share

    @property
    def answer(self) -> str:
        """The recommendation in a line: the call to write and what it saves, or that none pays.

        After it the forecast, if there is one.
        """
        line = advice_line(self.advice, self.seconds, self.rows, self.epochs)
        return f"{line} {self.forecast}." if self.forecast else line

    @property
    def details(self) -> list[str]:
        """The sentences after the answer: its reasons, and what was not measured."""
        return advice_details(self.advice, self.seconds, self.rows, self.seconds_compiling)

    @property
    def recommendation(self) -> str:
        """The answer, and the details below it, each in a line."""
        return "\n".join([self.answer, *self.details])

    def faster_pass(
        self, keep: float, steps: int | None = None
    ) -> Literal["two_pass", "single_pass"]:
        """Returns the faster way to select within a batch: by a scoring pass, or by a single pass.

        Args:
            keep: A share that was measured.
            steps: Steps of the training, which share the time that the single pass takes once to
                trace the model; by default that time counts for nothing.

        Returns:
            "single_pass" if it takes at least a tenth less time, or, where training steps varied
            by more than that, as much less as they did; "two_pass" too if the single pass could
            not be measured.

        Raises:
            ConfigError: If the share was not measured.
        """
        took = {row.strategy: row.seconds for row in self.rows if row.keep == keep}
        if SB not in took:
            measured = sorted({row.keep for row in self.rows if row.strategy == SB})
            raise ConfigError(f"keep={format_value(keep)} was not measured: give one of {measured}")
        single = took.get(SINGLE_PASS, math.inf)
        if steps is not None:
            single += (self.seconds_compiling or 0.0) / check_integer("steps", steps, 1)
        # What is hardly faster on a quiet machine was slower than two passes on a busy one.
        return "single_pass" if single <= (1 - max(MARGIN, self.noise)) * took[SB] else "two_pass"

    def table(self) -> list[dict[str, Any]]:
        """Returns a dict per strategy and share kept, with the fields of a `CostRow`."""
        return [asdict(row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as plain data: dicts, lists, numbers, strings and None."""
        seconds = asdict(self.seconds)
        seconds["single_pass"] = [
            {"keep": keep, "seconds": taken} for keep, taken in self.seconds.single_pass.items()
        ]
        whole: dict[str, Any] = asdict(self) | {"seconds": seconds, "rows": self.table()}
        whole["forecast"] = self.forecast and self.forecast.to_dict()
        whole["advice"] |= {"answer": self.answer, "text": self.recommendation}
        return {"forward_share": self.forward_share, **whole}

    def to_json(self) -> str:
        """Returns `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)
