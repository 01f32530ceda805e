"""Tenants: what is one tenant's is not there for another, in every method, and what a tenant's principals share they share."""

# ruff: noqa: F811 - fixtures are imported by name

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.test_access import (  # noqa: F401
    LISTS,
    MORE,
    Anns,
    Tokens,
    filled,
    fullwidth,
    served,
    tokens,
)
from tests.support.every_method import METHODS, AnyMethod, call, request
from tests.support.pipeline_process import PIPELINE
from tests.support.running_server import RunningServer, running_server
from tests.support.running_worker import running_worker
from tests.support.store_databases import DATABASES

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx.tools import ToolCallContext, tool
from agenttx_server.access.identity import Role
from agenttx_server.api.method_roles import METHOD_ROLES

NOT_FOUND, OK = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK

# What asks for nothing that is anybody's: each is here on purpose, and a method that is added is not.
OWN = {
    "AgentTxService/BeginTransaction",
    "AgentTxService/ListTools",
    "AgentTxService/GetState",
    "AgentTxService/ScanState",
    "GraphService/ValidateGraph",
    "GraphService/RegisterGraph",
    "GraphService/ListGraphs",
    "PipelineService/ValidatePipeline",
    "PipelineService/RegisterPipeline",
    "PipelineService/ListPipelines",
    # Its tenant's entries, which tests/integration/test_audit_rpcs.py looks at, and that all hold.
    "AuditService/ListAuditEntries",
    "AuditService/VerifyAuditTrail",
    "ToolService/Connect",
    "ServerReflection/ServerReflectionInfo",
}
NAMED = {"GetGraph": "keeping", "ExportGraph": "keeping", "DiffGraphs": "keeping", "GetPipeline": "killed"}


def sent_to(method: AnyMethod, ids: dict[str, str]) -> Any:
    name = NAMED.get(method.descriptor.name)
    return filled(method, ids | {"name": name} if name else ids)


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_no_role_of_another_tenant_reaches_anything_by_any_method(
    served: tuple[RunningServer, Anns], tokens: Tokens
):
    server, anns = served
    await anns.client.pipelines.register(PIPELINE)
    before = await told_of(server, anns, tokens.make("olga", Role.OPERATOR))
    for role in Role:
        foreign = tokens.make(f"a-{role.value}", role, tenant="acme")
        for method in METHODS:
            if method.name in OWN or role not in METHOD_ROLES[method.name]:
                continue
            for spelt in (str, fullwidth, lambda text: f"@ann {text}", lambda text: f"@acme/{text}"):
                ids = {name: spelt(text) for name, text in anns.of(method).items()}
                answer = await call(server.channel, method, sent_to(method, ids), foreign)
                if method.name in LISTS and answer.code is OK:
                    assert not getattr(answer.message, LISTS[method.name]), (method, role)
                elif method.descriptor.name == "RunPipeline":  # it sends a pipeline of none
                    assert answer.code in (grpc.StatusCode.INVALID_ARGUMENT, NOT_FOUND), (method, answer)
                elif spelt is str:
                    assert answer.code is NOT_FOUND, (method, role, answer)
                else:
                    assert answer.code in (NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), (
                        method,
                        role,
                        answer,
                    )
        for unnamed in (
            "ListApprovals",
            "ListEffects",
            "ListCompensations",
            "ListGraphs",
            "ListTransactions",
        ):
            (method,) = (one for one in METHODS if one.descriptor.name == unnamed)
            if role in METHOD_ROLES[method.name]:
                listed = await call(server.channel, method, request(method, {}), foreign)
                assert listed.code is OK, (method, listed)
                assert not listed.message.ListFields(), (method, role)
    assert await told_of(server, anns, tokens.make("olga", Role.OPERATOR)) == before


