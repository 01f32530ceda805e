"""What is measured and traced, where it is asked for."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from agenttx_server.api.interceptors.shedding import Written
from agenttx_server.composition.cannot_start import CannotStart
from agenttx_server.engine.ports import ToolRunner
from agenttx_server.engine.services import EngineServices
from agenttx_server.settings import Settings
from agenttx_server.store import SqlTransactionStore
from agenttx_server.system_ports import SystemClock

if TYPE_CHECKING:
    from agenttx_server.telemetry.server_metrics import ServerMetrics
    from agenttx_server.telemetry.server_tracing import ServerTracing

__all__ = ["metrics_of", "tracing_of", "written"]


def metrics_of(settings: Settings, tools: ToolRunner, clock: SystemClock) -> ServerMetrics | None:
    """Return what counts, None where no metrics are served."""
    if not settings.metrics_listen:
        return None
    # Only now: most servers serve none.
    from agenttx_server.telemetry.server_metrics import ServerMetrics

    return ServerMetrics(tools, clock)


async def tracing_of(
    settings: Settings, stack: AsyncExitStack, services: EngineServices
) -> ServerTracing | None:
    """Return what traces, None where nothing is traced. Raises CannotStart."""
    if not settings.otlp_endpoint:
        return None
    # Only now: most servers trace nothing, and the library is an extra.
    try:
        from agenttx_server.telemetry.server_tracing import ServerTracing
    except ImportError as error:
        raise CannotStart(
            f"--otlp-endpoint needs the extra otel: pip install 'agenttx[server,otel]' ({error})"
        ) from error
    return await stack.enter_async_context(
        ServerTracing.to(settings.otlp_protocol, settings.otlp_endpoint, settings.trace_sampling, services)
    )


def written(store: SqlTransactionStore) -> Written:
    """Return what waits to be committed, and what has been."""
    writing = store.statistics.writing
    return Written(writing.queued, writing.batch_sets.sum)
