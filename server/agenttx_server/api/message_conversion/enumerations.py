"""The wire's enumerations beside the engine's: equal names, one with a prefix, one without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from agenttx.v1 import event_pb2, graph_pb2, lineage_pb2, transaction_pb2
from agenttx_server.engine.records import (
    ApprovalState,
    AttemptState,
    CrashPolicy,
    DependencyKind,
    EffectClass,
    EffectState,
    EventType,
    Isolation,
    OnConflict,
    OnUndoFailure,
    PathSource,
    RejectedCalls,
    StepResolution,
    Strategy,
    ToolLocation,
    UndoResolution,
)
from agenttx_server.engine.requests import CompensationState, StepStatus
from agenttx_server.graphs.runs.event_choice import EventMode
from agenttx_server.graphs.runs.records import CheckpointSource, RunStatus
from agenttx_server.lineage.records import EventType as RecordEventType
from agenttx_server.pipelines.records import PipelineRunStatus

__all__ = ["PAIRS", "WireEnumeration", "from_wire", "to_wire"]

E = TypeVar("E", bound=StrEnum)


class WireEnumeration(Protocol):
    """A generated enumeration."""

    DESCRIPTOR: Any

    def Value(self, name: str) -> Any:
        """Return the number of a name; raise ValueError if there is none."""

    def values(self) -> Sequence[Any]:
        """Return the numbers that have a name."""


# The engine's enumeration, the wire's, and the prefix of its values.
PAIRS: tuple[tuple[type[StrEnum], WireEnumeration, str], ...] = (
    (ApprovalState, transaction_pb2.ApprovalState, "APPROVAL_STATE_"),
    (AttemptState, transaction_pb2.StepAttemptState, "STEP_ATTEMPT_STATE_"),
    (CheckpointSource, graph_pb2.CheckpointSource, "CHECKPOINT_SOURCE_"),
    (CompensationState, transaction_pb2.CompensationState, "COMPENSATION_STATE_"),
    (CrashPolicy, transaction_pb2.CrashPolicy, "CRASH_POLICY_"),
    (DependencyKind, transaction_pb2.DependencyKind, "DEPENDENCY_KIND_"),
    (EffectClass, transaction_pb2.EffectClass, "EFFECT_CLASS_"),
    (EventType, event_pb2.EventType, "EVENT_TYPE_"),
    (Isolation, transaction_pb2.Isolation, "ISOLATION_"),
    (OnConflict, transaction_pb2.OnConflict, "ON_CONFLICT_"),
    (OnUndoFailure, transaction_pb2.OnUndoFailure, "ON_UNDO_FAILURE_"),
    (PathSource, transaction_pb2.RootCausePathSource, "ROOT_CAUSE_PATH_SOURCE_"),
    (PipelineRunStatus, lineage_pb2.PipelineRunStatus, "PIPELINE_RUN_STATUS_"),
    (RecordEventType, lineage_pb2.RecordEventType, "RECORD_EVENT_TYPE_"),
    (RejectedCalls, transaction_pb2.RejectedCalls, "REJECTED_CALLS_"),
    (RunStatus, graph_pb2.RunStatus, "RUN_STATUS_"),
    (EventMode, graph_pb2.EventMode, "EVENT_MODE_"),
    (StepResolution, transaction_pb2.StepResolution, "STEP_RESOLUTION_"),
    (StepStatus, transaction_pb2.StepStatus, "STEP_STATUS_"),
    (Strategy, transaction_pb2.RollbackStrategy, "ROLLBACK_STRATEGY_"),
    (EffectState, transaction_pb2.EffectState, "EFFECT_STATE_"),
    (ToolLocation, transaction_pb2.ToolLocation, "TOOL_LOCATION_"),
    (UndoResolution, transaction_pb2.CompensationResolution, "COMPENSATION_RESOLUTION_"),
)

# A table an enumeration: values of different ones are equal strings (ABORT of three of them).
_TO_WIRE: Mapping[type[StrEnum], Mapping[StrEnum, int]] = {
    engine: {member: wire.Value(prefix + member.value) for member in engine} for engine, wire, prefix in PAIRS
}
_FROM_WIRE: Mapping[type[StrEnum], Mapping[int, StrEnum]] = {
    engine: {number: member for member, number in numbers.items()} for engine, numbers in _TO_WIRE.items()
}


def to_wire(member: StrEnum) -> Any:
    """Return the number of an engine value, to be assigned to a field of the wire's enumeration."""
    return _TO_WIRE[type(member)][member]


def from_wire(engine: type[E], number: int) -> E | None:
    """Return the engine's value for a number; None for one that it doesn't have, 0 included."""
    return _FROM_WIRE[engine].get(number)  # type: ignore[return-value]
