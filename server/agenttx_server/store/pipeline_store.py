"""Runs of pipelines on SQL: :class:`pipelines.ports.PipelineStore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection, bindparam, select, text

from agenttx_server.audit.actor import current_actor
from agenttx_server.audit.chain import Deed
from agenttx_server.engine.ports import ExtraOperation, ExtraRows
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.pipelines.records import (
    InputPage,
    InputRecord,
    InputState,
    PipelineRunPage,
    PipelineRunRecord,
    PipelineRunStatus,
    PipelineVersionPage,
    PipelineVersionRecord,
    StopRecord,
)
from agenttx_server.store import lineage_retention, pipeline_carrying, pipeline_versions
from agenttx_server.store.audit_table import append, deed_now
from agenttx_server.store.cursors import decode_cursor, encode_cursor, listing_kind
from agenttx_server.store.extra_tables import write_extra
from agenttx_server.store.pipeline_schema import (
    pipeline_inputs,
    pipeline_runs,
    pipeline_units,
)
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import RecordCodec, canonical_json
from agenttx_server.store.record_store import SqlRecordStore
from agenttx_server.store.seen_owners import seen_text, seen_values
from agenttx_server.store.served_database import ServedDatabase

__all__ = ["SqlPipelineStore"]

_RUN: Final = RecordCodec(
    PipelineRunRecord,
    ("run_id", "principal", "pipeline", "status", "created_at", "updated_at"),
    details=True,
)
_INPUT: Final = RecordCodec(InputRecord, ("run_id", "place", "state", "transaction_id", "row"), details=True)


_LOAD: Final = PreparedQuery(
    select(*pipeline_runs.columns).where(pipeline_runs.c.run_id == bindparam("run_id"))
)
_RUNS: Final = PreparedQuery(
    text(
        f"SELECT {', '.join(c.name for c in pipeline_runs.columns)} FROM pipeline_runs "  # noqa: S608 - our own names
        f"WHERE {seen_text('principal')} AND (:pipeline = '' OR pipeline = :pipeline) "
        "AND (created_at, run_id) < (:created_at, :run_id) ORDER BY created_at DESC, run_id DESC LIMIT :limit"
    ),
    returns=tuple(pipeline_runs.columns),
)
_COUNTS: Final = PreparedQuery(
    text("SELECT state, COUNT(*) FROM pipeline_inputs WHERE run_id = :run_id AND place >= 0 GROUP BY state")
)
_INPUTS: Final = PreparedQuery(
    select(*pipeline_inputs.columns)
    .where(pipeline_inputs.c.run_id == bindparam("run_id"), pipeline_inputs.c.place > bindparam("after"))
    .order_by(pipeline_inputs.c.place)
    .limit(bindparam("limit"))
)


class SqlPipelineStore:
    """Made by SqlTransactionStore, whose database it shares."""

    def __init__(self, database: ServedDatabase, lineage: SqlRecordStore) -> None:
        self._database = database
        self._writer = database.writer
        self._pool = database.pool
        self.lineage = lineage

    def rows(self, inputs: Sequence[InputRecord]) -> Sequence[ExtraRows]:
        rows = [_INPUT.row(item) for item in inputs]
        return [ExtraRows(pipeline_inputs.name, ExtraOperation.UPSERT, rows)] if rows else []

    async def write(self, run: PipelineRunRecord | None, inputs: Sequence[InputRecord]) -> None:
        rows = [*self.rows(inputs)]
        deeds = []
        if run is not None:
            rows.append(ExtraRows(pipeline_runs.name, ExtraOperation.UPSERT, [_RUN.row(run)]))
            deeds.append(_deed("pipeline.start", run))

        def work(calls: WriteCalls) -> None:
            for item in rows:
                write_extra(calls, item.table, item.operation, item.rows)
            append(calls, deeds)

        await self._writer.run(work)

    async def load_run(self, run_id: str) -> PipelineRunRecord | None:
        return await self._pool.read(_load_run, run_id)

    async def list_inputs(
        self, run_id: str, after_place: int, limit: int, states: frozenset[InputState]
    ) -> Sequence[InputRecord]:
        return await self._pool.read(_list_inputs, run_id, after_place, limit, states)

    async def page_inputs(self, run_id: str, cursor: str, limit: int) -> InputPage:
        return await self._pool.read(_page_inputs, run_id, cursor, limit)

    async def count_inputs(self, run_id: str) -> Mapping[InputState, int]:
        return await self._pool.read(_count_inputs, run_id)

    async def list_runs(self, principal: str, pipeline: str, cursor: str, limit: int) -> PipelineRunPage:
        return await self._pool.read(_list_runs, principal, pipeline, cursor, limit)

    # --- who carries a run --------------------------------------------------------------------------

    def begun(self, run_id: str, place: int, transaction_id: str) -> ExtraRows:
        return ExtraRows(pipeline_units.name, ExtraOperation.INSERT, [[run_id, place, transaction_id]])

    async def begin_receiving(self, run_id: str, server_id: str) -> bool:
        return await self._writer.run(
            partial(pipeline_carrying.begin_receiving, run_id=run_id, server_id=server_id)
        )

    async def discard(self, run_id: str) -> None:
        await self._writer.run(partial(pipeline_carrying.discard, run_id=run_id))

    async def take(self, run_id: str, server_id: str, now: int) -> bool:
        return await self._writer.run(
            lambda calls: pipeline_carrying.take(calls, run_id, server_id, self._lease_time(calls, now))
        )

    async def save(self, run: PipelineRunRecord, server_id: str, *, release: bool) -> bool:
        action = (
            "pipeline.resume" if run.status is PipelineRunStatus.RUNNING else f"pipeline.{run.status.lower()}"
        )
        deed = _deed(action, run)

        def work(calls: WriteCalls) -> bool:
            is_saved = _save(calls, run, server_id, release)
            if is_saved:
                append(calls, [deed])
            return is_saved

        return await self._writer.run(work)

    async def claim_runs(self, server_id: str, now: int, limit: int) -> Sequence[str]:
        return await self._writer.run(
            lambda calls: pipeline_carrying.claim_runs(calls, server_id, self._lease_time(calls, now), limit)
        )

    async def carried_by(self, server_id: str) -> Sequence[str]:
        return await self._pool.read(pipeline_carrying.carried_by, server_id)

    async def request_stop(self, stop: StopRecord) -> None:
        deed = deed_now(current_actor(), "", "pipeline.ask_cancel", stop.run_id)

        def work(calls: WriteCalls) -> None:
            pipeline_carrying.request_stop(calls, stop)
            append(calls, [deed])

        await self._writer.run(work)

    async def stops_of(self, run_ids: Sequence[str]) -> Sequence[StopRecord]:
        return await self._pool.read(pipeline_carrying.stops_of, run_ids)

    async def purge_old_run(self, ended_before: int) -> bool:
        return await self._writer.run(partial(lineage_retention.purge_old_run, ended_before=ended_before))

    def _lease_time(self, calls: WriteCalls, now: int) -> int:
        return self._database.lease_time(calls, MicrosecondsUtc(now))

    # --- registered pipelines -----------------------------------------------------------------------

    async def register(self, record: PipelineVersionRecord) -> tuple[PipelineVersionRecord, bool]:
        detail = canonical_json({"version": record.version})
        deed = deed_now(current_actor(), "", "pipeline.register", record.name, detail)

        def work(calls: WriteCalls) -> tuple[PipelineVersionRecord, bool]:
            kept, existed = pipeline_versions.register(calls, record)
            if not existed:
                append(calls, [deed])
            return kept, existed

        return await self._writer.run(work)

    async def find_version(self, name: str, version: str) -> PipelineVersionRecord | None:
        return await self._pool.read(pipeline_versions.find_version, name, version)

    async def list_versions(self, name: str, cursor: str, limit: int, space: str = "") -> PipelineVersionPage:
        return await self._pool.read(pipeline_versions.list_versions, name, cursor, limit, space)


def _deed(action: str, run: PipelineRunRecord) -> Deed:
    return deed_now(
        current_actor(), run.principal, action, run.run_id, canonical_json({"pipeline": run.pipeline})
    )


def _save(calls: WriteCalls, run: PipelineRunRecord, server_id: str, release: bool) -> bool:
    if not pipeline_carrying.holds(calls, run.run_id, server_id):
        return False
    write_extra(calls, pipeline_runs.name, ExtraOperation.UPSERT, [_RUN.row(run)])
    if release:
        pipeline_carrying.release(calls, run.run_id, server_id)
    return True


@one_statement
def _load_run(connection: Connection, run_id: str) -> PipelineRunRecord | None:
    row = _LOAD.run(connection, run_id=run_id).first()
    return None if row is None else _RUN.record(row)


def _list_inputs(
    connection: Connection, run_id: str, after: int, limit: int, states: frozenset[InputState]
) -> Sequence[InputRecord]:
    """Pages are read until enough rows stand so: those that don't are behind what is done, and few are read twice."""
    found: list[InputRecord] = []
    while len(found) < limit:
        page = [
            _INPUT.record(row) for row in _INPUTS.run(connection, run_id=run_id, after=after, limit=limit)
        ]
        found += [item for item in page if item.state in states]
        if len(page) < limit:
            break
        after = page[-1].place
    return found[:limit]


