"""Reading the trail in pages: which entries are told to whom, and checking a part of the chains after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agenttx_server.audit.chain import AuditEntry, BrokenChain, ChainCheck, Head
from agenttx_server.engine.visibility import sees

__all__ = ["AuditFilter", "AuditPage", "AuditTrail", "CheckedPart", "VerifiedPage", "check_part"]

_BEHIND_ALL = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; empty fields restrict nothing. Times are microseconds UTC, ``until`` is not included.

    ``scope`` is whose are told (engine.visibility): an entry is its owner's, and of what is nobody's own the actor's.
    """

    scope: str
    actor: str = ""
    owner: str = ""
    action: str = ""
    subject: str = ""
    since: int | None = None
    until: int | None = None

    def takes(self, entry: AuditEntry) -> bool:
        """Whether an entry is one of them."""
        deed = entry.deed
        return (
            sees(self.scope, deed.owner or deed.actor)
            and self.actor in ("", deed.actor)
            and self.owner in ("", deed.owner)
            and (
                self.action in ("", deed.action)
                or (self.action.endswith(".") and deed.action.startswith(self.action))
            )
            and self.subject in ("", deed.subject)
            and (self.since is None or deed.occurred_at >= self.since)
            and (self.until is None or deed.occurred_at < self.until)
        )


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, and where to go on; an empty cursor is the end."""

    entries: Sequence[AuditEntry]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class VerifiedPage:
    """How a part of the trail was found, and where to go on."""

    entries: int
    heads: Sequence[Head]
    broken: Sequence[BrokenChain]
    next_cursor: str


class AuditTrail(Protocol):
    """Where the trail is kept. Both raise ValueError for a cursor that isn't theirs, and StoreUnavailable."""

    async def list_audit(self, which: AuditFilter, cursor: str, limit: int) -> AuditPage: ...

    async def verify_audit(self, noted: Sequence[Head], cursor: str) -> VerifiedPage: ...


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """How entries in a row were found; ``goes_on`` is the head that the next part is behind, None at the end."""

    entries: int
    heads: Sequence[Head]
    broken: Sequence[BrokenChain]
    goes_on: Head | None


def check_part(
    entries: Sequence[AuditEntry], behind: Head | None, noted: Sequence[Head], *, is_last: bool
) -> CheckedPart:
    """Check entries that follow a head (None: the first ones), by chain and in order of their sequence.

    Noted heads are looked for where they must be: not those of parts before, nor, unless it is the last, of parts to come.
    """
    first = (-1, 0) if behind is None else (behind.chain, behind.sequence)
    last = (entries[-1].chain, entries[-1].sequence) if entries and not is_last else (_BEHIND_ALL, 0)
    check = ChainCheck([head for head in noted if first < (head.chain, head.sequence) <= last])
    if behind is not None:
        check.heads[behind.chain] = behind
    for entry in entries:
        check.take(entry)
    broken = check.end()
    heads = [check.heads[chain] for chain in sorted(check.heads) if chain not in check.broken]
    if is_last:
        return CheckedPart(check.entries, heads, broken, None)
    chain = entries[-1].chain
    # Behind a break nothing of its chain can be told: the next part is another chain's.
    goes_on = Head(chain, _BEHIND_ALL) if chain in check.broken else check.heads[chain]
    return CheckedPart(check.entries, heads, broken, goes_on)
