"""What the runner asks of its store. Implemented by store/pipeline_store.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agenttx_server.engine.ports import ExtraRows
from agenttx_server.lineage.ports import RecordStore
from agenttx_server.pipelines.records import (
    InputPage,
    InputRecord,
    InputState,
    PipelineRunPage,
    PipelineRunRecord,
    PipelineVersionPage,
    PipelineVersionRecord,
    StopRecord,
)

__all__ = ["PipelineStore"]


class PipelineStore(Protocol):
    """Runs and their rows. All raise StoreUnavailable."""

    @property
    def lineage(self) -> RecordStore:
        """The records in the same database."""
        ...

    def rows(self, inputs: Sequence[InputRecord]) -> Sequence[ExtraRows]:
        """Return changed rows of a run as what a write set carries."""
        ...

    async def write(self, run: PipelineRunRecord | None, inputs: Sequence[InputRecord]) -> None:
        """Write a run, or rows of it, by themselves: new ones and changed ones."""
        ...

    async def load_run(self, run_id: str) -> PipelineRunRecord | None:
        """Find a run."""
        ...

    async def list_inputs(
        self, run_id: str, after_place: int, limit: int, states: frozenset[InputState]
    ) -> Sequence[InputRecord]:
        """Rows behind a place, in order, that stand so."""
        ...

    async def page_inputs(self, run_id: str, cursor: str, limit: int) -> InputPage:
        """List the rows of a run, in order. Raises ValueError for a cursor that was not given out."""
        ...

    async def count_inputs(self, run_id: str) -> Mapping[InputState, int]:
        """How many rows of a run stand how."""
        ...

    async def list_runs(self, principal: str, pipeline: str, cursor: str, limit: int) -> PipelineRunPage:
        """List a principal's runs, the newest first, of one pipeline or of all. Raises ValueError as above."""
        ...

    # --- who carries a run --------------------------------------------------------------------------

    def begun(self, run_id: str, place: int, transaction_id: str) -> ExtraRows:
        """Return what makes a write set be refused (ExtraRowsRefused) where the row was begun before."""
        ...

    async def begin_receiving(self, run_id: str, server_id: str) -> bool:
        """Note that a server receives the rows of a run; False if the run is there, or is being received."""
        ...

    async def discard(self, run_id: str) -> None:
        """Take away the rows of a run that was not received whole."""
        ...

    async def take(self, run_id: str, server_id: str, now: int) -> bool:
        """Have a run carried by a server: one that nobody carries, a dead server, or this one. False: another does."""
        ...

    async def save(self, run: PipelineRunRecord, server_id: str, *, release: bool) -> bool:
        """Write a run that this server carries, and carry it no more; False, and nothing, if it does not."""
        ...

    async def claim_runs(self, server_id: str, now: int, limit: int) -> Sequence[str]:
        """Take over runs of dead servers; return their ids, those of runs that were not received whole too."""
        ...

    async def carried_by(self, server_id: str) -> Sequence[str]:
        """The runs that a server carries, or receives the rows of."""
        ...

    async def request_stop(self, stop: StopRecord) -> None:
        """Note that a run is to end early. The first word stays."""
        ...

    async def stops_of(self, run_ids: Sequence[str]) -> Sequence[StopRecord]:
        """Which of these runs are to end early."""
        ...

    async def purge_old_run(self, ended_before: int) -> bool:
        """Remove a batch of the oldest run that ended before then, with its records; False if there is none."""
        ...

    # --- registered pipelines -----------------------------------------------------------------------

    async def register(self, record: PipelineVersionRecord) -> tuple[PipelineVersionRecord, bool]:
        """Keep a version unless it is there; return it as it is kept, and whether it was there."""
        ...

    async def find_version(self, name: str, version: str) -> PipelineVersionRecord | None:
        """Find a version; the newest where none is named."""
        ...

    async def list_versions(self, name: str, cursor: str, limit: int, space: str = "") -> PipelineVersionPage:
        """List the versions of a pipeline, the newest first, or the newest of each, by name. Raises ValueError as above.

        Names of a space begin with it; in the empty one no name begins with ``@``.
        """
        ...
