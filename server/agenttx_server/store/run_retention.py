"""What time does to runs of graphs without a thread: nobody goes on with them, so they go like transactions do.

Those of threads stay as long as their thread. Written for every database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from sqlalchemy import Connection, and_, bindparam, delete, literal_column, or_, select

from agenttx_server.audit.actor import SERVER
from agenttx_server.graphs.runs.records import LIVE
from agenttx_server.store import run_rows as rows
from agenttx_server.store.audit_table import append, deed_now
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.run_schema import (
    graph_events,
    graph_interrupts,
    graph_requests,
    graph_runs,
    graph_stops,
    graph_tasks,
)
from agenttx_server.store.schema import transactions

__all__ = ["FIRST", "Position", "list_ended", "purge"]

Position: TypeAlias = tuple[int, str]
"""When a run was created, and its id."""

FIRST: Final[Position] = (-1, "")

# By the index of threads' runs, of which these are those of none.
_OLD = PreparedQuery(
    select(*(graph_runs.c[name] for name in rows.RUN.columns))
    .where(
        graph_runs.c.thread_id == literal_column("''"),
        graph_runs.c.created_at < bindparam("ended_before"),
        or_(
            graph_runs.c.created_at > bindparam("since"),
            and_(graph_runs.c.created_at == bindparam("since"), graph_runs.c.run_id > bindparam("behind")),
        ),
    )
    .order_by(graph_runs.c.created_at, graph_runs.c.run_id)
    .limit(bindparam("limit"))
)


def list_ended(
    connection: Connection, ended_before: int, after: Position, limit: int
) -> tuple[Sequence[str], Position | None]:
    """Look at so many old runs behind a place: return those that may go, and where to look next, None at the end.

    One whose transaction is kept, as somebody must still see to it, is kept with it.
    """
    since, behind = after
    found = [
        rows.RUN.record(row)
        for row in _OLD.run(connection, ended_before=ended_before, since=since, behind=behind, limit=limit)
    ]
    ended = [
        run
        for run in found
        if run.status not in LIVE
        and (run.updated_at if run.ended_at is None else run.ended_at) < ended_before
    ]
    named = {run.transaction_id for run in ended if run.transaction_id}
    of_transactions = select(transactions.c.transaction_id).where(transactions.c.transaction_id.in_(named))
    kept = {row[0] for row in connection.execute(of_transactions)} if named else set()
    going = sorted(run.run_id for run in ended if run.transaction_id not in kept)
    return going, (found[-1].created_at, found[-1].run_id) if len(found) == limit else None


def purge(calls: WriteCalls, run_ids: Sequence[str]) -> int:
    """Remove runs that have ended, with all that is theirs; return how many there were."""
    for table in (graph_requests, graph_stops, graph_events, graph_interrupts, graph_tasks):
        calls.change(PreparedQuery(delete(table).where(table.c.run_id.in_(run_ids))))
    chosen = select(graph_runs.c.run_id, graph_runs.c.principal).where(graph_runs.c.run_id.in_(run_ids))
    going = calls.rows(PreparedQuery(chosen.order_by(graph_runs.c.run_id)))
    purged = calls.change(PreparedQuery(delete(graph_runs).where(graph_runs.c.run_id.in_(run_ids))))
    append(calls, [deed_now(SERVER, principal, "run.purge", run_id) for run_id, principal in going])
    return purged
