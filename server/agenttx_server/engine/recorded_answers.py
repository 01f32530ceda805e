"""Final answers of changing calls other than steps, as recorded under their request_id.

A repeat of the request gets the recorded answer; another request under the same id is
refused, with both fingerprints named.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from agenttx_server.engine.errors import RequestIdReused
from agenttx_server.engine.records import (
    Hint,
    HintCategory,
    RecordedResponse,
    TransactionStatus,
    UndoRecord,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.requests import CommitAnswer, CompensationAnswer, CompensationState, RewindAnswer
from agenttx_server.engine.step_answers import fields_to_json, kept_effects_from

__all__ = [
    "check_same_request",
    "commit_from",
    "compensation_from",
    "fingerprint",
    "record_commit",
    "record_compensation",
    "record_response",
    "record_rewind",
    "rewind_from",
    "same_request",
]


def fingerprint(*parts: str) -> str:
    """Return the identity of a request: a hash over its parts, each of which may hold anything."""
    text = "".join([f"{len(part)}:{part}" for part in parts])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_same_request(request_id: str, recorded: str, received: str) -> None:
    """Raise RequestIdReused unless both fingerprints are equal."""
    if recorded != received:
        raise RequestIdReused(request_id, recorded[:12], received[:12])


def same_request(
    recorded: RecordedResponse | None, request_id: str, method: str, identity: str
) -> RecordedResponse:
    """Return what is recorded under a request id. Raises RequestIdReused unless it was for this very request."""
    if recorded is None:
        raise RequestIdReused(request_id, "another kind of request", identity[:12])
    if recorded.method != method:
        raise RequestIdReused(request_id, recorded.method, method)
    check_same_request(request_id, recorded.fingerprint, identity)
    return recorded


def record_response(scope: str, request_id: str, method: str, identity: str, values: Any) -> RecordedResponse:
    """Return the row for an answer; ``values`` is plain JSON."""
    text = orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
    return RecordedResponse(scope, request_id, method, identity, text)


def record_rewind(
    scope: str, request_id: str, method: str, identity: str, answer: RewindAnswer
) -> RecordedResponse:
    """Return the row for the end of a rewind or an abort."""
    return record_response(scope, request_id, method, identity, fields_to_json(answer))


def rewind_from(recorded: RecordedResponse) -> RewindAnswer:
    """Return a recorded rewind's answer."""
    values = orjson.loads(recorded.response)
    return RewindAnswer(
        status=TransactionStatus(values["status"]),
        next_step_id=values["next_step_id"],
        generation=values["generation"],
        compensations_run=values.get("compensations_run", 0),
        compensation_errors=tuple(values.get("compensation_errors", ())),
        kept_effects=kept_effects_from(values),
    )


def record_commit(scope: str, request_id: str, identity: str, answer: CommitAnswer) -> RecordedResponse:
    """Return the row for a commit's answer."""
    return record_response(scope, request_id, "CommitTransaction", identity, fields_to_json(answer))


def commit_from(recorded: RecordedResponse) -> CommitAnswer:
    """Return a recorded commit's answer."""
    values = orjson.loads(recorded.response)
    return CommitAnswer(
        steps_committed=values["steps_committed"],
        effects_dispatched=values["effects_dispatched"],
        dispatch_errors=tuple(values["dispatch_errors"]),
        effects_pending=values["effects_pending"],
        keys_published=values["keys_published"],
        commit_version=values["commit_version"],
    )


def record_compensation(
    scope: str, request_id: str, method: str, identity: str, answer: CompensationAnswer
) -> RecordedResponse:
    """Return the row for the answer to a retry or a resolution of an undo action."""
    return record_response(scope, request_id, method, identity, fields_to_json(answer))


def compensation_from(recorded: RecordedResponse) -> CompensationAnswer:
    """Return a recorded answer to a retry or a resolution."""
    values = orjson.loads(recorded.response)
    undo = values.pop("undo")
    hint = undo.pop("hint", None)
    state, resolution = undo.pop("state", UndoState.PENDING), undo.pop("resolution", None)
    return CompensationAnswer(
        undo=UndoRecord(
            **undo,
            state=UndoState(state),
            resolution=UndoResolution(resolution) if resolution else None,
            hint=_hint_from(hint) if hint else None,
        ),
        state=CompensationState(values.pop("state")),
        **values,
    )


def _hint_from(values: dict[str, Any]) -> Hint:
    return Hint(
        values["text"], HintCategory(values["category"]), values.get("rule"), tuple(values.get("keys", ()))
    )
