"""Bringing a PostgreSQL database to this program's version, or refusing it.

PostgreSQL's DDL is transactional, so the whole way is one database transaction here too. An
advisory lock lets one process migrate while others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.exc import DBAPIError

from agenttx_server.store import schema
from agenttx_server.store.postgres_address import PostgresAddress, one_line
from agenttx_server.store.schema_revisions import bring_to_head, known_revisions
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["migrate_postgres", "revision_of_postgres"]

_OLDEST_VERSION = 13
# Any number will do that nobody else takes in the same database: "agenttx" in ASCII.
_ADVISORY_LOCK = int.from_bytes(b"agenttx", "big")
_LOCK_NOT_AVAILABLE = "55P03"

_FACTS = text(
    "SELECT current_setting('server_encoding'), current_setting('server_version_num')::int, "
    "pg_is_in_recovery(), current_schema()"
)
_TABLES = text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
_NOT_ALLOWED = text(
    "SELECT lower(need) || ' ' || name FROM unnest(CAST(:names AS text[])) AS name, "
    "unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS need "
    "WHERE NOT has_table_privilege(quote_ident(name), need) LIMIT 1"
).bindparams(bindparam("names"))


def migrate_postgres(address: PostgresAddress, lock_wait_seconds: float) -> None:
    """Bring a database to this program's version; wait for another process that does so.

    Raises DatabaseRefused: it can't be reached or used, is newer or something else's; nothing was changed.
    """
    with _connected(address) as connection:
        _check_server(connection, address)
        if _stored_revision(connection, address) != schema.HEAD_REVISION:
            _take_lock(connection, address, lock_wait_seconds)
            if _stored_revision(connection, address) != schema.HEAD_REVISION:
                bring_to_head(connection)
        _check_privileges(connection, address)


def revision_of_postgres(address: PostgresAddress) -> str | None:
    """Return the version of a database, None for an empty one. Changes nothing.

    Raises DatabaseRefused: it can't be reached or used by this program, is newer or something else's.
    """
    with _connected(address) as connection:
        _check_server(connection, address)
        revision = _stored_revision(connection, address)
        if revision == schema.HEAD_REVISION:
            _check_privileges(connection, address)
        return revision


@contextmanager
def _connected(address: PostgresAddress) -> Iterator[Connection]:
    engine = address.engine()
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise DatabaseRefused(f"can't connect to the {address}: {_reason(error)}") from error
    try:
        with connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise DatabaseRefused(f"the {address} can't be used: {_reason(error)}") from error
    finally:
        engine.dispose()


def _reason(error: DBAPIError) -> str:
    return one_line(error.orig) if isinstance(error.orig, Exception) else one_line(error)


def _check_server(connection: Connection, address: PostgresAddress) -> None:
    encoding, version, is_standby, current_schema = connection.execute(_FACTS).one()
    if version < _OLDEST_VERSION * 10_000:
        raise DatabaseRefused(
            f"the {address} is of version {version // 10_000}; {_OLDEST_VERSION} is the oldest that will do"
        )
    if encoding != "UTF8":
        raise DatabaseRefused(
            f"the {address} has the encoding {encoding}; it must be made with ENCODING 'UTF8'"
        )
    if is_standby:
        raise DatabaseRefused(f"the {address} is a standby, which can't be written")
    if current_schema is None:
        raise DatabaseRefused(f"the {address} has no schema that this user may use (search_path)")


def _stored_revision(connection: Connection, address: PostgresAddress) -> str | None:
    """Return the revision of the database, None for an empty one."""
    tables = set(connection.scalars(_TABLES))
    if not tables:
        return None
    if "alembic_version" not in tables or "transactions" not in tables:
        raise DatabaseRefused(
            f"the {address} is a database of something else; give AgentTx a database, or a schema, of its own"
        )
    revision = str(connection.scalar(text("SELECT version_num FROM alembic_version")))
    if revision != schema.HEAD_REVISION and revision not in known_revisions():
        raise DatabaseRefused(
            f"the {address} has schema version {revision}, made by a newer release; "
            f"this one knows versions up to {schema.HEAD_REVISION}"
        )
    return revision


def _take_lock(connection: Connection, address: PostgresAddress, lock_wait_seconds: float) -> None:
    wait = text("SELECT set_config('lock_timeout', :wait, true)")
    connection.execute(wait, {"wait": f"{max(1, int(1000 * lock_wait_seconds))}ms"})
    try:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise DatabaseRefused(f"the {address} is being migrated by another process") from error
        raise


def _check_privileges(connection: Connection, address: PostgresAddress) -> None:
    names = [table.name for table in schema.METADATA.sorted_tables]
    missing = connection.scalar(_NOT_ALLOWED, {"names": names})
    if missing is not None:
        raise DatabaseRefused(f"the {address} does not grant this user: {missing}")
