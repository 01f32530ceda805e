"""Who carries a run of a pipeline, and which runs are to end early. Each function is one write transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, select, text

from agenttx_server.pipelines.records import StopRecord
from agenttx_server.store.payload_queries import Sealing
from agenttx_server.store.pipeline_schema import (
    pipeline_carriers,
    pipeline_inputs,
    pipeline_stops,
    pipeline_units,
)
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import RecordCodec

__all__ = [
    "begin_receiving",
    "carried_by",
    "claim_runs",
    "discard",
    "holds",
    "release",
    "request_stop",
    "stops_of",
    "take",
]

_STOP = RecordCodec(StopRecord, ("run_id", "reason", "requested_at"), details=False)

_RECEIVE = PreparedQuery(
    text(
        "INSERT INTO pipeline_carriers (run_id, server_id) SELECT :run_id, :server_id "
        "WHERE NOT EXISTS (SELECT 1 FROM pipeline_runs WHERE run_id = :run_id) ON CONFLICT (run_id) DO NOTHING"
    )
)
# NOT IN and not NOT EXISTS, as for transactions (leases.py).
_TAKE = PreparedQuery(
    text(
        "INSERT INTO pipeline_carriers (run_id, server_id) SELECT run_id, :server_id FROM pipeline_runs "
        "WHERE run_id = :run_id AND status IN ('RUNNING', 'INTERRUPTED') "
        "ON CONFLICT (run_id) DO UPDATE SET server_id = excluded.server_id "
        "WHERE pipeline_carriers.server_id = excluded.server_id OR pipeline_carriers.server_id NOT IN "
        "(SELECT server_id FROM servers WHERE lease_until > :now)"
    )
)
_HOLD = PreparedQuery(
    text(
        "UPDATE pipeline_carriers SET server_id = :server_id WHERE run_id = :run_id AND server_id = :server_id"
    )
)
_RELEASE = PreparedQuery(
    text("DELETE FROM pipeline_carriers WHERE run_id = :run_id AND server_id = :server_id")
)
_CLAIM = PreparedQuery(
    text(
        "UPDATE pipeline_carriers SET server_id = :server_id WHERE run_id IN (SELECT run_id FROM pipeline_carriers "
        "WHERE server_id NOT IN (SELECT server_id FROM servers WHERE lease_until > :now) LIMIT :limit) "
        "AND server_id NOT IN (SELECT server_id FROM servers WHERE lease_until > :now) RETURNING run_id"
    )
)
_CARRIED = PreparedQuery(
    text("SELECT run_id FROM pipeline_carriers WHERE server_id = :server_id ORDER BY run_id")
)
_DISCARD = [
    PreparedQuery(delete(table).where(table.c.run_id == bindparam("of_run")))
    for table in (pipeline_inputs, pipeline_units, pipeline_carriers)
]
_REQUEST_STOP = PreparedQuery(
    text(
        "INSERT INTO pipeline_stops (run_id, reason, requested_at) VALUES (:run_id, :reason, :requested_at) "
        "ON CONFLICT (run_id) DO NOTHING"
    ),
    seals={"reason": Sealing(pipeline_stops, "reason", ("run_id",))},
)
_STOPS = PreparedQuery(select(*pipeline_stops.columns).where(pipeline_stops.c.run_id == bindparam("of_run")))


def begin_receiving(calls: WriteCalls, run_id: str, server_id: str) -> bool:
    """Note that a server receives a run; False if the run is there, or is being received."""
    return calls.change(_RECEIVE, run_id=run_id, server_id=server_id) == 1


def discard(calls: WriteCalls, run_id: str) -> None:
    """Take away what there is of a run that was not received whole."""
    for query in _DISCARD:
        calls.change(query, of_run=run_id)


def take(calls: WriteCalls, run_id: str, server_id: str, now: int) -> bool:
    """Have a run carried by a server; False if another one that is alive does."""
    return calls.change(_TAKE, run_id=run_id, server_id=server_id, now=now) == 1


def holds(calls: WriteCalls, run_id: str, server_id: str) -> bool:
    """Whether a server carries a run, and will until this transaction has ended."""
    return calls.change(_HOLD, run_id=run_id, server_id=server_id) == 1


def release(calls: WriteCalls, run_id: str, server_id: str) -> None:
    """Have a run carried by nobody."""
    calls.change(_RELEASE, run_id=run_id, server_id=server_id)


def claim_runs(calls: WriteCalls, server_id: str, now: int, limit: int) -> list[str]:
    """Take over runs of servers without a lease."""
    return sorted(str(row[0]) for row in calls.rows(_CLAIM, server_id=server_id, now=now, limit=limit))


@one_statement
def carried_by(connection: Connection, server_id: str) -> list[str]:
    """The runs of a server; few, so no index leads to them."""
    return [str(row[0]) for row in _CARRIED.run(connection, server_id=server_id)]


def request_stop(calls: WriteCalls, stop: StopRecord) -> None:
    """Note that a run is to end early."""
    calls.change(_REQUEST_STOP, run_id=stop.run_id, reason=stop.reason, requested_at=stop.requested_at)


def stops_of(connection: Connection, run_ids: Sequence[str]) -> list[StopRecord]:
    """Which of these runs are to end early."""
    return [_STOP.record(row) for run_id in run_ids for row in _STOPS.run(connection, of_run=run_id).all()]
