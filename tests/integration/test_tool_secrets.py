"""``secret://NAME``: tools get the value, and no row, log line, answer or error does."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import running_server
from tests.support.running_worker import running_worker

import agenttx
from agenttx import START, GraphBuilder, NodeContext, ToolCall
from agenttx.tools import ToolCallContext, ToolFailure, UndoContext, tool
from agenttx_server.access.identity import Role
from agenttx_server.access.tokens import make_token
from agenttx_server.main import CannotStart
from agenttx_server.store import open_tokens

VALUE = "vXr7-qLm2_TopSecretValue+93/x"
got: list[Any] = []


@tool("keep.use", effects="compensatable")
async def use(ctx: ToolCallContext, key: str, deep: dict[str, Any], how: str) -> Any:
    """Do all that could leave a secret somewhere."""
    got.append((key, deep))
    await ctx.register_undo("keep.forget", key=key)
    await ctx.store.put(f"seen-{how}", {"key": key, "header": f"Bearer {key}"})
    await ctx.stage_effect("mail", {"key": key})
    if how == "failure":
        raise ToolFailure("invalid_value", f"{key} is refused", keys=[key])
    if how == "error":
        raise RuntimeError(f"{key} is refused by https://x:{key}@host")
    return {"said": f"{key}!", "key": key, "list": [key]}


@use.undo("keep.forget")
async def forget(ctx: UndoContext, key: str) -> None:
    """Forget."""
    got.append(("undone", key))


@tool("keep.other", effects="read_only")
def other(key: str) -> str:
    """Be given none."""
    got.append(key)
    return key


@tool("keep.remote", effects="read_only")
def remote(key: str) -> dict[str, str]:
    """Run in a worker."""
    got.append(("remote", key))
    if key == VALUE:
        raise ValueError(f"{key} is wrong")
    return {"key": key}


@tool("keep.leak", effects="transactional")
async def leak(ctx: ToolCallContext, how: str) -> Any:
    """Know the value from elsewhere, such as a file of settings."""
    await ctx.store.put("leaked", {"key": VALUE})
    if how == "failure":
        raise ToolFailure("invalid_value", f"{VALUE} is refused", keys=[VALUE])
    if how == "error":
        raise RuntimeError(f"{VALUE} is refused")
    if how == "inner":
        try:
            raise ValueError(VALUE)
        except ValueError as error:
            raise RuntimeError("refused") from error
    if how == "plain":
        raise LookupError("no such thing")
    return {"found": [VALUE], "hex": VALUE.encode().hex()}


TOOLS = [use, other, leak]


def secrets_file(folder: Path) -> Path:
    file = folder / "tool-secrets.toml"
    file.write_text(
        f'[KEY]\nvalue = "{VALUE}"\ntools = ["keep.use", "keep.forget", "keep.remote", "kv.put"]\n'
    )
    file.chmod(0o600)
    return file


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_a_tool_gets_the_value_and_nothing_else_ever_holds_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    got.clear()
    data = tmp_path / "data"
    data.mkdir()
    settings: dict[str, Any] = {
        "tools": ("tests.integration.test_tool_secrets:TOOLS",),
        "tool_secrets_file": secrets_file(tmp_path),
        "data_dir": data,
        "log_level": "debug",
    }
    reference = "secret://KEY"
    said: list[str] = []
    async with running_server(**settings) as server, agenttx.AsyncClient(server.address) as client:
        tx = client.transaction(agent_id="a")
        step = await tx.step(
            "keep.use", key=reference, deep={"in": [reference, f"x {reference}"]}, how="well"
        )
        assert got == [(VALUE, {"in": [VALUE, f"x {reference}"]})]
        assert step.output == {"said": f"{reference}!", "key": reference, "list": [reference]}
        # What was made of it goes on as a reference, to the tools that it is for.
        await tx.step("kv.put", key="kept", value=reference)
        for how in ("failure", "error"):
            failing = client.transaction(agent_id="a")
            with pytest.raises(agenttx.AgentTxError) as failed:
                await failing.step("keep.use", key=reference, deep={}, how=how)
            said.append(repr(failed.value))
            assert VALUE not in repr(vars(failed.value))
            assert got[-1] == ("undone", VALUE)
        async with running_worker(server.address, tools=[remote]):
            with pytest.raises(agenttx.AgentTxError) as failed:
                await client.transaction(agent_id="a").step("keep.remote", key=reference)
            said.append(repr(failed.value))
            assert got[-1] == ("remote", VALUE)
        for name, tool_name in (("KEY", "keep.other"), ("NONE", "keep.use")):
            arguments: dict[str, Any] = {"key": f"secret://{name}"}
            if tool_name == "keep.use":
                arguments |= {"deep": {}, "how": "well"}
            before = len(got)
            with pytest.raises(agenttx.AgentTxError, match="secret"):
                await client.transaction(agent_id="a").step(tool_name, **arguments)
            assert len(got) == before
        await tx.commit()
        assert (await client.get_state("kept")).value == reference
        assert (await client.get_state("seen-well")).value == {
            "key": reference,
            "header": f"Bearer {reference}",
        }
        steps = [one async for one in client.list_steps(tx.transaction_id)]
        said.append(repr(steps))
        everything = await asyncio.to_thread(stored, data)
    log = "".join(capfd.readouterr())
    for form in (VALUE, json.dumps(VALUE)[1:-1], VALUE[5:]):
        assert form.encode() not in everything
        assert form not in log
        assert not any(form in text for text in said)
    assert b"secret://KEY" in everything


async def test_a_tool_that_was_given_none_says_none_either(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    async with (
        running_server(
            tools=("tests.integration.test_tool_secrets:TOOLS",),
            tool_secrets_file=secrets_file(tmp_path),
            data_dir=data,
        ) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        tx = client.transaction(agent_id="a")
        assert (await tx.step("keep.leak", how="well")).output == {"found": ["secret://KEY"], "hex": "***"}
        assert (await tx.step("kv.get", key="leaked")).output["value"] == {"key": "secret://KEY"}
        told = []
        for how in ("failure", "error", "inner", "plain"):
            with pytest.raises(agenttx.AgentTxError) as failed:
                await client.transaction(agent_id="a").step("keep.leak", how=how)
            told.append(repr(failed.value) + repr(vars(failed.value)))
        assert not any(VALUE in text for text in told)
        assert "no such thing" in told[-1]  # others' errors are as they were
        steps = repr([one async for one in client.list_steps(tx.transaction_id)])
        assert VALUE not in steps
        everything = await asyncio.to_thread(stored, data)
    assert VALUE.encode() not in everything


PIPELINE = """
pipeline: secretive
actions:
  - {name: used, tool: keep.use, args: {key: "${source.key}", deep: {in: ["${source.key}"]}, how: well}}
  - {name: leaked, tool: keep.leak, dependencies: [used], args: {how: well}}
