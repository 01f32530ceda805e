"""Spans by OpenTelemetry, and when there are any.

Whether a call is traced is settled once, where it comes in: the caller's own decision where it sent one, else by
chance. What is not traced is marked so and costs a look at a context variable from there on; OpenTelemetry is asked for
nothing. Attributes name tools, transactions and steps, and hold nothing of arguments, outputs or errors' texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agenttx_server.trace_context import carry, carrying

__all__ = ["SpanKind", "Tracer"]

# Codes of gRPC that are a server's fault, by OpenTelemetry's semantic conventions.
_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
_PROPAGATOR = TraceContextTextMapPropagator()
_is_left_out: ContextVar[bool] = ContextVar("agenttx_trace_is_left_out", default=False)


class _CallSpan:
    """Implements :class:`agenttx_server.api.interceptors.tracing.CallSpan`."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, code: str, facts: dict[str, object]) -> None:
        self._span.set_attribute("rpc.response.status_code", code)
        for name, value in facts.items():
            if isinstance(value, str | int):
                self._span.set_attribute(f"agenttx.{name}", value)
        if code in _FAULTS:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class Tracer:
    """Begins spans. ``sampling`` is the share, 0 to 1, of what begins a trace of its own that is traced."""

    def __init__(
        self, tracer: trace.Tracer, sampling: float, chance: Callable[[], float] = random.random
    ) -> None:
        self._tracer = tracer
        self._sampling = sampling
        self._chance = chance

    def begin(self, path: str, traceparent: str, tracestate: str) -> _CallSpan | None:
        """Begin a call's span; see :class:`agenttx_server.api.interceptors.tracing.CallTracer`."""
        parent = _parent(traceparent, tracestate) if traceparent else None
        if parent is None:
            if not self._is_chosen():
                _is_left_out.set(True)
                return None
        elif not trace.get_current_span(parent).get_span_context().trace_flags.sampled:
            _is_left_out.set(True)
            # Passed on all the same: who comes after the server goes by its caller's decision too.
            carry(_headers(parent))
            return None
        service, _, method = path.lstrip("/").partition("/")
        span = self._tracer.start_span(
            path.lstrip("/"),
            context=parent or otel_context.Context(),
            kind=SpanKind.SERVER,
            attributes={"rpc.system.name": "grpc", "rpc.service": service, "rpc.method": method},
        )
        # Never detached: each call has a task of its own.
        context = trace.set_span_in_context(span, otel_context.Context())
        otel_context.attach(context)
        carry(_headers(context))
        return _CallSpan(span)

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Mapping[str, str | int],
        kind: SpanKind = SpanKind.INTERNAL,
        parent: otel_context.Context | None = None,
    ) -> Iterator[Span | None]:
        """Run what is within as a span, of ``parent`` or of the one under way; None where it is not traced.

        What is raised within marks it as failed, by the error's type alone.
        """
        if parent is None:
            if _is_left_out.get():
                yield None
                return
            parent = otel_context.get_current()
            is_first = not trace.get_current_span(parent).get_span_context().is_valid
            if is_first and not self._is_chosen():
                token = _is_left_out.set(True)
                try:
                    yield None
                finally:
                    _is_left_out.reset(token)
                return
        span = self._tracer.start_span(name, context=parent, kind=kind, attributes=attributes)
        context = trace.set_span_in_context(span, parent)
        left_out = _is_left_out.set(False)
        attached = otel_context.attach(context)
        try:
            with carrying(_headers(context)):
                yield span
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            otel_context.detach(attached)
            _is_left_out.reset(left_out)
            span.end()

    @property
    def is_left_out(self) -> bool:
        """Whether the work under way belongs to something that is not traced: nothing of it is then."""
        return _is_left_out.get()

    def current(self) -> otel_context.Context | None:
        """Return the context of the span under way, for what comes of it later; None where nothing is traced."""
        if _is_left_out.get():
            return None
        span = trace.get_current_span().get_span_context()
        # Its names alone: the span itself, with all that was said of it, is not to be kept.
        return (
            trace.set_span_in_context(trace.NonRecordingSpan(span), otel_context.Context())
            if span.is_valid
            else None
        )

    def _is_chosen(self) -> bool:
        return self._chance() < self._sampling


def _parent(traceparent: str, tracestate: str) -> otel_context.Context | None:
    """Return the context that a caller sent, None if it is malformed: then the call is as one without."""
    carrier = {"traceparent": traceparent} | ({"tracestate": tracestate} if tracestate else {})
    context = _PROPAGATOR.extract(carrier, otel_context.Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _headers(context: otel_context.Context) -> Mapping[str, str]:
    carrier: dict[str, Any] = {}
    _PROPAGATOR.inject(carrier, context)
    return carrier
