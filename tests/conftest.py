"""How property tests run: the same examples everywhere, and no dependence on the clock."""

from hypothesis import settings

settings.register_profile("siftback", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("siftback")
