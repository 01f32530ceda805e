"""Makes the call known to whatever runs below it."""

from __future__ import annotations

import time

from agenttx_server.api.interceptors.call import RpcCall, enter_context

__all__ = ["RequestContext"]


class RequestContext:
    """Starts the call's clock and makes it the current one, for log lines and the servicer."""

    name = "request_context"

    def enter(self, call: RpcCall) -> None:
        call.started = time.perf_counter()
        enter_context(call)

    def leave(self, call: RpcCall) -> None:
        pass
