"""Runs of pipelines: rows are received, carried root by root, side by side, and what is left is carried on after a crash.

Memory is bounded: rows are read from the store in pages, and no more roots are open than may run side by side.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from agenttx_server.engine.errors import FieldViolation, InvalidRequest, NotFound, PreconditionFailed
from agenttx_server.engine.frozen import changed, dataclass
from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import Clock, IdSource, StaleRevision, StoreUnavailable, TransactionStore
from agenttx_server.engine.records import TransactionId
from agenttx_server.engine.requests import BeginRequest
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.lineage.definition import PipelineDefinition, TransactionScope
from agenttx_server.lineage.document import read_document, to_document
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.validation import check_pipeline
from agenttx_server.pipelines.counting import added, status_of_run
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import (
    ActionCounts,
    InputRecord,
    InputState,
    PipelineRunRecord,
    PipelineRunStatus,
)
from agenttx_server.pipelines.unit_run import Unit, UnitEnded, UnitRun, UnitWaits

__all__ = ["PipelineRuns", "Progress", "Row"]

_AGENT: Final = "pipeline-run"
_PAGE: Final = 256
_LEFT: Final = frozenset({InputState.PENDING, InputState.RUNNING})
_ALL: Final = frozenset(InputState)


@dataclass(frozen=True, slots=True)
class Row:
    """A row to ingest: a JSON object; ``relative_path`` is the input file that it is of, for FILE actions."""

    value: Mapping[str, Any]
    relative_path: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A root has ended; in a run that is one transaction, all have."""

    run_id: str
    place: int
    transaction_id: str
    ended: UnitEnded


