"""The tasks of one superstep of an embedded graph, as the store sees them: apart, and then as in the order of their tasks.

What nodes of the root graph have by being members of a group (engine/held_groups.py). Who lost a conflict is in the journal of
the step, so that a graph which is started again runs those, and only those, behind the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import SubStepCall, ToolContext
from agenttx_server.graphs.runs.sub_step_turn import SubStepMaker, task_scope

__all__ = ["CannotBeUndone", "SideBySide"]


class CannotBeUndone(Exception):
    """A task lost a conflict, and nothing takes back what it did."""

    def __init__(self, ordinal: int, lower: int, key: str) -> None:
        super().__init__(f"task {ordinal} conflicts with task {lower} over {key}")
        self.ordinal = ordinal
        self.lower = lower
        self.key = key


class SideBySide:
    """One way through a superstep. ``behind`` are the tasks that lost, and run one by one behind the others."""

    def __init__(self, context: SubStepMaker, base: str, superstep: int) -> None:
        self.behind: set[int] = set()
        self._context = context
        self._base = base
        self._superstep = superstep
        self._scopes: list[str] = []
        self._judged = 0

    async def begin(self, tasks: int) -> None:
        """Begin with so many tasks; those that lost before are known then. Raises what a call raises."""
        self.grow(tasks)
        if tasks < 2:
            return
        while await self._context.calls.is_answered(self._judgements, self._judged + 1):
            self._note(await self._context.make(self._judgement(_never)))

    def grow(self, tasks: int) -> None:
        """Have so many tasks in all: error handlers come behind the others."""
        first = len(self._scopes)
        self._scopes += [task_scope(self._base, self._superstep, number) for number in range(first, tasks)]
        if len(self._scopes) > 1:
            self._context.calls.keep_apart(self._scopes)

    def begin_behind(self, ordinal: int) -> None:
        """Have a task that lost see what lower ones wrote; it is run now."""
        self._context.calls.see_below(self._scopes[ordinal], self._scopes[:ordinal])

    async def losers(self) -> Sequence[int]:
        """Undo those that conflict with lower ones, now that all have finished; they are to be run again, in this order.

        Raises CannotBeUndone, and what a call raises.
        """
        scopes, calls = self._scopes, self._context.calls
        if len(scopes) < 2:
            return ()
        clashes = await calls.clashes(scopes, self.behind)
        for clash in clashes:
            if calls.is_final(scopes[clash.place]):
                raise CannotBeUndone(clash.place, clash.lower, clash.key)
        if not clashes:
            return ()
        lost = [clash.place for clash in clashes]

        async def undo(arguments: Any, context: ToolContext) -> Any:
            await calls.take_back([scopes[ordinal] for ordinal in lost])
            return lost

        return self._note(await self._context.make(self._judgement(undo)))

    def end(self) -> None:
        """Have all that they wrote be seen by the next superstep."""
        if len(self._scopes) > 1:
            self._context.calls.together(self._scopes)

    @property
    def _judgements(self) -> str:
        return f"{self._base}{self._superstep}&/"

    def _judgement(self, function: Any) -> SubStepCall:
        return SubStepCall(
            "conflict", canonical({}), scope=self._judgements, function=function, ordinal=self._judged + 1
        )

    def _note(self, answer: str) -> list[int]:
        lost: Any = load(answer)
        self._judged += 1
        for ordinal in lost:
            # Behind one that runs again there is a new state: those above it are judged by that.
            self.behind = {other for other in self.behind if other < ordinal} | {ordinal}
        return list(lost)


async def _never(arguments: Any, context: ToolContext) -> Any:
    raise AssertionError("it is answered from the journal")
