"""From an error of the SDK to the one line that a person sees, and to the exit code."""

from __future__ import annotations

import os

from agenttx import errors as sdk
from agenttx.endpoint import TOKEN_VARIABLE
from agenttx_server.cli.errors import CommandRefused
from agenttx_server.cli.exit_codes import ExitCode

__all__ = ["explain"]


def explain(error: sdk.AgentTxError) -> CommandRefused:
    """Return what to tell about an error of the SDK: what is wrong, then what to do."""
    if isinstance(error, sdk.Unauthenticated) and os.environ.get(TOKEN_VARIABLE):
        # What the server says of a token that it has never seen is "invalid", whatever was wrong with it once.
        return CommandRefused(
            _joined(_message(error).replace(_IN_HEADER, _IN_VARIABLE), _MAKE_A_TOKEN), ExitCode.REFUSED
        )
    for kind, exit_code, advice in _ADVICE:
        if isinstance(error, kind):
            return CommandRefused(_joined(_message(error), advice), exit_code)
    return CommandRefused(_message(error))


_IN_HEADER = "the token in the authorization header is not valid"
_IN_VARIABLE = f"the token in {TOKEN_VARIABLE} is not valid (or was revoked, or is of another server)"
_MAKE_A_TOKEN = "`agenttx token create` makes one"
_START_A_SERVER = "start one with `agenttx serve`, or say where it is: --address HOST:PORT or AGENTTX_ADDRESS"

# The first that fits, so the more particular ones come first.
_ADVICE: tuple[tuple[type[sdk.AgentTxError], ExitCode, str], ...] = (
    (sdk.ConnectionFailed, ExitCode.UNAVAILABLE, _START_A_SERVER),
    (sdk.Unavailable, ExitCode.UNAVAILABLE, "the server can't answer now; try again"),
    (
        sdk.DeadlineExceeded,
        ExitCode.UNAVAILABLE,
        "the server took too long; try again with a larger --timeout",
    ),
    (sdk.ConfigurationError, ExitCode.USAGE, ""),
    (sdk.InvalidArgument, ExitCode.USAGE, ""),
    (sdk.InvalidValue, ExitCode.USAGE, ""),
    (sdk.InternalError, ExitCode.REFUSED, "a fault of the server's; its log says more"),
    (sdk.Unauthenticated, ExitCode.REFUSED, "give the token in AGENTTX_TOKEN"),
    (
        sdk.NotSupported,
        ExitCode.REFUSED,
        "this server doesn't serve that call; `agenttx version` tells the client's version",
    ),
    (
        sdk.IrreversibleStep,
        ExitCode.REFUSED,
        "--accept-irreversible goes back all the same, and its effect stays",
    ),
    (
        sdk.ApprovalPending,
        ExitCode.REFUSED,
        "`agenttx tx approve` or `reject` decides on it",
    ),
    (
        sdk.StepInDoubt,
        ExitCode.REFUSED,
        "`agenttx steps resolve` settles it; --accept-irreversible goes on all the same, and its effect may stay",
    ),
)


def _message(error: sdk.AgentTxError) -> str:
    if isinstance(error, sdk.ConnectionFailed):
        return f"no server answers at {error.address} ({_last_cause(error.message)})"
    text = error.message if isinstance(error, sdk.RpcError) else str(error)
    return " ".join(text.split())


def _last_cause(message: str) -> str:
    """Return the cause at the end of gRPC's own story of a failed connection, which names every layer."""
    if "tls handshake failed" in message.lower():
        return "the TLS handshake failed; does it serve TLS, with a certificate that --ca knows and that has not ended?"
    cause = message.rpartition(": ")[2].rstrip("]")
    if "HTTP/2" in cause:
        return "what listens there speaks no gRPC, or only with --tls"
    return cause


def _joined(message: str, advice: str) -> str:
    return f"{message.rstrip('.;')}; {advice}" if advice else message
