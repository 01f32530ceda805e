"""The facts the engine works with: ids, enumerations and frozen records.

Everything that crosses a layer is one of these. JSON values travel as canonical text
(``str``; see :mod:`.json_values`), so that a layer which only carries a value never pays
for parsing it and can never change it. Times are UTC microseconds since 1970 (``int``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import NewType

__all__ = [
    "AttemptKey",
    "AttemptRecord",
    "AttemptState",
    "CommitCheck",
    "CommitCheckKind",
    "CommittedEntry",
    "Constraint",
    "CrashPolicy",
    "Decision",
    "DependencyKind",
    "Edge",
    "EffectClass",
    "EffectRecord",
    "EffectState",
    "EventRecord",
    "EventType",
    "Hint",
    "HintCategory",
    "Isolation",
    "KeptEffect",
    "MicrosecondsUtc",
    "OnConflict",
    "OnUndoFailure",
    "PassedOverRung",
    "PathElement",
    "PendingRewind",
    "Policy",
    "RecordedResponse",
    "RejectedCalls",
    "RewindPurpose",
    "StateRead",
    "StateWrite",
    "Strategy",
    "ToolDescription",
    "ToolLocation",
    "TransactionId",
    "TransactionRecord",
    "TransactionStatus",
    "UndoRecord",
    "UndoState",
]

TransactionId = NewType("TransactionId", str)
MicrosecondsUtc = NewType("MicrosecondsUtc", int)


class HintCategory(StrEnum):
    """What kind of mistake a failed step was; the closed list of Clean Hints."""

    FOREIGN_KEY_VIOLATION = "foreign_key_violation"
    UNIQUE_VIOLATION = "unique_violation"
    NOT_NULL_VIOLATION = "not_null_violation"
    CHECK_VIOLATION = "check_violation"
    MISSING_SCHEMA_OBJECT = "missing_schema_object"
    MISSING_RECORD = "missing_record"
    MISSING_ARGUMENT = "missing_argument"
    MISSING_KEY = "missing_key"
    NULL_REFERENCE = "null_reference"
    INVALID_VALUE = "invalid_value"
    INVALID_JSON = "invalid_json"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    AUTHENTICATION = "authentication"
    RATE_LIMITED = "rate_limited"
    HTTP_CLIENT_ERROR = "http_client_error"
    HTTP_SERVER_ERROR = "http_server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    UNKNOWN_TOOL = "unknown_tool"
    UNRESOLVED_REFERENCE = "unresolved_reference"
    CONFLICT = "conflict"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CANCELLED = "cancelled"
    ASSERTION = "assertion"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Hint:
    """One true line about a failure, for the agent.

    ``text`` begins with ``Hint: `` and is one line of at most 240 characters. ``keys`` are
    the offending columns, fields or arguments, most telling first; empty when the error
    names none. ``rule`` is the rule that read the error, None for the fallback line.
    """

    text: str
    category: HintCategory
    rule: str | None = None
    keys: tuple[str, ...] = ()
