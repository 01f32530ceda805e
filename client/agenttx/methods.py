"""The RPCs that the SDK calls, with their messages.

The generated stubs are typed for grpc.aio only and bind every method of a service; a table of our own serves the
synchronous and the asynchronous client alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from agenttx.v1 import audit_pb2, graph_pb2, lineage_pb2, tool_pb2
from agenttx.v1 import transaction_pb2 as pb

__all__ = [
    "APPROVE",
    "BEGIN_TRANSACTION",
    "CANCEL_PIPELINE_RUN",
    "CANCEL_RUN",
    "CANCEL_STEP",
    "COMMIT_TRANSACTION",
    "CONNECT",
    "COPY_THREAD",
    "DELETE_THREAD",
    "DIFF_GRAPHS",
    "DISCARD_EFFECT",
    "DRAIN_RUN",
    "EXECUTE_STEP",
    "EXECUTE_STEPS",
    "EXECUTE_STEP_GROUP",
    "EXPORT_GRAPH",
    "EXPORT_LINEAGE",
    "FIND_ROOT_CAUSE",
    "FORK_THREAD",
    "GET_DEPENDENCY_GRAPH",
    "GET_GRAPH",
    "GET_GRAPH_STATE",
    "GET_PIPELINE",
    "GET_PIPELINE_RUN",
    "GET_RECORD",
    "GET_RUN",
    "GET_STATE",
    "GET_THREAD",
    "GET_TRANSACTION",
    "HEALTH_CHECK",
    "LIST_ANCESTORS",
    "LIST_APPROVALS",
    "LIST_AUDIT_ENTRIES",
    "LIST_BY_ROOT",
    "LIST_CHECKPOINTS",
    "LIST_COMPENSATIONS",
    "LIST_DESCENDANTS",
    "LIST_EFFECTS",
    "LIST_GRAPHS",
    "LIST_PIPELINES",
    "LIST_PIPELINE_RUNS",
    "LIST_RECORDS",
    "LIST_RECORD_EVENTS",
    "LIST_RUNS",
    "LIST_SIBLINGS",
    "LIST_STEPS",
    "LIST_THREADS",
    "LIST_TOOLS",
    "LIST_TRANSACTIONS",
    "PRUNE_THREAD",
    "REGISTER_GRAPH",
    "REGISTER_PIPELINE",
    "REJECT",
    "REQUEUE_EFFECT",
    "RESOLVE_COMPENSATION",
    "RESOLVE_STEP",
    "RESUME_PIPELINE_RUN",
    "RESUME_RUN",
    "RETRY_COMPENSATION",
    "RETRY_RUN",
    "REWIND",
    "REWIND_RUN",
    "ROLLBACK_TRANSACTION",
    "RUN_PIPELINE",
    "SCAN_STATE",
    "START_RUN",
    "STREAM_RUN",
    "SUBSCRIBE_EVENTS",
    "TRACE_RECORD",
    "UPDATE_STATE",
    "VALIDATE_GRAPH",
    "VALIDATE_PIPELINE",
    "VERIFY_AUDIT_TRAIL",
    "VERIFY_LINEAGE",
    "WATCH_TRANSACTION",
    "Method",
]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """An RPC: its path on the wire and its two messages."""

    path: str
    request: type[RequestT]
    response: type[ResponseT]

    @property
    def name(self) -> str:
        """The RPC's name, such as `ExecuteStep`."""
        return self.path.rpartition("/")[2]


def _of_service(name: str, request: type[RequestT], response: type[ResponseT]) -> Method[RequestT, ResponseT]:
    return Method(f"/agenttx.v1.AgentTxService/{name}", request, response)


