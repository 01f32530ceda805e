"""The life of a server's pipeline runs: recovered when it starts and while it serves, followed, stopped, and drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Final

from agenttx_server.engine.errors import NotFound, PreconditionFailed, Unavailable
from agenttx_server.engine.frozen import changed
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import Clock, StaleRevision, StoredValueDamaged, StoreUnavailable
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.progress import Progress
from agenttx_server.pipelines.records import PipelineRunRecord, PipelineRunStatus, StopRecord
from agenttx_server.pipelines.run_coordinator import PipelineRuns, has_ended
from agenttx_server.pipelines.run_reading import PipelineRunReading
from agenttx_server.pipelines.stored_progress import StoredProgress

__all__ = ["PipelineLife"]

_LOGGER = logging.getLogger(__name__)
_RUNS_AT_ONCE: Final = 16
"""Runs that a server carries side by side; others wait, and go on in the order in which they came."""
_CLAIMED_AT_ONCE: Final = 64
_LOOK_EVERY_SECONDS: Final = 0.5
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 15.0
_SECONDS_BETWEEN_PURGES: Final = 0.02
"""So that steps never wait behind a row of batches."""


class PipelineLife:
    """Looks after the runs of one server.

    ``is_shared``: other servers may serve the same database. ``retention_seconds``: how long runs that have ended are
    kept, with their records; 0: for ever.
    """

    def __init__(
        self,
        runs: PipelineRuns,
        store: PipelineStore,
        clock: Clock,
        *,
        is_shared: bool,
        retention_seconds: float = 0.0,
    ) -> None:
        self.runs = runs
        self._reading = PipelineRunReading(store)
        self._store = store
        self._clock = clock
        self._is_shared = is_shared
        self._retention_seconds = retention_seconds
        self._tasks = OwnedTasks()
        self._room = asyncio.Semaphore(_RUNS_AT_ONCE)
        self._here: set[str] = set()
        self._is_draining = False
        self._background: list[asyncio.Task[None]] = []

    async def start(self, recover_every_seconds: float) -> None:
        """Go on with what dead servers left behind, and keep looking for more. Raises StoreUnavailable."""
        await self._recover()
        work: list[Coroutine[None, None, None]] = [self._watch(recover_every_seconds)]
        if self._is_shared:
            work.append(self._follow_stops())
        self._background += [asyncio.get_running_loop().create_task(item) for item in work]

    async def stop(self) -> None:
        """End the work in the background; after the drain. What is still carried then is let go of."""
        self.begin_drain()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def begin_drain(self) -> None:
        """Begin no further row: another server, or the next start, goes on."""
        self._is_draining = True
        self.runs.begin_drain()

    async def drain(self, timeout_seconds: float) -> int:
        """Wait for rows under way; return how many runs are left when time is up."""
        return await self._tasks.wait_all(timeout_seconds)

    # --- what is asked of runs --------------------------------------------------------------------

    def go_on(self, run_id: str) -> None:
        """Have a run that this server took carried to its end, whoever waits for it."""
        if run_id not in self._here and not self._is_draining:
            self._here.add(run_id)
            self._tasks.spawn(self._carry(run_id))

    async def resume(self, principal: str, run_id: str) -> None:
        """Go on with a run that is interrupted; one that is under way stays so.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it has ended.
        """
        run = await self._reading.record(principal, run_id)
        if run.status.is_final:
            raise has_ended(run)
        await self._take_up(run)

    async def cancel(self, principal: str, run_id: str, reason: str) -> PipelineRunRecord:
        """Have a run begin no further row; durable when this returns. Raises as resume does."""
        run = await self._reading.record(principal, run_id)
        if run.status.is_final:
            raise has_ended(run)
        await self._store.request_stop(StopRecord(run_id, reason, self._clock.now()))
        self.runs.cancel(run_id)
        if run.status is PipelineRunStatus.INTERRUPTED:
            await self._take_up(run)  # which ends it, unless what it waits for is not settled
        return await self._reading.record(principal, run_id)

    async def follow(self, principal: str, run_id: str) -> AsyncGenerator[PipelineRunRecord | Progress, None]:
        """Yield the run, each row that ends from now on, and the run as it stands when nothing goes on any more.

        Of a run that another server carries this is read from the database now and then.
        """
        with self.runs.watches.watching(run_id) as watch:
            run = await self._reading.record(principal, run_id)
            stored = await self._progress_elsewhere(run_id, None)
            yield run
            while run.status is PipelineRunStatus.RUNNING:
                stored = await self._progress_elsewhere(run_id, stored)
                while (progress := watch.take()) is not None:
                    yield progress
                await watch.wait(_LOOK_EVERY_SECONDS)
                if run_id not in self.runs.carried:
                    run = await self._reading.record(principal, run_id)
                    if stored is not None:
                        async for progress in stored.news():
                            yield progress
            while (progress := watch.take()) is not None:
                yield progress
            yield run

    async def _progress_elsewhere(self, run_id: str, known: StoredProgress | None) -> StoredProgress | None:
        """What tells of the rows of a run that is not carried here; None of one that is, whose carrier tells itself."""
        if run_id in self.runs.carried or not self._is_shared:
            return None
        if known is None:
            known = StoredProgress(self._store, run_id)
            await known.begin()
        return known

    # --- work in the background -------------------------------------------------------------------

    async def _take_up(self, run: PipelineRunRecord) -> None:
        if run.run_id in self._here or self._is_draining:
            return
        owner = self.runs.server_id
        if not await self._store.take(run.run_id, owner, self._clock.now()):
            return
        if run.status is PipelineRunStatus.INTERRUPTED:
            running = {"status": PipelineRunStatus.RUNNING, "reason": "", "updated_at": self._clock.now()}
            if not await self._store.save(changed(run, running), owner, release=False):
                return
        self.go_on(run.run_id)

    async def _carry(self, run_id: str) -> None:
        pause = _FIRST_PAUSE_SECONDS
        try:
            async with self._room:
                while not self._is_draining:
                    try:
                        await self.runs.carry(run_id)
                        return
                    except (NotFound, PreconditionFailed):
                        return  # it has ended, or another server carries it
                    except (StoreUnavailable, StaleRevision, Unavailable) as error:
                        _LOGGER.warning("run=%s stopped, and is taken up again: %s", run_id, error)
                    except Exception:
                        _LOGGER.exception("run=%s failed", run_id)
                        return
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            self._here.discard(run_id)
            self.runs.watches.tell(run_id)

    async def _watch(self, every_seconds: float) -> None:
        while True:
            await self._clock.sleep(every_seconds)
            try:
                await self._recover()
                await self.purge_old()
            except (StoreUnavailable, StoredValueDamaged) as error:
                _LOGGER.warning("runs of servers that are gone could not be looked for: %s", error)

    async def purge_old(self) -> int:
        """Remove the runs whose retention is over, and what plain transactions kept; return how many batches there were."""
        if not self._retention_seconds:
            return 0
        before = self._clock.now() - int(self._retention_seconds * 1_000_000)
        batches = 0
        while not self._is_draining and await self._store.purge_old_run(before):
            batches += 1
            await self._clock.sleep(_SECONDS_BETWEEN_PURGES)
        while not self._is_draining and await self._store.lineage.purge_transaction(before):
            batches += 1
            await self._clock.sleep(_SECONDS_BETWEEN_PURGES)
        return batches

    async def _recover(self) -> None:
        """Take up runs of dead servers, and those of this one that nobody carries; what was not received whole is discarded."""
        if self._is_draining:
            return
        owner = self.runs.server_id
        while await self._store.claim_runs(owner, self._clock.now(), _CLAIMED_AT_ONCE):
            pass
        for run_id in await self._store.carried_by(owner):
            if run_id in self._here or run_id in self.runs.carried or run_id in self.runs.receiving:
                continue
            if await self._store.load_run(run_id) is None:
                await self._store.discard(run_id)
            else:
                _LOGGER.info("going on with run=%s", run_id)
                self.go_on(run_id)

    async def _follow_stops(self) -> None:
        while True:
            await self._clock.sleep(_LOOK_EVERY_SECONDS)
            if not self.runs.carried:
                continue
            try:
                for stop in await self._store.stops_of(list(self.runs.carried)):
                    self.runs.cancel(stop.run_id)
            except (StoreUnavailable, StoredValueDamaged) as error:
                _LOGGER.warning("what runs are asked for could not be read: %s", error)
