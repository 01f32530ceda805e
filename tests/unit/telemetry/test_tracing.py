"""What is traced and what is not: settled once for a call, and free for what is not."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="traces need the extra otel")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agenttx import trace_context as sdk
from agenttx_server.api.interceptors import CallClass, Method, RpcCall, Tracing
from agenttx_server.telemetry.traced_ports import StepsUnderWay, TracedCoordinator, TracedSink, TracedTools
from agenttx_server.telemetry.tracing import Tracer
from agenttx_server.trace_context import trace_headers, trace_id

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


class Chance:
    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def __call__(self) -> float:
        return self.numbers.pop(0)


def tracer(sampling: float, *chances: float) -> tuple[Tracer, InMemorySpanExporter, Chance]:
    exporter, chance = InMemorySpanExporter(), Chance(*chances)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracer(provider.get_tracer("test"), sampling, chance), exporter, chance


def called(tracer: Tracer, traceparent: str = "", tracestate: str = "") -> tuple[str, dict[str, str]]:
    """Be a call with some work in it; return the trace's id and what is passed on meanwhile."""

    def call() -> tuple[str, dict[str, str]]:
        span = tracer.begin("/s/M", traceparent, tracestate)
        with tracer.span("work", {}):
            told = trace_id(), dict(trace_headers())
        if span is not None:
            span.end("OK", {"transaction": "t", "principal": "ann"})
        return told

    return contextvars.copy_context().run(call)


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def test_a_call_without_a_trace_is_chosen_by_chance_once_for_all_that_it_does() -> None:
    traces, exporter, chance = tracer(0.01, 0.009, 0.01)

    chosen, headers = called(traces)
    assert names(exporter) == ["work", "s/M"]
    assert headers["traceparent"].startswith(f"00-{chosen}-")
    exporter.clear()
    assert called(traces) == ("", {})
    assert names(exporter) == []
    assert chance.numbers == []


def test_a_caller_decides_for_the_call_that_it_sends() -> None:
    traces, exporter, _ = tracer(0.0)
    told, headers = called(traces, SAMPLED, "vendor=x")
    assert (told, headers["tracestate"]) == (TRACE, "vendor=x")
    work, call = exporter.get_finished_spans()
    assert (call.parent.span_id, work.parent.span_id) == (int(SPAN, 16), call.context.span_id)
    assert call.attributes["agenttx.principal"] == "ann"

    traces, exporter, _ = tracer(1.0)
    assert called(traces, UNSAMPLED) == (TRACE, {"traceparent": UNSAMPLED})
    assert names(exporter) == []


@pytest.mark.parametrize(
    "bad", ["x", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}", "ff" + SAMPLED[2:], "\x00"]
)
def test_a_malformed_trace_context_is_as_none(bad: str) -> None:
    traces, _, chance = tracer(0.5, 0.9, 0.1)
    assert called(traces, bad) == ("", {})
    told, _ = called(traces, bad)
    assert told not in ("", TRACE)
    assert chance.numbers == []


def test_work_of_the_servers_own_is_chosen_as_a_whole() -> None:
    traces, exporter, chance = tracer(0.5, 0.9, 0.1)

    def work() -> None:
        with traces.span("outer", {}), traces.span("inner", {}):
            pass

    contextvars.copy_context().run(work)
    assert names(exporter) == []
    contextvars.copy_context().run(work)
    assert names(exporter) == ["inner", "outer"]
    assert chance.numbers == []


def test_an_error_is_named_by_its_type_alone() -> None:
    traces, exporter, _ = tracer(1.0, 0.0)
    with pytest.raises(ValueError, match="secret"), traces.span("work", {}):
        raise ValueError("secret")
    (span,) = exporter.get_finished_spans()
    assert (span.status.description, span.events) == ("ValueError", ())
    assert trace_headers() == {}


class Context:
    def __init__(self, *metadata: tuple[str, Any]) -> None:
        self.metadata = metadata

    def invocation_metadata(self) -> Any:
        return self.metadata