BEGIN_TRANSACTION: Final = _of_service(
    "BeginTransaction", pb.BeginTransactionRequest, pb.BeginTransactionResponse
)
EXECUTE_STEP: Final = _of_service("ExecuteStep", pb.ExecuteStepRequest, pb.ExecuteStepResponse)
EXECUTE_STEP_GROUP: Final = _of_service(
    "ExecuteStepGroup", pb.ExecuteStepGroupRequest, pb.ExecuteStepGroupResponse
)
EXECUTE_STEPS: Final = _of_service("ExecuteSteps", pb.ExecuteStepsRequest, pb.ExecuteStepsResponse)
LIST_TOOLS: Final = _of_service("ListTools", pb.ListToolsRequest, pb.ListToolsResponse)
REWIND: Final = _of_service("Rewind", pb.RewindRequest, pb.RewindResponse)
COMMIT_TRANSACTION: Final = _of_service(
    "CommitTransaction", pb.CommitTransactionRequest, pb.CommitTransactionResponse
)
ROLLBACK_TRANSACTION: Final = _of_service(
    "RollbackTransaction", pb.RollbackTransactionRequest, pb.RollbackTransactionResponse
)
GET_TRANSACTION: Final = _of_service("GetTransaction", pb.GetTransactionRequest, pb.GetTransactionResponse)
LIST_TRANSACTIONS: Final = _of_service(
    "ListTransactions", pb.ListTransactionsRequest, pb.ListTransactionsResponse
)
LIST_STEPS: Final = _of_service("ListSteps", pb.ListStepsRequest, pb.ListStepsResponse)
GET_DEPENDENCY_GRAPH: Final = _of_service(
    "GetDependencyGraph", pb.GetDependencyGraphRequest, pb.GetDependencyGraphResponse
)
FIND_ROOT_CAUSE: Final = _of_service("FindRootCause", pb.FindRootCauseRequest, pb.FindRootCauseResponse)
LIST_COMPENSATIONS: Final = _of_service(
    "ListCompensations", pb.ListCompensationsRequest, pb.ListCompensationsResponse
)
RETRY_COMPENSATION: Final = _of_service(
    "RetryCompensation", pb.RetryCompensationRequest, pb.RetryCompensationResponse
)
RESOLVE_COMPENSATION: Final = _of_service(
    "ResolveCompensation", pb.ResolveCompensationRequest, pb.ResolveCompensationResponse
)
REPORT_STEP: Final = _of_service("ReportStep", pb.ReportStepRequest, pb.ReportStepResponse)
ACKNOWLEDGE_UNDO: Final = _of_service(
    "AcknowledgeUndo", pb.AcknowledgeUndoRequest, pb.AcknowledgeUndoResponse
)
CANCEL_STEP: Final = _of_service("CancelStep", pb.CancelStepRequest, pb.CancelStepResponse)
RESOLVE_STEP: Final = _of_service("ResolveStep", pb.ResolveStepRequest, pb.ResolveStepResponse)
LIST_APPROVALS: Final = _of_service("ListApprovals", pb.ListApprovalsRequest, pb.ListApprovalsResponse)
APPROVE: Final = _of_service("Approve", pb.ApproveRequest, pb.ApproveResponse)
REJECT: Final = _of_service("Reject", pb.RejectRequest, pb.RejectResponse)
LIST_EFFECTS: Final = _of_service("ListEffects", pb.ListEffectsRequest, pb.ListEffectsResponse)
REQUEUE_EFFECT: Final = _of_service("RequeueEffect", pb.RequeueEffectRequest, pb.RequeueEffectResponse)
DISCARD_EFFECT: Final = _of_service("DiscardEffect", pb.DiscardEffectRequest, pb.DiscardEffectResponse)
WATCH_TRANSACTION: Final = _of_service(
    "WatchTransaction", pb.WatchTransactionRequest, pb.WatchTransactionResponse
)
GET_STATE: Final = _of_service("GetState", pb.GetStateRequest, pb.GetStateResponse)
SCAN_STATE: Final = _of_service("ScanState", pb.ScanStateRequest, pb.ScanStateResponse)


def _of_graphs(name: str, request: type[RequestT], response: type[ResponseT]) -> Method[RequestT, ResponseT]:
    return Method(f"/agenttx.v1.GraphService/{name}", request, response)


