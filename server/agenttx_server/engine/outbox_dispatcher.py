"""Brings committed transactions' effects out: those of a commit at once, the rest when they are due.

A transaction's effects are delivered by the server that its head names as outbox owner; one
whose owner is none, or has no lease any more, is claimed through the store. The deliveries
themselves hold no lock. What came of them is written under the transaction's lock and the
revision guard, and a write that loses reads again what is stored: an effect that somebody
discarded or another server delivered stays so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agenttx_server.engine import outbox
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.outbox_run import DeliveryRun
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import StaleRevision, StoreUnavailable
from agenttx_server.engine.records import EffectRecord, EffectState, MicrosecondsUtc, ServerId, TransactionId
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry, TransactionCache
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["OutboxDispatcher"]

_LOGGER = logging.getLogger(__name__)
_STAGED = frozenset({EffectState.STAGED})
_READY = frozenset({EffectState.READY})
_NOBODY = ServerId("")
# Where servers share a database, how soon what another one left, or committed, is found.
_POLL_SECONDS = 1.0
# The wall clock may be set meanwhile: the time until an effect is due is measured again so often.
_LONGEST_SLEEP_SECONDS = 30.0
_SHORTEST_SLEEP_SECONDS = 0.001
_FIRST_PAUSE_SECONDS = 0.5
# What is ours and has been due for so long, and that no task here is at, was lost sight of: a write whose
# outcome was unknown was made after all. Looked for where servers share a database, and once a write failed.
_LOST_AFTER_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 5.0


class OutboxDispatcher:
    """Delivers effects of many transactions side by side, at most ``max_concurrent_deliveries`` of them."""

    def __init__(
        self,
        services: EngineServices,
        lease: ServerLease,
        writer: TransactionWriter,
        tasks: OwnedTasks,
        cache: TransactionCache,
    ) -> None:
        self._services = services
        self._store = services.store
        self._lease = lease
        self._writer = writer
        self._tasks = tasks
        self._cache = cache
        self._runs: dict[TransactionId, DeliveryRun] = {}
        self._claimed: set[TransactionId] = set()
        # Perhaps ours, and looked after by no task: the outcome of a write is unknown.
        self._left: set[TransactionId] = set()
        # Claimed while a task that gives them back was about to end.
        self._claimed_again: set[TransactionId] = set()
        self._woken = asyncio.Event()
        self._is_full = False
        self._has_claimed = False
        self._has_failed = False
        self._look_for_lost_at = 0.0
        self._is_stopping = False

    # --- the background task ----------------------------------------------------------------

    async def run(self) -> None:
        """Deliver what is due, until :meth:`begin_drain` or cancellation. Idle, it sleeps."""
        failures = 0
        while not self._is_stopping:
            self._woken.clear()
            try:
                wait = await self._look()
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                wait = _pause(failures)
                _LOGGER.warning("the outbox can't be read, next try in %.1f s: %s", wait, error)
            except Exception:
                failures += 1
                wait = _pause(failures)
                _LOGGER.exception("the outbox failed, next try in %.1f s", wait)
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                continue

    @property
    def under_way(self) -> int:
        """Of how many transactions effects are being delivered."""
        return len(self._runs)

    def wake(self) -> None:
        """Have the background task look at once."""
        self._woken.set()

    def begin_drain(self) -> None:
        """Claim nothing any more, and begin no delivery; those under way go on to their end."""
        self._is_stopping = True
        for run in self._runs.values():
            run.stop()
        self.wake()

    async def _look(self) -> float | None:
        """Take up what is due; return the seconds until there may be more, None if that will be told."""
        left, self._left = self._left, set()
        for transaction_id in left:
            self._take_up(transaction_id)
        await self._find_lost()
        due = await self._store.next_outbox_due()
        # To claim is a write, which a server that has the database to itself spares the others of.
        if self._store.is_shared or not self._has_claimed or (due is not None and due <= self._now()):
            self._is_full = await self._claim()
            if self._is_full:
                return None  # woken when a run ends
            due = await self._store.next_outbox_due()
        longest = _POLL_SECONDS if self._store.is_shared else _LONGEST_SLEEP_SECONDS
        if self._has_failed:
            longest = min(longest, _LOST_AFTER_SECONDS)
        if due is None:
            return longest if self._store.is_shared or self._has_failed else None
        return min(max((due - self._now()) / 1_000_000, _SHORTEST_SLEEP_SECONDS), longest)

    async def _find_lost(self) -> None:
        """Take up what belongs to this server and has no task here."""
        now = self._services.clock.monotonic()
        if not (self._store.is_shared or self._has_failed) or now < self._look_for_lost_at:
            return
        self._look_for_lost_at = now + _LOST_AFTER_SECONDS
        due_by = MicrosecondsUtc(self._now() - round(_LOST_AFTER_SECONDS * 1_000_000))
        most = 2 * self._services.settings.max_concurrent_deliveries
        for transaction_id in await self._store.list_outbox_of(self._lease.id, due_by, most):
            if transaction_id not in self._runs and transaction_id not in self._claimed:
                self._take_up(transaction_id)

    async def _claim(self) -> bool:
        """Take up what is due, as much as there is room for; return whether there is none left."""
        room = self._room()
        if room <= 0:
            return True
        claimed = await self._claim_due(room)
        self._has_claimed = True
        for transaction_id in claimed:
            self._take_up(transaction_id)
        return len(claimed) >= room

    async def _claim_due(self, most: int) -> Sequence[TransactionId]:
        self._lease.check()
        try:
            return await self._store.claim_outbox(self._lease.id, self._now(), most)
        except StoreUnavailable:
            self._has_failed = True  # it may have been made, and its answer lost
            raise

    def _now(self) -> MicrosecondsUtc:
        return self._services.clock.now()

    def _room(self) -> int:
        if self._is_stopping:
            return 0
        busy = len(self._runs) + len(self._claimed - self._runs.keys())
        return self._services.settings.max_concurrent_deliveries - busy

    # --- claimed transactions -----------------------------------------------------------------

    def _take_up(self, transaction_id: TransactionId) -> None:
        if transaction_id in self._claimed or transaction_id in self._runs:
            self._claimed_again.add(transaction_id)
            return
        self._claimed.add(transaction_id)
        self._tasks.spawn(self._deliver_claimed(transaction_id))

    async def _deliver_claimed(self, transaction_id: TransactionId) -> None:
        try:
            run = await self._open_run(transaction_id)
            if run is not None:
                await self._see_through(run)
        except StoreUnavailable as error:
            self._has_failed = True
            _LOGGER.warning("effects of transaction %s wait for the store: %s", transaction_id, error)
            await self._leave_for_later(transaction_id, _FIRST_PAUSE_SECONDS)
        except Exception:
            _LOGGER.exception("effects of transaction %s could not be delivered", transaction_id)
            await self._leave_for_later(transaction_id, _LONGEST_PAUSE_SECONDS)
        finally:
            self._claimed.discard(transaction_id)
            self._let_go(transaction_id, is_waiting=True)

    async def _leave_for_later(self, transaction_id: TransactionId, seconds: float) -> None:
        """Keep a transaction that is ours and could not be worked on; not so short that it is tried without end."""
        self._left.add(transaction_id)
        if not self._is_stopping:
            await self._services.clock.sleep(seconds)

    async def _open_run(self, transaction_id: TransactionId) -> DeliveryRun | None:
        """Begin to deliver if the transaction is this server's and something is due."""
        while True:
            try:
                async with self._locked(transaction_id) as transaction:
                    if transaction is None or transaction.record.outbox_owner != self._lease.id:
                        return None
                    if transaction_id in self._runs:
                        self._claimed_again.add(transaction_id)
                        return None
                    return await self._begin(transaction)
            except StaleRevision:
                continue  # Somebody wrote: what is due now, and whose it is, is read again.

    async def _begin(self, transaction: Transaction) -> DeliveryRun | None:
        """Count the first attempts and deliver; or give the transaction back if nothing is due."""
        run = await self._new_run(transaction, _READY)
        if self._is_stopping or not run.count_first():
            run.is_over = True
            await self.record(transaction, run)
            return None
        await self.record(transaction, run)
        self._start(run)
        return run

    async def _new_run(self, transaction: Transaction, states: frozenset[EffectState]) -> DeliveryRun:
        record = transaction.record
        effects = await self._store.list_effects(record.transaction_id, states)
        ready = [replace(effect, state=EffectState.READY) for effect in effects]
        run = DeliveryRun(self._services, self._lease, record.transaction_id, record.principal, ready)
        run.revision = record.revision
        return run

    def _start(self, run: DeliveryRun) -> None:
        self._runs[run.transaction_id] = run
        self._tasks.spawn(self._deliver(run))

    async def _deliver(self, run: DeliveryRun) -> None:
        try:
            await run.deliver()
        except Exception:
            _LOGGER.exception("effects of transaction %s could not be delivered", run.transaction_id)
            raise

    async def _see_through(self, run: DeliveryRun) -> None:
        """Write what a run comes to, until it is over and all of it is durable."""
        failures = 0
        try:
            while not run.is_closed:
                await run.news()
                try:
                    async with self._locked(run.transaction_id) as transaction:
                        if transaction is None or run.is_closed:
                            return
                        await self.record(transaction, run)
                    failures = 0
                except StaleRevision:
                    continue
                except StoreUnavailable as error:
                    self._has_failed = True
                    failures += 1
                    pause = _pause(failures)
                    _LOGGER.warning("deliveries can't be recorded, next try in %.1f s: %s", pause, error)
                    await self._services.clock.sleep(pause)
        finally:
            self._close(run)

    def _close(self, run: DeliveryRun) -> None:
        if self._runs.get(run.transaction_id) is run:
            del self._runs[run.transaction_id]
        self._let_go(run.transaction_id, is_waiting=run.is_waiting or not run.is_closed)

    def _let_go(self, transaction_id: TransactionId, *, is_waiting: bool) -> None:
        """Look again if something may wait: most commits deliver all they have, and cost no look."""
        if transaction_id in self._claimed or transaction_id in self._runs:
            return
        if transaction_id in self._claimed_again:
            self._claimed_again.remove(transaction_id)
            self._left.add(transaction_id)
            is_waiting = True
        if is_waiting or self._is_full:
            self.wake()

    # --- for the commit: it holds the transaction's lock ------------------------------------------

    async def prepare(self, transaction: Transaction, rows: Rows, head: dict[str, Any]) -> DeliveryRun | None:
        """Add to a publication that its effects are due, and delivered here if there is room.

        Returns the run for :meth:`published`; None if no effect is staged.
        """
        if not transaction.record.effect_sequence:
            return None
        run = await self._new_run(transaction, _STAGED)
        if not run.waiting:
            return None
        head["outbox_due_at"] = self._now()
        if self._room() > 0 and run.count_first():
            rows.effects += run.take()[0]
            head["outbox_owner"] = run.server_id
        return run

    def published(self, transaction: Transaction, run: DeliveryRun) -> None:
        """Begin to deliver what was published; where there was no room the background task does later."""
        run.revision = transaction.record.revision
        run.written(run.take()[0])
        if transaction.record.outbox_owner == run.server_id:
            self._start(run)
        else:
            run.is_over = True

    def look_after(self, transaction_id: TransactionId) -> None:
        """Have the background task find out whether a transaction was published, and deliver its effects."""
        self._has_failed = True
        self._left.add(transaction_id)
        self.wake()

    async def resume(self, transaction: Transaction) -> DeliveryRun | None:
        """Return the run of a published transaction's effects, begun if they are due and nobody delivers them."""
        transaction_id = transaction.record.transaction_id
        if transaction_id in self._runs:
            return self._runs[transaction_id]
        room = self._room()
        if transaction.record.outbox_due_at is None or room <= 0:
            return None
        claimed = await self._claim_due(room)
        for other in claimed:
            if other != transaction_id:
                self._take_up(other)
        await self._read_again(transaction)
        if transaction.record.outbox_owner != self._lease.id:
            return None
        return await self._begin(transaction)

    async def attend(self, transaction: Transaction, run: DeliveryRun, seconds: float) -> None:
        """Wait until a run is over, but not longer than told; write what should not wait for its end."""
        clock = self._services.clock
        end = clock.monotonic() + seconds
        while not run.is_over:
            if not await run.news(max(end - clock.monotonic(), 0.0)):
                return
            if not run.is_over:
                await self.record(transaction, run)

    def leave(self, run: DeliveryRun) -> None:
        """Go on with a run without its commit."""
        if run.is_closed:
            self._close(run)
        else:
            self._tasks.spawn(self._see_through(run))

    # --- for changes of single effects: they hold the transaction's lock too ---------------------

    async def bring_up_to_date(self, transaction: Transaction) -> None:
        """Learn whose a transaction's effects are, and make durable what is known of deliveries here."""
        await self._read_again(transaction)
        run = self._runs.get(transaction.record.transaction_id)
        if run is not None and not run.is_closed:
            await self.record(transaction, run)

    def forget(self, transaction_id: TransactionId, effect_id: str) -> None:
        """Do not begin to deliver an effect any more."""
        run = self._runs.get(transaction_id)
        if run is not None:
            run.forget(effect_id)

    def renew(self, effect: EffectRecord, transaction_id: TransactionId) -> None:
        """Deliver an effect that was requeued as soon as may be."""
        run = self._runs.get(transaction_id)
        if run is not None:
            run.renew(effect)
        self.wake()

    # --- writing --------------------------------------------------------------------------------

    async def record(
        self, transaction: Transaction, run: DeliveryRun, rows: Rows | None = None, **head: Any
    ) -> None:
        """Write what a run came to, with ``rows`` and ``head``; at its end the transaction is given back.

        The caller holds the transaction's lock. Raises what the store raises; the run then knows that
        it has to read again.
        """
        record = transaction.record
        if run.is_behind:
            await self._read_again(transaction)
            record = transaction.record
        if run.revision != record.revision:
            run.refresh(await self._store.list_effects(record.transaction_id, _READY))
        is_ours = record.outbox_owner == run.server_id
        if not is_ours:
            run.give_up()
        rows = Rows() if rows is None else rows
        is_last = run.is_over
        effects, outcomes = run.take()
        rows.effects += effects
        outbox.add_events(rows, outcomes)
        if is_last and is_ours:
            head["outbox_owner"] = _NOBODY
            head["outbox_due_at"] = run.next_due(self._now())
        run.is_waiting = record.outbox_due_at is not None and head.get("outbox_due_at", 0) is not None
        run.revision = record.revision
        if effects or rows.responses or head:
            run.revision += 1
            try:
                await self._writer.write(transaction, rows, **head)
            except BaseException:
                run.doubt()
                raise
        run.written(effects)
        run.is_closed = is_last

    @asynccontextmanager
    async def _locked(self, transaction_id: TransactionId) -> AsyncIterator[Transaction | None]:
        """Hold a transaction's lock; what is given is as SQL has it, None if there is none."""
        entry = self._cache.pin(transaction_id)
        try:
            async with entry.lock:
                try:
                    yield await self._read(entry)
                except BaseException:
                    entry.transaction = None  # memory may be ahead of what was written
                    raise
        finally:
            self._cache.unpin(entry)

    async def _read(self, entry: CacheEntry) -> Transaction | None:
        record = await self._store.load_record(entry.transaction_id)
        if record is None:
            return None
        known = entry.transaction
        if known is not None and known.record.revision == record.revision:
            known.record = record  # a claim does not move the revision on
            return known
        entry.transaction = None
        if not record.owner:
            # Nobody is at work on it, so its steps and undo change nothing here: the head will do.
            return Transaction(record)
        return await self._cache.loaded(entry, record.principal)

    async def _read_again(self, transaction: Transaction) -> None:
        """Take in who a transaction's effects belong to now. Raises StaleRevision if it was written since."""
        record = await self._store.load_record(transaction.record.transaction_id)
        if record is None or record.revision != transaction.record.revision:
            raise StaleRevision("another server wrote to the transaction")
        transaction.record = record


def _pause(failures: int) -> float:
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_SECONDS)
