"""The standard services beside ours: health, and reflection under both of its names."""

import asyncio

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from tests.support.calls import begin, get, refused, step_request, wait_until_executing
from tests.support.running_server import running_server

from agenttx_server.api.health import Health
from agenttx_server.api.health_monitor import SHORT_INTERVAL_SECONDS, follow_database
from agenttx_server.engine.ports import StoreUnavailable

SERVICE = "agenttx.v1.AgentTxService"
TOOL_SERVICE = "agenttx.v1.ToolService"
GRAPH_SERVICE = "agenttx.v1.GraphService"
PIPELINE_SERVICE = "agenttx.v1.PipelineService"
AUDIT_SERVICE = "agenttx.v1.AuditService"
LINEAGE_SERVICE = "agenttx.v1.LineageService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
async def server():
    async with running_server() as running:
        yield running


def health_of(server):
    return health_pb2_grpc.HealthStub(server.channel)


async def check(server, service=""):
    return (await health_of(server).Check(health_pb2.HealthCheckRequest(service=service))).status


@pytest.mark.parametrize("service", ["", SERVICE, GRAPH_SERVICE, TOOL_SERVICE, "liveness", "readiness"])
async def test_a_server_that_serves_says_so(server, service):
    assert await check(server, service) == SERVING


async def test_all_names_are_listed(server):
    listed = await health_of(server).List(health_pb2.HealthListRequest())

    assert {name: answer.status for name, answer in listed.statuses.items()} == dict.fromkeys(
        (
            "",
            SERVICE,
            GRAPH_SERVICE,
            PIPELINE_SERVICE,
            AUDIT_SERVICE,
            LINEAGE_SERVICE,
            TOOL_SERVICE,
            "liveness",
            "readiness",
        ),
        SERVING,
    )


async def test_an_unknown_service_is_not_found_by_check_and_unknown_to_watch(server):
    refusal = await refused(health_of(server).Check(health_pb2.HealthCheckRequest(service="no.Such")))
    watch = health_of(server).Watch(health_pb2.HealthCheckRequest(service="no.Such"))
    told = (await watch.read()).status
    watch.cancel()

    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert told == SERVICE_UNKNOWN


async def test_watchers_are_told_of_changes_only(server):
    watch = health_of(server).Watch(health_pb2.HealthCheckRequest())
    told = [(await watch.read()).status]
    server.server.api.health.set_serving(True)
    server.server.api.health.set_serving(False)
    told.append((await watch.read()).status)
    server.server.api.health.set_serving(True)
    told.append((await watch.read()).status)
    watch.cancel()

    assert told == [SERVING, NOT_SERVING, SERVING]


async def test_a_draining_server_says_not_serving_lives_and_refuses_calls(tmp_path):
    gate = tmp_path / "gate"
    async with running_server(tools="tests.support.sample_tools") as server:
        transaction = await begin(server.stub)
        running = server.stub.ExecuteStep(
            step_request(transaction, 1, "sample.wait_for_file", {"path": str(gate), "value": 1})
        )
        await wait_until_executing(server.stub, transaction)
        watch = health_of(server).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING

        draining = asyncio.create_task(server.server.drain())
        told = (await watch.read()).status
        statuses = [await check(server, name) for name in ("", SERVICE, "readiness", "liveness")]
        refusals = [await refused(call) for call in (begin(server.stub), get(server.stub, transaction))]
        server.server.api.health.set_serving(True)
        still = await check(server)
        gate.touch()
        answer = await running
        assert await draining == 0

    assert told == NOT_SERVING
    assert statuses == [NOT_SERVING, NOT_SERVING, NOT_SERVING, SERVING]
    assert still == NOT_SERVING
    for refusal in refusals:
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        assert refusal.reason == "DRAINING"
        assert refusal.retry_after_seconds is not None
    assert answer.output_json == "1"


