"""Runs of pipelines on SQL: :class:`pipelines.ports.PipelineStore`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection, Table, bindparam, select, text

from agenttx_server.engine.ports import ExtraOperation, ExtraRows
from agenttx_server.pipelines.records import InputPage, InputRecord, InputState, PipelineRunRecord
from agenttx_server.store.cursors import decode_cursor, encode_cursor
from agenttx_server.store.pipeline_schema import PIPELINE_TABLES, pipeline_inputs, pipeline_runs
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import RecordCodec
from agenttx_server.store.record_store import SqlRecordStore
from agenttx_server.store.served_database import ServedDatabase

__all__ = ["SqlPipelineStore"]

_RUN: Final = RecordCodec(
    PipelineRunRecord,
    ("run_id", "principal", "pipeline", "status", "created_at", "updated_at"),
    details=True,
)
_INPUT: Final = RecordCodec(InputRecord, ("run_id", "place", "state", "transaction_id", "row"), details=True)


def _upsert(table: Table) -> PreparedQuery:
    names = [column.name for column in table.columns]
    key = [column.name for column in table.primary_key]
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    return PreparedQuery(
        text(
            f"INSERT INTO {table.name} ({', '.join(names)}) "  # noqa: S608 - names of our own tables
            f"VALUES ({', '.join(f':{name}' for name in names)}) "
            f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"
        )
    )


_UPSERT: Final = {table.name: (_upsert(table), [c.name for c in table.columns]) for table in PIPELINE_TABLES}
_LOAD: Final = PreparedQuery(
    select(*pipeline_runs.columns).where(pipeline_runs.c.run_id == bindparam("run_id"))
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
        self._writer = database.writer
        self._pool = database.pool
        self.lineage = lineage

    def rows(self, inputs: Sequence[InputRecord]) -> Sequence[ExtraRows]:
        rows = [_INPUT.row(item) for item in inputs]
        return [ExtraRows(pipeline_inputs.name, ExtraOperation.UPSERT, rows)] if rows else []

    async def write(self, run: PipelineRunRecord | None, inputs: Sequence[InputRecord]) -> None:
        rows = [(pipeline_inputs.name, _INPUT.row(item)) for item in inputs]
        if run is not None:
            rows.append((pipeline_runs.name, _RUN.row(run)))
        await self._writer.run(partial(_write, rows=rows))

    async def load_run(self, run_id: str) -> PipelineRunRecord | None:
        return await self._pool.read(_load_run, run_id)

    async def list_inputs(
        self, run_id: str, after_place: int, limit: int, states: frozenset[InputState]
    ) -> Sequence[InputRecord]:
        return await self._pool.read(_list_inputs, run_id, after_place, limit, states)

    async def page_inputs(self, run_id: str, cursor: str, limit: int) -> InputPage:
        return await self._pool.read(_page_inputs, run_id, cursor, limit)


def _write(calls: WriteCalls, rows: Iterable[tuple[str, Sequence[object]]]) -> None:
    for table, row in rows:
        query, names = _UPSERT[table]
        calls.change(query, **dict(zip(names, row, strict=True)))


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
    after = decode_cursor("pipeline_inputs", cursor, int)[0] if cursor else -1
    rows = _INPUTS.run(connection, run_id=run_id, after=after, limit=limit + 1)
    found = [_INPUT.record(row) for row in rows]
    behind = encode_cursor("pipeline_inputs", found[limit - 1].place) if len(found) > limit else ""
    return InputPage(found[:limit], behind)
