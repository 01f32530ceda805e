# ruff: noqa: PT012 - how a block ends is what is tested here, and a block has statements
"""What only the asynchronous client has: loops, tasks, cancellation, coroutines in plans."""

import asyncio
import threading

import grpc
import pytest
from tests.support.stub_server import StubServer

from agenttx import AsyncClient, Done, RetryPolicy, Step, StepUnsettled, StreamOpen


def test_a_client_may_be_made_before_any_loop_runs_and_outlive_one(server: StubServer):
    client = AsyncClient(server.address)

    async def one(number):
        async with client.transaction(agent_id="a") as tx:
            return (await tx.step("echo", n=number))["n"]

    assert asyncio.run(one(1)) == 1
    server.status, server.next_step = "ACTIVE", 1
    assert asyncio.run(one(2)) == 2


async def test_tasks_of_one_transaction_take_turns(server: StubServer):
    async with AsyncClient(server.address) as client, client.transaction(agent_id="a") as tx:
        outcomes = await asyncio.gather(*(tx.step("echo", n=n) for n in range(10)))

    assert [outcome["n"] for outcome in outcomes] == list(range(10))
    assert sorted(outcome.step_id for outcome in outcomes) == list(range(1, 11))


async def test_a_cancelled_step_goes_on_and_is_settled_later(server: StubServer):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda: "done"
    async with AsyncClient(server.address) as client:
        tx = await client.transaction(agent_id="a").begin()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tx.step("slow")
        with pytest.raises(StepUnsettled):
            await tx.step("echo")
        gate.set()
        (outcome,) = await tx.settle()

        assert outcome.output == "done"
        assert len(server.runs) == 1
        await tx.commit()


async def test_a_cancelled_block_is_rolled_back(server: StubServer):
    begun = asyncio.Event()

    async def agent(client):
        async with client.transaction(agent_id="a") as tx:
            await tx.step("echo")
            begun.set()
            await asyncio.Event().wait()

    async with AsyncClient(server.address) as client:
        task = asyncio.create_task(agent(client))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert server.status == "ROLLED_BACK"
    assert server.requests("RollbackTransaction")[0].reason == "the client's block ended with CancelledError"


async def test_a_call_inside_a_stream_block_is_refused_and_does_not_wait_for_itself(server: StubServer):
    async with AsyncClient(server.address) as client, client.transaction(agent_id="a") as tx:
        async with tx.stream() as steps:
            await steps.step("echo")
            with pytest.raises(StreamOpen):
                await tx.step("echo")
            with pytest.raises(StreamOpen):
                await tx.stream().__aenter__()
            with pytest.raises(StreamOpen):
                # Other tasks, but the block waits for them.
                await asyncio.gather(tx.step("echo"), tx.refresh())
            await steps.step("echo")
        await tx.step("echo")
    assert [step for step, _, _ in server.runs] == [1, 2, 3]


async def test_tasks_may_share_a_stream(server: StubServer):
    async with (
        AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as tx,
        tx.stream() as steps,
    ):
        outcomes = await asyncio.gather(*(steps.step("echo", n=n) for n in range(20)))
    assert [outcome["n"] for outcome in outcomes] == list(range(20))


async def test_a_task_from_outside_the_block_waits_for_its_end(server: StubServer):
    async with AsyncClient(server.address) as client, client.transaction(agent_id="a") as tx:
        opened = asyncio.Event()

        async def outside():
            await opened.wait()
            return (await tx.step("echo")).step_id

        task = asyncio.create_task(outside())
        async with tx.stream() as steps:
            opened.set()
            for _ in range(5):
                await steps.step("echo")
        assert await task == 6


async def test_a_stream_block_that_is_cancelled_owes_what_it_sent(server: StubServer):
    gate = server.gates["slow"] = threading.Event()
    server.tools["slow"] = lambda: "done"
    async with AsyncClient(server.address) as client:
        tx = await client.transaction(agent_id="a").begin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), tx.stream() as steps:
                await steps.submit("slow")
                await (await steps.submit("echo")).result()
        gate.set()
        assert [outcome.step_id for outcome in await tx.settle()] == [1, 2]
        assert len(server.runs) == 2
        await tx.commit()


async def test_plans_may_be_made_of_coroutines(server: StubServer):
    async def chosen(state):
        await asyncio.sleep(0)
        return Step("echo", {"n": state.step_id})

    async with AsyncClient(server.address) as client:
        report = await client.run(
            [chosen, lambda state: Step("echo", {"n": 2}), [chosen, chosen]], agent_id="a"
        )
    assert report.outputs == ({"n": 1}, {"n": 2}, {"n": 3}, {"n": 3})


async def test_an_asynchronous_function_or_generator_may_be_the_agent(server: StubServer):
    async def next_action(state):
        return Step("echo", {"n": 1}) if state.step_id == 1 else Done("over")

    async def agent():
        state = yield Step("echo", {"n": 1})
        yield Step("echo", {"n": state.step_id})

    async with AsyncClient(server.address) as client:
        assert (await client.run(next_action, agent_id="a")).result == "over"
        server.status, server.next_step = "ACTIVE", 1
        assert (await client.run(agent(), agent_id="a")).outputs == ({"n": 1}, {"n": 2})


async def test_a_hundred_transactions_at_once_share_one_connection(server: StubServer):
    # The stub has only one transaction; what is looked at here is the client.
    async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        results = await asyncio.gather(*(client.get_transaction("tx-1") for _ in range(100)))
    assert len(results) == 100


async def test_a_write_that_fails_is_a_broken_connection_although_grpc_calls_it_internal(
    server: StubServer, monkeypatch
):
    class Broken:
        async def write(self, request):
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
            )

        def cancel(self):
            pass

    async with AsyncClient(server.address) as client, client.transaction(agent_id="a") as tx:
        connection = client._connection
        open_stream = connection.duplex
        broken = [Broken(), Broken()]

        async def duplex(method):
            return broken.pop() if broken else await open_stream(method)

        monkeypatch.setattr(connection, "duplex", duplex)
        async with tx.stream() as steps:
            assert (await steps.step("echo", n=1))["n"] == 1
    assert len(server.runs) == 1
