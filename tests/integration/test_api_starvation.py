"""Tools that block threads never keep anybody else waiting."""

import asyncio

from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.calls import begin, get, step_request
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api import step_calls

THREADS = 4
SURPLUS = 20


async def test_blocking_tools_on_every_thread_hold_up_neither_health_nor_reads():
    """As many blocking steps as there are threads and 20 more; the answers come before a step is done."""
    async with running_server(tools="tests.support.sample_tools", tool_threads=THREADS) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        transactions = [await begin(server.stub) for _ in range(THREADS + SURPLUS)]
        steps = [
            asyncio.ensure_future(
                server.stub.ExecuteStep(
                    step_request(transaction, 1, "sample.block", {"seconds": 1.0, "value": 1})
                )
            )
            for transaction in transactions
        ]
        answered_while_blocked = 0
        while not any(step.done() for step in steps):
            status = await health.Check(health_pb2.HealthCheckRequest())
            assert status.status == health_pb2.HealthCheckResponse.SERVING
            await get(server.stub, transactions[0])
            answered_while_blocked += 1
        for step in steps:
            step.cancel()

    # One blocked loop would have let none through until the first step was done.
    assert answered_while_blocked > 10


async def test_more_blocking_steps_than_threads_are_queued_and_all_done():
    async with running_server(tools="tests.support.sample_tools", tool_threads=2) as server:
        transactions = [await begin(server.stub) for _ in range(10)]

        answers = await asyncio.gather(
            *(
                server.stub.ExecuteStep(
                    step_request(transaction, 1, "sample.block", {"seconds": 0.02, "value": number})
                )
                for number, transaction in enumerate(transactions)
            )
        )

    assert [answer.output_json for answer in answers] == [str(number) for number in range(10)]
    assert {answer.status for answer in answers} == {pb.STEP_STATUS_SUCCESS}


async def test_megabytes_of_struct_are_converted_beside_everybody_else(monkeypatch):
    """Value by value in Python, they would keep the event loop from all others for a second."""
    on_threads = []
    real = asyncio.to_thread

    async def to_thread(function, *arguments, **keywords):
        on_threads.append(function.__name__)
        return await real(function, *arguments, **keywords)

    monkeypatch.setattr(step_calls.asyncio, "to_thread", to_thread)
    async with running_server(tools="tests.support.sample_tools") as server:
        transaction = await begin(server.stub)
        small = pb.ExecuteStepRequest(transaction_id=transaction, step_id=1, tool_name="sample.echo")
        small.arguments["value"] = {"a": [1]}
        await server.stub.ExecuteStep(small)
        assert "step_request" not in on_threads

        large = pb.ExecuteStepRequest(transaction_id=transaction, step_id=2, tool_name="sample.echo")
        large.arguments["value"] = {"a": [1] * 50_000}
        answer = await server.stub.ExecuteStep(large)
        group = pb.ExecuteStepGroupRequest(transaction_id=transaction, step_id=3)
        group.members.add(tool_name="sample.echo").arguments["value"] = {"a": [1] * 50_000}
        await server.stub.ExecuteStepGroup(group)

    assert len(answer.output["a"]) == 50_000
    assert {"step_request", "group_request", "_responses"} <= set(on_threads)
