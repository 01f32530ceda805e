"""From messages to requests and back: nothing lost, everything wrong named."""

import json
from decimal import Decimal

import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from agenttx.v1 import transaction_pb2 as pb
from agenttx_server.api.message_conversion import answers, history_answers, requests
from agenttx_server.api.message_conversion.enumerations import PAIRS, from_wire, to_wire
from agenttx_server.api.message_conversion.values import (
    duration_from_microseconds,
    json_from_struct,
    microseconds_from_duration,
    struct_from_json,
    timestamp_from_microseconds,
)
from agenttx_server.engine.errors import InvalidRequest
from agenttx_server.engine.records import (
    CrashPolicy,
    Decision,
    EffectClass,
    Hint,
    HintCategory,
    Isolation,
    KeptEffect,
    MicrosecondsUtc,
    OnConflict,
    OnUndoFailure,
    PassedOverRung,
    PathElement,
    PathSource,
    Policy,
    RejectedCalls,
    Strategy,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
)
from agenttx_server.engine.requests import PolicyOverride, StepAnswer, StepStatus, TransactionView

STRUCT_BYTES = 2 << 20


def violations(refused):
    return {violation.field: violation.description for violation in refused.value.violations}


@pytest.mark.parametrize(
    ("engine", "wire", "prefix"), PAIRS, ids=lambda value: getattr(value, "__name__", None)
)
def test_every_value_of_the_engine_has_its_number(engine, wire, prefix):
    for member in engine:
        assert wire.Name(to_wire(member)) == prefix + member.name
        assert from_wire(engine, to_wire(member)) is member
    assert from_wire(engine, 0) is None


# --- requests ---------------------------------------------------------------------------------


def test_begin_takes_everything_over():
    message = pb.BeginTransactionRequest(
        agent_id="a",
        metadata={"b": "2", "a": "1"},
        policy=pb.RollbackPolicy(
            max_local_depth=0,
            max_global_resets=3,
            replay_budget_factor=0.1,
            on_conflict=pb.ON_CONFLICT_REWIND,
            on_undo_failure=pb.ON_UNDO_FAILURE_CONTINUE,
            rejected_calls=pb.REJECTED_CALLS_RETRY_STEP,
        ),
        request_id="r",
        isolation=pb.ISOLATION_SERIALIZABLE,
        crash_policy=pb.CRASH_POLICY_ABORT,
        idle_timeout=duration_pb2.Duration(seconds=0),
        step_timeout=duration_pb2.Duration(nanos=1),
        deadline=duration_pb2.Duration(seconds=2, nanos=5000),
    )

    request = requests.begin_request(message, "ann")

    assert (request.agent_id, request.principal, request.request_id) == ("a", "ann", "r")
    assert request.metadata == (("a", "1"), ("b", "2"))
    assert request.policy == PolicyOverride(
        0, 3, 0.1, OnConflict.REWIND, OnUndoFailure.CONTINUE, RejectedCalls.RETRY_STEP
    )
    assert (request.isolation, request.crash_policy) == (Isolation.SERIALIZABLE, CrashPolicy.ABORT)
    assert (request.idle_timeout_us, request.step_timeout_us, request.deadline_us) == (0, 1, 2_000_005)


def test_what_begin_leaves_out_is_the_servers_to_say():
    request = requests.begin_request(pb.BeginTransactionRequest(agent_id="a"), "ann")

    assert request.policy == PolicyOverride()
    assert (request.isolation, request.crash_policy) == (None, None)
    assert (request.idle_timeout_us, request.step_timeout_us, request.deadline_us) == (None, None, None)


def test_all_that_is_wrong_with_a_begin_is_named_at_once():
    message = pb.BeginTransactionRequest(
        isolation=77,
        crash_policy=78,
        policy=pb.RollbackPolicy(on_conflict=79, on_undo_failure=80, rejected_calls=81),
        idle_timeout=duration_pb2.Duration(seconds=-1),
        step_timeout=duration_pb2.Duration(seconds=1, nanos=-1),
        deadline=duration_pb2.Duration(seconds=10**15),
    )

    with pytest.raises(InvalidRequest) as refused:
        requests.begin_request(message, "ann")

    assert set(violations(refused)) == {
        "isolation",
        "crash_policy",
        "policy.on_conflict",
        "policy.on_undo_failure",
        "policy.rejected_calls",
        "idle_timeout",
        "step_timeout",
        "deadline",
    }