class PipelineRuns:
    """Starts, resumes and stops runs of one server.

    Args:
        max_concurrency: roots side by side, unless the pipeline asks for fewer.
        max_calls: calls of one action and root side by side.
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
    ) -> None:
        self._coordinator = coordinator
        self._transactions = transactions
        self._store = store
        self._clock = clock
        self._ids = ids
        self._max_concurrency = max_concurrency
        self._max_calls = max_calls
        self._stopping: dict[str, PipelineRunStatus] = {}

    async def receive(
        self, principal: str, definition: PipelineDefinition, rows: AsyncIterator[Row] | Iterable[Row]
    ) -> PipelineRunRecord:
        """Check a pipeline and make a run of rows durable; nothing is called yet. A run that exists has all its rows.

        Raises:
            InvalidRequest: the pipeline is not sound, with every violation; or it needs what is not served yet.
        """
        plan_of(definition)
        run_id = self._ids.new_id()
        count = 0
        seen: dict[bytes, int] = {}
        page: list[InputRecord] = []
        async for row in _each(rows):
            text = canonical(dict(row.value))
            # 16 bytes a row and not the row: occurrences are counted over the whole run.
            digest = hashlib.sha256(text.encode()).digest()[:16]
            occurrence = seen.get(digest, 0)
            seen[digest] = occurrence + 1
            page.append(
                InputRecord(run_id, count, InputState.PENDING, "", text, row.relative_path, occurrence)
            )
            count += 1
            if len(page) == _PAGE:
                await self._store.write(None, page)
                page = []
        now = self._clock.now()
        run = PipelineRunRecord(
            run_id,
            principal,
            definition.name,
            PipelineRunStatus.RUNNING,
            now,
            now,
            count,
            canonical(to_document(definition)),
        )
        await self._store.write(run, page)
        return run

    async def carry(
        self, run_id: str, progress: Callable[[Progress], None] = lambda ended: None
    ) -> PipelineRunRecord:
        """Carry a run on to its end from whatever is durable of it; return how it stands then.

        Raises:
            NotFound: there is no such run.
            PreconditionFailed: it has ended.
        """
        run = await self._store.load_run(run_id)
        if run is None:
            raise NotFound(
                f"there is no pipeline run '{run_id}'",
                reason="PIPELINE_RUN_NOT_FOUND",
                metadata={"run_id": run_id},
            )
        if run.status.is_final:
            raise PreconditionFailed(
                f"run '{run_id}' has ended: {run.status.value}",
                reason="ILLEGAL_TRANSITION",
                metadata={"run_id": run_id, "status": run.status.value},
            )
        definition = read_document(load(run.definition)).definition
        plan = Plan(definition)
        waits: list[str] = []
        if definition.transaction is TransactionScope.WHOLE:
            await self._carry_whole(run, plan, progress, waits)
        else:
            await self._carry_roots(run, plan, progress, waits)
        return await self._ended(run, waits)

    def cancel(self, run_id: str) -> None:
        """Begin no further root of a run; what is committed stays, what runs goes on to its end."""
        self._stopping[run_id] = PipelineRunStatus.CANCELLED

    def interrupt(self, run_id: str) -> None:
        """The same, for the run to be carried on later."""
        self._stopping[run_id] = PipelineRunStatus.INTERRUPTED

    # --- units ----------------------------------------------------------------------------------

    async def _carry_roots(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        progress: Callable[[Progress], None],
        waits: list[str],
    ) -> None:
        room = asyncio.Semaphore(
            min(plan.definition.max_concurrency or self._max_concurrency, self._max_concurrency)
        )

        async def carry_one(item: InputRecord) -> None:
            try:
                if run.run_id not in self._stopping:
                    await self._carry_unit(run, plan, (item,), progress)
            except UnitWaits as waiting:
                waits.append(f"row {item.place}: {waiting.reason}")
            except (StoreUnavailable, StaleRevision):
                # Its turn is over; what is durable of it is where it goes on. The others go on meanwhile.
                waits.append(f"row {item.place}: its turn was lost")
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            async for item in self._left(run.run_id):
                # Before the task, so that no more tasks than that are ever made.
                await room.acquire()
                tasks.create_task(carry_one(item))

    async def _carry_whole(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        progress: Callable[[Progress], None],
        waits: list[str],
    ) -> None:
        items = tuple([item async for item in self._left(run.run_id)])
        if items and run.run_id not in self._stopping:
            try:
                await self._carry_unit(run, plan, items, progress)
            except UnitWaits as waiting:
                waits.append(waiting.reason)
            except (StoreUnavailable, StaleRevision):
                waits.append("its turn was lost")

    async def _left(self, run_id: str) -> AsyncIterator[InputRecord]:
        place = -1
        while run_id not in self._stopping:
            page = await self._store.list_inputs(run_id, place, _PAGE, _LEFT)
            for item in page:
                yield item
            if len(page) < _PAGE:
                return
            place = page[-1].place

    async def _carry_unit(
        self,
        run: PipelineRunRecord,
        plan: Plan,
        items: tuple[InputRecord, ...],
        progress: Callable[[Progress], None],
    ) -> None:
        transaction_id = items[0].transaction_id or await self._begun(run, items)
        running = tuple(
            changed(item, {"state": InputState.RUNNING, "transaction_id": transaction_id}) for item in items
        )
        unit = Unit(run.run_id, run.pipeline, running, transaction_id)
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
            ).carry_out()
        if ended.state is InputState.FAILED:
            failed = {"state": InputState.FAILED, "reason": ended.reason[:500]}
            await self._store.write(None, [changed(item, failed) for item in running])
        progress(Progress(run.run_id, items[0].place, transaction_id, ended))

    async def _begun(self, run: PipelineRunRecord, items: Sequence[InputRecord]) -> str:
        request = BeginRequest(_AGENT, run.principal, run_id=run.run_id, idle_timeout_us=0)
        answer = await self._coordinator.begin_run(
            request,
            lambda transaction_id: self._store.rows(
                [
                    changed(item, {"state": InputState.RUNNING, "transaction_id": transaction_id})
                    for item in items
                ]
            ),
        )
        return answer.transaction_id

    # --- the end --------------------------------------------------------------------------------

    async def _ended(self, run: PipelineRunRecord, waits: Sequence[str]) -> PipelineRunRecord:
        counts: dict[str, ActionCounts] = {}
        states = dict.fromkeys(InputState, 0)
        reasons: list[str] = []
        place = -1
        while page := await self._store.list_inputs(run.run_id, place, _PAGE, _ALL):
            for item in page:
                states[item.state] += 1
                counts = added(counts, item.counts)
                if item.reason and len(reasons) < 5:
                    reasons.append(f"row {item.place}: {item.reason}")
            place = page[-1].place
        left = states[InputState.PENDING] + states[InputState.RUNNING]
        status = status_of_run(
            counts.values(), committed=states[InputState.COMMITTED], rolled_back=states[InputState.FAILED]
        )
        if left:
            status = self._stopping.pop(run.run_id, PipelineRunStatus.INTERRUPTED)
        self._stopping.pop(run.run_id, None)
        ended = changed(
            run,
            {
                "status": status,
                "updated_at": self._clock.now(),
                "reason": "; ".join([*waits[:5], *reasons])[:2000],
                "counts": tuple(counts.values()),
            },
        )
        await self._store.write(ended, ())
        return ended


def plan_of(definition: PipelineDefinition) -> Plan:
    """Check a definition whole, and compile it. Raises InvalidRequest with every violation."""
    errors = [item for item in check_pipeline(definition) if not item.is_warning]
    if errors:
        raise InvalidRequest(tuple(FieldViolation(item.where, item.message) for item in errors))
    plan = Plan(definition)
    if plan.barriers and definition.transaction is not TransactionScope.WHOLE:
        names = ", ".join(sorted(plan.barriers))
        problem = (
            f"{names}: FILE and reduce by a field need the records of several roots; say transaction: whole"
        )
        raise InvalidRequest((FieldViolation("transaction", problem),))
    return plan


async def _each(rows: AsyncIterator[Row] | Iterable[Row]) -> AsyncIterator[Row]:
    if isinstance(rows, AsyncIterator):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
