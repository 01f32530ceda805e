"""Reads of transactions. What is answered is what SQL holds; only what runs now is added to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agenttx_server.engine import agent_undo, rollback_controller
from agenttx_server.engine.errors import FieldViolation, InvalidRequest, NotFound
from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import (
    AttemptPage,
    CommittedPage,
    EffectPage,
    TransactionFilter,
    TransactionPage,
)
from agenttx_server.engine.records import (
    ApprovalState,
    AttemptState,
    EffectState,
    EventRecord,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import (
    ApprovalListing,
    ApprovalView,
    CompensationListing,
    CompensationState,
    ContextEntry,
    GraphView,
    RootCause,
    StepNode,
    TransactionView,
    UnsettledStep,
    compensation_state,
)
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_answers import within_arguments_limit
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import TransactionCache, not_found
from agenttx_server.engine.visibility import sees

__all__ = ["Queries"]

PAGE_BYTES = 4 << 20
# Seconds until an event that another server wrote is seen.
_LOOK_EVERY = 0.25
MOST_FAILED_UNDO = 1000  # named by GetTransaction; ListCompensations has all


class Queries:
    """Answers reads for their principal (visibility.sees); another principal's transaction does not exist."""

    def __init__(
        self, services: EngineServices, cache: TransactionCache, signals: EventSignals[TransactionId]
    ) -> None:
        self._services = services
        self._store = services.store
        self._cache = cache
        self._signals = signals

    async def get(self, principal: str, transaction_id: TransactionId) -> TransactionView:
        """Return a transaction with its context log and what holds it."""
        record = await self._record(principal, transaction_id)
        context, truncated = await self._store.load_context(
            transaction_id, self._services.limits.context_bytes
        )
        effects = await self._store.list_effects(
            transaction_id, frozenset({EffectState.STAGED, EffectState.READY})
        )
        failed_undo: tuple[UndoRecord, ...] = ()
        if record.undo_sequence:
            failed = await self._store.list_compensations(
                principal, transaction_id, frozenset({UndoState.FAILED}), "", MOST_FAILED_UNDO
            )
            failed_undo = tuple(undo for _, undo in failed.undo)
        pending_undo: tuple[UndoRecord, ...] = ()
        if record.pending_rewind is not None:
            awaited = await self._store.list_compensations(
                principal, transaction_id, frozenset({UndoState.AWAITING_AGENT}), "", MOST_FAILED_UNDO
            )
            pending_undo = agent_undo.told([undo for _, undo in awaited.undo])
        unsettled = await self._unsettled(record)
        approvals: tuple[ApprovalView, ...] = ()
        if record.approval_sequence and not record.status.is_terminal:
            transaction = await self._aggregate(principal, transaction_id)
            views = [ApprovalView.of(record, approval) for approval in transaction.live_approvals()]
            approvals = within_arguments_limit(views)
        if record.status is TransactionStatus.ACTIVE and unsettled:
            record = replace(record, status=TransactionStatus.EXECUTING)
        return TransactionView(
            record=record,
            context=tuple(ContextEntry(step, tool, text) for step, tool, text in context),
            context_truncated=truncated,
            replay_budget=rollback_controller.replay_budget(
                record.policy.replay_budget_factor, max(record.furthest_step, 1)
            ),
            pending_effects=len(effects),
            undo_failed=failed_undo,
            unsettled=unsettled,
            approvals=approvals,
            recovery_problem=(
                await self._store.load_recovery_problem(transaction_id) if record.owner else ""
            ),
            pending_undo=pending_undo,
        )

    async def graph(self, principal: str, transaction_id: TransactionId) -> GraphView:
        """Return the live steps and their edges."""
        transaction = await self._aggregate(principal, transaction_id)
        nodes = tuple(
            StepNode(step, live.attempt, live.tool_name, live.effect_class, live.state)
            for step, live in sorted(transaction.steps.items())
        )
        return GraphView(
            nodes, tuple(sorted(transaction.graph.edges(), key=lambda edge: (edge.to_step, edge)))
        )

    async def find_root_cause(
        self, principal: str, transaction_id: TransactionId, step_id: int, key: str
    ) -> RootCause:
        """Trace a key back from a live step."""
        transaction = await self._aggregate(principal, transaction_id)
        if step_id not in transaction.steps:
            raise NotFound(
                f"step {step_id} is not a live step of the transaction",
                reason="STEP_NOT_FOUND",
                metadata={"step_id": str(step_id)},
            )
        return transaction.graph.find_root_cause(step_id, key)

    async def list_transactions(self, which: TransactionFilter, cursor: str, limit: int) -> TransactionPage:
        """Return a page of transactions."""
        try:
            return await self._store.list_transactions(which, cursor, limit)
        except ValueError:
            raise _bad_page_token() from None

    async def list_steps(
        self,
        principal: str,
        transaction_id: TransactionId,
        cursor: str,
        limit: int,
        step_id: int | None,
        include_rewound: bool,
    ) -> AttemptPage:
        """Return a page of attempts."""
        await self._record(principal, transaction_id)
        try:
            return await self._store.list_attempts(
                transaction_id,
                cursor,
                limit,
                PAGE_BYTES,
                step_id=step_id,
                include_rewound=include_rewound,
                include_sub_steps=True,
            )
        except ValueError:
            raise _bad_page_token() from None

    async def list_compensations(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[CompensationState],
        cursor: str,
        limit: int,
    ) -> CompensationListing:
        """Return a page of undo actions in these states, of one transaction or of all that the principal has.

        A page may be shorter than asked for, but only the last one is empty.
        """
        if transaction_id is not None:
            await self._record(principal, transaction_id)
        stored = frozenset(state for wanted in states for state in _STORED_STATES[wanted])
        while True:
            try:
                page = await self._store.list_compensations(principal, transaction_id, stored, cursor, limit)
            except ValueError:
                raise _bad_page_token() from None
            cursor = page.next_cursor
            found = tuple(
                (record.transaction_id, undo, state)
                for record, undo in page.undo
                if (state := compensation_state(record, undo)) in states
            )
            if found or not cursor:
                return CompensationListing(found, cursor)

    async def list_effects(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[EffectState],
        channel: str,
        cursor: str,
        limit: int,
    ) -> EffectPage:
        """Return a page of effects, of one transaction or of all that the principal has."""
        if transaction_id is not None:
            await self._record(principal, transaction_id)
        try:
            return await self._store.list_effects_page(
                principal, transaction_id, states, channel, cursor, limit, PAGE_BYTES
            )
        except ValueError:
            raise _bad_page_token() from None

    async def list_approvals(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[ApprovalState],
        cursor: str,
        limit: int,
    ) -> ApprovalListing:
        """Return a page of approvals in these states, of one transaction or of all that the principal has."""
        if transaction_id is not None:
            await self._record(principal, transaction_id)
        try:
            page = await self._store.list_approvals(
                principal, transaction_id, states, cursor, limit, PAGE_BYTES
            )
        except ValueError:
            raise _bad_page_token() from None
        views = tuple(ApprovalView.of(record, approval) for record, approval in page.approvals)
        return ApprovalListing(views, page.next_cursor)

    async def scan_committed(self, prefix: str, cursor: str, limit: int) -> CommittedPage:
        """Return a page of committed keys."""
        try:
            return await self._store.scan_committed(prefix, cursor, limit, PAGE_BYTES)
        except ValueError:
            raise _bad_page_token() from None

    async def events_after(
        self, principal: str, transaction_id: TransactionId, from_sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        """Return events in order."""
        await self._record(principal, transaction_id)
        return await self._store.list_events(transaction_id, from_sequence, limit)

    async def wait_for_event(self, transaction_id: TransactionId, after_sequence: int) -> None:
        """Wait until an event after ``after_sequence`` is durable."""
        signal = self._signals.subscribe(transaction_id)
        try:
            record = await self._store.load_record(transaction_id)
            if record is None:
                raise not_found(transaction_id)
            if record.event_sequence <= after_sequence:
                await self._await_signal(signal)
        finally:
            signal.cancel()

    async def _await_signal(self, signal: asyncio.Future[None]) -> None:
        """Wait for an event written here or, where others write too, until it is time to look."""
        if not self._store.is_shared:
            await signal
            return
        look = asyncio.ensure_future(self._services.clock.sleep(_LOOK_EVERY))
        try:
            await asyncio.wait((signal, look), return_when=asyncio.FIRST_COMPLETED)
        finally:
            look.cancel()

    async def is_ended(self, principal: str, transaction_id: TransactionId) -> bool:
        """Return whether a transaction has ended."""
        return (await self._record(principal, transaction_id)).status.is_terminal

    async def _unsettled(self, record: TransactionRecord) -> tuple[UnsettledStep, ...]:
        """Return the steps that have begun and have no outcome: those that run here, else those recorded so."""
        entry = self._cache.peek(record.transaction_id)
        if entry is not None and entry.running is not None:
            transaction = entry.running.transaction
            steps = entry.running.executing
        elif record.open_group is not None:
            transaction = await self._aggregate(record.principal, record.transaction_id)
            steps = sorted(
                transaction.executing_steps() + transaction.in_doubt_steps() + transaction.awaiting_steps()
            )
        else:
            return ()
        found = ((step, transaction.steps.get(step)) for step in steps)
        unsettled = [
            UnsettledStep(
                step,
                live.attempt,
                live.tool_name,
                live.effect_class,
                live.state,
                live.request_id,
                live.started_at,
                progress=self._services.tools_of(record.principal).progress(record.transaction_id, step, 0),
            )
            for step, live in found
            if live is not None  # None: it is about to begin
        ]
        first, size = record.open_group or (record.next_step_id, 1)
        unsettled += [
            UnsettledStep(
                step,
                made.attempt,
                made.tool_name,
                made.effect_class,
                made.state,
                "",
                made.started_at,
                number,
                self._services.tools_of(record.principal).progress(record.transaction_id, step, number),
            )
            for step in range(first, first + size)
            for number, made in sorted(transaction.sub_steps.get(step, {}).items())
            if made.state in (AttemptState.EXECUTING, AttemptState.IN_DOUBT)
        ]
        return tuple(sorted(unsettled, key=lambda step: (step.step_id, step.sub_step)))

    async def _is_current(self, transaction: Transaction) -> bool:
        """Whether what is in memory is what SQL holds: other servers may have written since."""
        if not self._store.is_shared:
            return True
        record = transaction.record
        return await self._store.load_revision(record.transaction_id) == record.revision

    async def _record(self, principal: str, transaction_id: TransactionId) -> TransactionRecord:
        record = await self._store.load_record(transaction_id)
        if record is None or not sees(principal, record.principal):
            raise not_found(transaction_id)
        return record

    async def _aggregate(self, principal: str, transaction_id: TransactionId) -> Transaction:
        """Return the transaction from memory, also while a step runs, else from SQL."""
        entry = self._cache.pin(transaction_id)
        try:
            known = entry.transaction
            is_mine = known is not None and sees(principal, known.record.principal)
            if known is not None and is_mine and (entry.running or await self._is_current(known)):
                return known
            async with entry.lock:
                if entry.transaction is not None and not await self._is_current(entry.transaction):
                    entry.transaction = None
                return await self._cache.loaded(entry, principal)
        finally:
            self._cache.unpin(entry)


_STORED_STATES: dict[CompensationState, set[UndoState]] = {
    CompensationState.REGISTERED: {UndoState.PENDING},
    CompensationState.PENDING: {UndoState.PENDING, UndoState.LATE},
    CompensationState.RUNNING: set(),  # known to the server that runs it, while it holds the transaction
    CompensationState.DONE: {UndoState.DONE},
    CompensationState.FAILED: {UndoState.FAILED},
    CompensationState.RESOLVED: {UndoState.RESOLVED},
    CompensationState.RELEASED: {UndoState.PENDING},
    CompensationState.AWAITING_AGENT: {UndoState.AWAITING_AGENT},
}


def _bad_page_token() -> InvalidRequest:
    return InvalidRequest((FieldViolation("page_token", "was not given out by this server for this list"),))
