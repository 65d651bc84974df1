"""RCAP: shares of the classes in closed form, and within each class draws by the loss."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_integer, check_number, check_share
from siftback.draws.exact_draw import draw_exactly
from siftback.errors import ConfigError
from siftback.rules.base_weights import labels_tensor
from siftback.rules.rule import LastLossRule
from siftback.schedule import Epochs, Moment, Share
from siftback.selectors.sampling import count_of, share_out
from siftback.state import tensor_checksum
from siftback.tables.score_table import ScoreTable


def rcap_probabilities(
    losses: Tensor, classes: Tensor, was_drawn: Tensor, count: int, temperature: float
) -> Tensor:
    """Computes the probability of each example to be among the k drawn.

    As the code of Hassan et al. 2025 has it (DataCull 1.0.2): with losses clipped to ``[0, log C]``
    for C classes, of which class c has n_c of the N examples::

        p_i = exp(loss_i / T) / sum over its class of exp(loss / T)
        L_c = sum of p_i over those of class c that the last draw took
        k_c = k a_c / sum of a,    a_c = sqrt(L_c n_c / N)

    and no k_c above n_c. Within a class ``pi_i = min(1, s p_i)``, with s such that they sum to k_c.

    Args:
        losses: float32[N], without NaN.
        classes: int64[N], of 0 to C - 1.
        was_drawn: bool[N], those that the last draw took; a class of which it took none has an L_c
            of 1, as all have at first.
        count: k, in [1, N].
        temperature: T, above 0.

    Returns:
        float64[N], whose sum is k.

    >>> losses, classes = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1]), torch.tensor([0, 1, 1, 1, 1])
    >>> rcap_probabilities(losses, classes, torch.ones(5).bool(), 2, 1.0)
    tensor([0.6667, 0.3333, 0.3333, 0.3333, 0.3333], dtype=torch.float64)
    """
    number = int(classes.max()) + 1
    scores = losses.double().clamp(0, math.log(number)) / temperature
    sizes = torch.bincount(classes, minlength=number)

    def by_class(values: Tensor) -> Tensor:
        return torch.zeros(number).double().index_add_(0, classes, values)

    highest = torch.zeros(number).double().scatter_reduce(0, classes, scores, "amax")
    shares = (scores - highest[classes]).exp()
    shares = shares / by_class(shares)[classes]
    covered = by_class(shares * was_drawn)
    covered = torch.where(covered > 0, covered, 1.0)
    counts = share_out((covered * sizes / len(losses)).sqrt(), sizes, count)
    probabilities = torch.empty_like(shares)
    for index in sizes.nonzero().flatten().tolist():
        rows = (classes == index).nonzero().squeeze(1)
        limits = torch.ones(len(rows), dtype=torch.float64)
        probabilities[rows] = share_out(shares[rows], limits, float(counts[index]))
    return probabilities


class RCAP(LastLossRule):
    """RCAP: shares of the classes in closed form, and within each class draws by the loss.

    Hassan, Khare & Paik 2025, *RCAP: Robust, Class-Aware, Probabilistic Dynamic Dataset Pruning*
    (UAI, arXiv:2606.11761), made for the error of the worst class. Exactly ``round(keep * N)``
    of N examples are drawn, see `rcap_probabilities`: a class has more the more of it there is,
    though less than in proportion, and the more of its softmax of losses the last draw
    covered. Examples without a loss are drawn first. Ideal cost per example of an epoch with share
    s kept, in forwards (1) and backwards (2): 3s.

    The paper itself could not be read, but its abstract and its authors' code. That draws one after
    the other without replacement, rounds each class up, and begins at once, with losses of ``log
    C``; here ``pi`` are exact, as is the number drawn, and one epoch is on everything by default.
    What a class at its limit leaves is shared out among the others here; the code, which computes
    what is left, goes on with the whole.

    Args:
        labels: int[N], the label of each example; a tensor, an array or a list. Those of a
            ``Subset`` are ``labels[subset.indices]``. May be given later, by `set_labels`.
        keep: Share of the examples in an epoch, in (0, 1].
        temperature: T, above 0; by default that of the authors' example.
        warmup: How long all examples are trained on at first.
        tail: How long all examples are trained on at the end.
        table: Stores the losses, and what the last draw left out, such as a `ScoreTable` in a file,
            of two columns; by default in memory, 8 bytes per example.

    Raises:
        ConfigError: If one of them is out of range, or labels are not integers; and later, if there
            are more or fewer of them than examples.

    >>> rcap = RCAP([0, 1, 1, 1, 1], keep=0.4)
    >>> rcap.grow(5)
    >>> rcap.update(torch.arange(5), torch.tensor([0.1, 0.1, 0.1, 0.1, 0.6]), epoch=0)
    >>> rcap.draw(1, torch.Generator().manual_seed(1))
    tensor([1., 0., 0., 0., 1.])
    """

    needs_labels = True
    updates_by_example = True
    setting_names = ("keep", "temperature")

    def __init__(
        self,
        labels: Tensor | Sequence[int] | None = None,
        keep: float = 0.5,
        temperature: float = 0.25,
        *,
        warmup: Moment = Epochs(1),
        tail: Moment = Share(0.0),
        table: ScoreTable | None = None,
    ) -> None:
        super().__init__(table, columns=2, warmup=warmup, tail=tail)
        self.keep = check_share("keep", keep, least=False, most=True)
        self.temperature = check_number("temperature", temperature, above=0)
        self._classes = torch.empty(0, dtype=torch.int64)
        if labels is not None:
            self.set_labels(labels)

    def set_labels(self, labels: Any) -> None:
        """Says the label of each example.

        Args:
            labels: int[N], a tensor, an array or a list.

        Raises:
            ConfigError: If they are not integers, or there are more or fewer than examples.
        """
        classes = torch.unique(labels_tensor("labels", labels), return_inverse=True)[1]
        self._check_length(classes, self._examples or len(classes))
        self._classes = classes

    def grow(self, examples: int) -> None:
        """Makes room for a number of examples, as many as there are labels."""
        if len(self._classes):
            self._check_length(self._classes, check_integer("examples", examples, 0))
        super().grow(examples)

    @property
    def classes(self) -> Tensor:
        """int64[examples], the number of the class of each example.

        Raises:
            ConfigError: If no labels were given.
        """
        if not len(self._classes):
            raise ConfigError("RCAP has no labels: give RCAP(labels), or call set_labels(labels)")
        return self._classes[self.drawn_among]

    def settings(self) -> dict[str, Any]:
        """Returns the arguments, by name, that a state must have been saved with to fit."""
        checksum = tensor_checksum(self._classes)
        return super().settings() | {"labels": f"crc32 {checksum:08x} of {len(self._classes)}"}

    def count(self, epoch: int) -> int:
        """Returns how many examples a draw keeps: ``round(keep * N)``, at least 1."""
        return count_of(self.keep, self.examples)

    def draw(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Draws exactly `count` examples, by `rcap_probabilities`."""
        losses, left_out = self.values.unbind(1)
        is_known = ~losses.isnan()
        classes, was_drawn = self.classes[is_known], left_out[is_known] != 1
        count = self.count(epoch)

        def proportions(known: Tensor) -> Tensor:
            left = count - int((~is_known).sum())
            return rcap_probabilities(known, classes, was_drawn, left, self.temperature)

        weights = draw_exactly(losses, proportions, count, generator)
        self.table.record(self.drawn_among[is_known], (weights[is_known] == 0).float(), 1)
        return weights
