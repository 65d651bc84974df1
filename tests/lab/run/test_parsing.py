"""Settings as they are written."""

import pytest

from siftback import Epochs, Share
from siftback.errors import ConfigError
from siftback.lab.settings import Settings, parse_duration, parse_numbers, parse_setting
from siftback.lab.strategies.table import STRATEGIES


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43200), ("2d", 172800), ("1h30m", 5400), ("0.5s", 0.5)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration("x", text) == seconds


@pytest.mark.parametrize("text", ["", "12", "h", "12 h", "-1s", "1w", "s1"])
def test_no_times(text: str) -> None:
    with pytest.raises(ConfigError, match="give a time such as 90s, 30m, 12h"):
        parse_duration("time_budget", text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lr", "0.05", 0.05),
        ("lr", "1/20", 0.05),
        ("flip", "10%", 0.1),
        ("batch_size", " 64", 64),
        ("width", "none", None),
        ("width", "8", 8),
        ("compile", "True", True),
        ("channels_last", "false", False),
        ("model", "cnn", "cnn"),
        ("precision", "bf16", "bf16"),
        ("time_budget", "2m", 120.0),
        ("time_budget", "none", None),
        ("stop_at", "error=5%", 5.0),
        ("stop_at", "error=2.5%", 2.5),
        ("warmup", "15%", Share(0.15)),
        ("warmup", "2e", Epochs(2)),
        ("warmup", "0", Epochs(0)),
        ("warmup", "none", None),
        ("tail", "12.5%", 0.125),
        ("tail", "0%", 0.0),
        ("tail", "none", None),
        ("evaluate_at", "0.01,2%,1/4", (0.01, 0.02, 0.25)),
    ],
)
def test_each_setting_has_its_type(name: str, text: str, value: object) -> None:
    found = parse_setting(name, text)
    assert found == value
    assert type(found) is type(value)


def test_no_tail_is_another_setting_than_a_rule_s_own() -> None:
    asked, default = (Settings("digits", epochs=10.0, tail=tail) for tail in (0.0, None))
    memory, plain = STRATEGIES["sb-memory-default"], STRATEGIES["sb-memory-ratio"]
    assert [memory.tail_share(settings) for settings in (asked, default)] == [0.0, 0.45]
    assert [plain.tail_share(settings) for settings in (asked, default)] == [0.0, 0.0]
    assert STRATEGIES["infobatch"].tail_share(Settings("digits", time_budget=9.0)) == 0.125
    # Records have 0 where none was asked for.
    assert [settings.recorded()["tail"] for settings in (asked, default)] == ["0%", 0.0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("learning_rate", "1", "no setting 'learning_rate': give one of data, model"),
        ("lr", "fast", "lr 'fast': give a number"),
        ("lr", "1/0", "lr '1/0': give a number"),
        ("batch_size", "1.5", "give an integer"),
        ("batch_size", "none", "give an integer"),
        ("compile", "yes", "give true or false"),
        ("stop_at", "5%", "such as error=5%"),
        ("stop_at", "loss=5", "such as error=5%"),
        ("stop_at", "error=0.05", "such as error=5%"),
        ("evaluate_at", "0.1;0.2", "separated by commas"),
        ("warmup", "0.15", "warmup '0.15': give epochs such as 1e, a percentage"),
        ("warmup", "1", "give epochs such as 1e"),
        ("tail", "1", "such as 15%"),
    ],
)
def test_what_cannot_be_is_told(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_setting(name, text)


def test_lists_of_numbers() -> None:
    assert parse_numbers("keep", "1/2, 0.25,10%") == [0.5, 0.25, 0.1]
