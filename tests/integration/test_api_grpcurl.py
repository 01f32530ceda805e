"""The server as grpcurl sees it, which has nothing but reflection to go by."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.running_server import server_process

GRPCURL = shutil.which("grpcurl") or shutil.which("grpcurl", path=str(Path(sys.executable).parent))
SERVICE = "agenttx.v1.AgentTxService"
BEYOND_DOUBLES = 2**53 + 1

pytestmark = pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_process(tmp_path_factory.mktemp("data"), tools="tests.support.sample_tools") as process:
        yield process


def run(server, *arguments, body=None, standard_input=None):
    """Run grpcurl as a person would: options, address, what to do."""
    options = [] if body is None else ["-d", body if isinstance(body, str) else json.dumps(body)]
    return subprocess.run(
        [GRPCURL, "-plaintext", *options, server.address, *arguments],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=60,
    )


def call(server, method, body, **more):
    done = run(server, f"{SERVICE}/{method}", body=body, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def begin(server):
    return call(server, "BeginTransaction", {"agent_id": "me"})["transaction_id"]


def test_services_and_methods_are_listed(server):
    services = run(server, "list").stdout.split()
    methods = run(server, "list", SERVICE).stdout.split()

    assert {
        SERVICE,
        "agenttx.v1.ToolService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    } <= set(services)
    assert f"{SERVICE}.ExecuteStep" in methods


def test_everything_can_be_described(server):
    everything = run(server, "describe")
    message = run(server, "describe", "agenttx.v1.ExecuteStepRequest")

    assert everything.returncode == 0, everything.stderr
    assert "rpc ExecuteStep (" in everything.stdout
    assert "string arguments_json = 4;" in message.stdout


def test_health_can_be_asked(server):
    done = run(server, "grpc.health.v1.Health/Check", body={"service": SERVICE})

    assert json.loads(done.stdout) == {"status": "SERVING"}


def test_a_whole_transaction(server):
    transaction = begin(server)

    put = call(
        server,
        "ExecuteStep",
        {
            "transaction_id": transaction,
            "step_id": 1,
            "tool_name": "kv.put",
            "arguments": {"key": "colour", "value": {"name": "green", "hex": [0, 128, 0]}},
        },
    )
    assert put["status"] == "STEP_STATUS_SUCCESS"
    assert put["output"]["value"] == {"name": "green", "hex": [0, 128, 0]}

    failed = call(
        server,
        "ExecuteStep",
        {"transaction_id": transaction, "step_id": 2, "tool_name": "kv.put", "arguments": {"key": "x"}},
    )
    assert failed["status"] == "STEP_STATUS_ROLLBACK_TRIGGERED"
    assert failed["clean_hint"].startswith("Hint: ")

    again = call(
        server,
        "ExecuteStep",
        {
            "transaction_id": transaction,
            "step_id": failed["next_step_id"],
            "tool_name": "kv.put",
            "arguments_json": '{"key":"colour","value":"red"}',
        },
    )
    rewound = call(server, "Rewind", {"transaction_id": transaction, "to_step": 1})
    assert (again["next_step_id"], rewound["next_step_id"]) == (2, 1)
    committed = call(server, "CommitTransaction", {"transaction_id": transaction})
    assert committed["committed"] is True
    events = run(server, f"{SERVICE}/WatchTransaction", body={"transaction_id": transaction})
    assert "EVENT_TYPE_TRANSACTION_COMMITTED" in events.stdout


def test_the_body_can_come_from_standard_input(server):
    answer = call(server, "BeginTransaction", "@", standard_input='{"agent_id": "me"}')

    assert answer["next_step_id"] == 1


def test_a_misspelt_field_is_an_error(server):
    done = run(server, f"{SERVICE}/BeginTransaction", body={"agent": "me"})

    assert done.returncode != 0
    assert "agent" in done.stderr


def test_a_number_beyond_doubles_is_exact_as_text_and_refused_with_advice_as_a_struct(server):
    transaction = begin(server)
    step = {"transaction_id": transaction, "step_id": 1, "tool_name": "sample.echo"}

    refused = run(server, f"{SERVICE}/ExecuteStep", body=step | {"arguments": {"value": BEYOND_DOUBLES}})
    exact = call(server, "ExecuteStep", step | {"arguments_json": f'{{"value":{BEYOND_DOUBLES}}}'})

    assert refused.returncode != 0
    assert "InvalidArgument" in refused.stderr
    assert "arguments_json" in refused.stderr
    assert exact["output_json"] == str(BEYOND_DOUBLES)


def test_what_is_not_text_is_carried_as_base64(server):
    transaction = begin(server)
    text = "AAECAwT//g=="

    answer = call(
        server,
        "ExecuteStep",
        {
            "transaction_id": transaction,
            "step_id": 1,
            "tool_name": "sample.echo",
            "arguments": {"value": text},
        },
    )

    assert json.loads(answer["output_json"]) == text


def test_errors_show_their_details(server):
    done = run(server, f"{SERVICE}/CommitTransaction", body={"transaction_id": "nobody"})

    assert done.returncode != 0
    assert "NotFound" in done.stderr
    assert "TRANSACTION_NOT_FOUND" in done.stderr
