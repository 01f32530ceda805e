"""Who reaches what: every method of every service, with every kind of credentials, over real gRPC."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.every_method import METHODS, AnyMethod, call, request
from tests.support.pipeline_flows import plan_of
from tests.support.pipeline_process import PIPELINE, pipeline_runs
from tests.support.running_server import RunningServer, running_server
from tests.support.store_databases import DATABASES

import agenttx
from agenttx import START, GraphBuilder, ToolCall
from agenttx.v1 import graph_pb2, graph_pb2_grpc, lineage_pb2, lineage_pb2_grpc
from agenttx_server.access.identity import ALL_TOOLS, Role
from agenttx_server.access.tokens import make_token
from agenttx_server.api.method_roles import METHOD_ROLES
from agenttx_server.api.methods import METHODS as DESCRIBED
from agenttx_server.main import CannotStart
from agenttx_server.pipelines.run_coordinator import Row
from agenttx_server.settings import BadSettings, load_settings
from agenttx_server.store import open_tokens

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
NOT_FOUND, OK = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OK
LONG_AGO = 1_000_000
TOOLS = ("tests.support.approval_tools",)
NOWHERE = "0190a000-0000-7000-8000-000000000000"
IDS = dict.fromkeys(("transaction_id", "run_id", "thread_id", "target_id", "root_target_id"), NOWHERE)


@dataclass
class Tokens:
    """Makes tokens in the database of a server that may be running."""

    url: str

    def make(
        self,
        principal: str,
        *roles: Role,
        tools: tuple[str, ...] = ALL_TOOLS,
        expired: bool = False,
        tenant: str = "default",
    ) -> str:
        made = make_token(
            principal,
            frozenset(roles or {Role.AGENT}),
            now=LONG_AGO,
            tenant=tenant,
            tools=tools,
            expires_at=LONG_AGO + 1 if expired else None,
        )
        with open_tokens(self.url) as tokens:
            tokens.add(made.record)
        return made.token

    def revoke(self, token: str) -> None:
        with open_tokens(self.url) as tokens:
            assert tokens.revoke(token.split("_")[1], LONG_AGO) is not None


@pytest.fixture
def tokens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tokens]:
    with DATABASES[getattr(request, "param", "sqlite")](tmp_path) as url:
        yield Tokens(url)


@pytest.fixture
async def server(tokens: Tokens) -> AsyncIterator[RunningServer]:
    async with running_server(anonymous="never", database_url=tokens.url, tools=TOOLS) as running:
        yield running


STEP = {"stepId": 1, "toolName": "kv.get", "argumentsJson": '{"key":"a"}', "generation": 1}
# What a request needs beside the names of things to be a good one.
MORE: dict[str, dict[str, Any]] = {
    "ExecuteStep": STEP,
    "ExecuteSteps": {"step": STEP},
    "ExecuteStepGroup": {"stepId": 1, "members": [{"toolName": "kv.get", "argumentsJson": '{"key":"a"}'}]},
    "ReportStep": {
        "stepId": 1,
        "toolName": "own.tool",
        "outputJson": "1",
        "effectClass": "EFFECT_CLASS_READ_ONLY",
    },
    "Rewind": {"toStep": 1},
    "CancelStep": {"stepId": 1},
    "FindRootCause": {"stepId": 1, "key": "value"},
    "AcknowledgeUndo": {"compensationId": "1.1.0"},
    "StartRun": {"graph": "keeping", "inputJson": '{"value":1}'},
    "StreamRun": {"start": {"graph": "keeping", "inputJson": '{"value":1}'}},
    "ResumeRun": {"valueJson": "1"},
    "UpdateState": {
        "graph": "keeping",
        "supersteps": [{"updates": [{"updateJson": '{"value":9}', "asNode": "put"}]}],
    },
    "PruneThread": {"keepLast": 1},
    "RewindRun": {"checkpointId": NOWHERE},
    "ForkThread": {"checkpointId": NOWHERE, "newThreadId": "bobs"},
    "CopyThread": {"newThreadId": "bobs"},
    "ListRecords": {"action": "validate"},
    "GetState": {"key": "a"},
    "Approve": {"approvalId": "1.1.1"},
    "Reject": {"approvalId": "1.1.1"},
    "ResolveStep": {"stepId": 1, "resolution": "STEP_RESOLUTION_RETRY"},
    "RetryCompensation": {"compensationId": "1.1.0"},
    "ResolveCompensation": {"compensationId": "1.1.0", "resolution": "COMPENSATION_RESOLUTION_KEPT"},
    "RequeueEffect": {"effectId": NOWHERE},
    "DiscardEffect": {"effectId": NOWHERE},
}


def fullwidth(text: str) -> str:
    """Return the compatibility form, which some comparisons take for the same."""
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)


def filled(method: AnyMethod, ids: dict[str, str]) -> Any:
    """Return a request that names what ``ids`` names and is otherwise good."""
    return request(method, ids | {"request_id": "r-1"}, MORE.get(method.descriptor.name))


def test_every_method_has_its_roles():
    known = {method.name for method in METHODS if method.name.split("/")[0] != "ServerReflection"}
    assert known == METHOD_ROLES.keys()
    assert all(METHOD_ROLES.values())


def test_every_method_but_the_health_services_needs_an_identity():
    exempt = {path for path, method in DESCRIBED.items() if method.call_class.name == "EXEMPT"}
    assert exempt == {f"/grpc.health.v1.Health/{name}" for name in ("Check", "List", "Watch")}
    assert {method.path for method in METHODS} == DESCRIBED.keys() - exempt


async def test_nothing_is_reached_without_good_credentials(server: RunningServer, tokens: Tokens):
    good = tokens.make("ann", *Role)
    revoked = tokens.make("ann", *Role)
    tokens.revoke(revoked)
    kinds: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
        "none": ((), "missing"),
        "expired": ((("authorization", "Bearer " + tokens.make("ann", *Role, expired=True)),), "expired"),
        "revoked": ((("authorization", f"Bearer {revoked}"),), "revoked"),
        "another's secret": ((("authorization", f"Bearer {good[:21]}{revoked[21:]}"),), "invalid"),
        "another scheme": ((("authorization", f"Basic {good}"),), "invalid"),
        "twice": ((("authorization", f"Bearer {good}"),) * 2, "invalid"),
        "no form": ((("authorization", "Bearer x.y.z"),), "invalid"),
    }
    for method in METHODS:
        for kind, (metadata, why) in kinds.items():
            answer = await call(server.channel, method, filled(method, IDS), metadata=metadata)
            assert (answer.code, answer.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED"), (method, kind)
            assert answer.metadata == {"why": why}, (method, kind)
    unknown = AnyMethod("/agenttx.v1.AgentTxService/Nothing", METHODS[0].descriptor)
    assert (await call(server.channel, unknown, filled(METHODS[0], IDS))).code is UNAUTHENTICATED
    assert (
        await call(server.channel, unknown, filled(METHODS[0], IDS), good)
    ).code is grpc.StatusCode.UNIMPLEMENTED


async def test_health_answers_everybody(server: RunningServer):
    health = health_pb2_grpc.HealthStub(server.channel)
    for metadata in ((), (("authorization", "Bearer nonsense"),)):
        answer = await health.Check(health_pb2.HealthCheckRequest(), metadata=metadata)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_each_role_reaches_what_the_table_says_and_nothing_else(server: RunningServer, tokens: Tokens):
    by_role = {role: tokens.make(f"a-{role.value}", role) for role in Role}
    for method in METHODS:
        allowed = METHOD_ROLES.get(method.name, frozenset(Role))
        for role, token in by_role.items():
            answer = await call(server.channel, method, filled(method, IDS), token)
            if role in allowed:
                assert answer.code not in (UNAUTHENTICATED, DENIED), (method, role, answer)
            else:
                assert (answer.code, answer.reason) == (DENIED, "PERMISSION_DENIED"), (method, role, answer)
                assert answer.metadata is not None
                assert set(answer.metadata["needs"].split(",")) == {one.value for one in allowed}


# What belongs to nobody: the tools, committed state and graphs are those of the server, and a new transaction is
# the caller's. Each is here on purpose; a method that is added is taken for one that hides what is another's.
SHARED = {
    "AgentTxService/BeginTransaction",
    "AgentTxService/ListTools",
    "AgentTxService/GetState",
    "AgentTxService/ScanState",
    "GraphService/ValidateGraph",
    "GraphService/RegisterGraph",
    "GraphService/GetGraph",
    "GraphService/ListGraphs",
    "GraphService/ExportGraph",
    "GraphService/DiffGraphs",
    "PipelineService/ValidatePipeline",
    "PipelineService/RegisterPipeline",
    "PipelineService/GetPipeline",
    "PipelineService/ListPipelines",
    "PipelineService/RunPipeline",
    "ServerReflection/ServerReflectionInfo",
}
# What begins on a thread that isn't there.
MAKES_THREADS = {"GraphService/StartRun", "GraphService/StreamRun", "GraphService/UpdateState"}
# What names nobody's and lists the caller's own.
LISTS = {
    "AgentTxService/ListTransactions": "transactions",
    "GraphService/ListRuns": "runs",
    "GraphService/ListThreads": "threads",
    "PipelineService/ListPipelineRuns": "runs",
}


@dataclass
class Anns:
    """What ann has on a server, and her client."""

    client: agenttx.AsyncClient
    token: str
    transaction_id: str
    approval: agenttx.Approval
    ids: dict[str, str]
    pipeline_run_id: str
    target_id: str

    def of(self, method: AnyMethod) -> dict[str, str]:
        """Return the names of her things for a method."""
        if method.name.startswith(("LineageService", "PipelineService")):
            target = {"target_id": self.target_id, "root_target_id": self.target_id}
            # One of a record's events, or a transaction's.
            return {"run_id": self.pipeline_run_id, **target}
        return self.ids


@pytest.fixture
async def served(tokens: Tokens, tmp_path: Path) -> AsyncIterator[tuple[RunningServer, Anns]]:
    async with pipeline_runs(tokens.url) as (runs, _):
        received = await runs.receive("ann", plan_of(PIPELINE).definition, [Row({"n": 1})])
        pipeline_run_id = (await runs.carry(received.run_id)).run_id
    token = tokens.make("ann")
    keeping = GraphBuilder("keeping").channel("value").channel("wrote")
    put = ToolCall("kv.put", {"key": "kept", "value": "${state.value}"}, output={"wrote": "${result.key}"})
    keeping.node("put", put).edge(START, "put")
    async with (
        running_server(anonymous="never", database_url=tokens.url, tools=TOOLS) as server,
        agenttx.AsyncClient(server.address, token=token) as client,
    ):
        tx = await begun(client)
        await client.graphs.register(keeping)
        graph = await client.graphs.get("keeping")
        ran = await graph.run({"value": 5}, thread="anns")
        with pytest.raises(agenttx.StepAwaitingApproval) as asked:
            await tx.step("ask.pay", log=str(tmp_path / "log"), amount=7)
        lineage = lineage_pb2_grpc.LineageServiceStub(server.channel)
        records = await lineage.ListRecords(
            lineage_pb2.ListRecordsRequest(run_id=pipeline_run_id, action="validate"),
            metadata=(("authorization", f"Bearer {token}"),),
        )
        (approval,) = asked.value.approvals
        ids = {"transaction_id": tx.transaction_id, "run_id": ran.run_id, "thread_id": "anns"}
        target_id = records.records[0].target_id
        yield server, Anns(client, token, tx.transaction_id, approval, ids, pipeline_run_id, target_id)


async def begun(client: agenttx.AsyncClient) -> agenttx.AsyncTransaction:
    """Return a transaction of a client's, with one step."""
    tx = client.transaction(agent_id="a")
    await tx.step("kv.put", key="a", value=1)
    return tx


