"""What can be asked about the audit trail, as operations for either client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from agenttx.audit_records import AuditEntry, AuditVerification, BrokenAuditChain
from agenttx.methods import LIST_AUDIT_ENTRIES, VERIFY_AUDIT_TRAIL
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.v1 import audit_pb2 as pb
from agenttx.values import count, decode_json

__all__ = ["list_entries", "verified", "verify_page"]


def list_entries(
    token: str,
    *,
    actor: str,
    owner: str,
    action: str,
    subject: str,
    since: datetime | None,
    until: datetime | None,
    page_size: int,
) -> Operation[Page[AuditEntry]]:
    """Read one page of entries."""
    request = pb.ListAuditEntriesRequest(
        actor=actor,
        owner=owner,
        action=action,
        subject=subject,
        since=_stamp(since),
        until=_stamp(until),
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_AUDIT_ENTRIES, request)
    return Page(tuple(map(_entry, answer.entries)), answer.next_page_token)


def verify_page(token: str, *, heads: Sequence[str]) -> Operation[Page[AuditVerification]]:
    """Check the next part of the trail."""
    answer = yield from invoke(
        VERIFY_AUDIT_TRAIL, pb.VerifyAuditTrailRequest(noted_heads=heads, page_token=token)
    )
    broken = tuple(BrokenAuditChain(one.chain, one.sequence, one.problem) for one in answer.broken)
    found = AuditVerification(answer.entries, tuple(answer.heads), broken)
    return Page((found,), answer.next_page_token)


def verified(pages: Iterable[AuditVerification]) -> AuditVerification:
    """Put the pages of a check together: of each chain the last head and the first break."""
    found = list(pages)
    heads = {head.partition(":")[0]: head for page in found for head in page.heads}
    broken: dict[int, BrokenAuditChain] = {}
    for page in found:
        for one in page.broken:
            broken.setdefault(one.chain, one)
    return AuditVerification(
        sum(page.entries for page in found),
        tuple(heads[chain] for chain in sorted(heads, key=int)),
        tuple(broken[chain] for chain in sorted(broken)),
    )


def _stamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC))
    return stamp


def _entry(message: pb.AuditEntry) -> AuditEntry:
    return AuditEntry(
        message.chain,
        message.sequence,
        message.occurred_at.ToDatetime(tzinfo=UTC),
        message.actor,
        message.owner,
        message.action,
        message.subject,
        decode_json(message.detail_json) or {},
        message.hash,
    )
