"""Counts and durations by method and code, kept in the process."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

import grpc

from agenttx_server.api.interceptors.call import RpcCall

__all__ = ["BUCKETS_SECONDS", "MethodMetrics", "Metrics"]

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class MethodMetrics:
    """What was seen of one method and code. ``buckets`` are the calls up to each bound, and longer ones last."""

    calls: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))


class Metrics:
    """A histogram a method and code; calls that were cancelled count too.

    Unknown methods share one label, so a scanner can't grow it. Only ever touched by the event
    loop's thread.
    """

    name = "metrics"

    def __init__(self) -> None:
        self.by_method_and_code: dict[tuple[str, grpc.StatusCode], MethodMetrics] = {}
        self.active: dict[str, int] = {}

    def enter(self, call: RpcCall) -> None:
        label = call.method.label
        self.active[label] = self.active.get(label, 0) + 1

    def leave(self, call: RpcCall) -> None:
        label = call.method.label
        self.active[label] -= 1
        seconds = time.perf_counter() - call.started
        seen = self.by_method_and_code.get((label, call.code))
        if seen is None:
            seen = self.by_method_and_code[label, call.code] = MethodMetrics()
        seen.calls += 1
        seen.seconds += seconds
        seen.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
