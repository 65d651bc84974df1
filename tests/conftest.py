"""Settings of all tests: property tests have the same examples, and children hear Ctrl-C."""

import gc
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings

from command_line import Call
from started import replicas_forked

collect_ignore = ["frameworks/ray_ranks.py"]  # imports Ray, which no test does in its own process

gc.disable()  # until all tests are collected, most of which stays

settings.register_profile("siftback", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("siftback")

# A shell has what it starts in the background ignore Ctrl-C, and processes that tests start too.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What `make red` does more of: a name, how many by default, and of what.
COUNTS = {
    "kills": (4, "kills of a comparison; a twentieth of them of a training of two processes"),
    "folders": (6, "damaged folders that are reported on"),
    "batches": (800, "batches without growth of memory"),
    "scores": (1 << 18, "scores in one call of each selector"),
    "inputs": (400, "bad values for the constructors, methods and batches"),
    "leaves": (30, "damaged entries of the state of each kind of object"),
}
COUNTED = "red"  # the property of a test's report that says so


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, (few, of) in COUNTS.items():
        parser.addoption(f"--{name}", type=int, default=few, help=f"{of} (default: {few})")
    parser.addoption("--one-case", action="store_true", help="the first case of each test alone")
    parser.addoption(
        "--every-case", action="store_true", help="every case also of tests that are sampled"
    )
    parser.addoption(
        "--remake-golden", action="store_true", help="write the numbers of tests/golden again"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("--one-case"):
        parametrize = metafunc.parametrize

        # The other cases are never made, as making them all takes longer than running the first.
        def first_case(names: Any, values: Any, *, ids: Any = None, **options: Any) -> None:
            values = list(itertools.islice(values, 1))
            ids = ids if ids is None or callable(ids) else list(itertools.islice(ids, 1))
            parametrize(names, values, ids=ids, **options)

        metafunc.parametrize = first_case  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts slow tests first, and leaves out nightly ones and cases of those that are sampled.

    Of n cases in turn, all but the first are left out. If slow tests were last, one process would
    run them while all others have ended.
    """
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("slow", "browser"))))
    if config.getoption("--every-case"):
        return
    cases: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        mark = item.get_closest_marker("sampled")
        name = item.nodeid.partition("[")[0]
        is_left = item.get_closest_marker("nightly") or (mark and cases[name] % mark.args[0])
        cases[name] += 1
        (left if is_left else kept).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_collection_finish() -> None:
    """Leaves what is there by now out of collections of garbage, which would take a second each."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leaves out what a file imported too, as trainers ask for a collection at each end."""
    if nextitem is None or nextitem.path != item.path:
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (report for each in terminalreporter.stats.values() for report in each)
    for report in reports:
        for name, line in getattr(report, "user_properties", ()):
            if (name, getattr(report, "when", None)) == (COUNTED, "call"):
                terminalreporter.line(f"red: {line}")


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Callable[[str], int]:
    """Returns the number of ``COUNTS`` that was asked for."""
    return lambda name: int(request.config.getoption(f"--{name}"))


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Notes what was counted, to be printed when all tests are done."""
    return lambda line: record_property(COUNTED, line)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls ``siftback``; gives its exit status, output and errors."""
    from siftback import cli  # with the laboratory, which most tests do without

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["siftback", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, " ".join(err.split())

    return run


@pytest.fixture
def forked_replicas() -> Iterator[None]:
    with replicas_forked():
        yield


# What processes of which number do, who are started once for all files that look at it.
RANKS = {
    2: [
        "loader/matrix_ranks",
        "loader/distributed_ranks",
        "single_pass/single_pass_ranks",
        "setups/unlike_ranks",
    ],
    4: ["loader/matrix_ranks", "loader/sharded_ranks"],
}


@pytest.fixture(scope="session")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives a folder by name; whichever worker asks first fills it, by a function of its path."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name: str, fill: Callable[[Path], object]) -> Path:
        out = shared / name
        with FileLock(f"{out}.lock"):
            if not out.exists():
                out.mkdir()
                fill(out)
        return out

    return folder


@pytest.fixture(scope="session")
def found_in(filled_once: Callable[..., Path]) -> Callable[[str, int], list[Any]]:
    """Gives what each process found in a script, by rank."""
    import torch  # which not all tests need

    from torchrun import FORKED, run_in_processes

    def fill(out: Path) -> None:
        groups = [[number, out / str(number), *scripts] for number, scripts in RANKS.items()]
        run_in_processes([*FORKED, *itertools.chain(*groups)], timeout=500)

    def found(script: str, processes: int) -> list[Any]:
        out = filled_once("ranks", fill) / str(processes) / script
        return [torch.load(out / f"{rank}.pt") for rank in range(processes)]

    return found