def test_a_step_without_a_generation_is_not_checked_for_it():
    message = pb.ExecuteStepRequest(transaction_id="t", step_id=2, tool_name="x", generation=0)
    with_zero = requests.step_request(message, "ann", STRUCT_BYTES)
    message.ClearField("generation")
    without = requests.step_request(message, "ann", STRUCT_BYTES)

    assert with_zero.generation == 0
    assert without.generation is None
    with pytest.raises(InvalidRequest) as refused:
        requests.step_request(message, "ann", STRUCT_BYTES, generation_required=True)
    assert set(violations(refused)) == {"generation"}


def test_arguments_come_from_either_field_and_not_from_both():
    message = pb.ExecuteStepRequest(transaction_id="t", arguments_json='{"b":1, "a":NaN}')
    assert requests.step_request(message, "ann", STRUCT_BYTES).call.arguments_json == '{"b":1, "a":NaN}'
    assert requests.step_request(message, "ann", STRUCT_BYTES).call.output_limit_bytes is None

    message.arguments["a"] = 1
    with pytest.raises(InvalidRequest) as refused:
        requests.step_request(message, "ann", STRUCT_BYTES)
    assert "arguments_json" in violations(refused)["arguments"]

    message.arguments_json = ""
    call = requests.step_request(message, "ann", STRUCT_BYTES).call
    assert (call.arguments_json, call.output_limit_bytes) == ('{"a":1}', STRUCT_BYTES)

    message.arguments.Clear()
    assert requests.step_request(message, "ann", STRUCT_BYTES).call.arguments_json == "{}"


def test_arguments_left_out_are_an_empty_object():
    message = pb.ExecuteStepRequest(transaction_id="t", tool_name="x")

    assert requests.step_request(message, "ann", STRUCT_BYTES).call.arguments_json == "{}"


def test_the_member_of_a_group_that_is_wrong_is_named():
    message = pb.ExecuteStepGroupRequest(
        transaction_id="t",
        members=[
            pb.GroupMember(tool_name="x"),
            pb.GroupMember(tool_name="y", timeout=duration_pb2.Duration(seconds=-1)),
        ],
    )

    with pytest.raises(InvalidRequest) as refused:
        requests.group_request(message, "ann", STRUCT_BYTES)
    assert set(violations(refused)) == {"members[1].timeout"}
    with pytest.raises(InvalidRequest, match="members"):
        requests.group_request(pb.ExecuteStepGroupRequest(transaction_id="t"), "ann", STRUCT_BYTES)


def test_a_rollback_to_step_0_is_not_one_left_out():
    message = pb.RollbackTransactionRequest(transaction_id="t")
    assert requests.rollback_request(message, "ann").to_step is None
    message.to_step = 0
    assert requests.rollback_request(message, "ann").to_step == 0


@pytest.mark.parametrize("transaction_id", ["", "x" * 129, "a\0b"])
def test_ids_that_no_transaction_can_have(transaction_id):
    with pytest.raises(InvalidRequest, match="transaction_id"):
        requests.commit_request(pb.CommitTransactionRequest(transaction_id=transaction_id), "ann")


def test_everything_wrong_with_a_list_is_named():
    message = pb.ListTransactionsRequest(
        statuses=["ACTIVE", "SLEEPING"],
        page_size=1001,
        page_token="x" * 5000,
        created_from=timestamp_pb2.Timestamp(seconds=10**14),
        metadata={"a\0": "b"},
    )

    with pytest.raises(InvalidRequest) as refused:
        requests.transaction_filter(message, "ann")
    assert set(violations(refused)) == {
        "statuses[1]",
        "page_size",
        "page_token",
        "created_from",
        "metadata[a\0]",
    }


