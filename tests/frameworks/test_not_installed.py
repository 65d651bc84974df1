"""Each framework that is not installed is named with its extra."""

import importlib
import sys

from siftback.installation import install_command
from started import started

MISSING = {
    "lightning": ("lightning", "Lightning"),
    "huggingface": ("transformers", "transformers and accelerate"),
    "accelerate": ("accelerate", "Accelerate"),
    "keras": ("keras", "Keras 3"),
}


def import_without(missing, done):
    """Sends what each import says, with nothing of the frameworks' packages imported before."""
    found = {}
    for module, (package, _) in missing.items():
        for name in list(sys.modules):
            if name.startswith((f"{package}.", "siftback.frameworks")):
                del sys.modules[name]
        sys.modules[package] = None
        try:
            importlib.import_module(f"siftback.frameworks.{module}")
        except ImportError as error:
            found[module] = str(error)
    done.send(found)


def test_frameworks_that_are_not_installed_are_named_with_their_extras():
    with started(import_without, MISSING) as (_, done):
        found = done.recv()
    assert list(found) == list(MISSING)
    for module, (_, needed) in MISSING.items():
        assert (
            found[module]
            == f"siftback.frameworks.{module} needs {needed}: {install_command(module)}"
        )
