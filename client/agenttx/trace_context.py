"""The application's trace, passed on to the server and taken up in workers, where the application uses OpenTelemetry.

Nothing is imported that the application has not: who traces has imported ``opentelemetry.trace``, and without it there is no
span to pass on. OpenTelemetry itself decides what is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["serving", "with_trace"]

Metadata = tuple[tuple[str, str], ...]


def with_trace(metadata: Metadata) -> Metadata:
    """Return a call's metadata with the trace context of the span under way, if there is one."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return metadata
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return (*metadata, *carrier.items())


@contextmanager
def serving(name: str, traceparent: str, tracestate: str) -> Iterator[None]:
    """Run what a worker was asked for as a span of the trace that it belongs to, with its attributes left to the code."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if not traceparent or trace is None:
        yield
        return
    carrier = {"traceparent": traceparent} | ({"tracestate": tracestate} if tracestate else {})
    parent = _propagator().extract(carrier)
    tracer = trace.get_tracer("agenttx")
    # An error's text may hold arguments: it goes to the server, which knows what may be told of it.
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=trace.SpanKind.SERVER,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