VALIDATE_GRAPH: Final = _of_graphs(
    "ValidateGraph", graph_pb2.ValidateGraphRequest, graph_pb2.ValidateGraphResponse
)
REGISTER_GRAPH: Final = _of_graphs(
    "RegisterGraph", graph_pb2.RegisterGraphRequest, graph_pb2.RegisterGraphResponse
)
GET_GRAPH: Final = _of_graphs("GetGraph", graph_pb2.GetGraphRequest, graph_pb2.GetGraphResponse)
LIST_GRAPHS: Final = _of_graphs("ListGraphs", graph_pb2.ListGraphsRequest, graph_pb2.ListGraphsResponse)
EXPORT_GRAPH: Final = _of_graphs("ExportGraph", graph_pb2.ExportGraphRequest, graph_pb2.ExportGraphResponse)
DIFF_GRAPHS: Final = _of_graphs("DiffGraphs", graph_pb2.DiffGraphsRequest, graph_pb2.DiffGraphsResponse)

START_RUN: Final = _of_graphs("StartRun", graph_pb2.StartRunRequest, graph_pb2.StartRunResponse)
STREAM_RUN: Final = _of_graphs("StreamRun", graph_pb2.StreamRunRequest, graph_pb2.StreamRunResponse)
SUBSCRIBE_EVENTS: Final = _of_graphs(
    "SubscribeEvents", graph_pb2.SubscribeEventsRequest, graph_pb2.SubscribeEventsResponse
)
RESUME_RUN: Final = _of_graphs("ResumeRun", graph_pb2.ResumeRunRequest, graph_pb2.ResumeRunResponse)
RETRY_RUN: Final = _of_graphs("RetryRun", graph_pb2.RetryRunRequest, graph_pb2.RetryRunResponse)
REWIND_RUN: Final = _of_graphs("RewindRun", graph_pb2.RewindRunRequest, graph_pb2.RewindRunResponse)
CANCEL_RUN: Final = _of_graphs("CancelRun", graph_pb2.CancelRunRequest, graph_pb2.CancelRunResponse)
DRAIN_RUN: Final = _of_graphs("DrainRun", graph_pb2.DrainRunRequest, graph_pb2.DrainRunResponse)
GET_RUN: Final = _of_graphs("GetRun", graph_pb2.GetRunRequest, graph_pb2.GetRunResponse)
LIST_RUNS: Final = _of_graphs("ListRuns", graph_pb2.ListRunsRequest, graph_pb2.ListRunsResponse)
GET_GRAPH_STATE: Final = _of_graphs(
    "GetGraphState", graph_pb2.GetGraphStateRequest, graph_pb2.GetGraphStateResponse
)
LIST_CHECKPOINTS: Final = _of_graphs(
    "ListCheckpoints", graph_pb2.ListCheckpointsRequest, graph_pb2.ListCheckpointsResponse
)
UPDATE_STATE: Final = _of_graphs("UpdateState", graph_pb2.UpdateStateRequest, graph_pb2.UpdateStateResponse)
FORK_THREAD: Final = _of_graphs("ForkThread", graph_pb2.ForkThreadRequest, graph_pb2.ForkThreadResponse)
COPY_THREAD: Final = _of_graphs("CopyThread", graph_pb2.CopyThreadRequest, graph_pb2.CopyThreadResponse)
DELETE_THREAD: Final = _of_graphs(
    "DeleteThread", graph_pb2.DeleteThreadRequest, graph_pb2.DeleteThreadResponse
)
PRUNE_THREAD: Final = _of_graphs("PruneThread", graph_pb2.PruneThreadRequest, graph_pb2.PruneThreadResponse)
GET_THREAD: Final = _of_graphs("GetThread", graph_pb2.GetThreadRequest, graph_pb2.GetThreadResponse)
LIST_THREADS: Final = _of_graphs("ListThreads", graph_pb2.ListThreadsRequest, graph_pb2.ListThreadsResponse)


def _of_pipelines(
    name: str, request: type[RequestT], response: type[ResponseT]
) -> Method[RequestT, ResponseT]:
    return Method(f"/agenttx.v1.PipelineService/{name}", request, response)


