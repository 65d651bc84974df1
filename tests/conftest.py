"""How tests run: property tests with the same examples everywhere, and Ctrl-C heard by children."""

import signal
import sys

import pytest
from hypothesis import settings

from command_line import Call

settings.register_profile("siftback", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("siftback")

# A shell has what it starts in the background ignore Ctrl-C, and processes that tests start too.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