async def told_of(server: RunningServer, anns: Anns, token: str) -> dict[str, Any]:
    said = {}
    for method in METHODS:
        # The trail tells of tokens that are made meanwhile.
        if {Role.AGENT, Role.AUDITOR} <= METHOD_ROLES.get(method.name, frozenset()):
            ids = anns.of(method)
            ids = ids | {"thread_id": "@ann anns"} if "thread_id" in ids else ids
            answer = await call(server.channel, method, sent_to(method, ids), token)
            said[method.name] = (answer.code, str(answer.message))
    assert sum(code is OK for code, _ in said.values()) > 20
    return said


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_each_tenant_has_its_own_state_graphs_and_threads_and_its_principals_share_them(
    tokens: Tokens,
):
    def keeping(key: str) -> GraphBuilder:
        graph = GraphBuilder("keeping").channel("value").channel("wrote")
        put = ToolCall("kv.put", {"key": key, "value": "${state.value}"}, output={"wrote": "${result.key}"})
        graph.node("put", put).edge(START, "put")
        return graph

    tools = ("tests.integration.test_tenants:TOOLS",)
    async with running_server(anonymous="never", database_url=tokens.url, tools=tools) as server:
        clients = [
            agenttx.AsyncClient(server.address, token=tokens.make(name, *roles, tenant=tenant))
            for name, tenant, roles in (
                ("ann", "default", (Role.AGENT,)),
                ("ann", "acme", (Role.AGENT,)),
                ("ben", "acme", (Role.AGENT,)),
                ("olga", "acme", (Role.OPERATOR,)),
            )
        ]
        ann, anns_namesake, ben, olga = clients
        for number, client in enumerate((ann, anns_namesake)):
            tx = client.transaction(agent_id="a")
            await tx.step("kv.put", key="a", value=number)
            await tx.step("record.insert", table="users", record={"id": "u", "n": number})
            found = await tx.step("kept.keys")
            assert found.output == ["a"]
            await tx.commit()
            await client.graphs.register(keeping(f"of-{number}"))
            ran = await (await client.graphs.get("keeping")).run({"value": number}, thread="t")
            assert ran.state["wrote"] == f"of-{number}"
        assert (await ann.get_state("a")).value == 0
        assert (await ben.get_state("a")).value == 1
        assert [entry.key async for entry in ann.scan_state()] == ["a", "of-0"]
        assert [entry.key async for entry in ben.scan_state()] == ["a", "of-1"]
        for reserved in ("@acme", "@acme/kv"):
            with pytest.raises(agenttx.InvalidArgument):
                await ann.get_state("a", namespace=reserved)
        for name in ("@acme/keeping", "@/keeping", "@acme"):
            with pytest.raises(agenttx.AgentTxError) as unknown:
                await ann.graphs.get(name)
            assert unknown.value.reason == "GRAPH_NOT_FOUND"
        # A conflict is one inside the tenant, and names the key as it is known there.
        mine, theirs, other = [client.transaction(agent_id="a") for client in (anns_namesake, ben, ann)]
        for tx in (mine, theirs, other):
            await tx.step("kv.get", key="a")
            await tx.step("kv.put", key="a", value=7)
        await mine.commit()
        await other.commit()
        with pytest.raises(agenttx.CommitConflict) as conflict:
            await theirs.commit()
        assert conflict.value.metadata["key"] == "kv/a"
        assert "@" not in str(conflict.value)

        # Graphs are a tenant's; transactions and threads are a principal's, and an operator's of its tenant.
        theirs = await (await ben.graphs.get("keeping")).run({"value": 3}, thread="t")
        assert theirs.state["wrote"] == "of-1"
        assert {one.thread_id async for one in ben.graphs.threads()} == {"t"}
        assert {one.thread_id async for one in olga.graphs.threads()} == {"@@acme/ann t", "@@acme/ben t"}
        assert len([one async for one in olga.list_transactions()]) == len(
            [one async for one in anns_namesake.list_transactions()]
        ) + len([one async for one in ben.list_transactions()])
        for client in clients:
            await client.close()


@tool("kept.keys", effects="read_only")
async def kept_keys(ctx: ToolCallContext) -> list[str]:
    """Return the keys of the state, in two pages."""
    first = [key for key, _ in await ctx.store.scan("", limit=1)]
    return first + [key for key, _ in await ctx.store.scan("", after=first[-1], limit=5)]


TOOLS = [kept_keys]


@tool("mail.send", effects="read_only")
def acmes(to: str) -> str:
    """Send, as acme does."""
    return f"acme to {to}"


@tool("mail.send", effects="read_only")
def ours(text: str) -> str:
    """Send, as the default tenant does."""
    return f"ours: {text}"


