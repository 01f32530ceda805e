"""Reads of transactions. What is answered is what SQL holds; only what runs now is added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agenttx_server.engine import rollback_controller
from agenttx_server.engine.errors import FieldViolation, InvalidRequest, NotFound
from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.ports import AttemptPage, CommittedPage, TransactionFilter, TransactionPage
from agenttx_server.engine.records import (
    EffectState,
    EventRecord,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
)
from agenttx_server.engine.requests import (
    ContextEntry,
    GraphView,
    RootCause,
    StepNode,
    TransactionView,
    UnsettledStep,
)
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import TransactionCache, not_found

__all__ = ["Queries"]

PAGE_BYTES = 4 << 20


class Queries:
    """Answers reads for their principal; another principal's transaction does not exist."""

    def __init__(self, services: EngineServices, cache: TransactionCache, signals: EventSignals) -> None:
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
        if record.pending_rewind is not None:
            failed_undo = tuple((await self._aggregate(principal, transaction_id)).failed_undo())
        unsettled = await self._unsettled(record)
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
                transaction_id, cursor, limit, PAGE_BYTES, step_id=step_id, include_rewound=include_rewound
            )
        except ValueError:
            raise _bad_page_token() from None

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
                await signal
        finally:
            signal.cancel()

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
            steps = sorted(transaction.executing_steps() + transaction.in_doubt_steps())
        else:
            return ()
        found = ((step, transaction.steps.get(step)) for step in steps)
        return tuple(
            UnsettledStep(
                step,
                live.attempt,
                live.tool_name,
                live.effect_class,
                live.state,
                live.request_id,
                live.started_at,
            )
            for step, live in found
            if live is not None  # None: it is about to begin
        )

    async def _record(self, principal: str, transaction_id: TransactionId) -> TransactionRecord:
        record = await self._store.load_record(transaction_id)
        if record is None or record.principal != principal:
            raise not_found(transaction_id)
        return record

    async def _aggregate(self, principal: str, transaction_id: TransactionId) -> Transaction:
        """Return the transaction from memory, also while a step runs, else from SQL."""
        entry = self._cache.pin(transaction_id)
        try:
            if entry.transaction is not None and entry.transaction.record.principal == principal:
                return entry.transaction
            async with entry.lock:
                return await self._cache.loaded(entry, principal)
        finally:
            self._cache.unpin(entry)


def _bad_page_token() -> InvalidRequest:
    return InvalidRequest((FieldViolation("page_token", "was not given out by this server for this list"),))
