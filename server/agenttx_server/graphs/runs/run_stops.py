"""CancelRun and DrainRun: a word to whoever works on the run, here or on another server.

A run of another server finds the word in the database, where that server looks for it twice a second.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import Clock, ExtraRowsRefused, StoreUnavailable
from agenttx_server.graphs.runs.answered_requests import answered, key_of
from agenttx_server.graphs.runs.keyed_locks import KeyedLocks
from agenttx_server.graphs.runs.ports import RunChange, RunStore
from agenttx_server.graphs.runs.records import (
    LIVE,
    RequestRecord,
    RunRecord,
    RunStatus,
    StopKind,
    StopRequest,
)
from agenttx_server.graphs.runs.requests import RunRefused
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator

__all__ = ["RunStops"]

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY_SECONDS = 0.5
_LONGEST_GRACE_SECONDS = 2_592_000.0  # thirty days: timers don't take any number


class RunStops:
    """Stops runs under way. Raises RunRefused: RUN_NOT_FOUND, ILLEGAL_TRANSITION for one that isn't."""

    def __init__(self, runs: RunCoordinator, store: RunStore, clock: Clock) -> None:
        self._runs = runs
        self._store = store
        self._clock = clock
        self._graces = OwnedTasks()
        self._requests = KeyedLocks()

    async def cancel(self, run_id: str, reason: str, request: RequestRecord | None = None) -> RunRecord:
        """Have a run cancelled: nodes under way are stopped. Returns the run, cancelled or about to be.

        One that is cancelled stays so. The same ``request`` again stops nothing that was begun since.
        """

        async def stop() -> RunRecord:
            run = await self._live(run_id, RunStatus.CANCELLED)
            if run.status in LIVE:
                is_here = await self._runs.cancel(run_id, reason)
                await self._tell(run, StopKind.CANCEL, reason, request, is_here=is_here)
            return run

        return await self._once(run_id, request, stop)

    async def cancel_and_roll_back(
        self, run_id: str, reason: str, request: RequestRecord | None = None
    ) -> RunRecord:
        """Have a run cancelled, undo all that it did, and end its transaction; as RunCoordinator's."""

        async def stop() -> RunRecord:
            run = await self._runs.cancel_and_roll_back(run_id, reason)
            await self._keep(run, (), request)
            return run

        return await self._once(run_id, request, stop)

    async def drain(
        self, run_id: str, grace_us: int | None, request: RequestRecord | None = None
    ) -> RunRecord:
        """Have a run stop at its next boundary, or be cancelled if it hasn't after the grace. Returns it, draining.

        One that is drained stays so. The same ``request`` again stops nothing that was begun since.
        """

        async def stop() -> RunRecord:
            run = await self._live(run_id, RunStatus.DRAINED)
            if run.status not in LIVE:
                return run
            is_here = await self._drain_here(run_id, grace_us)
            grace = "" if grace_us is None else str(grace_us)
            await self._tell(run, StopKind.DRAIN, grace, request, is_here=is_here)
            return replace(run, status=RunStatus.DRAINING)

        return await self._once(run_id, request, stop)

    async def _once(
        self, run_id: str, request: RequestRecord | None, stop: Callable[[], Awaitable[RunRecord]]
    ) -> RunRecord:
        async with self._requests.hold(key_of(request)):
            if await answered(self._store, request) is None:
                try:
                    return await stop()
                except ExtraRowsRefused:
                    # Another server was sent the same, and answers it.
                    await answered(self._store, request)
            run = self._runs.run_here(run_id) or await self._store.load_run(run_id)
            if run is None:
                raise _no_run(run_id)
            return run

    async def follow(self) -> None:
        """Look for words to the runs under way here, until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_EVERY_SECONDS)
            if not self._runs.live_runs:
                continue
            try:
                await self.take(tuple(self._runs.live_runs))
            except StoreUnavailable as error:
                _LOGGER.warning("what runs are asked for could not be read: %s", error)

    async def take(self, run_ids: tuple[str, ...]) -> None:
        """Do what these runs are asked for. Raises StoreUnavailable."""
        done = []
        for word in await self._store.list_stops(run_ids):
            run = self._runs.run_here(word.run_id)
            if run is None or word.invocation > run.invocation:
                continue  # for whoever is at it, or when it is taken up here
            # One that is meant for an invocation that has ended is forgotten.
            if word.invocation == run.invocation:
                await self._act(word)
            done.append(word)
        if done:
            await self._store.forget_stops(done)

    async def _act(self, word: StopRequest) -> None:
        if word.kind is StopKind.CANCEL:
            await self._runs.cancel(word.run_id, word.reason)
        else:
            await self._drain_here(word.run_id, int(word.reason) if word.reason else None)

    async def _drain_here(self, run_id: str, grace_us: int | None) -> bool:
        is_here = await self._runs.drain(run_id)
        if is_here and grace_us is not None:
            self._graces.spawn(self._cancel_later(run_id, grace_us))
        return is_here

    async def _cancel_later(self, run_id: str, grace_us: int) -> None:
        draining = self._runs.run_here(run_id)
        await self._clock.sleep(min(grace_us / 1_000_000, _LONGEST_GRACE_SECONDS))
        run = self._runs.run_here(run_id)
        if run is not None and draining is not None and run.invocation == draining.invocation:
            await self._runs.cancel(run_id, "the grace of its drain is over")

    async def _live(self, run_id: str, over: RunStatus) -> RunRecord:
        """A run under way, or one that is what it was to become."""
        run = self._runs.run_here(run_id) or await self._store.load_run(run_id)
        if run is None:
            raise _no_run(run_id)
        if run.status not in LIVE and run.status is not over:
            status = run.status.value.lower()
            raise RunRefused(
                "ILLEGAL_TRANSITION",
                f"no invocation of run '{run_id}' is under way; it is {status}",
                {"run_id": run_id, "status": run.status.value},
            )
        return run

    async def _tell(
        self, run: RunRecord, kind: StopKind, reason: str, request: RequestRecord | None, *, is_here: bool
    ) -> None:
        """Leave the word for whoever is at the run, unless it has been done, and that it was asked for."""
        words = () if is_here else (StopRequest(run.run_id, kind, reason, run.invocation),)
        await self._keep(run, words, request)

    async def _keep(
        self, run: RunRecord, words: tuple[StopRequest, ...], request: RequestRecord | None
    ) -> None:
        """Write words, and what was answered, down. Raises ExtraRowsRefused also where the run's thread is gone."""
        requests = () if request is None else (replace(request, run_id=run.run_id),)
        threads = (run.thread_id,) if run.thread_id else ()
        if words or requests:
            await self._store.write(RunChange(stops=words, requests=requests, standing_threads=threads))


def _no_run(run_id: str) -> RunRefused:
    return RunRefused("RUN_NOT_FOUND", f"there is no run '{run_id}'", {"run_id": run_id})
