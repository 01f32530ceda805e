"""The nodes of an embedded graph as sub-steps of the step that embeds it: a superstep's runner over its journal.

Each task has a scope of its own, so siblings don't disturb one another's place in the journal. A task that is made
again in one run of the step (by its retry policy, or when the step is started again) is the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from agenttx_server.engine.ports import ExtraRows, StepWaits, SubStepCall, SubStepFailed
from agenttx_server.engine.step_journal import StepJournal
from agenttx_server.graphs.runs.step_port import OutcomeState, RowsFor, StepMember, StepOutcome, Unsettled

__all__ = ["SubStepMaker", "SubStepTurn", "task_scope"]


@runtime_checkable
class SubStepMaker(Protocol):
    """The part of a step's context that makes sub-steps of any kind (engine.step_context.StepContext)."""

    async def make(self, call: SubStepCall) -> str: ...

    @property
    def calls(self) -> StepJournal: ...


def task_scope(base: str, superstep: int, ordinal: int) -> str:
    """The scope of a task's call; ``base`` is that of the calls made by the step, or sub-step, that embeds."""
    return f"{base}{superstep}.{ordinal}/"


class SubStepTurn:
    """Runs the tasks of one superstep, which it knows by their ordinals. ``failures`` are what they raised."""

    def __init__(self, context: SubStepMaker, base: str, superstep: int) -> None:
        self.failures: dict[int, SubStepFailed] = {}
        self.members: dict[int, StepMember] = {}
        self._context = context
        self._base = base
        self._superstep = superstep

    def give(self, step_id: int, member: StepMember) -> None:
        self.members[step_id] = member

    async def undo_failed(self, step_id: int, held: Callable[[Unsettled], Sequence[ExtraRows]]) -> bool:
        """Nothing: a sub-step that failed was undone before that was told."""
        return True

    async def run(
        self, step_id: int, extra: RowsFor, *, keeps: Callable[[], bool] = lambda: False
    ) -> StepOutcome:
        """Make the call. The rows of its outcome are not written: the journal has it, and they follow from that."""
        member = self.members[step_id]
        call = SubStepCall(
            member.name,
            member.arguments,
            member.timeout_us,
            scope=task_scope(self._base, self._superstep, step_id),
            function=member.function,
            ordinal=1,
        )
        self.failures.pop(step_id, None)
        try:
            outcome = StepOutcome(step_id, OutcomeState.COMPLETED, await self._context.make(call))
        except SubStepFailed as failure:
            self.failures[step_id] = failure
            hint = failure.hint
            outcome = StepOutcome(step_id, OutcomeState.FAILED, hint=hint.text, category=hint.category.value)
        except StepWaits as waits:
            outcome = StepOutcome(step_id, OutcomeState.WAITING, payload=waits.payload)
        extra(outcome)
        return outcome

    def cancel(self, step_id: int, why: str) -> None:
        """Nothing: whoever cancels the step that embeds cancels what it runs."""
