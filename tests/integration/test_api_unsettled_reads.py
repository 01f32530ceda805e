"""Reads say what the contract promises of steps that run or are in doubt, of tools and of edges."""

import asyncio

import pytest
from tests.support.calls import begin, get, step, wait_until_executing
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
async def stub():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running.stub


async def _in_doubt(stub, tmp_path):
    transaction = await begin(stub)
    arguments = {"log": str(tmp_path / "log"), "entry": "e"}
    await step(stub, transaction, 1, "sample.lose_outcome", arguments, request_id="lost")
    return transaction


def _told(running):
    return (
        running.step_id,
        running.attempt,
        running.tool_name,
        running.effect_class,
        running.state,
        running.request_id,
    )


async def test_a_running_step_is_listed_with_its_tool_its_request_and_its_beginning(stub, tmp_path):
    transaction = await begin(stub)
    arguments = {"path": str(tmp_path / "go")}
    running = asyncio.create_task(
        step(stub, transaction, 1, "sample.wait_for_file", arguments, request_id="mine")
    )
    await wait_until_executing(stub, transaction)

    (listed,) = (await get(stub, transaction)).running_steps

    assert _told(listed) == (
        1,
        1,
        "sample.wait_for_file",
        pb.EFFECT_CLASS_READ_ONLY,
        pb.STEP_ATTEMPT_STATE_EXECUTING,
        "mine",
    )
    assert listed.started_at.seconds > 0
    (tmp_path / "go").touch()
    await running
    assert not (await get(stub, transaction)).running_steps


async def test_a_step_in_doubt_is_listed_as_not_settled(stub, tmp_path):
    transaction = await _in_doubt(stub, tmp_path)

    read = await get(stub, transaction)

    assert read.status == "IN_DOUBT"
    assert [_told(listed) for listed in read.running_steps] == [
        (
            1,
            1,
            "sample.lose_outcome",
            pb.EFFECT_CLASS_IRREVERSIBLE,
            pb.STEP_ATTEMPT_STATE_IN_DOUBT,
            "lost",
        )
    ]


async def test_a_step_in_doubt_is_no_completed_node_of_the_graph(stub, tmp_path):
    transaction = await _in_doubt(stub, tmp_path)

    graph = await stub.GetDependencyGraph(pb.GetDependencyGraphRequest(transaction_id=transaction))

    assert [node.state for node in graph.nodes] == [pb.STEP_ATTEMPT_STATE_IN_DOUBT]


async def test_a_held_rewind_is_named_in_lists_with_the_undo_that_failed(stub, tmp_path):
    transaction = await begin(stub)
    log = tmp_path / "log"
    await step(stub, transaction, 1, "sample.book", {"log": str(log), "entry": "e"})
    await step(stub, transaction, 2, "effect.stage", {"channel": "mail", "payload": {}})
    log.with_name("log.broken").touch()
    await stub.Rewind(pb.RewindRequest(transaction_id=transaction, to_step=1))

    (listed,) = (await stub.ListTransactions(pb.ListTransactionsRequest())).transactions

    read = await get(stub, transaction)
    assert listed.rollback_incomplete
    assert listed.pending_effects == read.pending_effects == 1
    assert [undo.action for undo in listed.failed_compensations] == ["sample.unbook"]
    assert list(listed.failed_compensations) == list(read.failed_compensations)


async def test_the_history_counts_the_repeats_in_place_of_an_attempt(stub):
    transaction = await begin(stub)
    await step(stub, transaction, 1, "sample.flaky", {"name": transaction, "failures": 2})
    await step(stub, transaction, 2, "sample.typed", {"count": "no number"})

    history = await stub.ListSteps(pb.ListStepsRequest(transaction_id=transaction))

    assert [(listed.step_id, listed.attempt, listed.tries) for listed in history.attempts] == [
        (1, 1, 3),
        (2, 1, 0),
    ]


async def test_edges_are_listed_by_the_step_that_consumed(stub):
    transaction = await begin(stub)
    for number, value in enumerate(({"a": 1}, {"b": 2}, "${steps.2.b}", "${steps.1.a}"), start=1):
        await step(stub, transaction, number, "sample.echo", {"value": value})

    graph = await stub.GetDependencyGraph(pb.GetDependencyGraphRequest(transaction_id=transaction))

    assert [(edge.from_step, edge.to_step) for edge in graph.edges] == [(2, 3), (1, 4)]


async def test_a_tool_that_blocks_a_thread_is_listed_as_one(stub):
    tools = {tool.name: tool.blocking for tool in (await stub.ListTools(pb.ListToolsRequest())).tools}

    assert (tools["sample.block"], tools["sample.slow"]) == (True, False)
