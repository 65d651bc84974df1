"""The description that an index shows: the README, whose links lead into the repository.

On an index a link to ``docs/usage.md`` or a picture of the repository leads nowhere. The address of
the repository is told by ``REPOSITORY_URL``, as the workflow of a release sets it; without it the
README stays as it is.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)")


class Description(MetadataHookInterface):
    """Gives the package its long description."""

    def update(self, metadata: dict) -> None:
        """Sets ``readme``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("REPOSITORY_URL")
        if repository:
            text = link_to(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def link_to(text: str, repository: str, tag: str) -> str:
    """Returns a Markdown text whose relative links and pictures lead to a tag of a repository.

    >>> link_to("[a](docs/a.md) ![b](b.svg) [c](#c)", "https://host/name", "v1")
    '[a](https://host/name/blob/v1/docs/a.md) ![b](https://host/name/raw/v1/b.svg) [c](#c)'
    """
    return _LINK.sub(
        lambda link: (
            f"{link[1]}{link[2]}({repository}/{'raw' if link[1] else 'blob'}/{tag}/{link[3]})"
        ),
        text,
    )
