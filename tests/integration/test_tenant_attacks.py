"""What one tenant may try on another, on PostgreSQL with two servers: request ids, page tokens, names of threads, credentials."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from tests.integration.test_access import MORE, Tokens
from tests.support.every_method import METHODS, Answer, AnyMethod, call, request
from tests.support.pipeline_process import PIPELINE
from tests.support.running_server import RunningServer, running_server
from tests.support.store_databases import DATABASES

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx_server.access.identity import Role
from agenttx_server.api.method_roles import METHOD_ROLES

OK, NOT_FOUND, INVALID = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
TOOLS = ("tests.support.pipeline_tools", "tests.support.approval_tools")
SECRET = "ann's-own-5f3759df"


def named(name: str) -> AnyMethod:
    return next(one for one in METHODS if one.descriptor.name == name)


def keeping() -> GraphBuilder:
    graph = GraphBuilder("keeping").channel("value").channel("wrote")
    put = ToolCall("kv.put", {"key": "k", "value": "${state.value}"}, output={"wrote": "${result.key}"})
    return graph.node("put", put).edge(START, "put")


@dataclass
class Two:
    """Two servers of one database, and ann's things there, two of each kind, made on the first one."""

    first: RunningServer
    second: RunningServer
    tokens: Tokens
    ids: dict[str, str] = field(default_factory=dict)

    def client(
        self, name: str, *roles: Role, tenant: str = "default", second: bool = False
    ) -> agenttx.AsyncClient:
        server = self.second if second else self.first
        return agenttx.AsyncClient(server.address, token=self.tokens.make(name, *roles, tenant=tenant))


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(DATABASES["postgresql"](tmp_path))
        given: dict[str, Any] = {"database_url": url, "anonymous": "never", "tools": TOOLS}
        servers = [await stack.enter_async_context(running_server(**given)) for _ in range(2)]
        yield Two(servers[0], servers[1], Tokens(url))


async def ann_works(two: Two) -> None:
    """Make two of everything that is listed in pages."""
    async with two.client("ann") as ann:
        await ann.graphs.register(keeping())
        await ann.pipelines.register(PIPELINE)
        graph = await ann.graphs.get("keeping")
        for number in range(2):
            tx = ann.transaction(agent_id="a", metadata={"of": SECRET})
            await tx.step("kv.put", key=f"{SECRET}-{number}", value=SECRET)
            await tx.step("effect.stage", channel="mail", payload=SECRET)
            await tx.commit()
            waiting = ann.transaction(agent_id="a")
            with pytest.raises(agenttx.StepAwaitingApproval):
                await waiting.step("ask.pay", log="/dev/null", amount=number)
            run = await graph.run({"value": SECRET}, thread=f"t-{number}")
            await graph.update_state(f"t-{number}", {"value": f"{SECRET} again"}, as_node="put")
            piped = await ann.pipelines.run("killed", [{"n": number}])
            two.ids |= {"transaction_id": tx.transaction_id, "thread_id": f"t-{number}"}
        two.ids |= {"run_id": piped.run_id, "graph_run": run.run_id}
        record, *_ = [one async for one in ann.lineage.records(piped.run_id)]
        two.ids |= {
            "target_id": record.target_id,
            "root_target_id": record.root_target_id,
            "pipeline": "killed",
        }


def ids_for(method: AnyMethod, two: Two) -> dict[str, str]:
    service = method.name.split("/")[0]
    ids = dict(two.ids)
    if service == "GraphService":
        ids["run_id"] = ids["graph_run"]
    return ids


async def test_a_page_token_of_one_tenant_shows_another_nothing_of_it(two: Two):
    await ann_works(two)
    bob = two.tokens.make("bob")
    own = two.tokens.make("olga", Role.OPERATOR)
    foreign = {role: two.tokens.make(f"a-{role.value}", role, tenant="acme") for role in Role}
    given = 0
    for method in METHODS:
        fields = method.descriptor.input_type.fields_by_name
        if "page_token" not in fields or "page_size" not in fields:
            continue
        ids = ids_for(method, two)
        if "thread_id" in fields:
            ids["thread_id"] = "@ann t-1"
        asked = request(method, ids, {**MORE.get(method.descriptor.name, {}), "pageSize": 1})
        answer = await call(two.first.channel, method, asked, own)
        token = getattr(answer.message, "next_page_token", "")
        if not token:
            continue
        given += 1
        asked.page_token = token
        for role, sent in [*foreign.items(), (Role.AGENT, bob)]:
            if role not in METHOD_ROLES[method.name]:
                continue
            shown = await call(two.second.channel, method, asked, sent)
            assert shown.code in (OK, NOT_FOUND, INVALID), (method, role, shown)
            told = str(shown.message) + str(shown.metadata)
            if sent is not bob or "State" not in method.descriptor.name:  # bob shares her tenant's state
                assert SECRET not in told, (method, role)
            for name in ("transaction_id", "graph_run"):
                assert two.ids[name] not in str(shown.message), (method, role, name)
    assert given >= 12


