"""Turns what was raised into what the caller is told."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import grpc
import grpc.aio
import structlog

from agenttx_server.api.error_status import code_of, is_our_fault, status_of
from agenttx_server.api.interceptors.call import RpcCall
from agenttx_server.engine.errors import Unavailable
from agenttx_server.engine.ports import StoreUnavailable

__all__ = ["ErrorMapping"]


class ErrorMapping:
    """Sets the call's status and code from its error; the chain aborts the call with it.

    A cancelled call has nobody to tell and keeps no status: the caller went away, its deadline
    passed, or the server is stopping. What an error of ours says goes to the log only, under an
    id that the caller is given. ``on_database_error`` hears of each call that the database did not serve.
    """

    name = "error_mapping"

    def __init__(self, on_database_error: Callable[[], None] = lambda: None) -> None:
        self._log = structlog.get_logger()
        self._on_database_error = on_database_error

    def enter(self, call: RpcCall) -> None:
        pass

    def leave(self, call: RpcCall) -> None:
        error = call.error
        if error is None:
            return
        if isinstance(error, asyncio.CancelledError | grpc.aio.InternalError):
            # InternalError: grpc could not send what a stream wrote, for its caller had just gone.
            remaining: float | None = call.context.time_remaining()
            expired = remaining is not None and remaining <= 0
            call.code = grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
        elif isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
            call.code = grpc.StatusCode.CANCELLED  # The process is being taken down.
        elif isinstance(error, grpc.aio.AbortError):
            call.code = grpc.StatusCode.UNKNOWN  # Somebody else's abort: its status is on its way already.
        elif is_our_fault(error):
            error_id = uuid.uuid4().hex
            self._log.error("internal error", error_id=error_id, exc_info=error)
            call.status = status_of(error, error_id)
            call.code = code_of(call.status)
        else:
            call.status = status_of(error)
            call.code = code_of(call.status)
            if isinstance(error, StoreUnavailable | Unavailable) and _is_the_databases(error):
                self._on_database_error()


def _is_the_databases(error: StoreUnavailable | Unavailable) -> bool:
    return isinstance(error, StoreUnavailable) or error.reason == "DATABASE_UNAVAILABLE"
