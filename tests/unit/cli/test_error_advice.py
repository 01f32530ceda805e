"""Errors of the SDK as one line that says what to do."""

import grpc
import pytest

from agenttx import errors
from agenttx_server.cli.error_advice import explain
from agenttx_server.cli.exit_codes import ExitCode


def connection_failed() -> errors.ConnectionFailed:
    failure = errors.ConnectionFailed(
        "no AgentTx server answers at 127.0.0.1:1: failed to connect to all addresses; last error: UNKNOWN: "
        "ipv4:127.0.0.1:1: Failed to connect to remote host: connect: Connection refused (111)",
        code=grpc.StatusCode.UNAVAILABLE,
    )
    failure.address = "127.0.0.1:1"
    return failure


def test_no_server_names_the_address_the_cause_and_both_ways_out():
    told = explain(connection_failed())
    assert str(told).startswith("no server answers at 127.0.0.1:1 (Connection refused (111)); ")
    assert "`agenttx serve`" in str(told)
    assert "AGENTTX_ADDRESS" in str(told)
    assert told.exit_code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("story", "cause"),
    [
        (
            "last error: UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: "
            "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate verification "
            "context: OK",
            "the TLS handshake failed; does it serve TLS, with a certificate that --ca knows and that has not ended?",
        ),
        (
            "last error: UNKNOWN: ipv4:127.0.0.1:1: Failed parsing HTTP/2 (Expected SETTINGS frame as the first "
            "frame, got frame type 79)",
            "what listens there speaks no gRPC, or only with --tls",
        ),
    ],
)
def test_a_server_that_speaks_otherwise_is_told_from_one_that_is_not_there(story, cause):
    failure = errors.ConnectionFailed(story, code=grpc.StatusCode.UNAVAILABLE)
    failure.address = "127.0.0.1:1"
    assert f"({cause}); " in str(explain(failure))


@pytest.mark.parametrize(
    ("error", "exit_code", "advice"),
    [
        (errors.Unavailable("draining"), ExitCode.UNAVAILABLE, "try again"),
        (errors.DeadlineExceeded("too slow"), ExitCode.UNAVAILABLE, "--timeout"),
        (errors.NotFound("there is no transaction 'x'"), ExitCode.REFUSED, ""),
        (errors.InvalidArgument("to_step: is 9; the range is 1 to 3"), ExitCode.USAGE, ""),
        (errors.ConfigurationError("'x' is no address"), ExitCode.USAGE, ""),
        (errors.Unauthenticated("no token"), ExitCode.REFUSED, "AGENTTX_TOKEN"),
        (errors.IrreversibleStep("step 4 can't be undone"), ExitCode.REFUSED, "--accept-irreversible"),
        (errors.InternalError("internal error 7"), ExitCode.REFUSED, "its log"),
    ],
)
def test_every_kind_says_what_is_wrong_and_what_to_do(error, exit_code, advice):
    told = explain(error)
    message = error.message if isinstance(error, errors.RpcError) else str(error)
    assert str(told).startswith(message)
    assert advice in str(told)
    assert "\n" not in str(told)
    assert told.exit_code == exit_code


def test_a_message_of_several_lines_is_one_line():
    assert str(explain(errors.NotFound("a\n  b"))) == "a b"


def test_a_token_that_is_wrong_is_said_to_be_the_variable_s(monkeypatch):
    monkeypatch.setenv("AGENTTX_TOKEN", "wrong")
    told = explain(errors.Unauthenticated("the token in the authorization header is not valid"))
    assert str(told).startswith("the token in AGENTTX_TOKEN is not valid")
    assert str(told).endswith("`agenttx token create` makes one")
