# ruff: noqa: PT012 - how a block ends is what is tested here, and a block has statements
import threading
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from tests.support.stub_server import Refusal, StubServer

from agenttx import (
    CommitConflict,
    GraphFormat,
    HealthStatus,
    InvalidValue,
    Isolation,
    NotFound,
    Policy,
    RejectedCalls,
    RetryPolicy,
    RollbackUnanswered,
    Step,
    StepAwaitingApproval,
    StepInDoubt,
    StepRolledBack,
    StepStatus,
    Strategy,
    TransactionAborted,
    TransactionEnded,
    call,
)
from agenttx.v1 import transaction_pb2 as pb


def test_leaving_the_block_commits(server: StubServer, client):
    with client.transaction(agent_id="a", metadata={"task": "t"}) as tx:
        assert tx.transaction_id == "tx-1"
        assert (tx.next_step_id, tx.generation) == (1, 1)
        user = tx.step("echo", id=7)
        tx.step("echo", owner=user.ref("id"), note=f"for {user.ref('id')}")
        assert tx.next_step_id == 3

    assert server.status == "COMMITTED"
    assert tx.ended
    assert server.runs == [
        (1, "echo", {"id": 7}),
        (2, "echo", {"owner": "${steps.1.id}", "note": "for ${steps.1.id}"}),
    ]


def test_an_exception_rolls_back_and_goes_on(server: StubServer, client):
    class Mine(Exception):
        pass

    with pytest.raises(Mine), client.transaction(agent_id="a") as tx:
        tx.step("echo")
        raise Mine("with a secret in its text")

    assert server.status == "ROLLED_BACK"
    (request,) = server.requests("RollbackTransaction")
    assert request.reason == "the client's block ended with Mine"
    assert request.to_step == 0


def test_a_failed_rollback_does_not_hide_the_error_that_caused_it(server: StubServer, client):
    server.refusals["RollbackTransaction"].append(Refusal(grpc.StatusCode.INTERNAL, "INTERNAL_ERROR"))

    with pytest.raises(ZeroDivisionError) as raised, client.transaction(agent_id="a"):
        _ = 1 / 0

    assert any("rolling transaction tx-1 back failed too" in note for note in raised.value.__notes__)


