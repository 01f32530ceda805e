"""Which fields of each record are columns of its table (see :mod:`.schema`)."""

from __future__ import annotations

from agenttx_server.engine.records import (
    ApprovalRecord,
    AttemptRecord,
    CommittedEntry,
    EffectRecord,
    EventRecord,
    RecordedResponse,
    StateRead,
    StateWrite,
    TransactionRecord,
    UndoRecord,
)
from agenttx_server.store.record_codec import RecordCodec

__all__ = [
    "APPROVAL",
    "ATTEMPT",
    "COMMITTED",
    "EFFECT",
    "EVENT",
    "RESPONSE",
    "STATE_READ",
    "STATE_WRITE",
    "SUB_STEP",
    "TRANSACTION",
    "UNDO",
]

TRANSACTION = RecordCodec(
    TransactionRecord,
    (
        "transaction_id",
        "principal",
        "agent_id",
        "status",
        "revision",
        "next_step_id",
        "generation",
        "created_at",
        "updated_at",
        "ended_at",
        "commit_version",
        "idle_timeout_us",
        "deadline_at",
        "owner",
        "outbox_owner",
        "outbox_due_at",
    ),
    details=True,
    kept=("policy",),
)
ATTEMPT = RecordCodec(
    AttemptRecord,
    (
        "step_id",
        "attempt",
        "generation",
        "request_id",
        "state",
        "tool_name",
        "resolved_arguments",
        "output",
        "response",
        "raw_context",
    ),
    details=True,
    json_columns=("raw_context",),
)
SUB_STEP = RecordCodec(
    AttemptRecord,
    ("step_id", "sub_step", "attempt", "generation", "state", "tool_name", "output"),
    details=True,
)
STATE_WRITE = RecordCodec(StateWrite, ("step_id", "sequence", "key", "value"), details=False)
STATE_READ = RecordCodec(StateRead, ("step_id", "key", "is_prefix", "version", "sub_step"), details=False)
EFFECT = RecordCodec(
    EffectRecord,
    ("effect_id", "step_id", "sequence", "channel", "state", "payload", "sub_step"),
    details=True,
)
UNDO = RecordCodec(
    UndoRecord, ("sequence", "step_id", "state", "late", "arguments", "sub_step"), details=True
)
APPROVAL = RecordCodec(
    ApprovalRecord, ("sequence", "step_id", "state", "requested_at", "arguments"), details=True
)
EVENT = RecordCodec(
    EventRecord,
    ("sequence", "type", "generation", "occurred_at", "step_id", "attempt", "payload", "sub_step"),
    details=False,
)
RESPONSE = RecordCodec(
    RecordedResponse, ("scope", "request_id", "method", "fingerprint", "response"), details=False
)
COMMITTED = RecordCodec(CommittedEntry, ("key", "value", "version"), details=False)
