"""Runs of pipelines: rows are carried root by root, side by side, and what is left is carried on after a crash.

Memory is bounded: rows are read from the store in pages, and no more roots are open than may run side by side.

One server carries a run at a time, and says so in the store (PipelineStore.take); a row is begun once even where two think
that they do (PipelineStore.begun). What is durable of a run is enough to go on with it, whoever does.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from agenttx_server.engine.errors import (
    EngineError,
    LimitExceeded,
    PreconditionFailed,
    Unavailable,
)
from agenttx_server.engine.frozen import changed
from agenttx_server.engine.json_values import load
from agenttx_server.engine.ports import (
    Clock,
    ExtraRowsRefused,
    IdSource,
    StaleRevision,
    StoreUnavailable,
    TransactionStore,
)
from agenttx_server.engine.records import TransactionId
from agenttx_server.engine.requests import BeginRequest
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.lineage.definition import PipelineDefinition, TransactionScope
from agenttx_server.lineage.document import read_document
from agenttx_server.lineage.plan import Plan
from agenttx_server.pipelines.barrier import FIRST_UNIT_PLACE, Barrier, is_behind, named, units_behind
from agenttx_server.pipelines.lineage_reading import no_run
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.progress import Progress, Watches
from agenttx_server.pipelines.records import (
    InputRecord,
    InputState,
    PipelineRunRecord,
    PipelineRunStatus,
)
from agenttx_server.pipelines.row_receiving import Row, RowReceiving
from agenttx_server.pipelines.run_ending import ended_run
from agenttx_server.pipelines.unit_run import PLACES_PER_ROOT, Unit, UnitLetGo, UnitRun, UnitWaits

__all__ = ["PipelineRuns", "Progress", "Row", "has_ended", "under_way"]

_LOGGER = logging.getLogger(__name__)
_AGENT: Final = "pipeline-run"
_PAGE: Final = 256
_LEFT: Final = frozenset({InputState.PENDING, InputState.RUNNING})
_BEGUN: Final = frozenset({InputState.RUNNING})
_ALL: Final = frozenset(InputState)
_NAMESPACE: Final = uuid.UUID("4f0f3a1c-8a55-5a3e-9d5b-6f0c4a1f7b21")
_MOST_TRIES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 15.0


class _Carried:
    """A run that this server carries."""

    def __init__(self) -> None:
        self.is_cancelled = False
        """Begin no further row; what is begun goes on to its end."""
        self.hands_over = False
        """Leave it as it is: the next start, or another server, goes on."""
        self.is_lost = False
        """Another server carries it."""
        self.is_cut_off = False
        """The database did not answer: that is waited for as long as it takes."""
        self.waits: list[str] = []
        """What rows wait for that does not pass by itself."""
        self.passes: list[str] = []
        """What rows wait for that may be over a little later."""


class PipelineRuns:
    """Starts, resumes and stops runs of one server.

    Args:
        max_concurrency: roots side by side, unless the pipeline asks for fewer.
        max_calls: calls of one action and root side by side.
        step_turn: counts a step of an owner's, and returns what waits for its turn (engine.services).
        check_stored: raises LimitExceeded for an owner that may store no more.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        transactions: TransactionStore,
        store: PipelineStore,
        clock: Clock,
        ids: IdSource,
        *,
        max_concurrency: int = 8,
        max_calls: int = 16,
        step_turn: Callable[[str], Awaitable[None] | None] = lambda owner: None,
        check_stored: Callable[[str], None] = lambda owner: None,
    ) -> None:
        self._coordinator = coordinator
        self._transactions = transactions
        self._store = store
        self._clock = clock
        self._max_concurrency = max_concurrency
        self._max_calls = max_calls
        self._step_turn = step_turn
        self._carried: dict[str, _Carried] = {}
        self._hands_over = False
        self._receiving = RowReceiving(store, clock, ids, check_stored)
        self.watches = Watches()

    @property
    def carried(self) -> Collection[str]:
        """The runs that are carried here now."""
        return self._carried.keys()

    @property
    def receiving(self) -> Collection[str]:
        """The runs whose rows are coming in here."""
        return self._receiving.now_receiving

    @property
    def server_id(self) -> str:
        """Whose runs they are."""
        return self._coordinator.server_id

    async def receive(
        self,
        principal: str,
        definition: PipelineDefinition,
        rows: AsyncIterator[Row] | Iterable[Row],
        request_id: str = "",
    ) -> PipelineRunRecord:
        """Make a run of rows durable, as RowReceiving does."""
        return await self._receiving.receive(self.server_id, principal, definition, rows, request_id)

    async def carry(
        self, run_id: str, progress: Callable[[Progress], None] = lambda ended: None
    ) -> PipelineRunRecord:
        """Carry a run on to its end from whatever is durable of it; return how it stands then.

        Raises:
            NotFound: there is no such run.
            PreconditionFailed: it has ended, or it is carried already, here or by another server.
        """
        run = await self.loaded(run_id)
        if run.status.is_final:
            raise has_ended(run)
        if run_id in self._carried:
            raise under_way(run)
        carried = self._carried[run_id] = _Carried()
        carried.hands_over = self._hands_over
        try:
            if not await self._store.take(run_id, self.server_id, self._clock.now()):
                run = await self.loaded(run_id)
                raise has_ended(run) if run.status.is_final else under_way(run)
            carried.is_cancelled = bool(await self._store.stops_of([run_id]))
            run = await self._set_running(await self.loaded(run_id))
            return await self._carry(run, carried, progress)
        finally:
            del self._carried[run_id]
            self.watches.tell(run_id)

    async def loaded(self, run_id: str) -> PipelineRunRecord:
        """Find a run. Raises NotFound."""
        run = await self._store.load_run(run_id)
        if run is None:
            raise no_run(run_id)
        return run

    def cancel(self, run_id: str) -> None:
        """Begin no further root of a run that is carried here; what is committed stays, what runs goes on to its end."""
        if run_id in self._carried:
            self._carried[run_id].is_cancelled = True

    def begin_drain(self) -> None:
        """Begin no further root of any run: the next start, or another server, carries them on."""
        self._hands_over = True
        for carried in self._carried.values():
            carried.hands_over = True

    async def _set_running(self, run: PipelineRunRecord) -> PipelineRunRecord:
        if run.status is not PipelineRunStatus.INTERRUPTED:
            return run
        running = changed(
            run, {"status": PipelineRunStatus.RUNNING, "reason": "", "updated_at": self._clock.now()}
        )
        if not await self._store.save(running, self.server_id, release=False):
            raise under_way(run)
        return running

    async def _carry(
        self, run: PipelineRunRecord, carried: _Carried, progress: Callable[[Progress], None]
    ) -> PipelineRunRecord:
        definition = read_document(load(run.definition)).definition
        # Off the loop, as it was checked.
        plan = await asyncio.to_thread(Plan, definition)
        ended_rows = 0

        def tell(ended: Progress) -> None:
            nonlocal ended_rows
            ended_rows += 1
            self.watches.tell(run.run_id, ended)
            progress(ended)

        is_by_root = definition.transaction is not TransactionScope.WHOLE
        tries = 0
        while True:
            before, carried.waits, carried.passes, carried.is_cut_off = ended_rows, [], [], False
            if not is_by_root:
                await self._carry_whole(run, plan, carried, tell)
            else:
                await self._carry_side_by_side(run, plan, carried, self._left(run.run_id, carried), tell)
                await self._carry_barrier(run, plan, carried)
            tries = 0 if ended_rows > before else tries + 1
            if not carried.passes or carried.hands_over or carried.is_lost:
                break
            if tries >= _MOST_TRIES and not carried.is_cut_off:
                break
            await self._clock.sleep(min(_FIRST_PAUSE_SECONDS * 2 ** min(tries, 10), _LONGEST_PAUSE_SECONDS))
        if carried.hands_over or carried.is_lost:
            return await self.loaded(run.run_id)
        return await self._ended(run, carried, plan, has_barriers=is_by_root and bool(plan.barriers))

    # --- units ----------------------------------------------------------------------------------

    async def _carry_side_by_side(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        carried: _Carried,
        items: AsyncIterator[InputRecord],
        progress: Callable[[Progress], None],
    ) -> None:
        """Carry units of one row each."""
        room = asyncio.Semaphore(
            min(plan.definition.max_concurrency or self._max_concurrency, self._max_concurrency)
        )

        async def carry_one(item: InputRecord) -> None:
            try:
                await self._carry_unit(run, plan, carried, (item,), progress)
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as tasks:
                async for item in items:
                    # Before the task, so that no more tasks than that are ever made.
                    await room.acquire()
                    tasks.create_task(carry_one(item))
        except* StoreUnavailable:
            carried.passes.append("the rows could not be read")
            carried.is_cut_off = True

    async def _carry_whole(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        carried: _Carried,
        progress: Callable[[Progress], None],
    ) -> None:
        items = tuple([item async for item in self._left(run.run_id, carried)])
        if items:
            await self._carry_unit(run, plan, carried, items, progress)

    async def _carry_barrier(self, run: PipelineRunRecord, plan: Plan, carried: _Carried) -> None:
        """Carry what is behind the barriers, once every root is through: a transaction for each unit of it."""
        if not plan.barriers or carried.waits or carried.passes or carried.hands_over or carried.is_lost:
            return
        states = await self._store.count_inputs(run.run_id)
        if states[InputState.PENDING] or states[InputState.RUNNING] or not states[InputState.COMMITTED]:
            return
        try:
            await self._barrier(run, plan).lay_out()
        except UnitWaits as waiting:
            carried.waits.append(f"behind the barriers: {waiting.reason}")
            return
        units = units_behind(self._store, run.run_id, _BEGUN if carried.is_cancelled else _LEFT)
        await self._carry_side_by_side(run, plan, carried, units, lambda ended: None)

    def _barrier(self, run: PipelineRunRecord, plan: Plan) -> Barrier:
        return Barrier(plan, run.run_id, self._transactions, self._store)

    def _unit(
        self, run: PipelineRunRecord, plan: Plan, items: tuple[InputRecord, ...], transaction_id: str
    ) -> Unit:
        below = plan.below_barriers
        first = items[0]
        if is_behind(first):
            # Behind the records of all rows, a unit after the other.
            place = run.input_count + first.place - FIRST_UNIT_PLACE
            barrier = self._barrier(run, plan)
            return Unit(
                run.run_id,
                run.pipeline,
                items,
                transaction_id,
                below,
                place * PLACES_PER_ROOT,
                lambda: barrier.base(first),
            )
        is_whole = plan.definition.transaction is TransactionScope.WHOLE
        actions = frozenset(plan.order) if is_whole else frozenset(plan.order) - below
        return Unit(run.run_id, run.pipeline, items, transaction_id, actions, first.place * PLACES_PER_ROOT)

    async def _left(self, run_id: str, carried: _Carried) -> AsyncIterator[InputRecord]:
        place = -1
        while not (carried.hands_over or carried.is_lost):
            states = _BEGUN if carried.is_cancelled else _LEFT
            page = await self._store.list_inputs(run_id, place, _PAGE, states)
            for item in page:
                yield item
            if len(page) < _PAGE:
                return
            place = page[-1].place

    async def _carry_unit(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        carried: _Carried,
        items: tuple[InputRecord, ...],
        progress: Callable[[Progress], None],
    ) -> None:
        """Carry a unit on, unless no further one is begun; note what it waits for."""
        if carried.hands_over or carried.is_lost or (carried.is_cancelled and not items[0].transaction_id):
            return
        where = f"row {items[0].place}: " if len(items) == 1 else ""
        if is_behind(items[0]):
            where = f"{named(items[0])}: "
        try:
            await self._carry_to_its_end(run, plan, carried, items, progress)
        except UnitLetGo:
            return
        except UnitWaits as waiting:
            carried.waits.append(f"{where}{waiting.reason}")
        except (StoreUnavailable, StaleRevision):
            # Its turn is over; what is durable of it is where it goes on. The others go on meanwhile.
            carried.passes.append(f"{where}its turn was lost")
            carried.is_cut_off = True
        except ExtraRowsRefused:
            # Another server began it, and one of the two is wrong about the run being its own.
            carried.passes.append(f"{where}it was begun elsewhere")
            await self._check_ours(run.run_id, carried)
        except Unavailable as error:
            if error.reason == "DRAINING":
                carried.hands_over = True
            carried.passes.append(f"{where}{error.message}")
        except LimitExceeded as error:
            carried.passes.append(f"{where}{error.message}")
        except EngineError as error:
            carried.waits.append(f"{where}{error.message}")
        except Exception as error:
            _LOGGER.exception("run=%s %sfailed", run.run_id, where)
            carried.waits.append(f"{where}a fault of the server ({type(error).__name__})")

    async def _check_ours(self, run_id: str, carried: _Carried) -> None:
        """Let go of a run that another server carries."""
        try:
            if await self._store.take(run_id, self.server_id, self._clock.now()):
                return
        except StoreUnavailable:
            return  # it is tried again, and asked again then
        carried.is_lost = True
        _LOGGER.warning("run=%s is carried by another server", run_id)

    async def _carry_to_its_end(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        carried: _Carried,
        items: tuple[InputRecord, ...],
        progress: Callable[[Progress], None],
    ) -> None:
        transaction_id = items[0].transaction_id or await self._begun(run, items)
        running = tuple(
            changed(item, {"state": InputState.RUNNING, "transaction_id": transaction_id}) for item in items
        )
        unit = self._unit(run, plan, running, transaction_id)
        async with self._coordinator.held_turn(TransactionId(transaction_id), run.run_id) as turn:
            ended = await UnitRun(
                plan,
                unit,
                turn,
                self._transactions,
                self._store.lineage,
                self._store.rows,
                self._clock.now,
                self._max_calls,
                lambda: carried.hands_over or carried.is_lost,
                self._step_turn,
            ).carry_out()
        if ended.state is InputState.FAILED:
            failed = {"state": InputState.FAILED, "reason": ended.reason[:500]}
            await self._store.write(None, [changed(item, failed) for item in running])
        progress(Progress(run.run_id, items[0].place, transaction_id, ended))

    async def _begun(self, run: PipelineRunRecord, items: Sequence[InputRecord]) -> str:
        request = BeginRequest(_AGENT, run.principal, run_id=run.run_id, idle_timeout_us=0)
        answer = await self._coordinator.begin_run(
            request,
            lambda transaction_id: [
                *self._store.rows(
                    [
                        changed(item, {"state": InputState.RUNNING, "transaction_id": transaction_id})
                        for item in items
                    ]
                ),
                self._store.begun(run.run_id, items[0].place, transaction_id),
            ],
        )
        return answer.transaction_id

    # --- the end --------------------------------------------------------------------------------

    async def _ended(
        self, run: PipelineRunRecord, carried: _Carried, plan: Plan, *, has_barriers: bool
    ) -> PipelineRunRecord:
        ended = await ended_run(
            self._store,
            run,
            plan,
            self._clock.now(),
            [*carried.waits[:5], *carried.passes[:5]],
            is_cancelled=carried.is_cancelled,
            has_barriers=has_barriers,
        )
        # Taken again: the server may have another id by now, its lease having ended; or the run another server.
        owner = self.server_id
        is_ours = await self._store.take(run.run_id, owner, self._clock.now())
        if is_ours and await self._store.save(ended, owner, release=True):
            return ended
        return await self.loaded(run.run_id)


def has_ended(run: PipelineRunRecord) -> PreconditionFailed:
    """Nothing happens to it any more."""
    return PreconditionFailed(
        f"run '{run.run_id}' has ended: {run.status.value}",
        reason="ILLEGAL_TRANSITION",
        metadata={"run_id": run.run_id, "status": run.status.value},
    )


def under_way(run: PipelineRunRecord) -> PreconditionFailed:
    """It is carried, here or by another server."""
    return PreconditionFailed(
        f"run '{run.run_id}' is under way",
        reason="ILLEGAL_TRANSITION",
        metadata={"run_id": run.run_id, "status": run.status.value},
    )
