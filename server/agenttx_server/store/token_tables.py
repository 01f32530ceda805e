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
from agenttx_server.audit.actor import SERVER
from agenttx_server.store.administration import administered
from agenttx_server.store.audit_table import append_by_core, deed_now
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.record_codec import canonical_json
from agenttx_server.store.schema import KEY_TEXT, METADATA
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

    def __init__(self, connection: Connection, actor: str) -> None:
        self._connection = connection
        self._actor = actor

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
        told = {"roles": row["roles"], "tools": record.tools, "expires_at": record.expires_at}
        self._note("token.create", record, canonical_json(told))

    def all(self) -> Sequence[TokenRecord]:
        """Return all tokens, the oldest first, revoked ones too."""
        query = select(*access_tokens.columns).order_by(_t.created_at, _t.token_id)
        return [_record(tuple(row)) for row in self._connection.execute(query)]

    def revoke(self, token_id: str, now: int) -> TokenRecord | None:
        """Revoke a token for good; return its record, None if there is none. Once revoked it stays so."""
        revoked = self._connection.execute(
            update(access_tokens)
            .where(_t.token_id == token_id, _t.revoked_at.is_(None))
            .values(revoked_at=now)
        )
        record = find_token(self._connection, token_id)
        if record is not None and revoked.rowcount:
            self._note("token.revoke", record)
        return record

    def _note(self, action: str, record: TokenRecord, detail: str = "{}") -> None:
        deed = deed_now(self._actor, record.principal, action, record.token_id, detail)
        append_by_core(self._connection, [deed])


@contextmanager
def open_tokens(database_url: str, actor: str = SERVER) -> Iterator[TokenTable]:
    """Open a database's tokens, whether or not it is being served; what is done is durable on leaving.

    ``actor`` is who does it, for the audit trail.

    A database that isn't there is made. Raises DatabaseRefused: it can't be reached or written, or is of another
    version and being served.
    """
    engine = administered(database_url)
    try:
        with engine.begin() as connection:
            yield TokenTable(connection, actor)
    except DBAPIError as error:
        raise DatabaseRefused(
            f"the tokens can't be read or written: {' '.join(str(error.orig).split())}"
        ) from error
    finally:
        engine.dispose()


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
