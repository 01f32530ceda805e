"""Pipelines on the asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc.aio

from agenttx import pipeline_operations as operations
from agenttx.async_connection import AsyncConnection
from agenttx.errors import RpcError
from agenttx.methods import RESUME_PIPELINE_RUN, RUN_PIPELINE
from agenttx.pipeline_records import (
    PipelineRow,
    PipelineRowEnded,
    PipelineRun,
    PipelineRunStatus,
    PipelineSource,
    PipelineValidation,
    PipelineVersion,
    RegisteredPipeline,
)

__all__ = ["AsyncPipelines"]


class AsyncPipelines:
    """The pipelines of a server and their runs: `client.pipelines`.

    Where a definition is asked for, it is YAML or JSON text, or the value of such a text.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def validate(
        self, definition: Mapping[str, Any] | str, *, default_name: str = ""
    ) -> PipelineValidation:
        """Have a pipeline checked, without keeping it; say everything that is wrong with it.

        Args:
            definition: The pipeline.
            default_name: Its name where it has none.
        """
        return await self._connection.perform(operations.validate_pipeline(definition, default_name))

    async def register(
        self, definition: Mapping[str, Any] | str, *, default_name: str = ""
    ) -> RegisteredPipeline:
        """Have a pipeline checked and kept. Content that was registered before is the same version.

        Args:
            definition: The pipeline.
            default_name: Its name where it has none.

        Raises:
            InvalidArgument: it isn't sound; `violations` has everything that is wrong.
        """
        return await self._connection.perform(operations.register_pipeline(definition, default_name))

    async def get(self, name: str, version: str = "") -> PipelineSource:
        """Read a registered version with its document.

        Args:
            name: The pipeline.
            version: The whole version; empty for the newest.

        Raises:
            NotFound: there is none.
        """
        return await self._connection.perform(operations.get_pipeline(name, version))

    async def list(self, name: str = "", *, page_size: int = 0) -> AsyncIterator[PipelineVersion]:
        """Iterate over pipelines by name, each in its newest version; or over the versions of one, the newest first.

        Args:
            name: The pipeline; empty for all.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        token = ""
        while True:
            page = await self._connection.perform(
                operations.list_pipelines(token, name=name, page_size=page_size)
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    # --- runs -------------------------------------------------------------------------------------

    async def run(
        self,
        pipeline: Mapping[str, Any] | str,
        rows: Iterable[Mapping[str, Any] | PipelineRow],
        *,
        version: str = "",
        request_id: str = "",
        default_name: str = "",
    ) -> PipelineRun:
        """Run a pipeline over rows to its end, and return how it stands then.

        Rows are sent as they are iterated over. A connection that is lost while rows are sent is mended where they are a
        sequence, which can be sent again; one that is lost later always. A caller that stops waiting stops nothing.

        Args:
            pipeline: The name of a registered one; or a definition: a value, or text of several lines, or in braces.
            rows: JSON objects, or `PipelineRow` where they are of input files.
            version: Of a registered one, the whole version; empty for the newest.
            request_id: The same id again is the same run; empty for a new one.
            default_name: The name of a definition that has none.

        Raises:
            NotFound: there is no such pipeline.
            InvalidArgument: the definition or a row isn't sound; `violations` has everything that is wrong.
            RequestIdReused: the request_id was another pipeline's.
        """
        last: PipelineRun | None = None
        async for item in self.stream(
            pipeline, rows, version=version, request_id=request_id, default_name=default_name
        ):
            if isinstance(item, PipelineRun):
                last = item
        assert last is not None, "the server told of no run"
        return last

    async def stream(
        self,
        pipeline: Mapping[str, Any] | str,
        rows: Iterable[Mapping[str, Any] | PipelineRow],
        *,
        version: str = "",
        request_id: str = "",
        default_name: str = "",
    ) -> AsyncIterator[PipelineRun | PipelineRowEnded]:
        """Run a pipeline as `run` does, and iterate over what happens: the run, each row that has ended, the run at its end.

        Leaving the loop stops nothing. Rows that ended while the connection was lost, or the reader was slow, are missed.

        Args:
            pipeline: As for `run`.
            rows: As for `run`.
            version: As for `run`.
            request_id: As for `run`.
            default_name: As for `run`.

        Raises:
            NotFound: there is no such pipeline.
            InvalidArgument: the definition or a row isn't sound; `violations` has everything that is wrong.
            RequestIdReused: the request_id was another pipeline's.
        """
        sending = operations.RunSending(pipeline, rows, version, request_id, default_name)
        cursor = operations.RunCursor(self._connection.retry)
        async for item in self._sent(sending, cursor):
            yield item
        if not cursor.has_ended:
            async for item in self._followed(cursor):
                yield item

    async def start(
        self,
        pipeline: Mapping[str, Any] | str,
        rows: Iterable[Mapping[str, Any] | PipelineRow],
        *,
        version: str = "",
        request_id: str = "",
        default_name: str = "",
    ) -> PipelineRun:
        """Start a run as `run` does, and return once its rows are durable: from then on it goes on by itself.

        Args:
            pipeline: As for `run`.
            rows: As for `run`.
            version: As for `run`.
            request_id: As for `run`.
            default_name: As for `run`.

        Raises:
            NotFound: there is no such pipeline.
            InvalidArgument: the definition or a row isn't sound; `violations` has everything that is wrong.
            RequestIdReused: the request_id was another pipeline's.
        """
        sending = operations.RunSending(pipeline, rows, version, request_id, default_name, detach=True)
        cursor = operations.RunCursor(self._connection.retry)
        async for item in self._sent(sending, cursor):
            if isinstance(item, PipelineRun):
                return item
        raise AssertionError("the server told of no run")

    async def follow(self, run_id: str) -> AsyncIterator[PipelineRun | PipelineRowEnded]:
        """Go on with an interrupted run, or follow one that is under way; iterate over what happens as `stream` does.

        Args:
            run_id: The run.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it has ended.
        """
        async for item in self._followed(operations.RunCursor(self._connection.retry, run_id)):
            yield item

    async def get_run(self, run_id: str) -> PipelineRun:
        """Read how far a run is.

        Args:
            run_id: The run.

        Raises:
            NotFound: there is none.
        """
        return await self._connection.perform(operations.get_run(run_id))

    async def runs(
        self,
        *,
        pipeline: str = "",
        statuses: Iterable[PipelineRunStatus | str] = (),
        page_size: int = 0,
    ) -> AsyncIterator[PipelineRun]:
        """Iterate over runs, the newest first.

        Args:
            pipeline: Of this pipeline; empty for all.
            statuses: With these statuses; empty for all.
            page_size: Entries a page, 1 to 1000; 0 for the server's default. Changes no result.
        """
        wanted = tuple(statuses)
        token = ""
        while True:
            page = await self._connection.perform(
                operations.list_runs(token, pipeline=pipeline, statuses=wanted, page_size=page_size)
            )
            for entry in page.entries:
                yield entry
            token = page.next_page_token
            if not token:
                return

    async def cancel(self, run_id: str, reason: str = "") -> PipelineRun:
        """Have a run begin no further row. Rows under way go on to their end, committed ones stay.

        Args:
            run_id: The run.
            reason: Why, for the record.

        Raises:
            NotFound: there is none.
            PreconditionFailed: it has ended.
        """
        return await self._connection.perform(operations.cancel_run(run_id, reason))

    async def _sent(
        self, sending: operations.RunSending, cursor: operations.RunCursor
    ) -> AsyncIterator[PipelineRun | PipelineRowEnded]:
        """Send a run; return early, with the run known, where the stream is lost behind its first answer."""
        while True:
            cursor.opening()
            call = await self._connection.duplex(RUN_PIPELINE)
            try:
                with self._connection.translating():
                    await _write(call, sending)
                while True:
                    with self._connection.translating():
                        answer = await call.read()
                    if answer is grpc.aio.EOF:
                        return
                    if (item := cursor.take(answer.progress)) is not None:
                        yield item
            except RpcError as error:
                wait = cursor.wait_after(error)
                if wait is None or not (cursor.run_id or sending.can_repeat):
                    raise
            finally:
                call.cancel()
            if cursor.run_id:
                return
            await self._connection.retry.async_sleep(wait)

    async def _followed(self, cursor: operations.RunCursor) -> AsyncIterator[PipelineRun | PipelineRowEnded]:
        while not cursor.has_ended:
            try:
                async for answer in self._connection.stream(RESUME_PIPELINE_RUN, cursor.resuming()):
                    if (item := cursor.take(answer.progress)) is not None:
                        yield item
            except RpcError as error:
                if cursor.was_over(error):
                    yield await self.get_run(cursor.run_id)
                    return
                wait = cursor.wait_after(error)
                if wait is None:
                    raise
                await self._connection.retry.async_sleep(wait)
            else:
                return


async def _write(call: Any, sending: operations.RunSending) -> None:
    """Send a run's messages. A stream that the server ended meanwhile is read next, which says why it did."""
    try:
        for message in sending.requests():
            await call.write(message)
        await call.done_writing()
    except asyncio.InvalidStateError:
        pass
