"""Tools of MCP servers as steps: real servers that work, fail, hang, die and change in the middle of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.mcp_tool_servers import STDIO_COMMAND, McpLog, eventually, http_tool_server
from tests.support.running_server import running_server, server_process

from agenttx import AsyncClient, AsyncTransaction, StepStatus
from agenttx_server.main import CannotStart
from agenttx_server.tools.mcp_client import mounted_servers

RULES = """
[servers.hotel]
trust_annotations = true
env = { HOTEL_KEY = "$HOTEL_SECRET" }

[servers.hotel.tools.book]
undo = { tool = "cancel", arguments = { booking = "${result.booking}" } }

[servers.hotel.tools.hang]
effects = "read_only"

[servers.hotel.tools.progress]
effects = "read_only"
idle_timeout_seconds = 1.5
"""


@pytest.fixture
def log(tmp_path: Path) -> McpLog:
    return McpLog(tmp_path / "hotel")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTEL_SECRET", "k-1")
    monkeypatch.setenv("HOTEL_OTHER_SECRET", "not for it")


@asynccontextmanager
async def hotel(
    log: McpLog, tmp_path: Path, *, rules: str = RULES, target: str = "", **settings: Any
) -> AsyncIterator[AsyncClient]:
    """A server with the hotel mounted, and a client of it."""
    file = tmp_path / "mcp.toml"
    file.write_text(rules)
    mounted = f"hotel={target or STDIO_COMMAND.format(log=log.path)}"
    async with (
        running_server(mcp=(mounted,), mcp_rules_file=file, **settings) as server,
        AsyncClient(server.address) as client,
    ):
        yield client


async def begun(client: AsyncClient) -> AsyncTransaction:
    return await client.transaction(agent_id="guest").begin()


async def test_tools_are_listed_with_what_the_operator_says_of_them(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tools = {tool.name: tool async for tool in client.tools() if tool.name.startswith("hotel.")}
    assert {name: str(tool.effect_class) for name, tool in tools.items()} == {
        "hotel.answer": "IRREVERSIBLE",
        "hotel.book": "COMPENSATABLE",
        "hotel.cancel": "IRREVERSIBLE",
        "hotel.die": "IRREVERSIBLE",
        "hotel.environment": "IRREVERSIBLE",
        "hotel.fail": "IRREVERSIBLE",
        "hotel.hang": "READ_ONLY",
        "hotel.look": "READ_ONLY",
        "hotel.progress": "READ_ONLY",
        "hotel.refuse": "IRREVERSIBLE",
        "hotel.set": "IDEMPOTENT",
    }
    assert tools["hotel.book"].location == "MCP"


async def test_annotations_are_believed_of_trusted_servers_only(log, tmp_path):
    async with hotel(log, tmp_path, rules="") as client:
        classes = {tool.effect_class async for tool in client.tools() if tool.name.startswith("hotel.")}
    assert classes == {"IRREVERSIBLE"}


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_booking_is_cancelled_with_what_it_returned(log, tmp_path, transport):
    rules = RULES if transport == "stdio" else RULES.replace('env = { HOTEL_KEY = "$HOTEL_SECRET" }', "")
    with http_tool_server(log) as url:
        target = url if transport == "http" else ""
        async with hotel(log, tmp_path, rules=rules, target=target) as client:
            tx = await begun(client)
            booked = await tx.step("hotel.book", room="7")
            assert booked["booking"] == "b-7"
            await tx.step("kv.put", key="booking", value=booked.ref("booking"))
            await tx.rewind(1)
            assert log.lines() == ["book 7", "cancel b-7"]
            await tx.rollback()
    assert log.lines() == ["book 7", "cancel b-7"]


async def test_answers_become_outputs(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        assert (await tx.step("hotel.look")).output == {"rooms": [1, 2]}
        assert (await tx.step("hotel.answer", kind="json")).output == [1, 2]
        assert (await tx.step("hotel.answer", kind="text")).output == "plain words"
        image = (await tx.step("hotel.answer", kind="image")).output["content"][0]
        assert (image["type"], image["size_bytes"], image["mime_type"]) == ("image", 5, "image/png")
        await tx.rollback(accept_irreversible=True)


async def test_errors_go_through_the_hint_rules_or_are_taken_at_their_word(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        failed = await tx.try_step("hotel.fail", how="text")
        assert failed.error_category == "foreign_key_violation"
        failed = await tx.try_step("hotel.fail", how="structured")
        assert (failed.error_category, failed.decision.error_keys) == ("missing_record", ("guest",))
        await tx.rollback()


@pytest.mark.parametrize(("code", "status"), [(-32050, "IN_DOUBT"), (-32602, "ROLLBACK_TRIGGERED")])
async def test_an_error_that_does_not_say_that_nothing_was_done_is_in_doubt(log, tmp_path, code, status):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        assert (await tx.try_step("hotel.refuse", code=code)).status == status


async def test_arguments_are_checked_before_the_call(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        failed = await tx.try_step("hotel.book", rom="7")
        assert "missing room" in failed.hint
        assert log.lines() == []
        await tx.rollback()


async def test_a_stdio_server_is_given_what_the_operator_says_and_no_secret_of_ours(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        seen = (await tx.step("hotel.environment")).output
        assert seen["given"] == "k-1"
        assert set(seen["names"]) - {"LC_CTYPE"} <= {
            "HOME",
            "HOTEL_KEY",
            "LOGNAME",
            "PATH",
            "SHELL",
            "TERM",
            "USER",
        }


async def test_a_server_that_dies_in_a_call_is_started_anew_and_the_step_is_in_doubt(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        doubtful = await tx.try_step("hotel.die")
        assert doubtful.status is StepStatus.IN_DOUBT
        await tx.resolve_step(1, "SUCCEEDED", output=None)
        assert (await tx.step("hotel.look")).output == {"rooms": [1, 2]}
        await tx.rollback(accept_irreversible=True)


async def test_an_idempotent_call_is_made_again_under_its_key(log, tmp_path):
    log.cue("die-after-set")
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        assert (await tx.step("hotel.set", value="blue")).output == "set"
        lines = [line for line in log.lines() if line.startswith("set")]
        assert len(lines) == 2
        assert len(set(lines)) == 1
        await tx.commit()


async def test_a_booking_whose_answer_was_lost_waits_for_a_person(log, tmp_path):
    log.cue("die-after-booking")
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        failed = await tx.try_step("hotel.book", room="7")
        assert failed.rollback_incomplete
        (held,) = [each async for each in client.list_compensations(tx.transaction_id)]
        assert held.action == "hotel.cancel"
        assert "not known" in held.hint
        await client.resolve_compensation(tx.transaction_id, held.compensation_id, "UNDONE")
        assert (await client.get_transaction(tx.transaction_id)).status == "ACTIVE"
    assert log.lines() == ["book 7"]


async def test_undo_waits_for_a_server_that_is_away_without_spending_attempts(log, tmp_path):
    port_holder: dict[str, int] = {}
    rules = RULES.replace('env = { HOTEL_KEY = "$HOTEL_SECRET" }', "")
    with http_tool_server(log) as url:
        port_holder["port"] = int(url.rpartition(":")[2].partition("/")[0])
        server = hotel(log, tmp_path, rules=rules, target=url, undo_timeout_seconds=2)
        client = await server.__aenter__()
        tx = await begun(client)
        await tx.step("hotel.book", room="7")
    try:
        held = await tx.rewind(1)
        assert held.rollback_incomplete
        (waiting,) = [
            each async for each in client.list_compensations(tx.transaction_id) if each.state == "FAILED"
        ]
        assert waiting.tries == 0
        with http_tool_server(log, port_holder["port"]):
            async for event in client.watch(tx.transaction_id):
                if event.type == "TRANSACTION_REWOUND":
                    break
        assert log.lines() == ["book 7", "cancel b-7"]
    finally:
        await server.__aexit__(None, None, None)


async def test_a_person_is_asked_where_the_rules_say_so(log, tmp_path):
    async with hotel(log, tmp_path, rules="[servers.hotel.tools.set]\napproval = true") as client:
        tx = await begun(client)
        waiting = await tx.try_step("hotel.set", value="blue")
        assert waiting.status is StepStatus.AWAITING_APPROVAL
        assert log.lines() == []
        await client.approve(tx.transaction_id, waiting.approval.approval_id)
        (done,) = await tx.settle()
        assert done.output == "set"
        await tx.commit()


async def test_a_server_that_is_not_there_is_named(log, tmp_path):
    async with hotel(log, tmp_path, rules="", target="/no/such/program") as client:
        tx = await begun(client)
        failed = await tx.try_step("hotel.book", room="7")
        assert failed.error_category == "connection"
        assert "MCP server 'hotel' is not there now" in failed.hint
        await tx.rollback()


async def test_a_tool_of_a_server_that_was_stopped_is_a_failed_connection_and_not_unknown(
    log, tmp_path, monkeypatch
):
    monkeypatch.setattr(mounted_servers, "RETURN_SECONDS", 0.3)
    rules = RULES.replace('env = { HOTEL_KEY = "$HOTEL_SECRET" }', "")
    database = f"sqlite:///{tmp_path / 'agenttx.db'}"

    async def refused(client: AsyncClient, tool: str) -> tuple[str, str]:
        tx = await begun(client)
        failed = await tx.try_step(tool)
        await tx.rollback()
        return failed.error_category, failed.hint

    with http_tool_server(log) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        server = hotel(log, tmp_path, rules=rules, target=url, database_url=database)
        client = await server.__aenter__()
        tx = await begun(client)
        await tx.step("hotel.look")
        await tx.commit()
    try:
        # By the first call its loss is seen at the latest.
        assert (await refused(client, "hotel.look"))[0] == "connection"
        category, hint = await refused(client, "hotel.look")
        assert (category, "is not there now" in hint) == ("connection", True)
        # It told its tools once, and there was none of this name.
        assert (await refused(client, "hotel.no_such_tool"))[0] == "unknown_tool"
    finally:
        await server.__aexit__(None, None, None)
    async with hotel(log, tmp_path, rules=rules, target=url, database_url=database) as client:
        category, hint = await refused(client, "hotel.look")
        assert (category, "is not there now" in hint) == ("connection", True)
        with http_tool_server(log, port):

            async def is_there() -> bool:
                return any([tool.name == "hotel.look" async for tool in client.tools()])

            await eventually(is_there)
            tx = await begun(client)
            assert (await tx.step("hotel.look")).output == {"rooms": [1, 2]}
            await tx.rollback()


async def test_a_cancelled_step_is_cancelled_at_the_server(log, tmp_path):
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        hanging = asyncio.create_task(tx.try_step("hotel.hang"))
        await log.until("hang began")
        await tx.cancel_step(1)
        assert (await hanging).error_category == "cancelled"
        await log.until("hang cancelled")
        await tx.rollback()


async def test_progress_prolongs_the_idle_timeout_and_silence_ends_it(log, tmp_path):
    rules = RULES.replace(
        'effects = "read_only"\n\n', 'effects = "read_only"\nidle_timeout_seconds = 0.3\n\n', 1
    )
    async with hotel(log, tmp_path, rules=rules) as client:
        tx = await begun(client)
        assert (await tx.step("hotel.progress")).output == "done"  # 1.6 s, idle timeout 1.5 s
        silent = await tx.try_step("hotel.hang")
        assert "told nothing for 0.3 s" in silent.hint
        await log.until("hang cancelled")
        await tx.rollback()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_tool_that_changed_under_an_open_transaction_is_named(log, tmp_path, era):
    log.cue(era)
    async with hotel(log, tmp_path) as client:
        tx = await begun(client)
        await tx.step("hotel.book", room="7")
        log.cue("changed")

        async def has_changed() -> bool:
            return "guest" in str([tool.arguments_schema async for tool in client.tools()])

        await eventually(has_changed)
        failed = await tx.try_step("hotel.book", room="8")
        assert "hotel.book was changed by its MCP server" in failed.hint
        assert "guest" in failed.hint
        assert "book 8" not in log.lines()
        await tx.rollback()


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (
            "[servers.hotel.tools.bok]\neffects = 'read_only'",
            "tools.bok is no tool that it has; did you mean 'book'?",
        ),
        (
            "[servers.hotel.tools.book]\nundo = { tool = 'cancl' }",
            "cancl is no tool that it has; did you mean 'cancel'?",
        ),
    ],
)
async def test_rules_about_tools_that_there_are_not_are_refused_at_start(log, tmp_path, rules, says):
    with pytest.raises(CannotStart, match=says.replace("?", r"\?")):
        async with hotel(log, tmp_path, rules=rules):
            pass


async def test_a_server_killed_in_mid_call_leaves_no_process_behind(log, tmp_path):
    with server_process(tmp_path / "data", mcp=f"hotel={STDIO_COMMAND.format(log=log.path)}") as server:
        async with AsyncClient(server.address) as client:
            tx = await begun(client)
            asyncio.create_task(tx.try_step("hotel.hang")).add_done_callback(lambda done: done.exception())
            await log.until("hang began")
            (pid,) = [int(line.split()[1]) for line in log.all_lines() if line.startswith("start")]
            server.kill()

            async def is_gone() -> bool:
                return not _is_alive(pid)

            await eventually(is_gone)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a child whose parent does not reap it is dead all the same
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return sys.platform != "linux"