def test_a_list_takes_everything_over():
    which, page = requests.transaction_filter(
        pb.ListTransactionsRequest(
            statuses=["ACTIVE"],
            agent_id="a",
            metadata={"k": "v"},
            created_from=timestamp_pb2.Timestamp(seconds=1, nanos=2500),
            created_before=timestamp_pb2.Timestamp(seconds=2),
        ),
        "ann",
    )

    assert which.statuses == {TransactionStatus.ACTIVE}
    assert (which.principal, which.agent_id, which.metadata) == ("ann", "a", (("k", "v"),))
    assert (which.created_from, which.created_to) == (1_000_002, 2_000_000)
    assert (page.cursor, page.limit) == ("", 100)


# --- Struct, times ----------------------------------------------------------------------------


def struct_of(value):
    struct = struct_pb2.Struct()
    struct.update({"v": value})
    return struct


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (-0.0, "-0.0"),
        (2**53 - 1, "9007199254740991"),
        (-(2**53) + 1, "-9007199254740991"),
        (1e-300, "1e-300"),
        ("é\0", '"é\\u0000"'),
        (True, "true"),
        (None, "null"),
        ([1, {"a": [None]}], '[1,{"a":[null]}]'),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_a_struct_becomes_json(value, text):
    assert json_from_struct(struct_of(value), "arguments") == (f'{{"v":{text}}}', [])


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53), 1e300])
def test_an_integer_that_may_have_been_rounded_is_refused_with_advice(number):
    _, refused = json_from_struct(struct_of([0, number]), "arguments")

    assert [violation.field for violation in refused] == ["arguments.v[1]"]
    assert "arguments_json" in refused[0].description


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused(number):
    _, refused = json_from_struct(struct_of(number), "arguments")

    assert [violation.field for violation in refused] == ["arguments.v"]


def test_a_value_without_a_kind_is_refused():
    struct = struct_pb2.Struct()
    struct.fields["v"].SetInParent()

    _, refused = json_from_struct(struct, "arguments")

    assert [violation.field for violation in refused] == ["arguments.v"]


@pytest.mark.parametrize(
    "value", [{}, {"a": [1, 2.5, "x", None, True, {"b": []}], "": {"c": {}}}, {"n": 2**60, "m": -0.0}]
)
def test_an_object_becomes_a_struct(value):
    struct = struct_from_json(json.dumps(value))

    expected = struct_pb2.Struct()
    expected.update(value)
    assert struct == expected


@pytest.mark.parametrize("text", ["[1]", '"x"', "1", "null", "true"])
def test_other_values_have_no_struct(text):
    assert struct_from_json(text) is None


@pytest.mark.parametrize(
    ("seconds", "nanos", "microseconds"),
    [(0, 0, 0), (0, 1, 1), (1, 500, 1_000_001), (1, 1000, 1_000_001), (315_576_000_000, 0, 315_576 * 10**12)],
)
def test_durations(seconds, nanos, microseconds):
    assert microseconds_from_duration(duration_pb2.Duration(seconds=seconds, nanos=nanos)) == microseconds


def test_times_and_durations_keep_their_microseconds():
    assert duration_from_microseconds(1_000_001) == duration_pb2.Duration(seconds=1, nanos=1000)
    assert timestamp_from_microseconds(MicrosecondsUtc(-1)).ToMicroseconds() == -1


# --- answers ----------------------------------------------------------------------------------

DECISION = Decision(
    strategy=Strategy.DEPENDENCY_JUMP,
    failed_step=9,
    target_step=2,
    failure_number=1,
    cost=8,
    budget_total=72,
    budget_spent_before=3,
    error_keys=("user_id",),
    error_key="user_id",
    path=(PathElement(9, "user_id"), PathElement(2, "id")),
    passed_over=(PassedOverRung(Strategy.DEPENDENCY_JUMP, 1, "irreversible step 1"),),
)


