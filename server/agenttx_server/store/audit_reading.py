"""The audit trail, read and checked in pages; a page looks at a bounded part of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, tuple_

from agenttx_server.audit.chain import AuditEntry, Head
from agenttx_server.audit.reading import AuditFilter, AuditPage, VerifiedPage, check_part
from agenttx_server.store.audit_table import audit_log, entry_of
from agenttx_server.store.cursors import decode_cursor, encode_cursor, listing_kind
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.read_pool import one_statement

__all__ = ["list_audit", "verify_audit"]

_LOOKED_AT = 5_000
"""Entries that a page looks at: some 20 ms."""
_VERIFYING = "audit_check"

_BEHIND = PreparedQuery(
    select(*audit_log.columns)
    .where(
        tuple_(audit_log.c.chain, audit_log.c.sequence) > tuple_(bindparam("chain"), bindparam("sequence"))
    )
    .order_by(audit_log.c.chain, audit_log.c.sequence)
    .limit(bindparam("limit"))
)


def _entries(connection: Connection, chain: int, sequence: int) -> Sequence[AuditEntry]:
    found = _BEHIND.run(connection, chain=chain, sequence=sequence, limit=_LOOKED_AT)
    return [entry_of(row) for row in found]


@one_statement
def list_audit(connection: Connection, which: AuditFilter, cursor: str, limit: int) -> AuditPage:
    """Return a page of the entries that are asked for. Raises ValueError for another listing's cursor."""
    kind = listing_kind(
        "audit",
        which.actor,
        which.owner,
        which.action,
        which.subject,
        str(which.since),
        str(which.until),
    )
    chain, sequence = decode_cursor(kind, cursor, int, int) if cursor else (-1, 0)
    looked_at = _entries(connection, chain, sequence)
    found: list[AuditEntry] = []
    for entry in looked_at:
        if which.takes(entry):
            found.append(entry)
            if len(found) == limit:
                return AuditPage(found, encode_cursor(kind, entry.chain, entry.sequence))
    if len(looked_at) < _LOOKED_AT:
        return AuditPage(found, "")
    return AuditPage(found, encode_cursor(kind, looked_at[-1].chain, looked_at[-1].sequence))


@one_statement
def verify_audit(connection: Connection, noted: Sequence[Head], cursor: str) -> VerifiedPage:
    """Check the part of the trail behind a cursor. Raises ValueError for another listing's cursor."""
    behind = Head(*decode_cursor(_VERIFYING, cursor, int, int, str)) if cursor else None
    chain, sequence = (-1, 0) if behind is None else (behind.chain, behind.sequence)
    entries = _entries(connection, chain, sequence)
    part = check_part(entries, behind, noted, is_last=len(entries) < _LOOKED_AT)
    on = part.goes_on
    next_cursor = "" if on is None else encode_cursor(_VERIFYING, on.chain, on.sequence, on.hash)
    return VerifiedPage(part.entries, part.heads, part.broken, next_cursor)
