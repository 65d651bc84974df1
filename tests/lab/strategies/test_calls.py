"""Strategies by the calls of the library that they are."""

import pytest

import siftback
from siftback.lab.experiments.comparison import Plan
from siftback.lab.settings import Settings, parse_names
from siftback.lab.strategies.table import (
    STRATEGIES,
    call_of,
    find_strategy,
    library_name,
    name_of_call,
)

WITH_CALLS = [name for name, strategy in STRATEGIES.items() if strategy.library]


@pytest.mark.parametrize("keep", [0.25, 1 / 3])
@pytest.mark.parametrize("name", [*WITH_CALLS, "stale-sb-4"])
def test_a_name_comes_back_from_its_call(name, keep):
    label = f"{name} {keep:.2g}"
    found, _, share = name_of_call(library_name(label)).partition("@")
    assert found == name
    if "{" in find_strategy(name).library:
        assert float(share) == pytest.approx(float(f"{keep:.2g}"), rel=0.05)  # as it is written
    else:
        assert share == ""


def test_settings_of_a_memory_are_those_of_each_of_its_names():
    settings = Settings("digits", epochs=9.0, floor=0.2, decay=0.5)
    for name in WITH_CALLS:
        if name.startswith("sb-memory"):
            asked = find_strategy(name).choice(0.5, settings).settings()
            assert (asked["floor"], asked["decay"]) == (0.2, 0.5), name


def test_each_call_is_that_of_one_strategy():
    calls = [call_of(STRATEGIES[name]) for name in WITH_CALLS]
    assert len(set(calls)) == len(calls)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_a_call_names_what_the_library_has(name):
    public = STRATEGIES[name].library.partition("(")[0].split(".")
    member = siftback
    for part in public:
        member = getattr(member, part)
    assert callable(member)


def test_spaces_fractions_and_a_share_without_its_name():
    calls = parse_names(" Memory( ), Memory( 1/4 ),OrderDP(subset=0.5, top=0.5),sb")
    names = [name_of_call(call) for call in calls]
    assert names == ["sb-memory-default", "sb-memory@0.25", "orderdp@0.25", "sb"]


def test_a_plan_has_names_as_records_have_them():
    plan = Plan(
        Settings("digits", epochs=1), ["traditional", "Memory()"], [0.25, 0.5], [0], matched=False
    )
    assert plan.arguments()["strategies"] == ["traditional", "sb-memory-default"]
    # Its share is its own, so that it is trained once, under one name whatever others keep.
    assert [run.name for run in plan.runs()] == [
        "traditional-seed0",
        "sb-memory-default-keep0.5-seed0",
    ]
