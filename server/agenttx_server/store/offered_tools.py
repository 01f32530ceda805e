"""Which tools the workers of each tenant have offered lately, over all servers of the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    PrimaryKeyConstraint,
    Table,
    bindparam,
    delete,
    select,
    text,
)

from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.store.prepared_query import PreparedQuery, WriteCalls
from agenttx_server.store.read_pool import one_statement
from agenttx_server.store.schema import KEY_TEXT, METADATA

__all__ = ["note_offered_tools", "when_tool_was_offered"]

offered_tools = Table(
    "offered_tools",
    METADATA,
    Column("tenant", KEY_TEXT, nullable=False),
    Column("tool_name", KEY_TEXT, nullable=False),
    Column("offered_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant", "tool_name"),
)

_t = offered_tools.c
# Text: both databases say it so, and Core has no word for it that both take.
_NOTE: Final = PreparedQuery(
    text(
        "INSERT INTO offered_tools (tenant, tool_name, offered_at) VALUES (:tenant, :tool_name, :offered_at) "
        "ON CONFLICT (tenant, tool_name) DO UPDATE SET offered_at = excluded.offered_at"
    )
)
_FORGET: Final = PreparedQuery(delete(offered_tools).where(_t.offered_at < bindparam("before")))
_WHEN: Final = PreparedQuery(
    select(_t.offered_at).where(_t.tenant == bindparam("tenant"), _t.tool_name == bindparam("tool_name"))
)


def note_offered_tools(
    calls: WriteCalls, tenant: str, names: Iterable[str], now: MicrosecondsUtc, forget_before: MicrosecondsUtc
) -> None:
    """Note that tools are offered now, and forget what was last offered before a time."""
    calls.change(_FORGET, before=forget_before)
    # In one order, for two servers may write the same ones at once.
    for name in sorted(set(names)):
        calls.change(_NOTE, tenant=tenant, tool_name=name, offered_at=now)


@one_statement
def when_tool_was_offered(connection: Connection, tenant: str, name: str) -> MicrosecondsUtc | None:
    """Return when a tool was last noted as offered, None if it was not, or was forgotten."""
    found: MicrosecondsUtc | None = _WHEN.run(connection, tenant=tenant, tool_name=name).scalar()
    return found
