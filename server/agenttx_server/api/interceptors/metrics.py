"""Counts and durations by method and code, kept in the process."""

from __future__ import annotations

import time

import grpc

from agenttx_server.api.interceptors.call import RpcCall
from agenttx_server.histogram import Histogram, latency_bounds

__all__ = ["Metrics"]

BUCKETS_SECONDS = latency_bounds()


class Metrics:
    """A histogram a method and code; calls that were cancelled count too.

    Unknown methods share one label, so a scanner can't grow it. Only ever touched by the event
    loop's thread.
    """

    name = "metrics"

    def __init__(self) -> None:
        self.by_method_and_code: dict[tuple[str, grpc.StatusCode], Histogram] = {}
        self.active: dict[str, int] = {}

    def enter(self, call: RpcCall) -> None:
        label = call.method.label
        self.active[label] = self.active.get(label, 0) + 1

    def leave(self, call: RpcCall) -> None:
        label = call.method.label
        self.active[label] -= 1
        seen = self.by_method_and_code.get((label, call.code))
        if seen is None:
            seen = self.by_method_and_code[label, call.code] = Histogram(BUCKETS_SECONDS)
        seen.observe(time.perf_counter() - call.started)
