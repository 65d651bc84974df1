"""A file that one object of one process writes to at a time."""

import errno
import os
import warnings
import weakref
from pathlib import Path

from siftback.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Some network file systems do without locks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class FileLock:
    """Locks a file until this object, or its process, is gone.

    Among processes it is the operating system's lock (``flock``), which ends with the process,
    however that ends; a process that is forked does not inherit it. Within a process the newest
    object has the file, as older ones may only wait to be collected; they are refused by `check`.
    Where the system or the file system has no ``flock``, only the objects of one process are told
    apart.

    Args:
        path: The file; created if it does not exist.

    Raises:
        ConfigError: If another process has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lost = ""  # why this object does not have the file any more
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._close = weakref.finalize(self, _release, self._descriptor, os.getpid())
        for other in [*_locks]:
            if os.path.sameopenfile(other._descriptor, self._descriptor):
                other._lose("was opened again by another ScoreTable of this process, which has it")
                other._close()
        if not _lock_file(self._descriptor, path):
            self._close()
            raise ConfigError(
                f"{path} is in use by another process, whose losses would mix with those of this "
                "one: wait until it has ended, or give another path; each process needs its own"
            )
        _locks.add(self)

    def check(self) -> None:
        """Checks that this object may still write to the file.

        Raises:
            ConfigError: If another one of this process has it, or the process was forked since.
        """
        if self._lost:
            raise ConfigError(
                f"{self._path} {self._lost}: train with one ScoreTable of a path, or give each "
                "training a path of its own"
            )

    def _lose(self, reason: str) -> None:
        self._lost = reason
        _locks.discard(self)


_locks: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    for lock in [*_locks]:
        lock._lose("was opened by the process that this one was forked from, which has it")
        # Unlocking would unlock the parent's file, with which the child shares it.
        if lock._close.detach():
            os.close(lock._descriptor)


if hasattr(os, "register_at_fork"):
    # Else a worker process of a DataLoader would hold the lock when its parent was killed.
    os.register_at_fork(after_in_child=_leave_to_parent)


def _lock_file(descriptor: int, path: Path) -> bool:
    """Locks an open file; returns whether no other process has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warnings.warn(
            f"the file system of {path} has no locks ({error}): let no other training have it",
            stacklevel=5,
        )
    return True


def _release(descriptor: int, process: int) -> None:
    if fcntl and os.getpid() == process:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # though a child may have the file open
    os.close(descriptor)
