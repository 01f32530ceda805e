"""Observations counted into buckets: cheap to make, read by whoever exposes them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Histogram", "HistogramReading", "latency_bounds"]


def latency_bounds() -> tuple[float, ...]:
    """Return the bounds, in seconds, that latencies of calls and steps are counted by: 1 ms to 30 s."""
    return (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """What a histogram held at one moment. ``counts`` are per bucket, the last one those above all ``bounds``."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def __add__(self, other: HistogramReading) -> HistogramReading:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return HistogramReading(self.bounds, counts, self.sum + other.sum)


class Histogram:
    """Counts by bucket, and their sum. A value on a bound belongs below it.

    One thread observes; any may read. A reading that another thread makes may miss the newest observation in its sum.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def read(self) -> HistogramReading:
        """Return what it holds now."""
        return HistogramReading(self.bounds, tuple(self.counts), self.sum)
