"""A transaction over real gRPC: begin, steps, a failure, rewind, rollback, commit, and what reads say of them."""

import json

import pytest
from tests.support.calls import step_request
from tests.support.running_server import running_server

from agenttx.v1 import transaction_pb2 as pb


@pytest.fixture
async def server():
    async with running_server(tools="tests.support.sample_tools") as running:
        yield running


async def begin(server, **fields):
    return await server.stub.BeginTransaction(pb.BeginTransactionRequest(agent_id="agent", **fields))


async def step(server, begun, *call, **fields):
    return await server.stub.ExecuteStep(step_request(begun.transaction_id, *call, **fields))


async def test_a_transaction_goes_from_begin_to_commit(server):
    begun = await begin(server)
    assert (begun.next_step_id, begun.generation) == (1, 1)

    put = await step(server, begun, 1, "kv.put", {"key": "colour", "value": "green"})
    committed = await server.stub.CommitTransaction(
        pb.CommitTransactionRequest(transaction_id=begun.transaction_id)
    )

    assert put.status == pb.STEP_STATUS_SUCCESS
    assert put.strategy == pb.ROLLBACK_STRATEGY_NONE
    assert put.next_step_id == 2
    assert committed.committed
    assert committed.steps_committed == 1
    state = await server.stub.GetState(pb.GetStateRequest(key="colour"))
    assert (state.entry.found, state.entry.value_json) == (True, '"green"')
    assert state.entry.version == committed.commit_version


async def test_a_failed_step_is_an_answer_and_not_an_error(server):
    begun = await begin(server)
    await step(server, begun, 1, "kv.put", {"key": "a", "value": 1})

    failed = await step(server, begun, 2, "no.such.tool", {})

    assert failed.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
    assert failed.clean_hint.startswith("Hint: ")
    assert failed.error_category == "unknown_tool"
    assert failed.strategy == pb.ROLLBACK_STRATEGY_LOCAL_BACKTRACK
    assert failed.next_step_id == 1
    assert failed.generation == 2
    assert failed.decision.failed_step == 2
    assert list(failed.constraints) == [failed.clean_hint]


async def test_a_struct_of_arguments_is_answered_with_a_struct(server):
    begun = await begin(server)
    request = pb.ExecuteStepRequest(transaction_id=begun.transaction_id, step_id=1, tool_name="sample.echo")
    request.arguments["value"] = {"count": 3, "share": 0.5, "tags": ["x", None, True]}

    answer = await server.stub.ExecuteStep(request)

    assert json.loads(answer.output_json) == {"count": 3, "share": 0.5, "tags": ["x", None, True]}
    assert '"count":3,' in answer.output_json  # whole numbers arrive as integers
    assert answer.output["count"] == 3


async def test_arguments_left_out_are_an_empty_object(server):
    begun = await begin(server)

    answer = await step(server, begun, 1, "kv.put")

    assert answer.error_category == "missing_argument"


async def test_rewind_and_its_dry_run(server):
    begun = await begin(server)
    for number in (1, 2, 3):
        await step(server, begun, number, "kv.put", {"key": f"k{number}", "value": number})

    planned = await server.stub.Rewind(
        pb.RewindRequest(transaction_id=begun.transaction_id, to_step=2, dry_run=True)
    )
    rewound = await server.stub.Rewind(pb.RewindRequest(transaction_id=begun.transaction_id, to_step=2))

    assert [planned_step.step_id for planned_step in planned.plan.steps] == [2, 3]
    assert [(key.namespace, key.key) for key in planned.plan.state_keys] == [("kv", "k2"), ("kv", "k3")]
    assert (planned.next_step_id, planned.generation) == (4, 1)
    assert (rewound.next_step_id, rewound.generation) == (2, 2)
    assert not rewound.HasField("plan")


async def test_a_rollback_ends_the_transaction(server):
    begun = await begin(server)
    await step(server, begun, 1, "kv.put", {"key": "a", "value": 1})

    answer = await server.stub.RollbackTransaction(
        pb.RollbackTransactionRequest(transaction_id=begun.transaction_id, reason="not wanted")
    )
    read = await server.stub.GetTransaction(pb.GetTransactionRequest(transaction_id=begun.transaction_id))

    assert answer.rolled_back
    assert answer.next_step_id == 0
    assert (read.status, read.next_step_id, read.steps_completed) == ("ROLLED_BACK", 0, 0)
    assert read.HasField("ended_at")


