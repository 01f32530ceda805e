"""What is asked about records: reading, tracing and checking them. A principal sees records of its own runs only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, NotFound
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import load
from agenttx_server.engine.visibility import sees
from agenttx_server.lineage.definition import TransactionScope
from agenttx_server.lineage.document import read_document
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.ports import EventPage, KeptEvent, KeptRecord, RecordPage
from agenttx_server.lineage.records import Record, RecordEdge, RecordEvent
from agenttx_server.lineage.tracing import Direction, Trace, in_order
from agenttx_server.lineage.verification import Breach, verify_lineage
from agenttx_server.pipelines.barrier import FIRST_UNIT_PLACE, roots_of_unit, units_behind
from agenttx_server.pipelines.exporting import ExportForm, export_lineage, export_transaction
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import InputPage, InputState, PipelineRunRecord

__all__ = ["LineageReading", "TracedRecord", "Verified", "no_run"]

T = TypeVar("T")

_PAGE = 1000
_EVENTS_OF_A_TRACE = 1000
_BEHIND = "behind:"
"""Begins the cursor of what is checked after the rows; no other has a colon."""


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """``record`` and ``others`` as they are kept, ``trace`` as it is drawn, and what became of the record."""

    record: KeptRecord
    others: Sequence[KeptRecord]
    trace: Trace
    events: Sequence[KeptEvent]


@dataclass(frozen=True, slots=True)
class Verified:
    """What does not hold of some rows of a run, and where the next ones begin."""

    breaches: Sequence[Breach]
    rows: int
    records: int
    next_cursor: str


class _Kept:
    """What is checked together."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.edges: list[RecordEdge] = []
        self.events: list[RecordEvent] = []

    async def breaches(
        self, consumers: Callable[[str], Sequence[str]] | None, *, content_grows: bool = True
    ) -> list[Breach]:
        # Off the loop: a run in one transaction has records enough to be noticed by everybody.
        return await asyncio.to_thread(
            verify_lineage, self.records, self.edges, self.events, consumers, content_grows=content_grows
        )


