"""PipelineService: pipelines, and their runs.

A handler only waits: a run whose rows are durable belongs to the server, and goes on whether or not the caller stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from agenttx.v1 import lineage_pb2 as pb
from agenttx_server.api.answer_sizes import page_that_fits
from agenttx_server.api.drain_signal import DrainSignal, Interruptible
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import pipelines
from agenttx_server.engine.json_values import load
from agenttx_server.lineage.definition import PipelineDefinition
from agenttx_server.lineage.document import read_document
from agenttx_server.pipelines.library import PipelineLibrary
from agenttx_server.pipelines.lineage_reading import LineageReading
from agenttx_server.pipelines.progress import Progress
from agenttx_server.pipelines.records import PipelineRunStatus
from agenttx_server.pipelines.run_coordinator import PipelineRuns, Row
from agenttx_server.pipelines.run_life import PipelineLife
from agenttx_server.pipelines.run_reading import PipelineRunReading

__all__ = ["PipelineRunning", "PipelineServicer"]


@dataclass(frozen=True, slots=True)
class PipelineRunning:
    """What is served of pipelines and their records."""

    library: PipelineLibrary
    life: PipelineLife
    runs: PipelineRunReading
    reading: LineageReading


class PipelineServicer:
    """Serves pipelines and runs."""

    def __init__(self, running: PipelineRunning, drain: DrainSignal) -> None:
        self._library = running.library
        self._life = running.life
        self._runs: PipelineRuns = running.life.runs
        self._reading = running.runs
        self._drain = drain

    async def ValidatePipeline(
        self, request: pb.ValidatePipelineRequest, context: RpcContext
    ) -> pb.ValidatePipelineResponse:
        sent = pipelines.sent_pipeline(request)
        return pipelines.validate_response(await self._library.validate(_owner(), sent))

    async def RegisterPipeline(
        self, request: pb.RegisterPipelineRequest, context: RpcContext
    ) -> pb.RegisterPipelineResponse:
        sent = pipelines.sent_pipeline(request)
        return pipelines.register_response(await self._library.register(_owner(), sent))

    async def GetPipeline(
        self, request: pb.GetPipelineRequest, context: RpcContext
    ) -> pb.GetPipelineResponse:
        pipelines.get_request(request)
        return pipelines.get_response(await self._library.get(_owner(), request.name, request.version))

    async def ListPipelines(
        self, request: pb.ListPipelinesRequest, context: RpcContext
    ) -> pb.ListPipelinesResponse:
        page = pipelines.list_request(request)

        async def ask(limit: int) -> tuple[pb.ListPipelinesResponse, int]:
            found = await self._library.list(_owner(), request.name, page.cursor, limit)
            return pipelines.list_response(found), len(found.versions)

        return await page_that_fits(ask, page.limit)

    async def RunPipeline(
        self, requests: AsyncIterator[pb.RunPipelineRequest], context: RpcContext
    ) -> AsyncIterator[pb.RunPipelineResponse]:
        principal = _scope()
        with Interruptible(self._drain, "send the request again") as waits:
            first = await waits.wait(context.read())
            if first is grpc.aio.EOF:
                raise pipelines.nothing_sent()
            definition = await waits.wait(self._definition(first))
            run = await waits.wait(
                self._runs.receive(principal, definition, _rows(context, first), first.request_id)
            )
            if run.status is PipelineRunStatus.INTERRUPTED:
                await waits.wait(self._life.resume(principal, run.run_id))
            elif not run.status.is_final:
                self._life.go_on(run.run_id)
        if first.detach:
            view = await self._reading.view(run)
            yield pb.RunPipelineResponse(progress=pipelines.run_progress(view, last=True))
            return
        async for progress in self._followed(principal, run.run_id):
            yield pb.RunPipelineResponse(progress=progress)

    async def GetPipelineRun(
        self, request: pb.GetPipelineRunRequest, context: RpcContext
    ) -> pb.GetPipelineRunResponse:
        run = await self._reading.record(_scope(), pipelines.run_id_of(request))
        return pb.GetPipelineRunResponse(run=pipelines.run_message(await self._reading.view(run)))

    async def ListPipelineRuns(
        self, request: pb.ListPipelineRunsRequest, context: RpcContext
    ) -> pb.ListPipelineRunsResponse:
        statuses, page = pipelines.runs_request(request)

        async def ask(limit: int) -> tuple[pb.ListPipelineRunsResponse, int]:
            found, looked_at = await self._reading.list(
                _scope(), request.pipeline, statuses, page.cursor, limit
            )
            return pipelines.runs_response(found), looked_at

        return await page_that_fits(ask, page.limit)

    async def ResumePipelineRun(
        self, request: pb.ResumePipelineRunRequest, context: RpcContext
    ) -> AsyncIterator[pb.ResumePipelineRunResponse]:
        principal, run_id = _scope(), pipelines.run_id_of(request)
        await self._life.resume(principal, run_id)
        async for progress in self._followed(principal, run_id):
            yield pb.ResumePipelineRunResponse(progress=progress)

    async def CancelPipelineRun(
        self, request: pb.CancelPipelineRunRequest, context: RpcContext
    ) -> pb.CancelPipelineRunResponse:
        run = await self._life.cancel(_scope(), pipelines.run_id_of(request), request.reason)
        return pb.CancelPipelineRunResponse(run=pipelines.run_message(await self._reading.view(run)))

    async def _followed(self, principal: str, run_id: str) -> AsyncIterator[pb.PipelineProgress]:
        """What happens to a run from now on; the first and the last message are of the run itself."""
        advice = f"run {run_id} goes on after the next start; follow it with ResumePipelineRun"
        followed = self._life.follow(principal, run_id)
        is_first = True
        try:
            with Interruptible(self._drain, advice) as waits:
                while (item := await waits.wait(anext(followed, None))) is not None:
                    if isinstance(item, Progress):
                        yield pipelines.row_progress(item)
                        continue
                    view = await self._reading.view(item)
                    yield pipelines.run_progress(view, last=not is_first)
                    is_first = False
        finally:
            await followed.aclose()

    async def _definition(self, first: pb.RunPipelineRequest) -> PipelineDefinition:
        sent = pipelines.run_request(first)
        if sent is not None:
            return (await self._library.checked(_owner(), sent)).definition
        kept = await self._library.get(_owner(), first.name, first.version)
        return read_document(load(kept.definition)).definition


async def _rows(context: RpcContext, first: pb.RunPipelineRequest) -> AsyncIterator[Row]:
    """The rows of a stream, message by message; gRPC's flow control bounds what waits."""
    count = 0
    message: Any = first
    while message is not grpc.aio.EOF:
        if message is not first:
            pipelines.later_request(message)
        for row in pipelines.rows_of(message, count):
            yield row
        count += len(message.rows)
        message = await context.read()


def _scope() -> str:
    return current_call().scope


def _owner() -> str:
    """Whose tenant's pipelines are asked about."""
    return current_call().principal
