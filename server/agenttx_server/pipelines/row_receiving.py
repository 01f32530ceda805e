"""Receiving the rows of a run: a run that exists has all of them. Memory holds a page of rows, and 16 bytes a row."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from agenttx_server.engine.errors import LimitExceeded, RequestIdReused, Unavailable
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import Clock, IdSource, StoreUnavailable
from agenttx_server.lineage.definition import PipelineDefinition, TransactionScope
from agenttx_server.lineage.document import to_document
from agenttx_server.lineage.limits import MAX_ROWS, MAX_ROWS_TOGETHER
from agenttx_server.pipelines.checking import check_can_run, version_of
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import InputRecord, InputState, PipelineRunRecord, PipelineRunStatus

__all__ = ["Row", "RowReceiving"]

_LOGGER = logging.getLogger(__name__)
_PAGE: Final = 256
_NAMESPACE: Final = uuid.UUID("4f0f3a1c-8a55-5a3e-9d5b-6f0c4a1f7b21")


@dataclass(frozen=True, slots=True)
class Row:
    """A row to ingest: a JSON object; ``relative_path`` is the input file that it is of, for FILE actions."""

    value: Mapping[str, Any]
    relative_path: str = ""


class RowReceiving:
    """Receives runs. ``now_receiving`` are those whose rows are coming in; ``check_stored`` refuses them for an owner."""

    def __init__(
        self, store: PipelineStore, clock: Clock, ids: IdSource, check_stored: Callable[[str], None]
    ) -> None:
        self._check_stored = check_stored
        self._store = store
        self._clock = clock
        self._ids = ids
        self._tasks = OwnedTasks()
        self.now_receiving: set[str] = set()

    async def receive(
        self,
        server_id: str,
        principal: str,
        definition: PipelineDefinition,
        rows: AsyncIterator[Row] | Iterable[Row],
        request_id: str,
    ) -> PipelineRunRecord:
        """Check a pipeline and make a run of rows durable; nothing is called yet. A run that exists has all its rows.

        The same request_id again gives the same run, and its rows are not read.

        Raises:
            InvalidRequest: the pipeline is not sound, with every violation; or it needs what is not served yet.
            RequestIdReused: the request_id was another pipeline's.
            Unavailable: the run is being received.
            LimitExceeded: there are too many rows, or their owner may store no more.
        """
        # Off the loop: a pipeline of many guards takes long enough to be noticed by everybody.
        await asyncio.to_thread(check_can_run, definition)
        text = canonical(to_document(definition))
        run_id = self._ids.new_id()
        if request_id:
            run_id = str(uuid.uuid5(_NAMESPACE, f"{len(principal)}:{principal}{request_id}"))
        if not await self._store.begin_receiving(run_id, server_id):
            return await self._received_before(run_id, request_id, text)
        self.now_receiving.add(run_id)
        try:
            try:
                self._check_stored(principal)
                run, page = await self._received(run_id, principal, definition, text, rows)
            except BaseException:
                # Also where the caller is gone. What a crash leaves is found by who takes over.
                await self._tasks.run(self._discard(run_id))
                raise
            # From here on it may be there, whatever becomes of the caller.
            await self._tasks.run(self._store_write(run, page))
            return run
        finally:
            self.now_receiving.discard(run_id)

    async def _store_write(self, run: PipelineRunRecord, page: Sequence[InputRecord]) -> None:
        await self._store.write(run, page)

    async def _received_before(self, run_id: str, request_id: str, text: str) -> PipelineRunRecord:
        run = await self._store.load_run(run_id)
        if run is None:
            raise Unavailable("the rows of this run are being received", reason="STARTING")
        if run.definition != text:
            raise RequestIdReused(request_id, f"pipeline {run.pipeline}", "another definition")
        return run

    async def _received(
        self,
        run_id: str,
        principal: str,
        definition: PipelineDefinition,
        document: str,
        rows: AsyncIterator[Row] | Iterable[Row],
    ) -> tuple[PipelineRunRecord, list[InputRecord]]:
        """Write all rows but the last page of them, which comes with the run."""
        is_whole = definition.transaction is TransactionScope.WHOLE
        most = MAX_ROWS_TOGETHER if is_whole else MAX_ROWS
        count = 0
        seen: dict[bytes, int] = {}
        page: list[InputRecord] = []
        async for row in _each(rows):
            if count >= most:
                raise LimitExceeded(
                    f"a run {'in one transaction ' if is_whole else ''}takes {most:,} rows",
                    reason="SIZE_LIMIT_EXCEEDED",
                    metadata={"limit": "rows"},
                )
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
            document,
            version=version_of(document),
        )
        return run, page

    async def _discard(self, run_id: str) -> None:
        try:
            await self._store.discard(run_id)
        except StoreUnavailable as error:
            _LOGGER.warning("the rows of a run that was not received could not be taken away: %s", error)


async def _each(rows: AsyncIterator[Row] | Iterable[Row]) -> AsyncIterator[Row]:
    if isinstance(rows, AsyncIterator):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
