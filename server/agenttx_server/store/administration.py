"""Databases opened by commands, beside a server that may be using them."""

from __future__ import annotations

from sqlalchemy import Engine

from agenttx_server.store.database import database_file, writer_engine
from agenttx_server.store.migrating import migrate, stored_revision
from agenttx_server.store.postgres_address import PostgresAddress, is_postgresql
from agenttx_server.store.schema import HEAD_REVISION
from agenttx_server.store.settings import PostgresSettings, StoreSettings

__all__ = ["administered"]


def administered(database_url: str) -> Engine:
    """Return an engine for a database of this program's version, which is made or migrated if need be.

    Raises DatabaseRefused: it can't be reached, or is of another version and being served.
    """
    if is_postgresql(database_url):
        migrate(database_url, lock_wait_seconds=5.0)
        return PostgresAddress.parse(database_url, PostgresSettings()).engine()
    path = database_file(database_url)
    # Only then: migrating needs the lock, which a server holds.
    if stored_revision(path) != HEAD_REVISION:
        migrate(database_url, lock_wait_seconds=5.0)
    return writer_engine(path, StoreSettings())
