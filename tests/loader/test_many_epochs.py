"""Several processes, epoch after epoch, of examples that they cannot share out evenly.

The whole, a thousand epochs on 2, 4 and 8 processes, is ``python benchmarks/many_epochs.py``.
"""

import pytest

from scripts import load_script

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]


def test_all_make_equally_many_steps_and_keep_the_same_weights(capsys):
    load_script("benchmarks/many_epochs.py").run(processes=2, epochs=6)
    printed = capsys.readouterr().out
    assert printed.count("2 processes, 6 epochs of 47 examples") == 4
    assert "memory: each made " in printed