VALIDATE_PIPELINE: Final = _of_pipelines(
    "ValidatePipeline", lineage_pb2.ValidatePipelineRequest, lineage_pb2.ValidatePipelineResponse
)
REGISTER_PIPELINE: Final = _of_pipelines(
    "RegisterPipeline", lineage_pb2.RegisterPipelineRequest, lineage_pb2.RegisterPipelineResponse
)
GET_PIPELINE: Final = _of_pipelines(
    "GetPipeline", lineage_pb2.GetPipelineRequest, lineage_pb2.GetPipelineResponse
)
LIST_PIPELINES: Final = _of_pipelines(
    "ListPipelines", lineage_pb2.ListPipelinesRequest, lineage_pb2.ListPipelinesResponse
)
RUN_PIPELINE: Final = _of_pipelines(
    "RunPipeline", lineage_pb2.RunPipelineRequest, lineage_pb2.RunPipelineResponse
)
GET_PIPELINE_RUN: Final = _of_pipelines(
    "GetPipelineRun", lineage_pb2.GetPipelineRunRequest, lineage_pb2.GetPipelineRunResponse
)
LIST_PIPELINE_RUNS: Final = _of_pipelines(
    "ListPipelineRuns", lineage_pb2.ListPipelineRunsRequest, lineage_pb2.ListPipelineRunsResponse
)
RESUME_PIPELINE_RUN: Final = _of_pipelines(
    "ResumePipelineRun", lineage_pb2.ResumePipelineRunRequest, lineage_pb2.ResumePipelineRunResponse
)
CANCEL_PIPELINE_RUN: Final = _of_pipelines(
    "CancelPipelineRun", lineage_pb2.CancelPipelineRunRequest, lineage_pb2.CancelPipelineRunResponse
)


def _of_lineage(name: str, request: type[RequestT], response: type[ResponseT]) -> Method[RequestT, ResponseT]:
    return Method(f"/agenttx.v1.LineageService/{name}", request, response)


GET_RECORD: Final = _of_lineage("GetRecord", lineage_pb2.GetRecordRequest, lineage_pb2.GetRecordResponse)
LIST_RECORDS: Final = _of_lineage(
    "ListRecords", lineage_pb2.ListRecordsRequest, lineage_pb2.ListRecordsResponse
)
LIST_SIBLINGS: Final = _of_lineage(
    "ListSiblings", lineage_pb2.ListSiblingsRequest, lineage_pb2.ListSiblingsResponse
)
LIST_ANCESTORS: Final = _of_lineage(
    "ListAncestors", lineage_pb2.ListAncestorsRequest, lineage_pb2.ListAncestorsResponse
)
LIST_DESCENDANTS: Final = _of_lineage(
    "ListDescendants", lineage_pb2.ListDescendantsRequest, lineage_pb2.ListDescendantsResponse
)
LIST_BY_ROOT: Final = _of_lineage("ListByRoot", lineage_pb2.ListByRootRequest, lineage_pb2.ListByRootResponse)
TRACE_RECORD: Final = _of_lineage(
    "TraceRecord", lineage_pb2.TraceRecordRequest, lineage_pb2.TraceRecordResponse
)
LIST_RECORD_EVENTS: Final = _of_lineage(
    "ListRecordEvents", lineage_pb2.ListRecordEventsRequest, lineage_pb2.ListRecordEventsResponse
)
VERIFY_LINEAGE: Final = _of_lineage(
    "VerifyLineage", lineage_pb2.VerifyLineageRequest, lineage_pb2.VerifyLineageResponse
)
EXPORT_LINEAGE: Final = _of_lineage(
    "ExportLineage", lineage_pb2.ExportLineageRequest, lineage_pb2.ExportLineageResponse
)

CONNECT: Final = Method("/agenttx.v1.ToolService/Connect", tool_pb2.ConnectRequest, tool_pb2.ConnectResponse)

# HealthCheckRequest {string service = 1} and HealthCheckResponse {ServingStatus status = 1} are wire-equal to these two
# wrappers, which saves the SDK the dependency on grpcio-health-checking.
HEALTH_CHECK: Final = Method("/grpc.health.v1.Health/Check", StringValue, Int32Value)


def _of_audit(name: str, request: type[RequestT], response: type[ResponseT]) -> Method[RequestT, ResponseT]:
    return Method(f"/agenttx.v1.AuditService/{name}", request, response)


LIST_AUDIT_ENTRIES: Final = _of_audit(
    "ListAuditEntries", audit_pb2.ListAuditEntriesRequest, audit_pb2.ListAuditEntriesResponse
)
VERIFY_AUDIT_TRAIL: Final = _of_audit(
    "VerifyAuditTrail", audit_pb2.VerifyAuditTrailRequest, audit_pb2.VerifyAuditTrailResponse
)
