"""Requests and answers about the audit trail."""

from __future__ import annotations

from typing import Final

from agenttx.v1 import audit_pb2 as pb
from agenttx_server.api.message_conversion.request_reader import (
    LONGEST_TOKEN_BYTES,
    PageRequest,
    RequestReader,
)
from agenttx_server.api.message_conversion.values import timestamp_from_microseconds
from agenttx_server.audit.chain import AuditEntry, Head
from agenttx_server.audit.reading import AuditFilter, VerifiedPage
from agenttx_server.engine.records import MicrosecondsUtc

__all__ = ["entry_message", "list_request", "verify_request", "verify_response"]

_LONGEST_NAME: Final = 512
_LONGEST_ACTION: Final = 64
_MOST_HEADS: Final = 100
_GREATEST: Final = (1 << 63) - 1


def list_request(request: pb.ListAuditEntriesRequest, scope: str) -> tuple[AuditFilter, PageRequest]:
    """Return which entries are asked for, and which page. Raises InvalidRequest."""
    reader = RequestReader()
    for field in ("actor", "owner", "subject"):
        reader.name(field, getattr(request, field), _LONGEST_NAME)
    reader.name("action", request.action, _LONGEST_ACTION)
    since, until = reader.timestamp(request, "since"), reader.timestamp(request, "until")
    page = reader.page(request.page_size, request.page_token)
    reader.check()
    which = AuditFilter(scope, request.actor, request.owner, request.action, request.subject, since, until)
    return which, page


def entry_message(entry: AuditEntry) -> pb.AuditEntry:
    """Return an entry."""
    deed = entry.deed
    return pb.AuditEntry(
        chain=entry.chain,
        sequence=entry.sequence,
        occurred_at=timestamp_from_microseconds(MicrosecondsUtc(deed.occurred_at)),
        actor=deed.actor,
        owner=deed.owner,
        action=deed.action,
        subject=deed.subject,
        detail_json=deed.detail,
        hash=entry.hash,
    )


def verify_request(request: pb.VerifyAuditTrailRequest) -> tuple[list[Head], str]:
    """Return the heads that must be there, and the cursor. Raises InvalidRequest."""
    reader = RequestReader()
    heads = []
    if len(request.noted_heads) > _MOST_HEADS:
        reader.refuse("noted_heads", f"are {len(request.noted_heads)}; the limit is {_MOST_HEADS}")
    for index, text in enumerate(request.noted_heads[:_MOST_HEADS]):
        try:
            head = Head.parse(text[:200])
            if max(head.chain, head.sequence) > _GREATEST:
                raise ValueError("its numbers are too large")
            heads.append(head)
        except ValueError as error:
            reader.refuse(f"noted_heads[{index}]", str(error))
    reader.name("page_token", request.page_token, LONGEST_TOKEN_BYTES)
    reader.check()
    return heads, request.page_token


def verify_response(page: VerifiedPage) -> pb.VerifyAuditTrailResponse:
    """Return how a part of the trail was found."""
    return pb.VerifyAuditTrailResponse(
        entries=page.entries,
        heads=[str(head) for head in page.heads],
        broken=[
            pb.BrokenAuditChain(chain=one.chain, sequence=one.sequence, problem=one.problem)
            for one in page.broken
        ],
        next_page_token=page.next_cursor,
    )