async def to_end(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def everything_of(
    server: RunningServer, anns: Anns, token: str, thread_id: str = "anns"
) -> dict[str, Any]:
    """Return what the methods that only read say of ann's, whose thread is called by a name."""
    said = {}
    for method in METHODS:
        roles = METHOD_ROLES.get(method.name, frozenset())
        if {Role.AGENT, Role.AUDITOR} <= roles and method.name not in SHARED:
            ids = anns.of(method)
            ids = ids | {"thread_id": thread_id} if "thread_id" in ids else ids
            answer = await call(server.channel, method, filled(method, ids), token)
            said[method.name] = (answer.code, str(answer.message).replace(thread_id, "anns"))
    return said


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_what_is_anothers_is_not_there_and_stays_as_it_is(
    served: tuple[RunningServer, Anns], tokens: Tokens
):
    server, anns = served
    bob, carl = tokens.make("bob"), tokens.make("carl")
    before = await everything_of(server, anns, anns.token)
    for method in METHODS:
        if method.name in SHARED | MAKES_THREADS or Role.AGENT not in METHOD_ROLES[method.name]:
            continue
        hers = anns.of(method)
        answer = await call(server.channel, method, filled(method, hers), bob)
        if answer.code is grpc.StatusCode.UNIMPLEMENTED and answer.reason == "NOT_SUPPORTED_YET":
            continue
        if method.name in LISTS:
            assert answer.code is OK, (method, answer)
            assert not getattr(answer.message, LISTS[method.name]), method
        else:
            assert answer.code is NOT_FOUND, (method, answer)
            # As it is for a thing that nobody has.
            nobodys = await call(server.channel, method, filled(method, dict.fromkeys(hers, NOWHERE)), bob)
            assert (nobodys.code, nobodys.reason) == (answer.code, answer.reason), method
            # Also in other spellings, and as the server keeps them.
            for spelt in (str.upper, str.title, fullwidth, lambda text: f"@ann {text}", "{} ".format):
                odd = {name: spelt(text) for name, text in hers.items()}
                spelled = await call(server.channel, method, filled(method, odd), bob)
                assert spelled.code in (NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), (method, odd, spelled)
    for unnamed in ("ListApprovals", "ListEffects", "ListCompensations"):
        (method,) = (one for one in METHODS if one.descriptor.name == unnamed)
        assert not (await call(server.channel, method, request(method, {}), bob)).message.ListFields()
    # A thread of her thread's name is bob's own, and nothing tells him that there is another.
    for method in METHODS:
        if method.name in MAKES_THREADS:
            hers = anns.of(method)
            answer = await call(server.channel, method, filled(method, hers), bob)
            new = await call(server.channel, method, filled(method, hers | {"thread_id": "new"}), carl)
            assert (answer.code, answer.reason) == (new.code, new.reason), method
    assert await everything_of(server, anns, anns.token) == before
    read = {name for name, (code, _) in before.items() if code is OK}
    assert {"AgentTxService/GetTransaction", "GraphService/GetThread", "LineageService/GetRecord"} <= read


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_operators_and_auditors_see_everybodys(served: tuple[RunningServer, Anns], tokens: Tokens):
    server, anns = served
    own = await everything_of(server, anns, anns.token)
    for role in (Role.OPERATOR, Role.AUDITOR):
        seen = await everything_of(server, anns, tokens.make("olga", role), "@ann anns")
        assert seen == own, role


async def runs_told_of(server: RunningServer, token: str, until: str) -> set[str]:
    """Return the runs that a stream of all events from the first on tells of, until one has ended."""
    stub = graph_pb2_grpc.GraphServiceStub(server.channel)
    stream: Any = stub.SubscribeEvents(
        graph_pb2.SubscribeEventsRequest(from_sequence=0), metadata=(("authorization", f"Bearer {token}"),)
    )
    seen = set()
    async with asyncio.timeout(20):
        async for answer in stream:
            seen.add(answer.event.run_id)
            if (answer.event.run_id, answer.event.kind) == (until, graph_pb2.GRAPH_EVENT_KIND_RUN_COMPLETED):
                break
    stream.cancel()
    return seen


@pytest.mark.parametrize("tokens", DATABASES, indirect=True)
async def test_a_stream_of_all_events_tells_of_ones_own(served: tuple[RunningServer, Anns], tokens: Tokens):
    server, anns = served
    bob = tokens.make("bob")
    async with agenttx.AsyncClient(server.address, token=bob) as client:
        bobs = (await (await client.graphs.get("keeping")).run({"value": 1})).run_id
    assert await runs_told_of(server, bob, bobs) == {bobs}
    assert await runs_told_of(server, tokens.make("aud", Role.AUDITOR), bobs) == {anns.ids["run_id"], bobs}


async def test_request_ids_of_two_callers_are_apart(served: tuple[RunningServer, Anns], tokens: Tokens):
    server, anns = served
    bob = tokens.make("bob")
    for name, more in (
        ("BeginTransaction", {"agentId": "a"}),
        ("StartRun", MORE["StartRun"] | {"wait": True}),
    ):
        (method,) = (one for one in METHODS if one.descriptor.name == name)
        sent = request(method, {"request_id": "the same"}, more)
        first, again, bobs = [
            await call(server.channel, method, sent, one) for one in (anns.token, anns.token, bob)
        ]
        assert (first.code, bobs.code) == (OK, OK), name
        named = [
            answer.message.transaction_id if name == "BeginTransaction" else answer.message.outcome.run_id
            for answer in (first, again, bobs)
        ]
        assert named[0] == named[1] != named[2], name


async def test_an_approval_is_decided_by_an_operator_whose_name_is_written_down(
    served: tuple[RunningServer, Anns], tokens: Tokens
):
    server, anns = served
    asked = (anns.transaction_id, anns.approval.approval_id)
    with pytest.raises(agenttx.PermissionDenied):
        await anns.client.approve(*asked)
    async with agenttx.AsyncClient(server.address, token=tokens.make("olga", Role.OPERATOR)) as olga:
        decided = await olga.reject(*asked, comment="no", decided_by="somebody else")
        assert (decided.state, decided.decided_by) == ("REJECTED", "olga")
        with pytest.raises(agenttx.PermissionDenied):
            await begun(olga)


async def test_an_operator_goes_on_with_a_run_in_its_owners_name(
    served: tuple[RunningServer, Anns], tokens: Tokens
):
    server, anns = served
    async with agenttx.AsyncClient(server.address, token=tokens.make("olga", Role.OPERATOR)) as olga:
        graph = await olga.graphs.get("keeping")
        await graph.update_state("@ann anns", {"value": 6}, as_node="put")
    thread = next(one for one in METHODS if one.descriptor.name == "GetThread")
    answer = await call(server.channel, thread, request(thread, anns.ids), anns.token)
    assert answer.code is OK
    update = next(one for one in METHODS if one.descriptor.name == "UpdateState")
    new = request(update, {"thread_id": "olgas", "request_id": "r"}, MORE["UpdateState"])
    assert (await call(server.channel, update, new, tokens.make("olga", Role.OPERATOR))).code is NOT_FOUND


async def test_a_stream_ends_soon_after_its_token_is_revoked(server: RunningServer, tokens: Tokens):
    token = tokens.make("ann")
    async with agenttx.AsyncClient(server.address, token=token) as client:
        tx = await begun(client)
        watch = next(one for one in METHODS if one.descriptor.name == "WatchTransaction")
        stream: Any = server.channel.unary_stream(
            watch.path, request_serializer=lambda message: message.SerializeToString()
        )(
            request(watch, {"transaction_id": tx.transaction_id}),
            metadata=(("authorization", f"Bearer {token}"),),
        )
        await stream.read()
        await asyncio.to_thread(tokens.revoke, token)
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await to_end(stream)
        assert refused.value.code() is UNAUTHENTICATED
        with pytest.raises(agenttx.Unauthenticated) as told:
            await client.get_transaction(tx.transaction_id)
        assert told.value.metadata == {"why": "revoked"}


async def test_a_worker_offers_what_its_token_names_and_nothing_else(server: RunningServer, tokens: Tokens):
    token = tokens.make("mailer", Role.WORKER, tools=("mail.*",))
    connect = next(one for one in METHODS if one.descriptor.name == "Connect")

    def hello(tools: list[str], **more: list[str]) -> Any:
        offered = [{"name": name, "effectClass": "EFFECT_CLASS_READ_ONLY"} for name in tools]
        return request(connect, {}, {"hello": {"tools": offered, **more}})

    assert (await call(server.channel, connect, hello(["mail.send"]), token)).code is OK
    for sent in (
        hello(["mail.send", "pay.all"]),
        hello([], functions=["graph.node"]),
        hello([], channels=["email"]),
    ):
        answer = await call(server.channel, connect, sent, token)
        assert (answer.code, answer.reason) == (DENIED, "PERMISSION_DENIED")


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [({}, True), ({"anonymous": "never"}, False), ({"listen": "unix"}, True)],
)
async def test_callers_of_this_machine_need_no_credentials_unless_told(
    settings: dict[str, Any], is_open: bool, tmp_path: Path
):
    if settings.get("listen"):
        settings = {"listen": f"unix:{tmp_path / 's'}"}
    async with running_server(**settings) as server, agenttx.AsyncClient(server.address) as client:
        if is_open:
            assert await begun(client)
        else:
            with pytest.raises(agenttx.Unauthenticated):
                await begun(client)


