"""Begins a run's transaction with what another one had written to the store, which is not committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agenttx_server.engine.held_groups import HeldTurn
from agenttx_server.engine.held_run import HeldMember
from agenttx_server.engine.ports import ExtraRows, ToolContext
from agenttx_server.engine.records import AttemptState, TransactionId

__all__ = ["copy_writes"]

_STEP_NAME = "__fork__"


async def copy_writes(
    turn: HeldTurn, source: TransactionId, last_step: int, extra: Sequence[ExtraRows] = ()
) -> None:
    """Write what ``source`` had written after its step ``last_step``, as one step of the turn's transaction.

    Its group may be open from a turn that was cut off. ``extra`` is in the commit that ends it. Raises RuntimeError
    if the step fails, which only a fault does, and what the store raises.
    """
    store = turn.store
    _, writes = await store.load_touched(source, 1, last_step)
    keys = sorted({write.key for write in writes if write.step_id <= last_step})

    async def write_all(arguments: Any, context: ToolContext) -> Any:
        for key in keys:
            seen = await store.read_state(source, key, last_step + 1)
            if seen.value is None:
                await context.delete(key)
            else:
                await context.put(key, seen.value)
        return len(keys)

    member = HeldMember(_STEP_NAME, function=write_all)
    if turn.is_open:
        step = turn.steps.start
        turn.give(step, member)
    else:
        step = await turn.open([member])
    known = turn.member(step)
    if known is None or known.state is not AttemptState.COMPLETED:
        outcome = await turn.run(step)
        if outcome.state is not AttemptState.COMPLETED:
            raise RuntimeError(f"the writes of {source} could not be copied: {outcome.hint}")
    await turn.close(extra)
