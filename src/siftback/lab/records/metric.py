"""What runs are judged by: the error of classifiers, the loss of language models."""

import math
from dataclasses import dataclass
from typing import Literal

MetricName = Literal["error", "loss"]


@dataclass(frozen=True)
class Metric:
    """What runs are judged by, lower being better, and how it is written.

    Attributes:
        name: As records have it.
        field: The field of an `Evaluation` that holds it.
        noun: What it is, within a sentence.
        unit: What it is counted in.
        points: What a difference of two is counted in.
        digits: After the decimal point.
        plural: What a difference of two is called, in full.
        axis: The name of an axis, and of a column.
    """

    name: MetricName
    field: str
    noun: str
    unit: str
    points: str
    digits: int
    plural: str
    axis: str

    def written(self, value: float) -> str:
        """A value with its unit.

        >>> METRICS["error"].written(12.345), METRICS["loss"].written(1.5)
        ('12.35 %', '1.500 nats')
        """
        return f"{value:.{self.digits}f} {self.unit}"


METRICS: dict[MetricName, Metric] = {
    "error": Metric(
        "error", "test_error", "error", "%", "points", 2, "percentage points", "test error (%)"
    ),
    "loss": Metric(
        *("loss", "test_loss", "loss", "nats", "nats", 3),
        *("nats per token", "test loss (nats per token)"),
    ),
}


def bits_per_character(loss: float, tokens_per_character: float) -> float:
    """A language model's loss in bits per character: ``loss / ln 2 * tokens per character``.

    Args:
        loss: In nats per token.
        tokens_per_character: Of the text that it is the loss on.

    >>> round(bits_per_character(1.5, 1.0), 3)
    2.164
    """
    return loss / math.log(2) * tokens_per_character
