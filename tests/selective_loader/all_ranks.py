"""The scripts of several test files, one after the other in the same processes.

Run by ``torchrun`` with a folder to save to, and the names of the scripts.
Processes take longer to start than each of them takes.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    for name in sys.argv[2:]:
        out = Path(sys.argv[1], name)
        out.mkdir(exist_ok=True)
        importlib.import_module(name).main(out)