async def test_callers_with_jwts_of_the_issuer_are_served_by_their_roles(tokens: Tokens, tmp_path: Path):
    key = ed25519.Ed25519PrivateKey.generate()
    public: dict[str, Any] = jwt.get_algorithm_by_name("EdDSA").to_jwk(key.public_key(), as_dict=True)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public | {"kid": "k"}]}))
    settings = {
        "jwt_issuer": "https://id.test",
        "jwt_audience": "us",
        "jwt_keys": str(tmp_path / "keys.json"),
    }

    def signed(subject: str, *roles: str, audience: str = "us") -> str:
        claims = {"iss": "https://id.test", "aud": audience, "sub": subject, "exp": int(time.time()) + 600}
        return jwt.encode(claims | {"agenttx_roles": roles}, key, algorithm="EdDSA", headers={"kid": "k"})

    async with running_server(anonymous="never", database_url=tokens.url, **settings) as server:
        for principal, token in (("ann", tokens.make("ann")), ("jwt:ann", signed("ann", "agent"))):
            async with agenttx.AsyncClient(server.address, token=token) as client:
                await begun(client)
                # A token's ann and the issuer's are two.
                assert len([one async for one in client.list_transactions()]) == 1, principal
        async with agenttx.AsyncClient(server.address, token=signed("aud", "auditor", "other")) as client:
            assert len([one async for one in client.list_transactions()]) == 2
            with pytest.raises(agenttx.PermissionDenied):
                await begun(client)
        async with agenttx.AsyncClient(server.address, token=signed("x", "agent", audience="y")) as client:
            with pytest.raises(agenttx.Unauthenticated):
                await begun(client)


