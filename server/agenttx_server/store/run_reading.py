"""Queries over threads and runs of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, Table, and_, bindparam, delete, func, or_, select, update

from agenttx_server.graphs.runs.channel_values import Places
from agenttx_server.graphs.runs.ports import (
    CheckpointPage,
    NodeTiming,
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
    InterruptRecord,
    RequestRecord,
    RunRecord,
    RunStatus,
    StopRequest,
    TaskRecord,
    TaskState,
    ThreadRecord,
    ValueRecord,
)
from agenttx_server.store import run_rows as rows
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls, executed
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import RecordCodec
from agenttx_server.store.run_schema import (
    graph_checkpoints,
    graph_embedded_checkpoints,
    graph_interrupts,
    graph_node_cache,
    graph_requests,
    graph_runs,
    graph_stops,
    graph_tasks,
    graph_threads,
    graph_values,
)
from agenttx_server.store.schema import servers
from agenttx_server.store.seen_owners import seen_by

__all__ = [
    "all_values",
    "claim_runs",
    "count_checkpoints",
    "find_cached",
    "find_request",
    "forget_stops",
    "list_cacheable",
    "list_checkpoints",
    "list_embedded",
    "list_interrupts",
    "list_overdue",
    "list_runs",
    "list_runs_of",
    "list_stops",
    "list_threads",
    "load_checkpoint",
    "load_interrupts",
    "load_run",
    "load_tasks",
    "load_thread",
    "load_values",
    "node_timings",
    "purge_cached",
]


def _columns(table: Table, codec: RecordCodec[Any]) -> list[Any]:
    return [table.c[name] for name in codec.columns]


_THREAD_COLUMNS = _columns(graph_threads, rows.THREAD)
_RUN_COLUMNS = _columns(graph_runs, rows.RUN)
_CHECKPOINT_COLUMNS = _columns(graph_checkpoints, rows.CHECKPOINT)
_EMBEDDED_COLUMNS = _columns(graph_embedded_checkpoints, rows.EMBEDDED)

# --- single records ---------------------------------------------------------------------------------

_THREAD = PreparedQuery(select(*_THREAD_COLUMNS).where(graph_threads.c.thread_id == bindparam("thread_id")))
_RUN = PreparedQuery(select(*_RUN_COLUMNS).where(graph_runs.c.run_id == bindparam("run_id")))
_CHECKPOINT = PreparedQuery(
    select(*_CHECKPOINT_COLUMNS).where(
        graph_checkpoints.c.thread_id == bindparam("thread_id"),
        graph_checkpoints.c.number == bindparam("number"),
    )
)
_REQUEST = PreparedQuery(
    select(*_columns(graph_requests, rows.REQUEST)).where(
        graph_requests.c.principal == bindparam("principal"),
        graph_requests.c.request_id == bindparam("request_id"),
    )
)


@one_statement
def load_thread(connection: Connection, thread_id: str) -> ThreadRecord | None:
    """Return a thread."""
    row = _THREAD.run(connection, thread_id=thread_id).first()
    return None if row is None else rows.THREAD.record(row)


@one_statement
def load_run(connection: Connection, run_id: str) -> RunRecord | None:
    """Return a run."""
    row = _RUN.run(connection, run_id=run_id).first()
    return None if row is None else rows.RUN.record(row)


@one_statement
def load_checkpoint(connection: Connection, thread_id: str, number: int) -> CheckpointRecord | None:
    """Return a checkpoint."""
    row = _CHECKPOINT.run(connection, thread_id=thread_id, number=number).first()
    return None if row is None else rows.CHECKPOINT.record(row)


@one_statement
def find_request(connection: Connection, principal: str, request_id: str) -> RequestRecord | None:
    """Return a request that was answered."""
    row = _REQUEST.run(connection, principal=principal, request_id=request_id).first()
    return None if row is None else rows.REQUEST.record(row)


# --- parts of a superstep ---------------------------------------------------------------------------

_OF_THREAD = graph_values.c.thread_id == bindparam("thread_id")
_VALUE_COLUMNS = _columns(graph_values, rows.VALUE)
_VALUES_AT = PreparedQuery(
    select(*_VALUE_COLUMNS).where(_OF_THREAD, graph_values.c.number == bindparam("number"))
)
_VALUES_BETWEEN = PreparedQuery(
    select(*_VALUE_COLUMNS).where(
        _OF_THREAD,
        graph_values.c.channel == bindparam("channel"),
        graph_values.c.number >= bindparam("first"),
        graph_values.c.number <= bindparam("last"),
    )
)
_TASKS = PreparedQuery(
    select(*_columns(graph_tasks, rows.TASK))
    .where(
        graph_tasks.c.run_id == bindparam("run_id"),
        graph_tasks.c.superstep == bindparam("superstep"),
    )
    .order_by(graph_tasks.c.ordinal)
)
_INTERRUPT_COLUMNS = _columns(graph_interrupts, rows.INTERRUPT)
_INTERRUPTS = PreparedQuery(
    select(*_INTERRUPT_COLUMNS)
    .where(
        graph_interrupts.c.run_id == bindparam("run_id"),
        graph_interrupts.c.superstep == bindparam("superstep"),
    )
    .order_by(graph_interrupts.c.task_id, graph_interrupts.c.ordinal)
)
_PENDING_INTERRUPTS = PreparedQuery(
    select(*_INTERRUPT_COLUMNS)
    .where(graph_interrupts.c.thread_id == bindparam("thread_id"), graph_interrupts.c.state == "PENDING")
    .order_by(graph_interrupts.c.superstep, graph_interrupts.c.task_id, graph_interrupts.c.ordinal)
)


def load_values(connection: Connection, thread_id: str, places: Places) -> Sequence[ValueRecord]:
    """Return at least all records that the places lead to."""
    found: list[ValueRecord] = []
    # Values that are whole, which nearly all are, in one query for each checkpoint that wrote some.
    for number in sorted({place.number for place in places.values() if place.number == place.base}):
        found += map(rows.VALUE.record, _VALUES_AT.run(connection, thread_id=thread_id, number=number))
    for channel, place in sorted(places.items()):
        if place.number != place.base:
            chain = _VALUES_BETWEEN.run(
                connection, thread_id=thread_id, channel=channel, first=place.base, last=place.number
            )
            found += map(rows.VALUE.record, chain)
    return found


@one_statement
def load_tasks(connection: Connection, run_id: str, superstep: int) -> Sequence[TaskRecord]:
    """Return the tasks of a superstep, by ordinal."""
    return [rows.TASK.record(row) for row in _TASKS.run(connection, run_id=run_id, superstep=superstep)]


@one_statement
def load_interrupts(connection: Connection, run_id: str, superstep: int) -> Sequence[InterruptRecord]:
    """Return all questions of a superstep's tasks."""
    found = _INTERRUPTS.run(connection, run_id=run_id, superstep=superstep)
    return [rows.INTERRUPT.record(row) for row in found]


