"""Records and their ancestry on the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from agenttx import lineage_operations as operations
from agenttx.async_connection import AsyncConnection
from agenttx.lineage_records import (
    LineageExportFormat,
    LineageVerification,
    Record,
    RecordEvent,
    RecordTrace,
    TraceDirection,
    TraceFormat,
)
from agenttx.methods import EXPORT_LINEAGE
from agenttx.operation import Operation
from agenttx.reads import Page

__all__ = ["AsyncLineage"]

T = TypeVar("T")


class AsyncLineage:
    """Records and what became of them: `client.lineage`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def record(self, target_id: str, *, transaction_id: str = "") -> Record:
        """Read a record, with the edges to what it came of.

        Args:
            target_id: The record.
            transaction_id: An open transaction whose records are read too.

        Raises:
            NotFound: there is none, or its transaction is not committed.
        """
        return await self._connection.perform(operations.get_record(target_id, transaction_id))

    async def records(
        self,
        run_id: str,
        action: str = "",
        *,
        transaction_id: str = "",
        content: bool = True,
        page_size: int = 0,
    ) -> AsyncIterator[Record]:
        """Iterate over an action's records in a run, in the order in which rows and outputs came, or over all, action by action.

        Args:
            run_id: The run.
            action: The action; `source` for the rows. Empty: all.
            transaction_id: An open transaction whose records are read too.
            content: False leaves content out.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.

        Raises:
            NotFound: there is no such run.
        """
        async for item in self._pages(
            lambda token: operations.list_records(
                token,
                run_id=run_id,
                action=action,
                transaction_id=transaction_id,
                content=content,
                page_size=page_size,
            )
        ):
            yield item

    async def by_source(
        self, source_guid: str, *, content: bool = True, page_size: int = 0
    ) -> AsyncIterator[Record]:
        """Iterate over all records, of any run, that came of rows with the same content.

        Args:
            source_guid: What such records share.
            content: False leaves content out.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        async for item in self._pages(
            lambda token: operations.list_records(
                token, source_guid=source_guid, transaction_id="", content=content, page_size=page_size
            )
        ):
            yield item

    async def siblings(
        self, target_id: str, *, transaction_id: str = "", content: bool = True, page_size: int = 0
    ) -> AsyncIterator[Record]:
        """Iterate over the records that have the parent of this one, itself included; of a root over itself.

        Args:
            target_id: The record.
            transaction_id: An open transaction whose records are read too.
            content: False leaves content out.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.

        Raises:
            NotFound: there is none.
        """
        async for item in self._related("siblings", target_id, transaction_id, content, page_size):
            yield item

    async def ancestors(
        self, target_id: str, *, transaction_id: str = "", content: bool = True, page_size: int = 0
    ) -> AsyncIterator[Record]:
        """Iterate over what a record came of, through merges, groups and aggregation too.

        Args:
            target_id: The record.
            transaction_id: An open transaction whose records are read too.
            content: False leaves content out.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.

        Raises:
            NotFound: there is none.
        """
        async for item in self._related("ancestors", target_id, transaction_id, content, page_size):
            yield item

    async def descendants(
        self, target_id: str, *, transaction_id: str = "", content: bool = True, page_size: int = 0
    ) -> AsyncIterator[Record]:
        """Iterate over what came of a record, through merges, groups and aggregation too.

        Args:
            target_id: The record.
            transaction_id: An open transaction whose records are read too.
            content: False leaves content out.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.

        Raises:
            NotFound: there is none.
        """
        async for item in self._related("descendants", target_id, transaction_id, content, page_size):
            yield item

    async def by_root(
        self, root_target_id: str, *, transaction_id: str = "", content: bool = True, page_size: int = 0
    ) -> AsyncIterator[Record]:
        """Iterate over all records of a root, itself included.

        Args:
            root_target_id: The root.
            transaction_id: An open transaction whose records are read too.
            content: False leaves content out.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.

        Raises:
            NotFound: there is none.
        """
        async for item in self._pages(
            lambda token: operations.by_root(
                token,
                root_target_id=root_target_id,
                transaction_id=transaction_id,
                content=content,
                page_size=page_size,
            )
        ):
            yield item

    async def trace(
        self,
        target_id: str,
        direction: TraceDirection | str = "ANCESTORS",
        *,
        max_records: int = 0,
        transaction_id: str = "",
    ) -> RecordTrace:
        """Read a record with all that it came of, or all that came of it, and the edges between them.

        Args:
            target_id: The record.
            direction: ANCESTORS, DESCENDANTS or BOTH.
            max_records: Records beside it, at most 5,000; 0 for 1,000.
            transaction_id: An open transaction whose records are read too.

        Raises:
            NotFound: there is none.
        """
        return await self._connection.perform(
            operations.trace(target_id, direction, max_records, transaction_id)
        )

    async def draw(
        self,
        target_id: str,
        form: TraceFormat | str = "TREE",
        direction: TraceDirection | str = "ANCESTORS",
        *,
        max_records: int = 0,
        transaction_id: str = "",
    ) -> str:
        """Have a trace drawn.

        Args:
            target_id: The record.
            form: TREE or MERMAID.
            direction: ANCESTORS, DESCENDANTS or BOTH.
            max_records: Records beside it, at most 5,000; 0 for 1,000.
            transaction_id: An open transaction whose records are read too.

        Raises:
            NotFound: there is none.
        """
        return await self._connection.perform(
            operations.draw(target_id, form, direction, max_records, transaction_id)
        )

    async def events(
        self, *, target_id: str = "", transaction_id: str = "", page_size: int = 0
    ) -> AsyncIterator[RecordEvent]:
        """Iterate over what became of a record, or of all inputs of a transaction: in rewound attempts too.

        Args:
            target_id: The record.
            transaction_id: Or the transaction; it may be open, or rolled back.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.

        Raises:
            NotFound: there is none.
        """
        async for item in self._pages(
            lambda token: operations.events(
                token, target_id=target_id, transaction_id=transaction_id, page_size=page_size
            )
        ):
            yield item

    async def verify(self, run_id: str) -> LineageVerification:
        """Check what must always hold of the records of a run.

        Args:
            run_id: The run.

        Raises:
            NotFound: there is no such run.
        """
        pages = [
            page async for page in self._pages(lambda token: operations.verify_page(token, run_id=run_id))
        ]
        return operations.verified(pages)

    async def export(self, run_id: str, form: LineageExportFormat | str = "RECORDS") -> AsyncIterator[str]:
        """Iterate over the pieces of a text that other programs read, to be put together in order.

        Args:
            run_id: The run.
            form: RECORDS (a full record a line), PROV_JSON, or OPENLINEAGE (an event a line).

        Raises:
            NotFound: there is no such run.
        """
        async for answer in self._connection.stream(EXPORT_LINEAGE, operations.export_request(run_id, form)):
            yield answer.text

    async def _related(
        self, how: str, target_id: str, transaction_id: str, content: bool, page_size: int
    ) -> AsyncIterator[Record]:
        async for item in self._pages(
            lambda token: operations.related(
                token,
                how=how,
                target_id=target_id,
                transaction_id=transaction_id,
                content=content,
                page_size=page_size,
            )
        ):
            yield item

    async def _pages(self, ask: Callable[[str], Operation[Page[T]]]) -> AsyncIterator[T]:
        token = ""
        while True:
            page = await self._connection.perform(ask(token))
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return
