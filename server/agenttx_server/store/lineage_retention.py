"""The removal of old runs of pipelines: with their records, edges and events, a whole root at a time.

Written for every database; see :mod:`.leases`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, literal_column, select, text

from agenttx_server.audit.actor import SERVER
from agenttx_server.store.audit_table import append, deed_now
from agenttx_server.store.pipeline_schema import pipeline_inputs, pipeline_runs
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls

__all__ = ["purge_old_run", "purge_transactions"]

_ROWS_A_BATCH: Final = 1_000
"""Removed in one write, in which nothing else is written; a root is not cut into two, and may have more."""
_INPUTS_AT_ONCE: Final = 100

# A run is no older than its end. The index goes by the first; what is left behind it is few.
_OLD: Final = PreparedQuery(
    select(pipeline_runs.c.run_id, pipeline_runs.c.principal)
    .where(
        pipeline_runs.c.created_at < bindparam("ended_before"),
        pipeline_runs.c.updated_at < bindparam("ended_before"),
        literal_column("status NOT IN ('RUNNING', 'INTERRUPTED')"),
    )
    .order_by(pipeline_runs.c.created_at, pipeline_runs.c.run_id)
    .limit(1)
    # Of several servers each removes another's run, or waits.
    .with_for_update()
)
# What is behind a barrier has place -1 and goes first: no record is left whose parent is gone.
_INPUTS: Final = PreparedQuery(
    select(pipeline_inputs.c.place, pipeline_inputs.c.transaction_id)
    .where(pipeline_inputs.c.run_id == bindparam("of_run"))
    .order_by(pipeline_inputs.c.place)
    .limit(bindparam("limit"))
)
_PLAIN: Final = PreparedQuery(
    text(
        "SELECT transaction_id FROM record_commits WHERE pipeline = '' AND committed_at < :committed_before "
        "ORDER BY committed_at, run_id LIMIT 16"
    )
)
_OF_TRANSACTION: Final = [
    PreparedQuery(text(statement))
    for statement in (
        "DELETE FROM record_edges WHERE child IN "
        "(SELECT target_id FROM records WHERE transaction_id = :transaction_id)",
        "DELETE FROM records WHERE transaction_id = :transaction_id",
        "DELETE FROM record_events WHERE transaction_id = :transaction_id",
        "DELETE FROM record_commits WHERE transaction_id = :transaction_id",
    )
]
_OF_PLACE: Final = [
    PreparedQuery(text(f"DELETE FROM {table} WHERE run_id = :run_id AND place = :place"))  # noqa: S608 - our own
    for table in ("pipeline_units", "pipeline_inputs")
]
_OF_RUN: Final = [
    PreparedQuery(text(f"DELETE FROM {table} WHERE run_id = :run_id"))  # noqa: S608 - our own
    for table in ("pipeline_stops", "pipeline_carriers", "pipeline_runs")
]


def purge_old_run(calls: WriteCalls, ended_before: int) -> bool:
    """Remove some of the oldest run that ended before then: rows with all that came of them, at last the run itself.

    False: there is none. A batch is whole or not there, and the next one goes on wherever this one stopped.
    """
    old = calls.rows(_OLD, ended_before=ended_before)
    if not old:
        return False
    run_id, principal = old[0]
    removed = 0
    inputs = calls.rows(_INPUTS, of_run=run_id, limit=_INPUTS_AT_ONCE)
    for place, transaction_id in inputs:
        if transaction_id:
            removed += sum(calls.change(query, transaction_id=transaction_id) for query in _OF_TRANSACTION)
        removed += sum(calls.change(query, run_id=run_id, place=place) for query in _OF_PLACE)
        if removed >= _ROWS_A_BATCH:
            return True
    if len(inputs) < _INPUTS_AT_ONCE:
        for query in _OF_RUN:
            calls.change(query, run_id=run_id)
        append(calls, [deed_now(SERVER, principal, "pipeline.purge", run_id)])
    return True


def purge_transactions(calls: WriteCalls, committed_before: int) -> bool:
    """Remove what the oldest plain transactions kept that committed before then, each whole; False: there is none."""
    removed = 0
    found = calls.rows(_PLAIN, committed_before=committed_before)
    for (transaction_id,) in found:
        removed += sum(calls.change(query, transaction_id=transaction_id) for query in _OF_TRANSACTION)
        if removed >= _ROWS_A_BATCH:
            break
    return bool(found)
