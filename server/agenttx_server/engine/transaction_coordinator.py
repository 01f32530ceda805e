"""The engine's front door: finds a transaction, takes its lock, and has the work done.

Every change runs in a task of the server's own: a caller that goes away stops waiting and
nothing else. A call that still waits for the lock when its caller has gone is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from agenttx_server.engine import limits, refusals, step_report
from agenttx_server.engine.approval_execution import ApprovalExecution
from agenttx_server.engine.begin_execution import BeginExecution, BeginRows
from agenttx_server.engine.commit_execution import CommitExecution
from agenttx_server.engine.compensation_execution import CompensationExecution
from agenttx_server.engine.effect_execution import EffectExecution
from agenttx_server.engine.engine_activity import EngineActivity
from agenttx_server.engine.errors import (
    FieldViolation,
    InvalidRequest,
    Unavailable,
)
from agenttx_server.engine.event_signals import EventSignals
from agenttx_server.engine.frozen import changed
from agenttx_server.engine.group_run import CancelRequest
from agenttx_server.engine.group_settlement import GroupSettlement
from agenttx_server.engine.held_groups import HeldTurn, can_be_group
from agenttx_server.engine.held_parts import HeldParts
from agenttx_server.engine.held_run import HeldMember
from agenttx_server.engine.late_effects import LateEffects
from agenttx_server.engine.late_tools import LateTools
from agenttx_server.engine.outbox_dispatcher import OutboxDispatcher
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import (
    AttemptPage,
    CommittedPage,
    EffectPage,
    ExtraRowsRefused,
    StaleRevision,
    StoreUnavailable,
    TransactionFilter,
    TransactionPage,
)
from agenttx_server.engine.prompt_steps import PromptStep, PromptSteps
from agenttx_server.engine.queries import Queries
from agenttx_server.engine.reaper import Reaper, expiry_reason
from agenttx_server.engine.records import (
    ApprovalState,
    AttemptState,
    CommittedEntry,
    EffectState,
    EventRecord,
    ServerId,
    StopKind,
    ToolDescription,
    TransactionId,
    TransactionRecord,
)
from agenttx_server.engine.recovery import Recovery
from agenttx_server.engine.requests import (
    AcknowledgeUndoRequest,
    ApprovalListing,
    ApprovalView,
    BeginAnswer,
    BeginRequest,
    CancelStepAnswer,
    CancelStepRequest,
    CommitAnswer,
    CommitRequest,
    CompensationAnswer,
    CompensationListing,
    CompensationState,
    DecideApprovalRequest,
    EffectAnswer,
    EffectRequest,
    GraphView,
    GroupRequest,
    ResolveCompensationRequest,
    ResolveStepAnswer,
    ResolveStepRequest,
    RetryCompensationRequest,
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
from agenttx_server.engine.server_lease import ServerLease
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_cancellation import Cancellation, StepCancellation
from agenttx_server.engine.step_execution import StepExecution
from agenttx_server.engine.step_recovery import StepRecovery
from agenttx_server.engine.step_resolution import StepResolving
from agenttx_server.engine.sub_step_recovery import SubStepRecovery
from agenttx_server.engine.sub_steps import SubSteps
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_cache import CacheEntry, TransactionCache, not_found
from agenttx_server.engine.transaction_turns import TransactionTurns, Work, unavailable
from agenttx_server.engine.transaction_writer import TransactionWriter
from agenttx_server.engine.visibility import in_tenant, name_in_tenant, sees

__all__ = ["TransactionCoordinator"]

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
_STOP_REQUESTS_EVERY = 0.2


class TransactionCoordinator:
    """Begins, executes, rewinds, commits and reads transactions."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services
        self._signals = EventSignals[TransactionId]()
        self._tasks = OwnedTasks()
        self._cache = TransactionCache(services.store, services.settings.cached_transactions)
        settings = services.settings
        self._lease = lease = ServerLease(
            services.store, services.clock, services.ids, services.server_id, settings.lease_seconds
        )
        late_tools = LateTools(self._tool_ended)
        writer = TransactionWriter(services.store, services.clock, self._signals, lease, services.observer)
        saga = Saga(services, writer, self._tasks, lease)
        rewinder = Rewinder(services, writer, saga, late_tools)
        settlement = GroupSettlement(services, writer, rewinder, late_tools)
        self._begins = BeginExecution(services, writer, self._cache)
        sub_steps = SubSteps(services, writer, saga, late_tools)
        self._steps = StepExecution(
            services, writer, rewinder, settlement, self._tasks, lease, late_tools, sub_steps
        )
        self._prompt_steps = PromptSteps(services, writer, late_tools)
        self._cancellations = StepCancellation(services.store, writer)
        self._resolutions = StepResolving(services, writer, self._steps, settlement, sub_steps)
        self._approvals = ApprovalExecution(services, writer, self._steps, settlement)
        self._rewinds = RewindExecution(services, writer, rewinder)
        self._recovery = Recovery(
            services,
            writer,
            self._cache,
            self._tasks,
            lease,
            rewinder,
            self._rewinds,
            StepRecovery(
                services, writer, saga, self._steps, settlement, SubStepRecovery(services, writer, saga)
            ),
            LateEffects(services, writer, saga),
            late_tools,
            lambda: self._draining,
        )
        self._turns = TransactionTurns(services, self._cache, self._recovery, lease, self._check_serving)
        self._compensations = CompensationExecution(services, writer, saga, rewinder)
        self._outbox = OutboxDispatcher(services, lease, writer, self._tasks, self._cache)
        self._commits = CommitExecution(services, writer, rewinder, self._outbox)
        self._held_parts = HeldParts(
            services,
            writer,
            self._tasks,
            lease,
            saga,
            rewinder,
            settlement,
            self._steps,
            self._rewinds,
            self._commits,
            sub_steps,
        )
        self._effects = EffectExecution(services, writer, self._outbox)
        self._queries = Queries(services, self._cache, self._signals)
        self._reaper = Reaper(services, self._expire)
        self._draining = False
        self._background: list[asyncio.Task[None]] = []

    # --- changes ------------------------------------------------------------------------

    async def begin(self, request: BeginRequest) -> BeginAnswer:
        """Open a transaction, or answer as recorded for a repeated request_id."""
        self._check_serving()
        limits.check_begin(request, self._services.limits)
        return await self._unavailable_if_stale(self._tasks.run(self._begins.begin(request)))

    async def begin_run(
        self, request: BeginRequest, extra: BeginRows = (), opens: Sequence[HeldMember] = ()
    ) -> BeginAnswer:
        """Open a transaction that the run ``request.run_id`` owns, with rows of its layer in the same commit.

        Rows that name the transaction are given by a function of its id. ``opens``, which :meth:`can_open_with` takes,
        is its first held group. Raises ExtraRowsRefused.
        """
        self._check_serving()
        limits.check_begin(request, self._services.limits)
        begin = self._begins.begin(request, extra, len(opens))
        return await self._unavailable_if_stale(self._tasks.run(begin))

    def can_open_with(self, owner: str, members: Sequence[HeldMember]) -> bool:
        """Whether these can be the first held group of an owner's transaction."""
        return can_be_group(self._services, owner, 1, members)

    async def is_open(self, transaction_id: TransactionId) -> bool:
        """Whether a transaction is there and has not ended. Raises StoreUnavailable."""
        record = await self._services.store.load_record(transaction_id)
        return record is not None and not record.status.is_terminal

    async def answers_in_journal(self, transaction_id: TransactionId, step_id: int) -> dict[str, str]:
        """Return what the first call of each scope in a step's journal gave, of those that succeeded. Raises StoreUnavailable."""
        journal = await self._services.store.load_journal(transaction_id, step_id)
        return {
            call.scope: call.output or "null"
            for call in journal.sub_steps
            if call.ordinal == 1 and call.state is AttemptState.COMPLETED
        }

    @asynccontextmanager
    async def held_turn(
        self, transaction_id: TransactionId, run_id: str, held_under: ServerId | None = None
    ) -> AsyncIterator[HeldTurn]:
        """Have a turn at a run's transaction: its lock, and what others left behind settled.

        ``held_under`` is the lease (its id) under which the run is this server's, the one that it has now if none is
        given: once that has ended nothing is called in the turn any more, also if this server holds another one by then.

        Raises PreconditionFailed (OWNED_BY_RUN) if it is another run's, NotFound, and StoreUnavailable and
        StaleRevision, in the turn too: it is over then, and another turn finds what is durable.
        """
        self._check_serving()
        entry = self._cache.pin(transaction_id)
        try:
            await entry.lock.acquire()
            try:
                lease_id = self._lease.id
                transaction = await self._turns.begun(entry)
                if transaction.record.run_id != run_id:
                    refusals.check_not_owned(transaction.record)
                    raise not_found(transaction_id)
                turn = HeldTurn(self._held_parts, entry, transaction, held_under or lease_id)
                try:
                    yield turn
                finally:
                    await turn.end()
            except BaseException as error:
                entry.transaction = None
                if isinstance(error, (StoreUnavailable, StaleRevision, ExtraRowsRefused)):
                    self._recovery.look_after(transaction_id)
                raise
            finally:
                entry.running = None
                entry.lock.release()
        finally:
            self._cache.unpin(entry)

    async def execute_step(self, request: StepRequest) -> StepAnswer:
        """Run one step: a group of one."""
        limits.check_call(request.call, self._services.limits)
        self._check_serving()
        entry = self._cache.pin(request.transaction_id)
        try:
            if entry.lock.locked():
                await self._refuse_if_owned(entry, request.principal)
            await self._turns.take(entry, yields_to_rewinds=True)
        except BaseException:
            self._cache.unpin(entry)
            raise
        begun = self._begin_promptly(entry, request)
        if begun is not None:
            return await begun
        return await self._tasks.run(self._execute_generally(entry, request))

    async def report_step(
        self, request: StepRequest, found_before: tuple[FieldViolation, ...] = ()
    ) -> StepAnswer:
        """Take in a step that the agent ran itself: a group of one, whose run is the report.

        ``found_before`` are violations that were found already, to be told with those found here.
        """
        call = step_report.checked(request.call, self._services.limits, found_before)
        group = GroupRequest(
            request.transaction_id, request.step_id, (call,), request.generation, request.principal
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
            moves_on=True,
            stops_others="the transaction is being rolled back",
            before_lock=lambda entry: stopped.append(self._rewinds.interrupt_for_rollback(entry, request)),
        )

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """Publish state, release staged effects, deliver them once."""
        limits.check_reason("", request.request_id)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._commits.commit(transaction, request),
            moves_on=True,
        )

    async def retry_compensation(self, request: RetryCompensationRequest) -> CompensationAnswer:
        """Run a failed undo action again; complete the rewind that it alone held."""
        limits.check_resolution(request.compensation_id, "", request.request_id)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._freeing(
                transaction, self._compensations.retry(transaction, request)
            ),
        )

    async def resolve_compensation(self, request: ResolveCompensationRequest) -> CompensationAnswer:
        """Take a person's word about a failed undo action; complete the rewind that it alone held."""
        limits.check_resolution(request.compensation_id, request.note, request.request_id)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._freeing(
                transaction, self._compensations.resolve(transaction, request)
            ),
        )

    async def acknowledge_undo(self, request: AcknowledgeUndoRequest) -> CompensationAnswer:
        """Take the agent's word about an undo action of its own; go on with the rewind that waits for it."""
        limits.check_acknowledgement(
            request.compensation_id, request.error, request.request_id, self._services.limits
        )
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._compensations.acknowledge(transaction, request),
        )

    async def cancel_step(self, request: CancelStepRequest) -> CancelStepAnswer:
        """Stop a running step and answer when it is settled."""
        limits.check_reason(request.reason, request.request_id)
        progress = Cancellation()
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._cancellations.cancel(transaction, request, progress),
            moves_on=True,
            before_lock=lambda entry: self._cancellations.stop(entry, request, progress),
        )

    async def resolve_step(self, request: ResolveStepRequest) -> ResolveStepAnswer:
        """Settle a step in doubt as a person says."""
        limits.check_reason("", request.request_id)
        limits.check_step_resolution(request, self._services.limits)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda entry, transaction: self._telling_owner(
                transaction, self._resolutions.resolve(entry, transaction, request)
            ),
        )

    async def decide_approval(self, request: DecideApprovalRequest) -> ApprovalView:
        """Take a person's yes or no to a step that waits; a yes runs nothing."""
        limits.check_decision(request)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._approvals.decide(transaction, request),
        )

    async def requeue_effect(self, request: EffectRequest) -> EffectAnswer:
        """Have a dead effect delivered after all."""
        limits.check_reason("", request.request_id)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._effects.requeue(transaction, request),
        )

    async def discard_effect(self, request: EffectRequest) -> EffectAnswer:
        """Give an effect up that was not delivered."""
        limits.check_reason(request.reason, request.request_id)
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._effects.discard(transaction, request),
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

    async def list_compensations(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[CompensationState],
        cursor: str,
        limit: int,
    ) -> CompensationListing:
        """Return a page of undo actions, the oldest transaction first, the newest undo of each first."""
        return await self._reading(
            self._queries.list_compensations(principal, transaction_id, states, cursor, limit)
        )

    async def list_effects(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[EffectState],
        channel: str,
        cursor: str,
        limit: int,
    ) -> EffectPage:
        """Return a page of effects, of one transaction or of all; empty states and channel: all."""
        return await self._reading(
            self._queries.list_effects(principal, transaction_id, states, channel, cursor, limit)
        )

    async def list_approvals(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[ApprovalState],
        cursor: str,
        limit: int,
    ) -> ApprovalListing:
        """Return a page of approvals, of one transaction or of all, the one asked for first first."""
        return await self._reading(
            self._queries.list_approvals(principal, transaction_id, states, cursor, limit)
        )

    async def read_committed(self, owner: str, key: str) -> CommittedEntry:
        """Return a key (``namespace/key``) of the committed state of an owner's tenant."""
        entry = await self._reading(self._services.store.read_committed(in_tenant(owner, key)))
        return changed(entry, {"key": key})

    async def scan_committed(self, owner: str, prefix: str, cursor: str, limit: int) -> CommittedPage:
        """Return a page of committed keys with a prefix, of an owner's tenant."""
        page = await self._reading(self._queries.scan_committed(in_tenant(owner, prefix), cursor, limit))
        entries = [changed(entry, {"key": name_in_tenant(owner, entry.key)}) for entry in page.entries]
        return CommittedPage(entries, page.next_cursor)

    @property
    def activity(self) -> EngineActivity:
        """What this server is at, for those who run it."""
        return EngineActivity(
            cached_transactions=len(self._cache),
            cache_hits=self._cache.hits,
            cache_misses=self._cache.misses,
            tasks=len(self._tasks),
            deliveries=self._outbox.under_way,
            lease=self._lease.standing,
        )

    @property
    def server_id(self) -> ServerId:
        """The id under which this server holds its lease; a new one if it lost that."""
        return self._lease.id

    def describe_tools(self, owner: str) -> Sequence[ToolDescription]:
        """Return all tools that there are for an owner, by name."""
        return self._services.tools_of(owner).describe_all()

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

    async def start(self) -> None:
        """Take the lease, settle what dead servers left behind, and go on looking after it. Serve then.

        Raises StoreUnavailable.
        """
        settings = self._services.settings
        await self._lease.open()
        if self._services.store.is_shared:
            self._spawn(self._lease.keep())  # recovery may take longer than a lease
        try:
            await self._recovery.recover_all(settings.recovery_wait_seconds)
        except BaseException:
            for task in self._background:
                task.cancel()
            self._background.clear()
            raise
        self._spawn(self._reaper.watch(), self._outbox.run())
        if self._services.store.is_shared:
            self._spawn(self._recovery.watch(settings.lease_seconds / 3), self._follow_stop_requests())

    def _spawn(self, *work: Coroutine[None, None, None]) -> None:
        self._background += [asyncio.get_running_loop().create_task(item) for item in work]

    async def stop(self) -> None:
        """End the work in the background and give the lease back; after the drain."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        try:
            await self._lease.close()
        except StoreUnavailable as error:
            _LOGGER.warning("the lease could not be given back and will run out: %s", error)

    def begin_drain(self) -> None:
        """Refuse new changes from now on, and begin no delivery; reads go on."""
        self._draining = True
        self._outbox.begin_drain()

    async def drain(self, timeout_seconds: float) -> int:
        """Wait for what is running; return how many tasks are left when time is up."""
        self.begin_drain()
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
            moves_on=True,
            yields_to_rewinds=True,
        )

    async def _execute_generally(self, entry: CacheEntry, request: StepRequest) -> StepAnswer:
        """Run a step in the turn that was taken for it."""
        group = GroupRequest(
            request.transaction_id, request.step_id, (request.call,), request.generation, request.principal
        )
        work: Work[tuple[StepAnswer, ...]] = _from_outside(
            lambda entry, transaction: self._steps.execute(entry, transaction, group)
        )
        return (await self._turns.work_and_release(entry, request.principal, work, ""))[0]

    def _begin_promptly(self, entry: CacheEntry, request: StepRequest) -> asyncio.Future[StepAnswer] | None:
        """Begin a step that needs no task, in the turn taken for it; return the future of its answer, None if it does.

        A caller that goes away cancels that future and nothing else.
        """
        try:
            step = self._prompt_steps.begin(entry, request)
        except BaseException as error:
            self._turns.end(entry, forgetting=True)
            if isinstance(error, StoreUnavailable):
                self._recovery.look_after(entry.transaction_id)
                raise unavailable(error) from error
            raise
        if step is None:
            return None
        self._cache.hits += 1
        answer: asyncio.Future[StepAnswer] = asyncio.get_running_loop().create_future()
        self._tasks.hold(step.write)
        step.write.add_done_callback(lambda _: self._prompt_step_written(entry, request, step, answer))
        return answer

    def _prompt_step_written(
        self, entry: CacheEntry, request: StepRequest, step: PromptStep, answer: asyncio.Future[StepAnswer]
    ) -> None:
        self._tasks.let_go(step.write)
        try:
            failed = self._prompt_steps.ended(step)
        except Exception as error:  # whatever it is, the turn ends and the caller is told
            failed = error
        if isinstance(failed, StaleRevision):
            # Another server was first: read anew, and judged anew, in the same turn.
            entry.transaction = None
            again = self._tasks.spawn(self._execute_generally(entry, request))
            again.add_done_callback(lambda _: _hand_on(again, answer))
            return
        self._turns.end(entry, forgetting=failed is not None)
        if step.write.cancelled():  # the server is being ended
            answer.cancel()
        if isinstance(failed, StoreUnavailable):
            self._recovery.look_after(entry.transaction_id)
            failed = unavailable(failed)
        if answer.done():  # the caller has gone
            return
        if failed is None:
            answer.set_result(step.answer)
        else:
            answer.set_exception(failed)

    async def _rewind(self, request: RewindRequest, method: str) -> RewindAnswer:
        limits.check_reason(request.reason, request.request_id)
        stopped: list[CancelRequest | None] = []
        return await self._locked(
            request.transaction_id,
            request.principal,
            lambda _, transaction: self._rewinds.rewind(transaction, request, method, *stopped),
            moves_on=not request.dry_run,
            stops_others="" if request.dry_run else f"a rewind to step {request.to_step} was asked for",
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
        stops_others: str = "",
        moves_on: bool = False,
    ) -> T:
        """Do ``work`` under the transaction's lock, in a task of the server's own.

        ``stops_others`` is why a step that runs on another server is to stop for this work. ``moves_on`` is that
        only the run that owns a transaction, if one does, may do it; who asks is not that.
        """
        self._check_serving()
        entry = self._cache.pin(transaction_id)
        try:
            if moves_on:
                work = _from_outside(work)
                await self._refuse_if_owned(entry, principal)
            if before_lock is None:
                await self._turns.take(entry, yields_to_rewinds=yields_to_rewinds)
            else:
                await self._turns.take_as_rewind(entry, principal, before_lock)
        except BaseException:
            self._cache.unpin(entry)
            raise
        return await self._tasks.run(self._turns.work_and_release(entry, principal, work, stops_others))

    async def _refuse_if_owned(self, entry: CacheEntry, principal: str) -> None:
        """Refuse without waiting for a turn, which the run may have for long. Whose a transaction is never changes."""
        if not entry.lock.locked():
            return  # it is checked in turn
        known = entry.transaction
        record = known.record if known is not None else None
        if record is None:
            record = await self._reading(self._services.store.load_record(entry.transaction_id))
        if record is not None and sees(principal, record.principal):
            refusals.check_not_owned(record)

    async def _telling_owner(self, transaction: Transaction, work: Awaitable[T]) -> T:
        """Do what a person asked for of a run's transaction, and tell its owner that it may go on."""
        result = await work
        owner = self._services.run_owner
        if owner is not None and transaction.record.run_id:
            owner.settled(transaction.record)
        return result

    async def _follow_stop_requests(self) -> None:
        """Stop steps that run here for work that came to another server, until cancelled."""
        while True:
            await self._services.clock.sleep(_STOP_REQUESTS_EVERY)
            if not self._cache.is_running_any():
                continue
            try:
                requests = await self._services.store.take_stop_requests(self._lease.id)
            except StoreUnavailable:
                continue
            for request in requests:
                entry = self._cache.peek(request.transaction_id)
                if entry is None or entry.running is None:
                    continue
                if request.kind is StopKind.CANCEL_STEP:
                    entry.running.cancel_step(request.step_id, request.why or "CancelStep was asked for")
                else:
                    entry.running.cancel(CancelRequest(request.why, None, accept_irreversible=False))

    async def _expire(self, transaction_id: TransactionId) -> None:
        """Roll back a transaction that is idle too long or past its deadline, if it still is."""
        record = await self._services.store.load_record(transaction_id)
        if record is None or not self._expiry(record):
            return
        why = self._expiry(record)
        request = RollbackRequest(
            transaction_id, reason=why, accept_irreversible=True, principal=record.principal
        )

        async def abort(_: CacheEntry, transaction: Transaction) -> None:
            if self._expiry(transaction.record, transaction):
                await self._rewinds.roll_back(transaction, request)

        def stop(entry: CacheEntry) -> None:
            if entry.transaction is not None and self._expiry(entry.transaction.record, entry.transaction):
                self._rewinds.interrupt_for_rollback(entry, request)

        await self._locked(transaction_id, record.principal, abort, before_lock=stop, stops_others=why)

    def _expiry(self, record: TransactionRecord, transaction: Transaction | None = None) -> str:
        is_asked = transaction is not None and any(
            approval.state is ApprovalState.PENDING for approval in transaction.live_approvals()
        )
        now = self._services.clock.now()
        return expiry_reason(record, now, self._reaper.serving_since, is_asked=is_asked)

    def _tool_ended(self, record: TransactionRecord) -> None:
        """Have the undo run that waited for a tool to end."""
        if not self._draining:
            self._recovery.look_after(record.transaction_id)

    async def _freeing(self, transaction: Transaction, work: Awaitable[T]) -> T:
        answer = await self._telling_owner(transaction, work)
        self._recovery.look_after_freed(transaction)
        return answer

    async def _unavailable_if_stale(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (StaleRevision, StoreUnavailable) as error:
            raise unavailable(error) from error

    async def _reading(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except StoreUnavailable as error:
            raise unavailable(error) from error


def _hand_on(done: asyncio.Task[T], waiting: asyncio.Future[T]) -> None:
    """Give what a task came to to who waits for it in another way."""
    if waiting.done():
        return
    if done.cancelled():
        waiting.cancel()
    elif error := done.exception():
        waiting.set_exception(error)
    else:
        waiting.set_result(done.result())


def _from_outside(work: Work[T]) -> Work[T]:
    """Return work that is refused where a run owns the transaction."""

    def checked(entry: CacheEntry, transaction: Transaction) -> Awaitable[T]:
        refusals.check_not_owned(transaction.record)
        return work(entry, transaction)

    return checked