async def test_a_rollback_to_a_step_goes_on_there(server):
    begun = await begin(server)
    await step(server, begun, 1, "kv.put", {"key": "a", "value": 1})

    answer = await server.stub.RollbackTransaction(
        pb.RollbackTransactionRequest(transaction_id=begun.transaction_id, to_step=1)
    )

    assert (answer.rolled_back, answer.next_step_id, answer.generation) == (True, 1, 2)


async def test_a_group_answers_its_members_in_step_order(server):
    begun = await begin(server)

    answer = await server.stub.ExecuteStepGroup(
        pb.ExecuteStepGroupRequest(
            transaction_id=begun.transaction_id,
            step_id=1,
            members=[
                pb.GroupMember(tool_name="sample.echo", arguments_json=f'{{"value":{number}}}')
                for number in range(3)
            ],
        )
    )

    assert [response.output_json for response in answer.responses] == ["0", "1", "2"]
    assert {response.next_step_id for response in answer.responses} == {4}


async def test_get_transaction_tells_what_was_begun_and_done(server):
    begun = await begin(server, metadata={"team": "blue"}, policy=pb.RollbackPolicy(max_local_depth=0))
    await step(server, begun, 1, "kv.put", {"key": "a", "value": 1}, raw_context="because")

    read = await server.stub.GetTransaction(pb.GetTransactionRequest(transaction_id=begun.transaction_id))

    assert (read.transaction_id, read.status, read.next_step_id) == (begun.transaction_id, "ACTIVE", 2)
    assert (read.agent_id, dict(read.metadata)) == ("agent", {"team": "blue"})
    assert (read.policy.max_local_depth, read.policy.max_global_resets) == (0, 1)
    assert read.policy.replay_budget_factor == 2.0
    assert read.isolation == pb.ISOLATION_READ_COMMITTED
    assert [(entry.step_id, entry.tool_name, entry.raw_context) for entry in read.context] == [
        (1, "kv.put", "because")
    ]
    assert (read.epoch, read.steps_completed, read.furthest_step) == (1, 1, 1)
    assert not read.HasField("ended_at")
    assert read.created_at.ToMicroseconds() <= read.updated_at.ToMicroseconds()


async def test_list_steps_tells_every_attempt_and_pages(server):
    begun = await begin(server)
    await step(server, begun, 1, "sample.echo", {"value": "once"})
    failed = await step(server, begun, 2, "kv.put", {"key": 7})
    await step(server, begun, failed.next_step_id, "sample.echo", {"value": "twice"})
    request = pb.ListStepsRequest(transaction_id=begun.transaction_id, page_size=2)

    first = await server.stub.ListSteps(request)
    request.page_token = first.next_page_token
    second = await server.stub.ListSteps(request)

    attempts = [*first.attempts, *second.attempts]
    assert len(first.attempts) == 2
    assert second.next_page_token == ""
    assert [(attempt.step_id, attempt.attempt, attempt.rewound) for attempt in attempts] == [
        (1, 1, True),
        (1, 2, False),
        (2, 1, True),
    ]
    assert [attempt.output_json for attempt in attempts] == ['"once"', '"twice"', ""]
    assert attempts[2].hint == failed.clean_hint
    assert attempts[2].decision == failed.decision
    assert attempts[2].error_keys
    live = await server.stub.ListSteps(
        pb.ListStepsRequest(transaction_id=begun.transaction_id, include_rewound=False)
    )
    assert [(attempt.step_id, attempt.attempt) for attempt in live.attempts] == [(1, 2)]


async def test_graph_and_root_cause(server):
    begun = await begin(server)
    await step(server, begun, 1, "sample.echo", {"value": {"user_id": "u-7"}})
    await step(server, begun, 2, "sample.echo", {"value": {"owner": "${steps.1.user_id}"}})
    graph_of = pb.GetDependencyGraphRequest(transaction_id=begun.transaction_id)

    graph = await server.stub.GetDependencyGraph(graph_of)
    cause = await server.stub.FindRootCause(
        pb.FindRootCauseRequest(transaction_id=begun.transaction_id, step_id=2, key="owner")
    )

    assert [node.step_id for node in graph.nodes] == [1, 2]
    assert [(edge.from_step, edge.source_key, edge.to_step, edge.target_key) for edge in graph.edges] == [
        (1, "user_id", 2, "owner")
    ]
    assert graph.edges[0].kind == pb.DEPENDENCY_KIND_EXPLICIT
    assert (cause.found, cause.root_step) == (True, 1)
    assert cause.path[0].step_id == 2
    assert cause.path[-1].step_id == 1
    nothing = await server.stub.FindRootCause(
        pb.FindRootCauseRequest(transaction_id=begun.transaction_id, step_id=1, key="other")
    )
    assert (nothing.found, nothing.root_step) == (False, 0)


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        (pb.DEPENDENCY_GRAPH_FORMAT_MERMAID, "flowchart"),
        (pb.DEPENDENCY_GRAPH_FORMAT_DOT, "digraph"),
        (pb.DEPENDENCY_GRAPH_FORMAT_JSON, "{"),
    ],
)
async def test_a_graph_as_text_of_a_range_of_steps(server, form, beginning):
    begun = await begin(server)
    for number in (1, 2, 3):
        await step(server, begun, number, "sample.echo", {"value": {"id": "u-7"}})

    answer = await server.stub.GetDependencyGraph(
        pb.GetDependencyGraphRequest(
            transaction_id=begun.transaction_id, format=form, first_step=2, last_step=3
        )
    )

    assert answer.text.startswith(beginning)
    assert not answer.nodes
    assert "s2" in answer.text or '"step_id":2' in answer.text
    for outside in ("s1 ", "s1[", '"step_id":1', '"from_step":1'):
        assert outside not in answer.text


