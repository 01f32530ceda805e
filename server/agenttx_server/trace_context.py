"""Which trace the work under way belongs to, as it is passed on: W3C trace context, known to every layer.

Set by telemetry/, where traces are on, and by nobody else. Work that is started inherits it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

__all__ = ["carry", "carrying", "trace_headers", "trace_id"]

_NONE: Mapping[str, str] = MappingProxyType({})
_headers: ContextVar[Mapping[str, str]] = ContextVar("agenttx_trace_headers", default=_NONE)


def trace_headers() -> Mapping[str, str]:
    """Return what to pass on, `traceparent` and perhaps `tracestate`; empty where nothing is traced."""
    return _headers.get()


def trace_id() -> str:
    """Return the trace's id, 32 hexadecimal digits; empty where nothing is traced."""
    # version-TRACE-span-flags
    return _headers.get().get("traceparent", "")[3:35]


def carry(headers: Mapping[str, str]) -> None:
    """Pass these on from now on, in this task and what it starts."""
    _headers.set(headers)


@contextmanager
def carrying(headers: Mapping[str, str]) -> Iterator[None]:
    """Pass these on for a while."""
    token = _headers.set(headers)
    try:
        yield
    finally:
        _headers.reset(token)
