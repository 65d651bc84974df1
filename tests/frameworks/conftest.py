"""Settings that the frameworks read as they are imported."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
