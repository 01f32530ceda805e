"""Metrics at one moment, and their text as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from agenttx_server.histogram import HistogramReading
from agenttx_server.telemetry.metric_families import ALL_FAMILIES, Family, Kind

__all__ = ["Exposition", "Source", "Values"]


class Values:
    """What the metrics are at one moment; sources write to it."""

    def __init__(self) -> None:
        self.numbers: dict[Family, list[tuple[tuple[str, ...], float]]] = {}
        self.histograms: dict[Family, list[tuple[tuple[str, ...], HistogramReading]]] = {}

    def number(self, family: Family, value: float, *labels: str) -> None:
        """Say what a counter or a gauge is."""
        self.numbers.setdefault(family, []).append((labels, value))

    def histogram(self, family: Family, reading: HistogramReading, *labels: str) -> None:
        """Say what a histogram holds."""
        self.histograms.setdefault(family, []).append((labels, reading))


Source = Callable[[Values], None]
"""Writes what it knows; called on the event loop's thread, it must not wait."""


class Exposition:
    """The metrics of one server, in a registry of its own: several servers of a process share nothing.

    What the process is (memory, processor time, file descriptors, collections of garbage) is told beside them.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._values = Values()
        self._registry = CollectorRegistry()
        self._registry.register(_Collected(lambda: self._values))  # type: ignore[arg-type,unused-ignore]
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def read(self) -> None:
        """Take the values of this moment; on the event loop's thread, so that nothing changes meanwhile."""
        values = Values()
        for source in self._sources:
            source(values)
        self._values = values

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the values last read in the form that a client accepts, and its content type; any thread may."""
        encode, content_type = choose_encoder(accept)
        encoded: bytes = encode(self._registry)
        return encoded, str(content_type)


class _Collected:
    """What prometheus_client calls a collector. Families without a value are named all the same."""

    def __init__(self, values: Callable[[], Values]) -> None:
        self._values = values

    def describe(self) -> Sequence[Any]:
        return ()  # else it is collected to learn the names that it registers

    def collect(self) -> Iterator[Any]:
        values = self._values()
        for family in ALL_FAMILIES:
            if family.kind is Kind.HISTOGRAM:
                yield _histogram(family, values)
            else:
                made = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
                metric = made(family.name, family.help, labels=family.labels)
                for labels, value in values.numbers.get(family, ()):
                    metric.add_metric(labels, value)
                yield metric


def _histogram(family: Family, values: Values) -> Any:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, reading in values.histograms.get(family, ()):
        bounds = [*map(str, reading.bounds), "+Inf"]
        metric.add_metric(labels, list(zip(bounds, accumulate(reading.counts), strict=True)), reading.sum)
    return metric
