"""GraphService, registered graphs: each method turns its request into the library's, asks, and turns the answer back."""

from __future__ import annotations

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.answer_sizes import page_that_fits
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import graphs
from agenttx_server.graphs.definition import GraphDefinition
from agenttx_server.graphs.definition_json import to_json
from agenttx_server.graphs.dot import to_dot
from agenttx_server.graphs.findings import Finding
from agenttx_server.graphs.library import GraphLibrary
from agenttx_server.graphs.mermaid import to_mermaid
from agenttx_server.graphs.runs.broken_threads import BrokenThreadPage, BrokenThreads

__all__ = ["GraphLibraryServicer"]


class GraphLibraryServicer:
    """Serves the library of graphs. ``broken`` looks at threads; None where no runs are served."""

    def __init__(self, library: GraphLibrary, broken: BrokenThreads | None = None) -> None:
        self._library = library
        self._broken = broken

    async def ValidateGraph(
        self, request: pb.ValidateGraphRequest, context: RpcContext
    ) -> pb.ValidateGraphResponse:
        return graphs.validate_response(
            await self._library.validate(_owner(), graphs.sent_definition(request))
        )

    async def RegisterGraph(
        self, request: pb.RegisterGraphRequest, context: RpcContext
    ) -> pb.RegisterGraphResponse:
        definition = graphs.sent_definition(request)
        principal = current_call().principal
        return graphs.register_response(
            await self._library.register(principal, request.request_id, definition)
        )

    async def GetGraph(self, request: pb.GetGraphRequest, context: RpcContext) -> pb.GetGraphResponse:
        graphs.check_named(request)
        return graphs.get_response(await self._library.get(_owner(), request.name, request.version))

    async def ListGraphs(self, request: pb.ListGraphsRequest, context: RpcContext) -> pb.ListGraphsResponse:
        page = graphs.list_request(request)

        async def ask(limit: int) -> tuple[pb.ListGraphsResponse, int]:
            found = await self._library.list(_owner(), request.name, page.cursor, limit)
            return graphs.list_response(found), len(found.graphs)

        return await page_that_fits(ask, page.limit)

    async def ExportGraph(
        self, request: pb.ExportGraphRequest, context: RpcContext
    ) -> pb.ExportGraphResponse:
        sent = graphs.check_named(request)
        if sent is not None:
            findings = (await self._library.validate(_owner(), sent)).findings
            return pb.ExportGraphResponse(text=_drawn(sent, findings, request.format))
        stored = await self._library.get(_owner(), request.name, request.version)
        return pb.ExportGraphResponse(
            text=_drawn(stored.definition, stored.findings, request.format), version=stored.record.version
        )

    async def DiffGraphs(self, request: pb.DiffGraphsRequest, context: RpcContext) -> pb.DiffGraphsResponse:
        sent = graphs.check_named(request)
        cursor = graphs.threads_cursor(request)
        difference = await self._library.diff(
            _owner(), request.name, request.from_version, request.to_version, sent
        )
        broken = BrokenThreadPage((), "")
        if self._broken is not None and difference.new is not None:
            broken = await self._broken.find(current_call().scope, difference.new, cursor)
        return graphs.diff_response(difference, broken)


def _owner() -> str:
    """Whose tenant's graphs are asked about."""
    return current_call().principal


def _drawn(definition: GraphDefinition, findings: tuple[Finding, ...], form: int) -> str:
    if form == pb.GRAPH_EXPORT_FORMAT_MERMAID:
        return to_mermaid(definition)
    if form == pb.GRAPH_EXPORT_FORMAT_DOT:
        return to_dot(definition)
    return to_json(definition, findings)
