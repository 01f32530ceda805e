"""Threads and runs of graphs in memory: the model of RunStore, beside MemoryStore and in its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.support.memory_store import MemoryDatabase, with_extra

from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.ports import ExtraRows, ExtraRowsRefused
from agenttx_server.engine.records import ServerId
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
    LIVE,
    CachedAnswer,
    CheckpointRecord,
    CheckpointSource,
    EmbeddedCheckpoint,
    EventRecord,
    InterruptRecord,
    InterruptState,
    RequestRecord,
    RunRecord,
    RunStatus,
    StopRequest,
    TaskRecord,
    TaskState,
    ThreadRecord,
    ValueRecord,
)
from agenttx_server.store import run_rows
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.run_schema import EXTRA_TABLES

__all__ = ["RUN_TABLES", "MemoryRunStore"]

RUN_TABLES: Mapping[str, Sequence[int]] = {
    table.name: [list(table.columns.keys()).index(column.name) for column in table.primary_key]
    for table in EXTRA_TABLES
}


TABLES_BY_NAME = {table.name: list(table.columns.keys()) for table in EXTRA_TABLES}


class MemoryRunStore:
    """What RunStore says, of rows in a MemoryDatabase."""

    def __init__(self, database: MemoryDatabase, *, is_shared: bool = False) -> None:
        self.database = database
        self.signals: EventSignals[str] = EventSignals()
        self.is_shared = is_shared
        if not is_shared:
            database.on_extra.append(self._tell)

    def rows(self, change: RunChange) -> Sequence[ExtraRows]:
        return run_rows.extra_rows(change)

    async def write(self, change: RunChange) -> None:
        for thread in change.unchanged_threads:
            if await self.load_thread(thread.thread_id) != thread:
                raise ExtraRowsRefused(f"thread {thread.thread_id} has moved on")
        rows = self.rows(change)
        self.database.extra = with_extra(self.database.extra, rows, RUN_TABLES)
        self.database.tell(rows)

    def _tell(self, rows: Sequence[ExtraRows]) -> None:
        for run_id in {str(row[0]) for item in rows if item.table == "graph_events" for row in item.rows}:
            self.signals.notify(run_id)
            self.signals.notify(ANY_RUN)

    async def load_thread(self, thread_id: str) -> ThreadRecord | None:
        return self._one("graph_threads", run_rows.THREAD, thread_id)

    async def load_run(self, run_id: str) -> RunRecord | None:
        return self._one("graph_runs", run_rows.RUN, run_id)

    async def load_checkpoint(self, thread_id: str, number: int) -> CheckpointRecord | None:
        return self._one("graph_checkpoints", run_rows.CHECKPOINT, thread_id, number)

    async def load_values(self, thread_id: str, places: Places) -> Sequence[ValueRecord]:
        return [
            value
            for value in self._all("graph_values", run_rows.VALUE)
            if value.thread_id == thread_id
            and (place := places.get(value.channel))
            and place.base <= value.number <= place.number
        ]

    async def all_values(self, thread_id: str) -> Sequence[ValueRecord]:
        found = [item for item in self._all("graph_values", run_rows.VALUE) if item.thread_id == thread_id]
        return sorted(found, key=lambda item: (item.channel, item.number))

    async def prune(self, thread: ThreadRecord, plan: Pruning) -> bool:
        thread_id = thread.thread_id
        if await self.load_thread(thread_id) != thread:
            return False
        extra = {name: dict(table) for name, table in self.database.extra.items()}
        checkpoints, values = extra["graph_checkpoints"], extra["graph_values"]
        # As UPDATE and DELETE do: what another pruning removed is not there again, and not missed.
        for value in plan.values:
            if (key := (thread_id, value.channel, value.number)) in values:
                values[key] = run_rows.VALUE.row(value)
        for checkpoint in plan.checkpoints:
            if (thread_id, checkpoint.number) in checkpoints:
                checkpoints[thread_id, checkpoint.number] = run_rows.CHECKPOINT.row(checkpoint)
        for number in plan.checkpoints_gone:
            checkpoints.pop((thread_id, number), None)
        for channel, number in plan.values_gone:
            values.pop((thread_id, channel, number), None)
        for namespace, number in plan.embedded_gone:
            extra["graph_embedded_checkpoints"].pop((thread_id, namespace, number), None)
        self.database.extra = extra
        return True

    async def delete_thread(self, thread: ThreadRecord, request: RequestRecord | None = None) -> bool:
        thread_id = thread.thread_id
        of_thread = [run for run in self._all("graph_runs", run_rows.RUN) if run.thread_id == thread_id]
        if await self.load_thread(thread_id) != thread or any(run.status in LIVE for run in of_thread):
            return False
        runs = {run.run_id for run in of_thread}
        kept = {}
        for name, table in self.database.extra.items():
            columns = TABLES_BY_NAME.get(name, [])
            kept[name] = {
                key: row
                for key, row in table.items()
                if not (
                    ("thread_id" in columns and row[columns.index("thread_id")] == thread_id)
                    or ("run_id" in columns and row[columns.index("run_id")] in runs)
                )
            }
        if request is not None:
            kept = with_extra(kept, self.rows(RunChange(requests=(request,))), RUN_TABLES)
        self.database.extra = kept
        return True

    async def load_tasks(self, run_id: str, superstep: int) -> Sequence[TaskRecord]:
        tasks = self._all("graph_tasks", run_rows.TASK)
        found = [task for task in tasks if (task.run_id, task.superstep) == (run_id, superstep)]
        return sorted(found, key=lambda task: task.ordinal)

    async def load_interrupts(self, run_id: str, superstep: int) -> Sequence[InterruptRecord]:
        asked = self._all("graph_interrupts", run_rows.INTERRUPT)
        found = [item for item in asked if (item.run_id, item.superstep) == (run_id, superstep)]
        return sorted(found, key=lambda item: (item.task_id, item.ordinal))

    async def list_interrupts(self, thread_id: str) -> Sequence[InterruptRecord]:
        asked = self._all("graph_interrupts", run_rows.INTERRUPT)
        found = [i for i in asked if i.thread_id == thread_id and i.state is InterruptState.PENDING]
        return sorted(found, key=lambda item: (item.superstep, item.task_id, item.ordinal))

    async def list_checkpoints(
        self, thread_id: str, sources: frozenset[CheckpointSource], cursor: str, limit: int
    ) -> CheckpointPage:
        before = decode_cursor("checkpoints", cursor, int)[0] if cursor else 1 << 62
        found = sorted(
            (
                item
                for item in self._all("graph_checkpoints", run_rows.CHECKPOINT)
                if item.thread_id == thread_id
                and item.number < before
                and (not sources or item.source in sources)
            ),
            key=lambda item: -item.number,
        )
        page = found[:limit]
        more = len(found) > limit
        return CheckpointPage(page, encode_cursor("checkpoints", page[-1].number) if more else "")

    async def list_embedded(
        self, thread_id: str, namespace: str, before: int | None, limit: int
    ) -> Sequence[EmbeddedCheckpoint]:
        found = [
            item
            for item in self._all("graph_embedded_checkpoints", run_rows.EMBEDDED)
            if (item.thread_id, item.namespace) == (thread_id, namespace)
            and (before is None or item.number < before)
        ]
        return sorted(found, key=lambda item: -item.number)[:limit]

    async def list_runs(self, which: RunFilter, cursor: str, limit: int) -> RunPage:
        before = decode_cursor("runs", cursor, int, str) if cursor else (1 << 62, "")
        found = [
            run
            for run in self._all("graph_runs", run_rows.RUN)
            if which.principal in ("", run.principal)
            and which.thread_id in ("", run.thread_id)
            and which.graph in ("", run.graph)
            and (not which.statuses or run.status in which.statuses)
            and (which.include_children or not run.parent_run_id)
            and (run.created_at, run.run_id) < before
        ]
        found.sort(key=lambda run: (run.created_at, run.run_id), reverse=True)
        page = found[:limit]
        more = len(found) > limit
        return RunPage(page, encode_cursor("runs", page[-1].created_at, page[-1].run_id) if more else "")

    async def list_threads(
        self, principal: str, graph: str, statuses: frozenset[RunStatus], cursor: str, limit: int
    ) -> ThreadPage:
        before = decode_cursor("threads", cursor, int, str) if cursor else (1 << 62, "")
        runs = {run.run_id: run for run in self._all("graph_runs", run_rows.RUN)}
        found = [
            (thread, runs[thread.run_id])
            for thread in self._all("graph_threads", run_rows.THREAD)
            if principal in ("", thread.principal)
            and graph in ("", thread.graph)
            and (not statuses or runs[thread.run_id].status in statuses)
            and (thread.updated_at, thread.thread_id) < before
        ]
        found.sort(key=lambda item: (item[0].updated_at, item[0].thread_id), reverse=True)
        page = found[:limit]
        if len(found) <= limit:
            return ThreadPage(page, "")
        last = page[-1][0]
        return ThreadPage(page, encode_cursor("threads", last.updated_at, last.thread_id))

    async def list_events(
        self, run_id: str, from_offset: int, limit: int, byte_limit: int | None = None
    ) -> Sequence[EventRecord]:
        found = [event for event in self._events() if event.run_id == run_id and event.offset >= from_offset]
        return _within(sorted(found, key=lambda event: event.offset)[:limit], byte_limit)

    async def list_events_from(
        self,
        which: EventFilter,
        after_sequence: int,
        limit: int,
        *,
        up_to: int | None = None,
        byte_limit: int | None = None,
    ) -> Sequence[EventRecord]:
        principals = {run.run_id: run.principal for run in self._all("graph_runs", run_rows.RUN)}
        found = [
            event
            for event in self._events()
            if event.sequence > after_sequence
            and (up_to is None or event.sequence <= up_to)
            and which.principal in ("", principals.get(event.run_id))
            and which.run_id in ("", event.run_id)
            and which.root_run_id in ("", event.root_run_id)
            and which.thread_id in ("", event.thread_id)
            and which.graph in ("", event.graph)
        ]
        return _within(found[:limit], byte_limit)

    async def written_since(self, sequence: int) -> tuple[int, Sequence[str]]:
        found = [event for event in self._events() if event.sequence > sequence]
        return len(self._events()), sorted({event.run_id for event in found})

    async def last_sequence(self) -> int:
        return len(self._events())

    async def node_timings(self, thread_id: str) -> Sequence[NodeTiming]:
        times: dict[str, list[int]] = {}
        for task in self._all("graph_tasks", run_rows.TASK):
            if task.thread_id == thread_id and task.ended_at:
                times.setdefault(task.node, []).append(task.ended_at - task.started_at)
        return [
            NodeTiming(node, len(took), sum(took) / len(took), max(took))
            for node, took in sorted(times.items())
        ]

    async def count_checkpoints(self, thread_id: str) -> int:
        found = self._all("graph_checkpoints", run_rows.CHECKPOINT)
        return sum(1 for item in found if item.thread_id == thread_id)

    async def find_request(self, principal: str, request_id: str) -> RequestRecord | None:
        return self._one("graph_requests", run_rows.REQUEST, principal, request_id)

    async def list_stops(self, run_ids: Sequence[str]) -> Sequence[StopRequest]:
        words = [word for word in self._all("graph_stops", run_rows.STOP) if word.run_id in run_ids]
        return sorted(words, key=lambda word: (word.run_id, word.kind))

    async def forget_stops(self, words: Sequence[StopRequest]) -> None:
        stops = self.database.extra.get("graph_stops", {})
        for word in words:
            row = stops.get((word.run_id, word.kind.value))
            if row is not None and run_rows.STOP.record(row).invocation == word.invocation:
                del stops[word.run_id, word.kind.value]

    async def claim_runs(self, server_id: str, now: int, limit: int) -> Sequence[RunRecord]:
        orphans = [
            replace(run, server_id=server_id)
            for run in sorted(self._all("graph_runs", run_rows.RUN), key=lambda run: run.run_id)
            if run.server_id
            and not self.database.is_alive(ServerId(run.server_id), now)
            and _is_to_be_seen_to(run)
        ][:limit]
        await self.write(RunChange(runs=orphans))
        return orphans

    async def list_runs_of(self, server_id: str, unchanged_since: int, limit: int) -> Sequence[RunRecord]:
        found = [
            run
            for run in self._all("graph_runs", run_rows.RUN)
            if run.server_id == server_id and run.updated_at < unchanged_since and _is_to_be_seen_to(run)
        ]
        return sorted(found, key=lambda run: (run.created_at, run.run_id))[:limit]

    async def list_overdue(self, now: int, after: tuple[int, str], limit: int) -> Sequence[RunRecord]:
        waiting = [
            (run.waits_until, run.run_id, run)
            for run in self._all("graph_runs", run_rows.RUN)
            if run.waits_until is not None and run.waits_until <= now
        ]
        found = sorted(item for item in waiting if item[:2] > after)
        return [run for _, _, run in found[:limit]]

    async def find_cached(self, cache_key: str, now: int) -> CachedAnswer | None:
        found: CachedAnswer | None = self._one("graph_node_cache", run_rows.CACHED, cache_key)
        if found is None or (found.expires_at is not None and found.expires_at <= now):
            return None
        return found

    async def list_cacheable(self, run_id: str) -> Sequence[TaskRecord]:
        found = [
            task
            for task in self._all("graph_tasks", run_rows.TASK)
            if task.run_id == run_id and task.state is TaskState.FOLDED and task.answer and task.cache_key
        ]
        return sorted(found, key=lambda task: (task.superstep, task.ordinal))

    async def purge_cached(self, now: int, most: int, limit: int) -> int:
        table = self.database.extra.get("graph_node_cache", {})
        kept = [run_rows.CACHED.record(row) for row in table.values()]
        expired = [item for item in kept if item.expires_at is not None and item.expires_at <= now][:limit]
        left = sorted(
            (item for item in kept if item not in expired),
            key=lambda item: (-item.created_at, item.cache_key),
        )
        gone = [*expired, *left[most : most + limit]]
        for item in gone:
            del table[item.cache_key,]
        return len(gone)

    async def purge_runs(self, ended_before: int) -> int:
        gone = {
            run.run_id
            for run in self._all("graph_runs", run_rows.RUN)
            if not run.thread_id
            and run.status not in LIVE
            and (run.updated_at if run.ended_at is None else run.ended_at) < ended_before
            and run.transaction_id not in self.database.transactions
        }
        for name in (
            "graph_requests",
            "graph_stops",
            "graph_events",
            "graph_interrupts",
            "graph_tasks",
            "graph_runs",
        ):
            at = TABLES_BY_NAME[name].index("run_id")
            table = self.database.extra.get(name, {})
            self.database.extra[name] = {key: row for key, row in table.items() if row[at] not in gone}
        return len(gone)

    def _one(self, table: str, codec: Any, *key: Any) -> Any:
        row = self.database.extra.get(table, {}).get(key)
        return None if row is None else codec.record(row)

    def _all(self, table: str, codec: Any) -> list[Any]:
        return [codec.record(row) for row in self.database.extra.get(table, {}).values()]

    def _events(self) -> list[EventRecord]:
        rows = self.database.extra.get("graph_events", {}).values()
        return [run_rows.EVENT.record((*row, number)) for number, row in enumerate(rows, start=1)]


def _within(events: Sequence[EventRecord], byte_limit: int | None) -> Sequence[EventRecord]:
    size = 0
    for number, event in enumerate(events):
        size += sum(len(part.encode()) for part in run_rows.EVENT.row(event) if isinstance(part, str))
        if number and byte_limit is not None and size > byte_limit:
            return events[:number]
    return events


def _is_to_be_seen_to(run: RunRecord) -> bool:
    return run.status in LIVE or (not run.thread_id and run.status is not RunStatus.COMPLETED)
