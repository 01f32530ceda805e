"""What is asked about runs: their records, with what they wait for and where their threads are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.json_values import load
from agenttx_server.engine.visibility import sees
from agenttx_server.graphs.runs.ports import RunFilter, RunStore
from agenttx_server.graphs.runs.records import (
    LIVE,
    InterruptRecord,
    RunRecord,
    RunStatus,
    ThreadRecord,
    checkpoint_id,
)
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator

__all__ = ["RunListing", "RunReading", "RunView"]

_TAIL_EVENTS = 64


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, what it waits for, and its last checkpoint ("" where none is known)."""

    run: RunRecord
    interrupts: Sequence[InterruptRecord]
    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class RunListing:
    """A page of runs."""

    runs: Sequence[RunView]
    next_cursor: str


class RunReading:
    """Reads runs and threads of a principal; others' are not there."""

    def __init__(self, store: RunStore, coordinator: RunCoordinator) -> None:
        self._store = store
        self._coordinator = coordinator

    async def record(self, principal: str, run_id: str) -> RunRecord:
        """Return a run as it is now. Raises RunRefused: RUN_NOT_FOUND."""
        run = await self._store.load_run(run_id)
        if run is None or not sees(principal, run.principal):
            raise RunRefused("RUN_NOT_FOUND", f"there is no run '{run_id}'", {"run_id": run_id})
        return await self._seen(run)

    async def root_record(self, principal: str, run_id: str) -> RunRecord:
        """Return a run that can be asked to stop. Raises RunRefused: RUN_NOT_FOUND; ILLEGAL_TRANSITION for one inside."""
        run = await self.record(principal, run_id)
        if run.parent_run_id:
            raise RunRefused(
                "ILLEGAL_TRANSITION",
                f"run '{run_id}' is a part of run '{run.root_run_id}'; ask that of the whole",
                {"run_id": run_id, "status": run.status.value, "root_run_id": run.root_run_id},
            )
        return run

    async def _seen(self, run: RunRecord) -> RunRecord:
        if run.parent_run_id:
            return await self._of_root(run)
        return self._coordinator.run_here(run.run_id) or run

    async def _of_root(self, run: RunRecord) -> RunRecord:
        """A run of an embedded graph, which is under way only while its root is: it may have been cut off."""
        if run.status not in LIVE:
            return run
        root = await self._store.load_run(run.root_run_id)
        if root is None or root.status is RunStatus.COMPLETED:
            return replace(run, status=RunStatus.CANCELLED)  # undone, and another one in its place
        return run if root.status in LIVE else replace(run, status=root.status, error=root.error)

    async def run(self, principal: str, run_id: str) -> RunView:
        """Return a run with what belongs to it. Raises RunRefused: RUN_NOT_FOUND."""
        return await self.view(await self.record(principal, run_id))

    async def view(self, run: RunRecord) -> RunView:
        """Return a run's record with what belongs to it."""
        thread = await self._store.load_thread(run.thread_id) if run.thread_id else None
        if thread is None:
            return RunView(run, (), "")
        pending = await self._store.list_interrupts(run.thread_id)
        own = [item for item in pending if _is_of(item, run)]
        return RunView(run, own, await self._last_checkpoint(run, thread))

    async def runs(self, which: RunFilter, cursor: str, limit: int) -> RunListing:
        """List runs, the newest first. Raises InvalidRequest for another's cursor."""
        try:
            page = await self._store.list_runs(which, cursor, limit)
        except ValueError as error:
            raise InvalidRequest((FieldViolation("page_token", str(error)),)) from None
        views = [await self.view(await self._seen(run)) for run in page.runs]
        return RunListing(views, page.next_cursor)

    async def thread(self, principal: str, thread_id: str) -> ThreadRecord:
        """Return a thread. Raises RunRefused: THREAD_NOT_FOUND."""
        thread = await self._store.load_thread(thread_id)
        if thread is None or not sees(principal, thread.principal):
            raise RunRefused(
                "THREAD_NOT_FOUND", f"there is no thread '{thread_id}'", {"thread_id": thread_id}
            )
        return thread

    async def is_there(self, principal: str, thread_id: str) -> bool:
        """Whether there is a thread that is seen."""
        thread = await self._store.load_thread(thread_id)
        return thread is not None and sees(principal, thread.principal)

    async def check_not_others(self, principal: str, thread_id: str) -> None:
        """Refuse a thread that is another principal's, as one that isn't there. One that is not there yet passes."""
        thread = await self._store.load_thread(thread_id) if thread_id else None
        if thread is not None:
            await self.thread(principal, thread_id)

    async def _last_checkpoint(self, run: RunRecord, thread: ThreadRecord) -> str:
        if thread.run_id == run.run_id:
            return "" if thread.head is None else checkpoint_id(thread.thread_id, thread.head)
        # A run that ended told of its last checkpoint near the end of its journal.
        first = max(run.next_offset - _TAIL_EVENTS, 0)
        last = ""
        for event in await self._store.list_events(run.run_id, first, _TAIL_EVENTS):
            if event.kind == "checkpoint.saved":
                payload: Any = load(event.payload)
                last = str(payload["checkpoint_id"])
        return last


def _is_of(item: InterruptRecord, run: RunRecord) -> bool:
    """Whether a run waits for an answer; those of an embedded graph, and of graphs inside it, are kept as the root's."""
    if not run.parent_run_id:
        return item.run_id == run.run_id
    return item.run_id == run.root_run_id and f"{item.namespace}/".startswith(f"{run.namespace}/")
