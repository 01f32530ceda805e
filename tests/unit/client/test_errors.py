import copy
import inspect
import pickle
import re

import grpc
import pytest
from tests.support.stub_server import Refusal, StubServer

import agenttx
from agenttx import StepOutcome, StepRolledBack, StepStatus, Violation, errors
from agenttx.errors import CLASS_OF_CODE, CLASS_OF_REASON
from agenttx.v1 import error_reason_pb2


def all_classes(root=errors.AgentTxError):
    yield root
    for child in root.__subclasses__():
        yield from all_classes(child)


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"^[ │]*[├└]── (\w+)", errors.__doc__, re.MULTILINE)

    assert sorted(drawn) == sorted({c.__name__ for c in all_classes()} - {"AgentTxError"})


def test_every_error_can_be_imported_from_the_package():
    for error_class in all_classes():
        assert getattr(agenttx, error_class.__name__) is error_class


def test_the_reasons_in_the_table_are_reasons_of_the_contract():
    known = {
        name.removeprefix("ERROR_REASON_")
        for name in error_reason_pb2.ErrorReason.keys()  # noqa: SIM118
    }

    assert set(CLASS_OF_REASON) <= known


@pytest.mark.parametrize(
    ("refusal", "error_class", "facts"),
    [
        (
            Refusal(
                grpc.StatusCode.FAILED_PRECONDITION, "STEP_OUT_OF_ORDER", metadata={"expected_step": "7"}
            ),
            errors.WrongStep,
            {"expected_step": 7},
        ),
        (
            Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "STALE_GENERATION",
                metadata={"expected_generation": "3", "expected_step": "2"},
            ),
            errors.StaleGeneration,
            {"current_generation": 3, "expected_step": 2},
        ),
        (
            Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "TRANSACTION_ENDED",
                metadata={"status": "FAILED", "abort_reason": "budget"},
            ),
            errors.TransactionEnded,
            {"status": "FAILED", "abort_reason": "budget"},
        ),
        (
            Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "STEP_IN_DOUBT",
                metadata={"step_id": "4", "tool_name": "mail.send"},
            ),
            errors.StepInDoubt,
            {"step_id": 4, "tool_name": "mail.send", "hint": "", "outcome": None},
        ),
        (
            Refusal(grpc.StatusCode.FAILED_PRECONDITION, "IRREVERSIBLE_STEP", metadata={"step_id": "2"}),
            errors.IrreversibleStep,
            {"step_id": 2},
        ),
        (
            Refusal(grpc.StatusCode.FAILED_PRECONDITION, "STEP_AWAITING_APPROVAL", metadata={"step_id": "2"}),
            errors.ApprovalPending,
            {"step_id": 2},
        ),
        (
            Refusal(grpc.StatusCode.FAILED_PRECONDITION, "A_LATER_REASON"),
            errors.PreconditionFailed,
            {"reason": "A_LATER_REASON"},
        ),
        (
            Refusal(grpc.StatusCode.ABORTED, "COMMIT_CONFLICT", metadata={"key": "kv/a"}),
            errors.CommitConflict,
            {"key": "kv/a", "next_step_id": 0},
        ),
        (
            Refusal(
                grpc.StatusCode.INVALID_ARGUMENT,
                "INVALID_REQUEST",
                violations={"agent_id": "too long", "policy.max_local_depth": "at most 16"},
            ),
            errors.InvalidArgument,
            {
                "violations": (
                    Violation("agent_id", "too long"),
                    Violation("policy.max_local_depth", "at most 16"),
                )
            },
        ),
        (Refusal(grpc.StatusCode.NOT_FOUND, "TRANSACTION_NOT_FOUND"), errors.NotFound, {}),
        (Refusal(grpc.StatusCode.PERMISSION_DENIED), errors.PermissionDenied, {"reason": ""}),
        (Refusal(grpc.StatusCode.UNAUTHENTICATED), errors.Unauthenticated, {}),
        (Refusal(grpc.StatusCode.UNIMPLEMENTED, "NOT_SUPPORTED_YET"), errors.NotSupported, {}),
        (Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "STEP_LIMIT"), errors.LimitExceeded, {}),
        (Refusal(grpc.StatusCode.OUT_OF_RANGE, "POSITION_PURGED"), errors.OutOfRange, {}),
        (
            Refusal(grpc.StatusCode.INTERNAL, "INTERNAL_ERROR", metadata={"error_id": "e1"}),
            errors.InternalError,
            {"metadata": {"error_id": "e1"}},
        ),
        (Refusal(grpc.StatusCode.DATA_LOSS), errors.InternalError, {"code": grpc.StatusCode.DATA_LOSS}),
    ],
)
def test_an_answer_becomes_its_typed_error(server: StubServer, client, refusal, error_class, facts):
    server.refusals["GetTransaction"].append(refusal)

    with pytest.raises(errors.RpcError) as raised:
        client.get_transaction("tx-1")

    assert type(raised.value) is error_class
    assert {name: getattr(raised.value, name) for name in facts} == facts
    assert isinstance(raised.value, CLASS_OF_CODE.get(raised.value.code, errors.InternalError))


def test_reasons_of_another_domain_are_not_taken_for_ours(server: StubServer, client):
    refusal = Refusal(grpc.StatusCode.NOT_FOUND, "TRANSACTION_ENDED")
    refusal.status.details[0].value = refusal.status.details[0].value.replace(b"agenttx", b"anotheR")
    server.refusals["GetTransaction"].append(refusal)

    with pytest.raises(errors.NotFound) as raised:
        client.get_transaction("tx-1")
    assert raised.value.reason == ""


def test_metadata_that_is_no_number_reads_as_unknown():
    assert errors.WrongStep("x", metadata={"expected_step": "soon"}).expected_step == 0


@pytest.mark.parametrize("way", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_survive_a_process_boundary(way):
    outcome = StepOutcome("tx", 3, "tool", StepStatus.ROLLBACK_TRIGGERED, hint="Hint: x", next_step_id=2)
    failed = way(StepRolledBack("step 3 failed", outcome=outcome))
    wrong = way(errors.WrongStep("x", reason="STEP_OUT_OF_ORDER", metadata={"expected_step": "7"}))
    value = way(errors.InvalidValue("bad", path="a.b", rule="not_json"))

    assert (failed.outcome, failed.hint, str(failed)) == (outcome, "Hint: x", "step 3 failed")
    assert (wrong.expected_step, str(wrong)) == (7, "STEP_OUT_OF_ORDER: x")
    assert (value.path, value.rule) == ("a.b", "not_json")


def test_every_error_class_says_what_it_means():
    for error_class in all_classes():
        assert inspect.getdoc(error_class), error_class
