"""Additions to the pages as MkDocs builds them: pictures, verdicts, and links to the repository.

A page has a comment where something is to be added, which is nothing where it is read otherwise:
``<!-- kept: sb, random -->`` for what strategies keep and what came out of them,
``<!-- came out: sb -->`` for the latter in a line, ``<!-- budgets -->`` for the default in budgets,
``<!-- headline -->`` for the README's first sentence, which `make results` writes, and
``<!-- notebooks -->`` for links that open the notebooks.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import bars
import verdicts
from kept import kept_by

from siftback.lab.strategies.table import STRATEGIES

ROOT = Path(__file__).parents[2]
GITHUB = "https://github.com/"

_ADDED = re.compile(r"<!-- (kept|came out|budgets|headline|notebooks)(?:: (.*?))? -->")
_NAMED = re.compile(r"\[[\w/]+\.md\]\(([\w./]+\.md)")  # a link whose text is a file's name
_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_PERCENT = re.compile(r"(\d) %(?=\)?</td>)")
_BOUND = re.compile(r"(&[gl]t;) (?=\d)")
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with what is added to it."""
    if page.parent is None:  # it has no pages beside it to lead to
        page.meta.setdefault("hide", ["navigation"])
    folder = Path(page.file.abs_src_path).parent
    markdown = _NAMED.sub(lambda found: f"[{_title(folder / found[1])}]({found[1]}", markdown)
    markdown = _ADDED.sub(lambda found: _added(found[1], found[2], config), markdown)
    return _LINK.sub(lambda found: _linked(found, page.file.src_uri, config), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """The page, in whose cells no line parts a number and its percent sign, or its > or <."""
    html = _PERCENT.sub(r"\1&nbsp;%", html)
    return _CELL.sub(lambda cell: _BOUND.sub(r"\1&nbsp;", cell[0]), html)


def _title(page: Path) -> str:
    """The first line of a page, which is its title."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _added(what: str, given: str | None, config: Any) -> str:
    names = (given or "").split(", ")
    match what:
        case "kept":
            return _kept(names)
        case "came out":
            return f"<br>{verdicts.in_brief(names)}"
        case "headline":
            readme = (ROOT / "README.md").read_text(encoding="utf-8")
            return readme.partition("<!-- headline -->")[2].partition("<!-- end of")[0].strip()
        case "notebooks":
            return _notebooks(config.extra["repository"])
        case _:
            return verdicts.budgets()


def _notebooks(repository: str) -> str:
    """A line of links for each notebook; Colab opens those of a repository on GitHub alone."""
    lines = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = cells[0]["source"][0].strip().removeprefix("# ")
        at = f"notebooks/{path.name}"
        line = f"[{title}]({repository}/blob/main/{at})" if repository else f"{title}: `{at}`"
        if repository.startswith(GITHUB):
            colab = f"https://colab.research.google.com/github/{repository.removeprefix(GITHUB)}"
            line += f" ([open in Colab]({colab}/blob/main/{at}))"
        lines.append(f"- {line}")
    return "\n".join(lines)


def _kept(names: list[str]) -> str:
    """Pictures of what some strategies keep, those of equal ones once, and what came out."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if kept := kept_by(name):
            alike.setdefault((repr(kept), _score(name)), []).append(name)
    drawn = "".join(
        bars.figure(same, kept_by(same[0]), score) for (_, score), same in alike.items()
    )
    return f'<div class="pictures">{drawn}</div>\n\n{verdicts.tables(names)}'


def _score(name: str) -> str:
    """Returns the score that a strategy orders examples by; the loss, unless it says otherwise."""
    strategy = STRATEGIES[name]
    others = strategy.scorer, strategy.prior
    score = "score" if any(others) or strategy.tokens not in (None, "loss", "random") else "loss"
    return f"token's {score}" if strategy.tokens else score


def _linked(found: re.Match[str], page: str, config: Any) -> str:
    """A link out of the documentation leads into the repository, where its address is known."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[2]))
    if target.startswith("docs/"):
        return found[0]
    repository = config.extra["repository"]
    return f"[{found[1]}]({repository}/blob/main/{target})" if repository else _code(found[1])


def _code(text: str) -> str:
    return text if text.startswith("`") else f"`{text}`"
