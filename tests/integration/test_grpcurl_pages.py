"""What the pages have a person send with grpcurl is understood: a call about nothing that is there is NOT_FOUND, never INVALID_ARGUMENT."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import Default
from tests.support.running_server import running_server

from agenttx.v1 import graph_pb2, lineage_pb2, tool_pb2, transaction_pb2  # noqa: F401  (their services)

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOWHERE = "01900000-0000-7000-8000-000000000000"
PLACEHOLDERS = {"TRANSACTION": NOWHERE, "EFFECT": NOWHERE, "ID": "1"}
CALLS = sorted(
    {
        (str(page.relative_to(DOCS)), method, body)
        for page in DOCS.rglob("*.md")
        for body, method in re.findall(
            r"grpcurl -plaintext -d '([^']*)'[\s\\]+[\w:]+[\s\\]+(agenttx\.v1\.\w+/\w+)", page.read_text()
        )
    }
)


def test_there_are_some() -> None:
    assert len(CALLS) >= 10


@pytest.fixture
async def channel():
    async with running_server() as server, grpc.aio.insecure_channel(server.address) as channel:
        yield channel


async def test_each_call_is_understood(channel: grpc.aio.Channel) -> None:
    misunderstood = []
    for page, method, body in CALLS:
        service, _, name = method.partition("/")
        described = Default().FindServiceByName(service).methods_by_name[name]
        request_class = message_factory.GetMessageClass(described.input_type)
        answer_class = message_factory.GetMessageClass(described.output_type)
        for placeholder, value in PLACEHOLDERS.items():
            body = body.replace(f'"{placeholder}"', f'"{value}"')
        request = json_format.Parse(body, request_class())
        call = channel.unary_unary(f"/{method}", request_class.SerializeToString, answer_class.FromString)
        try:
            await call(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                misunderstood.append(f"{page}: {method}: {error.code().name}: {error.details()}")
    assert misunderstood == []
