"""One trace from the agent's call through steps, tools, workers, undo and effects; logs that name it; no arguments anywhere."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
from tests.support.http_receiver import http_receiver
from tests.support.http_service import booking_service
from tests.support.running_server import RunningServer, running_server
from tests.support.running_worker import running_worker

import agenttx
from agenttx import START, GraphBuilder, NodeContext, RunStatus
from agenttx.tools import ToolCallContext, tool
from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc
from agenttx_server.access.identity import Role
from agenttx_server.access.tokens import make_token
from agenttx_server.api.interceptors.call import call_facts
from agenttx_server.logging_setup import configure_logging
from agenttx_server.store import open_tokens

pytest.importorskip("opentelemetry.sdk", reason="traces need the extra otel")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agenttx_server.telemetry import trace_export

MARKER = "xyzzy-nobody-may-read-this"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


class Agent:
    """The process of an agent that is traced: its spans, and those of workers, which are in this process too."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))


@pytest.fixture(scope="module")
def agent() -> Agent:
    made = Agent()
    trace.set_tracer_provider(made.provider)  # once a process
    return made


@pytest.fixture
def server_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(trace_export, "exporter_of", lambda protocol, endpoint: exporter)
    return exporter


@asynccontextmanager
async def traced_server(**settings: Any) -> AsyncIterator[RunningServer]:
    """A server that is ended in order, so that its spans are out when the context is left."""
    given = {"otlp_endpoint": "http://127.0.0.1:1", "trace_sampling": 0.0} | settings
    async with asyncio.timeout(60), running_server(**given) as running:
        yield running
        await running.server.drain()


class Tree:
    """Spans of one trace by name, and which is whose child."""

    def __init__(self, *spans: ReadableSpan) -> None:
        self.spans = spans
        self._by_id = {span.context.span_id: span for span in spans}

    def path(self, name: str) -> list[str]:
        """Return the names from the outermost span to the innermost one of this name."""
        return max((self._path(span) for span in self.named(name)), key=len)

    def _path(self, span: ReadableSpan) -> list[str]:
        names = [span.name]
        while span.parent is not None and span.parent.span_id in self._by_id:
            span = self._by_id[span.parent.span_id]
            names.append(span.name)
        return names[::-1]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@tool("traced.outer", effects="transactional")
async def outer(ctx: ToolCallContext, value: str) -> dict[str, Any]:
    """Call another tool."""
    return {"inner": await ctx.step("traced.inner", {"value": value})}


@tool("traced.inner", effects="read_only")
def inner(value: str) -> str:
    """Return the value, on a thread; with a span of its own."""
    with trace.get_tracer("test").start_as_current_span("code of the tool"):
        return value


@tool("traced.book", effects="compensatable")
async def book(ctx: ToolCallContext, entry: str) -> str:
    """Book what its undo gives back."""
    await ctx.register_undo("traced.unbook", entry=entry)
    return entry


@book.undo("traced.unbook")
async def unbook(ctx: Any, entry: str) -> None:
    """Give it back."""


