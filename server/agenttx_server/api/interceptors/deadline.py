"""Bounds how long a unary call may take."""

from __future__ import annotations

import asyncio

from agenttx_server.api.interceptors.call import RpcCall

__all__ = ["Deadline"]


class Deadline:
    """Ends a unary call at the server's limit where the caller's own deadline is later or absent.

    An earlier deadline of the caller needs no timer here: gRPC cancels the handler itself. What
    the call began goes on either way. Streams live as long as their caller wants.
    """

    name = "deadline"

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds

    def enter(self, call: RpcCall) -> None:
        if call.method.is_stream:
            return
        remaining: float | None = call.context.time_remaining()
        if remaining is not None and remaining <= self._limit_seconds:
            return
        task = asyncio.current_task()
        if task is None:
            return

        def time_out() -> None:
            call.timed_out = True
            task.cancel()

        call.stop_timer = asyncio.get_running_loop().call_later(self._limit_seconds, time_out).cancel

    def leave(self, call: RpcCall) -> None:
        if call.stop_timer is not None:
            call.stop_timer()
            # The timer's context holds the call: a circle, which only the garbage collector would undo.
            call.stop_timer = None
        if call.timed_out and isinstance(call.error, asyncio.CancelledError):
            task = asyncio.current_task()
            # Somebody else may have cancelled the call too; then it stays cancelled.
            if task is None or task.uncancel() == 0:
                call.error = TimeoutError()
