"""A server as a process: how it starts, what it says when it can't, and how it ends."""

import os
import socket
import sqlite3
import stat
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.running_server import server_process, start_process

from agenttx.v1 import transaction_pb2 as pb
from agenttx.v1 import transaction_pb2_grpc

TOOLS = "tests.support.sample_tools"


@pytest.fixture
def connect():
    channels = []

    def connected(process):
        channel = grpc.insecure_channel(process.address, options=[("grpc.use_local_subchannel_pool", 1)])
        channels.append(channel)
        return channel

    yield connected
    for channel in channels:
        channel.close()


def begin(stub):
    return stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="a")).transaction_id


def start_waiting_step(stub, gate, request_id="r1"):
    """Start a step that ends when the gate file is there; return its transaction, request and pending answer."""
    transaction = begin(stub)
    request = pb.ExecuteStepRequest(
        transaction_id=transaction,
        step_id=1,
        tool_name="sample.wait_for_file",
        arguments_json=f'{{"path":"{gate}","value":"done"}}',
        request_id=request_id,
    )
    answer = stub.ExecuteStep.future(request)
    while stub.GetTransaction(pb.GetTransactionRequest(transaction_id=transaction)).status != "EXECUTING":
        pass
    return transaction, request, answer


def first_refusal(stub):
    """Begin transactions until one is refused: NOT_SERVING comes first, so some may still be served."""
    while True:
        try:
            begin(stub)
        except grpc.RpcError as refusal:
            return refusal


def refusal_line(started):
    """Return what a server that can't start says: exactly one line."""
    assert started.wait() == 78, started.log
    (line,) = started.log
    assert line.startswith("agenttx: ")
    return line


# --- ending -----------------------------------------------------------------------------------


def test_sigterm_lets_running_steps_end_and_exits_with_0(tmp_path, connect):
    gate = tmp_path / "gate"
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        channel = connect(server)
        stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        transaction, _, answer = start_waiting_step(stub, gate)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING

        server.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert first_refusal(stub).code() is grpc.StatusCode.UNAVAILABLE
        gate.touch()
        assert answer.result(30).output_json == '"done"'
        assert server.wait() == 0

    with server_process(tmp_path / "data", tools=TOOLS) as again:
        stub = transaction_pb2_grpc.AgentTxServiceStub(connect(again))
        assert stub.GetTransaction(pb.GetTransactionRequest(transaction_id=transaction)).next_step_id == 2


def test_an_idle_server_with_open_streams_ends_at_once(tmp_path, connect):
    with server_process(tmp_path, drain_timeout_seconds=3600) as server:
        channel = connect(server)
        stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
        watch = stub.WatchTransaction(pb.WatchTransactionRequest(transaction_id=begin(stub)))
        next(watch)
        healths = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        next(healths)

        server.terminate()

        assert server.wait() == 0
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "resume from sequence 2" in ended.value.details()


def test_a_second_sigterm_ends_at_once(tmp_path, connect):
    with server_process(tmp_path, tools=TOOLS, drain_timeout_seconds=3600) as server:
        stub = transaction_pb2_grpc.AgentTxServiceStub(connect(server))
        _, _, unanswered = start_waiting_step(stub, tmp_path / "never")
        server.terminate()
        server.wait_for_event("draining")
        server.terminate()

        assert server.wait() == 128 + 15
        assert isinstance(unanswered.exception(), grpc.RpcError)


@pytest.mark.parametrize("tool", ["sample.wait_for_file", "sample.block"])
def test_a_step_that_outlasts_the_drain_timeout_does_not_hold_the_end(tmp_path, connect, tool):
    with server_process(tmp_path, tools=TOOLS, drain_timeout_seconds=0.2) as server:
        stub = transaction_pb2_grpc.AgentTxServiceStub(connect(server))
        transaction = begin(stub)
        arguments = '{"path":"/nowhere/at/all"}' if tool == "sample.wait_for_file" else '{"seconds":3600}'
        unanswered = stub.ExecuteStep.future(
            pb.ExecuteStepRequest(
                transaction_id=transaction, step_id=1, tool_name=tool, arguments_json=arguments
            )
        )
        while stub.GetTransaction(pb.GetTransactionRequest(transaction_id=transaction)).status != "EXECUTING":
            pass
        server.terminate()

        assert server.wait() == 0
        assert isinstance(unanswered.exception(), grpc.RpcError)
        assert "steps still running" in [event["event"] for event in server.events()]


def test_a_killed_server_lets_the_next_one_start_and_keeps_what_it_answered(tmp_path, connect):
    with server_process(tmp_path) as server:
        stub = transaction_pb2_grpc.AgentTxServiceStub(connect(server))
        transaction = begin(stub)
        server.kill()

    with server_process(tmp_path) as again:
        stub = transaction_pb2_grpc.AgentTxServiceStub(connect(again))
        assert stub.GetTransaction(pb.GetTransactionRequest(transaction_id=transaction)).status == "ACTIVE"


# --- starting ---------------------------------------------------------------------------------


def test_a_port_in_use_is_one_clear_line(tmp_path):
    with server_process(tmp_path / "a") as first:
        second = start_process(tmp_path / "b", listen=first.address)
        line = refusal_line(second)

    assert line == (
        f"agenttx: can't listen on {first.address}: the address is in use by another process; stop that one, or give "
        "another --listen (with port 0 the system picks a free one)"
    )


def test_a_port_shared_by_somebody_else_is_not_taken(tmp_path):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        line = refusal_line(start_process(tmp_path, listen=f"127.0.0.1:{other.getsockname()[1]}"))

    assert "in use" in line


def test_nobody_can_take_a_share_of_the_port_afterwards(tmp_path):
    with server_process(tmp_path) as server, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        host, _, port = server.address.rpartition(":")

        with pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))


