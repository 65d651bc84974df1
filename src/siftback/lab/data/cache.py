"""Tensors that take a while to compute, kept in a file until their sources change."""

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

FORMAT = 2


def cached(
    name: str,
    sources: Sequence[Path],
    compute: Callable[[], dict[str, Tensor]],
    options: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Reads tensors from the cache, or computes and keeps them.

    The file ``<name>.pt`` lies in ``SIFTBACK_CACHE``, else in ``~/.cache/siftback``. It is written
    again where a source's name, size or modification time differs, and where it is damaged.

    Args:
        name: Name of the file, without its ending.
        sources: The files that the tensors are computed from; nothing is kept where there are none.
        compute: Computes the tensors.
        options: Further words that decide the tensors.

    Raises:
        ConfigError: If the cache's folder cannot be written.
    """
    if not sources:
        return compute()
    folder = Path(os.environ.get("SIFTBACK_CACHE") or Path.home() / ".cache" / "siftback")
    file = folder / f"{name}.pt"
    states = [(source.name, source.stat().st_size, source.stat().st_mtime_ns) for source in sources]
    key = hashlib.sha256(json.dumps([FORMAT, states, list(options)]).encode()).hexdigest()
    try:
        # Mapped, so that runs side by side share one copy in memory.
        entry = torch.load(file, weights_only=True, mmap=True)
        tensors: dict[str, Tensor] = entry["tensors"]
        if entry["key"] == key and entry["checksums"] == checksums(tensors):
            return tensors
    except Exception:
        pass  # A damaged file can fail in any way, and is written again.
    tensors = compute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In a folder of its own, as two runs may write at once; then a reader sees the old file or
        # the new one, never half of one.
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.") as temporary:
            entry = {"key": key, "tensors": tensors, "checksums": checksums(tensors)}
            torch.save(entry, Path(temporary) / file.name)
            (Path(temporary) / file.name).replace(file)
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be written ({error.strerror}): "
            "set SIFTBACK_CACHE to a folder that can"
        ) from error
    return tensors


def checksums(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Computes a CRC-32 of each tensor's storage and shape; torch checks neither when loading."""
    return {
        name: zlib.crc32(
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().data,
            zlib.crc32(repr((tensor.dtype, tensor.shape, tensor.stride())).encode()),
        )
        for name, tensor in tensors.items()
    }
