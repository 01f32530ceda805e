"""Threads and runs of graphs on SQL: :class:`graphs.runs.ports.RunStore`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from agenttx_server.audit.actor import current_actor
from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.ports import ExtraRows, ExtraRowsRefused
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.graphs.runs.channel_values import Places
from agenttx_server.graphs.runs.ports import (
    ANY_RUN,
    CheckpointPage,
    EventFilter,
    NodeTiming,
    Pruning,
    RunChange,
    RunFilter,
    RunPage,
    ThreadPage,
)
from agenttx_server.graphs.runs.records import (
    CachedAnswer,
    CheckpointRecord,
    CheckpointSource,
    EmbeddedCheckpoint,
    EventRecord,
    InterruptRecord,
    RequestRecord,
    RunRecord,
    RunStatus,
    StopRequest,
    TaskRecord,
    ThreadRecord,
    ValueRecord,
)
from agenttx_server.store import journal_reading, run_reading, run_removal, run_retention
from agenttx_server.store.audit_deeds import deeds_of_extra
from agenttx_server.store.audit_table import append, deed_now
from agenttx_server.store.prepared_query import WriteCalls
from agenttx_server.store.run_rows import extra_rows, write_rows
from agenttx_server.store.served_database import ServedDatabase

__all__ = ["SqlRunStore"]

_OLD_RUNS_AT_ONCE = 100
# Each has some dozens of rows, and while they are deleted nothing else is written.
_PURGED_AT_ONCE = 20


class SqlRunStore:
    """Made by SqlTransactionStore, whose database it shares."""

    def __init__(self, database: ServedDatabase) -> None:
        self.signals: EventSignals[str] = EventSignals()
        self._database = database
        self._writer = database.writer
        self._pool = database.pool

    @property
    def is_shared(self) -> bool:
        return self._database.is_shared

    def rows(self, change: RunChange) -> Sequence[ExtraRows]:
        return extra_rows(change)

    async def write(self, change: RunChange) -> None:
        rows = extra_rows(change)
        owners = {run.run_id: run.principal for run in change.runs}
        deeds = [
            *deeds_of_extra(rows, next(iter(owners.values()), "")),
            *(
                deed_now(
                    current_actor(), owners.get(stop.run_id, ""), f"run.ask_{stop.kind.lower()}", stop.run_id
                )
                for stop in change.stops
            ),
        ]

        def work(calls: WriteCalls) -> None:
            for thread in change.unchanged_threads:
                if not run_removal.is_as_it_was(calls, thread):
                    raise ExtraRowsRefused(f"thread {thread.thread_id} has moved on")
            write_rows(calls, rows)
            append(calls, deeds)

        writing = self._writer.run(work)
        tell = self.telling_of(rows)
        if tell is None:
            await writing
            return

        def settled(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                done.exception()  # seen, also where nobody waits any more
            tell()

        writing.add_done_callback(settled)
        await asyncio.shield(writing)

    def telling_of(self, rows: Iterable[ExtraRows]) -> Callable[[], None] | None:
        """Return what wakes those who follow the journals that these rows are of; None if they are of none.

        It is to be called when the rows are written or refused, whoever still waits for that.
        """
        written = {str(row[0]) for item in rows if item.table == "graph_events" for row in item.rows}
        return partial(self._tell, written) if written else None

    def _tell(self, written: Iterable[str]) -> None:
        for run_id in written:
            self.signals.notify(run_id)
        self.signals.notify(ANY_RUN)

    async def load_thread(self, thread_id: str) -> ThreadRecord | None:
        return await self._pool.read(run_reading.load_thread, thread_id)

    async def load_run(self, run_id: str) -> RunRecord | None:
        return await self._pool.read(run_reading.load_run, run_id)

    async def load_checkpoint(self, thread_id: str, number: int) -> CheckpointRecord | None:
        return await self._pool.read(run_reading.load_checkpoint, thread_id, number)

    async def load_values(self, thread_id: str, places: Places) -> Sequence[ValueRecord]:
        return await self._pool.read(run_reading.load_values, thread_id, places)

    async def all_values(self, thread_id: str) -> Sequence[ValueRecord]:
        return await self._pool.read(run_reading.all_values, thread_id)

    async def prune(self, thread: ThreadRecord, plan: Pruning) -> bool:
        return await self._writer.run(_noted("thread.prune", thread, partial(run_removal.prune, plan=plan)))

    async def delete_thread(self, thread: ThreadRecord, request: RequestRecord | None = None) -> bool:
        deletion = partial(run_removal.delete_thread, request=request)
        deleted = await self._writer.run(_noted("thread.delete", thread, deletion))
        if deleted:
            self.signals.notify_all()  # whose runs are gone is for those to find who follow them
        return deleted

    async def load_tasks(self, run_id: str, superstep: int) -> Sequence[TaskRecord]:
        return await self._pool.read(run_reading.load_tasks, run_id, superstep)

    async def load_interrupts(self, run_id: str, superstep: int) -> Sequence[InterruptRecord]:
        return await self._pool.read(run_reading.load_interrupts, run_id, superstep)

    async def list_interrupts(self, thread_id: str) -> Sequence[InterruptRecord]:
        return await self._pool.read(run_reading.list_interrupts, thread_id)

    async def list_checkpoints(
        self, thread_id: str, sources: frozenset[CheckpointSource], cursor: str, limit: int
    ) -> CheckpointPage:
        return await self._pool.read(run_reading.list_checkpoints, thread_id, sources, cursor, limit)

    async def list_embedded(
        self, thread_id: str, namespace: str, before: int | None, limit: int
    ) -> Sequence[EmbeddedCheckpoint]:
        return await self._pool.read(run_reading.list_embedded, thread_id, namespace, before, limit)

    async def list_runs(self, which: RunFilter, cursor: str, limit: int) -> RunPage:
        return await self._pool.read(run_reading.list_runs, which, cursor, limit)

    async def list_threads(
        self, principal: str, graph: str, statuses: frozenset[RunStatus], cursor: str, limit: int
    ) -> ThreadPage:
        return await self._pool.read(run_reading.list_threads, principal, graph, statuses, cursor, limit)

    async def list_events(
        self, run_id: str, from_offset: int, limit: int, byte_limit: int | None = None
    ) -> Sequence[EventRecord]:
        if byte_limit is None:
            return await self._pool.read(journal_reading.list_events, run_id, from_offset, limit)
        return await self._pool.read(
            journal_reading.list_events_within, run_id, from_offset, limit, byte_limit
        )

    async def list_events_from(
        self,
        which: EventFilter,
        after_sequence: int,
        limit: int,
        *,
        up_to: int | None = None,
        byte_limit: int | None = None,
    ) -> Sequence[EventRecord]:
        return await self._pool.read(
            journal_reading.list_events_from, which, after_sequence, limit, up_to, byte_limit
        )

    async def written_since(self, sequence: int) -> tuple[int, Sequence[str]]:
        return await self._pool.read(journal_reading.written_since, sequence)

    async def last_sequence(self) -> int:
        return await self._pool.read(journal_reading.last_sequence)

    async def node_timings(self, thread_id: str) -> Sequence[NodeTiming]:
        return await self._pool.read(run_reading.node_timings, thread_id)

    async def count_checkpoints(self, thread_id: str) -> int:
        return await self._pool.read(run_reading.count_checkpoints, thread_id)

    async def find_request(self, principal: str, request_id: str) -> RequestRecord | None:
        return await self._pool.read(run_reading.find_request, principal, request_id)

    async def list_stops(self, run_ids: Sequence[str]) -> Sequence[StopRequest]:
        return await self._pool.read(run_reading.list_stops, run_ids)

    async def forget_stops(self, words: Sequence[StopRequest]) -> None:
        await self._writer.run(partial(run_reading.forget_stops, words=words))

    async def claim_runs(self, server_id: str, now: int, limit: int) -> Sequence[RunRecord]:
        return await self._writer.run(
            lambda calls: run_reading.claim_runs(
                calls, server_id, self._database.lease_time(calls, MicrosecondsUtc(now)), limit
            )
        )

    async def purge_runs(self, ended_before: int) -> int:
        purged, after = 0, run_retention.FIRST
        while True:
            ended, following = await self._pool.read(
                run_retention.list_ended, ended_before, after, _OLD_RUNS_AT_ONCE
            )
            for at in range(0, len(ended), _PURGED_AT_ONCE):
                going = ended[at : at + _PURGED_AT_ONCE]
                purged += await self._writer.run(partial(run_retention.purge, run_ids=going))
            if following is None:
                break
            after = following
        if purged:
            self.signals.notify_all()  # whose runs are gone is for those to find who follow them
        return purged

    async def list_runs_of(self, server_id: str, unchanged_since: int, limit: int) -> Sequence[RunRecord]:
        return await self._pool.read(run_reading.list_runs_of, server_id, unchanged_since, limit)

    async def list_overdue(self, now: int, after: tuple[int, str], limit: int) -> Sequence[RunRecord]:
        return await self._pool.read(run_reading.list_overdue, now, after, limit)

    async def find_cached(self, cache_key: str, now: int) -> CachedAnswer | None:
        return await self._pool.read(run_reading.find_cached, cache_key, now)

    async def list_cacheable(self, run_id: str) -> Sequence[TaskRecord]:
        return await self._pool.read(run_reading.list_cacheable, run_id)

    async def purge_cached(self, now: int, most: int, limit: int) -> int:
        return await self._writer.run(partial(run_reading.purge_cached, now=now, most=most, limit=limit))


def _noted(
    action: str, thread: ThreadRecord, change: Callable[[WriteCalls, ThreadRecord], bool]
) -> Callable[[WriteCalls], bool]:
    """Return a change of a thread that notes itself in the audit trail if it is carried out."""
    deed = deed_now(current_actor(), thread.principal, action, thread.thread_id)

    def work(calls: WriteCalls) -> bool:
        is_done = change(calls, thread)
        if is_done:
            append(calls, [deed])
        return is_done

    return work
