"""Counts of a Python tree's style, and the ceilings that they must not pass.

``python tests/style_counts.py`` prints the counts of ``src/siftback``; with a folder, those of
another tree; with ``--check``, only what is above its ceiling, as an error.

A line of code holds a token of code: no blank line, comment or docstring. Rates are per 1,000
lines of code; that of vague names per 1,000 uses of names (names read or written, and arguments).
"""

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "siftback"
CEILINGS_FILE = Path(__file__).with_name("style_ceilings.json")
VAGUE = {
    "one", "of", "found", "own", "each", "made", "given", "held", "said", "asked", "kept",
    "chosen", "part", "parts", "here", "there", "both", "more", "rest", "place",
}  # fmt: skip
"""Words that fit everything: a name is the noun of what it holds."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str, tree: ast.Module) -> int:
    """Returns the number of lines that hold code, without docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) and ast.get_docstring(node):
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yields every use of a name: read, written, or an argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def compares_with_none(node: ast.AST) -> bool:
    """Returns whether a node is a comparison with None."""
    return isinstance(node, ast.Compare) and any(
        isinstance(side, ast.Constant) and side.value is None for side in node.comparators
    )


def defined_twice(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Returns the public functions and classes that several modules define, with these modules."""
    modules = defaultdict(list)
    for path, tree in trees.items():
        for name in {
            node.name for node in tree.body if isinstance(node, (ast.ClassDef, *_FUNCTIONS))
        }:
            if not name.startswith("_"):
                modules[name].append(path)
    return {name: paths for name, paths in sorted(modules.items()) if len(paths) > 1}


def style_counts(folder: Path = SOURCE) -> dict[str, float]:
    """Returns the counts of all Python files below a folder, by name."""
    texts = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }
    trees = {path: ast.parse(text) for path, text in texts.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    lines = {path: code_lines(text, trees[path]) for path, text in texts.items()}
    total = max(sum(lines.values()), 1)
    names = [name for tree in trees.values() for name in names_in(tree)]
    private = [f for f in functions if f.name.startswith("_") and not f.name.startswith("__")]
    questions = [f for f in functions if (ast.get_docstring(f) or "").startswith(("What ", "How "))]
    return {
        "code lines": total,
        "code lines of the laboratory": sum(
            count for path, count in lines.items() if path.startswith("lab/")
        ),
        "vague names per 1,000 names": 1000 * sum(name in VAGUE for name in names) / len(names),
        "private functions per 1,000 lines": 1000 * len(private) / total,
        "comparisons with None per 1,000 lines": 1000 * sum(map(compares_with_none, nodes)) / total,
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "docstrings that begin with What or How": len(questions),
        "public names defined in several modules": len(defined_twice(trees)),
    }


def above_ceilings(counts: dict[str, float]) -> list[str]:
    """Returns a line for each count that is above its ceiling."""
    ceilings = json.loads(CEILINGS_FILE.read_text(encoding="utf-8"))
    return [
        f"{name}: {count:.1f}, at most {ceilings[name]}"
        for name, count in counts.items()
        if round(count, 1) > ceilings[name]
    ]


def main() -> None:
    """Prints the counts, or the ceilings that are passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=SOURCE)
    parser.add_argument("--check", action="store_true", help="fail where a ceiling is passed")
    options = parser.parse_args()
    counts = style_counts(options.folder)
    if options.check:
        sys.exit("\n".join(above_ceilings(counts)) or 0)
    print(json.dumps({name: round(count, 1) for name, count in counts.items()}, indent=1))


if __name__ == "__main__":
    main()
