"""Makes the call known to whatever runs below it."""

from __future__ import annotations

import time

from agenttx_server.api.interceptors.call import RpcCall, enter_context, message_facts

__all__ = ["RequestContext"]


class RequestContext:
    """Starts the call's clock and makes it the current one, for log lines and the servicer."""

    name = "request_context"

    def enter(self, call: RpcCall) -> None:
        call.started = time.perf_counter()
        enter_context(call)

    def leave(self, call: RpcCall) -> None:
        # What the call started may run on with this context, and must not keep megabytes of arguments for it.
        call.facts = message_facts(call)
        call.request = call.response = None
