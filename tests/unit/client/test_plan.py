import grpc
import pytest
from tests.support.stub_server import Refusal, StubServer

from agenttx import Done, RunState, Step, StepInDoubt, TransactionAborted
from agenttx.v1 import transaction_pb2 as pb


def fails_until(server: StubServer, good: int, to_step: int, **fields):
    """A tool that accepts only one customer, and sends the agent back otherwise."""

    def insert(customer):
        if customer != good:
            return server.rolled_back(to_step, f"Hint: customer {customer} does not exist", **fields)
        return {"order": 1}

    return insert


def test_a_plan_of_fixed_steps_is_run_and_committed(server: StubServer, client):
    report = client.run(
        [
            Step("echo", {"n": 1}),
            {"tool": "echo", "arguments": {"n": "${steps.1.n}"}},
            {"tool": "echo"},
        ],
        agent_id="planner",
        metadata={"k": "v"},
    )

    assert report.transaction_id == "tx-1"
    assert report.steps_executed == 3
    assert report.rollbacks == ()
    assert report.outputs == ({"n": 1}, {"n": "${steps.1.n}"}, {})
    assert report.commit.steps_committed == 3
    assert server.requests("BeginTransaction")[0].agent_id == "planner"


def test_an_empty_plan_commits_an_empty_transaction(server: StubServer, client):
    assert client.run([], agent_id="a").commit.steps_committed == 0


def test_after_a_rollback_the_plan_goes_on_where_it_is_told_with_a_corrected_argument(
    server: StubServer, client
):
    server.tools["insert"] = fails_until(server, good=2, to_step=2)
    states: list[RunState] = []

    def choose(state: RunState) -> Step:
        states.append(state)
        return Step("echo", {"id": 2 if "does not exist" in state.hint else 1})

    report = client.run(
        [
            Step("echo", {"n": 1}),
            choose,
            lambda state: {"tool": "insert", "arguments": {"customer": state[2]["id"]}},
            lambda state: Step("echo", {"order": state.ref(3, "order")}),
        ],
        agent_id="a",
    )

    assert [step for step, _, _ in server.runs] == [1, 2, 3, 2, 3, 4]
    assert report.steps_executed == 6
    assert report.hints == ("Hint: customer 1 does not exist",)
    assert report.outputs == ({"n": 1}, {"id": 2}, {"order": 1}, {"order": "${steps.3.order}"})
    first, second = states
    assert (first.step_id, first.tries, first.hint, first.constraints, first.last_failure) == (
        2,
        0,
        "",
        (),
        None,
    )
    assert (second.tries, second.constraints) == (1, ("Hint: customer 1 does not exist",))
    assert second.last_failure.step_id == 3
    assert list(second.outcomes) == [1]
    assert not second.context_reset


def test_a_reset_tells_the_agent_to_forget(server: StubServer, client):
    server.tools["insert"] = fails_until(
        server, good=2, to_step=1, strategy=pb.ROLLBACK_STRATEGY_GLOBAL_RESET, context_reset=True
    )
    resets: list[tuple[int, bool]] = []

    def next_action(state: RunState):
        resets.append((state.step_id, state.context_reset))
        if state.step_id == 1:
            return Step("echo", {"id": 2 if state.constraints else 1})
        if state.step_id == 2:
            return Step("insert", {"customer": state[1]["id"]})
        return Done(result="done")

    report = client.run(next_action, agent_id="a")

    assert resets == [(1, False), (2, False), (1, True), (2, False), (3, False)]
    assert report.result == "done"


def test_a_generator_is_an_agent_that_is_told_what_came_of_it(server: StubServer, client):
    server.tools["insert"] = fails_until(server, good=2, to_step=1)

    def agent():
        customer = 1
        while True:
            state = yield Step("echo", {"id": customer})
            state = yield Step("insert", {"customer": state[1]["id"]})
            if state.step_id == 3:
                return customer
            customer += 1

    report = client.run(agent(), agent_id="a")

    assert report.result == 2
    assert report.steps_executed == 4


def test_a_group_in_a_plan_takes_a_number_for_each_member(server: StubServer, client):
    server.tools["insert"] = fails_until(server, good=2, to_step=3)
    report = client.run(
        [
            Step("echo", {"n": 1}),
            [
                Step("echo", {"n": 2}),
                lambda state: Step("echo", {"n": 3, "hint": state.hint}),
                Step("echo", {"n": 4}),
            ],
            lambda state: Step("insert", {"customer": 2 if state.hint else 1}),
        ],
        agent_id="a",
    )

    # The server went back into the middle of the group: what is left of it runs.
    groups = [[m.arguments_json for m in request.members] for request in server.requests("ExecuteStepGroup")]
    assert [len(members) for members in groups] == [3, 2]
    assert "does not exist" in groups[1][0]
    assert sorted(report.outcomes) == [1, 2, 3, 4, 5]
    assert report.steps_executed == 8
    assert len(report.rollbacks) == 1


def test_an_abort_ends_the_run(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.aborted("Hint: x", "no budget")

    with pytest.raises(TransactionAborted) as raised:
        client.run([Step("echo"), Step("fail")], agent_id="a")

    assert raised.value.abort_reason == "no budget"


def test_a_step_in_doubt_ends_the_run_and_leaves_the_transaction_open(server: StubServer, client):
    server.tools["charge"] = lambda **_: pb.ExecuteStepResponse(
        status=pb.STEP_STATUS_IN_DOUBT, next_step_id=1
    )

    with pytest.raises(StepInDoubt):
        client.run([Step("charge")], agent_id="a")

    assert server.status == "ACTIVE"


def test_an_error_of_the_plans_own_rolls_back(server: StubServer, client):
    def broken(state):
        raise KeyError("x")

    with pytest.raises(KeyError):
        client.run([Step("echo"), broken], agent_id="a")

    assert server.status == "ROLLED_BACK"


def test_a_conflict_that_rewound_sends_the_plan_back_to_what_used_the_key(server: StubServer, client):
    server.refusals["CommitTransaction"].append(
        Refusal(
            grpc.StatusCode.ABORTED,
            "COMMIT_CONFLICT",
            metadata={"key": "kv/a", "next_step_id": "2", "generation": "2"},
        )
    )
    hints = []

    def second(state):
        hints.append(state.hint)
        return Step("echo", {"n": 2})

    original = server.CommitTransaction

    def commit(request, context):
        if server.refusals["CommitTransaction"]:
            server.next_step, server.generation = 2, 2
        return original(request, context)

    server.CommitTransaction = commit  # type: ignore[method-assign]

    report = client.run([Step("echo", {"n": 1}), second], agent_id="a")

    assert hints == ["", "Hint: another transaction changed kv/a; read it again and redo what used it."]
    assert report.steps_executed == 3


@pytest.mark.parametrize(
    "plan",
    [
        "echo",
        b"echo",
        {"tool": "echo"},
        7,
        [7],
        [{"arguments": {}}],
        [{"tool": "echo", "argument": {}}],
        [[]],
        lambda state: None,
        lambda state: [],
        lambda state: "echo",
    ],
)
def test_what_is_no_plan_is_refused_and_rolled_back(server: StubServer, client, plan):
    with pytest.raises(TypeError):
        client.run(plan, agent_id="a")

    assert server.status in ("ACTIVE", "ROLLED_BACK")
    assert server.runs == []
