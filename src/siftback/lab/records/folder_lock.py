"""One process at a time works in a comparison's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from siftback.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: there, nothing is locked
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keeps other processes from a folder; says whether none has it.

    The lock is the operating system's, on the file ``lock``: it ends with the process, however
    that ends, and what the file leaves behind means nothing.

    Args:
        folder: Which one; made where it is missing.

    Raises:
        ConfigError: If nothing can be written there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name, locked(Path(name)) as first, locked(Path(name)) as other:
    ...     first, other
    (True, False)
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written as a folder ({error.strerror}): give --out a folder that "
            "can"
        ) from error
    with file:
        yield _take(file.fileno())


def is_locked(folder: Path) -> bool:
    """Whether a process is working in a folder."""
    if not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as file:
        return not _take(file.fileno())


def _take(descriptor: int) -> bool:
    """Locks an open file, till it is closed; says whether it could."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
