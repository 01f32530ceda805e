"""What can be read of the server, as operations for either client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from google.protobuf.wrappers_pb2 import StringValue

from agenttx import message_conversion as conversion
from agenttx import records
from agenttx.errors import NotFound
from agenttx.methods import (
    FIND_ROOT_CAUSE,
    GET_DEPENDENCY_GRAPH,
    GET_STATE,
    GET_TRANSACTION,
    HEALTH_CHECK,
    LIST_STEPS,
    LIST_TOOLS,
    LIST_TRANSACTIONS,
    SCAN_STATE,
)
from agenttx.operation import Operation, invoke
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import count, member

__all__ = [
    "Page",
    "dependency_graph",
    "drawn_dependency_graph",
    "get_state",
    "get_transaction",
    "health",
    "list_steps",
    "list_tools",
    "list_transactions",
    "root_cause",
    "scan_state",
]

T = TypeVar("T")

_HEALTH_STATUS = (
    records.HealthStatus.UNKNOWN,
    records.HealthStatus.SERVING,
    records.HealthStatus.NOT_SERVING,
    records.HealthStatus.SERVICE_UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some entries of a list, and where the next ones are; empty at the end."""

    entries: tuple[T, ...]
    next_page_token: str


def get_transaction(transaction_id: str) -> Operation[records.TransactionInfo]:
    """Read one transaction."""
    request = pb.GetTransactionRequest(transaction_id=transaction_id)
    return conversion.transaction_info((yield from invoke(GET_TRANSACTION, request)))


def list_transactions(
    token: str,
    *,
    statuses: Iterable[str],
    agent_id: str,
    metadata: Mapping[str, str] | None,
    created_from: datetime | None,
    created_before: datetime | None,
    page_size: int,
) -> Operation[Page[records.TransactionSummary]]:
    """Read one page of transactions."""
    request = pb.ListTransactionsRequest(
        statuses=[str(status) for status in statuses],
        agent_id=agent_id,
        metadata=metadata,
        created_from=conversion.timestamp(created_from),
        created_before=conversion.timestamp(created_before),
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_TRANSACTIONS, request)
    return Page(
        tuple(conversion.transaction_summary(entry) for entry in answer.transactions), answer.next_page_token
    )


def list_steps(
    token: str, *, transaction_id: str, step_id: int, include_rewound: bool, page_size: int
) -> Operation[Page[records.StepAttempt]]:
    """Read one page of a transaction's attempts."""
    request = pb.ListStepsRequest(
        transaction_id=transaction_id,
        step_id=count("step_id", step_id),
        include_rewound=include_rewound,
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_STEPS, request)
    return Page(tuple(conversion.step_attempt(entry) for entry in answer.attempts), answer.next_page_token)


def list_tools(token: str, *, page_size: int) -> Operation[Page[records.Tool]]:
    """Read one page of the tools."""
    request = pb.ListToolsRequest(page_size=count("page_size", page_size), page_token=token)
    answer = yield from invoke(LIST_TOOLS, request)
    return Page(tuple(conversion.tool(entry) for entry in answer.tools), answer.next_page_token)


def scan_state(
    token: str, *, prefix: str, namespace: str, page_size: int
) -> Operation[Page[records.StateEntry]]:
    """Read one page of the committed state."""
    request = pb.ScanStateRequest(
        namespace=namespace, prefix=prefix, page_size=count("page_size", page_size), page_token=token
    )
    answer = yield from invoke(SCAN_STATE, request)
    return Page(tuple(conversion.state_entry(entry) for entry in answer.entries), answer.next_page_token)


def get_state(key: str, *, namespace: str) -> Operation[records.StateEntry]:
    """Read one key of the committed state."""
    answer = yield from invoke(GET_STATE, pb.GetStateRequest(namespace=namespace, key=key))
    return conversion.state_entry(answer.entry)


def dependency_graph(
    transaction_id: str, *, first_step: int, last_step: int
) -> Operation[records.DependencyGraph]:
    """Read a dependency graph as records."""
    request = pb.GetDependencyGraphRequest(
        transaction_id=transaction_id,
        format=pb.DEPENDENCY_GRAPH_FORMAT_PROTO,
        first_step=count("first_step", first_step),
        last_step=count("last_step", last_step),
    )
    return conversion.dependency_graph((yield from invoke(GET_DEPENDENCY_GRAPH, request)))


def drawn_dependency_graph(
    transaction_id: str, form: records.GraphFormat | str, *, first_step: int, last_step: int
) -> Operation[str]:
    """Read a dependency graph as text."""
    request = pb.GetDependencyGraphRequest(
        transaction_id=transaction_id,
        format=conversion.number_of(
            pb.DependencyGraphFormat, "DEPENDENCY_GRAPH_FORMAT_", member("form", records.GraphFormat, form)
        ),
        first_step=count("first_step", first_step),
        last_step=count("last_step", last_step),
    )
    return (yield from invoke(GET_DEPENDENCY_GRAPH, request)).text


def root_cause(transaction_id: str, step_id: int, key: str) -> Operation[records.RootCause | None]:
    """Find where the value under a key came from."""
    request = pb.FindRootCauseRequest(
        transaction_id=transaction_id, step_id=count("step_id", step_id), key=key
    )
    return conversion.root_cause((yield from invoke(FIND_ROOT_CAUSE, request)))


def health(service: str) -> Operation[records.HealthStatus]:
    """Ask the server how it is."""
    try:
        answer = yield from invoke(HEALTH_CHECK, StringValue(value=service))
    except NotFound:
        return records.HealthStatus.SERVICE_UNKNOWN
    if 0 <= answer.value < len(_HEALTH_STATUS):
        return _HEALTH_STATUS[answer.value]
    return records.HealthStatus.UNSPECIFIED
