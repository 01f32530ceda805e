"""The facts the engine works with: ids, enumerations and frozen records.

Everything that crosses a layer is one of these. JSON values travel as canonical text
(``str``; see :mod:`.json_values`), so that a layer which only carries a value never pays
for parsing it and can never change it. Times are UTC microseconds since 1970 (``int``).
"""

from __future__ import annotations

from agenttx_server.engine.records.decisions import (
    Constraint,
    CrashPolicy,
    Decision,
    DependencyKind,
    Edge,
    Hint,
    HintCategory,
    Isolation,
    OnConflict,
    OnUndoFailure,
    PassedOverRung,
    PathElement,
    PathSource,
    Policy,
    RejectedCalls,
    Strategy,
)
from agenttx_server.engine.records.events import EventRecord, EventType
from agenttx_server.engine.records.identities import AttemptKey, MicrosecondsUtc, ServerId, TransactionId
from agenttx_server.engine.records.settlement import (
    ApprovalRecord,
    ApprovalState,
    EffectRecord,
    EffectState,
    UndoRecord,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.records.steps import (
    AttemptRecord,
    AttemptState,
    CommitCheck,
    CommitCheckKind,
    CommittedEntry,
    StateRead,
    StateWrite,
    StepResolution,
    SubStepPlace,
)
from agenttx_server.engine.records.tools import EffectClass, KeptEffect, ToolDescription, ToolLocation
from agenttx_server.engine.records.transactions import (
    HeldState,
    PendingRewind,
    RecordedResponse,
    RewindPurpose,
    RewindRequestKey,
    StopKind,
    StopRequest,
    TransactionRecord,
    TransactionStatus,
)

__all__ = [
    "ApprovalRecord",
    "ApprovalState",
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
    "HeldState",
    "Hint",
    "HintCategory",
    "Isolation",
    "KeptEffect",
    "MicrosecondsUtc",
    "OnConflict",
    "OnUndoFailure",
    "PassedOverRung",
    "PathElement",
    "PathSource",
    "PendingRewind",
    "Policy",
    "RecordedResponse",
    "RejectedCalls",
    "RewindPurpose",
    "RewindRequestKey",
    "ServerId",
    "StateRead",
    "StateWrite",
    "StepResolution",
    "StopKind",
    "StopRequest",
    "Strategy",
    "SubStepPlace",
    "ToolDescription",
    "ToolLocation",
    "TransactionId",
    "TransactionRecord",
    "TransactionStatus",
    "UndoRecord",
    "UndoResolution",
    "UndoState",
]
