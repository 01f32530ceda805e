"""Who may call what: the one table of methods and roles.

A method that is not here is open to nobody; a test driven by the services' descriptors says so first.
Reading and settling are wider for operators and auditors: they see everybody's (``Identity.scope``). What
makes something new is its caller's own, so it is open to agents alone.
"""

from __future__ import annotations

from typing import Final

from agenttx_server.access.identity import Role

__all__ = ["METHOD_ROLES"]

_AGENT: Final = frozenset({Role.AGENT})
_WORKER: Final = frozenset({Role.WORKER})
_OPERATOR: Final = frozenset({Role.OPERATOR})
# What an agent may do to its own, and an operator to anybody's.
_CHANGE: Final = _AGENT | _OPERATOR
_READ: Final = frozenset({Role.AGENT, Role.OPERATOR, Role.AUDITOR})
_OVERSEE: Final = frozenset({Role.OPERATOR, Role.AUDITOR})
_ANY: Final = frozenset(Role)

METHOD_ROLES: Final[dict[str, frozenset[Role]]] = {
    "AgentTxService/BeginTransaction": _AGENT,
    "AgentTxService/ExecuteStep": _AGENT,
    "AgentTxService/ExecuteStepGroup": _AGENT,
    "AgentTxService/ExecuteSteps": _AGENT,
    "AgentTxService/CommitTransaction": _AGENT,
    "AgentTxService/ReportStep": _AGENT,
    "AgentTxService/AcknowledgeUndo": _CHANGE,
    "AgentTxService/Rewind": _CHANGE,
    "AgentTxService/RollbackTransaction": _CHANGE,
    "AgentTxService/CancelStep": _CHANGE,
    # An agent that may approve its own calls, or say what became of them, needs no approval.
    "AgentTxService/Approve": _OPERATOR,
    "AgentTxService/Reject": _OPERATOR,
    "AgentTxService/ResolveStep": _OPERATOR,
    "AgentTxService/RetryCompensation": _OPERATOR,
    "AgentTxService/ResolveCompensation": _OPERATOR,
    "AgentTxService/RequeueEffect": _OPERATOR,
    "AgentTxService/DiscardEffect": _OPERATOR,
    "AgentTxService/ListTools": _ANY,
    "AgentTxService/GetTransaction": _READ,
    "AgentTxService/ListTransactions": _READ,
    "AgentTxService/ListSteps": _READ,
    "AgentTxService/GetDependencyGraph": _READ,
    "AgentTxService/FindRootCause": _READ,
    "AgentTxService/WatchTransaction": _READ,
    "AgentTxService/ListApprovals": _READ,
    "AgentTxService/ListCompensations": _READ,
    "AgentTxService/ListEffects": _READ,
    "AgentTxService/GetState": _READ,
    "AgentTxService/ScanState": _READ,
    "GraphService/ValidateGraph": _READ,
    "GraphService/RegisterGraph": _CHANGE,
    "GraphService/GetGraph": _READ,
    "GraphService/ListGraphs": _READ,
    "GraphService/ExportGraph": _READ,
    "GraphService/DiffGraphs": _READ,
    "GraphService/StartRun": _AGENT,
    "GraphService/StreamRun": _AGENT,
    "GraphService/ResumeRun": _CHANGE,
    "GraphService/RetryRun": _CHANGE,
    "GraphService/RewindRun": _CHANGE,
    "GraphService/CancelRun": _CHANGE,
    "GraphService/DrainRun": _CHANGE,
    "GraphService/GetRun": _READ,
    "GraphService/ListRuns": _READ,
    "GraphService/GetGraphState": _READ,
    "GraphService/ListCheckpoints": _READ,
    "GraphService/UpdateState": _CHANGE,
    "GraphService/ForkThread": _AGENT,
    "GraphService/CopyThread": _AGENT,
    "GraphService/DeleteThread": _CHANGE,
    "GraphService/PruneThread": _CHANGE,
    "GraphService/GetThread": _READ,
    "GraphService/ListThreads": _READ,
    "GraphService/SubscribeEvents": _READ,
    "PipelineService/ValidatePipeline": _READ,
    "PipelineService/RegisterPipeline": _CHANGE,
    "PipelineService/GetPipeline": _READ,
    "PipelineService/ListPipelines": _READ,
    "PipelineService/RunPipeline": _AGENT,
    "PipelineService/GetPipelineRun": _READ,
    "PipelineService/ListPipelineRuns": _READ,
    "PipelineService/ResumePipelineRun": _CHANGE,
    "PipelineService/CancelPipelineRun": _CHANGE,
    "LineageService/GetRecord": _READ,
    "LineageService/ListRecords": _READ,
    "LineageService/ListSiblings": _READ,
    "LineageService/ListAncestors": _READ,
    "LineageService/ListDescendants": _READ,
    "LineageService/ListByRoot": _READ,
    "LineageService/TraceRecord": _READ,
    "LineageService/ListRecordEvents": _READ,
    "LineageService/VerifyLineage": _READ,
    "LineageService/ExportLineage": _READ,
    "AuditService/ListAuditEntries": _OVERSEE,
    "AuditService/VerifyAuditTrail": _OVERSEE,
    "ToolService/Connect": _WORKER,
}
