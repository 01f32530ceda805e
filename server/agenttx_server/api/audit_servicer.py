"""AuditService: the audit trail, to those who oversee a tenant."""

from __future__ import annotations

from agenttx.v1 import audit_pb2 as pb
from agenttx_server.api.answer_sizes import page_that_fits
from agenttx_server.api.interceptors.call import RpcContext, current_call
from agenttx_server.api.message_conversion import audit
from agenttx_server.audit.reading import AuditTrail
from agenttx_server.engine.errors import FieldViolation, InvalidRequest

__all__ = ["AuditServicer"]


class AuditServicer:
    """Serves the trail. Whose entries a caller is told is its call's scope; that the chains hold is told to each."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    async def ListAuditEntries(
        self, request: pb.ListAuditEntriesRequest, context: RpcContext
    ) -> pb.ListAuditEntriesResponse:
        which, page = audit.list_request(request, current_call().scope)

        async def ask(limit: int) -> tuple[pb.ListAuditEntriesResponse, int]:
            try:
                found = await self._trail.list_audit(which, page.cursor, limit)
            except ValueError:
                raise _bad_page_token() from None
            entries = map(audit.entry_message, found.entries)
            answer = pb.ListAuditEntriesResponse(entries=entries, next_page_token=found.next_cursor)
            return answer, len(found.entries)

        return await page_that_fits(ask, page.limit)

    async def VerifyAuditTrail(
        self, request: pb.VerifyAuditTrailRequest, context: RpcContext
    ) -> pb.VerifyAuditTrailResponse:
        noted, cursor = audit.verify_request(request)
        try:
            return audit.verify_response(await self._trail.verify_audit(noted, cursor))
        except ValueError:
            raise _bad_page_token() from None


def _bad_page_token() -> InvalidRequest:
    return InvalidRequest((FieldViolation("page_token", "was not given out for this list"),))
