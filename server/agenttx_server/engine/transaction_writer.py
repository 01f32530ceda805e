"""The one way in which a transaction's change reaches the store.

Numbers events and staged effects, moves the revision on, and wakes event followers when
the write is durable. A write that fails leaves memory ahead of SQL, so its caller drops
the cached transaction, and what still works with it can write nothing more: by the
revision that memory counted up, a later write could meet another server's row and pass for its
successor. For the same reason writes wait for one another where servers share a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from agenttx_server.engine.change_observer import ChangeObserver
from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.frozen import changed, replace
from agenttx_server.engine.ports import (
    Clock,
    CommitRefused,
    ExtraRows,
    StaleRevision,
    StepRemoval,
    StoreUnavailable,
    TransactionStore,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import (
    ApprovalRecord,
    AttemptRecord,
    CommitCheck,
    CrashPolicy,
    EffectRecord,
    EventRecord,
    EventType,
    RecordedResponse,
    ServerId,
    StateRead,
    StateWrite,
    TransactionId,
    TransactionRecord,
    UndoRecord,
)
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.step_context import StepContext
from agenttx_server.engine.transaction import Transaction

__all__ = ["Rows", "ToldPayload", "TransactionWriter", "is_at_work"]


@dataclass(slots=True)
class Rows:
    """Rows collected for one write. ``staged`` get their transaction-wide order when written."""

    attempts: list[AttemptRecord] = field(default_factory=list)
    reads: list[StateRead] = field(default_factory=list)
    writes: list[StateWrite] = field(default_factory=list)
    checks: list[CommitCheck] = field(default_factory=list)
    staged: list[EffectRecord] = field(default_factory=list)
    effects: list[EffectRecord] = field(default_factory=list)
    undo: list[UndoRecord] = field(default_factory=list)
    approvals: list[ApprovalRecord] = field(default_factory=list)
    responses: list[RecordedResponse] = field(default_factory=list)
    events: list[tuple[EventType, int, int, int, dict[str, Any]]] = field(default_factory=list)
    sub_steps: list[AttemptRecord] = field(default_factory=list)
    removals: list[StepRemoval] = field(default_factory=list)
    extra: list[ExtraRows] = field(default_factory=list)

    def event(
        self, kind: EventType, step_id: int = 0, attempt: int = 0, sub_step: int = 0, /, **payload: Any
    ) -> None:
        """Add an event; ``payload`` is plain JSON."""
        self.events.append((kind, step_id, attempt, sub_step, payload))

    def take_context(self, context: StepContext) -> None:
        """Add what a successful attempt read, wrote, checked and staged."""
        self.reads += context.reads
        self.writes += context.writes
        self.checks += context.checks
        self.staged += context.effects

    def take(self, later: Rows) -> None:
        """Add all of another collection behind these."""
        for name in Rows.__slots__:
            getattr(self, name).extend(getattr(later, name))

    def drop_contexts(self) -> None:
        """Leave out all that attempts read, wrote, checked and staged: they are about to be rewound."""
        self.reads, self.writes, self.checks, self.staged = [], [], [], []


_NOBODY = ServerId("")


def is_at_work(transaction: Transaction) -> bool:
    """Whether somebody has to see to a transaction if its server dies now.

    Under crash policy ABORT that is so as long as it is open; else while a step executes, a
    rewind is under way, or undo of a late effect is owed.
    """
    record = transaction.record
    if transaction.owes_late:
        return True
    if record.status.is_terminal:
        return False
    if record.crash_policy is CrashPolicy.ABORT:
        return True
    if record.pending_rewind is not None:
        return record.pending_rewind.is_under_way
    return record.open_group is not None and transaction.is_executing


class TransactionWriter:
    """Writes changes of cached transactions through the store."""

    def __init__(
        self,
        store: TransactionStore,
        clock: Clock,
        signals: EventSignals[TransactionId],
        lease: ServerLease,
        observer: ChangeObserver | None = None,
    ) -> None:
        self._observer = observer
        self._store = store
        self._clock = clock
        self._signals = signals
        self._lease = lease

    async def write(
        self,
        transaction: Transaction,
        rows: Rows,
        *,
        rewind_from: int | None = None,
        publish: bool = False,
        first: bool = False,
        **head: Any,
    ) -> WriteReceipt:
        """Write rows and changed head fields; return when durable.

        The transaction's head moves on at once, so that writes of one transaction can
        follow one another without waiting. Raises what the store raises, and after a failure the same again.
        """
        before = transaction.last_write
        if before is None or before.done():
            if not self._store.is_shared:
                return await self._write(transaction, rows, rewind_from, publish, first, head)
            return await self._write_in_turn(transaction, rows, rewind_from, publish, first, head)
        work = partial(self._write, transaction, rows, rewind_from, publish, first, head)
        task = asyncio.get_running_loop().create_task(_after(before, work))
        transaction.last_write = task
        task.add_done_callback(_see)
        return await asyncio.shield(task)  # also a caller that goes away leaves the next one waiting for it

    def queue(
        self, transaction: Transaction, rows: Rows, head: dict[str, Any]
    ) -> asyncio.Future[WriteReceipt]:
        """Hand a write over; return the future of its receipt, which the caller passes to :meth:`ended` when it is done.

        For a caller that has the transaction to itself, and no write of it under way: what comes later waits for this.
        """
        write = self._store.submit(self._write_set(transaction, rows, None, False, False, head))
        transaction.last_write = write
        return write

    def ended(
        self, transaction: Transaction, rows: Rows, write: asyncio.Future[WriteReceipt]
    ) -> Exception | None:
        """Note the end of a write that was handed over; return why it failed, None if it did not."""
        error = StoreUnavailable("the write was cut off") if write.cancelled() else write.exception()
        if error is None:
            self._note_written(transaction.record, rows)
            return None
        failed = error if isinstance(error, Exception) else StoreUnavailable(type(error).__name__)
        transaction.write_failure = _lasting(failed)
        return failed

    async def _write_in_turn(
        self,
        transaction: Transaction,
        rows: Rows,
        rewind_from: int | None,
        publish: bool,
        first: bool,
        head: dict[str, Any],
    ) -> WriteReceipt:
        """Write; whatever comes of the caller, the next write waits for this one and finds how it ended."""
        if transaction.write_failure is not None:
            raise transaction.write_failure
        write_set = self._write_set(transaction, rows, rewind_from, publish, first, head)
        try:
            write = self._store.submit(write_set)
        except Exception as error:
            transaction.write_failure = _lasting(error)
            raise
        # Not the write itself: who finds it over finds how it ended too.
        transaction.last_write = over = asyncio.get_running_loop().create_future()

        def ended(done: asyncio.Future[WriteReceipt]) -> None:
            error = StoreUnavailable("the write was cut off") if done.cancelled() else done.exception()
            if error is None:
                self._note_written(write_set.transaction, rows)
            # Of one that was refused nothing was written, and its caller puts the head back.
            elif isinstance(error, Exception) and not isinstance(error, CommitRefused):
                transaction.write_failure = _lasting(error)
            over.set_result(None)

        write.add_done_callback(ended)
        return await asyncio.shield(write)

    async def _write(
        self,
        transaction: Transaction,
        rows: Rows,
        rewind_from: int | None,
        publish: bool,
        first: bool,
        head: dict[str, Any],
    ) -> WriteReceipt:
        if transaction.write_failure is not None:
            raise transaction.write_failure
        write_set = self._write_set(transaction, rows, rewind_from, publish, first, head)
        try:
            receipt = await self._store.write(write_set)
        except CommitRefused:
            raise  # of this nothing was written, and its caller puts the head back
        except Exception as error:
            transaction.write_failure = _lasting(error)
            raise
        self._note_written(write_set.transaction, rows)
        return receipt

    def _note_written(self, record: TransactionRecord, rows: Rows) -> None:
        if rows.events:
            self._signals.notify(record.transaction_id)
            if self._observer is not None:
                self._observer.change_written(record, rows)

    def _write_set(
        self,
        transaction: Transaction,
        rows: Rows,
        rewind_from: int | None,
        publish: bool,
        first: bool,
        head: dict[str, Any],
    ) -> WriteSet:
        """Number what is to be written and move the transaction's head on."""
        before = transaction.record
        now = self._clock.now()
        generation = head.get("generation", before.generation)
        events = [
            EventRecord(
                before.event_sequence + number,
                kind,
                generation,
                now,
                step_id,
                attempt,
                _payload_text(payload),
                sub_step,
            )
            for number, (kind, step_id, attempt, sub_step, payload) in enumerate(rows.events, start=1)
        ]
        effects = rows.effects
        if rows.staged:
            effects = effects + [
                replace(effect, sequence=before.effect_sequence + number)
                for number, effect in enumerate(rows.staged, start=1)
            ]
            head["effect_sequence"] = before.effect_sequence + len(rows.staged)
        head["revision"] = before.revision if first else before.revision + 1
        head["updated_at"] = now
        head["event_sequence"] = before.event_sequence + len(events)
        transaction.record = record = changed(before, head)
        if transaction.most_state_rows is not None:
            transaction.most_state_rows += len(rows.reads) + len(rows.writes)
        owner = self._lease.id if is_at_work(transaction) else _NOBODY
        if record.owner != owner:
            transaction.record = record = changed(record, {"owner": owner})
        return WriteSet(
            transaction=record,
            expected_revision=0 if first else before.revision,
            rewind_from=rewind_from,
            attempts=rows.attempts,
            state_reads=rows.reads,
            state_writes=rows.writes,
            checks=rows.checks,
            effects=effects,
            undo=rows.undo,
            approvals=rows.approvals,
            events=events,
            responses=rows.responses,
            publish=publish,
            sub_steps=rows.sub_steps,
            removals=rows.removals,
            extra=rows.extra,
        )


class ToldPayload(dict[str, Any]):
    """An event's payload that comes again and again, with its text. Nobody changes it."""

    def __init__(self, **payload: Any) -> None:
        super().__init__(payload)
        self.text = _payload_text({**payload})


def _payload_text(payload: dict[str, Any]) -> str:
    if type(payload) is ToldPayload:
        return payload.text
    return orjson.dumps(payload, option=orjson.OPT_SORT_KEYS).decode() if payload else "{}"


def _lasting(error: Exception) -> Exception:
    """Return what later writes of the same memory are refused with."""
    if isinstance(error, StaleRevision | StoreUnavailable):
        return error
    return StoreUnavailable(f"an earlier write ended with {type(error).__name__}")


async def _after(
    previous: asyncio.Future[Any] | None, work: Callable[[], Awaitable[WriteReceipt]]
) -> WriteReceipt:
    if previous is not None and not previous.done():
        await asyncio.wait((previous,))
    return (
        await work()
    )  # made here: one that is cancelled while it waits leaves nothing behind that was begun


def _see(task: asyncio.Task[WriteReceipt]) -> None:
    if not task.cancelled():
        task.exception()  # seen, also where nobody waits any more
