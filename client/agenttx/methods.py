"""The RPCs that the SDK calls, with their messages.

The generated stubs are typed for grpc.aio only and bind every method of a service; a table of our own serves the
synchronous and the asynchronous client alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from agenttx.v1 import transaction_pb2 as pb

__all__ = [
    "BEGIN_TRANSACTION",
    "COMMIT_TRANSACTION",
    "EXECUTE_STEP",
    "EXECUTE_STEPS",
    "EXECUTE_STEP_GROUP",
    "FIND_ROOT_CAUSE",
    "GET_DEPENDENCY_GRAPH",
    "GET_STATE",
    "GET_TRANSACTION",
    "HEALTH_CHECK",
    "LIST_STEPS",
    "LIST_TOOLS",
    "LIST_TRANSACTIONS",
    "REWIND",
    "ROLLBACK_TRANSACTION",
    "SCAN_STATE",
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
WATCH_TRANSACTION: Final = _of_service(
    "WatchTransaction", pb.WatchTransactionRequest, pb.WatchTransactionResponse
)
GET_STATE: Final = _of_service("GetState", pb.GetStateRequest, pb.GetStateResponse)
SCAN_STATE: Final = _of_service("ScanState", pb.ScanStateRequest, pb.ScanStateResponse)

# HealthCheckRequest {string service = 1} and HealthCheckResponse {ServingStatus status = 1} are wire-equal to these two
# wrappers, which saves the SDK the dependency on grpcio-health-checking.
HEALTH_CHECK: Final = Method("/grpc.health.v1.Health/Check", StringValue, Int32Value)