@one_statement
def list_interrupts(connection: Connection, thread_id: str) -> Sequence[InterruptRecord]:
    """Return what a thread waits for."""
    return [rows.INTERRUPT.record(row) for row in _PENDING_INTERRUPTS.run(connection, thread_id=thread_id)]


_ALL_VALUES = PreparedQuery(
    select(*_VALUE_COLUMNS).where(_OF_THREAD).order_by(graph_values.c.channel, graph_values.c.number)
)


@one_statement
def all_values(connection: Connection, thread_id: str) -> Sequence[ValueRecord]:
    """Return all that checkpoints of a thread wrote."""
    return [rows.VALUE.record(row) for row in _ALL_VALUES.run(connection, thread_id=thread_id)]


# --- listings ---------------------------------------------------------------------------------------


def list_checkpoints(
    connection: Connection, thread_id: str, sources: frozenset[CheckpointSource], cursor: str, limit: int
) -> CheckpointPage:
    """Return a page of checkpoints, the newest first."""
    query = select(*_CHECKPOINT_COLUMNS).where(graph_checkpoints.c.thread_id == thread_id)
    if sources:
        query = query.where(graph_checkpoints.c.source.in_(sorted(sources)))
    if cursor:
        (before,) = decode_cursor("checkpoints", cursor, int)
        query = query.where(graph_checkpoints.c.number < before)
    found = executed(connection, query.order_by(graph_checkpoints.c.number.desc()).limit(limit + 1)).all()
    page = [rows.CHECKPOINT.record(row) for row in found[:limit]]
    more = len(found) > limit
    return CheckpointPage(page, encode_cursor("checkpoints", page[-1].number) if more else "")


