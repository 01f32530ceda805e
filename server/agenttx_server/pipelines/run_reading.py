"""How far runs are. A principal sees its own."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.errors import FieldViolation, InvalidRequest
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.visibility import sees
from agenttx_server.pipelines.lineage_reading import no_run
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import InputState, PipelineRunRecord, PipelineRunStatus

__all__ = ["PipelineRunReading", "RunListing", "RunView"]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, and how many of its rows stand how."""

    run: PipelineRunRecord
    cancel_requested: bool
    committed: int
    failed: int
    running: int


@dataclass(frozen=True, slots=True)
class RunListing:
    """A page of runs."""

    runs: Sequence[RunView]
    next_cursor: str


class PipelineRunReading:
    """Reads runs."""

    def __init__(self, store: PipelineStore) -> None:
        self._store = store

    async def record(self, principal: str, run_id: str) -> PipelineRunRecord:
        """Find a run. Raises NotFound, for another's too."""
        run = await self._store.load_run(run_id)
        if run is None or not sees(principal, run.principal):
            raise no_run(run_id)
        return run

    async def view(self, run: PipelineRunRecord) -> RunView:
        """Count the rows of a run. Those of one that has ended were counted then."""
        is_cancelled = bool(await self._store.stops_of([run.run_id]))
        if run.status.is_final:
            return RunView(run, is_cancelled, run.committed, run.failed, 0)
        states = await self._store.count_inputs(run.run_id)
        return RunView(
            run,
            is_cancelled,
            states[InputState.COMMITTED],
            states[InputState.FAILED],
            states[InputState.RUNNING],
        )

    async def list(
        self,
        principal: str,
        pipeline: str,
        statuses: frozenset[PipelineRunStatus],
        cursor: str,
        limit: int,
    ) -> tuple[RunListing, int]:
        """A page of runs, and how many it had before those with other statuses were left out."""
        try:
            page = await self._store.list_runs(principal, pipeline, cursor, limit)
        except ValueError:
            violation = FieldViolation("page_token", "was not given out for this list")
            raise InvalidRequest((violation,)) from None
        wanted = [run for run in page.runs if not statuses or run.status in statuses]
        return RunListing([await self.view(run) for run in wanted], page.next_cursor), len(page.runs)
