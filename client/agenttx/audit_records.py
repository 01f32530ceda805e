"""What the server tells of its audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["AuditEntry", "AuditVerification", "BrokenAuditChain"]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that was done.

    Attributes:
        chain: The chain that it stands in.
        sequence: Its place there, from 1 on; between the entries of one tenant are others'.
        occurred_at: When, by the server's clock, UTC.
        actor: Who did it: a principal, `server`, or `local:NAME` for who works on the database.
        owner: Whose it was done to; empty where it is nobody's own.
        action: What was done, such as `transaction.commit`.
        subject: What it was done to: an id or a name.
        detail: More of it.
        hash: SHA-256 over the entry and the one before.
    """

    chain: int
    sequence: int
    occurred_at: datetime
    actor: str
    owner: str
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str


@dataclass(frozen=True, slots=True)
class BrokenAuditChain:
    """Where a chain breaks first, and what is wrong there."""

    chain: int
    sequence: int
    problem: str


@dataclass(frozen=True, slots=True)
class AuditVerification:
    """How the trail was found.

    Attributes:
        entries: How many were checked, of all tenants.
        heads: The last good entry of each chain, `CHAIN:SEQUENCE:HASH`: keep them elsewhere, for later checks.
        broken: The first break of each broken chain; empty where all holds.
    """

    entries: int
    heads: tuple[str, ...]
    broken: tuple[BrokenAuditChain, ...]
