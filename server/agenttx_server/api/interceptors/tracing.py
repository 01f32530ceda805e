"""A span for each call, within the trace that its caller is in."""

from __future__ import annotations

from typing import Protocol

from agenttx_server.api.interceptors.call import CallClass, RpcCall, message_facts

__all__ = ["CallSpan", "CallTracer", "Tracing"]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
# W3C's own bound on what must be passed on.
LONGEST_STATE = 512
LONGEST_PARENT = 128


class CallSpan(Protocol):
    """The span of a call under way."""

    def end(self, code: str, facts: dict[str, object]) -> None:
        """End it; ``facts`` identify what the call was about, and hold none of its content."""


class CallTracer(Protocol):
    """Begins spans of calls."""

    def begin(self, path: str, traceparent: str, tracestate: str) -> CallSpan | None:
        """Make a call's span the one that work of this task belongs to; None: the call is not traced."""


class Tracing:
    """Outermost but for the call's clock, so that every line of the log can name the trace.

    Health checks are never traced, and neither are streams of workers, whose calls are traced one by one.
    """

    name = "tracing"

    def __init__(self, tracer: CallTracer) -> None:
        self._tracer = tracer
        self._spans: dict[RpcCall, CallSpan] = {}

    def enter(self, call: RpcCall) -> None:
        if call.method.call_class in (CallClass.EXEMPT, CallClass.WORKER):
            return
        traceparent = tracestate = ""
        for name, value in call.context.invocation_metadata() or ():
            if name == TRACEPARENT and isinstance(value, str) and len(value) <= LONGEST_PARENT:
                traceparent = value
            elif name == TRACESTATE and isinstance(value, str) and len(value) <= LONGEST_STATE:
                tracestate = value
        span = self._tracer.begin(call.method.path or "other", traceparent, tracestate)
        if span is not None:
            self._spans[call] = span

    def leave(self, call: RpcCall) -> None:
        span = self._spans.pop(call, None)
        if span is not None:
            facts = message_facts(call)
            if call.identity is not None:
                facts["principal"] = call.identity.principal
            span.end(call.code.name, facts)
