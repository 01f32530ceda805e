"""A server's metrics, scraped while it is used."""

import grpc
import pytest
from tests.support.metrics_reading import get, scrape
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.main import CannotStart
from agenttx_server.settings import BadSettings, load_settings

ANY_PORT = "127.0.0.1:0"


async def test_calls_are_counted_by_method_and_code_and_unknown_methods_together():
    async with running_server(metrics_listen=ANY_PORT) as running:
        address = running.server.metrics_address
        await running.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="a"))
        with pytest.raises(grpc.aio.AioRpcError):
            await running.stub.GetTransaction(pb.GetTransactionRequest(transaction_id="none"))
        for number in range(20):
            call = running.channel.unary_unary(f"/no.such.Service/Method{number}")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"")

        found = await scrape(address)

        count = "agenttx_rpc_duration_seconds_count"
        assert found.value(count, method="BeginTransaction", code="OK") == 1
        assert found.value(count, method="GetTransaction", code="NOT_FOUND") == 1
        assert found.value(count, method="other", code="UNIMPLEMENTED") == 20
        assert found.value("agenttx_rpcs_active", method="BeginTransaction") == 0
        assert found.value("agenttx_serving") == 1
        assert found.value("agenttx_calls_in_class_limit", call_class="STEP") == 4096
        assert await get(address, "/healthz") == (200, "SERVING\n")


async def test_two_servers_of_a_process_have_metrics_of_their_own():
    async with running_server(metrics_listen=ANY_PORT) as one, running_server(metrics_listen=ANY_PORT) as two:
        await one.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="a"))

        count = "agenttx_rpc_duration_seconds_count"
        assert (await scrape(one.server.metrics_address)).total(count, method="BeginTransaction") == 1
        assert (await scrape(two.server.metrics_address)).total(count, method="BeginTransaction") == 0


async def test_metrics_are_served_nowhere_unless_told_and_a_taken_port_is_an_error_at_start():
    async with running_server() as silent:
        assert silent.server.metrics_address is None
    async with running_server(metrics_listen=ANY_PORT) as running:
        taken = str(running.server.metrics_address)
        with pytest.raises(CannotStart, match="can't serve metrics on"):
            async with running_server(metrics_listen=taken):
                pass


def test_where_metrics_are_served_is_checked_and_workers_take_a_port_each():
    several = {"workers": 3, "database_url": "postgresql://x@h/d"}
    settings = load_settings({"metrics_listen": "127.0.0.1:9464", **several})
    assert [str(settings.metrics_address(worker)) for worker in (1, 2, 3)] == [
        "127.0.0.1:9464",
        "127.0.0.1:9465",
        "127.0.0.1:9466",
    ]
    for bad in ("unix:/run/metrics", "9464", "127.0.0.1:99999"):
        with pytest.raises(BadSettings, match="--metrics-listen"):
            load_settings({"metrics_listen": bad})
    with pytest.raises(BadSettings, match="as many ports"):
        load_settings({"metrics_listen": "127.0.0.1:65534", **several})
