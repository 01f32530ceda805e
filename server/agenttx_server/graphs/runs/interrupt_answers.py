"""The answers of a request: which pending interrupts they are for; all are taken, or none."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine.frozen import replace
from agenttx_server.engine.json_values import canonical
from agenttx_server.graphs.runs.records import (
    InterruptRecord,
    InterruptState,
)
from agenttx_server.graphs.runs.requests import (
    ResumeRequest,
    RunRefused,
)

__all__ = ["answers_given"]

_MOST_NAMED = 10
"""Interrupts that an error names in its text."""


def _named(pending: Sequence[InterruptRecord]) -> str:
    named = [f"{item.interrupt_id} (of {item.node})" for item in pending[:_MOST_NAMED]]
    return ", ".join(named) + (", …" if len(pending) > _MOST_NAMED else "")


def answers_given(
    request: ResumeRequest, pending: Sequence[InterruptRecord], known: Sequence[InterruptRecord]
) -> list[InterruptRecord]:
    """The interrupts with their answers; refuses the whole request if one can't be taken."""
    of_thread = {"thread_id": request.thread_id}
    if not pending and not request.values:
        raise RunRefused(
            "NOTHING_TO_RESUME",
            "no interrupt is pending; RetryRun goes on with what waits otherwise",
            of_thread,
        )
    if request.has_value:
        if request.values or len(pending) != 1:
            ids = ",".join(item.interrupt_id for item in pending)
            raise RunRefused(
                "AMBIGUOUS_RESUME",
                f"{len(pending)} interrupts are pending; give values by id: {_named(pending)}",
                {**of_thread, "interrupt_ids": ids},
            )
        return [replace(pending[0], state=InterruptState.ANSWERED, answer=canonical(request.value))]
    by_id = {item.interrupt_id: item for item in pending}
    answered = {item.interrupt_id for item in known if item.state is InterruptState.ANSWERED}
    for name in request.values:
        if name in answered:
            raise RunRefused(
                "INTERRUPT_ALREADY_RESOLVED", f"interrupt '{name}' is answered", {"interrupt_id": name}
            )
        if name not in by_id:
            raise RunRefused(
                "INTERRUPT_NOT_FOUND", f"no interrupt '{name[:128]}' is pending", {"interrupt_id": name[:128]}
            )
    if not request.values:
        raise RunRefused("NOTHING_TO_RESUME", "the request answers nothing", of_thread)
    return [
        replace(by_id[name], state=InterruptState.ANSWERED, answer=canonical(value))
        for name, value in sorted(request.values.items())
    ]
