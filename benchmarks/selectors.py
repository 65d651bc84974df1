"""Runs `choosing.py`: what every selector and every rule costs.

The standard library has a module of this name, which Python looks for in the folder of the script
that it runs, and so finds here, from every benchmark. It is given that one.
"""

import importlib.util
import runpy
import sys
import sysconfig
from pathlib import Path

found = importlib.util.spec_from_file_location(
    "selectors", Path(sysconfig.get_path("stdlib"), "selectors.py")
)
assert found is not None
assert found.loader is not None
sys.modules["selectors"] = importlib.util.module_from_spec(found)
found.loader.exec_module(sys.modules["selectors"])

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("choosing.py")), run_name="__main__")
