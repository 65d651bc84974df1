"""Files that are there whole or not at all, whenever a process or a machine stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives a temporary path; what is written there takes the place of ``path`` at the end.

    It is on the disk by then (``fsync`` of the file, a rename, ``fsync`` of the folder), so that
    a reader finds what was there before or what is new, and never a part. Where writing fails,
    what was there before stays.

    Args:
        path: Where the file is to be; missing folders are made.

    Raises:
        OSError: If it cannot be written; it names the path.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a" / "b.txt") as temporary:
    ...         _ = temporary.write_text("all of it")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'all of it'
    """
    temporary = path.with_name(path.name + ".tmp")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)  # of a full disk it may hold the rest
            raise
        if os.name != "nt":  # where folders cannot be opened
            sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Has the errors of writing a file name it, as those of a full disk do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def check_writable(path: Path) -> None:
    """Makes sure that a file can be written, before what is to be in it takes its time.

    Raises:
        OSError: If it cannot; it names the path.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.touch()
        temporary.unlink()


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
