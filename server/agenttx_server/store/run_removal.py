"""Removes checkpoints and threads of graphs, each in one write transaction.

What is to be removed was found out before: it holds only while the thread is as it was then. So its row is locked, and
compared, first; whatever moves a thread on writes that row.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, delete, literal_column, null, or_, select, update

from agenttx_server.graphs.runs.ports import Pruning, RunChange
from agenttx_server.graphs.runs.records import LIVE, RequestRecord, ThreadRecord
from agenttx_server.store import run_rows as rows
from agenttx_server.store.payload_queries import Sealing
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.run_schema import (
    graph_checkpoints,
    graph_embedded_checkpoints,
    graph_events,
    graph_interrupts,
    graph_node_cache,
    graph_requests,
    graph_runs,
    graph_stops,
    graph_tasks,
    graph_threads,
    graph_values,
)

__all__ = ["delete_thread", "is_as_it_was", "prune"]

_REWRITE_VALUE = PreparedQuery(
    update(graph_values)
    .where(
        graph_values.c.thread_id == bindparam("of_thread"),
        graph_values.c.channel == bindparam("of_channel"),
        graph_values.c.number == bindparam("of_number"),
    )
    .values(previous=null(), value=bindparam("whole"), origins=bindparam("new_origins")),
    seals={
        "whole": Sealing(graph_values, "value", ("of_thread", "of_channel", "of_number")),
        "new_origins": Sealing(graph_values, "origins", ("of_thread", "of_channel", "of_number")),
    },
)
_REWRITE_CHECKPOINT = PreparedQuery(
    update(graph_checkpoints)
    .where(
        graph_checkpoints.c.thread_id == bindparam("of_thread"),
        graph_checkpoints.c.number == bindparam("of_number"),
    )
    .values(details=bindparam("new_details")),
    seals={"new_details": Sealing(graph_checkpoints, "details", ("of_thread", "of_number"))},
)
_DELETE_CHECKPOINT = PreparedQuery(
    delete(graph_checkpoints).where(
        graph_checkpoints.c.thread_id == bindparam("of_thread"),
        graph_checkpoints.c.number == bindparam("of_number"),
    )
)
_DELETE_VALUE = PreparedQuery(
    delete(graph_values).where(
        graph_values.c.thread_id == bindparam("of_thread"),
        graph_values.c.channel == bindparam("of_channel"),
        graph_values.c.number == bindparam("of_number"),
    )
)
_DELETE_EMBEDDED = PreparedQuery(
    delete(graph_embedded_checkpoints).where(
        graph_embedded_checkpoints.c.thread_id == bindparam("of_thread"),
        graph_embedded_checkpoints.c.namespace == bindparam("of_namespace"),
        graph_embedded_checkpoints.c.number == bindparam("of_number"),
    )
)

_RUNS_OF = select(graph_runs.c.run_id).where(graph_runs.c.thread_id == bindparam("of_thread"))
# Runs are found by their rows, which go last but for the thread's own.
_DELETE_ALL: Final = (
    *(
        PreparedQuery(delete(table).where(table.c.run_id.in_(_RUNS_OF)))
        for table in (graph_requests, graph_stops)
    ),
    PreparedQuery(
        delete(graph_node_cache).where(
            # The second is the condition of its index.
            graph_node_cache.c.thread_id == bindparam("of_thread"),
            graph_node_cache.c.thread_id != literal_column("''"),
        )
    ),
    *(
        PreparedQuery(delete(table).where(table.c.thread_id == bindparam("of_thread")))
        for table in (
            graph_events,
            graph_interrupts,
            graph_tasks,
            graph_values,
            graph_embedded_checkpoints,
            graph_checkpoints,
            graph_runs,
            graph_threads,
        )
    ),
)


_LOCKED_THREAD = PreparedQuery(
    select(*(graph_threads.c[name] for name in rows.THREAD.columns))
    .where(graph_threads.c.thread_id == bindparam("of_thread"))
    .with_for_update()
)


# Who goes on with a run doesn't change the thread, but requires its row, which is locked here.
_LIVE_RUN = PreparedQuery(
    select(graph_runs.c.run_id)
    .where(
        graph_runs.c.thread_id == bindparam("of_thread"),
        or_(*(graph_runs.c.status == status.value for status in sorted(LIVE))),
    )
    .limit(1)
)


def is_as_it_was(calls: WriteCalls, thread: ThreadRecord) -> bool:
    """Whether a thread's row, which is locked then, is what was read of it."""
    found = calls.rows(_LOCKED_THREAD, of_thread=thread.thread_id)
    return bool(found) and rows.THREAD.record(found[0]) == thread


def prune(calls: WriteCalls, thread: ThreadRecord, plan: Pruning) -> bool:
    """Carry out a pruning, unless the thread has changed."""
    if not is_as_it_was(calls, thread):
        return False
    thread_id = thread.thread_id
    for value in plan.values:
        calls.change(
            _REWRITE_VALUE,
            of_thread=thread_id,
            of_channel=value.channel,
            of_number=value.number,
            whole=value.value,
            new_origins=value.origins,
        )
    for checkpoint in plan.checkpoints:
        details = rows.CHECKPOINT.row(checkpoint)[-1]
        calls.change(
            _REWRITE_CHECKPOINT, of_thread=thread_id, of_number=checkpoint.number, new_details=details
        )
    for number in plan.checkpoints_gone:
        calls.change(_DELETE_CHECKPOINT, of_thread=thread_id, of_number=number)
    for channel, number in plan.values_gone:
        calls.change(_DELETE_VALUE, of_thread=thread_id, of_channel=channel, of_number=number)
    for namespace, number in plan.embedded_gone:
        calls.change(_DELETE_EMBEDDED, of_thread=thread_id, of_namespace=namespace, of_number=number)
    return True


def delete_thread(calls: WriteCalls, thread: ThreadRecord, request: RequestRecord | None) -> bool:
    """Delete all of a thread, unless it has changed or is gone on with; keep what asked for it."""
    if not is_as_it_was(calls, thread) or calls.rows(_LIVE_RUN, of_thread=thread.thread_id):
        return False
    for query in _DELETE_ALL:
        calls.change(query, of_thread=thread.thread_id)
    if request is not None:
        rows.write_rows(calls, rows.extra_rows(RunChange(requests=(request,))))
    return True
