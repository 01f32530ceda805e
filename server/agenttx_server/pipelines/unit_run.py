"""Carries one unit of work, a root or a whole run, through its pipeline in one transaction.

The unit is made again whenever it is taken up: what has a stored answer is not called. Step numbers follow from that:
the k-th call of the pipeline, in order, is the transaction's k-th step. So a rewind to step T is nothing but
going on with fewer answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.errors import CommitConflict, InvalidRequest, LimitExceeded
from agenttx_server.engine.frozen import changed, dataclass
from agenttx_server.engine.held_groups import Closed, HeldTurn
from agenttx_server.engine.held_run import HeldEdge, HeldMember
from agenttx_server.engine.json_values import canonical, load
from agenttx_server.engine.ports import ExtraRows, TransactionStore
from agenttx_server.engine.records import AttemptState
from agenttx_server.lineage.dataflow import Call, Dataflow
from agenttx_server.lineage.definition import OnFailure
from agenttx_server.lineage.ledger import Batch
from agenttx_server.lineage.merging import MergeRefused
from agenttx_server.lineage.plan import Plan
from agenttx_server.lineage.ports import KeptBatch, RecordChange, RecordCommit, RecordStore
from agenttx_server.lineage.records import EventType
from agenttx_server.lineage.templates import references_in
from agenttx_server.pipelines.counting import counted
from agenttx_server.pipelines.records import ActionCounts, InputRecord, InputState

__all__ = ["PLACES_PER_ROOT", "Unit", "UnitEnded", "UnitLetGo", "UnitRun", "UnitWaits"]

PLACES_PER_ROOT = 1 << 24
"""Room for the records of one root in the order of a run's records."""

_EDGES_PER_CALL = 64


@dataclass(frozen=True, slots=True)
class Unit:
    """What is carried: rows of a run, in one transaction.

    Attributes:
        actions: what is carried out of the pipeline, in the order of its waves.
        first_sequence: the place of its first record in the order of the run's.
        base: gives what it stands on, where that is not the rows themselves; asked again for each attempt.
    """

    run_id: str
    pipeline: str
    inputs: tuple[InputRecord, ...]
    transaction_id: str
    actions: frozenset[str]
    first_sequence: int
    base: Callable[[], Awaitable[Dataflow]] | None = None


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """How it ended: committed, or rolled back for a reason."""

    state: InputState
    reason: str = ""
    counts: tuple[ActionCounts, ...] = ()


