"""What each part of a server knows of itself, as metrics."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from agenttx_server.api.server import ApiServer
from agenttx_server.telemetry import metric_families as families
from agenttx_server.telemetry.exposition import Source, Values
from agenttx_server.telemetry.loop_lag import LoopLag

__all__ = ["of_api", "of_loop"]


def of_api(api: ApiServer) -> Source:
    """Return the source of calls: how many, how long, how many at once."""
    try:
        release = version("agenttx")
    except PackageNotFoundError:  # run from its sources
        release = "unknown"

    def read(values: Values) -> None:
        values.number(families.BUILD_INFO, 1, release)
        values.number(families.SERVING, api.health.is_serving)
        for (method, code), seconds in api.metrics.by_method_and_code.items():
            values.histogram(families.RPC_DURATION, seconds.read(), method, code.name)
        for method, active in api.metrics.active.items():
            values.number(families.RPCS_ACTIVE, active, method)
        for call_class, (active, limit) in api.admission.load.items():
            values.number(families.CALLS_IN_CLASS, active, call_class)
            values.number(families.CALLS_IN_CLASS_LIMIT, limit, call_class)

    return read


def of_loop(lag: LoopLag) -> Source:
    """Return the source of the event loop's lag."""

    def read(values: Values) -> None:
        values.histogram(families.LOOP_LAG, lag.seconds.read())

    return read
