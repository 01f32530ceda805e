"""The engine's front door: finds a transaction, takes its lock, and has the work done.

Every change runs in a task of the server's own: a caller that goes away stops waiting and
nothing else. A call that still waits for the lock when its caller has gone is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agenttx_server.engine import limits
from agenttx_server.engine.begin_execution import BeginExecution
from agenttx_server.engine.commit_execution import CommitExecution
from agenttx_server.engine.errors import EngineError, FieldViolation, InvalidRequest, Unavailable
from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.group_run import CancelRequest
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import (
    AttemptPage,
    CommittedPage,
    StaleRevision,
    StoreUnavailable,
    TransactionFilter,
    TransactionPage,
)
from agenttx_server.engine.queries import Queries
from agenttx_server.engine.records import CommittedEntry, EventRecord, ToolDescription, TransactionId
from agenttx_server.engine.requests import (
    BeginAnswer,
    BeginRequest,
    CommitAnswer,
    CommitRequest,
    GraphView,
    GroupRequest,
    RewindAnswer,
    RewindRequest,
    RollbackRequest,
    RootCause,
    StepAnswer,
    StepCall,
    StepRequest,
    TransactionView,
)
from agenttx_server.engine.rewind_execution import RewindExecution
from agenttx_server.engine.rewinding import Rewinder
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_execution import StepExecution
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry, TransactionCache
from agenttx_server.engine.transaction_writer import TransactionWriter

__all__ = ["TransactionCoordinator"]

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[CacheEntry, Transaction], Awaitable[T]]


class TransactionCoordinator:
    """Begins, executes, rewinds, commits and reads transactions."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._signals = EventSignals()
        self._tasks = OwnedTasks()
        self._cache = TransactionCache(services.store, services.settings.cached_transactions)
        writer = TransactionWriter(services.store, services.clock, self._signals)
        saga = Saga(services, writer, self._tasks)
        self._rewinder = rewinder = Rewinder(services, writer, saga)
        self._begins = BeginExecution(services, writer, self._cache)
        self._steps = StepExecution(services, writer, saga, rewinder, self._tasks)
        self._rewinds = RewindExecution(services, writer, rewinder)
        self._commits = CommitExecution(services, writer, rewinder, self._tasks, self._cache)
        self._queries = Queries(services, self._cache, self._signals)
        self._draining = False

    # --- changes ------------------------------------------------------------------------

    async def begin(self, request: BeginRequest) -> BeginAnswer:
        """Open a transaction, or answer as recorded for a repeated request_id."""
        self._check_serving()
        limits.check_begin(request, self._services.limits)
        return await self._unavailable_if_stale(self._tasks.run(self._begins.begin(request)))

    async def execute_step(self, request: StepRequest) -> StepAnswer:
        """Run one step: a group of one."""
        limits.check_call(request.call, self._services.limits)
        group = GroupRequest(
            request.transaction_id, request.step_id, (request.call,), request.generation, request.principal
        )
        return (await self._execute(group))[0]

    async def execute_group(self, request: GroupRequest) -> tuple[StepAnswer, ...]:
        """Run several steps side by side and settle them together."""
        self._check_group(request.calls)
        return await self._execute(request)

    async def rewind(self, request: RewindRequest) -> RewindAnswer:
        """Rewind to just before a step; a running step is cancelled first."""
        return await self._rewind(request, "Rewind")

    async def rollback(self, request: RollbackRequest) -> RewindAnswer:
        """Abort and compensate everything, or rewind if ``to_step`` is given."""
        if request.to_step:
            as_rewind = RewindRequest(
                request.transaction_id,
                request.to_step,
                request.reason,
                accept_irreversible=request.accept_irreversible,
                request_id=request.request_id,
                principal=request.principal,
            )
            return await self._rewind(as_rewind, "RollbackTransaction")
        limits.check_reason(request.reason, request.request_id)
        stopped: list[CancelRequest | None] = []
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._rewinds.roll_back(transaction, request, *stopped),
            before_lock=lambda entry: stopped.append(self._rewinds.interrupt_for_rollback(entry, request)),
        )

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Publish state, release staged effects, deliver them once."""
        limits.check_reason("", request.request_id)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._commits.commit(transaction, request),
        )

    # --- reads --------------------------------------------------------------------------

    async def get(self, principal: str, transaction_id: TransactionId) -> TransactionView:
        """Return a transaction as it stands in SQL, ended ones too."""
        return await self._reading(self._queries.get(principal, transaction_id))

    async def graph(self, principal: str, transaction_id: TransactionId) -> GraphView:
        """Return the dependency graph of the live steps."""
        return await self._reading(self._queries.graph(principal, transaction_id))

    async def find_root_cause(
        self, principal: str, transaction_id: TransactionId, step_id: int, key: str
    ) -> RootCause:
        """Trace a key back from a live step. Raises NotFound for a step that isn't live."""
        return await self._reading(self._queries.find_root_cause(principal, transaction_id, step_id, key))

    async def list_transactions(self, which: TransactionFilter, cursor: str, limit: int) -> TransactionPage:
        """Return a page of transactions, newest first."""
        return await self._reading(self._queries.list_transactions(which, cursor, limit))

    async def list_steps(
        self,
        principal: str,
        transaction_id: TransactionId,
        cursor: str,
        limit: int,
        step_id: int | None = None,
        include_rewound: bool = True,
    ) -> AttemptPage:
        """Return a page of the history of attempts."""
        return await self._reading(
            self._queries.list_steps(principal, transaction_id, cursor, limit, step_id, include_rewound)
        )

    async def read_committed(self, key: str) -> CommittedEntry:
        """Return a key (``namespace/key``) of committed state."""
        return await self._reading(self._services.store.read_committed(key))

    async def scan_committed(self, prefix: str, cursor: str, limit: int) -> CommittedPage:
        """Return a page of committed keys with a prefix."""
        return await self._reading(self._queries.scan_committed(prefix, cursor, limit))

    def describe_tools(self) -> Sequence[ToolDescription]:
        """Return all tools, by name."""
        return self._services.tools.describe_all()

    async def events_after(
        self, principal: str, transaction_id: TransactionId, from_sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        """Return events with sequence >= ``from_sequence``, in order."""
        return await self._reading(
            self._queries.events_after(principal, transaction_id, from_sequence, limit)
        )

    async def wait_for_event(self, transaction_id: TransactionId, after_sequence: int) -> None:
        """Return once there may be an event with a sequence greater than ``after_sequence``."""
        await self._reading(self._queries.wait_for_event(transaction_id, after_sequence))

    async def is_ended(self, principal: str, transaction_id: TransactionId) -> bool:
        """Return whether a transaction has ended."""
        return await self._reading(self._queries.is_ended(principal, transaction_id))

    # --- life ---------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse new changes from now on; reads go on."""
        self._draining = True

    async def drain(self, timeout_seconds: float) -> int:
        """Wait for what is running; return how many tasks are left when time is up."""
        self._draining = True
        return await self._tasks.wait_all(timeout_seconds)

    @property
    def running_tasks(self) -> int:
        """How many server-owned tasks are running."""
        return len(self._tasks)

    # --- parts --------------------------------------------------------------------------

    def _check_serving(self) -> None:
        if self._draining:
            raise Unavailable("the server is shutting down; send the request again", reason="DRAINING")

    def _check_group(self, calls: Sequence[StepCall]) -> None:
        size = len(calls)
        most = self._services.limits.group_size
        if not 1 <= size <= most:
            raise InvalidRequest(
                (FieldViolation("members", f"has {size} members; the range is 1 to {most}"),)
            )
        seen: set[str] = set()
        for index, call in enumerate(calls):
            limits.check_call(call, self._services.limits, f"members[{index}].")
            if call.request_id and call.request_id in seen:
                raise InvalidRequest(
                    (
                        FieldViolation(
                            f"members[{index}].request_id", "is used by another member of the group"
                        ),
                    )
                )
            seen.add(call.request_id)

    async def _execute(self, request: GroupRequest) -> tuple[StepAnswer, ...]:
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda entry, transaction: self._steps.execute(entry, transaction, request),
            yields_to_rewinds=True,
        )

    async def _rewind(self, request: RewindRequest, method: str) -> RewindAnswer:
        limits.check_reason(request.reason, request.request_id)
        stopped: list[CancelRequest | None] = []
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._rewinds.rewind(transaction, request, method, *stopped),
            before_lock=lambda entry: stopped.append(
                self._rewinds.interrupt_for_rewind(entry, request, method)
            ),
        )

    async def _locked(
        self,
        transaction_id: TransactionId,
        principal: str,
        work: Work[T],
        *,
        before_lock: Callable[[CacheEntry], None] | None = None,
        yields_to_rewinds: bool = False,
    ) -> T:
        """Do ``work`` under the transaction's lock, in a task of the server's own."""
        self._check_serving()
        entry = self._cache.pin(transaction_id)
        try:
            if before_lock is None:
                await self._take_turn(entry, yields_to_rewinds=yields_to_rewinds)
            else:
                await self._take_turn_as_rewind(entry, principal, before_lock)
        except BaseException:
            self._cache.unpin(entry)
            raise
        return await self._tasks.run(self._work_and_release(entry, principal, work))

    async def _take_turn(self, entry: CacheEntry, *, yields_to_rewinds: bool) -> None:
        await entry.lock.acquire()
        while yields_to_rewinds and entry.rewinds_waiting:
            entry.lock.release()
            await asyncio.sleep(0)
            await entry.lock.acquire()

    async def _take_turn_as_rewind(
        self, entry: CacheEntry, principal: str, before_lock: Callable[[CacheEntry], None]
    ) -> None:
        entry.rewinds_waiting += 1
        try:
            if entry.transaction is not None and entry.transaction.record.principal == principal:
                before_lock(entry)
            await entry.lock.acquire()
        finally:
            entry.rewinds_waiting -= 1

    async def _work_and_release(self, entry: CacheEntry, principal: str, work: Work[T]) -> T:
        try:
            transaction = await self._cache.loaded(entry, principal)
            await self._rewinder.finish_interrupted(transaction)
            return await work(entry, transaction)
        except (StaleRevision, StoreUnavailable) as error:
            # What was written is unknown or another server's: SQL decides, memory forgets.
            entry.transaction = None
            raise self._unavailable(error) from error
        except EngineError:  # refusals change nothing
            raise
        except BaseException:
            # A bug, or the task was cancelled: memory may be ahead of what was written.
            entry.transaction = None
            raise
        finally:
            entry.lock.release()
            self._cache.unpin(entry)

    async def _unavailable_if_stale(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (StaleRevision, StoreUnavailable) as error:
            raise self._unavailable(error) from error

    async def _reading(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except StoreUnavailable as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        _LOGGER.warning("the store could not serve a call: %s: %s", type(error).__name__, error)
        return Unavailable("the database could not serve this call now; send the same request again")