"""


async def test_graphs_and_pipelines_hold_references_in_state_checkpoints_records_and_undo(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    got.clear()
    data = tmp_path / "data"
    data.mkdir()
    told: list[str] = []

    async def node(state: Any, ctx: NodeContext) -> dict[str, Any]:
        told.append(repr(state))
        answer = await ctx.step("keep.use", {"key": state["key"], "deep": {}, "how": "well"})
        told.append(repr(answer))
        with pytest.raises(Exception, match="refused") as failed:
            await ctx.step("keep.use", {"key": state["key"], "deep": {}, "how": "failure"})
        told.append(repr(failed.value) + repr(vars(failed.value)))
        return {"said": answer["said"]}

    use_it = ToolCall(
        "keep.use", {"key": "${state.key}", "deep": {}, "how": "well"}, output={"used": "${result}"}
    )
    leak_it = ToolCall("keep.leak", {"how": "well"}, output={"leaked": "${result.found}"})
    graph = GraphBuilder("secretive").channel("key").channel("used").channel("leaked").channel("said")
    graph.node("use", use_it).node("leak", leak_it).node("own", node)
    graph.edge(START, "use").edge("use", "leak").edge("leak", "own")
    async with (
        running_server(
            tools=("tests.integration.test_tool_secrets:TOOLS",),
            tool_secrets_file=secrets_file(tmp_path),
            data_dir=data,
            log_level="debug",
        ) as server,
        agenttx.AsyncClient(server.address) as client,
    ):
        ran = await (await client.graphs.register(graph)).run({"key": "secret://KEY"}, thread="t")
        assert ran.status is agenttx.RunStatus.COMPLETED, ran
        assert ran.state["leaked"] == ["secret://KEY"]
        assert ran.state["used"]["key"] == "secret://KEY"
        assert ran.state["said"] == "secret://KEY!"
        handle = await client.graphs.get("secretive")
        told += [repr(one) async for one in handle.history("t")]
        await client.pipelines.register(PIPELINE)
        piped = await client.pipelines.run("secretive", [{"key": "secret://KEY"}])
        told += [repr(one) async for one in client.lineage.records(piped.run_id)]
        told += [text async for text in client.lineage.export(piped.run_id)]
        assert sum(key == VALUE for key, _ in got if key != "undone") == 4
        everything = await asyncio.to_thread(stored, data)
    log = "".join(capfd.readouterr())
    for form in (VALUE, json.dumps(VALUE)[1:-1], VALUE[5:], VALUE.encode().hex()):
        assert form.encode() not in everything
        assert form not in log
        assert not any(form in text for text in told)


async def test_a_secret_is_for_the_tenants_that_are_named(tmp_path: Path):
    got.clear()
    url = f"sqlite:///{tmp_path}/agenttx.db"
    made = make_token("amy", frozenset({Role.AGENT}), now=1, tenant="acme")
    with open_tokens(url) as tokens:
        tokens.add(made.record)
    async with (
        running_server(
            tools=("tests.integration.test_tool_secrets:TOOLS",),
            tool_secrets_file=secrets_file(tmp_path),
            database_url=url,
        ) as server,
        agenttx.AsyncClient(server.address, token=made.token) as amy,
    ):
        with pytest.raises(agenttx.AgentTxError, match="there is no secret 'KEY'"):
            await amy.transaction(agent_id="a").step("kv.put", key="a", value="secret://KEY")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[K]\nvalue = "0123456789"', "`tools` is missing"),
        ('[K]\nvalue = "0123456789"\ntools = []', "1 or more are needed"),
        ('[K]\nvalue = "short"\ntools = ["a"]', "printable ASCII"),
        ('[K]\nenv = "AGENTTX_NO_SUCH"\ntools = ["a"]', "is not set"),
        ('[K]\nvalue = "0123456789"\ntools = ["a"]\ntenants = ["Acme"]', "tenant's name"),
        ('[K]\nvalue = "0123456789"\ntools = ["a"]\nhosts = ["x"]', "unknown key 'hosts'"),
        ('["a b"]\nvalue = "0123456789"\ntools = ["a"]', "a secret's name is"),
        ("value = 0123456789x", "not valid TOML"),
    ],
)
async def test_a_file_that_is_not_understood_keeps_the_server_from_starting(
    tmp_path: Path, text: str, says: str
):
    file = tmp_path / "secrets.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(CannotStart, match=says) as refused:
        async with running_server(tool_secrets_file=file):
            pass
    assert "0123456789" not in str(refused.value)


async def test_a_file_of_secrets_that_others_may_read_is_refused(tmp_path: Path):
    file = secrets_file(tmp_path)
    os.chmod(file, 0o640)
    with pytest.raises(CannotStart, match="chmod 600"):
        async with running_server(tool_secrets_file=file):
            pass


async def test_an_auditor_sees_no_secrets_and_an_operator_what_there_is(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/agenttx.db"
    tokens = {}
    for role in (Role.AGENT, Role.OPERATOR, Role.AUDITOR):
        made = make_token(f"a-{role.value}", frozenset({role}), now=1)
        with open_tokens(url) as table:
            table.add(made.record)
        tokens[role] = made.token
    key = "sk-live-0123456789abcdefghij"
    async with running_server(anonymous="never", database_url=url) as server:
        async with agenttx.AsyncClient(server.address, token=tokens[Role.AGENT]) as agent:
            tx = agent.transaction(agent_id="a")
            await tx.step(
                "kv.put", key="a", value={"password": "hunter2", "note": f"use {key}"}, raw_context=""
            )
            await tx.step("kv.get", key="a")
            await tx.commit()
        shown = {}
        for role, token in tokens.items():
            async with agenttx.AsyncClient(server.address, token=token) as client:
                steps = [one async for one in client.list_steps(tx.transaction_id)]
                state = await client.get_state("a")
                watched = []
                async with asyncio.timeout(20):
                    async for event in client.watch(tx.transaction_id):
                        watched.append(repr(event))
                shown[role] = repr((steps, state, watched))
    for role in (Role.AGENT, Role.OPERATOR):
        assert "hunter2" in shown[role], role
        assert key in shown[role], role
    assert "hunter2" not in shown[Role.AUDITOR]
    assert key not in shown[Role.AUDITOR]
    assert "'note': 'use ***'" in shown[Role.AUDITOR]
