"""The scripts of several test files, one after the other in the same processes.

Run by ``torchrun`` with a folder to save to, and the scripts' paths from here without the ending.
Processes take longer to start than each of them takes.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    for script in map(Path, sys.argv[2:]):
        sys.path.insert(0, str(Path(__file__).parent / script.parent))
        out = Path(sys.argv[1], script.name)
        out.mkdir(exist_ok=True)
        importlib.import_module(script.name).main(out)