async def test_one_request_id_of_two_tenants_is_two_on_any_server(two: Two):
    begin, start = named("BeginTransaction"), named("StartRun")
    tokens = {
        ("ann", "default"): two.tokens.make("ann"),
        ("ann", "acme"): two.tokens.make("ann", tenant="acme"),
        ("amy", "acme"): two.tokens.make("amy", tenant="acme"),
    }
    for name, tenant in (("ann", "default"), ("ann", "acme")):
        async with two.client(name, tenant=tenant) as client:
            await client.graphs.register(keeping())
    said: dict[str, set[str]] = {"begin": set(), "start": set()}
    for who, token in tokens.items():
        for kind, method, more, names in (
            ("begin", begin, {"agentId": f"of {who}"}, "transaction_id"),
            (
                "start",
                start,
                {"graph": "keeping", "threadId": "t", "inputJson": json.dumps({"value": str(who)})},
                "run_id",
            ),
        ):
            answers: list[Answer] = []
            for server in (two.first, two.second, two.first):
                sent = request(method, {"request_id": "r-1"}, more)
                answers.append(await call(server.channel, method, sent, token))
            assert [one.code for one in answers] == [OK] * 3, (who, answers)
            ids = {_id(one.message, names) for one in answers}
            assert len(ids) == 1, (who, kind)  # the same one, wherever it is asked again
            assert not ids & said[kind], (who, kind)
            said[kind] |= ids
    assert {kind: len(ids) for kind, ids in said.items()} == {"begin": 3, "start": 3}


def _id(message: Any, name: str) -> str:
    if name in message.DESCRIPTOR.fields_by_name:
        return str(getattr(message, name))
    return next(
        str(getattr(getattr(message, inner.name), name))
        for inner in message.DESCRIPTOR.fields
        if inner.type == FieldDescriptor.TYPE_MESSAGE
        and not inner.is_repeated
        and name in inner.message_type.fields_by_name
    )


async def test_a_tenants_transaction_goes_on_at_the_other_server_and_stays_its_own(two: Two):
    async with (
        two.client("amy", tenant="acme") as here,
        two.client("amy", tenant="acme", second=True) as there,
        two.client("ann", second=True) as ann,
        two.client("oscar", Role.OPERATOR, tenant="acme", second=True) as oscar,
        two.client("olga", Role.OPERATOR, second=True) as olga,
    ):
        tx = here.transaction(agent_id="a")
        await tx.step("kv.put", key="k", value="acme's")
        shown = await there.get_transaction(tx.transaction_id)
        assert shown.next_step_id == 2
        assert (await oscar.get_transaction(tx.transaction_id)).transaction_id == tx.transaction_id
        for foreign in (ann, olga):
            with pytest.raises(agenttx.NotFound):
                await foreign.get_transaction(tx.transaction_id)
        await tx.commit()
        assert (await there.get_state("k")).value == "acme's"
        assert [one async for one in ann.scan_state()] == []


async def test_nobody_takes_anothers_name_of_a_thread(two: Two):
    update, start = named("UpdateState"), named("StartRun")
    fork, copy = named("ForkThread"), named("CopyThread")
    for tenant in ("default", "acme"):
        async with two.client("ann", tenant=tenant) as client:
            await client.graphs.register(keeping())
    squatters = {
        "an operator of hers": two.tokens.make("olga", Role.OPERATOR),
        "one of everything": two.tokens.make("eve", *Role),
        "another tenant's operator": two.tokens.make("oscar", Role.OPERATOR, tenant="acme"),
        "another tenant's everything": two.tokens.make("mallory", *Role, tenant="acme"),
        "her namesake": two.tokens.make("ann", *Role, tenant="acme"),
    }
    graph = {"graph": "keeping"}
    for who, token in squatters.items():
        for name in ("@ann t", "@@default/ann t", "@@acme/ann t", "@ann%20t", "@ann  t", "\uff20ann t"):
            for method, more in (
                (
                    update,
                    {
                        **graph,
                        "threadId": name,
                        "supersteps": [{"updates": [{"updateJson": '{"value":9}', "asNode": "put"}]}],
                    },
                ),
                (start, {**graph, "threadId": name, "inputJson": '{"value":1}'}),
                (fork, {"threadId": "t", "newThreadId": name}),
                (copy, {"threadId": "t", "newThreadId": name}),
            ):
                answer = await call(two.second.channel, method, request(method, {}, more), token)
                assert answer.code is not grpc.StatusCode.INTERNAL, (who, name, method, answer)
    async with two.client("ann") as ann:
        assert [one.thread_id async for one in ann.graphs.threads()] == []
        ran = await (await ann.graphs.get("keeping")).run({"value": "hers"}, thread="t")
        assert ran.status is agenttx.RunStatus.COMPLETED
        assert [one.thread_id async for one in ann.graphs.threads()] == ["t"]