def test_a_database_in_use_is_one_clear_line(tmp_path):
    with server_process(tmp_path) as first:
        line = refusal_line(start_process(tmp_path))
        assert first.process.poll() is None

    assert "in use" in line
    assert str(first.process.pid) in line


def test_a_newer_database_is_one_clear_line(tmp_path):
    with server_process(tmp_path) as server:
        server.terminate()
        server.wait()
    with sqlite3.connect(tmp_path / "agenttx.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999_from_the_future'")
    database.close()

    line = refusal_line(start_process(tmp_path))

    assert "newer" in line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tools": "no_such_module:TOOLS"}, "no_such_module"),
        ({"tools": "tests.support.sample_tools:NOTHING"}, "NOTHING"),
        ({"listen": "host.invalid:50051"}, "host.invalid"),
        ({"listen": "192.0.2.1:50051"}, "192.0.2.1"),
        ({"database_url": "mysql://somewhere/db"}, "mysql"),
    ],
)
def test_what_can_not_be_served_is_one_clear_line(tmp_path, settings, said):
    assert said in refusal_line(start_process(tmp_path, **settings))


def test_a_data_directory_that_can_not_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")

    assert "file/data" in refusal_line(start_process(tmp_path / "file" / "data"))


def test_bad_settings_are_one_line_that_names_them_all(tmp_path):
    started = start_process(tmp_path, log_level="loud", tool_threads=0)

    assert started.wait() == 1
    (line,) = started.log
    assert "AGENTTX_LOG_LEVEL" in line
    assert "AGENTTX_TOOL_THREADS" in line


# --- Unix sockets -----------------------------------------------------------------------------


def test_a_unix_socket_is_served_with_its_mode_and_removed_at_the_end(tmp_path, connect):
    path = tmp_path / "agenttx.sock"
    with server_process(tmp_path / "data", listen=f"unix:{path}", unix_socket_mode="600") as server:
        assert server.address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert begin(transaction_pb2_grpc.AgentTxServiceStub(connect(server)))
        server.terminate()
        assert server.wait() == 0
    assert not path.exists()


def test_a_unix_socket_that_is_served_is_not_taken_away(tmp_path, connect):
    path = tmp_path / "agenttx.sock"
    with server_process(tmp_path / "a", listen=f"unix:{path}") as first:
        line = refusal_line(start_process(tmp_path / "b", listen=f"unix:{path}"))

        assert "another server" in line
        assert begin(transaction_pb2_grpc.AgentTxServiceStub(connect(first)))


def test_a_socket_left_by_a_killed_server_is_replaced(tmp_path, connect):
    path = tmp_path / "agenttx.sock"
    with server_process(tmp_path / "a", listen=f"unix:{path}") as first:
        first.kill()
    assert path.exists()

    with server_process(tmp_path / "a", listen=f"unix:{path}") as second:
        assert begin(transaction_pb2_grpc.AgentTxServiceStub(connect(second)))


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("keep me")

    line = refusal_line(start_process(tmp_path / "data", listen=f"unix:{path}"))

    assert "no socket" in line
    assert path.read_text() == "keep me"


# --- the log ----------------------------------------------------------------------------------


def test_a_call_is_one_line_without_its_arguments(tmp_path, connect):
    with server_process(tmp_path, tools=TOOLS) as server:
        channel = connect(server)
        stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
        transaction = begin(stub)
        stub.ExecuteStep(
            pb.ExecuteStepRequest(
                transaction_id=transaction,
                step_id=1,
                tool_name="kv.put",
                arguments_json='{"key":"token","value":"hunter2"}',
                raw_context="hunter2",
                request_id="r1\n{}",
            )
        )
        with pytest.raises(grpc.RpcError):
            stub.ExecuteStep(
                pb.ExecuteStepRequest(transaction_id=transaction, step_id=9, tool_name="hunter2")
            )
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        server.terminate()
        server.wait()

    calls = [event for event in server.events() if event["event"] == "rpc"]
    assert [(call["method"], call["code"]) for call in calls] == [
        ("BeginTransaction", "OK"),
        ("ExecuteStep", "OK"),
        ("ExecuteStep", "FAILED_PRECONDITION"),
    ]
    assert all(call["ms"] >= 0 for call in calls)
    assert {call["transaction"] for call in calls} == {transaction}
    assert (calls[1]["step"], calls[1]["request_id"]) == (1, "r1\\n{}")
    assert calls[2]["reason"] == "STEP_OUT_OF_ORDER"
    assert all(line.startswith("{") for line in server.log)
    assert not any("hunter2" in line for line in server.log)


def test_the_modules_do_nothing_when_they_are_imported(tmp_path):
    script = (
        "import os, threading, sys\n"
        "import agenttx_server.main\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert os.environ['GRPC_VERBOSITY'] == 'ERROR'\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_calls_are_answered_when_nobody_reads_the_log_any_more(tmp_path):
    reading, writing = os.pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTTX_")}
    socket_path = tmp_path / "s"
    process = subprocess.Popen(
        [sys.executable, "-m", "agenttx_server.command_line", "serve"],
        stderr=writing,
        env=environment
        | {"AGENTTX_DATA_DIR": str(tmp_path / "data"), "AGENTTX_LISTEN": f"unix:{socket_path}"},
    )
    os.close(writing)
    try:
        with open(reading) as log:
            assert "serving" in log.readline()
        with grpc.insecure_channel(f"unix:{socket_path}") as channel:
            stub = transaction_pb2_grpc.AgentTxServiceStub(channel)
            transaction = begin(stub)
            assert stub.GetTransaction(pb.GetTransactionRequest(transaction_id=transaction)).next_step_id == 1
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