def test_a_failed_step_tells_all_that_was_decided():
    kept = KeptEffect(4, 1, "mail", EffectClass.IDEMPOTENT, "it has no undo")
    answer = StepAnswer(
        status=StepStatus.ROLLBACK_TRIGGERED,
        next_step_id=2,
        generation=5,
        attempt=1,
        hint=Hint("Hint: fix it.", HintCategory.FOREIGN_KEY_VIOLATION, None, ("user_id",)),
        strategy=Strategy.DEPENDENCY_JUMP,
        rollback_to_step=2,
        constraints=("Hint: fix it.",),
        rollback_latency_ms=1.5,
        compensation_errors=("Hint: undo failed.",),
        decision=DECISION,
        rollback_incomplete=True,
        kept_effects=(kept,),
    )

    response = answers.step_response(answer, as_struct=True)

    assert response.status == pb.STEP_STATUS_ROLLBACK_TRIGGERED
    assert (response.clean_hint, response.error_category) == ("Hint: fix it.", "foreign_key_violation")
    assert (response.rollback_to_step, response.next_step_id, response.generation) == (2, 2, 5)
    assert response.rollback_latency_ms == 1.5
    assert list(response.compensation_errors) == ["Hint: undo failed."]
    assert response.rollback_incomplete
    assert response.kept_effects[0].effect_class == pb.EFFECT_CLASS_IDEMPOTENT
    assert not response.HasField("output")
    decision = response.decision
    assert (decision.strategy, decision.failed_step, decision.target_step) == (3, 9, 2)
    assert (decision.cost, decision.budget_total, decision.budget_spent_before, decision.budget_left) == (
        8,
        72,
        3,
        61,
    )
    assert decision.traced_key == "user_id"
    assert list(decision.error_keys) == ["user_id"]
    assert [(element.step_id, element.key) for element in decision.path] == [(9, "user_id"), (2, "id")]
    assert decision.passed_over[0].reason == "irreversible step 1"


def test_after_a_reset_the_whole_budget_is_left():
    reset = answers.rollback_decision(
        Decision(Strategy.GLOBAL_RESET, 3, 1, 3, 0, budget_total=12, budget_spent_before=12)
    )

    assert reset.budget_left == 12


def test_a_success_with_a_rewound_flag_of_its_group_tells_the_decision():
    answer = StepAnswer(StepStatus.SUCCESS, 2, 5, 1, output="1", decision=DECISION, rewound=True)

    response = answers.step_response(answer, as_struct=False)

    assert response.rewound
    assert response.decision.target_step == 2
    assert response.clean_hint == ""


def test_a_transaction_tells_its_policy_as_it_is_in_force():
    record = TransactionRecord(
        transaction_id=TransactionId("t"),
        principal="ann",
        agent_id="a",
        metadata=(("k", "v"),),
        policy=Policy(0, 16, Decimal("0.1"), rejected_calls=RejectedCalls.RETRY_STEP),
        isolation=Isolation.READ_COMMITTED,
        crash_policy=CrashPolicy.RESUME,
        created_at=MicrosecondsUtc(1),
        updated_at=MicrosecondsUtc(2),
        next_step_id=4,
        status=TransactionStatus.FAILED,
    )

    response = history_answers.transaction_response(TransactionView(record, (), False, 7, 0))

    assert response.policy.HasField("max_local_depth")
    assert response.policy.max_local_depth == 0
    assert response.policy.replay_budget_factor == 0.1
    assert response.policy.on_conflict == pb.ON_CONFLICT_ABORT
    assert response.policy.rejected_calls == pb.REJECTED_CALLS_RETRY_STEP
    assert (response.status, response.next_step_id, response.steps_completed) == ("FAILED", 0, 0)


def test_a_path_tells_how_the_search_came_to_each_element() -> None:
    path = (
        PathElement(9, "user_id", PathSource.ERROR_KEY),
        PathElement(5, "owner_id", PathSource.EXPLICIT_EDGE),
        PathElement(5, "user", PathSource.PASS_THROUGH),
        PathElement(2, "id", PathSource.IMPLICIT_EDGE),
    )

    sources = [element.source for element in answers.path_elements(path)]

    assert sources == [
        pb.ROOT_CAUSE_PATH_SOURCE_ERROR_KEY,
        pb.ROOT_CAUSE_PATH_SOURCE_EXPLICIT_EDGE,
        pb.ROOT_CAUSE_PATH_SOURCE_PASS_THROUGH,
        pb.ROOT_CAUSE_PATH_SOURCE_IMPLICIT_EDGE,
    ]
