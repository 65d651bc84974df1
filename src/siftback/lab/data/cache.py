"""Tensors that take a while to make, kept in a file until what they were made from changes."""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from siftback.errors import ConfigError

FORMAT = 1


def cached(
    name: str,
    sources: Sequence[Path],
    make: Callable[[], dict[str, Tensor]],
    options: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Reads tensors from the cache, or makes and keeps them.

    The file ``<name>.pt`` lies in ``SIFTBACK_CACHE``, else in ``~/.cache/siftback``. It is made
    again where a source's name, size or modification time is another, and where it is damaged.

    Args:
        name: Name of the file, without its ending.
        sources: The files that the tensors are made from.
        make: Makes the tensors.
        options: What else decides them; other words have them made again.

    Raises:
        ConfigError: If the cache's folder cannot be written.
    """
    folder = Path(os.environ.get("SIFTBACK_CACHE") or Path.home() / ".cache" / "siftback")
    file = folder / f"{name}.pt"
    key = _key(sources, options)
    tensors = _read(file, key)
    if tensors is None:
        tensors = make()
        try:
            _write(file, key, tensors)
        except OSError as error:
            raise ConfigError(
                f"the cache folder {folder} cannot be written ({error.strerror}): "
                "set SIFTBACK_CACHE to a folder that can"
            ) from error
    return tensors


def _key(sources: Sequence[Path], options: Sequence[str]) -> str:
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sources]
    whole = [FORMAT, states, *([list(options)] if options else [])]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _read(file: Path, key: str) -> dict[str, Tensor] | None:
    """The tensors kept under ``key``; None where there are none, or none that are whole."""
    try:
        # Mapped, so that runs side by side share one copy in memory.
        entry = torch.load(file, weights_only=True, mmap=True)
        tensors: dict[str, Tensor] = entry["tensors"]
        if entry["key"] == key and entry["checksums"] == _checksums(tensors):
            return tensors
    except Exception:
        # A damaged file can fail in any way, and whichever it is, the file is made again.
        return None
    return None


def _write(file: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Replaces the file whole: a reader sees the old one or the new one, never half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    entry = {"key": key, "tensors": tensors, "checksums": _checksums(tensors)}
    # A name of its own, as two runs may write at once.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            torch.save(entry, stream)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink()
        raise


def _checksums(tensors: dict[str, Tensor]) -> dict[str, int]:
    """A CRC-32 of each tensor's storage and shape; torch itself checks neither when loading."""
    return {
        name: zlib.crc32(
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().data,
            zlib.crc32(repr((tensor.dtype, tensor.shape, tensor.stride())).encode()),
        )
        for name, tensor in tensors.items()
    }
