"""Requests and answers about registered graphs."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.graph_definitions import definition_from, definition_to
from agenttx_server.api.message_conversion.request_reader import (
    LONGEST_TOKEN_BYTES,
    PageRequest,
    RequestReader,
)
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.graphs.compiler import Compilation
from agenttx_server.graphs.definition import GraphDefinition
from agenttx_server.graphs.definition_json import from_json
from agenttx_server.graphs.errors import DefinitionRefused
from agenttx_server.graphs.findings import Finding, Severity
from agenttx_server.graphs.library import Difference, Registration, StoredGraph
from agenttx_server.graphs.ports import GraphPage, GraphRecord
from agenttx_server.graphs.runs.broken_threads import BrokenThreadPage

__all__ = [
    "check_named",
    "diff_response",
    "get_response",
    "list_request",
    "list_response",
    "register_response",
    "sent_definition",
    "threads_cursor",
    "validate_response",
]

LONGEST_NAME_BYTES = 512
LONGEST_REQUEST_ID_BYTES = 128

_SEVERITIES = {
    Severity.ERROR: pb.FINDING_SEVERITY_ERROR,
    Severity.WARNING: pb.FINDING_SEVERITY_WARNING,
}
_CHANGES = {
    "added": pb.GRAPH_CHANGE_KIND_ADDED,
    "removed": pb.GRAPH_CHANGE_KIND_REMOVED,
    "changed": pb.GRAPH_CHANGE_KIND_CHANGED,
}


def sent_definition(request: pb.ValidateGraphRequest | pb.RegisterGraphRequest) -> GraphDefinition:
    """Return the graph of a request, whichever field it came in.

    Raises:
        InvalidRequest: none came, two came, or it can't be read.
    """
    reader = RequestReader()
    if isinstance(request, pb.RegisterGraphRequest):
        reader.identifier("request_id", request.request_id, LONGEST_REQUEST_ID_BYTES)
    has_message = request.HasField("definition")
    if has_message and request.definition_json:
        reader.refuse("definition_json", "is set beside definition; set one of them")
    if not has_message and not request.definition_json:
        reader.refuse("definition", "is missing")
    reader.check()
    if request.definition_json:
        return _from_json(request.definition_json)
    definition = definition_from(request.definition, reader, "definition")
    reader.check()
    return definition


def check_named(
    request: pb.GetGraphRequest | pb.ExportGraphRequest | pb.DiffGraphsRequest,
) -> GraphDefinition | None:
    """Check which graph is meant; return the definition that a request brought instead of a version.

    Raises:
        InvalidRequest: the request names none, or too much.
    """
    reader = RequestReader()
    reader.name("name", request.name, LONGEST_NAME_BYTES)
    has_definition = not isinstance(request, pb.GetGraphRequest) and request.HasField("definition")
    if isinstance(request, pb.DiffGraphsRequest):
        reader.name("from_version", request.from_version, LONGEST_REQUEST_ID_BYTES)
        reader.name("to_version", request.to_version, LONGEST_REQUEST_ID_BYTES)
        if has_definition and request.to_version:
            reader.refuse("to_version", "is set beside definition; set one of them")
    else:
        reader.name("version", request.version, LONGEST_REQUEST_ID_BYTES)
    if isinstance(request, pb.ExportGraphRequest):
        if request.format not in pb.GraphExportFormat.values():
            reader.refuse("format", f"is {request.format}, which is no value of GraphExportFormat")
        if has_definition and (request.name or request.version):
            reader.refuse("name", "is set beside definition; set one of them")
    if not request.name and not (has_definition and isinstance(request, pb.ExportGraphRequest)):
        reader.refuse("name", "is empty")
    definition = None
    if has_definition and not isinstance(request, pb.GetGraphRequest):
        definition = definition_from(request.definition, reader, "definition")
    reader.check()
    return definition


def list_request(request: pb.ListGraphsRequest) -> PageRequest:
    """Return which page is wanted."""
    reader = RequestReader()
    reader.name("name", request.name, LONGEST_NAME_BYTES)
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    return page


def validate_response(compilation: Compilation) -> pb.ValidateGraphResponse:
    """Tell what the compiler found."""
    graph = compilation.graph
    return pb.ValidateGraphResponse(
        valid=graph is not None,
        findings=_findings(compilation.findings),
        version="" if graph is None else graph.version,
    )


def register_response(registration: Registration) -> pb.RegisterGraphResponse:
    """Tell what was kept."""
    return pb.RegisterGraphResponse(
        graph=_version(registration.record),
        findings=_findings(registration.findings),
        existed=registration.existed,
    )


def get_response(stored: StoredGraph) -> pb.GetGraphResponse:
    """Tell a registered version."""
    return pb.GetGraphResponse(
        graph=_version(stored.record),
        definition=definition_to(stored.definition),
        findings=_findings(stored.findings),
    )


def list_response(page: GraphPage) -> pb.ListGraphsResponse:
    """Tell a page of versions."""
    return pb.ListGraphsResponse(graphs=map(_version, page.graphs), next_page_token=page.next_cursor)


def threads_cursor(request: pb.DiffGraphsRequest) -> str:
    """Return where to go on looking at threads."""
    reader = RequestReader()
    reader.name("threads_page_token", request.threads_page_token, LONGEST_TOKEN_BYTES)
    reader.check()
    return request.threads_page_token


def diff_response(difference: Difference, broken: BrokenThreadPage) -> pb.DiffGraphsResponse:
    """Tell what differs."""
    return pb.DiffGraphsResponse(
        from_version=difference.from_version,
        to_version=difference.to_version,
        changes=[
            pb.GraphChange(
                kind=_CHANGES[change.kind.value],
                what=change.what,
                fields=change.fields,
                breaking=change.breaking,
                reason=change.reason,
            )
            for change in difference.changes
        ],
        breaking_nodes=difference.breaking_nodes,
        broken_threads=[
            pb.BrokenThread(thread_id=item.thread_id, pending_nodes=item.pending_nodes, reason=item.reason)
            for item in broken.threads
        ],
        next_threads_page_token=broken.next_cursor,
    )


def _from_json(text: str) -> GraphDefinition:
    try:
        return from_json(text)
    except DefinitionRefused as error:
        where = f"definition_json.{error.where}" if error.where else "definition_json"
        message = error.message.removeprefix(f"{error.where}: ")
        raise InvalidRequest((FieldViolation(where, message),)) from None


def _version(record: GraphRecord) -> pb.GraphVersion:
    return pb.GraphVersion(
        name=record.name,
        version=record.version,
        description=record.description,
        nodes=record.node_count,
        channels=record.channel_count,
        registered_at=timestamp_from_microseconds(record.registered_at),
    )


def _findings(findings: Iterable[Finding]) -> list[pb.GraphFinding]:
    return [
        pb.GraphFinding(
            code=finding.code,
            where=finding.where,
            message=finding.message,
            severity=_SEVERITIES[finding.severity],
        )
        for finding in findings
    ]