def list_embedded(
    connection: Connection, thread_id: str, namespace: str, before: int | None, limit: int
) -> Sequence[EmbeddedCheckpoint]:
    """Return checkpoints of a graph inside another, the newest first."""
    table = graph_embedded_checkpoints
    query = select(*_EMBEDDED_COLUMNS).where(table.c.thread_id == thread_id, table.c.namespace == namespace)
    if before is not None:
        query = query.where(table.c.number < before)
    found = executed(connection, query.order_by(table.c.number.desc()).limit(limit))
    return [rows.EMBEDDED.record(row) for row in found]


def list_runs(connection: Connection, which: RunFilter, cursor: str, limit: int) -> RunPage:
    """Return a page of runs, the newest first."""
    query = select(*_RUN_COLUMNS)
    if which.principal:
        query = query.where(seen_by(graph_runs.c.principal, which.principal))
    for column, wanted in (
        (graph_runs.c.thread_id, which.thread_id),
        (graph_runs.c.graph, which.graph),
    ):
        if wanted:
            query = query.where(column == wanted)
    if which.statuses:
        query = query.where(graph_runs.c.status.in_(sorted(which.statuses)))
    if not which.include_children:
        query = query.where(graph_runs.c.parent_run_id == "")
    if cursor:
        created_at, run_id = decode_cursor("runs", cursor, int, str)
        query = query.where(
            or_(
                graph_runs.c.created_at < created_at,
                and_(graph_runs.c.created_at == created_at, graph_runs.c.run_id < run_id),
            )
        )
    ordered = query.order_by(graph_runs.c.created_at.desc(), graph_runs.c.run_id.desc())
    found = executed(connection, ordered.limit(limit + 1)).all()
    page = [rows.RUN.record(row) for row in found[:limit]]
    more = len(found) > limit
    return RunPage(page, encode_cursor("runs", page[-1].created_at, page[-1].run_id) if more else "")


def list_threads(
    connection: Connection,
    principal: str,
    graph: str,
    statuses: frozenset[RunStatus],
    cursor: str,
    limit: int,
) -> ThreadPage:
    """Return a page of threads with their newest runs, those last used first."""
    query = select(*_THREAD_COLUMNS, *_RUN_COLUMNS).join(
        graph_runs, graph_runs.c.run_id == graph_threads.c.run_id
    )
    if principal:
        query = query.where(seen_by(graph_threads.c.principal, principal))
    if graph:
        query = query.where(graph_threads.c.graph == graph)
    if statuses:
        query = query.where(graph_runs.c.status.in_(sorted(statuses)))
    if cursor:
        updated_at, thread_id = decode_cursor("threads", cursor, int, str)
        query = query.where(
            or_(
                graph_threads.c.updated_at < updated_at,
                and_(graph_threads.c.updated_at == updated_at, graph_threads.c.thread_id < thread_id),
            )
        )
    ordered = query.order_by(graph_threads.c.updated_at.desc(), graph_threads.c.thread_id.desc())
    found = executed(connection, ordered.limit(limit + 1)).all()
    width = len(_THREAD_COLUMNS)
    page = [(rows.THREAD.record(row[:width]), rows.RUN.record(row[width:])) for row in found[:limit]]
    if len(found) <= limit:
        return ThreadPage(page, "")
    last = page[-1][0]
    return ThreadPage(page, encode_cursor("threads", last.updated_at, last.thread_id))


