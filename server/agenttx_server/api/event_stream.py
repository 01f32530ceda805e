"""WatchTransaction: a transaction's events from a sequence on, then live."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agenttx_server.api.drain_signal import DrainSignal, Interruptible
from agenttx_server.engine.records import EventRecord, EventType, TransactionId
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator

__all__ = ["follow_events"]

PAGE = 256
LAST_SEQUENCE = 2**63 - 1
# After one of these there may be nothing more to come.
ENDINGS = frozenset(
    {
        EventType.TRANSACTION_COMMITTED,
        EventType.TRANSACTION_ROLLED_BACK,
        EventType.TRANSACTION_FAILED,
        EventType.EFFECT_DELIVERED,
        EventType.EFFECT_DEAD,
        EventType.EFFECT_DISCARDED,
    }
)


async def follow_events(
    coordinator: TransactionCoordinator,
    drain: DrainSignal,
    principal: str,
    transaction_id: TransactionId,
    from_sequence: int,
) -> AsyncGenerator[tuple[EventRecord, Interruptible]]:
    """Yield every event once and in order, until there will be no more and the last was yielded.

    Beside it comes what the caller waits with while it passes the event on.

    The events are read from the store in pages, so a watcher that falls behind costs no memory.
    Raises Unavailable, saying where to go on, when the server drains.
    """
    # uint64 on the wire, and databases count to 2^63: beyond there is nothing, just as at its end.
    next_sequence = min(max(from_sequence, 1), LAST_SEQUENCE)
    may_be_over = True
    is_over = False
    with Interruptible(drain, f"resume from sequence {next_sequence}") as waits:
        while True:
            if may_be_over:
                # Asked before reading: an event that comes in between is read now.
                is_over = await waits.wait(_is_over(coordinator, principal, transaction_id))
                may_be_over = False
            page = await waits.wait(coordinator.events_after(principal, transaction_id, next_sequence, PAGE))
            for event in page:
                yield event, waits
                next_sequence = event.sequence + 1
                waits.advice = f"resume from sequence {next_sequence}"
                may_be_over = may_be_over or event.type in ENDINGS
            if is_over and not page:
                return
            if not (is_over or may_be_over or len(page) == PAGE):
                await waits.wait(coordinator.wait_for_event(transaction_id, next_sequence - 1))


async def _is_over(
    coordinator: TransactionCoordinator, principal: str, transaction_id: TransactionId
) -> bool:
    """Return whether a transaction has ended and nothing of it is still to be delivered."""
    if not await coordinator.is_ended(principal, transaction_id):
        return False
    return not (await coordinator.get(principal, transaction_id)).pending_effects
