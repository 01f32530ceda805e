"""Unsettled work of servers that died, and of this one's lost writes, brought to its end.

A transaction on which somebody is at work names its owner. Whoever takes it under its lock first
settles what an owner without a lease left behind (:meth:`Recovery.settle`), so no call ever works on
top of it. In the background orphans are claimed, at the start and as leases end, and settled
without waiting for a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from agenttx_server.engine.attempt_history import attempts_like
from agenttx_server.engine.errors import EngineError, RunsElsewhere
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.late_effects import LateEffects
from agenttx_server.engine.late_tools import GivenUp, LateTools
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import ExtraRowsRefused, StaleRevision, StoreUnavailable
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    CrashPolicy,
    EffectClass,
    MicrosecondsUtc,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import RollbackRequest
from agenttx_server.engine.rewind_execution import RewindExecution
from agenttx_server.engine.rewinding import Rewinder
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_recovery import StepRecovery
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry, TransactionCache
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter, is_at_work

__all__ = ["Recovery"]

_LOGGER = logging.getLogger(__name__)
_CLAIMED_AT_ONCE = 200
_SIDE_BY_SIDE = 32
_SECONDS_BETWEEN_TRIES = 1.0
_SECONDS_AFTER_FAILURE = 30.0
_LOST_AFTER_SECONDS = 5.0
_ABORT_REASON = "its server stopped while it was open (crash policy ABORT)"


class Recovery:
    """Settles what was left behind."""

    def __init__(
        self,
        services: EngineServices,
        writer: TransactionWriter,
        cache: TransactionCache,
        tasks: OwnedTasks,
        lease: ServerLease,
        rewinder: Rewinder,
        rewinds: RewindExecution,
        steps: StepRecovery,
        late_effects: LateEffects,
        late_tools: LateTools,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._services = services
        self._store = services.store
        self._clock = services.clock
        self._writer = writer
        self._cache = cache
        self._tasks = tasks
        self._lease = lease
        self._rewinder = rewinder
        self._rewinds = rewinds
        self._steps = steps
        self._late_effects = late_effects
        self._late_tools = late_tools
        self._is_stopping = is_stopping
        # Claimed from a dead server and not settled yet: the row says that they are this one's own.
        self._claimed: set[TransactionId] = set()
        self._under_way: set[TransactionId] = set()
        self._failed: set[TransactionId] = set()
        self._side_by_side = asyncio.Semaphore(_SIDE_BY_SIDE)

    # --- under a transaction's lock -------------------------------------------------------

    async def settle(self, entry: CacheEntry, transaction: Transaction) -> None:
        """Settle what an owner that is dead, or this server, left behind. The caller holds the lock.

        Raises what the store raises; the caller then drops the cached transaction.
        """
        transaction_id = transaction.record.transaction_id
        is_elsewhere = await self.is_elsewhere(transaction.record)
        given_up = self._late_tools.given_up(transaction_id)
        if given_up and is_elsewhere and _is_busy(transaction):
            self.look_after(transaction_id)  # when the other one has ended its work
        elif given_up:
            await self._settle_given_up(transaction, given_up)
            is_elsewhere = await self.is_elsewhere(transaction.record)
        if not transaction.record.owner or is_elsewhere:
            return
        if transaction.owes_late and self._is_due(transaction):
            # First of all: where nothing can be written, undo would be run at each call that comes.
            await self._writer.write(transaction, Rows())
            await self._settle_late(transaction)
        record = transaction.record
        crashed = record.owner not in ("", self._lease.id) or transaction_id in self._claimed
        if crashed and record.crash_policy is CrashPolicy.ABORT and not record.status.is_terminal:
            request = RollbackRequest(transaction_id, reason=_ABORT_REASON, accept_irreversible=True)
            await self._rewinds.roll_back(transaction, request)
        elif record.pending_rewind is not None and record.pending_rewind.retrying:
            held = replace(record.pending_rewind, retrying=False)  # whoever asked for the retry asks again
            await self._writer.write(transaction, Rows(), pending_rewind=held)
        elif record.pending_rewind is not None:
            await self._rewinder.finish_interrupted(transaction)
        elif record.open_group is not None and (crashed or record.status is TransactionStatus.EXECUTING):
            await self._steps.recover(entry, transaction)
        elif crashed and not is_at_work(transaction):
            await self._writer.write(transaction, Rows())  # nothing is left to see to: nobody owns it
        self._claimed.discard(transaction_id)

    async def is_elsewhere(self, record: TransactionRecord) -> bool:
        """Whether another server that is alive is at work on a transaction."""
        if record.owner in ("", self._lease.id):
            return False
        return await self._store.is_alive(record.owner, self._clock.now())

    async def _settle_given_up(self, transaction: Transaction, given_up: Sequence[GivenUp]) -> None:
        """Report what attempts did that ended here after they were given up, and run its undo."""
        for item in given_up:
            await self._report(transaction, item)
        if transaction.owes_late and transaction.record.owner != self._lease.id:
            await self._writer.write(transaction, Rows())
        if transaction.owes_late:
            await self._settle_late(transaction)
        self._late_tools.forget(transaction.record.transaction_id, given_up)

    async def _settle_late(self, transaction: Transaction) -> None:
        if self._is_due(transaction):
            waiting = [
                undo.sequence for undo in transaction.late_undo() if self._is_waiting(transaction, undo)
            ]
            await self._late_effects.settle_owed(transaction, waiting)

    def _is_due(self, transaction: Transaction) -> bool:
        """Whether undo that a late effect owes can be run: its tool does not run here."""
        return any(not self._is_waiting(transaction, undo) for undo in transaction.late_undo())

    def _is_waiting(self, transaction: Transaction, undo: UndoRecord) -> bool:
        return self._late_tools.is_waiting(transaction.record.transaction_id, undo)

    async def _report(self, transaction: Transaction, item: GivenUp) -> None:
        """Report what an attempt did, if it was given up and nothing that comes takes it back."""
        attempt = item.attempt
        rows = [transaction.undo.get(undo.sequence, undo) for undo in item.undo]
        if item.is_owed and all(undo.state is UndoState.LATE for undo in rows):
            return  # it has not run too early
        if not item.is_owed and (_is_known(transaction, item) or await self._is_settled(transaction, item)):
            return
        if not rows and (attempt.state is not AttemptState.COMPLETED or _is_named(transaction, attempt)):
            return
        if attempt.effect_class is EffectClass.IDEMPOTENT and await self._was_repeated(transaction, attempt):
            return  # under the same key: one effect
        _LOGGER.warning(
            "late effect: transaction=%s step=%d attempt=%d tool=%s",
            transaction.record.transaction_id,
            attempt.step_id,
            attempt.attempt,
            attempt.tool_name,
        )
        await self._late_effects.report(transaction, attempt, item.undo)

    async def _was_repeated(self, transaction: Transaction, attempt: AttemptRecord) -> bool:
        """Whether it is durable that a call succeeded under an attempt's key, so that its effect is known."""
        attempts = await attempts_like(self._store, transaction.record.transaction_id, attempt)
        return any(
            known.state is AttemptState.COMPLETED and known.idempotency_key == attempt.idempotency_key
            for known in attempts
        )

    async def _is_settled(self, transaction: Transaction, item: GivenUp) -> bool:
        """Whether it is durable how an attempt ended, so that its undo, if it ran, came after that."""
        attempt = item.attempt
        if item.outlived:
            return False
        transaction_id = transaction.record.transaction_id
        attempts = await attempts_like(self._store, transaction_id, attempt)
        ends = [(known.state, known.ended_at) for known in attempts if known.attempt == attempt.attempt]
        return (attempt.state, attempt.ended_at) in ends

    # --- in the background ----------------------------------------------------------------

    async def recover_all(self, wait_seconds: float) -> None:
        """Claim every orphan and settle them side by side; return when done, or when the time is up.

        What isn't settled by then goes on in the background, and each is settled before a call
        works on it. Raises StoreUnavailable.
        """
        started = self._clock.monotonic()
        tasks: list[asyncio.Task[None]] = []
        while claimed := await self._claim():
            tasks += [self._tasks.spawn(self._recover(transaction_id)) for transaction_id in claimed]
        if tasks:
            left = wait_seconds - (self._clock.monotonic() - started)
            _, unfinished = await asyncio.wait(tasks, timeout=max(left, 0))
            _LOGGER.warning(
                "recovered %d transactions in %.1f s, %d go on in the background",
                len(tasks) - len(unfinished),
                self._clock.monotonic() - started,
                len(unfinished),
            )

    async def watch(self, interval_seconds: float) -> None:
        """Take over the work of servers whose lease ends, and find this one's that it lost sight of, until cancelled."""
        while True:
            await self._clock.sleep(interval_seconds)
            try:
                for transaction_id in await self._claim():
                    self._tasks.spawn(self._recover(transaction_id))
                await self._find_lost()
            except StoreUnavailable as error:
                _LOGGER.warning("orphans could not be looked for: %s", error)

    async def _find_lost(self) -> None:
        """Look after what is this server's and nobody is at here: a write that was taken for failed came late."""
        before = MicrosecondsUtc(self._clock.now() - round(_LOST_AFTER_SECONDS * 1_000_000))
        for transaction_id in await self._store.list_unsettled_of(self._lease.id, before, _CLAIMED_AT_ONCE):
            entry = self._cache.peek(transaction_id)
            if entry is None or not entry.lock.locked():
                if entry is not None:
                    entry.transaction = None  # it is behind
                self.look_after(transaction_id)

    def look_after(self, transaction_id: TransactionId) -> None:
        """Have a transaction whose write failed settled, though no call may come for it any more."""
        if transaction_id not in self._under_way and not self._is_stopping():
            self._tasks.spawn(self._recover(transaction_id))

    def look_after_freed(self, transaction: Transaction) -> None:
        """Go on with a group that was held by undo which is settled now, though its sender may not come back."""
        record = transaction.record
        if record.owner == self._lease.id and record.pending_rewind is None and transaction.executing_steps():
            self.look_after(record.transaction_id)

    def look_after_late(self, transaction: Transaction) -> None:
        """Have undo run that a late effect owes and that came to this server with other work."""
        record = transaction.record
        if transaction.owes_late and record.owner == self._lease.id and self._is_due(transaction):
            self.look_after(record.transaction_id)

    async def _claim(self) -> list[TransactionId]:
        # Claimed under a lease that has ended they would be orphans still, and claimed again at once.
        await self._lease.assure()
        claimed = list(await self._store.claim_orphans(self._lease.id, self._clock.now(), _CLAIMED_AT_ONCE))
        self._claimed.update(claimed)
        return claimed

    async def _recover(self, transaction_id: TransactionId) -> None:
        if transaction_id in self._under_way:
            return
        self._under_way.add(transaction_id)
        try:
            async with self._side_by_side:
                await self._recover_in_turn(transaction_id)
        finally:
            self._under_way.discard(transaction_id)

    async def _recover_in_turn(self, transaction_id: TransactionId) -> None:
        while not self._is_stopping():
            pause = _SECONDS_BETWEEN_TRIES
            try:
                await self._settle_cached(transaction_id)
            except (StaleRevision, StoreUnavailable, ExtraRowsRefused):
                pass
            except RunsElsewhere:  # a group was left open for another server's rewind
                if not self._late_tools.given_up(transaction_id):
                    return
            except EngineError as refused:
                _LOGGER.warning("transaction=%s needs no recovery: %s", transaction_id, refused)
                return
            except Exception as error:
                pause = _SECONDS_AFTER_FAILURE
                await self._note_failure(transaction_id, error)
            else:
                await self._note_success(transaction_id)
                if not self._late_tools.given_up(transaction_id):
                    return
            await self._clock.sleep(pause)

    async def _settle_cached(self, transaction_id: TransactionId) -> None:
        entry = self._cache.pin(transaction_id)
        try:
            async with entry.lock:
                if transaction_id in self._claimed or self._late_tools.given_up(transaction_id):
                    # The claim moved the revision on; and what is waited for another server to end is in SQL.
                    entry.transaction = None
                try:
                    await self.settle(entry, await self._cache.loaded_for_server(entry))
                except BaseException:
                    entry.transaction = None
                    raise
        finally:
            self._cache.unpin(entry)

    async def _note_failure(self, transaction_id: TransactionId, error: Exception) -> None:
        """Say that a transaction can't be recovered, where people look: it is never silently pending."""
        if transaction_id not in self._failed:
            _LOGGER.exception("transaction=%s can't be recovered; it is tried again", transaction_id)
        self._failed.add(transaction_id)
        try:
            await self._store.note_unrecovered(transaction_id, f"{type(error).__name__} while recovering")
        except StoreUnavailable:
            _LOGGER.warning("transaction=%s could not be marked as unrecovered", transaction_id)

    async def _note_success(self, transaction_id: TransactionId) -> None:
        if transaction_id in self._failed:
            self._failed.discard(transaction_id)
            await self._store.note_unrecovered(transaction_id, "")


def _is_busy(transaction: Transaction) -> bool:
    """Whether a transaction's owner is at something that another server's write would cut off."""
    pending = transaction.record.pending_rewind
    return bool(transaction.executing_steps()) or (pending is not None and pending.is_under_way)


def _is_known(transaction: Transaction, item: GivenUp) -> bool:
    """Whether an attempt was not given up: it stands, or what it did is known to its undo or its key.

    In doubt without undo it is no use to have it known: whoever resolves it should see that it ended.
    """
    attempt = item.attempt
    live = transaction.live(attempt)
    if live is None or live.attempt != attempt.attempt:
        return False
    pending = transaction.record.pending_rewind
    if pending is not None and pending.to_step <= attempt.step_id:
        return False  # its undo may have run before it ended
    return bool(item.undo) or live.state is not AttemptState.IN_DOUBT


def _is_named(transaction: Transaction, attempt: AttemptRecord) -> bool:
    """Whether it was told, and accepted, that an attempt's effect stays."""
    at = (attempt.step_id, attempt.sub_step, attempt.attempt)
    return any((kept.step_id, kept.sub_step, kept.attempt) == at for kept in transaction.record.kept_effects)
