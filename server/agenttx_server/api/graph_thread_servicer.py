"""GraphService, threads: their states, checkpoints and projections, and what changes them."""

from __future__ import annotations

from dataclasses import replace

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.answer_sizes import page_that_fits
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import thread_changes, threads
from agenttx_server.engine.visibility import is_everybody
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.run_reading import RunReading
from agenttx_server.graphs.runs.thread_reading import CheckpointListing, ThreadReading

__all__ = ["GraphThreadServicer"]


class GraphThreadServicer:
    """Serves threads."""

    def __init__(self, runs: RunCoordinator, reading: RunReading, states: ThreadReading) -> None:
        self._runs = runs
        self._reading = reading
        self._states = states

    async def GetGraphState(
        self, request: pb.GetGraphStateRequest, context: RpcContext
    ) -> pb.GetGraphStateResponse:
        asked = threads.state_request(request)
        thread_id, checkpoint, pending = asked.thread_id, asked.checkpoint_id, asked.include_pending
        if asked.namespace:
            view = await self._states.embedded_state(
                _scope(), thread_id, asked.namespace, checkpoint, include_pending=pending
            )
            return pb.GetGraphStateResponse(checkpoint=threads.checkpoint_message(view))
        found = await self._states.state(_scope(), thread_id, checkpoint, include_pending=pending)
        return pb.GetGraphStateResponse(checkpoint=threads.head_message(found))

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: RpcContext
    ) -> pb.ListCheckpointsResponse:
        asked = threads.checkpoints_request(request)

        async def ask(limit: int) -> tuple[pb.ListCheckpointsResponse, int]:
            if asked.namespace:
                found = await self._states.embedded_checkpoints(
                    _scope(),
                    asked.thread_id,
                    asked.namespace,
                    asked.sources,
                    asked.page.cursor,
                    limit,
                    with_state=request.include_state,
                )
                return _listed(found)
            found = await self._states.checkpoints(
                _scope(),
                asked.thread_id,
                asked.sources,
                asked.page.cursor,
                limit,
                all_branches=request.all_branches,
                with_state=request.include_state,
            )
            return _listed(found)

        return await page_that_fits(ask, asked.page.limit)

    async def UpdateState(
        self, request: pb.UpdateStateRequest, context: RpcContext
    ) -> pb.UpdateStateResponse:
        asked = thread_changes.update_request(request, _principal())
        if is_everybody(_scope()):
            # An operator edits a thread in its owner's name, and makes none.
            owner = (await self._reading.thread(_scope(), asked.thread_id)).principal
            asked = replace(asked, principal=owner)
        else:
            await self._reading.check_not_others(asked.principal, asked.thread_id)
        edited = await self._runs.states.update(asked)
        return pb.UpdateStateResponse(
            checkpoint=await self._checkpoint(edited.thread.thread_id, edited.checkpoint.checkpoint_id)
        )

    async def ForkThread(self, request: pb.ForkThreadRequest, context: RpcContext) -> pb.ForkThreadResponse:
        asked = thread_changes.fork_request(request, _principal())
        await self._reading.thread(asked.principal, asked.thread_id)
        made = await self._runs.copies.fork(asked)
        return pb.ForkThreadResponse(
            checkpoint=await self._checkpoint(made.thread.thread_id, made.checkpoint.checkpoint_id)
        )

    async def CopyThread(self, request: pb.CopyThreadRequest, context: RpcContext) -> pb.CopyThreadResponse:
        asked = thread_changes.copy_request(request, _principal())
        await self._reading.thread(asked.principal, asked.thread_id)
        made = await self._runs.copies.copy(asked)
        return pb.CopyThreadResponse(thread_id=made.thread.thread_id, checkpoints=made.checkpoints)

    async def DeleteThread(
        self, request: pb.DeleteThreadRequest, context: RpcContext
    ) -> pb.DeleteThreadResponse:
        thread_id, asked = thread_changes.delete_request(request, _principal())
        if (done := await self._runs.removal.deleted(asked)) is not None:
            return pb.DeleteThreadResponse(checkpoints=done)
        await self._reading.thread(_scope(), thread_id)
        try:
            deleted = await self._runs.removal.delete(thread_id, asked)
        except RunRefused as refused:
            if refused.reason != "ROLLBACK_INCOMPLETE":
                raise
            return pb.DeleteThreadResponse(rollback_incomplete=True)
        return pb.DeleteThreadResponse(checkpoints=deleted)

    async def PruneThread(
        self, request: pb.PruneThreadRequest, context: RpcContext
    ) -> pb.PruneThreadResponse:
        thread_id, keep_last = thread_changes.prune_request(request)
        await self._reading.thread(_scope(), thread_id)
        pruned = await self._runs.removal.prune(thread_id, keep_last)
        return pb.PruneThreadResponse(deleted=pruned.deleted, kept=pruned.kept)

    async def GetThread(self, request: pb.GetThreadRequest, context: RpcContext) -> pb.GetThreadResponse:
        return threads.thread_response(await self._states.thread(_scope(), threads.thread_of(request)))

    async def ListThreads(
        self, request: pb.ListThreadsRequest, context: RpcContext
    ) -> pb.ListThreadsResponse:
        asked = threads.threads_request(request)
        page = await self._states.threads(
            _scope(), asked.graph, asked.statuses, asked.page.cursor, asked.page.limit
        )
        return threads.threads_response(page)

    async def _checkpoint(self, thread_id: str, checkpoint: str) -> pb.Checkpoint:
        view = await self._states.state(_scope(), thread_id, checkpoint, include_pending=True)
        return threads.head_message(view)


def _principal() -> str:
    """Who asks: whose what is made is, and whose request ids count."""
    return current_call().principal


def _scope() -> str:
    """Whose runs and threads are there for who asks."""
    return current_call().scope


def _listed(found: CheckpointListing) -> tuple[pb.ListCheckpointsResponse, int]:
    messages = map(threads.checkpoint_message, found.checkpoints)
    page = pb.ListCheckpointsResponse(checkpoints=messages, next_page_token=found.next_cursor)
    return page, len(found.checkpoints)
