"""Spans as an OTLP receiver gets them, over gRPC and HTTP; and a receiver that isn't there."""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from tests.support.http_receiver import answer, http_receiver
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.main import CannotStart
from agenttx_server.settings import BadSettings, load_settings

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="traces need the extra otel")

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

NAMES = {"agenttx.v1.AgentTxService/BeginTransaction", "agenttx.v1.AgentTxService/ExecuteStep", "step kv.put"}


class Receiver(otlp_grpc.TraceServiceServicer):
    """A receiver of OTLP over gRPC that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[otlp.ExportTraceServiceRequest] = []

    async def Export(self, request: otlp.ExportTraceServiceRequest, context: Any) -> Any:
        self.requests.append(request)
        return otlp.ExportTraceServiceResponse()


@asynccontextmanager
async def grpc_receiver() -> AsyncIterator[tuple[Receiver, str]]:
    server, receiver = grpc.aio.server(), Receiver()
    otlp_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def one_step(**settings: Any) -> None:
    """A server's life with one step in it, everything traced."""
    async with asyncio.timeout(60), running_server(trace_sampling=1.0, **settings) as running:
        begun = await running.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="a"))
        await running.stub.ExecuteStep(
            pb.ExecuteStepRequest(
                transaction_id=begun.transaction_id,
                step_id=1,
                tool_name="kv.put",
                arguments_json='{"key":"k","value":1}',
            )
        )
        await running.server.drain()


def names(requests: list[otlp.ExportTraceServiceRequest]) -> set[str]:
    return {
        span.name
        for request in requests
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    }


async def test_a_receiver_gets_the_spans_over_grpc_with_who_the_server_is() -> None:
    async with grpc_receiver() as (receiver, endpoint):
        await one_step(otlp_endpoint=endpoint)

    assert names(receiver.requests) >= NAMES
    resource = {
        pair.key: pair.value.string_value
        for pair in receiver.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "agenttx"
    assert resource["service.instance.id"]


async def test_a_receiver_gets_the_spans_over_http() -> None:
    async with http_receiver(*[answer(200)] * 20) as receiver:
        endpoint = receiver.url.removesuffix("/effects")
        await one_step(otlp_endpoint=endpoint, otlp_protocol="http")

    assert {request.path for request in receiver.requests} == {"/v1/traces"}
    bodies = [
        gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body
        for request in receiver.requests
    ]
    assert names([otlp.ExportTraceServiceRequest.FromString(body) for body in bodies]) >= NAMES


async def test_a_receiver_that_is_not_there_holds_up_neither_calls_nor_the_end() -> None:
    async with asyncio.timeout(40):  # the exporter by itself tries for a minute and more
        await one_step(otlp_endpoint="http://127.0.0.1:9")


async def test_without_the_extra_a_server_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "agenttx_server.telemetry.server_tracing", None
    )  # as if its imports failed
    with pytest.raises(CannotStart, match=r"needs the extra otel: pip install 'agenttx\[server,otel\]'"):
        async with running_server(otlp_endpoint="http://127.0.0.1:9"):
            pass


@pytest.mark.parametrize("bad", ["127.0.0.1:4317", "grpc://h:4317", "http://user:word@h:4317", "http://"])
def test_an_endpoint_is_an_http_address_without_credentials(bad: str) -> None:
    with pytest.raises(BadSettings, match="--otlp-endpoint"):
        load_settings({"otlp_endpoint": bad})
    assert load_settings({"otlp_endpoint": "https://h:4317"}).otlp_protocol == "grpc"
