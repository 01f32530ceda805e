"""From an error of the SDK to what a model is told: one line, what to do, and what to call next."""

from __future__ import annotations

from collections.abc import Callable

from agenttx import errors as sdk
from agenttx_server.mcp_server import next_calls
from agenttx_server.mcp_server.answers import NextCall, Refused
from agenttx_server.mcp_server.bounds import cut

__all__ = ["refusal", "refused"]

MOST_MESSAGE = 500


def refused(error: str, message: str, advice: str, *calls: NextCall) -> Refused:
    """Return a refusal in our own words."""
    return Refused(error=error, message=cut(message, MOST_MESSAGE), advice=advice, next=list(calls))


def refusal(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    """Return what to tell about an error of the SDK; ``transaction_id`` is empty where none is concerned."""
    for kind, tell in _TELLING:
        if isinstance(error, kind):
            return tell(error, transaction_id)
    return refused(type(error).__name__, _message(error), "Correct the call and make it again")


def _message(error: sdk.AgentTxError) -> str:
    message = error.message if isinstance(error, sdk.RpcError) else str(error)
    violations = error.violations if isinstance(error, sdk.RpcError) else ()
    named = "; ".join(f"{each.field}: {each.description}" for each in violations)
    return named or message


def _look(transaction_id: str) -> list[NextCall]:
    return [next_calls.get(transaction_id, "to see where it stands")] if transaction_id else []


def _unreachable(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "server_unreachable",
        "The AgentTx server does not answer; nothing was done by this call",
        "Tell the user to start it with `agenttx serve`, then make the same call again",
    )


def _no_answer(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "no_answer_yet",
        "The AgentTx server gave no answer in time; what was asked for may have happened or still be running",
        "Make exactly the same call again: it asks for the answer, and nothing happens twice",
    )


def _internal(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "internal",
        "The AgentTx server had a fault of its own",
        "Make exactly the same call again; if it stays so, tell the user, whose server's log says more",
    )


def _not_found(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    if not transaction_id:
        return refused("not_found", _message(error), "Check the names in the call")
    return refused(
        "not_found",
        f"There is no transaction {transaction_id}",
        "Use a transaction_id that begin_transaction answered; long after its end a transaction is deleted",
        next_calls.begin("to open a new one"),
    )


def _ended(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    assert isinstance(error, sdk.TransactionEnded)
    how = {"COMMITTED": "was committed", "ROLLED_BACK": "was rolled back"}.get(error.status, "was aborted")
    because = f": {error.abort_reason}" if error.abort_reason else ""
    return refused(
        "transaction_ended",
        f"Transaction {transaction_id} {how}{because}; it takes no more steps",
        "Begin another one if there is more to do",
        next_calls.begin("to open a new one"),
        *_look(transaction_id),
    )


def _in_doubt(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    assert isinstance(error, sdk.StepInDoubt)
    step = error.step_id
    return refused(
        "step_in_doubt",
        f"It is not known whether step {step} took effect, and until somebody says so nothing goes on",
        "Don't repeat its effect by other means. Ask the user to find out and to run `agenttx steps resolve "
        f"{transaction_id} {step} succeeded`, `failed` or `retry`; then look again",
        *_look(transaction_id),
    )


def _approval(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    assert isinstance(error, sdk.ApprovalPending)
    return refused(
        "awaiting_approval",
        f"Step {error.step_id} waits for a person's approval, and until then nothing goes on",
        f"Tell the user what it wants to do and ask for a decision, `agenttx tx approve {transaction_id} {error.approval_id}` or "
        "`agenttx tx reject`; then call run_step again exactly as it was",
        *_look(transaction_id),
    )


def _held(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "rollback_incomplete",
        "A rollback is held, because an undo action failed; until that is settled nothing goes on",
        "Look which one failed. Rewind again once its cause is gone, or ask the user to settle it: "
        f"`agenttx compensations list --transaction {transaction_id}`",
        *_look(transaction_id),
    )


def _irreversible(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    assert isinstance(error, sdk.IrreversibleStep)
    return refused(
        "irreversible_step",
        f"That would go back past step {error.step_id}, which can't be undone",
        "Go back to a later step, or ask the user whether its effect may stay, and only then give accept_irreversible",
        next_calls.rewind(transaction_id, error.step_id + 1, "to go back as far as can be undone"),
    )


def _conflict(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    assert isinstance(error, sdk.CommitConflict)
    if error.next_step_id:
        return refused(
            "commit_conflict",
            f"Another transaction committed {error.key} meanwhile; this one was rewound to step {error.next_step_id}",
            "Run that step and those after it again, reading what is there now, then commit",
            *_look(transaction_id),
        )
    return refused(
        "commit_conflict",
        f"Another transaction committed {error.key} meanwhile; this one was undone and has ended",
        "Begin again: read what is there now and do the task anew",
        next_calls.begin("to do the task anew"),
    )


def _executing(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "step_running",
        "A step of this transaction is still running or being settled",
        "Wait, then make exactly the same run_step call again to get its result",
        *_look(transaction_id),
    )


def _moved(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "moved", _message(error), "Look where it stands and go on from there", *_look(transaction_id)
    )


def _exhausted(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused("limit", _message(error), "Make it smaller, or try again later", *_look(transaction_id))


def _denied(error: sdk.AgentTxError, transaction_id: str) -> Refused:
    return refused(
        "not_allowed",
        _message(error),
        "Tell the user: this MCP server's token (AGENTTX_TOKEN) is missing, wrong or not allowed to do that",
    )


# The first that fits, so the more particular ones come first.
_TELLING: tuple[tuple[type[sdk.AgentTxError], Callable[[sdk.AgentTxError, str], Refused]], ...] = (
    (sdk.ConnectionFailed, _unreachable),
    (sdk.Unavailable, _no_answer),
    (sdk.DeadlineExceeded, _no_answer),
    (sdk.Cancelled, _no_answer),
    (sdk.InternalError, _internal),
    (sdk.NotFound, _not_found),
    (sdk.TransactionEnded, _ended),
    (sdk.StepInDoubt, _in_doubt),
    (sdk.ApprovalPending, _approval),
    (sdk.RollbackIncomplete, _held),
    (sdk.IrreversibleStep, _irreversible),
    (sdk.CommitConflict, _conflict),
    (sdk.StepExecuting, _executing),
    (sdk.WrongStep, _moved),
    (sdk.StaleGeneration, _moved),
    (sdk.LimitExceeded, _exhausted),
    (sdk.Unauthenticated, _denied),
    (sdk.PermissionDenied, _denied),
)
