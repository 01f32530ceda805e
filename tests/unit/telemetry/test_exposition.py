"""Metrics' text: what was counted comes out, by name, label and bucket."""

import asyncio
from itertools import pairwise

import pytest
from tests.support.metrics_reading import read

from agenttx_server.histogram import Histogram
from agenttx_server.telemetry import metric_families as families
from agenttx_server.telemetry.exposition import Exposition
from agenttx_server.telemetry.loop_lag import EVERY_SECONDS, LoopLag


def text_of(*sources, accept="text/plain"):
    exposition = Exposition(sources)
    exposition.read()
    return exposition.text(accept)[0].decode()


def test_a_histogram_counts_up_to_each_bound_and_a_value_on_it_below():
    seconds = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 7.0):
        seconds.observe(value)

    found = read(
        text_of(lambda values: values.histogram(families.RPC_DURATION, seconds.read(), "ExecuteStep", "OK"))
    )

    name, labels = families.RPC_DURATION.name, {"method": "ExecuteStep", "code": "OK"}
    buckets = {le: found.value(f"{name}_bucket", le=le, **labels) for le in ("0.1", "1.0", "+Inf")}
    assert buckets == {"0.1": 2, "1.0": 4, "+Inf": 5}
    assert found.value(f"{name}_count", **labels) == 5
    assert found.value(f"{name}_sum", **labels) == pytest.approx(8.65)


def test_two_histograms_are_added_bucket_by_bucket():
    one, other = Histogram((1, 2)), Histogram((1, 2))
    one.observe(1)
    other.observe(2)
    other.observe(9)

    both = one.read() + other.read()

    assert (both.counts, both.sum) == ((1, 1, 1), 12)


def test_values_are_those_of_the_reading_however_much_is_counted_since():
    seconds = Histogram((1.0,))
    exposition = Exposition([lambda values: values.histogram(families.LOOP_LAG, seconds.read())])
    exposition.read()
    seconds.observe(0.5)

    assert read(exposition.text("")[0].decode()).value(f"{families.LOOP_LAG.name}_count") == 0


def test_two_servers_of_a_process_tell_each_its_own():
    texts = [
        text_of(lambda values, number=number: values.number(families.SERVING, number)) for number in (0, 1)
    ]

    assert [read(text).value("agenttx_serving") for text in texts] == [0, 1]
    assert all(read(text).value("process_resident_memory_bytes") > 0 for text in texts)


def test_every_family_is_named_before_it_has_a_value_and_its_name_says_its_kind():
    found = text_of()

    for family in families.ALL_FAMILIES:
        assert f"# TYPE {family.name} {family.kind}" in found
        assert family.name.startswith("agenttx_")
        assert family.name.endswith("_total") == (family.kind is families.Kind.COUNTER)
        assert family.help.endswith(".")
    assert len({family.name for family in families.ALL_FAMILIES}) == len(families.ALL_FAMILIES) > 5


def test_openmetrics_is_spoken_to_who_asks_for_it():
    assert text_of(accept="application/openmetrics-text").endswith("# EOF\n")


class SteppedClock:
    """Time that passes while somebody sleeps, by as much as is scripted beyond what was asked for."""

    def __init__(self, late):
        self.time = 100.0
        self.late = list(late)

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        if not self.late:
            raise asyncio.CancelledError
        self.time += seconds + self.late.pop(0)


async def test_the_loops_lag_is_what_a_timer_was_woken_too_late():
    clock = SteppedClock([0.0, 0.004, 0.3])
    lag = LoopLag(clock)
    with pytest.raises(asyncio.CancelledError):
        await lag.measure()

    assert clock.time == pytest.approx(100.0 + 3 * EVERY_SECONDS + 0.304)
    reading = lag.seconds.read()
    found = {bound: count for bound, count in zip(reading.bounds, reading.counts, strict=False) if count}
    assert found == {0.001: 1, 0.005: 1, 0.5: 1}
    assert reading.sum == pytest.approx(0.304)
    assert all(low < high for low, high in pairwise(reading.bounds))
