"""Docstrings as Markdown: examples as code, and names of this library as links."""

import re
import sys
from types import ModuleType
from typing import Any

from griffe import Class, Extension, Function, Module, Object

import siftback
import siftback.contrib
import siftback.language
import siftback.pruning

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
_NAME = re.compile(r"(?<![`\w\[])`([A-Za-z_]\w*)`(?!`)")
_ROLE = re.compile(r":(?:mod|class|func):(`[^`]+`)")


def _path(module: ModuleType, name: str) -> str:
    """Where a name is documented: within the module of its own name, if there is one."""
    path = f"{module.__name__}.{name}"
    return f"{path}.{name}" if path in sys.modules else path


_PATHS = {
    name: _path(module, name)
    for module in (siftback.contrib, siftback.language, siftback.pruning, siftback)
    for name in module.__all__
}


class Markdown(Extension):
    """Rewrites each docstring once it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrites that of a module, class or function."""
        if isinstance(obj, Module | Class | Function) and obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    r"""A docstring as Markdown.

    >>> as_markdown("Keeps, as `Memory` does::\n\n    kept")
    'Keeps, as [`Memory`][siftback.Memory] does:\n\n    kept'
    """
    text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    text = _ROLE.sub(r"\1", text).replace("::\n", ":\n")
    return _NAME.sub(_linked, text)


def _linked(found: re.Match[str]) -> str:
    path = _PATHS.get(found[1])
    return f"[`{found[1]}`][{path}]" if path else found[0]