# --- projections ------------------------------------------------------------------------------------

_DURATION = graph_tasks.c.ended_at - graph_tasks.c.started_at
_TIMINGS = PreparedQuery(
    select(graph_tasks.c.node, func.count(), func.sum(_DURATION), func.max(_DURATION))
    .where(graph_tasks.c.thread_id == bindparam("thread_id"), graph_tasks.c.ended_at > 0)
    .group_by(graph_tasks.c.node)
    .order_by(graph_tasks.c.node)
)
_CHECKPOINTS = PreparedQuery(
    select(func.count())
    .select_from(graph_checkpoints)
    .where(graph_checkpoints.c.thread_id == bindparam("thread_id"))
)


@one_statement
def node_timings(connection: Connection, thread_id: str) -> Sequence[NodeTiming]:
    """Return how long a thread's nodes took, by name."""
    found = _TIMINGS.run(connection, thread_id=thread_id)
    return [
        NodeTiming(node, count, int(total) / count, int(longest)) for node, count, total, longest in found
    ]


@one_statement
def count_checkpoints(connection: Connection, thread_id: str) -> int:
    """Return how many checkpoints a thread has."""
    return int(_CHECKPOINTS.run(connection, thread_id=thread_id).scalar_one())


# --- answers of nodes that are kept ------------------------------------------------------------------

_CACHED = PreparedQuery(
    select(*_columns(graph_node_cache, rows.CACHED)).where(
        graph_node_cache.c.cache_key == bindparam("key"),
        or_(graph_node_cache.c.expires_at.is_(None), graph_node_cache.c.expires_at > bindparam("now")),
    )
)
_CACHEABLE = PreparedQuery(
    select(*_columns(graph_tasks, rows.TASK))
    .where(
        graph_tasks.c.run_id == bindparam("run_id"),
        graph_tasks.c.state == TaskState.FOLDED.value,
        graph_tasks.c.answer.is_not(None),
    )
    .order_by(graph_tasks.c.superstep, graph_tasks.c.ordinal)
)


def _cached_to_go(query: Select[Any]) -> PreparedQuery:
    return PreparedQuery(
        delete(graph_node_cache).where(graph_node_cache.c.cache_key.in_(query.limit(bindparam("limit"))))
    )


_EXPIRED_ANSWERS = _cached_to_go(
    select(graph_node_cache.c.cache_key).where(graph_node_cache.c.expires_at <= bindparam("now"))
)
_OLDEST_ANSWERS = _cached_to_go(
    select(graph_node_cache.c.cache_key)
    .order_by(graph_node_cache.c.created_at.desc(), graph_node_cache.c.cache_key)
    .offset(bindparam("most"))
)


@one_statement
def find_cached(connection: Connection, cache_key: str, now: int) -> CachedAnswer | None:
    """Return an answer that hasn't expired."""
    row = _CACHED.run(connection, key=cache_key, now=now).first()
    return None if row is None else rows.CACHED.record(row)


@one_statement
def list_cacheable(connection: Connection, run_id: str) -> Sequence[TaskRecord]:
    """Return the tasks of a run whose answers are in a checkpoint, and are to be kept."""
    found = [rows.TASK.record(row) for row in _CACHEABLE.run(connection, run_id=run_id)]
    return [task for task in found if task.cache_key]


def purge_cached(calls: WriteCalls, now: int, most: int, limit: int) -> int:
    """Delete answers that have expired, and the oldest beyond a number."""
    expired = calls.change(_EXPIRED_ANSWERS, now=now, limit=limit)
    return expired + calls.change(_OLDEST_ANSWERS, most=most, limit=limit)


# --- words to a run, takeover -----------------------------------------------------------------------

