"""The example of Ray Train runs in two processes, apart from this one's threads and warnings."""

from importlib.util import find_spec

import pytest

from torchrun import found_of_framework

COUNT, EPOCHS, BATCH = 250, 3, 32


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(find_spec("ray") is None, reason="needs pip install ray[train]")
def test_two_workers_take_equal_steps_on_examples_of_their_own(filled_once):
    _, workers = found_of_framework(filled_once, "ray")
    share = COUNT // 2
    steps = -(-share // BATCH)
    assert [worker["steps"] for worker in workers] == [EPOCHS * steps] * 2
    first, second = (worker["reads"][:share] for worker in workers)  # the pass before any losses
    assert len({*first, *second}) == COUNT
