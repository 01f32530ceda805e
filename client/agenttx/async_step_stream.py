"""Many steps over one stream, for the asynchronous client."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from agenttx.async_connection import AsyncConnection
from agenttx.errors import AgentTxError, DeadlineExceeded, RpcError, Unavailable
from agenttx.methods import EXECUTE_STEPS
from agenttx.records import StepOutcome
from agenttx.references import Reference, parse_path
from agenttx.step import Step
from agenttx.step_pipeline import PendingStep, StepPipeline
from agenttx.transaction_cursor import TransactionCursor
from agenttx.v1 import transaction_pb2 as pb

__all__ = ["AsyncStepStream", "AsyncSubmittedStep"]


class AsyncSubmittedStep:
    """A step sent ahead. Given as an argument of a later step it stands for its output."""

    def __init__(self, stream: AsyncStepStream, pending: PendingStep) -> None:
        self._stream = stream
        self._pending = pending

    @property
    def step_id(self) -> int:
        """The position it was sent for."""
        return self._pending.step_id

    def ref(self, *path: str | int) -> Reference:
        """Return a reference to a value in its output; see `StepOutcome.ref`."""
        return Reference(self.step_id, parse_path(*path))

    async def result(self) -> StepOutcome:
        """Wait for the outcome.

        Raises:
            StepSkipped: it never ran, because a step before it didn't succeed.
            AgentTxError: whatever `AsyncTransaction.step` raises.
        """
        await self._stream.read_until_answered(self._pending)
        return self._pending.taken()


class AsyncStepStream:
    """A block in which a transaction's steps go over one stream; made by `AsyncTransaction.stream`.

    Lost connections are mended: what wasn't answered is sent again under the same request_ids. Tasks may share the
    stream; the transaction's other calls wait until its block ends, and are refused inside it (`StreamOpen`).

    Example:
        async with tx.stream() as steps:
            for key, value in pairs:
                await steps.submit("kv.put", key=key, value=value)
    """

    def __init__(self, connection: AsyncConnection, cursor: TransactionCursor, turn: asyncio.Lock) -> None:
        self._connection = connection
        self._cursor = cursor
        self._turn = turn
        self._pipeline = StepPipeline(cursor)
        self._using = asyncio.Lock()
        self._call: Any = None

    async def step(
        self,
        tool: str,
        /,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        **arguments: Any,
    ) -> StepOutcome:
        """Run a tool as the next step and wait for it: as `AsyncTransaction.step`."""
        submitted = await self.submit_step(Step(tool, arguments, raw_context, step_timeout))
        return await submitted.result()

    async def submit(
        self,
        tool: str,
        /,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        **arguments: Any,
    ) -> AsyncSubmittedStep:
        """Send a step without waiting for those before it; it runs only if they all succeed.

        Its `result()` waits. A failure that nobody asked for is raised at the end of the block.
        """
        return await self.submit_step(Step(tool, arguments, raw_context, step_timeout))

    async def submit_step(self, step: Step) -> AsyncSubmittedStep:
        """Send a prepared step without waiting."""
        async with self._using:
            while self._pipeline.is_full:
                await self._read_one()
            pending = self._pipeline.add(step)
            try:
                if self._call is None:
                    await self._open()
                else:
                    await self._call.write(pending.request())
            except (RpcError, grpc.RpcError, asyncio.InvalidStateError):
                await self._hang_up()  # Reading notices, and sends again what is unanswered.
        return AsyncSubmittedStep(self, pending)

    async def read_until_answered(self, pending: PendingStep) -> None:
        """Read answers until this step has its own."""
        async with self._using:
            while not pending.answered:
                await self._read_one()

    async def _read_one(self) -> None:
        """Read the answer to the oldest step, over as many streams as it takes."""
        extra_seconds = self._pipeline.unanswered[0].sent.extra_seconds
        schedule = self._connection.retry.begin(extra_seconds=extra_seconds)
        while True:
            error: RpcError | None
            give_up = self._pipeline.refuse
            try:
                error = self._pipeline.take(await self._receive(schedule.next_attempt()))
                if error is None:
                    return
            except RpcError as failure:
                error, give_up = failure, self._pipeline.lose
            except AgentTxError as failure:
                self._pipeline.lose(failure)
                raise
            await self._hang_up()
            wait = schedule.wait_after(error)
            if wait is None:
                give_up(error)
                return
            await self._connection.retry.async_sleep(wait)

    async def __aenter__(self) -> Self:
        self._cursor.refuse_inside_stream()
        await self._turn.acquire()
        try:
            await self._connection.perform(self._cursor.open())
            self._cursor.require_settled()
        except BaseException:
            self._turn.release()
            raise
        self._cursor.enter_stream()
        return self

    async def __aexit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                while self._pipeline.unanswered:
                    await self._read_one()
                if self._call is not None:
                    await self._call.done_writing()
                    self._call = None
        finally:
            await self._hang_up()
            self._cursor.leave_stream()
            self._turn.release()
        if error is None:
            self._pipeline.raise_unseen()

    async def _receive(self, timeout: float) -> pb.ExecuteStepsResponse:
        """Return the next answer, on a new stream if there is none."""
        try:
            async with asyncio.timeout(timeout):
                if self._call is None:
                    await self._open()
                with self._connection.translating():
                    message = await self._call.read()
        except TimeoutError:
            raise DeadlineExceeded(
                "no answer within the attempt's time", code=grpc.StatusCode.DEADLINE_EXCEEDED
            ) from None
        if message is grpc.aio.EOF:
            raise Unavailable("the server ended the stream early", code=grpc.StatusCode.UNAVAILABLE)
        answer: pb.ExecuteStepsResponse = message
        return answer

    async def _open(self) -> None:
        """Open a stream and send on it what is unanswered."""
        self._call = await self._connection.duplex(EXECUTE_STEPS)
        try:
            for pending in self._pipeline.unanswered:
                await self._call.write(pending.request())
        except asyncio.InvalidStateError:
            pass  # The call has ended; reading says why.
        except grpc.RpcError as failure:
            # grpc.aio makes any failed write INTERNAL and forgets the status that the call would have ended with.
            raise Unavailable(
                "the stream broke while steps were sent", code=grpc.StatusCode.UNAVAILABLE
            ) from failure

    async def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
