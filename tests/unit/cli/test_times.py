"""Times as people read them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from agenttx_server.cli.rendering.times import ago, clock_time, duration, moment, took

NOW = datetime(2026, 7, 3, 14, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "just now"),
        (1, "1 s ago"),
        (59.9, "59 s ago"),
        (125, "2 min ago"),
        (2 * 3600 + 300, "2 h ago"),
        (3 * 86_400, "3 d ago"),
        (-90, "in 1 min"),
    ],
)
def test_how_long_ago(seconds: float, shown: str):
    assert ago(NOW - timedelta(seconds=seconds), NOW) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-0.001, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.012, "12 ms"),
        (1.5, "1.5 s"),
        (2, "2 s"),
        (30, "30 s"),
        (900, "15 min"),
        (3725, "1 h 2 min"),
        (3605, "1 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_how_long_it_takes(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_a_moment_is_shown_in_utc_whatever_zone_it_came_in():
    there = datetime(2026, 7, 3, 16, 3, 12, tzinfo=timezone(timedelta(hours=2)))
    assert moment(there, NOW) == "2026-07-03 14:03:12Z (2 min ago)"
    assert clock_time(there + timedelta(microseconds=7999)) == "14:03:12.007"


def test_a_time_that_is_not_there_is_a_dash():
    assert moment(None, NOW) == "–"
    assert took(NOW, None) == "–"
    assert took(None, NOW) == "–"