async def test_a_watcher_does_not_hold_the_servers_end(monkeypatch):
    monkeypatch.setattr("agenttx_server.api.server.LAST_ANSWERS_SECONDS", 3600.0)
    async with asyncio.timeout(60), running_server() as server:
        # Not the channel that is closed before the server is.
        channel = grpc.aio.insecure_channel(server.address)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        await server.server.drain()
        assert (await watch.read()).status == NOT_SERVING
    refusal = await refused(watch.read())
    await channel.close()

    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert refusal.reason == "DRAINING"


async def test_health_follows_the_database():
    health = Health()
    statuses = []
    answers = iter([None, StoreUnavailable("gone"), StoreUnavailable("gone"), None])

    async def check_store():
        answer = next(answers)
        if answer is not None:
            raise answer

    async def sleep(seconds):
        told = await health.Check(health_pb2.HealthCheckRequest(), None)
        statuses.append((told.status, seconds))
        if len(statuses) == 5:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await follow_database(health, check_store, sleep)

    # While it is there it is looked after seldom: the second wait is the longer one.
    assert [status for status, _ in statuses] == [SERVING, SERVING, NOT_SERVING, NOT_SERVING, SERVING]
    assert statuses[2][1] < statuses[1][1]


async def test_a_call_that_the_database_did_not_serve_brings_the_next_look_forward():
    health = Health()
    looked = asyncio.Semaphore(0)

    async def check_store():
        looked.release()

    async def sleep(seconds):
        if seconds > SHORT_INTERVAL_SECONDS:
            await asyncio.Event().wait()  # for ever

    following = asyncio.create_task(follow_database(health, check_store, sleep))
    async with asyncio.timeout(30):
        await looked.acquire()
        for _ in range(3):
            health.doubt.set()
            await looked.acquire()
    following.cancel()


async def test_a_database_that_hangs_is_not_served_and_asked_once(monkeypatch):
    monkeypatch.setattr("agenttx_server.api.health_monitor.PATIENCE_SECONDS", 0.0)
    told = asyncio.Queue()
    answer = asyncio.Event()
    looks = 0

    class Told(Health):
        def set_serving(self, serving):
            super().set_serving(serving)
            told.put_nowait(serving)

    async def check_store():
        nonlocal looks
        looks += 1
        await answer.wait()

    following = asyncio.create_task(follow_database(Told(), check_store, asyncio.sleep))
    async with asyncio.timeout(30):
        assert await told.get() is False
        assert looks == 1
        answer.set()
        assert await told.get() is True
    following.cancel()


# --- reflection -------------------------------------------------------------------------------


async def ask(server, service, **question):
    call = server.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(**question))
    await call.done_writing()
    answer = await call.read()
    assert await call.read() is grpc.aio.EOF
    return answer


BOTH = pytest.mark.parametrize(
    "service", ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]
)


@BOTH
async def test_reflection_lists_the_services(server, service):
    answer = await ask(server, service, list_services="")

    names = {entry.name for entry in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


@BOTH
async def test_every_service_listed_can_be_described(server, service):
    listed = await ask(server, service, list_services="")

    for entry in listed.list_services_response.service:
        answer = await ask(server, service, file_containing_symbol=entry.name)
        assert answer.HasField("file_descriptor_response"), entry.name
    answer = await ask(server, service, file_containing_symbol=SERVICE)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in answer.file_descriptor_response.file_descriptor_proto
    ]
    (described,) = [own for file in files for own in file.service if own.name == "AgentTxService"]
    assert "ExecuteStep" in {method.name for method in described.method}


@BOTH
async def test_a_method_can_be_described(server, service):
    answer = await ask(server, service, file_containing_symbol=f"{SERVICE}.ExecuteStep")
    names = [
        descriptor_pb2.FileDescriptorProto.FromString(raw).name
        for raw in answer.file_descriptor_response.file_descriptor_proto
    ]
    assert "agenttx/v1/transaction.proto" in names

    unknown = await ask(server, service, file_containing_symbol=f"{SERVICE}.NoSuchMethod")
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_reflection_can_be_turned_off():
    async with running_server(reflection=False) as server:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ask(server, "grpc.reflection.v1.ServerReflection", list_services="")

    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