async def test_one_trace_goes_through_steps_workers_sub_steps_undo_and_effects(
    agent: Agent, server_spans: InMemorySpanExporter
) -> None:
    agent.exporter.clear()
    async with (
        http_receiver() as receiver,
        traced_server(webhooks=(f"mail={receiver.url}",)) as running,
        running_worker(running.address, tools=[outer, inner, book]),
        agenttx.AsyncClient(running.address) as client,
    ):
        with trace.get_tracer("agent").start_as_current_span("the agent's work") as work:
            trace_id = work.get_span_context().trace_id
            tx = await client.transaction(agent_id="a").begin()
            await tx.step("traced.book", entry=MARKER)
            await tx.rewind(1)
            await tx.step("traced.outer", value=MARKER)
            await tx.step("kv.put", key="k", value=MARKER)
            await tx.step("effect.stage", channel="mail", payload={"to": MARKER})
            await tx.commit()
        await client.get_transaction(tx.transaction_id)  # not of this trace, and sampling is 0
        (posted,) = await receiver.wait_for(1)

    spans = Tree(*agent.exporter.get_finished_spans(), *server_spans.get_finished_spans())
    assert {span.context.trace_id for span in spans.spans} == {trace_id}
    begun = "agenttx.v1.AgentTxService/"
    undo = ["undo traced.unbook"] * 2  # the server's, and within it the worker's
    assert spans.path("undo traced.unbook") == ["the agent's work", f"{begun}Rewind", "rewind", *undo]
    inside = spans.path("code of the tool")
    assert inside == [
        "the agent's work",
        f"{begun}ExecuteStep",
        "step traced.outer",
        "tool traced.outer",
        "tool traced.inner",
        "tool traced.inner",
        "code of the tool",
    ]
    assert spans.path("tool kv.put")[-3:] == [f"{begun}ExecuteStep", "step kv.put", "tool kv.put"]
    assert spans.path("deliver mail")[-3:] == [f"{begun}CommitTransaction", "commit", "deliver mail"]
    (delivery,) = spans.named("deliver mail")
    passed_on = posted.headers["traceparent"].split("-")[1:3]
    assert passed_on == [f"{trace_id:032x}", f"{delivery.context.span_id:016x}"]
    (step,) = spans.named("step kv.put")
    assert step.attributes is not None
    assert step.attributes["agenttx.transaction"] == tx.transaction_id
    assert (step.attributes["agenttx.step"], step.attributes["agenttx.status"]) == (2, "SUCCESS")
    assert MARKER not in "".join(span.to_json() for span in spans.spans)


async def test_a_failed_step_says_what_was_decided_and_nothing_of_what_was_asked(
    agent: Agent, server_spans: InMemorySpanExporter
) -> None:
    async with (
        traced_server(tools=("tests.support.sample_tools",), trace_sampling=1.0) as running,
        agenttx.AsyncClient(running.address) as client,
    ):
        tx = await client.transaction(agent_id="a").begin()
        with pytest.raises(agenttx.StepFailed):
            await tx.step("sample.fail", message=f"KeyError: '{MARKER}'")
        with pytest.raises(agenttx.RpcError):
            await client.get_transaction(MARKER)

    spans = Tree(*server_spans.get_finished_spans())
    (step,) = spans.named("step sample.fail")
    (called,) = spans.named("tool sample.fail")
    assert step.attributes is not None
    assert step.attributes["agenttx.status"] == "ROLLBACK_TRIGGERED"
    assert step.attributes["agenttx.hint_category"] == "missing_key"
    assert step.attributes["agenttx.strategy"]
    assert (called.status.description, called.events) == ("RuntimeError", ())
    (read,) = spans.named("agenttx.v1.AgentTxService/GetTransaction")
    assert read.attributes is not None
    assert read.attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert read.status.is_ok or read.status.is_unset
    told = [
        span.to_json() for span in spans.spans if span is not read
    ]  # that one names the id that was asked for
    assert MARKER not in "".join(told)


async def test_steps_of_a_stream_are_spans_each(agent: Agent, server_spans: InMemorySpanExporter) -> None:
    async with (
        traced_server(trace_sampling=1.0) as running,
        agenttx.AsyncClient(running.address) as client,
    ):
        tx = await client.transaction(agent_id="a").begin()
        async with tx.stream() as steps:
            for number in range(3):
                await steps.step("kv.put", key="k", value=number)

    spans = Tree(*server_spans.get_finished_spans())
    (stream,) = spans.named("agenttx.v1.AgentTxService/ExecuteSteps")
    made = spans.named("step kv.put")
    assert len(made) == 3
    assert {span.parent.span_id for span in made if span.parent} == {stream.context.span_id}


