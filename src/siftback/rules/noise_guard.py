"""Holding back suspects: examples whose labels stay doubtful while others are learnt."""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_integer, check_share, format_value
from siftback.draws.histogram_draw import BLOCK
from siftback.errors import ConfigError
from siftback.losses.per_example import check_losses
from siftback.state import Check, Stateful, integer, number, raise_damaged, tensor
from siftback.tables.example_rows import ExampleRows
from siftback.tensor_arguments import check_tensor

_MOST = 255  # streaks are counted up to this
_ROUNDING = 1e-6  # of probabilities in float32
_NEAR, _TOLERANCE = 32, 1e-2  # nodes of a graph to look at; of losses, in half precision too
_REGAINED, _ENOUGH = 0.2, 30  # share that releases the suspects; of at least this many visits


def label_doubt(losses: Tensor, confidence: float, classes: int) -> Tensor:
    """Computes how far the probability of a label is below an average wrong class's.

    With ``p = exp(-L)``, the probability that the model gives an example's label if L is its
    cross-entropy, t the confidence, the mean of p over all examples, and C classes, this is::

        (1 - t) / (C - 1) - p

    Above 0 the label is doubtful: the model gives it less than it gives to each of the other
    classes on average. For a model that guesses, t = 1/C and p = 1/C, and no label is doubtful; for
    one that is right about all labels, t near 1, only labels with a probability near 0 are.

    Of two classes this is confident learning's own condition (Northcutt et al. 2021, *Confident
    Learning*, section 3.1), with one threshold t for both classes: the other one has the
    probability 1 - p, which is above t. Of more classes that needs all probabilities, and this the
    losses alone; it is new in this project.

    Args:
        losses: float32[n].
        confidence: t, in [0, 1].
        classes: C, at least 2.

    Returns:
        float32[n], above 0 where the label is doubtful.

    >>> label_doubt(torch.tensor([0.1, 1.0, 3.0]), confidence=0.5, classes=2)
    tensor([-0.4048,  0.1321,  0.4502])
    >>> label_doubt(torch.tensor([0.1, 1.0, 3.0]), confidence=0.5, classes=6)
    tensor([-0.8048, -0.2679,  0.0502])
    """
    return (1 - confidence) / (classes - 1) - (-losses).exp()


def check_cross_entropy(losses: Tensor) -> None:
    """Checks that losses are minus the log probability of the label, as far as their graph tells.

    Class weights make every label of a rare class look improbable, so that it would be held back.
    Losses without a graph, or from a compiled function, say nothing and pass.

    Args:
        losses: float[n], with the graph of the loss function.

    Raises:
        ConfigError: If they are weighted, smoothed, or have other terms.

    >>> outputs, labels = torch.zeros(2, 2, requires_grad=True), torch.tensor([0, 1])
    >>> weight = torch.tensor([1.0, 9.0])
    >>> losses = nn.functional.cross_entropy(outputs, labels, weight, reduction="none")
    >>> check_cross_entropy(losses)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    siftback.errors.ConfigError: the losses are cross-entropy with weights, ...
    """
    nodes: deque[Any] = deque(filter(None, [losses.grad_fn]))
    for _ in range(_NEAR):
        if not nodes:
            return
        node, problem = nodes.popleft(), ""
        name = node.name()
        is_nll, is_binary = name.startswith("NllLoss"), name.startswith("BinaryCrossEntropy")
        options = ("_saved_weight", "_saved_pos_weight") if is_nll or is_binary else ()
        if any(getattr(node, option, None) is not None for option in options):
            problem = "cross-entropy with weights"
        elif is_binary and not _are_among(losses, _binary_losses(node)):
            problem = "more than a binary cross-entropy"
        elif name.startswith("LogSoftmax"):
            if not _are_among(losses, -node._saved_result):
                problem = "not minus a log probability that the model gives"
        elif not is_binary:
            nodes.extend(before for before, _ in node.next_functions if before is not None)
        if problem:
            raise ConfigError(
                f"the losses are {problem}, and NoiseGuard judges labels by exp(-loss), which must "
                "be their probability: call loader.record(losses) with cross-entropy losses "
                "without weights and smoothing, and run your own loss backward, its terms "
                "multiplied with loader.weights"
            )


def _binary_losses(node: Any) -> Tensor:
    """Returns [n, 1], the losses of a node that is a binary cross-entropy without weights."""
    inputs, targets = node._saved_self.detach(), node._saved_target
    function = nn.functional.binary_cross_entropy
    if node.name().startswith("BinaryCrossEntropyWithLogits"):
        function = nn.functional.binary_cross_entropy_with_logits
    losses = function(inputs, targets, reduction="none")
    return losses.flatten(1).mean(1, keepdim=True) if losses.ndim > 1 else losses.unsqueeze(-1)


