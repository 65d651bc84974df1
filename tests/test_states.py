"""States of other settings and damaged states: refused by name, with nothing changed."""

import collections

import pytest

from damaging import comparable, verdicts
from siftback.errors import StateError
from stateful_objects import KINDS

OTHERS = {
    f"{name}, {other}": (kind, settings)
    for name, kind in KINDS.items()
    for other, settings in kind.others.items()
}


@pytest.mark.red
@pytest.mark.parametrize(("kind", "settings"), OTHERS.values(), ids=OTHERS)
def test_a_state_of_other_settings_is_refused_and_changes_nothing(kind, settings):
    saved, loaded = kind.make(), kind.make(**settings)
    kind.use(saved)
    before = comparable(loaded.state_dict())
    with pytest.raises(StateError, match=r"was saved with |should be |wrap the same|of \d+ "):
        loaded.load_state_dict(saved.state_dict())
    assert comparable(loaded.state_dict()) == before


@pytest.mark.red
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_state_is_refused_and_changes_nothing(name, asked, count):
    kind, wrong, counted = KINDS[name], [], collections.Counter()
    saved = kind.make()
    kind.use(saved)
    state = saved.state_dict()
    other = kind.make()  # a state is not refused for nothing
    other.load_state_dict(state)
    assert comparable(other.state_dict()) == comparable(state)
    for path, damage, verdict in verdicts(kind.make, state, kind.use, asked("leaves")):
        counted[verdict.partition(":")[0]] += 1
        if verdict != "refused":
            wrong.append((path, damage, verdict))
    assert not wrong
    count(f"{sum(counted.values())} damaged states of {name}: {dict(counted)}")