@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_functions_of_graphs_and_what_they_call_belong_to_the_call_that_started_the_run(
    agent: Agent, server_spans: InMemorySpanExporter, tenant: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/agenttx.db"
    made = make_token("ann", frozenset({Role.AGENT, Role.WORKER}), now=1, tenant=tenant)
    with open_tokens(url) as tokens:
        tokens.add(made.record)

    async def node(state: Any, ctx: NodeContext) -> dict[str, Any]:
        await ctx.step("kv.put", {"key": "k", "value": MARKER})
        return {"v": MARKER}

    graph = GraphBuilder("traced").channel("v").node("n", node).edge(START, "n")
    agent.exporter.clear()
    async with (
        traced_server(database_url=url) as running,
        agenttx.AsyncClient(running.address, token=made.token) as client,
    ):
        with trace.get_tracer("agent").start_as_current_span("the agent's work") as work:
            trace_id = work.get_span_context().trace_id
            handle = await client.graphs.register(graph)
            done = await handle.run({})
            assert done.status is RunStatus.COMPLETED, done
            tx = client.transaction(agent_id="a")
            await tx.step("effect.stage", channel="mail", payload={"text": MARKER})
            await tx.commit()

    spans = Tree(*agent.exporter.get_finished_spans(), *server_spans.get_finished_spans())
    assert {span.context.trace_id for span in spans.spans} == {trace_id}
    started, *within = spans.path("tool kv.put")[1:]
    assert started.startswith("agenttx.v1.GraphService/")
    assert within == ["function traced/n", "tool kv.put"]
    assert spans.path("deliver mail")[-2:] == ["commit", "deliver mail"]
    assert MARKER not in "".join(span.to_json() for span in spans.spans)


async def test_the_http_tool_passes_the_trace_on_unless_the_agent_sets_its_own(
    agent: Agent, server_spans: InMemorySpanExporter
) -> None:
    with booking_service() as service:
        async with (
            traced_server(
                trace_sampling=1.0,
                http_allow=("http://127.0.0.1:*",),
                http_private_networks=("127.0.0.1/32",),
            ) as running,
            agenttx.AsyncClient(running.address) as client,
        ):
            tx = await client.transaction(agent_id="a").begin()
            await tx.step("http.get", url=f"{service.url}/bookings", expect=[200, 404])
            own = f"00-{TRACE}-{SPAN}-00"
            headers = {"traceparent": own}
            await tx.step("http.get", url=f"{service.url}/bookings", headers=headers, expect=[200, 404])
    first, second = service.requests
    called = Tree(*server_spans.get_finished_spans()).named("tool http.get")
    assert first.headers["traceparent"].split("-")[1:3] == [
        f"{called[0].context.trace_id:032x}",
        f"{called[0].context.span_id:016x}",
    ]
    assert second.headers["traceparent"] == own


@contextmanager
def log_lines() -> Iterator[list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    out = io.StringIO()
    configure_logging("json", "debug", call_facts, out)
    try:
        yield lines
    finally:
        lines += [json.loads(line) for line in out.getvalue().splitlines()]
        structlog.reset_defaults()


async def test_log_lines_name_trace_transaction_step_request_and_principal_and_no_arguments(
    agent: Agent, server_spans: InMemorySpanExporter
) -> None:
    with log_lines() as lines:
        async with (
            traced_server(tools=("tests.support.sample_tools",)) as running,
            grpc.aio.insecure_channel(running.address) as channel,
            agenttx.AsyncClient(running.address) as client,
        ):
            tx = await client.transaction(agent_id="a").begin()
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
            # Not sampled: the log names the trace all the same.
            sent = (("traceparent", f"00-{TRACE}-{SPAN}-00"),)
            for number, tool_name in ((1, "sample.echo"), (2, "sample.fail")):
                arguments = {"value" if number == 1 else "message": MARKER}
                request = pb.ExecuteStepRequest(
                    transaction_id=tx.transaction_id,
                    step_id=number,
                    tool_name=tool_name,
                    arguments_json=json.dumps(arguments),
                    request_id=f"r{number}",
                )
                await stub.ExecuteStep(request, metadata=sent)

    steps = [line for line in lines if line.get("method") == "ExecuteStep"]
    named = [
        (line["trace"], line["transaction"], line["step"], line["request_id"], line["principal"])
        for line in steps
    ]
    assert named == [(TRACE, tx.transaction_id, n, f"r{n}", "anonymous") for n in (1, 2)]
    assert MARKER not in json.dumps(lines)
    assert server_spans.get_finished_spans() == ()
