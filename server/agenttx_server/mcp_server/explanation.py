"""Why a step failed and what was decided: the newest failure, told from the history."""

from __future__ import annotations

from agenttx import AsyncClient, Decision, StepAttempt, Strategy, TransactionInfo
from agenttx_server.mcp_server import next_calls
from agenttx_server.mcp_server.answers import Explained, NextCall
from agenttx_server.mcp_server.bounds import compact, cut, shown
from agenttx_server.mcp_server.step_answers import root_cause

__all__ = ["explained", "newest_failure"]

MOST_ERROR = 4096


async def newest_failure(client: AsyncClient, transaction_id: str, step: int) -> StepAttempt | None:
    """Return the newest attempt that failed; ``step`` 0 means of any step."""
    newest = None
    async for attempt in client.list_steps(transaction_id, step_id=step):
        is_newer = newest is None or (attempt.generation, attempt.step_id) >= (
            newest.generation,
            newest.step_id,
        )
        if attempt.hint and not attempt.sub_step and is_newer:
            newest = attempt
    return newest


def explained(info: TransactionInfo, attempt: StepAttempt, calls: list[NextCall]) -> tuple[str, Explained]:
    """Return the explanation of a failed attempt, as text and as fields."""
    decision = attempt.decision
    arguments = shown(attempt.arguments)
    answer = Explained(
        transaction_id=info.transaction_id,
        step=attempt.step_id,
        attempt=attempt.attempt,
        tool=attempt.tool_name,
        arguments=arguments.value if arguments.cut is None else arguments.cut,
        hint=attempt.hint,
        error_category=attempt.category,
        error=attempt.raw_error[:MOST_ERROR],
        root_cause=root_cause(decision),
        decision=_decision_in_words(decision),
        passed_over=_passed_over(decision),
        constraints=list(info.constraints),
        next=calls,
    )
    lines = [
        f"Step {answer.step} ({answer.tool}), attempt {answer.attempt}, failed. {answer.hint}",
        f"It was called with {cut(compact(answer.arguments), 1000)}.",
    ]
    if answer.root_cause is not None:
        way = " ← ".join(f"step {each.step} ({each.key})" for each in answer.root_cause.path)
        lines.append(f"The failing value came from step {answer.root_cause.step}: {way}.")
    lines.append(answer.decision)
    if answer.passed_over:
        lines.append("Considered first: " + "; ".join(answer.passed_over) + ".")
    if answer.error:
        lines.append(f"The tool's own error: {cut(answer.error, 1000)}")
    if answer.constraints:
        lines.append("Keep to this:")
        lines += [f"- {constraint}" for constraint in answer.constraints]
    lines.append(next_calls.sentence(calls))
    return "\n".join(filter(None, lines)), answer


def _decision_in_words(decision: Decision | None) -> str:
    if decision is None:
        return "Nothing was decided on it: it was undone on its own or is not settled yet."
    budget = f"{decision.budget_left} of {decision.budget_total} steps of the replay budget are left"
    match decision.strategy:
        case Strategy.DEPENDENCY_JUMP:
            return (
                f"The transaction went back to step {decision.target_step}, where {decision.traced_key} came from; "
                f"{budget}."
            )
        case Strategy.LOCAL_BACKTRACK:
            return (
                f"The transaction went back to step {decision.target_step}: failure {decision.attempt} of this step, "
                f"with no cause known further back; {budget}."
            )
        case Strategy.GLOBAL_RESET:
            return "The transaction started over at step 1, since going back a little did not help."
        case Strategy.ABORT:
            return "The transaction was undone and ended, since nothing else was left to try."
    return f"What was done: {decision.strategy}."


def _passed_over(decision: Decision | None) -> list[str]:
    if decision is None:
        return []
    return [
        f"{rung.strategy}{f' to step {rung.target_step}' if rung.target_step else ''}: {rung.reason}"
        for rung in decision.passed_over
    ]
