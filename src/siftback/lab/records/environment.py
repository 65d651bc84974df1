"""Where a result was measured: versions, machine and commit, and nothing that names a person."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

import torch

import siftback


def environment(arguments: dict[str, Any]) -> dict[str, Any]:
    """Describes the circumstances of a measurement, for the ``environment`` of a summary.

    Args:
        arguments: The options that were asked for. Absolute paths and ``Path`` objects among
            them are left out, as they say where something lay and not what was done.

    Returns:
        Versions (``siftback``, ``python``, ``torch``, ``numpy``), the machine (``platform``,
        ``cpu``, ``cores``, ``threads`` that torch uses, ``memory_gib``, ``device``: the
        accelerator's name or ``"cpu"``), ``commit``, ``date`` in UTC and ``arguments``. What
        cannot be found out is None. Host name, user name and paths are not in it.

    >>> environment({"epochs": 2, "device": "cpu"})["device"]
    'cpu'
    """
    return {
        "siftback": siftback.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": memory_gib(),
        "device": "cpu" if arguments.get("device") == "cpu" else _accelerator() or "cpu",
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": {
            name: value
            for name, value in arguments.items()
            if not (isinstance(value, PurePath) or Path(str(value)).is_absolute())
        },
    }


def commit() -> str | None:
    """The git commit of Siftback's own source tree.

    Returns:
        The full hash, with ``+changes`` where the package's files differ from it (results that
        are being written do not count); None outside of a checkout, and where git is missing.
    """
    source = Path(siftback.__file__).parent
    # A package installed below someone else's checkout is not tracked by it.
    if _git(source, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git(source, "rev-parse", "HEAD")
    return f"{head}+changes" if head and _git(source, "status", "--porcelain", "--", ".") else head


def memory_gib() -> float | None:
    """The machine's memory; None where it cannot be found out."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf.
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    # Within a hook, GIT_DIR and its like would point git at the hook's repository.
    variables = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    # Without the lock that a commit of somebody else's would find taken.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    listing = Path("/proc/cpuinfo")
    text = listing.read_text(encoding="utf-8") if listing.exists() else ""
    match = re.search(r"^model name\s*:\s*(.*\S)", text, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()


def _accelerator() -> str | None:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "Apple MPS" if torch.backends.mps.is_available() else None