async def test_workers_serve_their_own_tenant_and_may_offer_what_another_does(tokens: Tokens, tmp_path: Path):
    rules = tmp_path / "tenants.toml"
    rules.write_text('[[tenant]]\nname = "small"\ntools = ["kv.get"]\n')
    async with (
        running_server(anonymous="never", database_url=tokens.url, tenants_file=rules) as server,
        agenttx.AsyncClient(server.address, token=tokens.make("ann")) as ann,
        agenttx.AsyncClient(server.address, token=tokens.make("amy", tenant="acme")) as amy,
        agenttx.AsyncClient(server.address, token=tokens.make("sam", tenant="small")) as sam,
    ):
        worker = tokens.make("w", Role.WORKER, tenant="acme")
        async with running_worker(server.address, tools=[acmes], token=worker):
            assert "mail.send" in {one.name async for one in amy.tools()}
            assert "mail.send" not in {one.name async for one in ann.tools()}
            answer = await amy.transaction(agent_id="a").step("mail.send", to="x")
            assert answer.output == "acme to x"
            refused = ann.transaction(agent_id="a")
            with pytest.raises(agenttx.AgentTxError) as unknown:
                await refused.step("mail.send", to="x")
            assert "acme" not in str(unknown.value)
            async with running_worker(server.address, tools=[ours], token=tokens.make("w", Role.WORKER)):
                answer = await ann.transaction(agent_id="a").step("mail.send", text="y")
                assert answer.output == "ours: y"
                assert (await amy.transaction(agent_id="a").step("mail.send", to="z")).output == "acme to z"
        assert "fs.read" in {one.name async for one in ann.tools()}
        # The server's own files are nobody's but the default tenant's, unless a rule says so.
        assert not {one.name async for one in amy.tools() if one.name.startswith("fs.")}
        assert [one.name async for one in sam.tools()] == ["kv.get"]
        with pytest.raises(agenttx.AgentTxError, match=r"kv\.put"):
            await sam.transaction(agent_id="a").step("kv.put", key="a", value=1)


def test_what_could_be_taken_for_a_tenant_is_no_principal(tokens: Tokens):
    for principal in ("@acme/ann", "@ann", "anonymous"):
        with pytest.raises(ValueError, match="reserved"):
            tokens.make(principal)
    for tenant in ("", "Acme", "acme/x", "@acme", "ac me", "äcme", "a" * 64, "\uff41cme"):
        with pytest.raises(ValueError, match="tenant"):
            tokens.make("ann", tenant=tenant)


async def test_a_tenant_that_has_what_it_may_is_told_when_to_come_again(tokens: Tokens, tmp_path: Path):
    rules = tmp_path / "tenants.toml"
    rules.write_text('[[tenant]]\nname = "acme"\nmax_open_transactions = 2\nmax_steps_per_second = 3\n')
    begin, group = (
        next(one for one in METHODS if one.descriptor.name == name)
        for name in ("BeginTransaction", "ExecuteStepGroup")
    )
    amy, ben = (tokens.make(name, tenant="acme") for name in ("amy", "ben"))
    async with running_server(anonymous="never", database_url=tokens.url, tenants_file=rules) as server:
        opened = [
            await call(server.channel, begin, request(begin, {"agent_id": "a"}), token)
            for token in (amy, ben, ben, tokens.make("ann"))
        ]
        assert [answer.code for answer in opened] == [OK, OK, grpc.StatusCode.RESOURCE_EXHAUSTED, OK]
        assert opened[2].reason == "QUOTA_EXCEEDED"
        assert opened[2].retry_seconds > 0
        # More than a second's steps at once are let through when nothing was sent before, and waited off.
        ids = {"transaction_id": opened[0].message.transaction_id}
        reads = {"toolName": "kv.get", "argumentsJson": '{"key":"a"}'}
        many = {"stepId": 1, "generation": 1, "members": [reads] * 60}
        first = await call(server.channel, group, request(group, ids, many), amy)
        assert first.code is OK
        ids = {"transaction_id": opened[1].message.transaction_id}
        refused = await call(server.channel, group, request(group, ids, many), ben)
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        assert refused.retry_seconds > 1
