"""The chain of the audit trail: whatever is done to entries that stand, the check names the first that is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import orjson
import pytest

from agenttx_server.audit.chain import AuditEntry, ChainCheck, Deed, Head, chained


def deed(number: int) -> Deed:
    return Deed(1_000 + number, "ann", "ann", "transaction.begin", f"t-{number}", '{"step":1}')


TRAIL = chained(Head(0), [deed(number) for number in range(1, 8)])


def broken(entries: Sequence[AuditEntry], *noted: Head) -> list[tuple[int, int]]:
    check = ChainCheck(noted)
    for entry in entries:
        check.take(entry)
    return [(one.chain, one.sequence) for one in check.end()]


def with_deed(entry: AuditEntry, **changes: object) -> AuditEntry:
    return dataclasses.replace(entry, deed=dataclasses.replace(entry.deed, **changes))


def removed(trail: list[AuditEntry]) -> list[AuditEntry]:
    return trail[:3] + trail[4:]


def removed_and_renumbered(trail: list[AuditEntry]) -> list[AuditEntry]:
    return trail[:3] + [dataclasses.replace(one, sequence=one.sequence - 1) for one in trail[4:]]


def inserted(trail: list[AuditEntry]) -> list[AuditEntry]:
    later = [dataclasses.replace(one, sequence=one.sequence + 1) for one in trail[3:]]
    return [*trail[:3], dataclasses.replace(with_deed(trail[3], subject="t-x")), *later]


def swapped(trail: list[AuditEntry]) -> list[AuditEntry]:
    here, there = trail[3], trail[4]
    moved = [dataclasses.replace(there, sequence=4), dataclasses.replace(here, sequence=5)]
    return [*trail[:3], *moved, *trail[5:]]


def first_removed(trail: list[AuditEntry]) -> list[AuditEntry]:
    return trail[1:]


def test_a_trail_as_it_was_written_holds_and_goes_on():
    assert broken(TRAIL) == []
    last = TRAIL[-1]
    more = chained(Head(0, last.sequence, last.hash), [deed(8)])
    assert broken([*TRAIL, *more], Head(0, last.sequence, last.hash)) == []


@pytest.mark.parametrize(
    ("change", "at"),
    [(removed, 5), (removed_and_renumbered, 4), (inserted, 4), (swapped, 4), (first_removed, 2)],
)
def test_an_entry_taken_out_put_in_or_moved_is_named(
    change: Callable[[list[AuditEntry]], list[AuditEntry]], at: int
):
    assert broken(change(list(TRAIL))) == [(0, at)]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Deed)])
def test_an_entry_of_which_any_field_was_changed_is_named(field: str):
    other: object = 5 if field == "occurred_at" else '{"step":2}' if field == "detail" else "eve"
    entries = [*TRAIL[:3], with_deed(TRAIL[3], **{field: other}), *TRAIL[4:]]
    assert broken(entries) == [(0, 4)]


def test_an_end_that_was_cut_off_shows_against_a_head_that_was_noted():
    last = TRAIL[-1]
    assert broken(TRAIL[:-2]) == []
    assert broken(TRAIL[:-2], Head(0, last.sequence, last.hash)) == [(0, 6)]
    assert broken([], Head(0, last.sequence, last.hash)) == [(0, 1)]
    assert broken(TRAIL, Head(3, 1, last.hash)) == [(3, 1)]


def test_a_chain_written_anew_shows_against_a_head_that_was_noted():
    before = TRAIL[2]
    forged = chained(Head(0, 3, before.hash), [deed(99), *(one.deed for one in TRAIL[4:])])
    assert broken([*TRAIL[:3], *forged]) == []
    assert broken([*TRAIL[:3], *forged], Head(0, 5, TRAIL[4].hash)) == [(0, 5)]


def test_fields_can_not_be_shifted_into_one_another():
    one = chained(Head(0), [Deed(1, "ab", "c", "x", "y")])
    two = chained(Head(0), [Deed(1, "a", "bc", "x", "y")])
    assert one[0].hash != two[0].hash


def test_chains_are_checked_each_by_itself():
    other = chained(Head(1), [deed(1), deed(2)])
    assert broken([*TRAIL, *other]) == []
    assert broken([*TRAIL, with_deed(other[0], actor="eve"), other[1]]) == [(1, 1)]


def test_an_export_is_read_back_as_it_was():
    lines = [orjson.dumps(entry.as_json()) for entry in TRAIL]
    assert [AuditEntry.from_json(line) for line in lines] == TRAIL
    for bad in ("", "{}", "[1]", '{"chain":"x"}'):
        with pytest.raises(ValueError, match="audit export"):
            AuditEntry.from_json(bad)


@pytest.mark.parametrize("text", ["", "0:1", "0:1:abc", "x:1:" + "a" * 64, "-1:1:" + "a" * 64])
def test_what_is_no_head_is_refused(text: str):
    with pytest.raises(ValueError, match=r"head|hash"):
        Head.parse(text)
