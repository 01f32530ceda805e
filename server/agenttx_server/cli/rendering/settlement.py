"""What became of a step that was cancelled, or of one in doubt."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from agenttx.records import AttemptState, CancelStepResult, ResolveStepResult, StepOutcome, StepStatus
from agenttx_server.cli.rendering.tables import cell, status_text

__all__ = ["cancellation_report", "resolution_report"]


def cancellation_report(transaction_id: str, step_id: int, result: CancelStepResult) -> RenderableType:
    """Return what a cancelled step was settled as."""
    parts: list[RenderableType] = [Text.assemble(f"Step {step_id} ", status_text(result.state))]
    if result.state is AttemptState.COMPLETED:
        parts.append(Text("It ended before it could be stopped."))
    if result.state is AttemptState.IN_DOUBT:
        parts.append(_how_to_resolve(transaction_id, step_id))
    else:
        parts.append(_where_it_goes_on(result.next_step_id, result.generation))
    return Group(*parts)


def resolution_report(
    transaction_id: str, step_id: int, result: ResolveStepResult, doubtful: Sequence[int]
) -> RenderableType:
    """Return what became of a step in doubt; ``doubtful`` are those that are so still."""
    outcome = result.outcome
    if outcome is None:
        return _unsettled(transaction_id, step_id, doubtful)
    parts: list[RenderableType] = [
        Text.assemble(f"Step {step_id} ({outcome.tool_name}) ", status_text(_word(outcome)))
    ]
    if outcome.hint:
        parts.append(cell(outcome.hint, "yellow"))
    if outcome.rollback_incomplete:
        parts.append(Text("The rollback is held by undo actions; see `agenttx compensations list`."))
    else:
        parts.append(_where_it_goes_on(result.next_step_id, result.generation))
    return Group(*parts)


def _word(outcome: StepOutcome) -> str:
    return "COMPLETED" if outcome.status is StepStatus.SUCCESS else "FAILED"


def _unsettled(transaction_id: str, step_id: int, doubtful: Sequence[int]) -> RenderableType:
    state = "IN_DOUBT" if step_id in doubtful else "settled"
    parts: list[RenderableType] = [Text.assemble(f"Step {step_id} ", status_text(state))]
    if step_id not in doubtful:
        parts.append(Text("Its group is not, so the transaction goes on when the others are."))
    return Group(*parts, *(_how_to_resolve(transaction_id, step) for step in doubtful))


def _how_to_resolve(transaction_id: str, step_id: int) -> Text:
    return Text(
        f"Whether step {step_id} took effect is unknown. Find out, then say so: "
        f"agenttx steps resolve {transaction_id} {step_id} succeeded|failed|retry"
    )


def _where_it_goes_on(next_step_id: int, generation: int) -> Text:
    if not next_step_id:
        return Text("The transaction has ended.")
    return Text(f"Next step {next_step_id}, generation {generation}.")
