"""One line a call."""

from __future__ import annotations

import time

import grpc
import structlog

from agenttx_server.api.interceptors.call import CallClass, RpcCall, message_facts
from agenttx_server.logging_setup import plain
from agenttx_server.trace_context import trace_id

__all__ = ["AccessLog"]

FAULTS = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS})


class AccessLog:
    """Logs method, code, milliseconds, transaction, step, request id, principal and trace; no arguments, no secrets.

    Health checks are logged at debug: they come every few seconds and say nothing new.
    """

    name = "access_log"

    def __init__(self) -> None:
        self._log = structlog.get_logger()

    def enter(self, call: RpcCall) -> None:
        pass

    def leave(self, call: RpcCall) -> None:
        facts = message_facts(call)
        if call.identity is not None:
            facts["principal"] = plain(call.identity.principal)
        if trace := trace_id():
            facts["trace"] = trace
        reason = getattr(call.error, "reason", None)
        if reason is not None:
            facts["reason"] = reason
        milliseconds = round((time.perf_counter() - call.started) * 1000, 3)
        if call.code in FAULTS:
            write = self._log.error
        elif call.method.call_class is CallClass.EXEMPT:
            write = self._log.debug
        else:
            write = self._log.info
        write("rpc", method=call.method.label, code=call.code.name, ms=milliseconds, **facts)
