"""A PostgreSQL database that is served, by this server and maybe by others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import Connection, Table, text

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.store.extra_tables import statements_with
from agenttx_server.store.partitioned_writer import PartitionedWriter
from agenttx_server.store.postgres_address import PostgresAddress, one_line
from agenttx_server.store.postgres_connection import PostgresConnection
from agenttx_server.store.postgres_migrating import migrate_postgres
from agenttx_server.store.postgres_statements import STATEMENTS, extra_statement
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import ReadPool
from agenttx_server.store.settings import StoreSettings

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = ["PostgresDatabase"]

# What the server itself allows a statement is less; beyond it nobody is there any more.
_SECONDS_OF_SILENCE = 10.0
# The moment it is asked: the time of its transaction stands still.
_DATABASE_TIME = PreparedQuery(text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"))
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresDatabase:
    """Several servers, several writers each (served_database.ServedDatabase)."""

    is_shared = True

    def __init__(
        self,
        address: PostgresAddress,
        settings: StoreSettings,
        extra_tables: Sequence[Table] = (),
        payloads: PayloadCodec | None = None,
    ) -> None:
        self._statements = statements_with(STATEMENTS, extra_tables, extra_statement, payloads)
        self._address = address
        self._settings = settings
        self.writer = PartitionedWriter(self._connect_writer, settings.writer, settings.postgres.writers)
        readers = self._address.reader_engine().execution_options(payloads=payloads)
        self.pool = ReadPool(readers, settings.reader_threads, begin=_BEGIN_READING)

    def open(self) -> None:
        """Migrate and start; blocks. Raises DatabaseRefused."""
        migrate_postgres(self._address, self._settings.lock_wait_seconds)
        self.writer.start()
        self.pool.start()

    def lease_time(self, asked: WriteCalls | Connection, now: MicrosecondsUtc) -> MicrosecondsUtc:
        # The servers' clocks may differ; the database has one.
        found = (
            _DATABASE_TIME.run(asked).all() if isinstance(asked, Connection) else asked.rows(_DATABASE_TIME)
        )
        return MicrosecondsUtc(found[0][0])

    def close(self) -> None:
        """Write what is queued, let running reads end; blocks."""
        self.writer.close()
        self.pool.close()

    def _connect_writer(self) -> PostgresConnection:
        try:
            connection = self._address.connect_writer()
        except psycopg.Error as error:
            raise StoreUnavailable(f"can't connect to the {self._address}: {one_line(error)}") from error
        return PostgresConnection(
            connection,
            self._settings.postgres.statement_timeout_seconds + _SECONDS_OF_SILENCE,
            self._statements,
        )