_STOPS = PreparedQuery(
    select(*_columns(graph_stops, rows.STOP))
    .where(graph_stops.c.run_id == bindparam("of_run"))
    .order_by(graph_stops.c.kind)
)
_FORGET_STOP = PreparedQuery(
    delete(graph_stops).where(
        graph_stops.c.run_id == bindparam("of_run"),
        graph_stops.c.kind == bindparam("of_kind"),
        graph_stops.c.invocation == bindparam("of_invocation"),
    )
)
# Live ones, and those without a thread that are to be taken back.
_IS_TO_BE_SEEN_TO = or_(
    *(graph_runs.c.status == status.value for status in sorted(LIVE)),
    and_(graph_runs.c.thread_id == "", graph_runs.c.status != RunStatus.COMPLETED.value),
)
_ORPHANS = (
    select(*_RUN_COLUMNS)
    .where(
        graph_runs.c.server_id != "",
        # NOT IN and not NOT EXISTS, as for transactions (leases.py).
        graph_runs.c.server_id.not_in(
            select(servers.c.server_id).where(servers.c.lease_until > bindparam("now"))
        ),
        _IS_TO_BE_SEEN_TO,
    )
    .order_by(graph_runs.c.run_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_ORPHANED = PreparedQuery(_ORPHANS)
_OF_SERVER = PreparedQuery(
    select(*_RUN_COLUMNS)
    .where(graph_runs.c.server_id == bindparam("of_server"), graph_runs.c.server_id != "", _IS_TO_BE_SEEN_TO)
    .order_by(graph_runs.c.created_at, graph_runs.c.run_id)
)
_OVERDUE = PreparedQuery(
    select(*_RUN_COLUMNS)
    .where(
        graph_runs.c.waits_until.is_not(None),
        graph_runs.c.waits_until <= bindparam("now"),
        or_(
            graph_runs.c.waits_until > bindparam("since"),
            and_(graph_runs.c.waits_until == bindparam("since"), graph_runs.c.run_id > bindparam("behind")),
        ),
    )
    .order_by(graph_runs.c.waits_until, graph_runs.c.run_id)
    .limit(bindparam("limit"))
)
_CLAIM = PreparedQuery(
    update(graph_runs)
    .where(graph_runs.c.run_id == bindparam("of_run"))
    .values(server_id=bindparam("new_server"))
)


def list_stops(connection: Connection, run_ids: Sequence[str]) -> Sequence[StopRequest]:
    """Return what runs are asked for."""
    found: list[StopRequest] = []
    for run_id in sorted(run_ids):
        found += map(rows.STOP.record, _STOPS.run(connection, of_run=run_id))
    return found


def forget_stops(calls: WriteCalls, words: Sequence[StopRequest]) -> None:
    """Forget what was acted on."""
    for word in words:
        calls.change(_FORGET_STOP, of_run=word.run_id, of_kind=word.kind.value, of_invocation=word.invocation)


@one_statement
def list_runs_of(
    connection: Connection, server_id: str, unchanged_since: int, limit: int
) -> Sequence[RunRecord]:
    """Read the runs that a server has to see to; they are few."""
    found = [rows.RUN.record(row) for row in _OF_SERVER.run(connection, of_server=server_id)]
    return [run for run in found if run.updated_at < unchanged_since][:limit]


@one_statement
def list_overdue(connection: Connection, now: int, after: tuple[int, str], limit: int) -> Sequence[RunRecord]:
    """Read the runs that have waited as long as they may, the longest first, behind a time and an id."""
    since, run_id = after
    found = _OVERDUE.run(connection, now=now, since=since, behind=run_id, limit=limit)
    return [rows.RUN.record(row) for row in found]


def claim_runs(calls: WriteCalls, server_id: str, now: int, limit: int) -> Sequence[RunRecord]:
    """Take live runs over from servers without a lease."""
    orphans = [rows.RUN.record(row) for row in calls.rows(_ORPHANED, now=now, limit=limit)]
    for run in orphans:
        calls.change(_CLAIM, of_run=run.run_id, new_server=server_id)
    return [replace(run, server_id=server_id) for run in orphans]
