"""Settings come from arguments, then the environment, then defaults; nothing wrong gets through."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from standfast.errors import ConfigError
from standfast.settings import (
    HEARTBEAT_MANY_S,
    HEARTBEAT_S,
    MANY,
    Secret,
    Settings,
    agreement,
    load,
    rows,
)

KEY = "a key of 16 bytes or more"


def test_defaults() -> None:
    """Nothing given: the documented defaults."""
    assert load({}, {}) == Settings()
    assert Settings().init_timeout_s == 60
    assert Settings().progress_s == 600
    assert Settings().key is None


def test_the_table_is_complete() -> None:
    """Each setting has a variable of ours, a meaning, and a default that it reads itself."""
    for row in rows():
        assert row.meaning, row.name
        assert row.variables[0].startswith("STANDFAST_"), row.name
        if row.default is not None:
            assert getattr(load({row.name: row.default}, {}), row.name) == row.default
    variables = [variable for row in rows() for variable in row.variables]
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("STANDFAST_FABRIC", "SHM", "fabric", "shm"),
        ("STANDFAST_TOPOLOGY", "ring", "topology", "ring"),
        ("STANDFAST_INIT_TIMEOUT_S", "2.5", "init_timeout_s", 2.5),
        ("STANDFAST_PROGRESS_TIMEOUT_S", "0", "progress_s", 0.0),
        ("JACCL_PROGRESS_TIMEOUT_S", "90", "progress_s", 90.0),
        ("MLX_JACCL_PROGRESS_TIMEOUT_S", "90", "progress_s", 90.0),
        ("STANDFAST_EXIT_ON_FAULT", "1", "exit_on_fault", True),
        ("STANDFAST_EXIT_GRACE_S", "0", "exit_grace_s", 0.0),
        ("STANDFAST_EXCEPTHOOK", "0", "excepthook", False),
        ("STANDFAST_EXCEPTHOOK", "off", "excepthook", False),
        ("STANDFAST_KEY", KEY, "key", KEY.encode()),
        ("STANDFAST_DATA_ADDRESS", "10.0.0.0/24", "data_address", "10.0.0.0/24"),
        ("STANDFAST_REPORT_DIR", "/tmp/reports", "report_dir", "/tmp/reports"),
        ("TORCHELASTIC_ERROR_FILE", "/tmp/error.json", "torch_error_file", "/tmp/error.json"),
        ("STANDFAST_LISTEN_FD", "5", "listen_fd", 5),
        ("STANDFAST_LOG_LEVEL", "info", "log_level", "info"),
    ],
)
def test_from_the_environment(variable: str, text: str, name: str, value: object) -> None:
    """Each variable sets its setting, and an argument wins over it."""
    assert getattr(load({}, {variable: text}), name) == value
    default = next(row.default for row in rows() if row.name == name)
    if default is not None:
        assert getattr(load({name: default}, {variable: text}), name) == default


def test_our_variable_wins_over_others() -> None:
    """STANDFAST_ before JACCL_ before MLX_JACCL_."""
    environ = {"MLX_JACCL_PROGRESS_TIMEOUT_S": "30", "JACCL_PROGRESS_TIMEOUT_S": "40"}
    assert load({}, environ).progress_s == 40
    assert load({}, {**environ, "STANDFAST_PROGRESS_TIMEOUT_S": "50"}).progress_s == 50


def test_none_is_not_given() -> None:
    """init() passes on what its caller left out as None."""
    assert load({"fabric": None, "key": None}, {"STANDFAST_FABRIC": "tcp"}).fabric == "tcp"


@pytest.mark.parametrize(
    ("overrides", "environ", "words"),
    [
        (
            {},
            {"STANDFAST_FABRIC": "rdma"},
            "STANDFAST_FABRIC='rdma': must be one of auto, shm, tcp",
        ),
        ({"fabric": 3}, {}, "fabric=3: must be one of"),
        ({}, {"STANDFAST_INIT_TIMEOUT_S": "soon"}, "STANDFAST_INIT_TIMEOUT_S='soon'"),
        ({}, {"STANDFAST_INIT_TIMEOUT_S": "0"}, "above 0"),
        ({}, {"STANDFAST_INIT_TIMEOUT_S": "inf"}, "STANDFAST_INIT_TIMEOUT_S='inf'"),
        ({"init_timeout_s": float("nan")}, {}, "init_timeout_s=nan"),
        ({"init_timeout_s": True}, {}, "init_timeout_s=True"),
        ({"init_timeout_s": 10**400}, {}, "must be a number of seconds"),
        ({}, {"STANDFAST_INIT_TIMEOUT_S": ""}, "STANDFAST_INIT_TIMEOUT_S=''"),
        ({"progress_s": -1}, {}, "must be 0 (off) or at least 1 s"),
        ({"progress_s": 0.5}, {}, "must be 0 (off) or at least 1 s"),
        ({"silence_s": 0.5}, {}, "must be at least 1 s"),
        ({"close_linger_s": -0.1}, {}, "0 or more"),
        ({}, {"STANDFAST_EXCEPTHOOK": "maybe"}, "STANDFAST_EXCEPTHOOK='maybe'"),
        ({}, {"STANDFAST_LISTEN_FD": "-1"}, "STANDFAST_LISTEN_FD='-1'"),
        ({"listen_fd": True}, {}, "listen_fd=True"),
        ({}, {"STANDFAST_REPORT_DIR": " "}, "must not be empty"),
        ({"topolgy": "ring"}, {}, "no setting 'topolgy'"),
        ({"key": 5}, {}, "key: must be bytes or text"),
    ],
)
def test_what_is_wrong_is_named(
    overrides: dict[str, Any], environ: dict[str, str], words: str
) -> None:
    """The message has the argument or variable, its value, and what is wanted."""
    with pytest.raises(ConfigError) as caught:
        load(overrides, environ)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heartbeat_s": 3.0}, "heartbeat_s=3 is not below hint_s=3"),
        ({"hint_s": 30.0}, "hint_s=30 is not below silence_s=20"),
        ({"silence_s": 30.0, "progress_s": 20.0}, "silence_s=30 is above progress_s=20"),
    ],
)
def test_limits_must_grow(changes: dict[str, float], words: str) -> None:
    """Limits that contradict each other are refused, and the whole order is printed."""
    with pytest.raises(ConfigError) as caught:
        load(changes, {})
    assert words in str(caught.value)
    for name in ("heartbeat_s (", "hint_s (", "silence_s (", "progress_s ("):
        assert name in str(caught.value)


def test_many_ranks_beat_less_often_unless_told() -> None:
    """A second is the most with which a hint still comes in time."""
    usual = load({}, {})
    assert usual.heartbeat_for(MANY) == HEARTBEAT_S
    assert usual.heartbeat_for(MANY + 1) == HEARTBEAT_MANY_S
    assert usual.hint_s >= 3 * HEARTBEAT_MANY_S
    assert load({"heartbeat_s": 0.2}, {}).heartbeat_for(1024) == 0.2
    assert load({"hint_s": 0.9}, {}).heartbeat_for(1024) == pytest.approx(0.3)


def test_limits_that_are_not_given_shrink_with_those_that_are() -> None:
    """silence_s=1 or progress_s=1 alone is no contradiction."""
    short = load({"silence_s": 1.0, "progress_s": 1.0}, {})
    assert 0 < 3 * short.heartbeat_s <= short.hint_s < short.silence_s == short.progress_s
    assert load({"progress_s": 1.0}, {}).silence_s == 1.0
    assert load({"progress_s": 100.0}, {}).silence_s == load({}, {}).silence_s == 20.0


def test_a_limit_that_is_off_need_not_be_in_order() -> None:
    """progress_s=0 is no limit at all."""
    assert load({"progress_s": 0}, {}).progress_s == 0


@pytest.mark.parametrize("wrong", ["too short", b"too short", 10**40])
def test_a_wrong_key_is_refused_without_showing_it(wrong: Any) -> None:
    """Neither the message nor the chain of exceptions has the key."""
    with pytest.raises(ConfigError) as caught:
        load({"key": wrong}, {})
    error: BaseException | None = caught.value
    while error is not None:
        assert "too short" not in str(error)
        assert "100000" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_key_never_shows(caplog: pytest.LogCaptureFixture) -> None:
    """Not in a repr, a format, a log line, or the dataclass as a dictionary."""
    settings = load({}, {"STANDFAST_KEY": KEY})
    assert isinstance(settings.key, Secret)
    logging.getLogger("standfast").warning("%s %r", settings.key, settings)
    shown = [
        repr(settings),
        str(settings),
        f"{settings.key}",
        f"{settings.key!r}",
        str(dataclasses.asdict(settings)),
        caplog.text,
        str(agreement(settings)),
    ]
    assert not [text for text in shown if KEY in text]
    assert settings.key == KEY.encode()


def test_what_all_ranks_must_share() -> None:
    """Limits, fabric, topology and beacon; nothing that is a rank's own business, and no key."""
    assert set(agreement(Settings())) == {
        "fabric",
        "topology",
        "verify",
        "heartbeat_s",
        "hint_s",
        "silence_s",
        "progress_s",
        "startup_s",
        "beacon",
    }
