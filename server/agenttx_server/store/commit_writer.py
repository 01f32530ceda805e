"""The writer: one thread, one connection, many write sets a COMMIT.

    callers (event loop) ── queue ──▶ writer thread ── BEGIN IMMEDIATE … COMMIT ──▶ futures

The thread takes whatever is queued, so a batch grows by itself while the one before it is
being made durable. Futures of a batch are resolved by one wake-up of the loop.

What happens when a batch fails:

- the database was busy (another process holds the write lock): tried again until
  ``busy_timeout_seconds``, then StoreUnavailable for all its sets;
- the database took the transaction back (a deadlock), or the connection ended before COMMIT
  was sent: nothing was written, and the batch is tried again, on a new connection but once;
- some set is stale or may not be published: rolled back and applied again without it;
- any other error before COMMIT: rolled back, then each set on its own, so that only the
  faulty one fails;
- an error at COMMIT: the outcome is unknown, StoreUnavailable for all its sets, and the
  connection is made anew.

What is written beside write sets (leases, claims, purges) is a *job*: a function of the
connection, called in a write transaction of its own. It ends a batch.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from math import ceil
from typing import Any, Generic, TypeVar

from agenttx_server.engine.ports import StaleRevision, StoreUnavailable, WriteReceipt
from agenttx_server.failpoints import hit
from agenttx_server.histogram import Histogram
from agenttx_server.store.batch import apply_batch, apply_batch_carefully
from agenttx_server.store.batch_connection import BatchConnection, NotCommitted, SomeSetRefused, TryAgain
from agenttx_server.store.prepared_query import WriteCalls
from agenttx_server.store.settings import WriterSettings
from agenttx_server.store.storage_errors import engine_error, is_busy
from agenttx_server.store.write_set_encoding import EncodedWriteSet
from agenttx_server.store.writer_inbox import WriterInbox
from agenttx_server.store.writer_statistics import BATCH_SECONDS, BATCH_SETS, WriterStatistics

__all__ = ["CommitWriter"]

Result = TypeVar("Result")
Connected = TypeVar("Connected", bound=BatchConnection)

# Short: a process that writes in a loop leaves only a moment between two transactions.
_SECONDS_BETWEEN_BEGINS = 0.001
# Expectation of the next batch: the last one, but falling by a tenth a batch at most while
# waiting brings sets, and no wait below two (benchmarks/store_writes.py).
_CROWD_KEPT = 0.9
_A_CROWD = 2.0
# A batch applied carefully is refused only if another server begins one of its transactions meanwhile.
_CAREFUL_TRIES = 3


@dataclass(slots=True, eq=False)
class _Ticket:
    """A queued set and who waits for it. ``outcome`` is set by the writer thread.

    ``settled`` is called by the loop when there is one, also where nobody waits any more.
    """

    encoded: EncodedWriteSet
    future: asyncio.Future[WriteReceipt]
    loop: asyncio.AbstractEventLoop
    before: _Ticket | None
    settled: Callable[[], None] | None = None
    outcome: WriteReceipt | BaseException | None = field(default=None)


@dataclass(slots=True)
class _Job:
    """A queued function and who waits for what it returns."""

    work: Callable[[WriteCalls], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True)
class _Closing:
    """Queued last."""


class CommitWriter(Generic[Connected]):
    """Group commit. ``submit`` and ``run`` belong to event loops, everything else to the writer's own thread.

    ``after_commit`` is called by the thread between batches and when idle (checkpoints),
    ``check_file`` before each batch: what it raises is the batch's outcome.
    """

    def __init__(
        self,
        connect: Callable[[], Connected],
        settings: WriterSettings,
        after_commit: Callable[[Connected], None] = lambda connection: None,
        check_file: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._after_commit = after_commit
        self._check_file = check_file
        self._inbox: WriterInbox[_Ticket | _Job | _Closing] = WriterInbox()
        self._newest: dict[str, _Ticket] = {}
        self._connection: Connected | None = None
        # Held so that nothing is queued behind the end.
        self._closing = threading.Lock()
        self._closed = False
        # How many sets to expect in a batch.
        self._crowd = 1.0
        self._began: float | None = None
        self._sets = self._commits = self._unavailable = 0
        self._batch_sets, self._batch_seconds = Histogram(BATCH_SETS), Histogram(BATCH_SECONDS)
        self._thread = threading.Thread(target=self._run, name="agenttx-commit-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(
        self, encoded: EncodedWriteSet, settled: Callable[[], None] | None = None
    ) -> asyncio.Future[WriteReceipt]:
        """Queue a set and return the future of its receipt; a caller that goes away cancels nothing.

        ``settled`` is called when the set is written or refused, whoever still waits.
        """
        loop = asyncio.get_running_loop()
        before = self._newest.get(encoded.transaction_id)
        ticket = _Ticket(encoded, loop.create_future(), loop, before, settled)
        with self._closing:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            self._inbox.put(ticket)
        self._newest[encoded.transaction_id] = ticket
        return ticket.future

    def is_at(self, transaction_id: str) -> bool:
        """Whether a set of a transaction was queued whose future is not resolved yet. For the loop that submits."""
        return transaction_id in self._newest

    @property
    def under_way(self) -> int:
        """How many transactions have such sets."""
        return len(self._newest)

    @property
    def seconds_at_work(self) -> float:
        """How long the thread has been about its batch; 0 between batches."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def hand_back(self) -> list[_Ticket]:
        """Give up the sets that wait with none of their transaction before or behind them, for another writer to :meth:`adopt`.

        For the loop that submits; nothing is given up once the writer is closed.
        """
        with self._closing:
            if self._closed:
                return []
            given_up = [
                item
                for item in self._inbox.waiting()
                if isinstance(item, _Ticket)
                and item.before is None
                and self._newest.get(item.encoded.transaction_id) is item
                and self._inbox.withdraw(item)
            ]
        for ticket in given_up:
            del self._newest[ticket.encoded.transaction_id]
        return given_up

    def adopt(self, ticket: _Ticket) -> None:
        """Queue a set that another writer gave up."""
        with self._closing:
            if self._closed:
                if not ticket.future.done():  # its caller may have gone
                    ticket.future.set_exception(StoreUnavailable("the store is closed"))
                return
            self._inbox.put(ticket)
        self._newest[ticket.encoded.transaction_id] = ticket

    def run(self, work: Callable[[WriteCalls], Result]) -> asyncio.Future[Result]:
        """Have the writer call a function in a write transaction of its own; return the future of its result.

        It must be short, for no write set is written meanwhile. What it raises takes back what it
        did; the future raises errors of the database as StoreUnavailable. A caller that goes away
        cancels nothing.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop)
        with self._closing:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            self._inbox.put(job, at_once=True)
        return job.future

    @property
    def written(self) -> tuple[int, int]:
        """How many sets were answered after how many COMMITs, since the start."""
        return self._sets, self._commits

    @property
    def statistics(self) -> WriterStatistics:
        """What was written since the start, and what waits."""
        return WriterStatistics(
            self._batch_sets.read(), self._batch_seconds.read(), self._unavailable, len(self._inbox)
        )

    def close(self) -> None:
        """Write what is queued and end the thread; blocks."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._inbox.put(_Closing(), at_once=True)
        self._thread.join()

    # --- the writer thread ---------------------------------------------------------------

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch, job, going_on = self._take_batch()
            if batch:
                self._began = time.monotonic()
                self._write(batch)
                self._began = None
                self._answer(batch)
            if job is not None:
                self._do(job)
            self._between_batches()
        self._disconnect()

    def _take_batch(self) -> tuple[list[_Ticket], _Job | None, bool]:
        """Return the sets that are queued, at most a batch and up to a job, that job, and whether to go on."""
        first = self._inbox.take()
        if first is None:
            self._inbox.wait(1, seconds=1.0)
            first = self._inbox.take()
        if first is None:
            self._crowd = 1.0
            return [], None, True
        if isinstance(first, _Closing):
            return [], None, False
        if isinstance(first, _Job):
            return [], first, True
        batch = [first]
        size = first.encoded.size
        crowd = self._crowd
        linger_until = time.monotonic() + self._settings.linger_seconds if crowd >= _A_CROWD else 0.0
        found_at_once = 0
        while len(batch) < self._settings.batch_sets and size < self._settings.batch_bytes:
            item = self._inbox.take()
            if item is None:
                found_at_once = found_at_once or len(batch)
                left = linger_until - time.monotonic()
                missing = crowd - len(batch)
                if left <= 0 or missing <= 0:
                    break
                self._inbox.wait(ceil(missing), left)
            elif isinstance(item, _Closing):
                return batch, None, False
            elif isinstance(item, _Job):
                return batch, item, True
            else:
                batch.append(item)
                size += item.encoded.size
        in_vain = bool(linger_until) and len(batch) == found_at_once
        self._crowd = len(batch) if in_vain else max(len(batch), crowd * _CROWD_KEPT)
        return batch, None, True

    def _write(self, batch: Sequence[_Ticket]) -> None:
        """Give every ticket its outcome."""
        going = []
        for ticket in batch:
            # A set queued behind one that failed was made on top of it. Where other servers
            # write too its own guard might hold by chance.
            if ticket.before is not None and isinstance(ticket.before.outcome, BaseException):
                ticket.outcome = StaleRevision("a write before this one failed")
            else:
                going.append(ticket)
        if not going:
            return
        try:
            self._write_together(going)
        except StoreUnavailable as error:
            self._unavailable += len(going)
            for ticket in going:
                ticket.outcome = StoreUnavailable(str(error))
        except Exception as error:
            if len(going) == 1:
                going[0].outcome = engine_error(error)
                return
            for ticket in going:
                self._write([ticket])

    def _write_together(self, batch: Sequence[_Ticket]) -> None:
        sets = [ticket.encoded for ticket in batch]
        began = time.perf_counter()
        for apply in (apply_batch, *repeat(apply_batch_carefully, _CAREFUL_TRIES)):
            try:
                outcomes = self._in_transaction(partial(apply, batch=sets))()
            except SomeSetRefused:
                continue
            self._commits += 1
            self._sets += len(batch)
            self._batch_sets.observe(len(batch))
            self._batch_seconds.observe(time.perf_counter() - began)
            for ticket, outcome in zip(batch, outcomes, strict=True):
                ticket.outcome = outcome
            return
        raise StoreUnavailable("other servers kept beginning the same transactions")

    def _do(self, job: _Job) -> None:
        result: Any = None
        failed: Exception | None = None
        try:
            # What it took for granted (the head of the audit trail) is read the second time.
            try:
                result = self._in_transaction(job.work)
            except SomeSetRefused:
                result = self._in_transaction(job.work)
        except Exception as error:
            failed = engine_error(error)
        # RuntimeError: the loop is closed, so nobody waits.
        with suppress(RuntimeError):
            job.loop.call_soon_threadsafe(_resolve_job, job.future, result, failed)

    def _in_transaction(self, work: Callable[[Connected], Result]) -> Result:
        """Call a function in a write transaction, again while nothing was written and another try may help."""
        deadline = time.monotonic() + self._settings.busy_timeout_seconds
        connected_anew = False
        while True:
            try:
                connection = self._begin()
                result = work(connection)
                self._commit(connection)
                return result
            except TryAgain as error:
                self._roll_back()
                if error.connection_lost:
                    self._disconnect()
                if (error.connection_lost and connected_anew) or time.monotonic() >= deadline:
                    raise StoreUnavailable(f"the database did not answer: {error}") from error
                connected_anew = connected_anew or error.connection_lost
            except BaseException:
                self._roll_back()
                raise

    def _commit(self, connection: Connected) -> None:
        hit("commit.before")
        try:
            connection.commit()
        except NotCommitted as failed:
            raise failed.why from failed
        except Exception as error:
            self._disconnect()
            raise StoreUnavailable(f"COMMIT failed, its outcome is unknown: {error}") from error
        hit("commit.after")

    def _begin(self) -> Connected:
        """Begin a write transaction, waiting for other processes' within bounds."""
        deadline = time.monotonic() + self._settings.busy_timeout_seconds
        while True:
            self._check_file()
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.begin()
                return self._connection
            except sqlite3.Error as error:
                if not is_busy(error):
                    self._disconnect()
                    raise StoreUnavailable(f"the database did not answer: {error}") from error
                if time.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"the database was locked by another process for {self._settings.busy_timeout_seconds:g} s"
                    ) from error
            time.sleep(_SECONDS_BETWEEN_BEGINS)

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.rollback()
            except Exception:
                self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _between_batches(self) -> None:
        if self._connection is not None:
            try:
                self._after_commit(self._connection)
            except (sqlite3.Error, OSError):
                self._disconnect()

    # --- answers -------------------------------------------------------------------------

    def _answer(self, batch: Sequence[_Ticket]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
        for ticket in batch:
            by_loop.setdefault(ticket.loop, []).append(ticket)
        for loop, tickets in by_loop.items():
            # RuntimeError: the loop is closed, so nobody waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._resolve, tickets)

    def _resolve(self, tickets: Sequence[_Ticket]) -> None:
        for ticket in tickets:
            ticket.before = None
            if self._newest.get(ticket.encoded.transaction_id) is ticket:
                del self._newest[ticket.encoded.transaction_id]
            if ticket.future.done():
                pass
            elif isinstance(ticket.outcome, BaseException):
                ticket.future.set_exception(ticket.outcome)
            else:
                assert ticket.outcome is not None
                ticket.future.set_result(ticket.outcome)
            if ticket.settled is not None:
                ticket.settled()


def _resolve_job(future: asyncio.Future[Any], result: Any, failed: Exception | None) -> None:
    if future.done():
        return
    if failed is not None:
        future.set_exception(failed)
    else:
        future.set_result(result)