def test_what_ended_inside_the_block_is_left_alone(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        tx.step("echo")
        result = tx.commit()

    assert result.steps_committed == 1
    assert result.effects_dispatched == 2
    assert len(server.requests("CommitTransaction")) == 1

    server.status = "ACTIVE"
    with client.transaction(agent_id="a") as tx:
        tx.rollback("changed my mind")
    assert len(server.requests("CommitTransaction")) == 1
    assert server.requests("RollbackTransaction")[0].reason == "changed my mind"


def test_a_rollback_that_accepts_what_stays_is_another_request(server: StubServer, client):
    tx = client.transaction(agent_id="a").begin()
    for _ in range(2):
        server.refusals["RollbackTransaction"].append(
            Refusal(grpc.StatusCode.FAILED_PRECONDITION, "STEP_IN_DOUBT", metadata={"step_id": "1"})
        )
        with pytest.raises(StepInDoubt):
            tx.rollback("enough")
    tx.rollback("enough", accept_irreversible=True)

    refused, again, accepted = server.requests("RollbackTransaction")
    assert refused == again
    assert (refused.accept_irreversible, accepted.accept_irreversible) == (False, True)
    assert accepted.request_id not in ("", refused.request_id)


def test_nothing_is_begun_before_it_is_needed(server: StubServer, client):
    tx = client.transaction(agent_id="a")
    assert server.calls == []

    tx.step("echo")

    assert [rpc for rpc, _ in server.calls] == ["Check", "BeginTransaction", "ExecuteStep"]


def test_settings_of_a_transaction_travel(server: StubServer, client):
    client.transaction(
        agent_id="a",
        metadata={"k": "v"},
        policy=Policy(max_local_depth=0, replay_budget_factor=0.5, rejected_calls=RejectedCalls.RETRY_STEP),
        isolation="SERIALIZABLE",
        idle_timeout=0,
        step_timeout=timedelta(milliseconds=1500),
        deadline=60,
    ).begin()

    (request,) = server.requests("BeginTransaction")
    assert request.agent_id == "a"
    assert dict(request.metadata) == {"k": "v"}
    assert request.policy.HasField("max_local_depth")
    assert request.policy.max_local_depth == 0
    assert not request.policy.HasField("max_global_resets")
    assert request.policy.replay_budget_factor == 0.5
    assert request.policy.rejected_calls == pb.REJECTED_CALLS_RETRY_STEP
    assert request.isolation == pb.ISOLATION_SERIALIZABLE
    assert request.HasField("idle_timeout")
    assert request.idle_timeout.ToMilliseconds() == 0
    assert request.step_timeout.ToMilliseconds() == 1500
    assert request.deadline.ToMilliseconds() == 60_000
    assert request.request_id


@pytest.mark.parametrize("metadata", [{"order": 9001}, {7: "seven"}, {"task": None}])
def test_a_label_that_is_no_text_is_refused_by_name(client, metadata):
    with pytest.raises(TypeError, match=r"metadata: .* is not a string; labels are strings"):
        client.transaction(agent_id="a", metadata=metadata)


def test_a_setting_that_does_not_exist_is_refused_at_once(client):
    with pytest.raises(ValueError, match="SNAPSHOT"):
        client.transaction(agent_id="a", isolation="SNAPSHOT")
    assert Isolation("SERIALIZABLE") is Isolation.SERIALIZABLE


def test_every_step_says_where_it_belongs_and_what_it_is(server: StubServer, client):
    tx = client.transaction(agent_id="a").begin()
    tx.step("echo", step_timeout=2.5, raw_context="why", a=1)
    tx.call("echo", {"step_timeout": 1, "tool": "x", "self": 2}, request_id="mine")
    tx.step("echo", tool="x", self=1)

    first, second, third = server.requests("ExecuteStep")
    assert (first.transaction_id, first.step_id, first.generation) == ("tx-1", 1, 1)
    assert first.timeout.ToMilliseconds() == 2500
    assert first.raw_context == "why"
    assert second.request_id == "mine"
    assert server.runs[1][2] == {"step_timeout": 1, "tool": "x", "self": 2}
    assert server.runs[2][2] == {"tool": "x", "self": 1}
    assert len({first.request_id, second.request_id, third.request_id}) == 3


def test_a_failure_that_rolled_back_raises_what_to_fix_and_where_to_go_on(server: StubServer, client):
    server.tools["insert"] = lambda **_: server.rolled_back(
        1,
        "Hint: no such customer",
        strategy=pb.ROLLBACK_STRATEGY_DEPENDENCY_JUMP,
        error_category="foreign_key_violation",
        decision=pb.RollbackDecision(
            strategy=pb.ROLLBACK_STRATEGY_DEPENDENCY_JUMP,
            failed_step=2,
            target_step=1,
            traced_key="customer_id",
            path=[
                pb.RootCausePathElement(
                    step_id=2, key="customer_id", source=pb.ROOT_CAUSE_PATH_SOURCE_ERROR_KEY
                )
            ],
            budget_left=4,
        ),
    )
    with client.transaction(agent_id="a") as tx:
        tx.step("echo", id=1)
        with pytest.raises(StepRolledBack) as raised:
            tx.step("insert", customer_id=1)

        failure = raised.value
        assert failure.hint == "Hint: no such customer"
        assert failure.category == "foreign_key_violation"
        assert failure.strategy is Strategy.DEPENDENCY_JUMP
        assert (failure.step_id, failure.tool_name, failure.next_step_id) == (2, "insert", 1)
        assert failure.constraints == ("Hint: no such customer",)
        assert failure.decision.traced_key == "customer_id"
        assert failure.decision.path[0].key == "customer_id"
        assert not failure.context_reset
        assert str(failure) == (
            "step 2 (insert) failed: Hint: no such customer [DEPENDENCY_JUMP, next step 1]"
        )
        assert (tx.next_step_id, tx.generation) == (1, 2)
        assert tx.constraints == ("Hint: no such customer",)

        tx.step("echo", id=2)
    assert server.status == "COMMITTED"


def test_try_step_returns_the_failure(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(1, "Hint: x")
    with client.transaction(agent_id="a") as tx:
        outcome = tx.try_step("fail")
        assert outcome.status is StepStatus.ROLLBACK_TRIGGERED
        assert not outcome.succeeded
        assert tx.last_failure == outcome
        assert tx.step("echo").succeeded


def test_an_abort_raises_its_reason_and_ends_the_transaction(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.aborted("Hint: x", "replay budget used up")

    with pytest.raises(TransactionAborted) as raised, client.transaction(agent_id="a") as tx:
        tx.step("fail")

    assert raised.value.abort_reason == "replay budget used up"
    assert raised.value.next_step_id == 0
    assert tx.ended
    assert tx.next_step_id == 0
    assert server.requests("RollbackTransaction") == []


def test_a_caught_rollback_that_no_step_followed_is_not_committed(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(2, "Hint: x")

    with pytest.raises(RollbackUnanswered, match="Hint: x"), client.transaction(agent_id="a") as tx:
        tx.step("echo")
        tx.step("echo")
        tx.try_step("fail")

    assert server.status == "ROLLED_BACK"


def test_an_explicit_commit_after_a_rollback_is_meant(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(1, "Hint: x")
    with client.transaction(agent_id="a") as tx:
        tx.try_step("fail")
        tx.commit()
    assert server.status == "COMMITTED"


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (pb.STEP_STATUS_IN_DOUBT, StepInDoubt),
        (pb.STEP_STATUS_AWAITING_APPROVAL, StepAwaitingApproval),
    ],
)
def test_a_step_that_waits_for_a_person_leaves_the_transaction_open(
    server: StubServer, client, status, error_class
):
    server.tools["charge"] = lambda **_: pb.ExecuteStepResponse(status=status, next_step_id=1)

    with pytest.raises(error_class) as raised, client.transaction(agent_id="a") as tx:
        tx.step("charge")

    assert raised.value.step_id == 1
    assert raised.value.outcome.step_id == 1
    assert server.requests("RollbackTransaction") == []
    assert server.requests("CommitTransaction") == []

    # Once the person has decided, the same request is answered for good.
    (request,) = server.requests("ExecuteStep")
    server.recorded[request.request_id] = pb.ExecuteStepResponse(
        status=pb.STEP_STATUS_SUCCESS, output_json="{}", next_step_id=2, generation=1
    )
    (outcome,) = tx.settle()
    assert outcome.succeeded
    assert tx.next_step_id == 2
    assert server.requests("ExecuteStep")[1] == request


def test_a_group_is_answered_in_order_and_moves_on_by_all_of_it(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        first, second = tx.group([call("echo", a=1), Step("echo", {"b": 2}, raw_context="c")])
        assert (first["a"], second["b"]) == (1, 2)
        assert (first.step_id, second.step_id) == (1, 2)
        assert tx.next_step_id == 3
        tx.step("echo")

    (request,) = server.requests("ExecuteStepGroup")
    assert (request.step_id, request.generation) == (1, 1)
    assert request.members[0].request_id != request.members[1].request_id


def test_a_group_with_a_failure_raises_it_with_all_answers(server: StubServer, client):
    server.tools["fail"] = lambda **_: server.rolled_back(1, "Hint: x")
    with client.transaction(agent_id="a") as tx:
        with pytest.raises(StepRolledBack) as raised:
            tx.group([call("echo", a=1), call("fail")])
        assert raised.value.step_id == 2
        kept, failed = raised.value.outcomes
        assert kept.status is StepStatus.SUCCESS
        assert kept.rewound
        assert not kept.succeeded
        assert failed.status is StepStatus.ROLLBACK_TRIGGERED
        assert (tx.next_step_id, tx.generation) == (1, 2)
        assert [o.status for o in tx.try_group([call("echo"), call("echo")])] == [StepStatus.SUCCESS] * 2


def test_outputs_that_a_group_left_out_are_read_afterwards(server: StubServer, client):
    def large(**arguments):
        return pb.ExecuteStepResponse(
            status=pb.STEP_STATUS_SUCCESS, output_omitted=True, next_step_id=3, output_json=""
        )

    server.tools["large"] = large
    tx = client.transaction(agent_id="a").begin()

    outcomes = tx.group([call("large", v=1), call("large", v=2)])

    assert [outcome.output for outcome in outcomes] == [{"v": 1}, {"v": 2}]
    assert not any(outcome.output_omitted for outcome in outcomes)


def test_a_group_without_members_is_refused(client):
    with pytest.raises(ValueError, match="at least one"):
        client.transaction(agent_id="a").group([])


def test_a_rewind_goes_back_and_a_dry_run_only_says_what_it_would_do(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        for number in range(3):
            tx.step("echo", n=number)

        plan = tx.rewind(2, dry_run=True).plan
        assert plan.steps_total == 2
        assert plan.steps[0].step_id == 2
        assert (tx.next_step_id, tx.generation) == (4, 1)

        result = tx.rewind(2, reason="better idea")
        assert result.plan is None
        assert (tx.next_step_id, tx.generation) == (2, 2)
        tx.step("echo")
    request = server.requests("Rewind")[1]
    assert (request.to_step, request.generation, request.reason) == (2, 1, "better idea")


def test_an_open_transaction_can_be_taken_up_by_its_id(server: StubServer, client):
    server.next_step, server.generation, server.constraints = 5, 3, ["Hint: x"]

    with client.resume("tx-9") as tx:
        assert (tx.next_step_id, tx.generation, tx.constraints) == (5, 3, ("Hint: x",))
        tx.step("echo")

    assert server.requests("ExecuteStep")[0].transaction_id == "tx-9"
    assert server.requests("BeginTransaction") == []


def test_an_ended_transaction_cannot_be_taken_up(server: StubServer, client):
    server.status = "COMMITTED"

    with pytest.raises(TransactionEnded) as raised:
        client.resume("tx-9").begin()

    assert raised.value.status == "COMMITTED"


def test_a_holder_that_was_overtaken_catches_up(server: StubServer, client):
    tx = client.transaction(agent_id="a").begin()
    server.next_step, server.generation = 4, 2

    tx.refresh()
    tx.step("echo")

    assert server.requests("ExecuteStep")[0].step_id == 4


def test_a_conflict_at_commit_names_the_key_and_ends_the_transaction(server: StubServer, client):
    server.refusals["CommitTransaction"].append(
        Refusal(
            grpc.StatusCode.ABORTED,
            "COMMIT_CONFLICT",
            metadata={"key": "kv/a", "status": "FAILED"},
        )
    )

    with pytest.raises(CommitConflict) as raised, client.transaction(agent_id="a") as tx:
        tx.step("echo")

    assert raised.value.key == "kv/a"
    assert tx.ended


def test_a_conflict_that_rewound_leaves_the_transaction_open(server: StubServer, client):
    tx = client.transaction(agent_id="a").begin()
    tx.step("echo")
    tx.step("echo")
    server.refusals["CommitTransaction"].append(
        Refusal(
            grpc.StatusCode.ABORTED,
            "COMMIT_CONFLICT",
            metadata={"key": "kv/a", "status": "ACTIVE", "next_step_id": "2", "generation": "2"},
        )
    )
    server.next_step, server.generation = 2, 2

    with pytest.raises(CommitConflict) as raised:
        tx.commit()

    assert raised.value.next_step_id == 2
    assert (tx.ended, tx.next_step_id, tx.generation) == (False, 2, 2)
    tx.step("echo")
    tx.commit()
    first, second = server.requests("CommitTransaction")
    assert first.request_id != second.request_id


def test_a_conflict_is_told_also_where_the_server_is_gone_right_after_it(server: StubServer, connect):
    client = connect(server.address, retry=RetryPolicy(max_attempts=1))
    tx = client.transaction(agent_id="a").begin()
    tx.step("echo")
    server.refusals["CommitTransaction"].append(
        Refusal(
            grpc.StatusCode.ABORTED,
            "COMMIT_CONFLICT",
            metadata={"key": "kv/a", "status": "ACTIVE", "next_step_id": "1"},
        )
    )
    server.refusals["GetTransaction"].append(Refusal(grpc.StatusCode.UNAVAILABLE))
    server.next_step, server.generation = 1, 2

    with pytest.raises(CommitConflict):
        tx.commit()

    assert tx.next_step_id == 1
    tx.step("echo")  # reads the generation first
    assert [request.generation for request in server.requests("ExecuteStep")] == [1, 2]


def test_threads_take_turns(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        threads = [threading.Thread(target=tx.step, args=("echo",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tx.next_step_id == 9
    assert sorted(step for step, _, _ in server.runs) == list(range(1, 9))


def test_reads_come_as_records_page_after_page(server: StubServer, client):
    with client.transaction(agent_id="a") as tx:
        tx.step("echo", a=1)

    assert client.get_transaction("tx-1").next_step_id == 2
    assert [entry.transaction_id for entry in client.list_transactions(page_size=2)] == [
        f"tx-{n}" for n in range(5)
    ]
    (attempt,) = client.list_steps("tx-1")
    assert (attempt.tool_name, attempt.arguments) == ("echo", {"a": 1})
    entry = client.get_state("k")
    assert (entry.value, entry.version, entry.found) == ({"a": 2**64 - 1}, 3, True)


def test_filters_of_a_list_travel(server: StubServer, client):
    opened = datetime(2026, 1, 2, tzinfo=UTC)
    list(
        client.list_transactions(statuses=["ACTIVE"], agent_id="a", metadata={"k": "v"}, created_from=opened)
    )

    request = server.requests("ListTransactions")[0]
    assert list(request.statuses) == ["ACTIVE"]
    assert request.created_from.ToDatetime(tzinfo=UTC) == opened
    assert not request.HasField("created_before")
    with pytest.raises(ValueError, match="time zone"):
        list(client.list_transactions(created_from=datetime(2026, 1, 2)))  # noqa: DTZ001


def test_health_is_told_without_the_health_package(server: StubServer, client):
    assert client.health() is HealthStatus.SERVING
    server.health_status = 2
    assert client.health("readiness") is HealthStatus.NOT_SERVING
    assert client.health("unknown") is HealthStatus.SERVICE_UNKNOWN


def test_a_form_of_graph_that_does_not_exist_is_refused_naming_those_that_do(client):
    with pytest.raises(InvalidValue, match=r"^form: 'PNG' is none of MERMAID, DOT, JSON$"):
        client.draw_dependency_graph("tx-1", "PNG")
    assert GraphFormat("DOT") is GraphFormat.DOT


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("to_step", lambda client, number: client.transaction(agent_id="a").rewind(number)),
        ("step_id", lambda client, number: client.transaction(agent_id="a").call("echo", {}, step_id=number)),
        ("step_id", lambda client, number: list(client.list_steps("tx-1", step_id=number))),
        ("step_id", lambda client, number: client.find_root_cause("tx-1", number, "id")),
        ("page_size", lambda client, number: list(client.list_transactions(page_size=number))),
        ("page_size", lambda client, number: list(client.list_steps("tx-1", page_size=number))),
        ("page_size", lambda client, number: list(client.tools(page_size=number))),
        ("page_size", lambda client, number: list(client.scan_state(page_size=number))),
        ("first_step", lambda client, number: client.dependency_graph("tx-1", first_step=number)),
        ("last_step", lambda client, number: client.draw_dependency_graph("tx-1", last_step=number)),
        ("from_sequence", lambda client, number: list(client.watch("tx-1", from_sequence=number))),
        (
            "policy.max_local_depth",
            lambda client, number: client.transaction(agent_id="a", policy=Policy(max_local_depth=number)),
        ),
    ],
)
@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_no_request_can_carry_is_refused_by_its_name(client, name, use, number):
    with pytest.raises(InvalidValue, match=rf"^{name}: {number} is outside 0 … ") as refused:
        use(client, number)
    assert (refused.value.path, refused.value.rule) == (name, "integer_range")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("isolation", {"isolation": "NONE"}),
        ("crash_policy", {"crash_policy": "HOPE"}),
        ("policy.rejected_calls", {"policy": Policy(rejected_calls="RETRY")}),
        ("deadline", {"deadline": float("inf")}),
        ("idle_timeout", {"idle_timeout": 1e30}),
    ],
)
def test_a_setting_that_no_request_can_carry_is_refused_by_its_name(client, name, settings):
    with pytest.raises(InvalidValue, match=f"^{name}: "):
        client.transaction(agent_id="a", **settings)


def test_a_status_that_this_version_does_not_know_reads_as_unspecified(server: StubServer, client):
    server.status = "SUSPENDED"
    assert client.get_transaction("tx-1").status == "UNSPECIFIED"


def test_an_unknown_transaction_is_not_found(server: StubServer, client):
    server.refusals["GetTransaction"].append(Refusal(grpc.StatusCode.NOT_FOUND, "TRANSACTION_NOT_FOUND"))
    with pytest.raises(NotFound):
        client.get_transaction("nope")
