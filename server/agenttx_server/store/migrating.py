"""Bringing a database to this program's version, or refusing it.

The whole way from one version to the next is one database transaction: a process killed in
the middle leaves the version before.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError

from agenttx_server.store.database import database_file, writer_engine
from agenttx_server.store.lock_file import LockFile
from agenttx_server.store.postgres_address import PostgresAddress, is_postgresql
from agenttx_server.store.schema import HEAD_REVISION
from agenttx_server.store.schema_revisions import bring_to_head, known_revisions
from agenttx_server.store.settings import PostgresSettings, StoreSettings
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["migrate", "migrate_file", "stored_revision"]


def migrate(database_url: str, *, lock_wait_seconds: float = 60.0) -> str:
    """Bring a database to this program's version and return that version.

    Creates a SQLite file if need be; waits for another process that migrates. Raises DatabaseRefused:
    in use by a server (SQLite), out of reach, newer, or something else's; nothing was changed.
    """
    if is_postgresql(database_url):
        address = PostgresAddress.parse(database_url, PostgresSettings())
        from agenttx_server.store.postgres_migrating import migrate_postgres

        migrate_postgres(address, lock_wait_seconds)
        return HEAD_REVISION
    path = database_file(database_url)
    with LockFile(path, "migrating", wait_seconds=lock_wait_seconds):
        migrate_file(path, StoreSettings())
    return HEAD_REVISION


def migrate_file(path: Path, settings: StoreSettings) -> None:
    """Migrate a file whose lock the caller holds."""
    if stored_revision(path) == HEAD_REVISION:
        return
    engine = writer_engine(path, settings)
    try:
        with engine.begin() as connection:
            bring_to_head(connection)
    except DBAPIError as error:
        raise DatabaseRefused(f"the database {path} can't be migrated: {error.orig}") from error
    finally:
        engine.dispose()


def stored_revision(path: Path) -> str | None:
    """Return the revision of an existing database, None for a new one. Changes nothing.

    Raises DatabaseRefused if it is not one that this program knows how to go on from.
    """
    if not path.parent.is_dir():
        raise DatabaseRefused(f"the directory {path.parent} of the database does not exist")
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None)
        ) as reader:
            reader.execute("PRAGMA query_only = ON")
            tables = {
                name for (name,) in reader.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            }
            if not tables:
                return None
            if "alembic_version" not in tables or "transactions" not in tables:
                raise DatabaseRefused(f"the file {path} is a database of something else")
            (revision,) = reader.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise DatabaseRefused(f"the file {path} can't be read as a database: {error}") from error
    if revision != HEAD_REVISION and revision not in known_revisions():
        raise DatabaseRefused(
            f"the database {path} has schema version {revision}, made by a newer release; "
            f"this one knows versions up to {HEAD_REVISION}"
        )
    return str(revision)
