"""What can be asked about graphs, as operations for either client."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Any

from agenttx.graph import GraphBuilder
from agenttx.graph_records import (
    BrokenThread,
    GraphChange,
    GraphChangeKind,
    GraphDifference,
    GraphExportFormat,
    GraphFinding,
    GraphValidation,
    GraphVersion,
    RegisteredGraph,
)
from agenttx.message_conversion import number_of
from agenttx.methods import DIFF_GRAPHS, EXPORT_GRAPH, GET_GRAPH, LIST_GRAPHS, REGISTER_GRAPH, VALIDATE_GRAPH
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.transaction_cursor import new_request_id
from agenttx.v1 import graph_pb2 as pb
from agenttx.values import count, member

__all__ = ["diff_graphs", "export_graph", "get_graph", "list_graphs", "register_graph", "validate_graph"]


def validate_graph(graph: GraphBuilder | str) -> Operation[GraphValidation]:
    """Have a graph checked."""
    answer = yield from invoke(VALIDATE_GRAPH, pb.ValidateGraphRequest(**_sent(graph)))
    return GraphValidation(answer.valid, _findings(answer.findings), answer.version)


def register_graph(graph: GraphBuilder | str) -> Operation[RegisteredGraph]:
    """Have a graph checked and kept."""
    request = pb.RegisterGraphRequest(request_id=new_request_id(), **_sent(graph))
    answer = yield from invoke(REGISTER_GRAPH, request)
    return RegisteredGraph(_version(answer.graph), _findings(answer.findings), answer.existed)


def get_graph(name: str, version: str) -> Operation[RegisteredGraph]:
    """Read a version."""
    answer = yield from invoke(GET_GRAPH, pb.GetGraphRequest(name=name, version=version))
    return RegisteredGraph(_version(answer.graph), _findings(answer.findings), existed=True)


def list_graphs(token: str, *, name: str, page_size: int) -> Operation[Page[GraphVersion]]:
    """Read one page of graphs, or of the versions of one."""
    request = pb.ListGraphsRequest(name=name, page_size=count("page_size", page_size), page_token=token)
    answer = yield from invoke(LIST_GRAPHS, request)
    return Page(tuple(_version(entry) for entry in answer.graphs), answer.next_page_token)


def export_graph(graph: GraphBuilder | str, form: GraphExportFormat | str, version: str) -> Operation[str]:
    """Have a graph written."""
    request = pb.ExportGraphRequest(
        format=number_of(
            pb.GraphExportFormat, "GRAPH_EXPORT_FORMAT_", member("form", GraphExportFormat, form)
        ),
        version=version,
    )
    if isinstance(graph, GraphBuilder):
        request.definition.CopyFrom(graph.definition())
    else:
        request.name = graph
    return (yield from invoke(EXPORT_GRAPH, request)).text


def diff_graphs(
    name: str, from_version: str, to_version: str, definition: GraphBuilder | None, threads_token: str
) -> Operation[GraphDifference]:
    """Compare two versions."""
    request = pb.DiffGraphsRequest(
        name=name, from_version=from_version, to_version=to_version, threads_page_token=threads_token
    )
    if definition is not None:
        request.definition.CopyFrom(definition.definition())
    answer = yield from invoke(DIFF_GRAPHS, request)
    return GraphDifference(
        answer.from_version,
        answer.to_version,
        tuple(_change(change) for change in answer.changes),
        tuple(answer.breaking_nodes),
        tuple(
            BrokenThread(item.thread_id, tuple(item.pending_nodes), item.reason)
            for item in answer.broken_threads
        ),
        answer.next_threads_page_token,
    )


def _sent(graph: GraphBuilder | str) -> dict[str, Any]:
    if isinstance(graph, GraphBuilder):
        return {"definition": graph.definition()}
    return {"definition_json": graph}


def _version(message: pb.GraphVersion) -> GraphVersion:
    return GraphVersion(
        message.name,
        message.version,
        message.description,
        message.nodes,
        message.channels,
        message.registered_at.ToDatetime(tzinfo=UTC),
    )


def _findings(messages: Iterable[pb.GraphFinding]) -> tuple[GraphFinding, ...]:
    return tuple(
        GraphFinding(
            finding.code, finding.where, finding.message, finding.severity == pb.FINDING_SEVERITY_ERROR
        )
        for finding in messages
    )


def _change(message: pb.GraphChange) -> GraphChange:
    try:
        kind = GraphChangeKind(pb.GraphChangeKind.Name(message.kind).removeprefix("GRAPH_CHANGE_KIND_"))
    except ValueError:
        kind = GraphChangeKind.UNSPECIFIED
    return GraphChange(kind, message.what, tuple(message.fields), message.reason)
