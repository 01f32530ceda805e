"""How far a run is that another server carries: read from the rows, as that server writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.progress import Progress
from agenttx_server.pipelines.records import InputRecord, InputState
from agenttx_server.pipelines.unit_run import UnitEnded

__all__ = ["StoredProgress"]

_PAGE: Final = 256
_ENDED: Final = frozenset({InputState.COMMITTED, InputState.FAILED})
_ALL: Final = frozenset(InputState)


class StoredProgress:
    """Finds the rows of a run that have ended since it was asked before.

    Rows are begun in their order, some at a time, so those that have ended are all before one place but for a few: each look
    reads these few, and the rows behind the last one that had ended.
    """

    def __init__(self, store: PipelineStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._last = -1
        self._open: list[int] = []
        self._told_transaction = ""

    async def begin(self) -> None:
        """Tell only of what ends from now on. Raises StoreUnavailable."""
        states = await self._store.count_inputs(self._run_id)
        # As many have ended as that: what is under way stands around that place.
        self._last = max(-1, sum(states[state] for state in _ENDED) - _PAGE)
        async for _ in self.news():
            pass

    async def news(self) -> AsyncIterator[Progress]:
        """Yield the rows that have ended since. Raises StoreUnavailable."""
        for place in self._open.copy():
            (row,) = await self._store.list_inputs(self._run_id, place - 1, 1, _ALL) or (None,)
            if row is None or row.place != place or row.state in _ENDED:
                self._open.remove(place)
                if row is not None and (progress := self._progress(row)) is not None:
                    yield progress
        while True:
            page = await self._store.list_inputs(self._run_id, self._last, _PAGE, _ALL)
            ended = [number for number, row in enumerate(page) if row.state in _ENDED]
            if not ended:
                return
            for row in page[: ended[-1] + 1]:
                self._last = row.place
                if row.state not in _ENDED:
                    self._open.append(row.place)
                elif (progress := self._progress(row)) is not None:
                    yield progress

    def _progress(self, row: InputRecord) -> Progress | None:
        """What is told of a row; of rows in one transaction the first is."""
        if row.transaction_id and row.transaction_id == self._told_transaction:
            return None
        self._told_transaction = row.transaction_id
        ended = UnitEnded(row.state, row.reason, row.counts)
        return Progress(self._run_id, row.place, row.transaction_id, ended)
