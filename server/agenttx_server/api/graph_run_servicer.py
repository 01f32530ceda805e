"""GraphService, runs: starting, going on with, stopping and reading them.

A handler only waits: invocations belong to the server, and end whether or not the caller stays.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.answer_sizes import page_that_fits
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import run_answers, run_requests, thread_changes
from agenttx_server.graphs.runs.broken_threads import BrokenThreads
from agenttx_server.graphs.runs.event_reading import EventReading
from agenttx_server.graphs.runs.requests import RunOutcome
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.run_life import RunLife
from agenttx_server.graphs.runs.run_reading import RunListing, RunReading
from agenttx_server.graphs.runs.run_stops import RunStops
from agenttx_server.graphs.runs.thread_reading import ThreadReading

__all__ = ["GraphRunServicer", "GraphRunning"]


@dataclass(frozen=True, slots=True)
class GraphRunning:
    """What is served of runs."""

    coordinator: RunCoordinator
    reading: RunReading
    threads: ThreadReading
    events: EventReading
    life: RunLife
    broken: BrokenThreads

    @property
    def stops(self) -> RunStops:
        """What stops them."""
        return self.life.stops


class GraphRunServicer:
    """Serves runs."""

    def __init__(self, running: GraphRunning) -> None:
        self._runs = running.coordinator
        self._stops = running.stops
        self._reading = running.reading

    async def StartRun(self, request: pb.StartRunRequest, context: RpcContext) -> pb.StartRunResponse:
        asked = run_requests.start_request(request, _principal())
        await self._reading.check_not_others(asked.principal, asked.thread_id)
        started = await self._runs.start(asked, wait=False)
        return pb.StartRunResponse(outcome=await self._answer(started, request))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: RpcContext) -> pb.ResumeRunResponse:
        asked = run_requests.resume_request(request, _principal())
        # An operator goes on with a run in its owner's name.
        thread = await self._reading.thread(_scope(), asked.thread_id)
        asked = replace(asked, principal=thread.principal)
        started = await self._runs.resume(asked, wait=False)
        return pb.ResumeRunResponse(outcome=await self._answer(started, request))

    async def RetryRun(self, request: pb.RetryRunRequest, context: RpcContext) -> pb.RetryRunResponse:
        asked = run_requests.retry_request(request, _principal())
        # An operator goes on with a run in its owner's name.
        thread = await self._reading.thread(_scope(), asked.thread_id)
        asked = replace(asked, principal=thread.principal)
        started = await self._runs.retry(asked, wait=False)
        return pb.RetryRunResponse(outcome=await self._answer(started, request))

    async def CancelRun(self, request: pb.CancelRunRequest, context: RpcContext) -> pb.CancelRunResponse:
        asked = run_requests.cancel_request(request, _principal())
        await self._reading.root_record(_scope(), asked.run_id)
        if asked.rollback:
            run = await self._stops.cancel_and_roll_back(asked.run_id, asked.reason, asked.request)
        else:
            run = await self._stops.cancel(asked.run_id, asked.reason, asked.request)
        return pb.CancelRunResponse(run=run_answers.run_message(await self._reading.view(run)))

    async def DrainRun(self, request: pb.DrainRunRequest, context: RpcContext) -> pb.DrainRunResponse:
        asked = run_requests.drain_request(request, _principal())
        await self._reading.root_record(_scope(), asked.run_id)
        run = await self._stops.drain(asked.run_id, asked.grace_us, asked.request)
        return pb.DrainRunResponse(run=run_answers.run_message(await self._reading.view(run)))

    async def RewindRun(self, request: pb.RewindRunRequest, context: RpcContext) -> pb.RewindRunResponse:
        asked = thread_changes.rewind_request(request, _principal())
        await self._reading.thread(_scope(), asked.thread_id)
        return run_answers.rewind_response(await self._runs.rewinds.rewind(asked))

    async def GetRun(self, request: pb.GetRunRequest, context: RpcContext) -> pb.GetRunResponse:
        view = await self._reading.run(_scope(), run_requests.run_id_of(request))
        return pb.GetRunResponse(run=run_answers.run_message(view))

    async def ListRuns(self, request: pb.ListRunsRequest, context: RpcContext) -> pb.ListRunsResponse:
        asked = run_requests.list_runs_request(request, _scope())

        async def ask(limit: int) -> tuple[pb.ListRunsResponse, int]:
            found = await self._reading.runs(asked.which, asked.page.cursor, limit)
            labelled = [view for view in found.runs if set(asked.labels) <= set(view.run.options.metadata)]
            return run_answers.list_response(RunListing(labelled, found.next_cursor)), len(found.runs)

        return await page_that_fits(ask, asked.page.limit)

    async def _answer(
        self, started: RunOutcome, request: pb.StartRunRequest | pb.ResumeRunRequest | pb.RetryRunRequest
    ) -> pb.RunOutcome:
        """Answer at once, or when the invocation has ended."""
        if request.wait:
            try:
                started = await self._runs.wait_for(started.run.run_id)
            except asyncio.CancelledError:
                if request.cancel_on_disconnect:
                    await self._runs.cancel(started.run.run_id, "its client went away")
                raise
        return run_answers.outcome_message(started)


def _principal() -> str:
    """Who asks: whose what is made is, and whose request ids count."""
    return current_call().principal


def _scope() -> str:
    """Whose runs and threads are there for who asks."""
    return current_call().scope
