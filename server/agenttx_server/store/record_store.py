"""Records and their ancestry on SQL: :class:`lineage.ports.RecordStore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from agenttx_server.engine.ports import ExtraRows
from agenttx_server.lineage.ports import EventPage, KeptEvent, KeptRecord, RecordChange, RecordPage
from agenttx_server.lineage.records import RecordEdge
from agenttx_server.store import lineage_retention, record_reading
from agenttx_server.store.record_rows import extra_rows
from agenttx_server.store.served_database import ServedDatabase

__all__ = ["SqlRecordStore"]


class SqlRecordStore:
    """Made by SqlTransactionStore, whose database it shares."""

    def __init__(self, database: ServedDatabase) -> None:
        self._pool = database.pool
        self._writer = database.writer

    def rows(self, change: RecordChange) -> Sequence[ExtraRows]:
        return extra_rows(change)

    async def get_record(self, target_id: str, transaction_id: str = "") -> KeptRecord | None:
        return await self._pool.read(record_reading.get_record, target_id, transaction_id)

    async def list_records(
        self, run_id: str, action: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        return await self._pool.read(
            record_reading.list_records, run_id, action, cursor, limit, transaction_id
        )

    async def list_siblings(
        self, parent_target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        return await self._sharing("parent_target_id", parent_target_id, cursor, limit, transaction_id)

    async def list_by_root(
        self, root_target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        return await self._sharing("root_target_id", root_target_id, cursor, limit, transaction_id)

    async def list_by_source(
        self, principal: str, source_guid: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        return await self._pool.read(
            record_reading.list_by_source, principal, source_guid, cursor, limit, transaction_id
        )

    async def list_descendants(
        self, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        query = partial(record_reading.list_along_edges, downwards=True)
        return await self._pool.read(query, target_id, cursor, limit, transaction_id)

    async def list_ancestors(
        self, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        query = partial(record_reading.list_along_edges, downwards=False)
        return await self._pool.read(query, target_id, cursor, limit, transaction_id)

    async def edges_of(self, target_ids: Sequence[str]) -> Sequence[RecordEdge]:
        return await self._pool.read(record_reading.edges_of, target_ids)

    async def events_of(self, transaction_id: str) -> Sequence[KeptEvent]:
        return await self._pool.read(record_reading.events_of, transaction_id)

    async def list_events(
        self, cursor: str, limit: int, *, input_id: str = "", transaction_id: str = ""
    ) -> EventPage:
        column, value = ("input_id", input_id) if input_id else ("transaction_id", transaction_id)
        return await self._pool.read(record_reading.list_events, column, value, cursor, limit)

    async def owner_of(self, transaction_id: str) -> str | None:
        return await self._pool.read(record_reading.owner_of, transaction_id)

    async def purge_transaction(self, committed_before: int) -> bool:
        return await self._writer.run(
            partial(lineage_retention.purge_transactions, committed_before=committed_before)
        )

    async def count_records(self, run_id: str) -> Mapping[str, int]:
        return await self._pool.read(record_reading.count_records, run_id)

    async def records_of(self, transaction_id: str) -> Sequence[KeptRecord]:
        return await self._pool.read(record_reading.records_of, transaction_id)

    async def _sharing(
        self, column: str, value: str, cursor: str, limit: int, transaction_id: str
    ) -> RecordPage:
        return await self._pool.read(
            record_reading.list_sharing, column, value, cursor, limit, transaction_id
        )
