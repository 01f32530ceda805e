"""Turns at a transaction: one piece of work at a time, on the transaction as the database has it.

A turn is the lock of a cached transaction. What other servers wrote meanwhile is met in one of three ways: work whose write
was stale begins anew, a refusal of what is no longer so is judged anew, and work that another server is at is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agenttx_server.engine.errors import (
    EngineError,
    RunsElsewhere,
    Unavailable,
)
from agenttx_server.engine.ports import (
    ExtraRowsRefused,
    StaleRevision,
    StoreUnavailable,
)
from agenttx_server.engine.records import (
    StopKind,
    StopRequest,
)
from agenttx_server.engine.recovery import Recovery
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry, TransactionCache
from agenttx_server.engine.transaction_writer import is_at_work
from agenttx_server.engine.visibility import sees

__all__ = ["TransactionTurns", "Work", "unavailable"]

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
# How often a call begins anew because another server wrote to its transaction in between.
_MOST_RESTARTS = 16
# How often in a row it is refused for one reason until the refusal stands though others write on.
_REFUSED_ALL_THE_SAME = 3
# How soon, and at the latest, a call that waits for another server looks again, in seconds.
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5
# Far less than a lease lasts, so nobody has taken it over.
_JUST_BEGUN_SECONDS = 1.0
Work = Callable[[CacheEntry, Transaction], Awaitable[T]]


class TransactionTurns:
    """Takes, uses and ends turns at the transactions that this server has in its cache."""

    def __init__(
        self,
        services: EngineServices,
        cache: TransactionCache,
        recovery: Recovery,
        lease: ServerLease,
        check_serving: Callable[[], None],
    ) -> None:
        self._services = services
        self._cache = cache
        self._recovery = recovery
        self._lease = lease
        self._check_serving = check_serving

    async def take(self, entry: CacheEntry, *, yields_to_rewinds: bool) -> None:
        """Take the lock; a step lets rewinds that wait go first."""
        await entry.lock.acquire()
        while yields_to_rewinds and entry.rewinds_waiting:
            entry.lock.release()
            await asyncio.sleep(0)
            await entry.lock.acquire()

    async def take_as_rewind(
        self, entry: CacheEntry, principal: str, before_lock: Callable[[CacheEntry], None]
    ) -> None:
        """Take the lock for a rewind: what has to be stopped for it is, before it waits."""
        entry.rewinds_waiting += 1
        try:
            known = entry.transaction.record if entry.transaction is not None else None
            if known is not None and sees(principal, known.principal) and not known.run_id:
                before_lock(entry)
            await entry.lock.acquire()
        finally:
            entry.rewinds_waiting -= 1

    async def begun(self, entry: CacheEntry) -> Transaction:
        """Return an entry's transaction as SQL has it, when no other server is at work on it."""
        pauses = 0
        while True:
            try:
                transaction = await self._cache.loaded_for_server(entry)
                if not self._has_just_begun(entry):
                    await self._check_current(entry, transaction.record.revision)
                await self._recovery.settle(entry, transaction)
                if transaction.record.owner and transaction.record.owner != self._lease.id:
                    await self._make_way(transaction, "")
                    if is_at_work(transaction) and await self._recovery.is_elsewhere(transaction.record):
                        raise RunsElsewhere
                return transaction
            except (StaleRevision, RunsElsewhere):
                self._check_serving()
                await self._wait_aside(entry, min(_FIRST_LOOK * 2**pauses, _LAST_LOOK))
                pauses = min(pauses + 1, 10)

    async def work_and_release(
        self, entry: CacheEntry, principal: str, work: Work[T], stops_others: str
    ) -> T:
        """Do the work on the transaction as SQL has it, in a turn that was taken, and end the turn.

        ``stops_others`` is why a step that runs on another server is to stop for this work. Raises Unavailable.
        """
        try:
            stale = pauses = 0
            refusals_in_a_row: list[EngineError] = []
            while stale < _MOST_RESTARTS:
                try:
                    return await self._work_once(entry, principal, work, stops_others)
                except _RefusedWhileOthersWrote as refused:
                    stale += 1
                    if not refused.repeats(refusals_in_a_row):
                        refusals_in_a_row.clear()
                    refusals_in_a_row.append(refused.refusal)
                    if len(refusals_in_a_row) == _REFUSED_ALL_THE_SAME:
                        raise refused.refusal from None
                except StaleRevision:
                    stale += 1
                    refusals_in_a_row.clear()
                except RunsElsewhere:
                    self._check_serving()
                    await self._wait_aside(entry, min(_FIRST_LOOK * 2**pauses, _LAST_LOOK))
                    pauses = min(pauses + 1, 10)
            raise unavailable(StaleRevision(f"another writer was first {stale} times"))
        except (StoreUnavailable, ExtraRowsRefused) as error:
            self._recovery.look_after(entry.transaction_id)
            raise unavailable(error) from error
        finally:
            entry.lock.release()
            self._cache.unpin(entry)

    def end(self, entry: CacheEntry, *, forgetting: bool) -> None:
        """End a turn; ``forgetting`` is that memory may be ahead of what was written."""
        if forgetting:
            entry.transaction = None
        entry.lock.release()
        self._cache.unpin(entry)

    async def _work_once(self, entry: CacheEntry, principal: str, work: Work[T], stops_others: str) -> T:
        """Do the work on the transaction as SQL has it. Raises StaleRevision where memory was behind."""
        revision: int | None = None
        try:
            transaction = await self._cache.loaded(entry, principal)
            revision = transaction.record.revision
            await self._recovery.settle(entry, transaction)
            if transaction.record.owner and transaction.record.owner != self._lease.id:
                await self._make_way(transaction, stops_others)
            result = await work(entry, transaction)
        except EngineError as refusal:  # refusals change nothing
            if revision is not None:
                try:
                    await self._check_current(entry, revision)
                except StaleRevision as stale:
                    raise _RefusedWhileOthersWrote(refusal) from stale
            raise
        except BaseException:
            # What was written is unknown or another server's: SQL decides, memory forgets. Also
            # after a bug, or if the task was cancelled: memory may be ahead of what was written.
            entry.transaction = None
            raise
        await self._check_current(entry, revision)
        self._recovery.look_after_late(transaction)
        return result

    def _has_just_begun(self, entry: CacheEntry) -> bool:
        """Whether this is the first turn at what this server began a moment ago, which is as it was written then.

        Should another server have been faster all the same, the first write of the turn is stale.
        """
        begun_at, entry.begun_at = entry.begun_at, None
        return begun_at is not None and self._services.clock.monotonic() - begun_at < _JUST_BEGUN_SECONDS

    async def _check_current(self, entry: CacheEntry, revision: int) -> None:
        """Raise StaleRevision if an answer that wrote nothing was made of what is no longer so.

        Also where the transaction was loaded for it: what the work read after that may be of later writes.
        """
        transaction = entry.transaction
        if not self._services.store.is_shared or transaction is None:
            return
        if transaction.record.revision != revision:
            return  # something was written, so the guard has compared
        if await self._services.store.load_revision(entry.transaction_id) != revision:
            entry.transaction = None
            raise StaleRevision("another server wrote meanwhile")

    async def _make_way(self, transaction: Transaction, stops_others: str) -> None:
        """See to it that what another server is at does not meet this work. Raises RunsElsewhere to wait for it."""
        record = transaction.record
        if not is_at_work(transaction):  # its owner has ended the work, or only watches over it
            return
        if not await self._recovery.is_elsewhere(record):
            return
        if record.pending_rewind is not None and record.pending_rewind.is_under_way:
            raise RunsElsewhere
        if stops_others and transaction.executing_steps():
            await self._services.store.request_stop(
                StopRequest(record.transaction_id, StopKind.REWIND, why=stops_others)
            )
            raise RunsElsewhere

    async def _wait_aside(self, entry: CacheEntry, seconds: float) -> None:
        """Let others have the lock for a while."""
        entry.transaction = None
        entry.lock.release()
        try:
            await self._services.clock.sleep(seconds)
        finally:
            await entry.lock.acquire()


def unavailable(error: Exception) -> Unavailable:
    """Return what a caller is told where the store could not serve it; the log has the reason."""
    _LOGGER.warning("the store could not serve a call: %s: %s", type(error).__name__, error)
    return Unavailable("the database could not serve this call now; send the same request again")


class _RefusedWhileOthersWrote(StaleRevision):
    """Work was refused on a state that another server went on from meanwhile: to be judged anew.

    Where another one writes faster than this one reads that never ends. A refusal that comes the same from
    several states that follow one another holds for one of them.
    """

    def __init__(self, refusal: EngineError) -> None:
        super().__init__("another server wrote meanwhile")
        self.refusal = refusal

    def repeats(self, earlier: Sequence[EngineError]) -> bool:
        """Whether the earlier refusals were the same; their words may tell different steps."""
        return all((type(one), one.reason) == (type(self.refusal), self.refusal.reason) for one in earlier)