async def test_tools_are_listed_in_pages(server):
    names = []
    request = pb.ListToolsRequest(page_size=3)
    while True:
        page = await server.stub.ListTools(request)
        names += [tool.name for tool in page.tools]
        assert len(page.tools) <= 3
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token

    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert {"kv.put", "record.insert", "effect.stage", "sample.echo"} <= set(names)
    everything = await server.stub.ListTools(pb.ListToolsRequest())
    put = next(tool for tool in everything.tools if tool.name == "kv.put")
    assert json.loads(put.arguments_schema_json)["type"] == "object"
    assert put.effect_class == pb.EFFECT_CLASS_TRANSACTIONAL
    assert put.location == pb.TOOL_LOCATION_SERVER
    assert put.description


async def test_transactions_are_listed_by_status_agent_and_label(server):
    first = await begin(server, metadata={"team": "blue"})
    second = await begin(server, metadata={"team": "red"})
    await server.stub.CommitTransaction(pb.CommitTransactionRequest(transaction_id=second.transaction_id))

    async def listed(**fields):
        page = await server.stub.ListTransactions(pb.ListTransactionsRequest(**fields))
        return [summary.transaction_id for summary in page.transactions]

    assert await listed() == [second.transaction_id, first.transaction_id]
    assert await listed(statuses=["COMMITTED"]) == [second.transaction_id]
    assert await listed(metadata={"team": "blue"}) == [first.transaction_id]
    assert await listed(agent_id="somebody") == []
    page = await server.stub.ListTransactions(pb.ListTransactionsRequest(page_size=1))
    assert page.next_page_token
    rest = await server.stub.ListTransactions(pb.ListTransactionsRequest(page_token=page.next_page_token))
    assert [summary.transaction_id for summary in rest.transactions] == [first.transaction_id]
    assert rest.transactions[0].status == "ACTIVE"


async def test_committed_state_is_scanned_by_prefix(server):
    begun = await begin(server)
    for number, key in enumerate(("a/1", "a/2", "b/1"), start=1):
        await step(server, begun, number, "kv.put", {"key": key, "value": number})
    assert not (await server.stub.ScanState(pb.ScanStateRequest())).entries
    await server.stub.CommitTransaction(pb.CommitTransactionRequest(transaction_id=begun.transaction_id))

    page = await server.stub.ScanState(pb.ScanStateRequest(prefix="a/", page_size=1))
    rest = await server.stub.ScanState(pb.ScanStateRequest(prefix="a/", page_token=page.next_page_token))

    assert [(entry.namespace, entry.key, entry.value_json) for entry in page.entries] == [("kv", "a/1", "1")]
    assert [entry.key for entry in rest.entries] == ["a/2"]
    assert rest.entries[0].found
    missing = await server.stub.GetState(pb.GetStateRequest(key="nowhere"))
    assert not missing.entry.found


async def test_effects_go_out_with_the_commit(server):
    begun = await begin(server)
    await step(server, begun, 1, "effect.stage", {"channel": "mail", "payload": {"to": "ann", "n": 1}})
    assert not server.settings.outbox_file.exists()

    committed = await server.stub.CommitTransaction(
        pb.CommitTransactionRequest(transaction_id=begun.transaction_id)
    )

    assert (committed.effects_dispatched, committed.effects_pending) == (1, 0)
    (line,) = server.settings.outbox_file.read_text().splitlines()
    delivered = json.loads(line)
    assert delivered["transaction_id"] == begun.transaction_id
    assert (delivered["step_id"], delivered["channel"]) == (1, "mail")
    assert delivered["payload"] == {"to": "ann", "n": 1}