class UnitWaits(Exception):
    """It can't go on by itself: a step is in doubt, or undo that failed holds it. A person settles that, then it is resumed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnitLetGo(Exception):
    """It was let go of between two groups, as its server stops or has lost its run: who takes it up goes on there."""


class _Rewound(Exception):
    """The transaction is back at an earlier step: the unit is made again from there."""


class UnitRun:
    """One turn at a unit's transaction."""

    def __init__(
        self,
        plan: Plan,
        unit: Unit,
        turn: HeldTurn,
        store: TransactionStore,
        lineage: RecordStore,
        rows_of: Callable[[Sequence[InputRecord]], Sequence[ExtraRows]],
        now: Callable[[], int],
        max_calls: int,
        lets_go: Callable[[], bool],
        step_turn: Callable[[str], Awaitable[None] | None] = lambda owner: None,
    ) -> None:
        self._plan = plan
        self._unit = unit
        self._turn = turn
        self._store = store
        self._lineage = lineage
        self._rows_of = rows_of
        self._now = now
        self._lets_go = lets_go
        self._step_turn = step_turn
        self._calls_at_once = asyncio.Semaphore(max_calls)
        self._traces = any(action.on_failure is OnFailure.ROLLBACK for action in plan.actions.values())

    async def carry_out(self) -> UnitEnded:
        """Go on until the transaction has ended.

        Raises:
            UnitWaits: a person has to settle something first.
            UnitLetGo: ``lets_go`` said so.
            StoreUnavailable, StaleRevision: the turn is over; another one goes on from what is durable.
        """
        while True:
            if self._turn.record.status.is_terminal:
                return UnitEnded(InputState.FAILED, self._why())
            await self._forget_rewound()
            try:
                return await self._attempt()
            except _Rewound:
                continue
            except (MergeRefused, LimitExceeded) as refused:
                return await self._rolled_back(refused.message)

    def _why(self) -> str:
        """Why the transaction was rolled back: what the last failing call was told first, then what was decided."""
        head = self._turn.record
        hints = [item.text for item in head.constraints[-1:]]
        return "; ".join([*hints, head.abort_reason or "rolled back"])

    # --- one way through ------------------------------------------------------------------------

    async def _attempt(self) -> UnitEnded:
        await self._begin()
        for wave in self._plan.topology.waves:
            calls = [call for name in wave if name in self._unit.actions for call in self._flow.calls(name)]
            for call in calls:
                if call.problem:
                    self._flow.fail(call, call.problem)
            await self._settle([call for call in calls if not call.problem])
        return await self._commit()

    async def _begin(self) -> None:
        self._next_step = 1
        self._made = 0
        self._batches: list[KeptBatch] = []
        self._step_of: dict[str, int] = {}
        if self._unit.base is not None:
            self._flow = await self._unit.base()
            return
        self._flow = Dataflow(self._plan, self._unit.run_id)
        for item in self._unit.inputs:
            row = load(item.row)
            assert isinstance(row, dict)
            self._flow.receive(row, item.occurrence, relative_path=item.relative_path, place=item.place)

    async def _settle(self, calls: Sequence[Call]) -> None:
        """Have calls that don't depend on one another answered: from what is stored, or as members of groups."""
        first = self._next_step
        self._next_step += len(calls)
        left = dict(enumerate(calls, start=first))
        for step in [step for step in left if step < self._turn.record.next_step_id]:
            await self._replay(left.pop(step), step)
        while left:
            if self._lets_go():
                raise UnitLetGo
            opened = await self._opened(left)
            await self._run_group({step: left.pop(step) for step in opened})

    async def _opened(self, left: Mapping[int, Call]) -> list[int]:
        """Have a group open of the next calls, or find the one that is; return its steps."""
        members = {step: self._member(call) for step, call in left.items()}
        if not self._turn.is_open:
            try:
                await self._turn.open(list(members.values()))
            except InvalidRequest:
                # One of them can't be undone: it is a group of its own, and so is then each.
                await self._turn.open([next(iter(members.values()))])
            return list(self._turn.steps)
        for step in self._turn.steps:
            if step not in members:
                raise UnitWaits("the open group is not the one that comes next")
            self._turn.give(step, members[step])
        return list(self._turn.steps)

    async def _replay(self, call: Call, step: int) -> None:
        # What came of it was written with its group.
        self._apply(call, step, await self._stored_answer(step))
        self._keep(step, is_stored=True)

    async def _run_group(self, calls: Mapping[int, Call]) -> None:
        pending = [step for step in calls if self._turn.member(step) is None]
        # A lone success is written with the close of its group, in one commit; of several each is durable as it comes.
        single = len(calls) == 1
        ran = await asyncio.gather(*(self._run_member(step, keep=single) for step in pending))
        answers = dict(zip(pending, ran, strict=True))
        await self._let_go(calls)
        for step, call in calls.items():
            self._apply(call, step, answers.get(step) or await self._stored_answer(step))
            self._keep(step, is_stored=False)
        verdict = await self._turn.close(self._rows(self._batches))
        if isinstance(verdict, Closed):
            self._batches = []
            return
        if verdict.held is not None or verdict.failed:
            raise UnitWaits("steps that conflict can't be undone")
        # Losers were undone: they run again in step order, and what was made of the first answers is forgotten.
        for step in verdict.losers:
            await self._run_member(step, keep=False)
        raise _Rewound

    async def _run_member(self, step: int, *, keep: bool) -> _Answer:
        async with self._calls_at_once:
            if (waiting := self._step_turn(self._turn.record.principal)) is not None:
                await waiting
            outcome = await self._turn.run(step, keeps=lambda: keep)
        if outcome.state is AttemptState.IN_DOUBT:
            raise UnitWaits(f"step {step} is in doubt")
        if outcome.state not in (AttemptState.COMPLETED, AttemptState.FAILED):
            raise UnitWaits(f"step {step} is {outcome.state.value}")
        return _Answer(outcome.attempt, outcome.output, outcome.hint.text if outcome.hint else "it failed")

    async def _let_go(self, calls: Mapping[int, Call]) -> None:
        """Settle members that failed: by the rollback controller, where the action says so, else by letting them go."""
        held = self._turn.record.held
        let_go = held.let_go if held is not None else ()
        states = {step: member.state for step in calls if (member := self._turn.member(step)) is not None}
        if AttemptState.IN_DOUBT in states.values():
            raise UnitWaits("a step is in doubt")
        failed = [
            step for step, state in states.items() if state is AttemptState.FAILED and step not in let_go
        ]
        if any(self._plan.actions[calls[step].action].on_failure is OnFailure.ROLLBACK for step in failed):
            # Told before it is undone: afterwards nobody knows what it took.
            await self._turn.write(self._rows([await self._failure(calls[step], step) for step in failed]))
            if (await self._turn.decide()).incomplete:
                raise UnitWaits("an undo action failed, and holds the transaction")
            raise _Rewound
        for step in failed:
            if not await self._turn.let_go(step):
                raise UnitWaits(f"step {step} could not be undone")

    async def _failure(self, call: Call, step: int) -> KeptBatch:
        """That a call failed, and nothing else: all that came of it is made again."""
        attempt = await self._turn.attempt(step)
        hint = attempt.hint if attempt is not None else None
        self._flow.fail(call, hint.text if hint else "it failed")
        events = [
            event
            for event in self._flow.take().events
            if event.action == call.action and event.type is EventType.FAIL
        ]
        return self._kept(Batch(events=tuple(events)), step, self._unit.first_sequence + self._made)

    def _apply(self, call: Call, step: int, answer: _Answer) -> None:
        if answer.output is None:
            self._flow.fail(call, answer.hint)
        else:
            self._flow.complete(call, load(answer.output), salt=f"{step}.{answer.attempt}")

    def _keep(self, step: int, *, is_stored: bool) -> None:
        batch = self._flow.take()
        first = self._unit.first_sequence + self._made
        self._made += len(batch.records)
        self._step_of.update((record.target_id, step) for record in batch.records)
        if is_stored or not (batch.records or batch.events):
            return
        self._batches.append(self._kept(batch, step, first))

    def _kept(self, batch: Batch, step: int, first: int) -> KeptBatch:
        unit, generation = self._unit, self._turn.record.generation
        return KeptBatch(
            batch, unit.run_id, unit.pipeline, unit.transaction_id, step, first, generation, self._now()
        )

    def _rows(self, batches: Sequence[KeptBatch], commits: Sequence[RecordCommit] = ()) -> list[ExtraRows]:
        return list(self._lineage.rows(RecordChange(batches=batches, commits=commits)))

    # --- what calls are as members --------------------------------------------------------------

    def _member(self, call: Call) -> HeldMember:
        action = self._plan.actions[call.action]
        return HeldMember(
            action.tool_name,
            canonical(dict(call.arguments)),
            tuple(dict.fromkeys(self._edges(call))) if self._traces else (),
            timeout_us=action.timeout_us,
            metadata=canonical(dict(action.metadata)) if action.metadata else "",
        )

    def _edges(self, call: Call) -> Iterator[HeldEdge]:
        """Which step gave what the call takes: what a failing key is traced along."""
        above = self._plan.topology.upstream[call.action]
        steps: dict[str, set[int]] = {}
        for item in call.inputs:
            for record in item.contributors:
                for name in above:
                    for ancestor in self._flow.ancestors(record, name):
                        if ancestor.target_id in self._step_of:
                            steps.setdefault(name, set()).add(self._step_of[ancestor.target_id])
        template = self._plan.actions[call.action].arguments
        if template is None:
            taken = [
                (name, field, field)
                for name, value in call.arguments.items()
                if isinstance(value, dict)
                for field in value
            ]
        else:
            taken = [
                (path[0], next((part for part in reversed(path) if not part.isdecimal()), field), field)
                for field, value in template.items()
                for path in references_in(value)
            ]
        for name, source_key, target_key in taken[:_EDGES_PER_CALL]:
            for step in sorted(steps.get(name, ())):
                yield HeldEdge(step, source_key, target_key)

    # --- the transaction ------------------------------------------------------------------------

    async def _stored_answer(self, step: int) -> _Answer:
        attempts = await attempts_of_step(self._store, self._turn.record.transaction_id, step)
        live = [item for item in attempts if item.state in (AttemptState.COMPLETED, AttemptState.FAILED)]
        attempt = live[-1]
        if attempt.state is AttemptState.COMPLETED:
            return _Answer(attempt.attempt, attempt.output or "null", "")
        return _Answer(attempt.attempt, None, attempt.hint.text if attempt.hint else "it failed")

    async def _forget_rewound(self) -> None:
        """Take away the records of steps that were rewound, and flag what became of their inputs; once is enough."""
        head = self._turn.record
        if head.generation == 1:
            return
        gone = [
            kept
            for kept in await self._lineage.records_of(head.transaction_id)
            if kept.step_id >= head.next_step_id
        ]
        events = [
            changed(kept, {"is_rewound": True})
            for kept in await self._lineage.events_of(head.transaction_id)
            if kept.step_id >= head.next_step_id and not kept.is_rewound
        ]
        if gone or events:
            edges = await self._lineage.edges_of([kept.record.target_id for kept in gone])
            change = RecordChange(rewound=gone, rewound_edges=edges, rewound_events=events)
            await self._turn.write(self._lineage.rows(change))

    async def _commit(self) -> UnitEnded:
        self._keep(self._next_step, is_stored=False)
        unit, now = self._unit, self._now()
        order = [name for name in self._plan.order if name in unit.actions]
        counts = counted(order, self._flow.events())
        first, *others = unit.inputs
        through = [
            changed(first, {"state": InputState.COMMITTED, "counts": counts}),
            *(changed(item, {"state": InputState.COMMITTED}) for item in others),
        ]
        commit = RecordCommit(
            unit.transaction_id, unit.run_id, unit.pipeline, now, self._turn.record.principal
        )
        rows = [*self._rows(self._batches, [commit]), *self._rows_of(through)]
        try:
            await self._turn.commit(rows)
        except CommitConflict as conflict:
            return UnitEnded(InputState.FAILED, conflict.message)
        return UnitEnded(InputState.COMMITTED, counts=counts)

    async def _rolled_back(self, reason: str) -> UnitEnded:
        # Its records were never said to count; what became of its inputs can still be read.
        await self._turn.roll_back(reason)
        if not self._turn.record.status.is_terminal:
            raise UnitWaits("an undo action failed, and holds the transaction")
        return UnitEnded(InputState.FAILED, reason)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A step's answer: its output, or where it failed its hint."""

    attempt: int
    output: str | None
    hint: str
