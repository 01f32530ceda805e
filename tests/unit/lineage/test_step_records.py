"""Records of a plain transaction's steps, made of its history: what was live, failed, rewound and empty."""

from __future__ import annotations

from typing import Any

from tests.support.store_records import attempt

from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.records import AttemptState, DependencyKind, Edge
from agenttx_server.lineage.ports import RecordChange
from agenttx_server.lineage.records import EventType, Record
from agenttx_server.lineage.step_records import StepLineage
from agenttx_server.lineage.verification import verify_lineage

COMPLETED = AttemptState.COMPLETED


def ran(step: int, number: int = 1, *, of: tuple[int, ...] = (), output: Any = 1, **fields: Any) -> Any:
    """An attempt that refers to the steps ``of``."""
    edges = tuple(Edge(parent, step, "k", "k", DependencyKind.EXPLICIT) for parent in of)
    return attempt(step, number, edges=edges, output=canonical(output), state=COMPLETED, **fields)


def change_of(*attempts: tuple[Any, bool]) -> RecordChange:
    steps = StepLineage("t")
    for one, is_rewound in attempts:
        steps.add(one, is_rewound)
    change = steps.change("alice", 5)
    records = [record for kept in change.batches for record in kept.batch.records]
    edges = [edge for kept in change.batches for edge in kept.batch.edges]
    events = [event for kept in change.batches for event in kept.batch.events]
    assert verify_lineage(records, edges, events, content_grows=False) == []
    return change


def live(change: RecordChange) -> dict[tuple[str, str], Any]:
    return {(event.action, event.input_id): event for kept in change.batches for event in kept.batch.events}


def made(change: RecordChange) -> dict[int, list[Record]]:
    return {kept.step_id: list(kept.batch.records) for kept in change.batches if kept.batch.records}


def test_one_event_tells_of_all_that_a_tool_made_of_a_record():
    change = change_of((ran(1), False), (ran(2, of=(1,)), False), (ran(3, of=(1,)), False))
    first = made(change)[1][0].target_id
    event = live(change)["kv.put", first]
    assert (event.type, len(event.outputs)) == (EventType.FORK, 2)
    assert live(change)["source", first].type is EventType.RECEIVE


def test_a_rewound_attempt_came_of_what_stood_when_it_ran():
    change = change_of(
        (ran(1, 1, generation=1, output="a"), True),
        (ran(1, 2, generation=2, output="a"), False),
        (ran(2, 1, of=(1,), generation=1), True),
        (ran(2, 2, of=(1,), generation=2), False),
    )
    records = made(change)
    assert {step: len(found) for step, found in records.items()} == {1: 1, 2: 1}
    # The output that was undone does not count among identical ones: a run without a rewind has the same guid.
    assert records[1][0].source_guid == made(change_of((ran(1, output="a"), False)))[1][0].source_guid
    flagged = [kept.event for kept in change.rewound_events]
    assert [event.type for event in flagged] == [EventType.RECEIVE, EventType.MODIFY]
    gone = flagged[0].outputs[0]
    assert flagged[1].input_id == gone != records[1][0].target_id
    assert records[2][0].parent_target_id == records[1][0].target_id


def test_failed_steps_and_empty_outputs_leave_events_alone():
    failed = attempt(
        2, state=AttemptState.FAILED, edges=(Edge(1, 2, "k", "k", DependencyKind.EXPLICIT),), tool_name="x"
    )
    empty = ran(3, of=(1,), output={"records": []}, emits_records=True, tool_name="y")
    change = change_of((ran(1), False), (failed, False), (empty, False), (ran(4, of=(3,)), False))
    first = made(change)[1][0].target_id
    assert live(change)["x", first].type is EventType.FAIL
    assert live(change)["y", first].type is EventType.DROP
    # What refers to an output without records came of none.
    assert made(change)[4][0].is_root


def test_equal_values_are_no_descent_and_an_output_is_one_record_unless_the_tool_says_so():
    edge = Edge(1, 2, "k", "k", DependencyKind.IMPLICIT)
    output = {"records": [{"n": 1}, 2]}
    change = change_of(
        (ran(1), False),
        (attempt(2, edges=(edge,), output=canonical(output), state=COMPLETED), False),
        (ran(3, output=output, emits_records=True), False),
    )
    records = made(change)
    assert records[2][0].is_root
    assert records[2][0].content == {"kv.put": output}
    assert [record.content["kv.put"] for record in records[3]] == [{"n": 1}, {"value": 2}]
    assert len({record.version_correlation_id for record in records[3]}) == 2
