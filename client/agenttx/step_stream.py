"""Many steps over one stream, for the synchronous client."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import grpc

from agenttx.connection import Connection
from agenttx.errors import AgentTxError, DeadlineExceeded, RpcError, Unavailable
from agenttx.methods import EXECUTE_STEPS
from agenttx.records import StepOutcome
from agenttx.references import Reference, parse_path
from agenttx.step import Step
from agenttx.step_pipeline import PendingStep, StepPipeline
from agenttx.transaction_cursor import TransactionCursor
from agenttx.v1 import transaction_pb2 as pb

__all__ = ["StepStream", "SubmittedStep"]


class SubmittedStep:
    """A step sent ahead. Given as an argument of a later step it stands for its output."""

    def __init__(self, stream: StepStream, pending: PendingStep) -> None:
        self._stream = stream
        self._pending = pending

    @property
    def step_id(self) -> int:
        """The position it was sent for."""
        return self._pending.step_id

    def ref(self, *path: str | int) -> Reference:
        """Return a reference to a value in its output; see `StepOutcome.ref`."""
        return Reference(self.step_id, parse_path(*path))

    def result(self) -> StepOutcome:
        """Wait for the outcome.

        Raises:
            StepSkipped: it never ran, because a step before it didn't succeed.
            AgentTxError: whatever `Transaction.step` raises.
        """
        self._stream.read_until_answered(self._pending)
        return self._pending.taken()


class StepStream:
    """A block in which a transaction's steps go over one stream; made by `Transaction.stream`.

    Lost connections are mended: what wasn't answered is sent again under the same request_ids. Threads may share the
    stream; the transaction's other calls wait until its block ends, and are refused inside it (`StreamOpen`).

    Example:
        with tx.stream() as steps:
            for key, value in pairs:
                steps.submit("kv.put", key=key, value=value)
    """

    def __init__(self, connection: Connection, cursor: TransactionCursor, turn: threading.RLock) -> None:
        self._connection = connection
        self._cursor = cursor
        self._turn = turn
        self._pipeline = StepPipeline(cursor)
        self._call: Any = None
        self._outgoing: queue.SimpleQueue[pb.ExecuteStepsRequest | None] = queue.SimpleQueue()
        self._using = threading.Lock()
        self._watchdog = _Watchdog()

    def step(
        self,
        tool: str,
        /,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        **arguments: Any,
    ) -> StepOutcome:
        """Run a tool as the next step and wait for it: as `Transaction.step`."""
        return self.submit_step(Step(tool, arguments, raw_context, step_timeout)).result()

    def submit(
        self,
        tool: str,
        /,
        *,
        step_timeout: float | timedelta | None = None,
        raw_context: str = "",
        **arguments: Any,
    ) -> SubmittedStep:
        """Send a step without waiting for those before it; it runs only if they all succeed.

        Its `result()` waits. A failure that nobody asked for is raised at the end of the block.
        """
        return self.submit_step(Step(tool, arguments, raw_context, step_timeout))

    def submit_step(self, step: Step) -> SubmittedStep:
        """Send a prepared step without waiting."""
        with self._using:
            while self._pipeline.is_full:
                self._read_one()
            pending = self._pipeline.add(step)
            if self._call is None:
                self._open()
            else:
                self._outgoing.put(pending.request())
        return SubmittedStep(self, pending)

    def read_until_answered(self, pending: PendingStep) -> None:
        """Read answers until this step has its own."""
        with self._using:
            while not pending.answered:
                self._read_one()

    def _read_one(self) -> None:
        """Read the answer to the oldest step, over as many streams as it takes."""
        extra_seconds = self._pipeline.unanswered[0].sent.extra_seconds
        schedule = self._connection.retry.begin(extra_seconds=extra_seconds)
        while True:
            error: RpcError | None
            give_up = self._pipeline.refuse
            try:
                error = self._pipeline.take(self._receive(schedule.next_attempt()))
                if error is None:
                    return
            except RpcError as failure:
                error, give_up = failure, self._pipeline.lose
            except AgentTxError as failure:
                self._pipeline.lose(failure)
                raise
            self._hang_up()
            wait = schedule.wait_after(error)
            if wait is None:
                give_up(error)
                return
            self._connection.retry.sleep(wait)

    def __enter__(self) -> Self:
        self._cursor.refuse_inside_stream()
        self._turn.acquire()
        try:
            self._connection.perform(self._cursor.open())
            self._cursor.require_settled()
        except BaseException:
            self._turn.release()
            raise
        self._cursor.enter_stream()
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                while self._pipeline.unanswered:
                    self._read_one()
        finally:
            self._hang_up(politely=error is None)
            self._watchdog.stop()
            self._cursor.leave_stream()
            self._turn.release()
        if error is None:
            self._pipeline.raise_unseen()

    def _receive(self, timeout: float) -> pb.ExecuteStepsResponse:
        """Return the next answer, on a new stream if there is none."""
        if self._call is None:
            self._open()
        with self._watchdog.over(self._call, timeout):
            try:
                message: pb.ExecuteStepsResponse = next(self._call)
            except StopIteration:
                raise Unavailable(
                    "the server ended the stream early", code=grpc.StatusCode.UNAVAILABLE
                ) from None
            except grpc.RpcError as failure:
                if self._watchdog.fired:
                    raise DeadlineExceeded(
                        "no answer within the attempt's time", code=grpc.StatusCode.DEADLINE_EXCEEDED
                    ) from None
                raise self._connection.translated(failure) from None
        return message

    def _open(self) -> None:
        """Open a stream and send on it what is unanswered."""
        self._outgoing = queue.SimpleQueue()
        for pending in self._pipeline.unanswered:
            self._outgoing.put(pending.request())
        self._call = self._connection.duplex(EXECUTE_STEPS, iter(self._outgoing.get, None))

    def _hang_up(self, *, politely: bool = False) -> None:
        call, self._call = self._call, None
        self._outgoing.put(None)
        if call is not None and not politely:
            call.cancel()


class _Watchdog:
    """Cancels a stream whose answer is overdue.

    gRPC's deadline covers a stream as a whole, and a blocking read takes no timeout. One thread a stream, asleep but
    for an overdue answer, costs a read nothing; a timer a read would start a thread each.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._due = 0.0
        self._wakes_at = 0.0
        self._stopped = False
        self.fired = False

    @contextmanager
    def over(self, call: Any, timeout: float) -> Iterator[None]:
        """Cancel the call unless this block ends in time."""
        with self._changed:
            self.fired = False
            self._call, self._due = call, time.monotonic() + timeout
            if self._thread is None:
                self._wakes_at = self._due
                self._thread = threading.Thread(target=self._watch, name="agenttx-watchdog", daemon=True)
                self._thread.start()
            elif self._due < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._call = None

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                if self._call is not None and self._due <= now:
                    self.fired = True
                    self._call.cancel()
                    self._call = None
                self._wakes_at = self._due if self._due > now else now + 1.0
                self._changed.wait(self._wakes_at - now)
