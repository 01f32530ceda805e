"""A server's metrics, scraped while it is used."""

import json

import grpc
import pytest
from cryptography import x509
from tests.support.certificates import Authority
from tests.support.metrics_reading import get, scrape
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server, server_process

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.listen_address import ListenAddress
from agenttx_server.main import CannotStart, open_server
from agenttx_server.settings import BadSettings, load_settings
from agenttx_server.telemetry import database_sampling
from agenttx_server.telemetry.metric_families import ALL_FAMILIES

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


async def test_what_agents_did_and_what_stands_open_is_told(tmp_path):
    sampling = database_sampling.EVERY_SECONDS
    async with running_server(
        metrics_listen=ANY_PORT, tools=("tests.support.sample_tools",), outbox_file=tmp_path / "outbox.jsonl"
    ) as running:
        begun = await running.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="a"))

        def step(number, tool, arguments):
            return running.stub.ExecuteStep(
                pb.ExecuteStepRequest(
                    transaction_id=begun.transaction_id,
                    step_id=number,
                    tool_name=tool,
                    arguments_json=json.dumps(arguments),
                )
            )

        for number in (1, 2):
            await step(number, "kv.put", {"key": f"k{number}", "value": number})
        failed = await step(3, "sample.typed", {"count": "many", "name": "x"})
        assert failed.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
        again = failed.next_step_id
        await step(again, "kv.put", {"key": "k", "value": 1})
        await running.stub.CommitTransaction(pb.CommitTransactionRequest(transaction_id=begun.transaction_id))
        await running.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="b"))

        # What stands open is counted by itself, first when the server starts.
        found = await scrape(running.server.metrics_address, having="agenttx_database_sample_age_seconds")

        steps = "agenttx_step_duration_seconds_count"
        kv = {"tool": "kv.put", "effect_class": "TRANSACTIONAL", "outcome": "completed"}
        assert found.value(steps, **kv) == 3
        assert found.total(steps, tool="sample.typed", outcome="failed") == 1
        assert found.total("agenttx_decisions_total") == 1
        assert found.total("agenttx_hints_total") == 1
        assert found.value("agenttx_transactions_begun_total") == 2
        assert found.value("agenttx_transaction_duration_seconds_count", status="COMMITTED") == 1
        assert found.value("agenttx_commit_batch_sets_sum") >= 7
        assert found.value("agenttx_commit_batch_duration_seconds_count") >= 7
        assert found.value("agenttx_transaction_cache_lookups_total", result="hit") >= 4
        assert found.value("agenttx_queue_depth", queue="commit") == 0
        assert found.value("agenttx_servers") == 1
        assert 0 <= found.value("agenttx_database_sample_age_seconds") < sampling + 60
        assert found.value("agenttx_transactions_open", status="IN_DOUBT") == 0
        without_a_value = {
            family.name
            for family in ALL_FAMILIES
            if not any(name.startswith(family.name) for name, _ in found.samples)
        }
        assert without_a_value == {
            "agenttx_sub_step_duration_seconds",  # no step made one
            "agenttx_compensations_total",
            "agenttx_effects_total",
            "agenttx_approvals_total",
            "agenttx_lease_seconds_left",  # the database is this server's alone
            "agenttx_certificate_expiry_timestamp_seconds",  # no TLS
            "agenttx_stored_bytes",  # nobody's bytes are limited
        }


async def test_the_end_of_the_certificate_that_is_served_is_told(tmp_path):
    authority = Authority()
    issued = authority.issue(tmp_path, "server", dns=["localhost"], addresses=["127.0.0.1"])
    settings = {
        "data_dir": tmp_path / "data",
        "listen": ANY_PORT,
        "metrics_listen": ANY_PORT,
        "tls_certificate": issued.certificate,
        "tls_key": issued.key,
    }
    async with open_server(load_settings(settings)) as server:
        found = await scrape(server.metrics_address)
    (certificate,) = x509.load_pem_x509_certificates(issued.certificate.read_bytes())[:1]
    ends = certificate.not_valid_after_utc.timestamp()
    assert found.value("agenttx_certificate_expiry_timestamp_seconds") == ends


async def test_each_process_of_several_has_metrics_of_its_own_and_tells_of_its_lease(tmp_path):
    with (
        shared_cluster().database() as database,
        server_process(
            tmp_path,
            database_url=database,
            workers=2,
            fs_adopt=True,
            lease_seconds=20,
            metrics_listen=ANY_PORT,
        ) as server,
    ):
        server.wait_for_event("serving")
        told = {event["metrics"] for event in server.events() if event["event"] == "serving"}
        found = [await scrape(ListenAddress.parse(address)) for address in told]
    assert len(found) == 2
    assert all(0 < one.value("agenttx_lease_seconds_left") <= 20 for one in found)


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
