"""The checker of serial orders finds what it is there for."""

from __future__ import annotations

import pytest
from tests.support.serial_order import Committed, find_anomalies


def _kinds(history: list[Committed], final: dict[str, list[int]], *, serializable: bool = True) -> list[str]:
    return [anomaly.kind for anomaly in find_anomalies(history, final, serializable=serializable)]


def test_a_serial_history_has_nothing_wrong() -> None:
    history = [
        Committed("a", {"x": []}, {"x": [1]}),
        Committed("b", {"x": [1], "y": []}, {"y": [2]}),
        Committed("c", {"x": [1], "y": [2]}, {"x": [3, 4]}),
        Committed("d", {"x": [1]}),
    ]
    assert _kinds(history, {"x": [1, 3, 4], "y": [2]}) == []


def test_write_skew_is_a_cycle_that_only_serializable_forbids() -> None:
    history = [Committed("a", {"x": [], "y": []}, {"x": [1]}), Committed("b", {"x": [], "y": []}, {"y": [2]})]
    final = {"x": [1], "y": [2]}
    assert _kinds(history, final) == ["cycle"]
    assert _kinds(history, final, serializable=False) == []


def test_a_cycle_of_reads_of_writes_is_forbidden_everywhere() -> None:
    history = [Committed("a", {"y": [2]}, {"x": [1]}), Committed("b", {"x": [1]}, {"y": [2]})]
    assert _kinds(history, {"x": [1], "y": [2]}, serializable=False) == ["cycle"]


@pytest.mark.parametrize(
    ("history", "final", "kind"),
    [
        ([Committed("a", {}, {"x": [1]})], {"x": []}, "lost append"),
        ([Committed("a", {}, {"x": [1]})], {"x": [1, 1]}, "doubled append"),
        ([], {"x": [7]}, "append of nobody"),
        ([Committed("a", {}, {"x": [1]}), Committed("b", {"x": [2]})], {"x": [1]}, "read of what was not"),
    ],
)
def test_what_never_was_or_is_gone_is_told(
    history: list[Committed], final: dict[str, list[int]], kind: str
) -> None:
    assert _kinds(history, final) == [kind]
