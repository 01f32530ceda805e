"""Records of bearer tokens: read by servers, written by ``agenttx token`` on the database itself.

The commands need no server, so that the first token can be made before there is one, and who can open the database
is who may make tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from agenttx_server.access.identity import roles_named
from agenttx_server.access.tokens import TokenRecord
from agenttx_server.store.database import database_file, writer_engine
from agenttx_server.store.migrating import migrate, stored_revision
from agenttx_server.store.postgres_address import PostgresAddress, is_postgresql
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.schema import HEAD_REVISION, KEY_TEXT, METADATA
from agenttx_server.store.settings import PostgresSettings, StoreSettings
from agenttx_server.store.storage_errors import DatabaseRefused

__all__ = ["TokenTable", "access_tokens", "find_token", "open_tokens"]

access_tokens = Table(
    "access_tokens",
    METADATA,
    Column("token_id", KEY_TEXT, nullable=False),
    Column("principal", Text, nullable=False),
    Column("roles", Text, nullable=False),
    Column("tools", Text, nullable=False),
    Column("secret_hash", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=True),
    Column("revoked_at", BigInteger, nullable=True),
    Column("note", Text, nullable=False),
    PrimaryKeyConstraint("token_id"),
)

_t = access_tokens.c
_FIND: Final = PreparedQuery(select(*access_tokens.columns).where(_t.token_id == bindparam("token_id")))


@one_statement
def find_token(connection: Connection, token_id: str) -> TokenRecord | None:
    """Return a token's record."""
    row = _FIND.run(connection, token_id=token_id).first()
    return None if row is None else _record(tuple(row))


class TokenTable:
    """The tokens of one database, for who administers them; blocks. Made by :func:`open_tokens`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, record: TokenRecord) -> None:
        """Keep a new token."""
        row = {
            "token_id": record.token_id,
            "principal": record.principal,
            "roles": ",".join(sorted(role.value for role in record.roles)),
            "tools": orjson.dumps(record.tools).decode(),
            "secret_hash": record.secret_hash,
            "created_at": record.created_at,
            "expires_at": record.expires_at,
            "revoked_at": record.revoked_at,
            "note": record.note,
        }
        self._connection.execute(insert(access_tokens).values(row))

    def all(self) -> Sequence[TokenRecord]:
        """Return all tokens, the oldest first, revoked ones too."""
        query = select(*access_tokens.columns).order_by(_t.created_at, _t.token_id)
        return [_record(tuple(row)) for row in self._connection.execute(query)]

    def revoke(self, token_id: str, now: int) -> TokenRecord | None:
        """Revoke a token for good; return its record, None if there is none. Once revoked it stays so."""
        self._connection.execute(
            update(access_tokens)
            .where(_t.token_id == token_id, _t.revoked_at.is_(None))
            .values(revoked_at=now)
        )
        return find_token(self._connection, token_id)


@contextmanager
def open_tokens(database_url: str) -> Iterator[TokenTable]:
    """Open a database's tokens, whether or not it is being served; what is done is durable on leaving.

    A database that isn't there is made. Raises DatabaseRefused: it can't be reached or written, or is of another
    version and being served.
    """
    engine = _engine(database_url)
    try:
        with engine.begin() as connection:
            yield TokenTable(connection)
    except DBAPIError as error:
        raise DatabaseRefused(
            f"the tokens can't be read or written: {' '.join(str(error.orig).split())}"
        ) from error
    finally:
        engine.dispose()


def _engine(database_url: str) -> Engine:
    if is_postgresql(database_url):
        migrate(database_url, lock_wait_seconds=5.0)
        return PostgresAddress.parse(database_url, PostgresSettings()).engine()
    path = database_file(database_url)
    # Only then: migrating needs the lock, which a server holds.
    if stored_revision(path) != HEAD_REVISION:
        migrate(database_url, lock_wait_seconds=5.0)
    return writer_engine(path, StoreSettings())


def _record(row: tuple[Any, ...]) -> TokenRecord:
    token_id, principal, roles, tools, secret_hash, created_at, expires_at, revoked_at, note = row
    return TokenRecord(
        token_id,
        principal,
        roles_named(roles.split(",")),
        tuple(orjson.loads(tools)),
        secret_hash,
        created_at,
        expires_at,
        revoked_at,
        note,
    )
