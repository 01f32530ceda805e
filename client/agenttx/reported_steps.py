"""Steps that the agent ran itself, and their undo, as operations for either client.

The agent runs the tool, reports what came of it, and is asked for the undo when the step is rewound: newest first,
one after another, each acknowledged.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agenttx import message_conversion as conversion
from agenttx import records
from agenttx.compensations import list_compensations
from agenttx.errors import UndoMissing
from agenttx.methods import ACKNOWLEDGE_UNDO
from agenttx.operation import Operation, invoke
from agenttx.step import Step
from agenttx.transaction_cursor import TransactionCursor, new_request_id
from agenttx.v1 import transaction_pb2 as pb
from agenttx.values import encode_arguments, encode_json, member

__all__ = [
    "AgentUndo",
    "UndoLike",
    "acknowledge_own_undo",
    "acknowledge_undo",
    "error_text",
    "keyword_arguments",
    "pending_undo",
    "report_step",
    "require_functions",
    "undo",
]

_UNDO_SECONDS = 120.0
"""How long the server's own undo behind an acknowledgement may legitimately take at its defaults."""


@dataclass(frozen=True, slots=True)
class AgentUndo:
    """An undo action that only the agent can do.

    Attributes:
        action: Its name; at most 128 bytes.
        arguments: What the agent needs to do it, JSON values. They are kept, so they hold no secrets.
    """

    action: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


UndoLike = AgentUndo | tuple[str, Mapping[str, Any]]


def undo(action: str, /, **arguments: Any) -> AgentUndo:
    """Return an undo action with its arguments as keywords, for `Transaction.report`.

    Example:
        `tx.report("hotel.book", {"city": "Oslo"}, output=booking, effects="compensatable",
        undo=[undo("hotel.cancel", ref=booking["ref"])])`
    """
    return AgentUndo(action, arguments)


def report_step(
    cursor: TransactionCursor,
    step: Step,
    *,
    output: Any,
    error: str | BaseException | None,
    effects: records.EffectClass | str,
    undo_actions: Iterable[UndoLike],
    step_id: int | None,
) -> Operation[records.StepOutcome]:
    """Report a step that the agent ran, at the position that is next or at the one it was first sent for."""
    if error is not None and output is not None:
        raise ValueError("a step has an output or an error, not both")
    effect_class = member("effects", records.EffectClass, effects.upper())
    actions = [action if isinstance(action, AgentUndo) else AgentUndo(*action) for action in undo_actions]
    request = pb.ReportStepRequest(
        tool_name=step.tool,
        arguments_json=encode_arguments(step.arguments),
        raw_context=step.raw_context,
        request_id=step.request_id or new_request_id(),
        effect_class=conversion.number_of(pb.EffectClass, "EFFECT_CLASS_", effect_class),
        undo_actions=[
            pb.AgentUndo(action=action.action, arguments_json=encode_json(dict(action.arguments)))
            for action in actions
        ],
    )
    if error is None:
        request.output_json = encode_json(output)
    else:
        request.error = error_text(error)
    return (yield from cursor.report(step, request, step_id=step_id))


def pending_undo(cursor: TransactionCursor) -> Operation[tuple[records.PendingUndo, ...]]:
    """Read what the agent has to undo now, newest first."""
    yield from cursor.open()
    page = yield from list_compensations(
        "",
        transaction_id=cursor.transaction_id,
        states=(records.CompensationState.AWAITING_AGENT,),
        page_size=0,
    )
    return tuple(
        records.PendingUndo(
            compensation_id=found.compensation_id,
            step_id=found.step_id,
            attempt=found.attempt,
            tool_name=found.tool_name,
            action=found.action,
            arguments=found.arguments,
            idempotency_key=found.idempotency_key,
        )
        for found in page.entries
    )


def acknowledge_undo(
    transaction_id: str, compensation_id: str, error: str | BaseException = ""
) -> Operation[records.CompensationResult]:
    """Say that the agent has done an undo action or, with an error, that it could not."""
    request = pb.AcknowledgeUndoRequest(
        transaction_id=transaction_id,
        compensation_id=compensation_id,
        error=error_text(error) if isinstance(error, BaseException) else error,
        request_id=new_request_id(),
    )
    answer = yield from invoke(ACKNOWLEDGE_UNDO, request, extra_seconds=_UNDO_SECONDS)
    return conversion.acknowledgement(answer)


def acknowledge_own_undo(
    cursor: TransactionCursor, undo: records.PendingUndo | str, error: str | BaseException
) -> Operation[records.CompensationResult]:
    """Acknowledge an undo action of a transaction and go on from where that leaves it."""
    compensation_id = undo if isinstance(undo, str) else undo.compensation_id
    result = yield from acknowledge_undo(cursor.transaction_id, compensation_id, error)
    cursor.acknowledged(result)
    return result


def require_functions(pending: Iterable[records.PendingUndo], functions: Mapping[str, Any]) -> None:
    """Raise UndoMissing, before anything is undone, if there is no function for one that is pending."""
    for found in pending:
        if found.action not in functions:
            raise UndoMissing(
                f"no function was given for the undo action {found.action!r} of step {found.step_id} "
                f"({found.tool_name})",
                pending=found,
            )


def keyword_arguments(undo: records.PendingUndo) -> dict[str, Any]:
    """Return what the function of an undo action is called with."""
    arguments = undo.arguments
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def error_text(error: str | BaseException) -> str:
    """Return what is reported of an error: of an exception its traceback, as Python prints it."""
    if isinstance(error, BaseException):
        text = "".join(traceback.format_exception(error))
        return (
            text
            if len(text) <= _LONGEST_ERROR
            else text[: _LONGEST_ERROR // 2] + "\n…\n" + text[-_LONGEST_ERROR // 2 :]
        )
    return error or "no error was given"


_LONGEST_ERROR = 64 * 1024