def _are_among(losses: Tensor, choices: Tensor) -> bool:
    """Returns whether each loss is one of its row; of other shapes nothing is known."""
    if losses.ndim != 1 or choices.ndim != 2 or len(choices) != len(losses):
        return True
    losses = losses.detach().float().unsqueeze(1)
    near = torch.isclose(losses, choices.float(), rtol=_TOLERANCE, atol=_TOLERANCE)
    return bool((near.any(1) | ~losses.squeeze(1).isfinite() | (losses.squeeze(1) == 0)).all())


class NoiseGuard(Stateful):
    """Holds back examples whose labels stay doubtful while others are learnt.

    Used as a part of a rule, ``Memory(guard=NoiseGuard(classes))``. Selecting high losses favours
    wrong labels; this prevents it. An example is a suspect while its label was doubtful
    (`label_doubt`) in each of its last m visits; a visit is a training step on it. Losses must be
    plain cross-entropy, without class weights or label smoothing: others are refused where that can
    be seen, by `SelectiveLoader.watch` and from the graph of the losses (`check_cross_entropy`).

    The rule draws the other examples as if there were no suspects. Of S suspects exactly
    ``round(min(cap, keep) * S)`` are admitted, with ``keep`` the rule's share, all with the same
    probability and with weight 1. A suspect that is learnt after all is no longer one.

    None are held back while most suspects seem to be merely hard: while in more than 0.2 of the
    visits of suspects, of 30 or more, the label was more probable than by chance, ``p > 1 / C``. Of
    right labels of CIFAR-10 that was about 0.3, of wrong ones 0.01 to 0.04. While a model is hardly
    better than chance the share says nothing, so it counts only if ``t >= 2 / C``, which is never
    so with two classes.

    Args:
        classes: C, the number of classes.
        cap: The largest share of the suspects to admit, in [0, 1]. With 0, a suspect is never
            trained on, and so stays one.
        visits: m, the number of successive visits in which a label must be doubtful, from 1 to
            255; by default 2 for two classes and 3 for more. Memory used: 5 bytes per example.

    Attributes:
        losses: float32[N], the last loss of each example; NaN where there was none.
        held_back: Number of times an example was held back, over all draws.
        rows: The rows of the examples of a stream; None where those are their indices.

    Raises:
        ConfigError: If an argument is out of range.

    >>> guard = NoiseGuard(classes=10, visits=2)
    >>> everyone = torch.arange(4)
    >>> for losses in ([1.4, 1.4, 1.4, 1.4], [0.5, 0.7, 0.6, 3.0], [0.2, 2.5, 0.9, 4.0]):
    ...     guard.observe(everyone, torch.tensor(losses))
    >>> guard.suspects, round(guard.confidence, 4)
    (tensor([3]), 0.3314)
    >>> guard.label_issues
    tensor([1, 3])
    """

    setting_names = ("classes", "cap", "visits")

    def __init__(self, classes: int, cap: float = 0.05, visits: int | None = None) -> None:
        self.classes = check_integer("classes", classes, 2)
        self.cap = check_share("cap", cap, most=True)
        default = 2 if self.classes == 2 else 3
        self.visits = default if visits is None else check_integer("visits", visits, 1)
        if self.visits > _MOST:
            raise ConfigError(f"visits={format_value(visits)}: give an integer from 1 to {_MOST}")
        self.held_back = 0
        self.losses = torch.zeros(0, dtype=torch.float32)
        self._streaks = torch.zeros(0, dtype=torch.uint8)  # of visits with doubt
        self._sum, self._seen = 0.0, 0  # sum and number of the labels' last probabilities
        self._visited, self._regained = 0, 0  # visits of suspects, those with p > 1 / C
        self.rows: ExampleRows | None = None

    @property
    def confidence(self) -> float:
        """The mean of the labels' last probabilities; 0 before any was seen."""
        return self._sum / max(self._seen, 1)

    @property
    def suspects(self) -> Tensor:
        """int64[n], the current suspects, ascending."""
        return self._indices_of(self._streaks >= self.visits)

    @property
    def released(self) -> bool:
        """Whether nothing is held back, as most suspects seem to have right labels."""
        learnt = self.confidence * self.classes >= 2
        return learnt and self._regained > _REGAINED * self._visited and self._visited >= _ENOUGH

    @property
    def held(self) -> Tensor:
        """int64[n], the suspects that are held back, ascending; none while they are `released`."""
        return self._indices_of(self.is_held)

    @property
    def is_held(self) -> Tensor:
        """bool[rows], whether each example is one of the `held`."""
        return (self._streaks >= self.visits) & (not self.released)

    def _indices_of(self, mask: Tensor) -> Tensor:
        rows = mask.nonzero().squeeze(1)
        return self.rows.indices_of(rows).sort().values if self.rows else rows

    @property
    def label_issues(self) -> Tensor:
        """int64[n], the examples whose labels are worth a look, ascending.

        The suspects, and those whose label, when last visited, was nearer to an average wrong class
        than to an average label, in log probability::

            p < sqrt(t (1 - t) / (C - 1))

        The list is longer, since looking at an example that is merely hard does no harm, and
        holding it back does. With two classes a suspect may have a higher probability than that, as
        its last visit may be from when t was lower. New in this project.
        """
        label = self.confidence
        wrong_class = (1 - label) / (self.classes - 1)
        between = math.sqrt(max(label * wrong_class, 0.0))  # below 0 by rounding of t
        pairs = zip(torch.split(self.losses, BLOCK), torch.split(self._streaks, BLOCK), strict=True)
        issues = [((-loss).exp() < between) | (streaks >= self.visits) for loss, streaks in pairs]
        return self._indices_of(torch.cat(issues))

    def observe(self, indices: Tensor, losses: Tensor) -> None:
        """Records the losses of a visit.

        Args:
            indices: int64[n], distinct examples, on the CPU.
            losses: float[n], their losses; a loss that is not finite counts as infinite.

        Raises:
            BatchError: If the indices are not int64[n].
            LossError: If the losses are not float[n].
        """
        losses = check_losses(losses, len(check_tensor("indices", indices, "int64", "n")))
        losses = losses.cpu().nan_to_num(nan=torch.inf, posinf=torch.inf)
        if len(indices) and int(indices.max()) >= len(self.losses):
            self.grow(int(indices.max()) + 1)
        probabilities = (-losses).exp()
        suspected = self._streaks[indices] >= self.visits
        self._visited += int(suspected.sum())
        self._regained += int((probabilities[suspected] > 1 / self.classes + _ROUNDING).sum())
        before = self.losses[indices]
        known = before[~before.isnan()]
        # A running sum, as a mean over all examples at each batch would be slow.
        self._sum += float(probabilities.double().sum() - (-known).exp().double().sum())
        self._seen += len(indices) - len(known)
        self.losses[indices] = losses
        doubtful = label_doubt(losses, self.confidence, self.classes) > _ROUNDING
        longer = self._streaks[indices].clamp(max=_MOST - 1) + 1
        self._streaks[indices] = torch.where(doubtful, longer, 0)

    def grow(self, examples: int) -> None:
        """Makes room for a number of examples."""
        padding = (0, max(0, examples - len(self.losses)))
        self.losses = nn.functional.pad(self.losses, padding, value=torch.nan)
        self._streaks = nn.functional.pad(self._streaks, padding)

    def admit(
        self,
        count: int,
        keep: float,
        generator: torch.Generator,
        *,
        least: int = 0,
        most: float = math.inf,
    ) -> Tensor:
        """Draws the suspects that are admitted all the same; counts the others as held back.

        Args:
            count: S, the number of suspects that are `held`.
            keep: The share that the rule keeps.
            generator: On the CPU.
            least: Minimum number to admit, if the other examples do not suffice.
            most: Maximum number to admit.

        Returns:
            bool[count], exactly ``round(min(cap, keep) * count)`` of them True, within the limits.

        >>> guard = NoiseGuard(classes=10, cap=0.25)
        >>> guard.admit(8, 0.5, torch.Generator().manual_seed(0)).sum(), guard.held_back
        (tensor(2), 6)
        """
        admissions = int(min(max(round(min(self.cap, keep) * count), least), most, count))
        admitted = torch.zeros(count, dtype=torch.bool)
        admitted[torch.randperm(count, generator=generator)[:admissions]] = True
        self.held_back += count - admissions
        return admitted

    def state_fields(self) -> dict[str, Check]:
        """Returns the names of the attributes that are saved, with the check of each."""
        counts = ("_seen", "_visited", "_regained", "held_back")
        examples = {"losses": tensor(torch.float32, None), "_streaks": tensor(torch.uint8, None)}
        return {**examples, **dict.fromkeys(counts, integer()), "_sum": number()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If that had other arguments, or is damaged.
        """
        super().check_state(state)
        examples, seen = len(state["losses"]), state["seen"]
        fits = len(state["streaks"]) == examples >= seen and state["regained"] <= state["visited"]
        # The sum is of probabilities, up to rounding.
        if not fits or not -1e-3 <= state["sum"] <= seen * (1 + 1e-3) + 1e-3:
            raise_damaged("NoiseGuard.seen", seen, f"of {examples} examples, with sums that fit")
