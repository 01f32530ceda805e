"""The one way in which a transaction's change reaches the store.

Numbers events and staged effects, moves the revision on, and wakes event followers when
the write is durable. A write that fails leaves memory ahead of SQL, so its caller drops
the cached transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.frozen import changed
from agenttx_server.engine.ports import Clock, TransactionStore, WriteReceipt, WriteSet
from agenttx_server.engine.records import (
    AttemptRecord,
    CommitCheck,
    EffectRecord,
    EventRecord,
    EventType,
    RecordedResponse,
    StateRead,
    StateWrite,
    UndoRecord,
)
from agenttx_server.engine.step_context import StepContext
from agenttx_server.engine.transaction import Transaction

__all__ = ["Rows", "TransactionWriter"]


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
    responses: list[RecordedResponse] = field(default_factory=list)
    events: list[tuple[EventType, int, int, dict[str, Any]]] = field(default_factory=list)

    def event(self, kind: EventType, step_id: int = 0, attempt: int = 0, **payload: Any) -> None:
        """Add an event; ``payload`` is plain JSON."""
        self.events.append((kind, step_id, attempt, payload))

    def take_context(self, context: StepContext) -> None:
        """Add what a successful attempt read, wrote, checked and staged."""
        self.reads += context.reads
        self.writes += context.writes
        self.checks += context.checks
        self.staged += context.effects

    def drop_contexts(self) -> None:
        """Leave out all that attempts read, wrote, checked and staged: they are about to be rewound."""
        self.reads, self.writes, self.checks, self.staged = [], [], [], []


class TransactionWriter:
    """Writes changes of cached transactions through the store."""

    def __init__(self, store: TransactionStore, clock: Clock, signals: EventSignals) -> None:
        self._store = store
        self._clock = clock
        self._signals = signals

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
        follow one another without waiting. Raises what the store raises.
        """
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
                orjson.dumps(payload, option=orjson.OPT_SORT_KEYS).decode() if payload else "{}",
            )
            for number, (kind, step_id, attempt, payload) in enumerate(rows.events, start=1)
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
        record = changed(before, head)
        transaction.record = record
        receipt = await self._store.write(
            WriteSet(
                transaction=record,
                expected_revision=0 if first else before.revision,
                rewind_from=rewind_from,
                attempts=rows.attempts,
                state_reads=rows.reads,
                state_writes=rows.writes,
                checks=rows.checks,
                effects=effects,
                undo=rows.undo,
                events=events,
                responses=rows.responses,
                publish=publish,
            )
        )
        if events:
            self._signals.notify(record.transaction_id)
        return receipt
