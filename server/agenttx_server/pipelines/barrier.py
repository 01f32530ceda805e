"""What stands before a barrier: the records of all roots that are committed, made again from their stored answers.

An action that needs records of several roots starts when every root is through its own actions. By then these are committed,
each in its transaction; what comes behind is one transaction of its own. Nothing is rolled back across it.
"""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.json_values import load
from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import AttemptState, TransactionId
from agenttx_server.lineage.dataflow import Dataflow
from agenttx_server.lineage.plan import Plan
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import InputRecord, InputState
from agenttx_server.pipelines.unit_run import UnitWaits

__all__ = ["BARRIER_PLACE", "all_roots", "barrier_of"]

BARRIER_PLACE: Final = -1
"""Where a run keeps what is behind its barriers: before its first row, so that whoever lists rows does not meet it."""

_PAGE: Final = 256
_ATTEMPTS: Final = 1000
_BYTES: Final = 16 << 20


async def barrier_of(store: PipelineStore, run_id: str) -> InputRecord | None:
    """How what is behind a run's barriers stands; None before it was begun."""
    found = await store.list_inputs(run_id, BARRIER_PLACE - 1, 1, frozenset(InputState))
    return found[0] if found and found[0].place == BARRIER_PLACE else None


async def all_roots(
    plan: Plan, run_id: str, actions: frozenset[str], transactions: TransactionStore, store: PipelineStore
) -> Dataflow:
    """Make the records of all committed roots again: the same ones, as they are made of the same answers.

    Args:
        plan: of the run.
        run_id: the run.
        actions: those that each root had carried out.
        transactions: where the answers are.
        store: where the rows are.

    Raises:
        UnitWaits: an answer is not kept any more.
        StoreUnavailable: it does not answer.
    """
    flow = Dataflow(plan, run_id)
    place = -1
    while page := await store.list_inputs(run_id, place, _PAGE, frozenset({InputState.COMMITTED})):
        for item in page:
            answers = await _answers(transactions, TransactionId(item.transaction_id))
            flow.absorb(_root(plan, run_id, actions, item, answers))
        place = page[-1].place
    return flow


def _root(
    plan: Plan,
    run_id: str,
    actions: frozenset[str],
    item: InputRecord,
    answers: dict[int, tuple[int, str | None, str]],
) -> Dataflow:
    """One root, as unit_run.UnitRun makes it: the k-th call of its actions, in order, is step k."""
    flow = Dataflow(plan, run_id)
    row = load(item.row)
    assert isinstance(row, dict)
    flow.receive(row, item.occurrence, relative_path=item.relative_path, place=item.place)
    step = 0
    for wave in plan.topology.waves:
        calls = [call for name in wave if name in actions for call in flow.calls(name)]
        for call in calls:
            if call.problem:
                flow.fail(call, call.problem)
                continue
            step += 1
            if step not in answers:
                raise UnitWaits(f"the answer to step {step} of row {item.place} is not kept any more")
            attempt, output, hint = answers[step]
            if output is None:
                flow.fail(call, hint)
            else:
                flow.complete(call, load(output), salt=f"{step}.{attempt}")
    return flow


async def _answers(
    store: TransactionStore, transaction_id: TransactionId
) -> dict[int, tuple[int, str | None, str]]:
    """The last answer of each step: its attempt, and its output or its hint."""
    found: dict[int, tuple[int, str | None, str]] = {}
    cursor = ""
    while True:
        page = await store.list_attempts(transaction_id, cursor, _ATTEMPTS, _BYTES)
        for item in page.attempts:
            if item.state is AttemptState.COMPLETED:
                found[item.step_id] = (item.attempt, item.output or "null", "")
            elif item.state is AttemptState.FAILED:
                found[item.step_id] = (item.attempt, None, item.hint.text if item.hint else "it failed")
        cursor = page.next_cursor
        if not cursor:
            return found
