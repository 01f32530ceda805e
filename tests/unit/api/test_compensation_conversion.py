"""Undo actions as messages, and what is asked about them as the engine's requests."""

from __future__ import annotations

import pytest

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion import compensations
from agenttx_server.engine.errors import InvalidRequest
from agenttx_server.engine.records import (
    Hint,
    HintCategory,
    MicrosecondsUtc,
    TransactionId,
    UndoRecord,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.requests import CompensationAnswer, CompensationState

RESOLVED = UndoRecord(
    sequence=7,
    step_id=3,
    attempt=2,
    tool_name="book",
    undo_name="unbook",
    arguments='{"entry":"room"}',
    idempotency_key="key",
    registered_at=MicrosecondsUtc(1_000_000),
    state=UndoState.RESOLVED,
    attempts=3,
    hint=Hint("Hint: down.", HintCategory.CONNECTION),
    ended_at=MicrosecondsUtc(2_000_000),
    raw_error="ConnectionError: down",
    late=True,
    resolution=UndoResolution.KEPT,
    note="it stays",
)


def test_everything_known_of_an_undo_action_is_told():
    message = compensations.compensation(TransactionId("t"), RESOLVED, CompensationState.RESOLVED)

    assert {field.name: getattr(message, field.name) for field, _ in message.ListFields()} == {
        "compensation_id": "7",
        "transaction_id": "t",
        "step_id": 3,
        "attempt": 2,
        "tool_name": "book",
        "sequence": 7,
        "action": "unbook",
        "arguments_json": '{"entry":"room"}',
        "state": pb.COMPENSATION_STATE_RESOLVED,
        "tries": 3,
        "hint": "Hint: down.",
        "category": "connection",
        "raw_error": "ConnectionError: down",
        "late_effect": True,
        "idempotency_key": "key",
        "registered_at": message.registered_at,
        "updated_at": message.updated_at,
        "resolution": pb.COMPENSATION_RESOLUTION_KEPT,
        "note": "it stays",
    }
    assert (message.registered_at.seconds, message.updated_at.seconds) == (1, 2)


def test_a_failed_one_in_short_says_whether_its_effect_was_late():
    failed = compensations.failed_compensation(RESOLVED)

    assert (failed.compensation_id, failed.late_effect, failed.failed_at.seconds) == ("7", True, 2)


def test_an_answer_says_where_the_transaction_stands():
    answer = CompensationAnswer(TransactionId("t"), RESOLVED, CompensationState.RESOLVED, True, 4, 9)

    for message in (compensations.retry_response(answer), compensations.resolve_response(answer)):
        assert message.compensation.compensation_id == "7"
        assert (message.rollback_incomplete, message.next_step_id, message.generation) == (True, 4, 9)


def test_a_list_is_of_those_that_need_someone_unless_states_are_given():
    _, by_default, page = compensations.list_request(pb.ListCompensationsRequest())
    _, named, _ = compensations.list_request(
        pb.ListCompensationsRequest(states=[pb.COMPENSATION_STATE_DONE, pb.COMPENSATION_STATE_AWAITING_AGENT])
    )
    _, agents, _ = compensations.list_request(
        pb.ListCompensationsRequest(states=[pb.COMPENSATION_STATE_AWAITING_AGENT])
    )

    assert (by_default, page.limit) == ({CompensationState.FAILED, CompensationState.AWAITING_AGENT}, 100)
    assert named == {CompensationState.DONE, CompensationState.AWAITING_AGENT}
    assert agents == {CompensationState.AWAITING_AGENT}


def test_a_resolution_has_to_be_said():
    request = pb.ResolveCompensationRequest(transaction_id="t", compensation_id="7")
    with pytest.raises(InvalidRequest) as refused:
        compensations.resolve_request(request, "anonymous")
    assert [violation.field for violation in refused.value.violations] == ["resolution"]
