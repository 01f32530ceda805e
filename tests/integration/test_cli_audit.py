"""``agenttx audit`` on a database that is being served: who did what, and that a forger is found out."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_server import running_server

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx.v1 import transaction_pb2, transaction_pb2_grpc
from agenttx_server.access.identity import Role
from agenttx_server.access.tokens import make_token
from agenttx_server.cli.exit_codes import ExitCode
from agenttx_server.command_line import main
from agenttx_server.store import open_tokens

TOOLS = ("tests.support.approval_tools",)


@pytest.fixture
def audit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["audit", *arguments, "--data-dir", str(tmp_path)])
        written = capsys.readouterr()
        return code, written.out, written.err

    return run


def token_of(tmp_path: Path, principal: str, *roles: Role) -> str:
    made = make_token(principal, frozenset(roles), now=1)
    with open_tokens(f"sqlite:///{tmp_path}/agenttx.db", "local:root") as tokens:
        tokens.add(made.record)
    return made.token


def forge(tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(tmp_path / "agenttx.db")) as database, database:
        database.execute(statement)


async def test_who_did_what_is_exported_and_verified_while_it_is_served(audit: Any, tmp_path: Path):
    ann, olga = token_of(tmp_path, "ann", Role.AGENT), token_of(tmp_path, "olga", Role.OPERATOR)
    keeping = GraphBuilder("keeping").channel("value").channel("wrote")
    put = ToolCall("kv.put", {"key": "kept", "value": "${state.value}"}, output={"wrote": "${result.key}"})
    keeping.node("put", put).edge(START, "put")
    async with running_server(data_dir=tmp_path, anonymous="never", tools=TOOLS) as server:
        async with (
            agenttx.AsyncClient(server.address, token=ann) as anns,
            agenttx.AsyncClient(server.address, token=olga) as olgas,
        ):
            tx = anns.transaction(agent_id="a")
            with pytest.raises(agenttx.StepAwaitingApproval) as asked:
                await tx.step("ask.pay", log=str(tmp_path / "log"), amount=7)
            (approval,) = asked.value.approvals
            await olgas.approve(tx.transaction_id, approval.approval_id, comment="password=hunter2")
            await transaction_pb2_grpc.AgentTxServiceStub(server.channel).RollbackTransaction(
                transaction_pb2.RollbackTransactionRequest(
                    transaction_id=tx.transaction_id, reason="password=hunter2"
                ),
                metadata=(("authorization", f"Bearer {olga}"),),
            )
            kept = anns.transaction(agent_id="a")
            await kept.step("kv.put", key="a", value=1)
            await kept.commit()
            await anns.graphs.register(keeping)
            ran = await (await anns.graphs.get("keeping")).run({"value": 5}, thread="t")
        code, out, _ = await asyncio.to_thread(audit, "export")
        assert code == ExitCode.OK
        entries = [json.loads(line) for line in out.splitlines()]
        assert [(one["actor"], one["action"]) for one in entries] == [
            ("local:root", "token.create"),
            ("local:root", "token.create"),
            ("ann", "transaction.begin"),
            ("olga", "step.approve"),
            ("olga", "transaction.abort"),
            ("ann", "transaction.begin"),
            ("ann", "transaction.commit"),
            ("ann", "graph.register"),
            ("ann", "transaction.begin"),
            ("ann", "run.start"),
            ("ann", "transaction.commit"),
            ("ann", "run.complete"),
        ]
        assert "hunter2" not in out
        assert entries[4]["subject"] == tx.transaction_id
        assert entries[4]["owner"] == "ann"
        assert entries[-1]["subject"] == ran.run_id
        code, out, _ = await asyncio.to_thread(audit, "verify", "--json")
        assert code == ExitCode.OK
        verified = json.loads(out)
        assert (verified["entries"], verified["broken"]) == (12, [])
    (head,) = verified["heads"]

    # Cut off at the end: it shows against the head that was printed, and against nothing else.
    forge(tmp_path, "DELETE FROM audit_log WHERE sequence >= 11")
    assert audit("verify")[0] == ExitCode.OK
    code, _, told = audit("verify", "--head", head)
    assert code == ExitCode.REFUSED
    assert "chain 0 is broken at entry 11" in told

    code, out, _ = audit("export")
    (tmp_path / "trail.jsonl").write_text(out)
    assert audit("verify", str(tmp_path / "trail.jsonl"))[0] == ExitCode.OK
    forge(tmp_path, "UPDATE audit_log SET actor = 'ann' WHERE sequence = 4")
    code, _, told = audit("verify")
    assert code == ExitCode.REFUSED
    assert "chain 0 is broken at entry 4" in told
    (tmp_path / "trail.jsonl").write_text(out.replace("olga", "ann"))
    assert "broken at entry 2" in audit("verify", str(tmp_path / "trail.jsonl"))[2]
    assert audit("verify", "--head", "nonsense")[0] == ExitCode.USAGE


def test_there_must_be_a_database(audit: Any):
    code, _, told = audit("verify")
    assert code == ExitCode.USAGE
    assert "there is no database" in told
