"""What was decided about a failure, in the words of a person who has to follow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agenttx.records import Decision, PathElement, Strategy

__all__ = ["decision_lines", "decision_summary", "path_text"]


def decision_lines(decision: Decision) -> Iterator[str]:
    """Yield what was decided, the path that led there, and what was passed over before."""
    yield decision_summary(decision)
    if decision.path:
        yield f"root cause: {path_text(decision.path)}"
    for rung in decision.passed_over:
        yield f"not {rung.strategy}: {rung.reason}"


def decision_summary(decision: Decision) -> str:
    """Return the decision with its cost on one line."""
    match decision.strategy:
        case Strategy.ABORT:
            return "ABORT: everything undone, the transaction ended"
        case Strategy.GLOBAL_RESET:
            return "GLOBAL_RESET: everything undone, on from step 1 with a clear context"
        case _:
            return (
                f"{decision.strategy} to step {decision.target_step}: {_steps_again(decision.cost)}, "
                f"{decision.budget_left} of {decision.budget_total} left"
            )


def path_text(path: Sequence[PathElement]) -> str:
    """Return the way of a value from the failing step to its origin: ``10.customer_id ← 3.customer_id``."""
    return " ← ".join(f"{element.step_id}.{element.key}" for element in path)


def _steps_again(cost: int) -> str:
    return "1 step to run again" if cost == 1 else f"{cost} steps to run again"
