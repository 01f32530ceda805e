"""The TransactionStore of the engine on SQL: writes through the commit writer, reads through the pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Table, select

from agenttx_server.access.tokens import TokenRecord
from agenttx_server.audit.actor import SERVER, current_actor
from agenttx_server.audit.chain import Head
from agenttx_server.audit.reading import AuditFilter, AuditPage, VerifiedPage
from agenttx_server.engine.ports import (
    ApprovalPage,
    AttemptPage,
    CommittedPage,
    CompensationPage,
    EffectPage,
    StateView,
    StoredJournal,
    StoredTransaction,
    TransactionFilter,
    TransactionPage,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    CommittedEntry,
    EffectRecord,
    EffectState,
    EventRecord,
    MicrosecondsUtc,
    RecordedResponse,
    ServerId,
    StateRead,
    StateWrite,
    StopRequest,
    TransactionId,
    TransactionRecord,
    UndoState,
)
from agenttx_server.graphs.ports import GraphPage, GraphRecord, RegisteredGraph
from agenttx_server.store import (
    approval_listing,
    audit_reading,
    graph_tables,
    history_reading,
    leases,
    retention,
    schema,
    settlement_listing,
    state_reading,
    stored_bytes,
    transaction_listing,
)
from agenttx_server.store.audit_table import append, audit_log, deed_now
from agenttx_server.store.offered_tools import note_offered_tools, when_tool_was_offered
from agenttx_server.store.payload_admission import admit_keys
from agenttx_server.store.payload_keys import PayloadKeys
from agenttx_server.store.pipeline_schema import PIPELINE_TABLES
from agenttx_server.store.pipeline_store import SqlPipelineStore
from agenttx_server.store.postgres_address import PostgresAddress, is_postgresql
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.record_codec import canonical_json
from agenttx_server.store.record_schema import RECORD_TABLES
from agenttx_server.store.record_store import SqlRecordStore
from agenttx_server.store.run_schema import EXTRA_TABLES
from agenttx_server.store.run_store import SqlRunStore
from agenttx_server.store.served_database import ServedDatabase
from agenttx_server.store.settings import StoreSettings
from agenttx_server.store.sqlite_database import SqliteDatabase
from agenttx_server.store.standing import StandingCounts, count_standing
from agenttx_server.store.stored_bytes import Measured, StoredTotals
from agenttx_server.store.token_tables import find_token
from agenttx_server.store.write_set_encoding import encode_write_set
from agenttx_server.store.writer_statistics import StoreStatistics

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["SqlTransactionStore", "open_store"]


# Nothing is written, but a database that is read-only or locked refuses it; no writer waits for it.
_PROOF_OF_WRITING = PreparedQuery(
    select(schema.counters.c.value)
    .where(schema.counters.c.name == "commit_version")
    .with_for_update(read=True, key_share=True)
)


@asynccontextmanager
async def open_store(
    database_url: str,
    settings: StoreSettings | None = None,
    extra_tables: Sequence[Table] = (),
    payload_keys: PayloadKeys | None = None,
) -> AsyncIterator[SqlTransactionStore]:
    """Open a database for serving: take its lock, migrate it, start the writer; close on leaving.

    ``extra_tables`` are those whose rows come with write sets (WriteSet.extra), beside those of graph runs, records and pipelines.
    ``payload_keys`` are those that stored values are sealed with; None: they are plain.
    Leaving writes what is queued. Raises DatabaseRefused, whose text is one clear line, if the
    database is in use, newer than this program or not ours, or if its values are sealed with other keys.
    """
    payloads = _payload_codec(payload_keys)
    database = _database(
        database_url,
        settings or StoreSettings(),
        (*EXTRA_TABLES, *RECORD_TABLES, *PIPELINE_TABLES, audit_log, *extra_tables),
        payloads,
    )
    await asyncio.to_thread(database.open)
    try:
        await admit_keys(database, payload_keys, payloads)
        yield SqlTransactionStore(database)
    finally:
        await asyncio.to_thread(database.close)


def _payload_codec(keys: PayloadKeys | None) -> PayloadCodec | None:
    if keys is None:
        return None
    # Not before: who doesn't seal needs none of it.
    from agenttx_server.store.payload_codec import PayloadCodec

    return PayloadCodec(keys)


def _database(
    database_url: str, settings: StoreSettings, extra_tables: Sequence[Table], payloads: PayloadCodec | None
) -> ServedDatabase:
    if not is_postgresql(database_url):
        return SqliteDatabase(database_url, settings, extra_tables, payloads)
    address = PostgresAddress.parse(database_url, settings.postgres)
    # Not before: psycopg need not be installed.
    from agenttx_server.store.postgres_database import PostgresDatabase

    return PostgresDatabase(address, settings, extra_tables, payloads)


class SqlTransactionStore:
    """Durable memory of transactions in one database. Made by :func:`open_store`.

    ``runs`` is that of graph runs, ``lineage`` that of records, ``pipelines`` that of runs of pipelines in
    the same database.
    """

    def __init__(self, database: ServedDatabase) -> None:
        self._database = database
        self._writer = database.writer
        self._pool = database.pool
        self.runs = SqlRunStore(database)
        self.lineage = SqlRecordStore(database)
        self.pipelines = SqlPipelineStore(database, self.lineage)
        self._added: Callable[[str, int], None] | None = None

    # --- writing -------------------------------------------------------------------------

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        # A caller that goes away cancels its future and nothing else: the set stays queued.
        return await self.submit(write_set)

    def submit(self, write_set: WriteSet) -> asyncio.Future[WriteReceipt]:
        encoded = encode_write_set(write_set)
        if self._added is not None:
            self._added(write_set.transaction.principal, encoded.size)
        # Who follows journals is told when they are written, also if their writer's caller goes away.
        settled = self.runs.telling_of(write_set.extra) if write_set.extra else None
        return self._writer.submit(encoded, settled)

    @property
    def written(self) -> tuple[int, int]:
        """How many write sets were answered after how many COMMITs, since the store was opened."""
        return self._writer.written

    # --- reading -------------------------------------------------------------------------

    async def load(self, transaction_id: TransactionId) -> StoredTransaction | None:
        return await self._pool.read(history_reading.load, transaction_id)

    async def load_record(self, transaction_id: TransactionId) -> TransactionRecord | None:
        return await self._pool.read(history_reading.load_record, transaction_id)

    async def find_attempt(
        self, transaction_id: TransactionId, request_id: str
    ) -> tuple[AttemptRecord, bool] | None:
        return await self._pool.read(history_reading.find_attempt, transaction_id, request_id)

    async def find_response(self, scope: str, request_id: str) -> RecordedResponse | None:
        return await self._pool.read(history_reading.find_response, scope, request_id)

    async def read_state(self, transaction_id: TransactionId, key: str, before_step: int) -> StateView:
        return await self._pool.read(state_reading.read_state, transaction_id, key, before_step)

    async def scan_state(
        self, transaction_id: TransactionId, prefix: str, before_step: int, after: str, limit: int
    ) -> Sequence[tuple[str, StateView]]:
        return await self._pool.read(
            state_reading.scan_state, transaction_id, prefix, before_step, after, limit
        )

    async def read_committed(self, key: str) -> CommittedEntry:
        return await self._pool.read(state_reading.read_committed, key)

    async def scan_committed(self, prefix: str, cursor: str, limit: int, byte_limit: int) -> CommittedPage:
        return await self._pool.read(state_reading.scan_committed, prefix, cursor, limit, byte_limit)

    async def list_transactions(self, which: TransactionFilter, cursor: str, limit: int) -> TransactionPage:
        return await self._pool.read(transaction_listing.list_transactions, which, cursor, limit)

    async def list_attempts(
        self,
        transaction_id: TransactionId,
        cursor: str,
        limit: int,
        byte_limit: int,
        step_id: int | None = None,
        include_rewound: bool = True,
        include_sub_steps: bool = False,
    ) -> AttemptPage:
        return await self._pool.read(
            history_reading.list_attempts,
            transaction_id,
            cursor,
            limit,
            byte_limit,
            step_id,
            include_rewound,
            include_sub_steps,
        )

    async def load_journal(self, transaction_id: TransactionId, step_id: int) -> StoredJournal:
        return await self._pool.read(history_reading.load_journal, transaction_id, step_id)

    async def list_sub_step_attempts(
        self, transaction_id: TransactionId, step_id: int, sub_step: int
    ) -> Sequence[AttemptRecord]:
        return await self._pool.read(
            history_reading.list_sub_step_attempts, transaction_id, step_id, sub_step
        )

    async def load_touched(
        self, transaction_id: TransactionId, first: int, last: int
    ) -> tuple[Sequence[StateRead], Sequence[StateWrite]]:
        return await self._pool.read(history_reading.load_touched, transaction_id, first, last)

    async def list_events(
        self, transaction_id: TransactionId, from_sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        return await self._pool.read(history_reading.list_events, transaction_id, from_sequence, limit)

    async def load_context(
        self, transaction_id: TransactionId, byte_limit: int
    ) -> tuple[Sequence[tuple[int, str, str]], bool]:
        return await self._pool.read(history_reading.load_context, transaction_id, byte_limit)

    async def load_output(self, transaction_id: TransactionId, step_id: int, attempt: int) -> str | None:
        return await self._pool.read(history_reading.load_output, transaction_id, step_id, attempt)

    async def list_effects(
        self, transaction_id: TransactionId, states: frozenset[str]
    ) -> Sequence[EffectRecord]:
        return await self._pool.read(transaction_listing.list_effects, transaction_id, states)

    async def count_touched(
        self, transaction_id: TransactionId, from_step: int
    ) -> tuple[int, Sequence[str], int]:
        return await self._pool.read(state_reading.count_touched, transaction_id, from_step)

    async def rows_by_step(self, transaction_id: TransactionId, from_step: int) -> Sequence[tuple[int, int]]:
        return await self._pool.read(state_reading.rows_by_step, transaction_id, from_step)

    async def first_use(self, transaction_id: TransactionId, key: str) -> int | None:
        return await self._pool.read(state_reading.first_use, transaction_id, key)

    async def count_open(self, principal: str) -> int:
        return await self._pool.read(transaction_listing.count_open, principal)

    async def database_id(self) -> str:
        """Return the id that the database was given when it was made; a copy of it keeps it."""
        return await self._pool.read(state_reading.database_id)

    async def commit_version(self) -> int:
        return await self._pool.read(state_reading.commit_version)

    async def load_revision(self, transaction_id: TransactionId) -> int:
        return await self._pool.read(history_reading.load_revision, transaction_id)

    async def list_compensations(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[UndoState],
        cursor: str,
        limit: int,
    ) -> CompensationPage:
        return await self._pool.read(
            settlement_listing.list_compensations, principal, transaction_id, states, cursor, limit
        )

    async def list_effects_page(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[EffectState],
        channel: str,
        cursor: str,
        limit: int,
        byte_limit: int,
    ) -> EffectPage:
        return await self._pool.read(
            settlement_listing.list_effects_page,
            principal,
            transaction_id,
            states,
            channel,
            cursor,
            limit,
            byte_limit,
        )

    async def load_approval(self, transaction_id: TransactionId, sequence: int) -> ApprovalRecord | None:
        return await self._pool.read(history_reading.load_approval, transaction_id, sequence)

    async def list_approvals(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[ApprovalState],
        cursor: str,
        limit: int,
        byte_limit: int,
    ) -> ApprovalPage:
        return await self._pool.read(
            approval_listing.list_approvals, principal, transaction_id, states, cursor, limit, byte_limit
        )

    # --- graphs --------------------------------------------------------------------------

    async def register_graph(
        self, record: GraphRecord, response: RecordedResponse | None = None
    ) -> RegisteredGraph:
        actor = current_actor()

        def work(calls: WriteCalls) -> RegisteredGraph:
            kept = graph_tables.register_graph(calls, record, response)
            if not kept.existed:
                detail = canonical_json({"version": record.version})
                append(calls, [deed_now(actor, "", "graph.register", record.name, detail)])
            return kept

        return await self._writer.run(work)

    async def find_graph(self, name: str, version: str) -> Sequence[GraphRecord]:
        return await self._pool.read(graph_tables.find_graph, name, version)

    async def list_graphs(self, name: str, cursor: str, limit: int, space: str = "") -> GraphPage:
        return await self._pool.read(graph_tables.list_graphs, name, cursor, limit, space)

    # --- tokens --------------------------------------------------------------------------

    async def find_token(self, token_id: str) -> TokenRecord | None:
        """Return the record of a bearer token (access.tokens.TokenStore)."""
        return await self._pool.read(find_token, token_id)

    # --- tools that workers offer (tools.tools_offered_before.OfferedToolStore) -----------

    async def note_offered_tools(
        self, tenant: str, names: Sequence[str], now: MicrosecondsUtc, forget_before: MicrosecondsUtc
    ) -> None:
        await self._writer.run(lambda calls: note_offered_tools(calls, tenant, names, now, forget_before))

    async def when_tool_was_offered(self, tenant: str, name: str) -> MicrosecondsUtc | None:
        return await self._pool.read(when_tool_was_offered, tenant, name)

    # --- servers, leases, takeover -------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return self._database.is_shared

    async def register_server(self, server_id: ServerId, lease_seconds: float, now: MicrosecondsUtc) -> None:
        # Where there is a lock file it says that there is no other server.
        await self._writer.run(
            lambda calls: leases.register_server(
                calls,
                server_id,
                lease_seconds,
                self._database.lease_time(calls, now),
                alone=not self.is_shared,
            )
        )

    async def renew_lease(self, server_id: ServerId, lease_seconds: float, now: MicrosecondsUtc) -> bool:
        return await self._writer.run(
            lambda calls: leases.renew_lease(
                calls, server_id, lease_seconds, self._database.lease_time(calls, now)
            )
        )

    async def retire_server(self, server_id: ServerId) -> None:
        await self._writer.run(lambda calls: leases.retire_server(calls, server_id))

    async def is_alive(self, server_id: ServerId, now: MicrosecondsUtc) -> bool:
        return await self._pool.read(
            lambda connection: leases.is_alive(
                connection, server_id, self._database.lease_time(connection, now)
            )
        )

    async def list_servers(self, now: MicrosecondsUtc) -> Sequence[ServerId]:
        return await self._pool.read(
            lambda connection: leases.list_servers(connection, self._database.lease_time(connection, now))
        )

    async def claim_orphans(
        self, server_id: ServerId, now: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        return await self._writer.run(
            lambda calls: leases.claim_orphans(calls, server_id, self._database.lease_time(calls, now), limit)
        )

    async def list_unsettled_of(
        self, server_id: ServerId, updated_before: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        return await self._pool.read(leases.list_unsettled_of, server_id, updated_before, limit)

    async def request_stop(self, request: StopRequest) -> None:
        await self._writer.run(lambda calls: leases.request_stop(calls, request))

    async def take_stop_requests(self, server_id: ServerId) -> Sequence[StopRequest]:
        return await self._writer.run(lambda calls: leases.take_stop_requests(calls, server_id))

    async def note_unrecovered(self, transaction_id: TransactionId, reason: str) -> None:
        await self._writer.run(lambda calls: leases.note_unrecovered(calls, transaction_id, reason))

    async def load_recovery_problem(self, transaction_id: TransactionId) -> str:
        return await self._pool.read(transaction_listing.load_recovery_problem, transaction_id)

    # --- the outbox, the reaper, retention -----------------------------------------------

    async def claim_outbox(
        self, server_id: ServerId, now: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        return await self._writer.run(
            lambda calls: leases.claim_outbox(
                calls, server_id, self._database.lease_time(calls, now), now, limit
            )
        )

    async def next_outbox_due(self) -> MicrosecondsUtc | None:
        return await self._pool.read(leases.next_outbox_due)

    async def list_outbox_of(
        self, server_id: ServerId, due_by: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        return await self._pool.read(leases.list_outbox_of, server_id, due_by, limit)

    async def list_expired(
        self, now: MicrosecondsUtc, serving_since: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        return await self._pool.read(retention.list_expired, now, serving_since, limit)

    async def purge_ended(self, ended_before: MicrosecondsUtc, limit: int) -> int:
        # Those that must stay may be many: they are passed over by a reader, who holds up nobody.
        ended = await self._pool.read(retention.list_ended, ended_before, limit)
        purged = 0
        for numbers in retention.batches(ended):
            purged += await self._writer.run(
                partial(_purge_transactions, numbers=numbers, ended_before=ended_before)
            )
        return purged

    @property
    def statistics(self) -> StoreStatistics:
        """What was written since the start, and what waits to be written and read."""
        return StoreStatistics(self._writer.statistics, self._pool.waiting)

    async def count_standing(self) -> StandingCounts:
        """Count what stands open in the database, over all servers."""
        return await self._pool.read(count_standing)

    # --- the audit trail -----------------------------------------------------------------

    async def list_audit(self, which: AuditFilter, cursor: str, limit: int) -> AuditPage:
        """Return a page of entries (audit.reading.AuditTrail)."""
        return await self._pool.read(audit_reading.list_audit, which, cursor, limit)

    async def verify_audit(self, noted: Sequence[Head], cursor: str) -> VerifiedPage:
        """Check a part of the trail (audit.reading.AuditTrail)."""
        return await self._pool.read(audit_reading.verify_audit, noted, cursor)

    # --- what is stored ------------------------------------------------------------------

    def count_added(self, added: Callable[[str, int], None]) -> None:
        """Have a function told, with each write set, whose it is and how long the texts that it adds are."""
        self._added = added

    async def measure_stored(self) -> Measured:
        """Measure what every owner has stored, and put the shared count right by it; it reads all rows."""
        measured = await self._pool.read(stored_bytes.measure_stored)
        await self._writer.run(lambda calls: stored_bytes.correct_stored(calls, measured))
        return measured

    async def add_stored(self, added: Mapping[str, int]) -> None:
        """Add to what is counted as stored of owners."""
        await self._writer.run(lambda calls: stored_bytes.add_stored(calls, added))

    async def stored_totals(self) -> StoredTotals:
        """Return what is counted as stored, by owner, over all servers."""
        return await self._pool.read(stored_bytes.stored_totals)

    async def check(self) -> None:
        await self._pool.read(state_reading.commit_version)
        await self._writer.run(lambda calls: calls.rows(_PROOF_OF_WRITING))


def _purge_transactions(calls: WriteCalls, numbers: Sequence[int], ended_before: MicrosecondsUtc) -> int:
    purged = retention.purge(calls, numbers, ended_before)
    append(calls, [deed_now(SERVER, owner, "transaction.purge", gone) for gone, owner in purged])
    return len(purged)
