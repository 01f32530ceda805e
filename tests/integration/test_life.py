"""A server's life as those see it who start, stop and probe it: SIGTERM, recovery, keepalive, health."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from tests.support.calls import begin, refused, step
from tests.support.held_steps import Held, until, watched
from tests.support.postgres_cluster import PostgresCluster
from tests.support.running_server import running_server, server_process, start_process
from tests.support.sample_tools import read_keys, read_log

import agenttx
from agenttx import HealthStatus, RetryPolicy, TransactionStatus
from agenttx.endpoint import Endpoint
from agenttx.v1 import transaction_pb2_grpc
from agenttx_server.api import server as api_server

TOOLS = "tests.support.life_tools"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ONCE = RetryPolicy(max_attempts=1)
# As often as gRPC's clients will; and so many are enough for a server that minds to have cut them off.
PING_SECONDS = 1
PINGS_TOLERATED = 6


# --- SIGTERM (case C39) -------------------------------------------------------------------------


def test_a_step_within_the_grace_ends_and_is_answered_and_health_has_said_so_first(tmp_path: Path) -> None:
    with server_process(tmp_path / "data", tools=TOOLS, drain_timeout_seconds=10) as server:
        held = Held(server.address, tmp_path, "irreversible")
        with (
            agenttx.Client(server.address, retry=ONCE) as other,
            watched(server.address, "readiness") as told,
        ):
            server.terminate()
            # Health says so before a call is refused, so whoever asks first is never surprised.
            until(lambda: NOT_SERVING in told)
            until(lambda: _is_refused(other))
            assert other.health("liveness") is HealthStatus.SERVING
            held.gate.touch()
            assert held.joined().output == {"entry": "room"}
        assert server.wait() == 0
        assert read_log(held.log) == ["effect room"]


def _is_refused(client: agenttx.Client) -> bool:
    try:
        client.transaction(agent_id="late").begin()
    except agenttx.Unavailable:
        return True
    return False


# What recovery makes of a step that outlived the grace: what the log says then, and the transaction's status.
RECOVERED = {
    "read_only": (["effect", "effect"], "ACTIVE"),
    "transactional": (["effect", "effect"], "ACTIVE"),
    "idempotent": (["effect", "effect"], "ACTIVE"),
    "compensatable": (["effect", "undo", "effect"], "ACTIVE"),
    "irreversible": (["effect"], "IN_DOUBT"),
}


@pytest.mark.parametrize("effects", RECOVERED)
def test_a_step_beyond_the_grace_is_interrupted_and_recovered_at_the_next_start(
    tmp_path: Path, effects: str
) -> None:
    with server_process(tmp_path / "data", tools=TOOLS, drain_timeout_seconds=1) as server:
        held = Held(server.address, tmp_path, effects)
        server.terminate()
        assert server.wait() == 0
        assert isinstance(held.joined(), agenttx.Unavailable | agenttx.Cancelled)
        assert "steps still running" in [event["event"] for event in server.events()]
    held.gate.touch()
    lines, status = RECOVERED[effects]

    with server_process(tmp_path / "data", tools=TOOLS) as server, agenttx.Client(server.address) as client:
        if effects == "irreversible":
            with pytest.raises(agenttx.StepInDoubt):
                held.again(client)
        else:
            assert held.again(client).output == {"entry": "room"}
        info = client.get_transaction(held.transaction_id)
        attempts = list(client.list_steps(held.transaction_id))

    assert read_log(held.log) == [f"{line} room" for line in lines]
    assert info.status == status
    keys = read_keys(held.log)
    if effects == "idempotent":
        assert keys[0] == keys[1]
    if effects == "compensatable":
        assert keys[0] == keys[1] != keys[2]
    live = [attempt for attempt in attempts if attempt.state in ("COMPLETED", "IN_DOUBT")]
    assert [(attempt.step_id, attempt.request_id) for attempt in live] == [(1, "once")]


def test_told_twice_it_ends_at_once(tmp_path: Path) -> None:
    with server_process(tmp_path / "data", tools=TOOLS, drain_timeout_seconds=3600) as server:
        held = Held(server.address, tmp_path, "read_only")
        server.terminate()
        server.wait_for_event("draining")
        server.terminate()
        assert server.wait() == 128 + signal.SIGTERM
        assert isinstance(held.joined(), agenttx.RpcError)


def _can_unshare() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and not subprocess.run([unshare, "--pid", "--fork", "true"]).returncode


@pytest.mark.skipif(not _can_unshare(), reason="a PID namespace can't be made here")
def test_as_the_first_process_of_a_container_it_heeds_sigterm_too(tmp_path: Path) -> None:
    """The kernel delivers no signal to process 1 that has no handler for it, so none may be left to the default."""
    with server_process(
        tmp_path / "data", prefix=("unshare", "--pid", "--fork"), tools=TOOLS, drain_timeout_seconds=600
    ) as server:
        held = Held(server.address, tmp_path, "read_only")
        (first,) = _children(server.process.pid)
        status = Path(f"/proc/{first}/status").read_text()
        assert [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid")] == ["1"]
        os.kill(first, signal.SIGTERM)
        server.wait_for_event("draining")
        held.gate.touch()
        assert held.joined().succeeded
        assert server.wait() == 0


@pytest.mark.skipif(not _can_unshare(), reason="a PID namespace can't be made here")
def test_as_the_first_process_a_second_sigterm_ends_it(tmp_path: Path) -> None:
    with server_process(
        tmp_path / "data", prefix=("unshare", "--pid", "--fork"), tools=TOOLS, drain_timeout_seconds=600
    ) as server:
        held = Held(server.address, tmp_path, "read_only")
        (first,) = _children(server.process.pid)
        os.kill(first, signal.SIGTERM)
        server.wait_for_event("draining")
        os.kill(first, signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        assert isinstance(held.joined(), agenttx.RpcError)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- starting -----------------------------------------------------------------------------------


def test_health_says_no_until_what_was_left_behind_is_recovered(tmp_path: Path) -> None:
    socket = f"unix:{tmp_path / 's'}"
    with server_process(tmp_path / "data", listen=socket, tools=TOOLS) as server:
        held = Held(server.address, tmp_path, "idempotent")
        server.kill()
        held.joined()

    server = start_process(tmp_path / "data", listen=socket, tools=TOOLS, recovery_wait_seconds=3600)
    try:
        until(lambda: len(read_log(held.log)) == 2)  # the recorded intent is at its gate again
        with agenttx.Client(socket) as client:
            assert client.health() is HealthStatus.NOT_SERVING
            assert client.health("readiness") is HealthStatus.NOT_SERVING
            assert client.health("agenttx.v1.AgentTxService") is HealthStatus.NOT_SERVING
            assert client.health("liveness") is HealthStatus.SERVING
            assert client.get_transaction(held.transaction_id).status is TransactionStatus.EXECUTING
            held.gate.touch()
            server.wait_for_event("serving")
            assert client.health("readiness") is HealthStatus.SERVING
            assert held.again(client).output == {"entry": "room"}
    finally:
        server.kill()
        server.wait()


def test_a_recovery_that_takes_longer_than_the_wait_goes_on_while_others_are_served(tmp_path: Path) -> None:
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        held = Held(server.address, tmp_path, "idempotent")
        server.kill()
        held.joined()

    with (
        server_process(tmp_path / "data", tools=TOOLS, recovery_wait_seconds=0.1) as server,
        agenttx.Client(server.address) as client,
    ):
        assert client.health() is HealthStatus.SERVING
        with client.transaction(agent_id="other") as other:
            other.step("kv.put", key="other", value=1)
        assert client.get_transaction(held.transaction_id).status is TransactionStatus.EXECUTING
        held.gate.touch()
        assert held.again(client).attempt == 1


def test_a_postgresql_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with PostgresCluster() as cluster, cluster.database() as address:
        cluster.stop("fast")
        server = start_process(tmp_path, database_url=address)
        assert server.wait() == 78
        (line,) = server.log
        assert line.startswith("agenttx: ")
        cluster.start()


# --- keepalive (case C40) -----------------------------------------------------------------------


def test_the_sdk_pings_no_more_often_than_the_server_allows() -> None:
    options = dict(Endpoint.resolve("127.0.0.1:1", token=None, tls=None).channel_options())
    assert options["grpc.keepalive_time_ms"] > api_server.LEAST_PING_INTERVAL_MS
    assert api_server.LEAST_PING_INTERVAL_MS < 10_000


@pytest.mark.parametrize(("least_ms", "is_cut"), [(500, False), (60_000, True)])
async def test_pings_during_a_silent_step_and_without_calls_are_no_offence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_ms: int, is_cut: bool
) -> None:
    """A client pings as often as gRPC lets it; where the server allows less, the same client is cut off."""
    monkeypatch.setattr(api_server, "LEAST_PING_INTERVAL_MS", least_ms)
    pings = (
        ("grpc.keepalive_time_ms", PING_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    )
    async with (
        running_server(data_dir=tmp_path, tools=["tests.support.sample_tools"]) as server,
        grpc.aio.insecure_channel(server.address, options=pings) as channel,
    ):
        stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
        transaction_id = await begin(stub)
        silent = {"seconds": PINGS_TOLERATED * PING_SECONDS}
        if is_cut:
            refusal = await refused(step(stub, transaction_id, 1, "sample.slow", silent))
            assert (refusal.code, refusal.message) == (grpc.StatusCode.UNAVAILABLE, "Too many pings")
            return
        assert (await step(stub, transaction_id, 1, "sample.slow", silent)).next_step_id == 2
        # Then no call: the connection is still there afterwards, and is the same one.
        changed = asyncio.ensure_future(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        await asyncio.wait((changed,), timeout=PINGS_TOLERATED * PING_SECONDS)
        assert not changed.done()
        changed.cancel()
        assert (await step(stub, transaction_id, 2, "sample.slow", {"seconds": 0})).next_step_id == 3
