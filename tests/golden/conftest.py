"""Golden files: JSON that numbers are held against, written again by ``make golden``."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dicts and lists, by their paths, and how many each of these holds."""
    if isinstance(value, dict):
        entries: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    else:
        return {path: value}
    leaves: dict[str, Any] = {f"{path}/": len(value)}
    for key, entry in entries:
        leaves |= flattened(entry, f"{path}/{key}")
    return leaves


def as_json(value: Any, depth: int = 2) -> str:
    """JSON of a line for each entry down to a depth, and of ten digits, to be short."""
    if isinstance(value, dict) and depth:
        lines = [f"{json.dumps(key)}: {as_json(entry, depth - 1)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    rounded = json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.10g}"))
    return json.dumps(rounded, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def same(golden: Any, current: Any) -> bool:
    """Whether two leaves agree, numbers to the digits that the files have."""
    if isinstance(golden, float) and isinstance(current, float | int):
        return math.isclose(golden, current, rel_tol=1e-9, abs_tol=1e-12)
    return bool(golden == current)


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """Holds numbers against a golden file, or writes it where that was asked for."""

    def check(name: str, found: Any) -> None:
        path = GOLDEN / f"{name}.json"
        if request.config.getoption("--remake-golden"):
            path.write_text(f"{as_json(found)}\n", encoding="utf-8")
        golden = flattened(json.loads(path.read_text(encoding="utf-8")))
        current = flattened(json.loads(json.dumps(found)))
        changed = {
            path: (golden.get(path), current.get(path))
            for path in golden | current
            if path not in golden or path not in current or not same(golden[path], current[path])
        }
        assert not changed, "golden, and now"

    return check
