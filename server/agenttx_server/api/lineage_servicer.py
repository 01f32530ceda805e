"""LineageService: each method turns its request into the reader's, asks, and turns the answer back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from agenttx.v1 import lineage_pb2 as pb
from agenttx_server.api.answer_sizes import page_that_fits
from agenttx_server.api.drain_signal import DrainSignal, Interruptible
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import lineage
from agenttx_server.lineage.ports import RecordPage
from agenttx_server.pipelines.lineage_reading import LineageReading

__all__ = ["LineageServicer"]

L = TypeVar(
    "L",
    pb.ListRecordsResponse,
    pb.ListSiblingsResponse,
    pb.ListAncestorsResponse,
    pb.ListDescendantsResponse,
    pb.ListByRootResponse,
)


class LineageServicer:
    """Serves records."""

    def __init__(self, reading: LineageReading, drain: DrainSignal) -> None:
        self._reading = reading
        self._drain = drain

    async def GetRecord(self, request: pb.GetRecordRequest, context: RpcContext) -> pb.GetRecordResponse:
        lineage.get_request(request)
        kept = await self._reading.record(_scope(), request.target_id, request.transaction_id)
        edges = await self._reading.edges([request.target_id])
        return pb.GetRecordResponse(
            record=lineage.record_message(kept), edges=map(lineage.edge_message, edges)
        )

    async def ListRecords(
        self, request: pb.ListRecordsRequest, context: RpcContext
    ) -> pb.ListRecordsResponse:
        page = lineage.records_request(request)

        def ask(limit: int) -> Awaitable[RecordPage]:
            if request.source_guid:
                return self._reading.of_source(
                    _scope(), request.source_guid, page.cursor, limit, request.transaction_id
                )
            return self._reading.of_action(
                _scope(), request.run_id, request.action, page.cursor, limit, request.transaction_id
            )

        return await _records(pb.ListRecordsResponse, ask, page.limit, request.omit_content)

    async def ListSiblings(
        self, request: pb.ListSiblingsRequest, context: RpcContext
    ) -> pb.ListSiblingsResponse:
        return await self._related(pb.ListSiblingsResponse, request, self._reading.siblings)

    async def ListAncestors(
        self, request: pb.ListAncestorsRequest, context: RpcContext
    ) -> pb.ListAncestorsResponse:
        return await self._related(pb.ListAncestorsResponse, request, self._reading.ancestors)

    async def ListDescendants(
        self, request: pb.ListDescendantsRequest, context: RpcContext
    ) -> pb.ListDescendantsResponse:
        return await self._related(pb.ListDescendantsResponse, request, self._reading.descendants)

    async def ListByRoot(self, request: pb.ListByRootRequest, context: RpcContext) -> pb.ListByRootResponse:
        return await self._related(pb.ListByRootResponse, request, self._reading.by_root)

    async def TraceRecord(
        self, request: pb.TraceRecordRequest, context: RpcContext
    ) -> pb.TraceRecordResponse:
        asked = lineage.trace_request(request)
        traced = await self._reading.trace(
            _scope(), asked.target_id, asked.direction, asked.limit, asked.transaction_id
        )
        return lineage.trace_response(traced, request.format)

    async def ListRecordEvents(
        self, request: pb.ListRecordEventsRequest, context: RpcContext
    ) -> pb.ListRecordEventsResponse:
        page = lineage.events_request(request)

        async def ask(limit: int) -> tuple[pb.ListRecordEventsResponse, int]:
            if request.target_id:
                found = await self._reading.events_of_record(_scope(), request.target_id, page.cursor, limit)
            else:
                found = await self._reading.events_of_transaction(
                    _scope(), request.transaction_id, page.cursor, limit
                )
            answer = pb.ListRecordEventsResponse(
                events=map(lineage.event_message, found.events), next_page_token=found.next_cursor
            )
            return answer, len(found.events)

        return await page_that_fits(ask, page.limit)

    async def VerifyLineage(
        self, request: pb.VerifyLineageRequest, context: RpcContext
    ) -> pb.VerifyLineageResponse:
        page = lineage.verify_request(request)
        return lineage.verify_response(
            await self._reading.verify(_scope(), request.run_id, page.cursor, page.limit)
        )

    async def ExportLineage(
        self, request: pb.ExportLineageRequest, context: RpcContext
    ) -> AsyncIterator[pb.ExportLineageResponse]:
        form = lineage.export_request(request)
        pieces = self._reading.export(_scope(), request.run_id, form)
        with Interruptible(self._drain, "ask again") as waits:
            while (piece := await waits.wait(anext(pieces, None))) is not None:
                yield pb.ExportLineageResponse(text=piece)

    async def _related(
        self,
        answer: type[L],
        request: lineage.Related,
        read: Callable[[str, str, str, int, str], Awaitable[RecordPage]],
    ) -> L:
        asked = lineage.related_request(request)

        def ask(limit: int) -> Awaitable[RecordPage]:
            return read(_scope(), asked.target_id, asked.page.cursor, limit, asked.transaction_id)

        return await _records(answer, ask, asked.page.limit, request.omit_content)


async def _records(
    answer: type[L], ask: Callable[[int], Awaitable[RecordPage]], limit: int, omit_content: bool
) -> L:
    async def asked(limit: int) -> tuple[L, int]:
        page = await ask(limit)
        records = lineage.listed(page, omit_content=omit_content)
        return answer(records=records, next_page_token=page.next_cursor), len(records)

    return await page_that_fits(asked, limit)


def _scope() -> str:
    return current_call().scope
