"""Encryption at rest as its users meet it: served over gRPC, turned on, rotated, counted, and refused."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.running_server import running_server

import agenttx
from agenttx import START, GraphBuilder
from agenttx.tools import ToolCallContext, ToolFailure, UndoContext, tool
from agenttx_server.command_line import main
from agenttx_server.main import CannotStart
from agenttx_server.store import DatabaseRefused

MARKER = "marker-4711"
PIPELINE = """
pipeline: sealed
actions:
  - {name: a, tool: kv.put, args: {key: "${source.key}", value: "${source.text}"}}
"""


@tool("seal.use", effects="compensatable")
async def use(ctx: ToolCallContext, text: str, fails: bool) -> Any:
    """Leave a text wherever a tool can leave one."""
    await ctx.register_undo("seal.forget", text=text)
    await ctx.stage_effect("mail", {"text": text})
    if fails:
        raise ToolFailure("invalid_value", f"{text} is refused", keys=["text"])
    return {"said": text}


@use.undo("seal.forget")
async def forget(ctx: UndoContext, text: str) -> None:
    """Forget."""


TOOLS = [use]


def ask(state: Any, ctx: Any) -> dict[str, Any]:
    kept = ctx.step("kv.put", {"key": "asked", "value": state["text"]})
    answer = ctx.interrupt({"may": state["text"], "kept": kept["key"]})
    return {"log": [f"{answer} {state['text']}"]}


def key_file(folder: Path, capsys: pytest.CaptureFixture[str], active: str, *names: str) -> Path:
    """A file of keys; each is made the first time that it is named."""
    for name in names:
        line = folder / f"{name}.line"
        if not line.exists():
            capsys.readouterr()
            assert main(["encryption", "new-key", name]) == 0
            line.write_text(capsys.readouterr().out)
    file = folder / "keys.toml"
    file.touch(0o600)
    file.write_text(
        f'active = "{active}"\n[keys]\n' + "".join((folder / f"{n}.line").read_text() for n in names)
    )
    return file


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("agenttx.db*"))


def use_everything(address: str) -> str:
    """Leave the marker wherever an agent can; return a committed transaction's id."""
    with agenttx.Client(address) as client:
        tx = client.transaction(agent_id="a", metadata={"ticket": MARKER})
        tx.step("kv.put", key="kept", value={"text": MARKER})
        tx.step("kv.get", key="kept")
        tx.step("seal.use", text=MARKER, fails=False)
        with pytest.raises(agenttx.AgentTxError):
            tx.step("seal.use", text=MARKER, fails=True)
        tx.step("kv.put", key="again", value=MARKER)
        tx.commit()
        gone = client.transaction(agent_id="a")
        gone.step("seal.use", text=MARKER, fails=False)
        gone.rollback(reason=f"no more {MARKER}")
        builder = (
            GraphBuilder("sealed")
            .channel("text")
            .channel("log", reducer="append")
            .node("ask", ask)
            .edge(START, "ask")
        )
        graph = client.graphs.register(builder)
        graph.run({"text": MARKER}, thread="t")
        graph.resume("t", f"yes {MARKER}")
        client.pipelines.register(PIPELINE)
        assert list(client.pipelines.stream("sealed", [{"key": "p", "text": MARKER}]))
        return tx.transaction_id


def read_everything(address: str, transaction_id: str) -> list[str]:
    """Read it all back."""
    with agenttx.Client(address) as client:
        found = [
            client.get_transaction(transaction_id),
            list(client.list_steps(transaction_id)),
            [client.get_state(key) for key in ("kept", "again", "asked", "p")],
            [one.transaction_id for one in client.list_transactions(metadata={"ticket": MARKER})],
            client.graphs.get("sealed").state("t"),
            [list(client.lineage.records(run.run_id, "a")) for run in client.pipelines.runs()],
        ]
        assert found[3] == [transaction_id]
        return [repr(one) for one in found]


