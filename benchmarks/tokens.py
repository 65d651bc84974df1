"""What selecting tokens saves in a language model's head: time and memory, by vocabulary.

Each way is measured in a process of its own, whose peak memory is that way's: the plain
cross-entropy of all logits, the chunked one of all tokens, and the chunked one of some. Where a
selection is by the tokens' own losses, these are computed first, without gradient. Ratios are of
the plain way's seconds and peak, both without what is there before: inputs, weight and gradients
of the weight.
"""

import itertools
import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from goals import Goal, begin, median_seconds, options, report
from siftback import InBatch, TopK
from siftback.language import chunked_cross_entropy, chunked_token_losses

TITLE = "The head of a language model: selected tokens against all logits"
VOCABULARIES = 1_000, 32_000, 128_000
SHARES = 0.6, 1 / 3


def plain(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden), labels)


def selected_before(keep: float) -> Callable[..., Tensor]:
    def loss(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
        chosen = torch.arange(len(labels)) % 30 < 30 * keep
        return chunked_cross_entropy(hidden, head, labels.where(chosen, -100))

    return loss


def selected_by_loss(keep: float) -> Callable[..., Tensor]:
    in_batch = InBatch(selector=TopK(keep=keep))

    def loss(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
        losses, mask = chunked_token_losses(hidden, head, labels)
        selection = in_batch.select(losses, mask)
        return chunked_cross_entropy(hidden, head, selection.labels(labels))

    return loss


WAYS: dict[str, Callable[..., Tensor]] = {
    "plain": plain,
    "chunked, all tokens": chunked_cross_entropy,
    **{f"{keep:.2f} of the tokens, known before": selected_before(keep) for keep in SHARES},
    **{f"{keep:.2f} of the tokens, by their losses": selected_by_loss(keep) for keep in SHARES},
}


def measure(way: str, classes: int, tokens: int, width: int, threads: int) -> tuple[float, float]:
    """Median seconds of a forward and backward, and bytes at its peak beyond what was there."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    head, labels = nn.Linear(width, classes, bias=False), torch.randint(0, classes, (tokens,))
    head.weight.grad, hidden.grad = torch.zeros_like(head.weight), torch.zeros_like(hidden)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    seconds = median_seconds(lambda: WAYS[way](hidden, head, labels).backward(), repeats=3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seconds, peak - pages * resource.getpagesize()


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="a quarter of the tokens")
    parser.add_argument("--tokens", type=int, default=2048, help="in a batch")
    parser.add_argument("--width", type=int, default=256, help="inputs of the head")
    asked = begin(parser)
    tokens = asked.tokens // 4 if asked.quick else asked.tokens
    found = {}
    for classes, way in itertools.product(VOCABULARIES, WAYS):
        given = way, classes, tokens, asked.width, torch.get_num_threads()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[classes, way] = pool.apply(measure, given)
    goals = []
    for classes, way in found:
        (seconds, peak), (usual, most) = found[classes, way], found[classes, "plain"]
        setting = f"{classes:,} classes, {tokens} tokens of width {asked.width}"
        if way == "plain":
            goals.append(Goal(setting, "plain: seconds", seconds))
            goals.append(Goal(setting, "plain: megabytes", peak / 1e6))
        else:
            goals.append(Goal(setting, f"{way}: time", seconds / usual))
            goals.append(Goal(setting, f"{way}: memory", peak / most))
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
