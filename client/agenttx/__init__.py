"""AgentTx: transactions for the tool calls of LLM agents.

    import agenttx

    with agenttx.Client("127.0.0.1:50051") as client:
        with client.transaction(agent_id="billing") as tx:
            user = tx.step("record.insert", table="users", record={"id": 7, "name": "Ada"})
            tx.step("kv.put", key="last_user", value=user.ref("id"))

`Client` is synchronous, `AsyncClient` asynchronous; both offer the same. What they raise is in `agenttx.errors`, what
they return in `agenttx.records`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agenttx import errors as errors
    from agenttx import plan as plan
    from agenttx import records as records
    from agenttx.async_client import AsyncClient
    from agenttx.async_step_stream import AsyncStepStream, AsyncSubmittedStep
    from agenttx.async_transaction import AsyncTransaction
    from agenttx.client import Client
    from agenttx.endpoint import Tls
    from agenttx.errors import (
        Aborted,
        AgentTxError,
        ApprovalPending,
        Cancelled,
        ClientClosed,
        CommitConflict,
        ConfigurationError,
        ConnectionFailed,
        DeadlineExceeded,
        InternalError,
        InvalidArgument,
        InvalidValue,
        IrreversibleStep,
        LimitExceeded,
        NotFound,
        NotSupported,
        OutOfRange,
        PermissionDenied,
        PreconditionFailed,
        RequestIdReused,
        RollbackIncomplete,
        RollbackUnanswered,
        RpcError,
        StaleGeneration,
        StepAwaitingApproval,
        StepExecuting,
        StepFailed,
        StepInDoubt,
        StepRolledBack,
        StepSkipped,
        StepUnsettled,
        StreamOpen,
        TransactionAborted,
        TransactionEnded,
        Unauthenticated,
        Unavailable,
        Violation,
        WrongStep,
    )
    from agenttx.plan import Done, RunReport, RunState
    from agenttx.records import (
        AttemptState,
        CommitResult,
        Compensation,
        CompensationState,
        ContextEntry,
        CrashPolicy,
        Decision,
        Dependency,
        DependencyEdge,
        DependencyGraph,
        DependencyKind,
        DependencyNode,
        EffectClass,
        EffectState,
        Event,
        EventType,
        FailedCompensation,
        GraphFormat,
        HealthStatus,
        Isolation,
        KeptEffect,
        OnConflict,
        OnUndoFailure,
        PassedOverRung,
        PathElement,
        PathSource,
        PlannedStep,
        Policy,
        RejectedCalls,
        RewindPlan,
        RewindResult,
        RollbackResult,
        RootCause,
        RunningStep,
        StagedEffect,
        StateEntry,
        StateKey,
        StepAttempt,
        StepOutcome,
        StepStatus,
        Strategy,
        Tool,
        ToolLocation,
        TransactionInfo,
        TransactionStatus,
        TransactionSummary,
    )
    from agenttx.references import Reference, literal
    from agenttx.retry_policy import RetryPolicy
    from agenttx.step import Step, call
    from agenttx.step_stream import StepStream, SubmittedStep
    from agenttx.transaction import Transaction

__all__ = [
    "Aborted",
    "AgentTxError",
    "ApprovalPending",
    "AsyncClient",
    "AsyncStepStream",
    "AsyncSubmittedStep",
    "AsyncTransaction",
    "AttemptState",
    "Cancelled",
    "Client",
    "ClientClosed",
    "CommitConflict",
    "CommitResult",
    "Compensation",
    "CompensationState",
    "ConfigurationError",
    "ConnectionFailed",
    "ContextEntry",
    "CrashPolicy",
    "DeadlineExceeded",
    "Decision",
    "Dependency",
    "DependencyEdge",
    "DependencyGraph",
    "DependencyKind",
    "DependencyNode",
    "Done",
    "EffectClass",
    "EffectState",
    "Event",
    "EventType",
    "FailedCompensation",
    "GraphFormat",
    "HealthStatus",
    "InternalError",
    "InvalidArgument",
    "InvalidValue",
    "IrreversibleStep",
    "Isolation",
    "KeptEffect",
    "LimitExceeded",
    "NotFound",
    "NotSupported",
    "OnConflict",
    "OnUndoFailure",
    "OutOfRange",
    "PassedOverRung",
    "PathElement",
    "PathSource",
    "PermissionDenied",
    "PlannedStep",
    "Policy",
    "PreconditionFailed",
    "Reference",
    "RejectedCalls",
    "RequestIdReused",
    "RetryPolicy",
    "RewindPlan",
    "RewindResult",
    "RollbackIncomplete",
    "RollbackResult",
    "RollbackUnanswered",
    "RootCause",
    "RpcError",
    "RunReport",
    "RunState",
    "RunningStep",
    "StagedEffect",
    "StaleGeneration",
    "StateEntry",
    "StateKey",
    "Step",
    "StepAttempt",
    "StepAwaitingApproval",
    "StepExecuting",
    "StepFailed",
    "StepInDoubt",
    "StepOutcome",
    "StepRolledBack",
    "StepSkipped",
    "StepStatus",
    "StepStream",
    "StepUnsettled",
    "Strategy",
    "StreamOpen",
    "SubmittedStep",
    "Tls",
    "Tool",
    "ToolLocation",
    "Transaction",
    "TransactionAborted",
    "TransactionEnded",
    "TransactionInfo",
    "TransactionStatus",
    "TransactionSummary",
    "Unauthenticated",
    "Unavailable",
    "Violation",
    "WrongStep",
    "call",
    "literal",
]

# Imported when a name of theirs is first used: the `agenttx` command and the server import this package too, and need
# neither gRPC nor the client for it.
_HOMES = (
    "references",
    "step",
    "errors",
    "enumerations",
    "records",
    "retry_policy",
    "endpoint",
    "plan",
    "step_stream",
    "transaction",
    "client",
    "async_step_stream",
    "async_transaction",
    "async_client",
)

if not TYPE_CHECKING:  # A type checker would take any name for granted.

    def __getattr__(name: str) -> object:
        if name in ("errors", "plan", "records", "testing"):
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            for home in _HOMES:
                module = import_module(f"{__name__}.{home}")
                if name in module.__all__:
                    value = globals()[name] = getattr(module, name)
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(globals().keys() | set(__all__))
