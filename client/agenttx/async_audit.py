"""The audit trail on the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from agenttx import audit_operations as operations
from agenttx.async_connection import AsyncConnection
from agenttx.audit_records import AuditEntry, AuditVerification
from agenttx.reads import Page

__all__ = ["AsyncAudit"]


class AsyncAudit:
    """Who did what to what and when: `client.audit`, for operators and auditors."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def entries(
        self,
        *,
        actor: str = "",
        owner: str = "",
        action: str = "",
        subject: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[AuditEntry]:
        """Iterate over the entries about the caller's tenant, chain by chain, each in the order in which they were written.

        Args:
            actor: Who did it, as entries name it.
            owner: Whose it was done to, as entries name it.
            action: What was done, such as `transaction.commit`; `transaction.` for all that begin so.
            subject: What it was done to: an id or a name.
            since: Not before this time; a time without a zone is local.
            until: Before this time.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        token = ""
        while True:
            page: Page[AuditEntry] = await self._connection.perform(
                operations.list_entries(
                    token,
                    actor=actor,
                    owner=owner,
                    action=action,
                    subject=subject,
                    since=since,
                    until=until,
                    page_size=page_size,
                )
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    async def verify(self, heads: Sequence[str] = ()) -> AuditVerification:
        """Check that no entry of the trail was changed, removed, put in or moved, whosever it is.

        Args:
            heads: Heads that an earlier check told: they must still be there. At most 100.
        """
        pages: list[AuditVerification] = []
        token = ""
        while True:
            page: Page[AuditVerification] = await self._connection.perform(
                operations.verify_page(token, heads=heads)
            )
            pages += page.entries
            token = page.next_page_token
            if not token:
                return operations.verified(pages)