async def test_nothing_of_what_agents_do_is_in_the_database_and_all_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    settings: dict[str, Any] = {"tools": ("tests.integration.test_encryption:TOOLS",)}
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    for folder in (plain, sealed):
        folder.mkdir()
    async with running_server(**settings, data_dir=plain) as server:
        await asyncio.to_thread(use_everything, server.address)
        assert MARKER.encode() in await asyncio.to_thread(stored, plain)

    keys = key_file(tmp_path, capsys, "k1", "k1")
    async with running_server(**settings, data_dir=sealed, encryption_keys_file=keys) as server:
        transaction_id = await asyncio.to_thread(use_everything, server.address)
        served = await asyncio.to_thread(read_everything, server.address, transaction_id)
        assert all(MARKER in text for text in [*served[:3], *served[4:]])
        kept = await asyncio.to_thread(stored, sealed)
        assert b"sealed:1:k1:" in kept
        assert MARKER.encode() not in kept
    # The next start reads it from the database alone; what was plain is sealed beside a server that serves it.
    async with running_server(**settings, data_dir=sealed, encryption_keys_file=keys) as server:
        assert await asyncio.to_thread(read_everything, server.address, transaction_id) == served

    both = key_file(tmp_path, capsys, "k2", "k1", "k2")
    place = ["--data-dir", str(plain), "--encryption-keys-file", str(both)]
    async with running_server(**settings, data_dir=plain, encryption_keys_file=both):
        assert await asyncio.to_thread(main, ["encryption", "rotate", *place]) == 0
        assert "All values are sealed with k2." in capsys.readouterr().out
        assert MARKER.encode() not in await asyncio.to_thread(stored, plain)
    assert main(["encryption", "status", *place]) == 0
    k2, k1, plain_values = capsys.readouterr().out.splitlines()
    assert k2.endswith(" (active)")
    assert (k1, plain_values) == ("k1: 0", "plain: 0")
    assert main(["doctor", *place]) == 0
    assert "the keys k2 are those of the database" in capsys.readouterr().out
    # Its key is needed from now on.
    for file in (None, key_file(tmp_path, capsys, "k1", "k1")):
        with pytest.raises((CannotStart, DatabaseRefused), match="sealed with the key"):
            async with running_server(**settings, data_dir=plain, encryption_keys_file=file):
                pass
    assert main(["doctor", "--data-dir", str(plain)]) == 1
    assert "sealed with the keys k2; name the file" in capsys.readouterr().out


async def test_a_value_that_was_changed_is_data_loss_and_others_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    keys = key_file(tmp_path, capsys, "k1", "k1")
    data = tmp_path / "data"
    data.mkdir()

    def act(address: str) -> None:
        with agenttx.Client(address) as client:
            for name in ("good", "bad"):
                with client.transaction(agent_id="a") as tx:
                    tx.step("kv.put", key=name, value=MARKER)
            with closing(sqlite3.connect(data / "agenttx.db")) as connection, connection:
                connection.execute(
                    "UPDATE committed_state SET value = (SELECT value FROM committed_state WHERE key LIKE '%good') "
                    "WHERE key LIKE '%bad'"
                )
            with pytest.raises(agenttx.AgentTxError) as lost:
                client.get_state("bad")
            assert lost.value.code is grpc.StatusCode.DATA_LOSS
            assert lost.value.reason == "STORED_VALUE_DAMAGED"
            assert "sealed:1" not in str(lost.value)
            # A step that reads it fails, and nothing of it is given; its server goes on.
            reading = client.transaction(agent_id="a")
            with pytest.raises(agenttx.AgentTxError) as failed:
                reading.step("kv.get", key="bad")
            assert MARKER not in repr(vars(failed.value))
            assert client.get_state("good").value == MARKER

    async with running_server(data_dir=data, encryption_keys_file=keys) as server:
        await asyncio.to_thread(act, server.address)
    written = capsys.readouterr()
    log = written.out + written.err
    assert "state.value of 'kv/bad'" in log
    assert MARKER not in log