@one_statement
def _page_inputs(connection: Connection, run_id: str, cursor: str, limit: int) -> InputPage:
    kind = listing_kind("pipeline_inputs", run_id)
    after = decode_cursor(kind, cursor, int)[0] if cursor else -1
    rows = _INPUTS.run(connection, run_id=run_id, after=after, limit=limit + 1)
    found = [_INPUT.record(row) for row in rows]
    behind = encode_cursor(kind, found[limit - 1].place) if len(found) > limit else ""
    return InputPage(found[:limit], behind)


@one_statement
def _count_inputs(connection: Connection, run_id: str) -> Mapping[InputState, int]:
    counts = dict.fromkeys(InputState, 0)
    counts.update({InputState(row[0]): int(row[1]) for row in _COUNTS.run(connection, run_id=run_id)})
    return counts


@one_statement
def _list_runs(
    connection: Connection, principal: str, pipeline: str, cursor: str, limit: int
) -> PipelineRunPage:
    kind = listing_kind("pipeline_runs", principal, pipeline)
    created_at, run_id = decode_cursor(kind, cursor, int, str) if cursor else (2**63 - 1, "")
    found = _RUNS.run(
        connection,
        **seen_values(principal),
        pipeline=pipeline,
        created_at=created_at,
        run_id=run_id,
        limit=limit + 1,
    )
    runs = [_RUN.record(row) for row in found]
    if len(runs) <= limit:
        return PipelineRunPage(runs, "")
    last = runs[limit - 1]
    return PipelineRunPage(runs[:limit], encode_cursor(kind, last.created_at, last.run_id))
