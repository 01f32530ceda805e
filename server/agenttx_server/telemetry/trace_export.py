"""Where spans go: OTLP, over gRPC or HTTP, in batches and by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from agenttx_server.telemetry.tracing import Tracer

__all__ = ["exporter_of", "tracer_of", "tracing_to"]

# How long a server's end waits for the last spans to be sent.
LAST_SPANS_SECONDS = 3.0


def exporter_of(protocol: Literal["grpc", "http"], endpoint: str) -> SpanExporter:
    """Return an exporter to an OTLP receiver at ``http://`` or ``https://``. Its credentials, certificates and times are set
    by OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_HEADERS`` and others).
    """
    exporter: SpanExporter
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        exporter = over_grpc.OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    else:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        exporter = over_http.OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    return exporter


def tracer_of(provider: Any, release: str, sampling: float) -> Tracer:
    """Return the tracer of a provider that keeps whatever it is given: who is traced is settled by the tracer."""
    return Tracer(provider.get_tracer("agenttx", release), sampling)


@asynccontextmanager
async def tracing_to(
    exporter: SpanExporter, sampling: float, release: str, server_id: str
) -> AsyncIterator[Tracer]:
    """Send spans until the context is left; the last ones have some seconds. None of them is waited for by a call.

    Where more spans come than can be sent, or nobody takes them, they are dropped.
    """
    resource = Resource.create(
        {"service.name": "agenttx", "service.version": release, "service.instance.id": server_id}
    )
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield tracer_of(provider, release, sampling)
    finally:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        # A daemon: a receiver that doesn't answer must not keep the process.
        threading.Thread(target=end, name="agenttx-last-spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SPANS_SECONDS):
                await ended.wait()
