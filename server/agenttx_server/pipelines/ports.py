"""What the runner asks of its store. Implemented by store/pipeline_store.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agenttx_server.engine.ports import ExtraRows
from agenttx_server.lineage.ports import RecordStore
from agenttx_server.pipelines.records import InputPage, InputRecord, InputState, PipelineRunRecord

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
