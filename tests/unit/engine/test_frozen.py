"""Copies of records with some fields changed."""

from __future__ import annotations

import dataclasses
from dataclasses import field

import pytest

from agenttx_server.engine import frozen


@frozen.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    names: tuple[str, ...] = field(default=())


@dataclasses.dataclass(frozen=True)
class Named:
    kind: str = field(default="fixed", init=False)
    name: str = ""
    number: int = 0


def test_a_copy_differs_in_what_was_named_alone() -> None:
    point = Point(1, names=("a",))
    assert frozen.replace(point, y=5) == Point(1, 5, ("a",))
    assert point == Point(1, 2, ("a",))


def test_a_record_that_is_frozen_at_run_time_is_copied_too_without_what_it_is_not_made_with() -> None:
    copy = frozen.replace(Named("x", 1), number=2)
    assert (copy.kind, copy.name, copy.number) == ("fixed", "x", 2)


def test_a_field_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        frozen.replace(Point(1), z=5)  # type: ignore[call-arg]
