"""Keys of outside things: which of them meet, and how they are kept."""

from __future__ import annotations

import pytest

from agenttx_server.engine.records import StateRead
from agenttx_server.engine.touches import Touched, fitted, touch_row, touched_by


def _touched(*keys: str, writes: bool = False) -> Touched:
    return touched_by([touch_row(1, key, writes=writes) for key in keys])


@pytest.mark.parametrize(
    ("one", "other", "meeting"),
    [
        ("file/a", "file/a", "file/a"),
        ("file/a", "file/a/b/c", "file/a/b/c"),
        ("file/a/b/c", "file/a", "file/a/b/c"),
        ("file", "file/a", "file/a"),
        ("file/a", "file/ab", None),
        ("file/a/b", "file/a/c", None),
        ("file/a", "mail/a", None),
    ],
)
def test_a_key_meets_itself_and_all_beneath_it_if_one_side_writes(one, other, meeting):
    for first, second in ((True, True), (True, False), (False, True)):
        assert _touched(one, writes=first).conflict(_touched(other, writes=second)) == meeting
    assert _touched(one).conflict(_touched(other)) is None
    assert _touched(one, writes=True).disturbs(_touched(other)) == (meeting is not None)
    assert not _touched(one).disturbs(_touched(other, writes=True))


def test_the_first_of_several_meetings_is_named():
    assert _touched("f/c", "f/b", writes=True).conflict(_touched("f/c", "f/b", "f/a")) == "f/b"


def test_touches_are_rows_that_no_state_key_can_be_taken_for():
    rows = [
        touch_row(1, "file/a", writes=True),
        touch_row(1, "file/b", writes=False),
        StateRead(1, "file/c", 7),
        StateRead(1, "file/", 0, is_prefix=True),
    ]
    assert touched_by(rows) == Touched(frozenset({"file/a", "file/b"}), frozenset({"file/a"}))
    assert {row.version for row in rows[:2]} == {0}


@pytest.mark.parametrize(
    ("key", "most", "expected"),
    [
        ("file/abc", 8, "file/abc"),
        ("file/abcd", 8, "file"),
        ("file/abc/d", 8, "file/abc"),
        ("file/é/d", 7, "file/é"),
        ("file/é/d", 6, "file"),
        ("no-path-at-all", 8, "no-path-at-all"),
    ],
)
def test_a_key_that_is_too_long_stands_for_a_path_above_it(key, most, expected):
    assert fitted(key, most) == expected
