"""The type of a function that calls the command line, in tests."""

from collections.abc import Callable

# Arguments, to exit status, output and errors, whose line breaks are spaces.
Call = Callable[..., tuple[int, str, str]]
