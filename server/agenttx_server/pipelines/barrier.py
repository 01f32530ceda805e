"""What is behind the barriers of a run: its units, each a transaction of its own, and what they stand on.

An action that needs records of several roots starts when every root is through its own actions. By then these are committed,
each in its transaction. What comes behind is carried a unit at a time: the roots of one file or group, and those that have
a file or group in common with them; nothing is rolled back across a barrier. Where the groups are not known before the
calls (a ``reduce`` by a field behind another barrier) all roots are one unit.

A unit stands on what its roots answered: their records are made again from the stored answers, the same ones. Its row of the
run is before the first, with the places of its roots: so it is begun once, and whoever lists rows does not meet it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import TransactionStore
from agenttx_server.engine.records import AttemptState, TransactionId
from agenttx_server.lineage.components import Components, can_be_told_apart
from agenttx_server.lineage.dataflow import Dataflow
from agenttx_server.lineage.definition import Granularity
from agenttx_server.lineage.limits import MAX_ROWS
from agenttx_server.lineage.plan import Plan
from agenttx_server.pipelines.ports import PipelineStore
from agenttx_server.pipelines.records import InputRecord, InputState
from agenttx_server.pipelines.unit_run import UnitWaits

__all__ = ["FIRST_UNIT_PLACE", "Barrier", "is_behind", "named", "roots_of_unit", "units_behind"]

FIRST_UNIT_PLACE: Final = -MAX_ROWS
"""Units are the rows -count to -1: the last one is written last, so that where it is there all are."""

_PAGE: Final = 256
_ATTEMPTS: Final = 1000
_BYTES: Final = 16 << 20
_ALL: Final = frozenset(InputState)
_COMMITTED: Final = frozenset({InputState.COMMITTED})


def is_behind(item: InputRecord) -> bool:
    """Whether a row of a run is a unit behind its barriers."""
    return item.place < 0


def named(unit: InputRecord) -> str:
    """What a unit is, in words."""
    return "behind the barriers" + (f", file '{unit.relative_path}'" if unit.relative_path else "")


async def units_behind(
    store: PipelineStore, run_id: str, states: frozenset[InputState] = _ALL, after: int = FIRST_UNIT_PLACE - 1
) -> AsyncIterator[InputRecord]:
    """The units of a run that stand so, in order; none before they are laid out. Raises StoreUnavailable."""
    while after < -1:
        page = await store.list_inputs(run_id, after, min(_PAGE, -1 - after), _ALL)
        for item in page:
            if not is_behind(item):
                return
            if item.state in states:
                yield item
        if not page:
            return
        after = page[-1].place


async def roots_of_unit(store: PipelineStore, unit: InputRecord) -> AsyncIterator[InputRecord]:
    """The roots that a unit stands on: those of its places that are committed. Raises StoreUnavailable."""
    places = load(unit.row)
    # Nothing: all of them, as where groups are not known before the calls.
    ranges: Sequence[Sequence[int]] = places["rows"] if isinstance(places, dict) else [[0, MAX_ROWS]]  # type: ignore[assignment]
    for first, last in ranges:
        after = first - 1
        while after < last:
            page = await store.list_inputs(unit.run_id, after, min(_PAGE, last - after), _COMMITTED)
            for item in page:
                if item.place > last:
                    break
                yield item
            if not page or page[-1].place >= last:
                break
            after = page[-1].place


class Barrier:
    """Lays out what is behind the barriers of one run, and makes what its units stand on."""

    def __init__(self, plan: Plan, run_id: str, transactions: TransactionStore, store: PipelineStore) -> None:
        self._plan = plan
        self._run_id = run_id
        self._transactions = transactions
        self._store = store
        self._before = frozenset(plan.order) - plan.below_barriers

    async def lay_out(self) -> None:
        """Write the units, unless they are there. What a crash left of them is written again: they are the same.

        Raises:
            UnitWaits: an answer is not kept any more.
            StoreUnavailable: it does not answer.
        """
        last = await self._store.list_inputs(self._run_id, -2, 1, _ALL)
        if last and is_behind(last[0]):
            return
        rows: list[tuple[str, str]] = [("null", "")]
        if can_be_told_apart(self._plan):
            rows = await self._told_apart()
        units = [
            InputRecord(self._run_id, number - len(rows), InputState.PENDING, "", row, path)
            for number, (row, path) in enumerate(rows)
        ]
        for at in range(0, len(units), _PAGE):
            await self._store.write(None, units[at : at + _PAGE])

    async def base(self, unit: InputRecord) -> Dataflow:
        """Make the records of a unit's roots again: the same ones, as they are made of the same answers. Raises as above."""
        flow = Dataflow(self._plan, self._run_id)
        async for item in roots_of_unit(self._store, unit):
            flow.absorb(await self._root(item))
        return flow

    async def _told_apart(self) -> list[tuple[str, str]]:
        """The rows of all units and, where they are of one file, its path; memory holds a few numbers a root."""
        barriers = [self._plan.actions[name] for name in self._plan.barriers]
        has_files = any(action.granularity is Granularity.FILE for action in barriers)
        reduces = [action.name for action in barriers if action.reduce is not None]
        components = Components()
        first_of: dict[str, int] = {}
        place = -1
        while page := await self._store.list_inputs(self._run_id, place, _PAGE, _COMMITTED):
            for item in page:
                keys = {f"file:{item.relative_path}"} if has_files else set()
                if reduces:
                    root = await self._root(item)
                    keys |= {f"{name}:{key}" for name in reduces for key in root.group_keys(name)}
                components.add(item.place, keys)
                first_of.setdefault(item.relative_path, item.place)
            place = page[-1].place
        # With groups beside files a unit may have several of these.
        path_of = {} if reduces else {place: path for path, place in first_of.items()}
        return [
            (canonical({"rows": [list(each) for each in ranges]}), path_of.get(ranges[0][0], ""))
            for ranges in components.ranges()
        ]

    async def _root(self, item: InputRecord) -> Dataflow:
        answers = await _answers(self._transactions, TransactionId(item.transaction_id))
        return _root(self._plan, self._run_id, self._before, item, answers)


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
