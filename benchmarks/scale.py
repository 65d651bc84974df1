"""The cost of remembering many examples: a draw, an epoch's order, a saved state, and memory.

Each size is measured in a process of its own, whose peak memory is that of what was measured:
one `SelectiveSampler` with `Memory(keep=0.55)`, all of whose losses are known. Bytes and peaks are
per process; the table, 4 bytes per example, is part of neither the draw's nor the state's peak. It
is in memory, then in shards, all of them in this one process, then in a file, where between two
saves a thousand batches are recorded; then in memory with a share that follows the losses, and with
a guard that holds back one of 32, with either share. A guard has 5 bytes more per example.
What a billion examples cost is computed from the two largest sizes, as all of it grows
in proportion to what is added.
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
from siftback import Memory, NoiseGuard, ScoreTable, SelectiveSampler, Share

TITLE = "What remembering many examples costs: Memory in a SelectiveSampler"
GUARDED = ("in memory, with a guard", "in memory, without a share, with a guard")
TABLES = ("in memory", "in shards", "in a file", "in memory, without a share", *GUARDED)
GIGABYTE = 1e9
COMPUTED = 10**9  # examples
BEYOND = "gigabytes at a draw's peak, beyond the table"
PER_EXAMPLE = "bytes per example at a draw's peak, beyond the table"
MOST_BEYOND = 1.0  # gigabytes, of all sizes that are measured
KEEP = 0.55
SHARDS = 960
CLASSES = 10
PART = 1 << 20  # examples recorded at a time


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


def sampler_of(examples: int, **arguments: Any) -> tuple[Memory, SelectiveSampler]:
    """A sampler of so many examples, of all of which losses are known, by a rule."""
    memory = Memory(warmup=Share(0.0), **arguments)
    sampler = SelectiveSampler(range(examples), memory, epochs=10, shorter_epochs=True)
    for _ in range(memory.guard.visits if memory.guard else 1):
        for start in range(0, memory.rows, PART):
            rows = torch.arange(start, min(start + PART, memory.rows))
            losses = torch.rand(len(rows))
            if memory.guard:
                losses[::32] += 9  # of wrong labels
                memory.update(rows, losses, epoch=0)
            else:
                memory.table.record(rows, losses)  # of shards those of this process
    return memory, sampler


def saved(sampler: SelectiveSampler, folder: str) -> tuple[float, int]:
    """Seconds and bytes of a saved state."""
    path = Path(folder, "state.pt")
    seconds, _ = timed(lambda: torch.save(sampler.state_dict(), path))
    return seconds, path.stat().st_size


def measure(where: str, examples: int, threads: int | None) -> dict[str, float]:
    """Seconds and memory of one size, with the table somewhere."""
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {
            "in memory": {"keep": KEEP},
            "in memory, without a share": {},
            "in shards": {"keep": KEEP, "shards": SHARDS},
            "in a file": {"keep": KEEP, "table": ScoreTable(path=Path(folder, "scores.table"))},
            GUARDED[0]: {"keep": KEEP, "guard": NoiseGuard(CLASSES)},
            GUARDED[1]: {"guard": NoiseGuard(CLASSES)},
        }[where]
        memory, sampler = sampler_of(examples, **arguments)
        before = resident()
        draw, _ = timed(sampler.begin)
        beyond = peak() - before
        order, drawn = timed(lambda: sum(len(part) for part in sampler.order(0)))
        assert sampler.draw is not None
        assert drawn == sampler.draw.current.drawn
        found = {
            "seconds per draw": draw,
            BEYOND: beyond / GIGABYTE,
            PER_EXAMPLE: beyond / examples,
            "seconds for an epoch's order": order,
        }
        save, size = saved(sampler, folder)
        found["seconds to save the state"] = save
        if where in ("in a file", *GUARDED):
            recording, _ = timed(lambda: record(memory, examples))
            found["seconds to record a thousand batches of 128"] = recording
        if memory.guard:
            assert len(memory.guard.suspects) > examples // 40
            listing, _ = timed(lambda: memory.guard.label_issues)
            found["seconds to list the label issues"] = listing
        if where == "in a file":
            found["seconds to save the state after that"], _ = saved(sampler, folder)
            opening, table = timed(lambda: ScoreTable(path=memory.table.path))
            state = torch.load(Path(folder, "state.pt"))["draw"]["rule"]["table"]
            loading, _ = timed(lambda: table.load_state_dict(state))
            found |= {"seconds to open the file": opening, "seconds to go back to it": loading}
    return found | {
        "bytes of state per example": size / examples,
        "gigabytes at the peak of all": peak() / GIGABYTE,
    }


def record(memory: Memory, examples: int) -> None:
    """Gives the rule a thousand batches of losses."""
    for _ in range(1000):
        indices = torch.randint(examples, (128,)).unique()
        memory.update(indices, torch.rand(len(indices)), 0)


def extended(found: dict[int, dict[str, float]], examples: int) -> dict[str, float]:
    """Returns what a number of examples costs, by a line through the two largest sizes measured.

    What did not grow from one to the other is as it was: a falling line is noise.
    """
    less, more = sorted(found)[-2:]
    ratio = (examples - more) / (more - less)
    return {
        what: value + max(0.0, value - found[less][what]) * ratio
        for what, value in found[more].items()
    }


def goal(name: str, what: str, value: float) -> Goal:
    """A number that was measured, and what it should be."""
    if what != BEYOND:
        return Goal(name, what, value)
    return Goal(name, what, value, f"at most {MOST_BEYOND:g}", value <= MOST_BEYOND)


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="up to ten million examples")
    parser.add_argument("--examples", type=int, nargs="*", help="these sizes alone")
    parser.add_argument("--table", nargs="*", choices=TABLES, default=TABLES, help="kept there")
    asked = begin(parser)
    sizes = asked.examples or [10**6, 10**7, *([] if asked.quick else [10**8])]
    goals: list[Goal] = []
    for where in asked.table:
        found: dict[int, dict[str, float]] = {}
        for examples in sizes:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[examples] = pool.apply(measure, (where, examples, asked.threads))
        for examples, each in found.items():
            goals += [goal(f"{examples:,} examples {where}", *one) for one in each.items()]
        if len(found) > 1:
            name = f"{COMPUTED:,} examples {where}, computed"
            goals += [Goal(name, *one) for one in extended(found, COMPUTED).items()]
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
