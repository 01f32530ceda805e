"""Steps that wait for a person, and what was decided on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from agenttx.records import Approval, ApprovalState
from agenttx_server.cli.rendering.tables import cell, facts_grid, status_text
from agenttx_server.cli.rendering.times import moment

__all__ = ["approval_details", "approval_facts", "decision_report"]


def approval_details(approvals: Iterable[Approval], now: datetime) -> RenderableType:
    """Return approvals one below the other, each with all that a decision needs."""
    parts: list[RenderableType] = []
    for approval in approvals:
        heading = Text.assemble(
            (f"{approval.transaction_id}  {approval.approval_id}", "bold"), "  ", status_text(approval.state)
        )
        parts += [heading, Padding(facts_grid(approval_facts(approval, now)), (0, 0, 1, 2))]
    return Group(*parts)


def approval_facts(approval: Approval, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield what is known of an approval, most telling first."""
    yield "tool", f"{approval.tool_name} ({approval.effect_class})"
    if approval.arguments_omitted:
        yield "arguments", "too large to be shown here; see `agenttx tx approvals`"
    else:
        yield "arguments", orjson.dumps(approval.arguments).decode()
    yield "why", approval.reason
    yield "agent", approval.agent_id
    attempt = f", attempt {approval.attempt}" if approval.attempt > 1 else ""
    yield "step", f"{approval.step_id}{attempt}"
    yield "asked", moment(approval.requested_at, now)
    if approval.decided_at is not None:
        yield "decided", f"{moment(approval.decided_at, now)} by {approval.decided_by}"
    yield "comment", approval.comment
    if approval.used_at is not None:
        yield "run", moment(approval.used_at, now)
    elif approval.state is ApprovalState.APPROVED:
        yield "run", "not yet: its agent has to send the step again"
    if approval.withdrawn_at is not None:
        yield "withdrawn", f"{moment(approval.withdrawn_at, now)}: {approval.withdrawn_reason}"


def decision_report(approval: Approval) -> RenderableType:
    """Return what a decision came to."""
    what = Text.assemble(
        f"Approval {approval.approval_id} ",
        status_text(approval.state),
        f": step {approval.step_id}, ",
        cell(approval.tool_name),
    )
    if approval.state is ApprovalState.APPROVED:
        return Group(what, Text("It runs when its agent sends it again, with the arguments shown."))
    return Group(what, Text("The step failed; its agent is told why when it sends it again."))