class LineageReading:
    """Reads the records of a store."""

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._records = store.lineage

    async def run(self, principal: str, run_id: str) -> PipelineRunRecord:
        """Find a run. Raises NotFound, for another's too."""
        found = await self._store.load_run(run_id)
        if found is None or not sees(principal, found.principal):
            raise no_run(run_id)
        return found

    async def record(self, principal: str, target_id: str, transaction_id: str = "") -> KeptRecord:
        """Find a record. Raises NotFound, for another's too."""
        kept = await self._records.get_record(target_id, transaction_id)
        if kept is None or not await self._owns(principal, kept.run_id):
            raise NotFound(
                f"there is no record '{target_id}', or its transaction is not committed",
                reason="RECORD_NOT_FOUND",
                metadata={"target_id": target_id},
            )
        return kept

    async def edges(self, target_ids: Sequence[str]) -> Sequence[RecordEdge]:
        """The edges from records to what they came of."""
        return await self._records.edges_of(target_ids)

    # --- lists ------------------------------------------------------------------------------------

    async def of_action(
        self, principal: str, run_id: str, action: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """An action's records in a run, or all of a run; a plain transaction that kept records is one."""
        await self._check_owned(principal, run_id)
        return await _paged(self._records.list_records(run_id, action, cursor, limit, transaction_id))

    async def of_source(
        self, principal: str, source_guid: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """All records, of any run of the principal, that came of rows with the same content."""
        found = self._records.list_by_source(principal, source_guid, cursor, limit, transaction_id)
        return await _paged(found)

    async def siblings(
        self, principal: str, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """The records with the same parent. Of a root itself: roots share no parent, though all have none."""
        kept = await self.record(principal, target_id, transaction_id)
        parent = kept.record.parent_target_id
        if not parent:
            if cursor:
                raise _bad_page_token()
            return RecordPage([kept], "")
        return await _paged(self._records.list_siblings(parent, cursor, limit, transaction_id))

    async def by_root(
        self, principal: str, root_target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """All records of a root."""
        await self.record(principal, root_target_id, transaction_id)
        return await _paged(self._records.list_by_root(root_target_id, cursor, limit, transaction_id))

    async def ancestors(
        self, principal: str, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """What a record came of."""
        await self.record(principal, target_id, transaction_id)
        return await _paged(self._records.list_ancestors(target_id, cursor, limit, transaction_id))

    async def descendants(
        self, principal: str, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """What came of a record."""
        await self.record(principal, target_id, transaction_id)
        return await _paged(self._records.list_descendants(target_id, cursor, limit, transaction_id))

    async def events_of_record(self, principal: str, target_id: str, cursor: str, limit: int) -> EventPage:
        """What became of a record. Its events outlive it: one that was rewound has them still."""
        page = await _paged(self._records.list_events(cursor, limit, input_id=target_id))
        if not page.events:
            await self.record(principal, target_id)
        elif not await self._owns(principal, page.events[0].run_id):
            raise NotFound(
                f"there is no record '{target_id}', or its transaction is not committed",
                reason="RECORD_NOT_FOUND",
                metadata={"target_id": target_id},
            )
        return page

    async def events_of_transaction(
        self, principal: str, transaction_id: str, cursor: str, limit: int
    ) -> EventPage:
        """All events of a transaction, whether it was committed or not."""
        page = await _paged(self._records.list_events(cursor, limit, transaction_id=transaction_id))
        is_there = page.events or cursor
        if not is_there or (page.events and not await self._owns(principal, page.events[0].run_id)):
            raise NotFound(
                f"no run has a transaction '{transaction_id}'",
                reason="TRANSACTION_NOT_FOUND",
                metadata={"transaction_id": transaction_id},
            )
        return page

    # --- more than one record at once -------------------------------------------------------------

    async def trace(
        self, principal: str, target_id: str, direction: Direction, limit: int, transaction_id: str = ""
    ) -> TracedRecord:
        """A record with at most ``limit`` others that it came of, or that came of it."""
        kept = await self.record(principal, target_id, transaction_id)
        found: dict[str, KeptRecord] = {}
        truncated = False
        ways: list[Callable[..., Awaitable[RecordPage]]] = []
        if direction is not Direction.DESCENDANTS:
            ways.append(self._records.list_ancestors)
        if direction is not Direction.ANCESTORS:
            ways.append(self._records.list_descendants)
        for way in ways:
            cursor = ""
            while True:
                room = limit - len(found)
                page = await way(target_id, cursor, min(room, _PAGE) or 1, transaction_id)
                found.update((item.record.target_id, item) for item in page.records[:room])
                cursor = page.next_cursor
                truncated = truncated or (bool(cursor) and len(found) >= limit) or len(page.records) > room
                if not cursor or len(found) >= limit:
                    break
        edges = [
            edge
            for edge in await self._records.edges_of([target_id, *found])
            if edge.parent in found or edge.parent == target_id
        ]
        ordered = in_order([item.record for item in found.values()], edges)
        others = [found[record.target_id] for record in ordered]
        events = await self._records.list_events("", _EVENTS_OF_A_TRACE, input_id=target_id)
        trace = Trace(kept.record, ordered, edges, direction, truncated)
        return TracedRecord(kept, others, trace, events.events)

    async def verify(self, principal: str, run_id: str, cursor: str, limit: int) -> Verified:
        """Check the records of the next ``limit`` rows of a run: those that are committed, each root whole."""
        if await self._store.load_run(run_id) is None:
            return await self._verified_transaction(principal, run_id)
        run = await self.run(principal, run_id)
        plan = Plan(read_document(load(run.definition)).definition)
        if cursor.startswith(_BEHIND):
            return await self._verified_behind(plan, run_id, _place_of(cursor), limit)
        page = await _paged(self._store.page_inputs(run_id, cursor, limit))
        committed = dict.fromkeys(
            item.transaction_id for item in page.inputs if item.state is InputState.COMMITTED
        )
        if plan.definition.transaction is TransactionScope.WHOLE:
            # Checked with its first rows.
            parts = list(committed) if not cursor else []
            return await self._verified(parts, plan.topology.consumers, page)
        below = plan.below_barriers
        rows = await self._verified(
            committed,
            lambda action: [name for name in plan.topology.consumers(action) if name not in below],
            page,
        )
        if not plan.barriers or page.next_cursor:
            return rows
        behind = await self._verified_behind(plan, run_id, FIRST_UNIT_PLACE - 1, limit)
        return Verified(
            [*rows.breaches, *behind.breaches], rows.rows, rows.records + behind.records, behind.next_cursor
        )

    async def _verified_behind(self, plan: Plan, run_id: str, after: int, limit: int) -> Verified:
        """Check the next units behind a run's barriers, each with the roots that it stands on: its records came of those."""
        breaches: list[Breach] = []
        count = looked_at = 0
        async for unit in units_behind(self._store, run_id, after=after):
            if looked_at == limit:
                return Verified(breaches, 0, count, f"{_BEHIND}{after}")
            looked_at, after = looked_at + 1, unit.place
            if unit.state is not InputState.COMMITTED:
                continue
            kept = _Kept()
            await self._take(kept, unit.transaction_id)
            count += len(kept.records)
            async for root in roots_of_unit(self._store, unit):
                await self._take(kept, root.transaction_id)
            breaches += await kept.breaches(plan.topology.consumers)
        return Verified(breaches, 0, count, "")

    async def _verified_transaction(self, principal: str, transaction_id: str) -> Verified:
        """Check what a plain transaction kept: all at once, as its records came of one another however they did."""
        await self._check_owned(principal, transaction_id)
        kept = _Kept()
        await self._take(kept, transaction_id)
        breaches = await kept.breaches(None, content_grows=False)
        return Verified(breaches, 0, len(kept.records), "")

    async def _verified(
        self, transactions: Iterable[str], consumers: Callable[[str], Sequence[str]], page: InputPage
    ) -> Verified:
        """Check transactions, each by itself."""
        breaches: list[Breach] = []
        count = 0
        for transaction_id in transactions:
            kept = _Kept()
            await self._take(kept, transaction_id)
            breaches += await kept.breaches(consumers)
            count += len(kept.records)
        return Verified(breaches, len(page.inputs), count, page.next_cursor)

    async def _take(self, kept: _Kept, transaction_id: str) -> None:
        found = [item.record for item in await self._records.records_of(transaction_id)]
        kept.records += found
        kept.edges += await self._records.edges_of([record.target_id for record in found])
        kept.events += [
            item.event for item in await self._records.events_of(transaction_id) if not item.is_rewound
        ]

    async def export(self, principal: str, run_id: str, form: ExportForm) -> AsyncIterator[str]:
        """A run's lineage as text, in pieces."""
        run = await self._store.load_run(run_id)
        if run is None:
            await self._check_owned(principal, run_id)
            pieces = export_transaction(self._store, run_id, form)
        else:
            pieces = export_lineage(self._store, await self.run(principal, run_id), form)
        async for piece in pieces:
            yield piece

    async def _check_owned(self, principal: str, run_id: str) -> None:
        if not await self._owns(principal, run_id):
            raise no_run(run_id)

    async def _owns(self, principal: str, run_id: str) -> bool:
        """Whether a run, or a plain transaction that kept records, is a principal's."""
        run = await self._store.load_run(run_id)
        owner = run.principal if run is not None else await self._records.owner_of(run_id)
        return owner is not None and sees(principal, owner)


def no_run(run_id: str) -> NotFound:
    """There is no such run, or it is another's."""
    return NotFound(
        f"there is no pipeline run '{run_id}'", reason="PIPELINE_RUN_NOT_FOUND", metadata={"run_id": run_id}
    )


async def _paged(read: Awaitable[T]) -> T:
    try:
        return await read
    except ValueError:
        raise _bad_page_token() from None


def _bad_page_token() -> InvalidRequest:
    return InvalidRequest((FieldViolation("page_token", "was not given out for this list"),))


def _place_of(cursor: str) -> int:
    text = cursor.removeprefix(_BEHIND)
    if not re.fullmatch(r"-[1-9][0-9]{0,6}", text):
        raise _bad_page_token()
    return int(text)
