"""Scripts of the repository that are no modules of the package, for tests of what is in them."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_script(path):
    """The module of a script, such as "benchmarks/loops/equal_steps.py", beside its neighbours."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