async def test_a_server_that_can_not_have_the_issuers_keys_does_not_start(tmp_path: Path):
    with pytest.raises(CannotStart, match="--jwt-keys"):
        async with running_server(jwt_issuer="i", jwt_audience="a", jwt_keys=str(tmp_path / "none")):
            pass


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"jwt_issuer": "i"}, "belong together"),
        ({"jwt_issuer": "i", "jwt_audience": "a", "jwt_keys": "http://id.test/keys"}, "https"),
        ({"jwt_algorithms": ("HS256",)}, "jwt.algorithms"),
        ({"jwt_algorithms": ("none",)}, "jwt.algorithms"),
        ({"tls_certificate": "c.pem"}, "belong together"),
        ({"tls_client_ca": "c.pem"}, "need TLS"),
        ({"certificates_file": "c.toml"}, "only with tls_client_ca"),
        ({"tls_certificate": "c", "tls_key": "k", "listen": "unix:/s"}, "Unix socket"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], says: str):
    with pytest.raises(BadSettings, match=says):
        load_settings(settings)


async def test_from_the_network_credentials_are_needed_unless_told(tokens: Tokens):
    everywhere = {"listen": "0.0.0.0:0", "allow_plaintext": True}
    async with running_server(database_url=tokens.url, **everywhere) as server:
        here = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        async with agenttx.AsyncClient(here) as client:
            with pytest.raises(agenttx.Unauthenticated):
                await begun(client)
        async with agenttx.AsyncClient(here, token=tokens.make("ann")) as client:
            assert await begun(client)
    async with running_server(anonymous="anyone", **everywhere) as server:
        here = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        async with agenttx.AsyncClient(here) as client:
            assert await begun(client)


async def test_a_server_does_not_start_in_plain_text_where_others_listen_in():
    with pytest.raises(CannotStart, match="--allow-plaintext"):
        async with running_server(listen="0.0.0.0:0"):
            pass
