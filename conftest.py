"""What must be set before a framework is imported, for tests and for the examples in docstrings."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # the default needs TensorFlow
