"""Each framework that is not installed is named with its extra."""

import subprocess
import sys

from siftback.installation import install_command

MISSING = {
    "lightning": ("lightning", "Lightning"),
    "huggingface": ("transformers", "transformers and accelerate"),
    "accelerate": ("accelerate", "Accelerate"),
    "keras": ("keras", "Keras 3"),
}
CODE = """
import importlib, sys
for module, package in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[package] = None
    try:
        importlib.import_module(f"siftback.frameworks.{module}")
    except ImportError as error:
        print(module, error)
"""


def test_frameworks_that_are_not_installed_are_named_with_their_extras():
    names = [name for module, (package, _) in MISSING.items() for name in (module, package)]
    done = subprocess.run([sys.executable, "-c", CODE, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(found) == list(MISSING)
    for module, (_, needed) in MISSING.items():
        assert found[module] == (
            f"siftback.frameworks.{module} needs {needed}: {install_command(module)}"
        )