def test_the_stage_reads_what_is_bounded_and_leaves_health_and_workers_streams_alone() -> None:
    seen: list[tuple[str, str, str]] = []

    class Tells:
        def begin(self, *given: str) -> None:
            seen.append(given)  # type: ignore[arg-type]

    stage = Tracing(Tells())
    unary = Method("/s/M", "M", CallClass.READ, is_stream=False)
    for metadata in (
        (("traceparent", SAMPLED), ("tracestate", "a=b"), ("other", "x")),
        (("traceparent", SAMPLED + "0" * 200), ("tracestate", "a" * 600)),
        (("traceparent-bin", b"x"), ("traceparent", b"x")),
    ):
        stage.enter(RpcCall(unary, Context(*metadata)))
    assert seen == [("/s/M", SAMPLED, "a=b"), ("/s/M", "", ""), ("/s/M", "", "")]
    for kind in (CallClass.EXEMPT, CallClass.WORKER):
        stage.enter(RpcCall(Method("/s/M", "M", kind, is_stream=True), Context(("traceparent", SAMPLED))))
    assert len(seen) == 3


async def test_what_is_not_traced_is_the_very_call_of_the_part_itself() -> None:
    traces, exporter, _ = tracer(0.0)
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    part = SimpleNamespace(
        describe=lambda name: None,
        execute_step=lambda request: result,
        run=lambda *given: result,
        run_prompt=lambda *given: 7,
    )
    coordinator = TracedCoordinator(part, traces, TracedSink(part, traces))
    tools = TracedTools(part, traces, StepsUnderWay())
    context = SimpleNamespace(transaction_id="t", step_id=1, sub_step=0, attempt=1)

    def call() -> tuple[Any, ...]:
        assert traces.begin("/s/M", UNSAMPLED, "") is None
        return coordinator.execute_step(None), tools.run("x", {}, context), tools.run_prompt("x", {}, context)

    assert contextvars.copy_context().run(call) == (result, result, 7)
    assert names(exporter) == []


async def test_a_sub_step_that_comes_from_elsewhere_belongs_to_its_step() -> None:
    traces, exporter, _ = tracer(1.0, 0.0)
    steps = StepsUnderWay()
    within = contextvars.copy_context()

    class Part:
        describe = None

        async def run(self, name: str, arguments: Any, context: Any) -> str:
            if not context.sub_step:
                # As on the stream of a worker: in a context that knows of nothing.
                inner = SimpleNamespace(transaction_id="t", step_id=1, sub_step=1, attempt=1)
                loop = asyncio.get_running_loop()
                await loop.create_task(tools.run("inner", {}, inner), context=within)
                stranger = SimpleNamespace(transaction_id="u", step_id=1, sub_step=1, attempt=1)
                await loop.create_task(tools.run("stranger", {}, stranger), context=within)
            return name

    tools = TracedTools(Part(), traces, steps)
    await tools.run("outer", {}, SimpleNamespace(transaction_id="t", step_id=1, sub_step=0, attempt=1))

    inner, outer = exporter.get_finished_spans()
    assert (inner.name, outer.name) == ("tool inner", "tool outer")
    assert inner.parent.span_id == outer.context.span_id
    assert steps.parent_of(SimpleNamespace(transaction_id="t", step_id=1, sub_step=1)) is None


def test_the_sdk_passes_the_span_under_way_on_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = (("authorization", "Bearer x"),)
    assert sdk.with_trace(metadata) is metadata
    provider = TracerProvider(shutdown_on_exit=False)
    with trace.use_span(provider.get_tracer("test").start_span("work")) as span:
        sent = dict(sdk.with_trace(metadata))
        assert sent["traceparent"].split("-")[1] == f"{span.get_span_context().trace_id:032x}"
        assert sent["authorization"] == "Bearer x"
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")  # as where nobody uses it
        assert sdk.with_trace(metadata) is metadata
        with sdk.serving("tool x", SAMPLED, ""):
            pass
