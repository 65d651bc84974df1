"""The command that installs what is missing, without PyTorch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = ["install_command", "naming_extra"]


def install_command(extra: str) -> str:
    """Returns the command that installs an extra from where Siftback was installed from."""
    # There is no distribution where the package is only on the path.
    distributions = metadata.Distribution.discover(name="siftback")
    return command_from(extra, next((d.read_text("direct_url.json") for d in distributions), None))


@contextmanager
def naming_extra(extra: str, needed: str, package: str = "") -> Iterator[None]:
    """Names the extra that installs what ``siftback.frameworks`` imports within, if it is missing.

    Args:
        extra: Of the name of the integration.
        needed: What it needs, in words.
        package: The package that has to be missing; any, if it is empty.

    Raises:
        ImportError: In place of that of the import.
    """
    try:
        yield
    except ImportError as error:
        if package and (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(
            f"siftback.frameworks.{extra} needs {needed}: {install_command(extra)}"
        ) from error


def command_from(extra: str, origin: str | None) -> str:
    """Returns the command that installs an extra from an origin.

    Args:
        extra: The extra.
        origin: The text of ``direct_url.json``, which pip and uv write beside what they install
            from elsewhere than an index (PEP 610); None where they wrote none.

    >>> command_from("lab", None)
    'pip install "siftback[lab]"'
    >>> command_from("lab", '{"url": "file:///code/siftback", "dir_info": {"editable": true}}')
    'pip install -e "/code/siftback[lab]"'
    """
    if origin is None:
        return f'pip install "siftback[{extra}]"'
    source = json.loads(origin)
    if "dir_info" in source:
        option = "-e " if source["dir_info"].get("editable") else ""
        return f'pip install {option}"{url2pathname(urlsplit(source["url"]).path)}[{extra}]"'
    url = source["url"]
    if "vcs_info" in source:
        url = f"{source['vcs_info']['vcs']}+{url}@{source['vcs_info']['commit_id']}"
    return f'pip install "siftback[{extra}] @ {url}"'
