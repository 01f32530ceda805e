"""GraphService, events: a run that is started and followed, and journals that are followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio
from google.protobuf.message import Message

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.drain_signal import DrainSignal, Interruptible
from agenttx_server.api.graph_run_servicer import GraphRunning
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import run_answers, run_events
from agenttx_server.api.stream_writing import StreamWriting
from agenttx_server.graphs.runs.event_choice import ENDS_INVOCATION, EventChoice
from agenttx_server.graphs.runs.event_following import EventFollower
from agenttx_server.graphs.runs.live_notices import NO_OFFSET
from agenttx_server.graphs.runs.requests import RunOutcome

__all__ = ["GraphEventServicer"]


class GraphEventServicer:
    """Serves events of runs. ``largest_bytes`` is how large one may be as a message."""

    def __init__(
        self, running: GraphRunning, drain: DrainSignal, writing: StreamWriting, largest_bytes: int
    ) -> None:
        self._runs = running.coordinator
        self._reading = running.reading
        self._events = running.events
        self._drain = drain
        self._writing = writing
        self._largest_bytes = largest_bytes

    async def SubscribeEvents(self, request: pb.SubscribeEventsRequest, context: RpcContext) -> None:
        asked = run_events.subscribe_request(request)
        principal = current_call().scope
        with Interruptible(self._drain, "subscribe again where you were") as waits:
            by = "offset" if asked.run_id else "sequence"
            if asked.run_id:
                following = self._events.of_run(principal, asked.run_id, asked.from_offset, live=asked.live)
            else:
                following = self._events.of_runs(
                    principal, asked.choice, asked.from_sequence, live=asked.live
                )
            async with following as follower:
                # Who waits for it knows that nothing is missed from here on.
                begins_at = ((f"agenttx-from-{by}", str(follower.position)),)
                await waits.wait(context.send_initial_metadata(begins_at))
                await self._send(
                    context,
                    waits,
                    follower,
                    asked.choice,
                    lambda event: pb.SubscribeEventsResponse(event=event),
                    by=by,
                )

    async def StreamRun(self, request: pb.StreamRunRequest, context: RpcContext) -> None:
        asked = run_events.stream_request(request, current_call().principal)
        principal = asked.start.principal
        await self._reading.check_not_others(principal, asked.start.thread_id)
        started = await self._runs.start(asked.start, wait=False)
        run_id = started.run.run_id
        current_call().note(run=run_id)
        try:
            with Interruptible(self._drain, f"run '{run_id}' goes on; subscribe to its events") as waits:
                async with self._events.of_run(
                    principal, run_id, asked.from_offset, live=asked.live, until_pause=True
                ) as follower:
                    await self._send(
                        context,
                        waits,
                        follower,
                        asked.choice,
                        lambda event: pb.StreamRunResponse(event=event),
                        until_pause=True,
                    )
                outcome = await waits.wait(self._outcome(run_id))
                answer = pb.StreamRunResponse(outcome=run_answers.outcome_message(outcome))
                await self._writing.write(context, waits, answer, {"run_id": run_id})
        except (asyncio.CancelledError, grpc.aio.InternalError):
            if request.start.cancel_on_disconnect:
                await self._runs.cancel(run_id, "its client went away")
            raise

    async def _send(
        self,
        context: RpcContext,
        waits: Interruptible,
        follower: EventFollower,
        choice: EventChoice,
        wrap: Callable[[pb.GraphEvent], Message],
        *,
        by: str = "offset",
        until_pause: bool = False,
    ) -> None:
        """Send what a follower reads and a choice takes, until there will be no more, or the invocation has ended.

        ``by`` says what it counts by, "offset" or "sequence".
        """
        place = follower.position
        while events := await waits.wait(follower.read()):
            for event in events:
                if event.offset != NO_OFFSET:
                    place = event.offset if by == "offset" else event.sequence
                waits.advice = f"go on from {by} {place}"
                if choice.takes(event):
                    payload = await waits.wait(self._events.payload(event, choice))
                    message = run_events.event_message(event, payload, self._largest_bytes)
                    await self._writing.write(context, waits, wrap(message), _told(by, place))
                if until_pause and event.kind in ENDS_INVOCATION:
                    return

    async def _outcome(self, run_id: str) -> RunOutcome:
        """How the invocation ended whose end is in the journal; how far the run is if another has begun since."""
        if await self._events.is_under_way(run_id):
            return await self._runs.outcome(run_id)
        return await self._runs.wait_for(run_id)


def _told(by: str, place: int) -> dict[str, str]:
    """What a client that is cut is told: what is next, and the last before that."""
    last = {f"last_{by}": str(place - 1)} if place else {}
    return {f"from_{by}": str(place), **last}
