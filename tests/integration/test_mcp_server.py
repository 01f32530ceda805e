"""`agenttx mcp` as clients meet it: the official client library, real processes, both transports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from mcp import Client
from tests.support.mcp_clients import TRANSPORTS, Answered, called, mcp_client, mcp_http_server
from tests.support.running_server import ServerProcess, server_process

from agenttx import AsyncClient

TOOLS = "tests.support.mcp_story_tools:TOOLS"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server"), tools=(TOOLS,)) as process:
        yield process


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> Iterator[str]:
    """One `agenttx mcp --http` for all: a process takes long to start."""
    with mcp_http_server(server.address) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    # In a task of its own: the library wants its block left by the task that entered it, which a fixture's end isn't.
    connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def hold() -> None:
        async with Client(url) as client:
            connected.set_result(client)
            await done.wait()

    holding = asyncio.create_task(hold())
    yield await connected
    done.set()
    await holding


async def begun(client: Client) -> str:
    answer = await called(client, "begin_transaction", task="book a trip")
    assert answer["next_step"] == 1
    return str(answer["transaction_id"])


async def ran(client: Client, transaction_id: str, step: int, tool: str, **arguments: Any) -> Answered:
    return await called(
        client, "run_step", transaction_id=transaction_id, step=step, tool=tool, arguments=arguments
    )


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_story_of_a_failure(server, url, transport, mode):
    """A step fails on what step 2 chose; the agent does what the answers say, and nothing else, and commits."""
    async with mcp_client(transport, server.address, url, mode=mode) as client:
        tx = await begun(client)
        customer = f"c-1-{tx}"
        await ran(client, tx, 1, "record.insert", table="customers", record={"id": customer})
        await ran(client, tx, 2, "kv.put", key=f"choice-{tx}", value={"customer_id": "c-9"})
        await ran(
            client, tx, 3, "kv.put", key=f"draft-{tx}", value={"customer_id": "${steps.2.value.customer_id}"}
        )

        failed = await ran(
            client,
            tx,
            4,
            "record.insert",
            table="orders",
            record={"id": tx, "customer_id": "${steps.3.value.customer_id}"},
            references={"customer_id": "customers"},
        )

        assert failed.is_error
        assert failed["status"] == "ROLLBACK_TRIGGERED"
        assert failed["root_cause"]["step"] == 2
        assert failed["root_cause"]["key"] == "customer_id"
        assert failed["rolled_back_to"] == failed["next_step"] == 2
        assert "The cause is step 2, whose customer_id is wrong: step 4 (customer_id) ←" in failed.text
        tool, arguments = failed.next
        assert tool == "run_step"
        assert arguments["step"] == 2
        assert arguments["tool"] == "kv.put"
        assert arguments["arguments"]["value"] == {"customer_id": "c-9"}
        assert f"call run_step with {json.dumps(arguments, separators=(',', ':'))}" in failed.text

        why = await called(client, "explain_failure", transaction_id=tx)
        assert why["step"] == 4
        assert why["decision"].startswith("The transaction went back to step 2, where customer_id came from")
        assert "customer_id" in why["hint"]

        arguments["arguments"]["value"]["customer_id"] = "${steps.1.id}"
        again = await called(client, tool, **arguments)
        assert not again.is_error
        await ran(
            client, tx, 3, "kv.put", key=f"draft-{tx}", value={"customer_id": "${steps.2.value.customer_id}"}
        )
        done = await ran(
            client,
            tx,
            4,
            "record.insert",
            table="orders",
            record={"id": tx, "customer_id": "${steps.3.value.customer_id}"},
            references={"customer_id": "customers"},
        )
        assert done["status"] == "SUCCESS"
        commit = done.fields["next"][1]
        assert commit["tool"] == "commit_transaction"
        committed = await called(client, commit["tool"], **commit["arguments"])
        assert committed["steps_committed"] == 4

    async with AsyncClient(server.address) as sdk:
        assert (await sdk.get_transaction(tx)).status == "COMMITTED"
        assert (await sdk.get_state(f"draft-{tx}")).value == {"customer_id": customer}


async def test_the_tools_are_described_with_schemas_and_what_run_step_can_call(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == [
        "begin_transaction",
        "commit_transaction",
        "explain_failure",
        "get_transaction",
        "list_tools",
        "rewind",
        "rollback_transaction",
        "run_step",
    ]
    assert "- kv.put(key, value): " in tools["run_step"].description
    assert all(tool.output_schema["type"] == "object" for tool in tools.values())
    assert tools["get_transaction"].annotations.read_only_hint
    assert "begin_transaction" in client.instructions


async def test_a_call_that_is_repeated_takes_effect_once(client):
    tx = await begun(client)
    first = await ran(client, tx, 1, "story.count", name=tx)
    second = await ran(client, tx, 1, "story.count", name=tx)
    assert (first["output"], second["output"]) == ({"count": 1}, {"count": 1})
    assert (first["repeated"], second["repeated"]) == (False, True)
    assert (await ran(client, tx, 2, "story.count", name=tx))["output"] == {"count": 2}


async def test_a_call_whose_answer_was_lost_with_its_process_is_answered_by_the_next_one(server):
    async with mcp_client("stdio", server.address) as client:
        tx = await begun(client)
        await ran(client, tx, 1, "story.count", name=tx)
        failed = await ran(client, tx, 2, "story.fail", name=tx)
    async with mcp_client("stdio", server.address) as client:
        again = await ran(client, tx, 2, "story.fail", name=tx)
        assert again["repeated"]
        assert again["next_step"] == failed["next_step"]
        async with AsyncClient(server.address) as sdk:
            attempts = [each async for each in sdk.list_steps(tx, step_id=2)]
        assert len(attempts) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_call_that_the_client_gave_up_is_answered_when_it_is_made_again(server, url, transport):
    async with mcp_client(transport, server.address, url) as client:
        tx = await begun(client)
        arguments = {"transaction_id": tx, "step": 1, "tool": "story.held", "arguments": {"name": tx}}
        waiting = asyncio.create_task(called(client, "run_step", **arguments))
        async with AsyncClient(server.address) as sdk:
            await _has_started(sdk, tx)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            again = asyncio.create_task(called(client, "run_step", **arguments))
            other = sdk.transaction(agent_id="opener")
            await other.step("story.open", name=tx)
            await other.rollback()
        assert (await again)["output"] == {"calls": 1}


async def _has_started(sdk: AsyncClient, transaction_id: str) -> None:
    events = sdk.watch(transaction_id)
    async for event in events:
        if event.type == "STEP_STARTED":
            break
    await events.aclose()


async def test_sessions_that_begin_at_once_never_share_a_transaction(url):
    async def begins() -> list[str]:
        async with Client(url) as client:
            answers = await asyncio.gather(
                *(called(client, "begin_transaction", task="same", agent_id="clerk") for _ in range(4))
            )
            return [str(answer["transaction_id"]) for answer in answers]

    opened = [each for ids in await asyncio.gather(*(begins() for _ in range(5))) for each in ids]
    assert len(set(opened)) == 20


async def test_a_begin_that_a_client_gave_up_is_given_to_nobody_else(server, url):
    async with Client(url) as client, AsyncClient(server.address) as sdk:
        waiting = asyncio.create_task(called(client, "begin_transaction", agent_id="given-up"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        before = {each.transaction_id async for each in sdk.list_transactions(agent_id="given-up")}
        async with Client(url) as other:
            answer = await called(other, "begin_transaction", agent_id="given-up")
        assert answer["transaction_id"] not in before


async def test_begin_twice_opens_two(client):
    assert await begun(client) != await begun(client)


async def test_a_step_that_was_taken_back_behind_the_agent_runs_only_after_it_was_told(server, client):
    tx = await begun(client)
    await ran(client, tx, 1, "story.count", name=tx)
    async with AsyncClient(server.address) as sdk:
        await sdk.resume(tx).rewind(1)
    refused = await ran(client, tx, 2, "story.count", name=tx)
    assert refused.is_error
    assert refused["error"] == "moved"
    assert refused.next[0] == "explain_failure"
    assert (await ran(client, tx, 1, "story.count", name=tx))["status"] == "SUCCESS"


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        (1, "wrong_step", "has run already, with another tool or other arguments; the next step is 2"),
        (5, "wrong_step", "Step 5 can't run yet; the next step is 2"),
    ],
)
async def test_a_step_out_of_order_is_refused_with_what_to_call(client, step, error, says):
    tx = await begun(client)
    await ran(client, tx, 1, "kv.put", key=tx, value=1)
    refused = await ran(client, tx, step, "kv.put", key=tx, value=2)
    assert (refused.is_error, refused["error"]) == (True, error)
    assert says in refused.text
    assert refused.next == (
        "run_step",
        {"transaction_id": tx, "step": 2, "tool": "kv.put", "arguments": {"key": tx, "value": 2}},
    )


async def test_bad_arguments_are_named(client):
    refused = await called(client, "run_step", transaction_id="x", step=0, tol="kv.put")
    assert refused.is_error
    assert refused["error"] == "bad_arguments"
    assert "step: Input should be greater than or equal to 1" in refused.text
    assert "tool: Field required" in refused.text
    assert "tol: Extra inputs are not permitted" in refused.text


@pytest.mark.parametrize(
    "tool", ["run_step", "rewind", "commit_transaction", "get_transaction", "explain_failure"]
)
async def test_an_unknown_transaction_is_said_to_be_unknown(client, tool):
    given: dict[str, Any] = {"transaction_id": "nope"}
    given |= {"run_step": {"step": 1, "tool": "kv.put"}, "rewind": {"to_step": 1}}.get(tool, {})
    refused = await called(client, tool, **given)
    assert refused.is_error
    assert refused["error"] == "not_found"
    assert refused.next == ("begin_transaction", {})


async def test_a_failed_step_that_ends_the_transaction(client):
    tx = await begun(client)
    answer = await ran(client, tx, 1, "story.fail", name=tx)
    for _ in range(20):
        if answer["status"] == "FAILED":
            break
        answer = await ran(client, tx, answer["next_step"], "story.fail", name=tx)
    assert answer["status"] == "FAILED"
    assert answer.next[0] == "begin_transaction"
    assert "Everything was undone and the transaction has ended." in answer.text
    after = await called(client, "commit_transaction", transaction_id=tx)
    assert after["error"] == "transaction_ended"
    assert (await called(client, "rollback_transaction", transaction_id=tx))["repeated"]


async def test_a_step_in_doubt_is_told_in_words_and_goes_on_once_it_is_resolved(server, client):
    tx = await begun(client)
    doubtful = await ran(client, tx, 1, "story.doubt", name=tx)
    assert doubtful.is_error
    assert doubtful["status"] == "IN_DOUBT"
    assert f"agenttx steps resolve {tx} 1" in doubtful.text
    tool, arguments = doubtful.next
    assert arguments == {"transaction_id": tx, "step": 1, "tool": "story.doubt", "arguments": {"name": tx}}
    assert (await called(client, tool, **arguments))["status"] == "IN_DOUBT"
    refused = await called(client, "commit_transaction", transaction_id=tx)
    assert refused["error"] == "step_in_doubt"
    async with AsyncClient(server.address) as sdk:
        await sdk.resolve_step(tx, 1, "SUCCEEDED", output={"sent": True})
    settled = await called(client, tool, **arguments)
    assert (settled["status"], settled["output"]) == ("SUCCESS", {"sent": True})


async def test_a_step_that_waits_for_approval_is_no_error_and_runs_once_it_is_given(server, client):
    tx = await begun(client)
    waiting = await ran(client, tx, 1, "story.asked", name=tx)
    assert (waiting.is_error, waiting["status"]) == (False, "AWAITING_APPROVAL")
    assert f"agenttx tx approve {tx} {waiting['approval_id']}`" in waiting.text
    refused = await called(client, "commit_transaction", transaction_id=tx)
    assert refused["error"] == "awaiting_approval"
    tool, arguments = waiting.next
    assert (await called(client, tool, **arguments))["status"] == "AWAITING_APPROVAL"
    async with AsyncClient(server.address) as sdk:
        await sdk.approve(tx, waiting["approval_id"], comment="fine")
    assert (await called(client, tool, **arguments))["output"] == {"done": tx}


async def test_a_rollback_whose_undo_fails_is_told_in_words(client):
    tx = await begun(client)
    await ran(client, tx, 1, "story.effect", name=tx)
    held = await called(client, "rewind", transaction_id=tx, to_step=1)
    assert held.is_error
    assert held["rollback_incomplete"]
    assert held["failed_undo"]
    refused = await ran(client, tx, 1, "kv.put", key=tx, value=1)
    assert refused["error"] == "rollback_incomplete"
    shown = await called(client, "get_transaction", transaction_id=tx)
    assert shown["status"] == "ROLLING_BACK"
    assert "story.effect" in shown["failed_undo"][0]


async def test_a_large_output_is_cut_and_can_be_read_in_parts(client):
    tx = await begun(client)
    big = await ran(client, tx, 1, "kv.put", key=tx, value={"text": "é" * 50_000, "id": 7})
    assert big["output"] is None
    assert big["output_bytes"] > 100_000
    assert len(big.text) < 5_000
    part = await called(client, "get_transaction", transaction_id=tx, step=1, path="value.id")
    assert [each["output"] for each in part["steps"] if each["step"] == 1] == [7]


async def test_a_dry_run_says_what_would_be_undone(client):
    tx = await begun(client)
    for step in (1, 2, 3):
        await ran(client, tx, step, "kv.put", key=f"{tx}-{step}", value=step)
    plan = await called(client, "rewind", transaction_id=tx, to_step=2, dry_run=True)
    assert (plan["steps_undone"], plan["next_step"]) == ([2, 3], 4)
    assert "Nothing was changed" in plan.text
    assert (await called(client, "rewind", transaction_id=tx, to_step=2))["next_step"] == 2


async def test_a_commit_with_another_number_of_steps_commits_nothing(client):
    tx = await begun(client)
    await ran(client, tx, 1, "kv.put", key=tx, value=1)
    refused = await called(client, "commit_transaction", transaction_id=tx, steps=2)
    assert refused["error"] == "other_steps"
    assert (await called(client, "commit_transaction", transaction_id=tx, steps=1))["steps_committed"] == 1
    assert (await called(client, "commit_transaction", transaction_id=tx, steps=1))["repeated"]


async def test_the_tools_for_run_step_are_listed_and_searched(client):
    listed = await called(client, "list_tools", search="record.insert")
    (tool,) = listed["tools"]
    assert tool["name"] == "record.insert"
    assert "table" in tool["arguments_schema"]["properties"]
    assert tool["effects"].startswith("undone exactly")


async def test_an_unreachable_server_is_told_without_its_insides():
    async with mcp_client("stdio", "127.0.0.1:1") as client:
        assert len((await client.list_tools()).tools) == 8
        refused = await called(client, "begin_transaction")
    assert refused["error"] == "server_unreachable"
    assert "agenttx serve" in refused.text
    assert "127.0.0.1" not in refused.text


async def test_a_tool_that_there_is_not_is_named(client):
    refused = await called(client, "no_such")
    assert refused["error"] == "unknown_tool"


async def test_two_calls_at_once_take_turns(client):
    tx = await begun(client)
    first, second = await asyncio.gather(
        ran(client, tx, 1, "story.count", name=tx), ran(client, tx, 2, "story.count", name=tx)
    )
    assert (first["output"], second["output"]) == ({"count": 1}, {"count": 2})


def test_over_http_a_token_is_needed_where_one_is_set(server):
    with mcp_http_server(server.address, "0.0.0.0:0", AGENTTX_MCP_TOKEN="t0ken") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert _status(url) == 401
        assert _status(url, Authorization="Bearer wrong") == 401
        assert _status(url, Authorization="Bearer t0ken") == 200


def test_over_http_no_page_of_another_site_gets_in(url):
    assert _status(url) == 200
    assert _status(url, Host="evil.example:80") == 421
    assert _status(url, Origin="http://evil.example") == 403


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({"Host": "127.0.0.1:1.evil.example"}, 421),
        ({"Host": "localhost:80@evil.example"}, 421),
        ({"Origin": "http://localhost:80.evil.example"}, 403),
        ({"Origin": "http://localhost:x@evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:80"}, 200),
        ({"Host": "LOCALHOST:80"}, 200),
    ],
)
def test_over_http_host_and_origin_are_compared_whole(url, header, status):
    assert _status(url, **header) == status


def _status(url: str, **headers: str) -> int:
    introduction = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    accept = {"Accept": "application/json, text/event-stream"}
    return httpx2.post(url, json=introduction, headers=accept | headers, trust_env=False).status_code
