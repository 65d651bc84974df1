"""How tests run: property tests with the same examples everywhere, and Ctrl-C heard by children."""

import signal

from hypothesis import settings

settings.register_profile("siftback", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("siftback")

# A shell has what it starts in the background ignore Ctrl-C, and processes that tests start too.
signal.signal(signal.SIGINT, signal.default_int_handler)
