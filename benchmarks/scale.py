"""What remembering many examples costs: a draw, an epoch's order, a saved state, and memory.

Each size is measured in a process of its own, whose peak memory is that of what was measured:
one `SelectiveSampler` with `Memory`, all of whose losses are known. Bytes and peaks are per
process; the table, 4 bytes per example, is part of neither the draw's nor the state's peak.
"""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from goals import Goal, begin, options, report
from siftback import Memory, SelectiveSampler, Share

TITLE = "What remembering many examples costs: Memory in a SelectiveSampler"
GIGABYTE = 1e9


def resident() -> float:
    """The memory of this process now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak() -> float:
    """The most memory this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(fn: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = fn()
    return time.perf_counter() - started, found


def measure(examples: int, threads: int | None) -> dict[str, float]:
    """Seconds and memory of one size."""
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    memory = Memory(warmup=Share(0.0))
    sampler = SelectiveSampler(range(examples), memory, epochs=10)
    for start in range(0, examples, 1 << 20):
        memory.values[start : start + (1 << 20), 0] = torch.rand(min(1 << 20, examples - start))
    before = resident()
    draw, _ = timed(sampler.begin)
    beyond = peak() - before
    order, drawn = timed(lambda: sum(len(part) for part in sampler.order(0)))
    assert drawn == memory.count(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.pt")
        save, _ = timed(lambda: torch.save(sampler.state_dict(), path))
        size = path.stat().st_size
    return {
        "seconds per draw": draw,
        "gigabytes at its peak, beyond the table": beyond / GIGABYTE,
        "seconds for an epoch's order": order,
        "seconds to save the state": save,
        "bytes of state per example": size / examples,
        "gigabytes at the peak of all": peak() / GIGABYTE,
    }


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="up to ten million examples")
    parser.add_argument("--examples", type=int, nargs="*", help="these sizes alone")
    asked = begin(parser)
    sizes = asked.examples or [10**6, 10**7, *([] if asked.quick else [10**8])]
    goals: list[Goal] = []
    for examples in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measure, (examples, asked.threads))
        goals += [Goal(f"{examples:,} examples", what, value) for what, value in found.items()]
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
