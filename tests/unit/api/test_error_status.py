"""What errors look like on the wire, and that they always fit."""

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2

from agenttx.v1 import error_reason_pb2
from agenttx_server.api.error_status import CODES, code_of, is_our_fault, status_of
from agenttx_server.engine import errors
from agenttx_server.engine.errors import (
    CommitConflict,
    EngineError,
    FieldViolation,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    NotSupported,
    PreconditionFailed,
    RequestIdReused,
    Unavailable,
)
from agenttx_server.engine.ports import StoreUnavailable

REASONS = frozenset(error_reason_pb2.ErrorReason.keys())
KINDS = {
    "ErrorInfo": error_details_pb2.ErrorInfo,
    "BadRequest": error_details_pb2.BadRequest,
    "RetryInfo": error_details_pb2.RetryInfo,
}


def details(status):
    found = {}
    for packed in status.details:
        name = packed.type_url.rpartition(".")[2]
        found[name] = KINDS[name]()
        assert packed.Unpack(found[name])
    return found


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest((FieldViolation("a", "is bad"),)), grpc.StatusCode.INVALID_ARGUMENT),
        (RequestIdReused("r", "1", "2"), grpc.StatusCode.INVALID_ARGUMENT),
        (NotFound("no", reason="TRANSACTION_NOT_FOUND"), grpc.StatusCode.NOT_FOUND),
        (PreconditionFailed("no", reason="STEP_OUT_OF_ORDER"), grpc.StatusCode.FAILED_PRECONDITION),
        (CommitConflict("no", reason="COMMIT_CONFLICT"), grpc.StatusCode.ABORTED),
        (LimitExceeded("no", reason="STEP_LIMIT"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (NotSupported("no", reason="NOT_SUPPORTED_YET"), grpc.StatusCode.UNIMPLEMENTED),
        (Unavailable("no"), grpc.StatusCode.UNAVAILABLE),
        (StoreUnavailable("disk on fire"), grpc.StatusCode.UNAVAILABLE),
        (TimeoutError(), grpc.StatusCode.DEADLINE_EXCEEDED),
        (DecodeError("bytes"), grpc.StatusCode.INVALID_ARGUMENT),
        (ValueError("secret"), grpc.StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_its_code_and_an_error_info(error, code):
    status = status_of(error, "id-1")

    assert code_of(status) is code
    info = details(status)["ErrorInfo"]
    assert info.domain == "agenttx"
    assert f"ERROR_REASON_{info.reason}" in REASONS
    assert is_our_fault(error) is (code is grpc.StatusCode.INTERNAL)


def test_no_class_of_engine_errors_is_left_out():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EngineError)
    ]

    assert {kind for kind in kinds if not any(parent in CODES for parent in kind.__mro__)} == {EngineError}


def test_all_bad_fields_are_named():
    error = InvalidRequest((FieldViolation("agent_id", "is empty"), FieldViolation("policy.x", "is 17")))

    violations = details(status_of(error))["BadRequest"].field_violations

    assert [(violation.field, violation.description) for violation in violations] == [
        ("agent_id", "is empty"),
        ("policy.x", "is 17"),
    ]


def test_metadata_of_an_error_is_in_its_info():
    error = PreconditionFailed("no", reason="STEP_OUT_OF_ORDER", metadata={"expected_step": "3"})

    assert details(status_of(error))["ErrorInfo"].metadata == {"expected_step": "3"}


def test_retry_info_only_where_a_retry_helps():
    assert (
        details(status_of(Unavailable("no", retry_after_seconds=1.5)))[
            "RetryInfo"
        ].retry_delay.ToMilliseconds()
        == 1500
    )
    assert "RetryInfo" not in details(status_of(NotFound("no", reason="TRANSACTION_NOT_FOUND")))


def test_a_fault_of_ours_says_its_id_and_nothing_else():
    status = status_of(KeyError("password=hunter2"), "id-1")

    assert "hunter2" not in str(status)
    assert "id-1" in status.message
    assert details(status)["ErrorInfo"].metadata == {"error_id": "id-1"}


@pytest.mark.parametrize("filler", ["x", "é", "🦊", "\n", "%", "\ud800"])
def test_whatever_its_size_an_error_fits_its_headers(filler):
    huge = filler * 20_000
    error = InvalidRequest(
        tuple(FieldViolation(f"field{number}{huge}", huge) for number in range(500)),
        metadata={f"{number}{huge}": huge for number in range(50)},
    )

    status = status_of(error)

    assert status.ByteSize() <= 4096
    assert len(status.message.encode()) < 2048
    escaped = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in status.message.encode())
    assert escaped < 2048
    assert status.message.endswith("…")
    assert details(status)["ErrorInfo"].reason == "INVALID_REQUEST"


def test_what_is_left_out_is_counted():
    error = InvalidRequest(tuple(FieldViolation(f"field{number}", "d" * 100) for number in range(200)))

    violations = details(status_of(error))["BadRequest"].field_violations

    assert len(violations) > 5
    assert violations[-1].description == f"and {200 - (len(violations) - 1)} more, left out for their size"


def test_an_ordinary_message_travels_as_it_is():
    text = "step 3 is out of order; the next step is 2 (100 %)"

    assert status_of(PreconditionFailed(text, reason="STEP_OUT_OF_ORDER")).message == text
