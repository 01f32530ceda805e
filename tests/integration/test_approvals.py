"""Approval over real gRPC: on SQLite and PostgreSQL, between two servers, and with servers killed in between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_calls import CommandLine
from tests.support.postgres_cluster import shared_cluster
from tests.support.running_server import running_server, server_process
from tests.support.store_databases import DATABASES

import agenttx
from agenttx.records import AttemptState

TOOLS = ("tests.support.approval_tools",)
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with DATABASES[request.param](tmp_path) as address:
        yield address


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


async def waiting(tx: agenttx.AsyncTransaction, tool: str, **arguments: Any) -> agenttx.Approval:
    """Send a step that waits, and return what is asked."""
    with pytest.raises(agenttx.StepAwaitingApproval) as asked:
        await tx.step(tool, **arguments)
    (approval,) = asked.value.approvals
    return approval


async def test_asked_approved_and_run_once_with_the_whole_story_told(database_url: str, tmp_path: Path):
    log = tmp_path / "log"
    async with (
        running_server(tools=TOOLS, database_url=database_url) as server,
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="payer") as tx,
    ):
        path = await tx.step("kv.put", key="log", value=str(log))
        asked = await waiting(tx, "ask.pay", log=path.ref("value"), amount=7)
        assert asked.arguments == {"log": str(log), "amount": 7}
        assert (asked.agent_id, asked.tool_name, asked.state) == ("payer", "ask.pay", "PENDING")
        assert [item async for item in client.approvals()] == [asked]
        info = await client.get_transaction(tx.transaction_id)
        assert (info.status, info.approvals) == ("AWAITING_APPROVAL", (asked,))
        assert [step.state for step in info.running_steps] == [AttemptState.AWAITING_APPROVAL]
        with pytest.raises(agenttx.StepUnsettled):
            await tx.commit()

        decided = await client.approve(tx.transaction_id, asked.approval_id, comment="go", decided_by="carol")
        assert (decided.state, decided.decided_by, decided.comment) == ("APPROVED", "carol", "go")
        assert lines(log) == []
        (outcome,) = await tx.wait_for_approval(30)
        assert outcome.succeeded
        assert lines(log) == ["pay 7"]

        (used,) = [item async for item in client.approvals(tx.transaction_id, states=["APPROVED"])]
        assert used.used_at is not None
        tx_id = tx.transaction_id
    events = []
    async with (
        running_server(tools=TOOLS, database_url=database_url) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        async for event in client.watch(tx_id):
            events.append(event.type.value)
    assert events[2:6] == ["STEP_AWAITING_APPROVAL", "STEP_APPROVED", "STEP_STARTED", "STEP_COMPLETED"]


async def test_a_no_is_told_to_the_agent_and_to_who_was_second(tmp_path: Path):
    async with (
        running_server(tools=TOOLS) as server,
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="payer") as tx,
    ):
        asked = await waiting(tx, "ask.pay", log=str(tmp_path / "log"))
        rejected = await tx.reject(asked.approval_id, comment="too dear")
        assert rejected.decided_by.startswith("ipv4:127.0.0.1:")
        with pytest.raises(agenttx.ApprovalDecided) as second:
            await client.approve(tx.transaction_id, asked.approval_id, decided_by="bob")
        assert (second.value.state, second.value.decided_by, second.value.comment) == (
            "REJECTED",
            rejected.decided_by,
            "too dear",
        )
        (outcome,) = await tx.settle()
        assert outcome.hint.startswith("Hint: ask.pay was not approved: too dear.")
        assert (outcome.error_category, outcome.next_step_id) == ("permission_denied", 1)
        with pytest.raises(agenttx.NotFound):
            await client.approve(tx.transaction_id, "99")
        await tx.step("kv.put", key="a", value=1)


async def test_a_plan_waits_for_a_decision_or_leaves_the_transaction_open(tmp_path: Path):
    plan = [agenttx.Step("ask.write", {"log": str(tmp_path / "log")})]
    async with running_server(tools=TOOLS) as server, agenttx.AsyncClient(server.address) as client:

        async def say_yes() -> None:
            while not [item async for item in client.approvals()]:  # noqa: ASYNC110 — a server is asked
                await asyncio.sleep(0.02)
            async for item in client.approvals():
                await client.approve(item.transaction_id, item.approval_id)

        deciding = asyncio.create_task(say_yes())
        report = await client.run(plan, agent_id="a", approval_timeout=30)
        await deciding
        assert report.outputs == ("write",)
        with pytest.raises(agenttx.StepAwaitingApproval) as left:
            await client.run(plan, agent_id="a")
        info = await client.get_transaction(left.value.outcome.transaction_id)
        assert info.status == "AWAITING_APPROVAL"


async def test_a_file_of_rules_asks_about_some_calls(tmp_path: Path):
    rules = tmp_path / "approvals.toml"
    rules.write_text('[[approvals]]\ntools = "kv.*"\nwhen = "args.value > 100"\nreason = "a lot"\n')
    async with (
        running_server(approvals_file=rules) as server,
        agenttx.AsyncClient(server.address) as client,
        client.transaction(agent_id="a") as tx,
    ):
        await tx.step("kv.put", key="a", value=100)
        asked = await waiting(tx, "kv.put", key="a", value=101)
        assert asked.reason == "a lot"
        await tx.approve(asked.approval_id)
        await tx.settle()


# --- several servers ------------------------------------------------------------------------


async def test_two_servers_decide_at_the_same_instant_and_one_wins(tmp_path: Path):
    with shared_cluster().database() as url:
        settings: dict[str, Any] = {"tools": TOOLS, "database_url": url, "fs_root": tmp_path / "fs"}
        async with (
            running_server(**settings) as one,
            running_server(**settings, fs_backup_dir=tmp_path / "b") as two,
            agenttx.AsyncClient(one.address) as first,
            agenttx.AsyncClient(two.address) as second,
        ):
            for number in range(5):
                log = tmp_path / f"log-{number}"
                tx = await first.transaction(agent_id="a").begin()
                asked = await waiting(tx, "ask.pay", log=str(log))
                await second.get_transaction(tx.transaction_id)
                results = await asyncio.gather(
                    first.approve(tx.transaction_id, asked.approval_id, decided_by="ann"),
                    second.approve(tx.transaction_id, asked.approval_id, decided_by="bob"),
                    return_exceptions=True,
                )
                (lost,) = [item for item in results if isinstance(item, agenttx.ApprovalDecided)]
                (won,) = [item for item in results if isinstance(item, agenttx.Approval)]
                assert lost.decided_by == won.decided_by
                elsewhere = second.resume(tx.transaction_id)
                both = await asyncio.gather(tx.settle(), elsewhere.refresh(), return_exceptions=True)
                assert not isinstance(both[0], BaseException)
                assert lines(log) == ["pay 0"]
                await tx.commit()


# --- servers that are killed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "effect"),
    [("read", "read"), ("write", "write"), ("set", "set"), ("book", "book"), ("pay", "pay 0")],
)
async def test_an_approval_survives_the_server_and_is_used_once(tool: str, effect: str, tmp_path: Path):
    log = tmp_path / "log"
    call = {"log": str(log)}
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            tx = await client.transaction(agent_id="a").begin()
            with pytest.raises(agenttx.StepAwaitingApproval):
                await tx.call(f"ask.{tool}", call, request_id="mine")
            server.kill()
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            (asked,) = [item async for item in client.approvals(tx.transaction_id)]
            await client.approve(tx.transaction_id, asked.approval_id)
            server.kill()
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            resumed = client.resume(tx.transaction_id)
            outcome = await resumed.call(f"ask.{tool}", call, request_id="mine", step_id=1)
            again = await resumed.call(f"ask.{tool}", call, request_id="mine", step_id=1)
            assert (outcome.output, again.output, again.replayed) == (effect, effect, True)
            await resumed.commit()
    assert lines(log) == [effect]


@pytest.mark.parametrize(
    ("tool", "left"),
    [
        ("write", ["write", "write"]),  # of the first nothing was committed
        ("set", ["set", "set"]),  # under one key
        ("book", ["book", "unbook", "book"]),
        ("pay", ["pay 0"]),
    ],
)
async def test_a_server_killed_in_an_approved_call_asks_nobody_again(
    tool: str, left: list[str], tmp_path: Path
):
    log, hold = tmp_path / "log", tmp_path / "go"
    call = {"log": str(log), "hold": str(hold)}
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address, retry=agenttx.RetryPolicy(max_attempts=1)) as client:
            tx = await client.transaction(agent_id="a").begin()
            with pytest.raises(agenttx.StepAwaitingApproval):
                await tx.call(f"ask.{tool}", call, request_id="mine")
            await tx.approve("1")
            running = asyncio.create_task(tx.settle())
            while not lines(log):  # noqa: ASYNC110 — another process writes it
                await asyncio.sleep(0.02)
            server.kill()
            with pytest.raises(agenttx.RpcError):
                await running
    hold.touch()
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            resumed = client.resume(tx.transaction_id)
            sent = resumed.call(f"ask.{tool}", call, request_id="mine", step_id=1)
            if tool == "pay":
                with pytest.raises(agenttx.StepInDoubt):
                    await sent
            else:
                assert (await sent).succeeded
            states = ["PENDING", "APPROVED", "REJECTED", "WITHDRAWN"]
            found = [item async for item in client.approvals(tx.transaction_id, states=states)]
            assert [(item.state, item.used_at is not None) for item in found] == [("APPROVED", True)]
    assert lines(log) == left


async def test_a_tool_that_was_changed_meanwhile_fails_the_step_by_name(tmp_path: Path):
    """Case C51."""
    log = tmp_path / "log"
    call = {"log": str(log), "amount": 5}
    with server_process(tmp_path / "data", tools=TOOLS) as server:
        async with agenttx.AsyncClient(server.address) as client:
            tx = await client.transaction(agent_id="a").begin()
            with pytest.raises(agenttx.StepAwaitingApproval):
                await tx.call("ask.pay", call, request_id="mine")
            server.terminate()
            server.wait()
    upgraded = {"APPROVAL_TOOLS_VERSION": "2"}
    with server_process(tmp_path / "data", tools=TOOLS, environment=upgraded) as server:
        async with agenttx.AsyncClient(server.address) as client:
            await client.approve(tx.transaction_id, "1")
            resumed = client.resume(tx.transaction_id)
            with pytest.raises(agenttx.StepRolledBack) as failed:
                await resumed.call("ask.pay", call, request_id="mine", step_id=1)
            assert failed.value.hint.startswith("Hint: ask.pay was changed since this step was recorded")
            assert "currency" in failed.value.hint
    assert lines(log) == []


# --- the command line and the page -------------------------------------------------------------


def test_the_command_line_lists_and_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = tmp_path / "log"
    with server_process(tmp_path / "data", tools=TOOLS) as server, agenttx.Client(server.address) as client:
        command = CommandLine(server.address, capsys)
        assert command("tx", "approvals").out == "Nobody is asked to approve anything.\n"
        tx = client.transaction(agent_id="payer").begin()
        assert tx.try_step("ask.pay", log=str(log), amount=3).status == "AWAITING_APPROVAL"
        listed = command("tx", "approvals")
        assert '"amount":3' in listed.out
        assert "PENDING" in listed.out
        assert f"agenttx tx approve|reject {tx.transaction_id} 1" in command("tx", "show", "latest").out

        approved = command("tx", "approve", tx.transaction_id, "1", "--by", "carol", "--comment", "fine")
        assert (approved.code, approved.out.splitlines()[0]) == (0, "Approval 1 APPROVED: step 1, ask.pay")
        second = command("tx", "reject", tx.transaction_id, "1", "--by", "dave")
        assert second.code == 1
        assert "was approved by carol" in second.err
        (told,) = command("tx", "approvals", "latest", "--state", "approved", "--json").json["approvals"]
        assert (told["decided_by"], told["comment"], told["arguments"]["amount"]) == ("carol", "fine", 3)
        tx.settle()
        tx.commit()
    assert lines(log) == ["pay 3"]


def test_every_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = (DOCS / "approval.md").read_text()
    (rules,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "approvals.toml").write_text(rules)
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "approval_page"}
    with server_process(tmp_path / "data", approvals_file=tmp_path / "approvals.toml") as server:
        for number, example in enumerate(examples, 1):
            code = example.replace("127.0.0.1:50051", server.address)
            exec(compile(code, f"approval.md, example {number}", "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith("1 mail to several people {'channel': 'mail',")
    assert out.endswith("SUCCESS\n1\n")
