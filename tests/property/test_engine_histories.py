"""Random histories of whole transactions, held against the invariants of the engine.

After every operation the transaction in memory equals the one rebuilt from the store (I7). After
every rewind, whoever made it, what stands equals a transaction that only ever ran the steps that
survive (I6). Every request that is sent again gets the answer it got, and runs nothing (I3).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from tests.support.engine_harness import (
    Engine,
    aggregate_of,
    call,
    outcome_of,
    same_answer,
    sqlite_engine,
)
from tests.support.memory_store import Gate
from tests.support.scripted_tools import hang, raise_error
from tests.support.virtual_time import idle, run_in_virtual_time

from agenttx_server.engine.errors import EngineError, Unavailable
from agenttx_server.engine.ports import OutcomeUnknown
from agenttx_server.engine.records import AttemptState, RejectedCalls, TransactionStatus, UndoState
from agenttx_server.engine.requests import RewindAnswer, StepAnswer, StepCall, StepStatus

KEYS = ("kv/a", "kv/b", "kv/c")
VALUES = ("u-1", "u-2", 7, 7.0, True, "")


# --- what an agent may do -----------------------------------------------------------------


@dataclass(frozen=True)
class Act:
    """One call as drawn; ``refers`` picks an earlier step (or none) to refer to."""

    tool: str
    arguments: dict[str, Any]
    refers: int | None
    fails: Any
    acts: bool

    def call(self, step_id: int, number: int) -> StepCall:
        arguments = dict(self.arguments)
        if self.acts:
            arguments["effect"] = f"effect-{number}"
        if self.refers is not None and step_id > 1:
            # 0 is no step: now and then a reference leads nowhere.
            arguments["user_id"] = f"${{steps.{self.refers and 1 + self.refers % (step_id - 1)}.id}}"
        if self.fails is not None:
            arguments["fail"] = self.fails
        return call(self.tool, arguments, f"r{number}", raw_context=f"context {number}")


@dataclass(frozen=True)
class Step:
    acts: tuple[Act, ...]


@dataclass(frozen=True)
class Rewind:
    share: float
    accept: bool = True
    while_running: bool = False
    breaks: bool = False


@dataclass(frozen=True)
class Again:
    share: float


@dataclass(frozen=True)
class Restart:
    pass


@dataclass(frozen=True)
class Doubt:
    tool: str


@dataclass(frozen=True)
class Fault:
    """The n-th write from here fails."""

    after: int
    applied: bool


@dataclass(frozen=True)
class End:
    commit: bool


_failures = st.sampled_from(
    (
        *(None,) * 16,
        "plainly",
        {"category": "missing_record", "message": "no such user", "keys": ["user_id"]},
        {"category": "conflict", "message": "busy", "keys": ["id"]},
    )
)


@st.composite
def _acts(draw: st.DrawFn) -> Act:
    tool = draw(st.sampled_from(("lookup", "note", "jot", "upload", "book", "book", "wire")))
    arguments: dict[str, Any] = {}
    if draw(st.booleans()):
        arguments["get"] = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    if draw(st.booleans()):
        arguments["put"] = draw(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), max_size=2))
    if draw(st.integers(0, 5)) == 0:
        arguments["delete"] = [draw(st.sampled_from(KEYS))]
    if draw(st.integers(0, 2)) == 0:
        arguments["stage"] = [[draw(st.sampled_from(("mail", "sms"))), draw(st.integers(0, 9))]]
    if draw(st.booleans()):
        arguments["user_id"] = draw(st.sampled_from(VALUES))
    arguments["output"] = {
        "id": draw(st.sampled_from(VALUES)),
        "list": [{"Id": draw(st.sampled_from(VALUES))}],
    }
    refers = draw(st.one_of(st.none(), st.none(), st.integers(0, 30)))
    return Act(tool, arguments, refers, draw(_failures), tool in ("upload", "book", "wire"))


_steps = st.one_of(
    st.builds(Step, st.tuples(_acts())),
    st.builds(Step, st.lists(_acts(), min_size=2, max_size=3).map(tuple)),
)
_shares = st.sampled_from((0.5, 0.25, 0.75, 0.0, 1.0))
_rewinds = st.builds(Rewind, _shares, st.booleans(), st.booleans(), st.integers(0, 3).map(bool))


def _weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    # one_of draws each of its strategies as often, however many times it is given.
    drawn = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.integers(0, len(drawn) - 1).flatmap(lambda index: drawn[index])


_operations = _weighted(
    (24, _steps),
    (8, _rewinds),
    (4, st.builds(Again, _shares)),
    (2, st.builds(Restart)),
    (1, st.builds(Doubt, st.sampled_from(("upload", "wire")))),
    (1, st.builds(End, st.booleans())),
)
_faults = st.builds(Fault, st.integers(1, 4), st.booleans())
_policies = st.fixed_dictionaries(
    {
        "max_local_depth": st.sampled_from((3, 2, 1, 0)),
        "max_global_resets": st.integers(0, 2),
        "replay_budget_factor": st.sampled_from((0.1, 1.0, 2.0, 100.0)),
        "rejected_calls": st.sampled_from(tuple(RejectedCalls)),
    }
)


# --- the history and what it is held against ----------------------------------------------


@dataclass
class Ledger:
    """The steps that stand, as the answers said, and all requests with final answers."""

    standing: dict[int, tuple[int, StepCall]] = field(default_factory=dict)
    sent: list[tuple[int, tuple[StepCall, ...], tuple[StepAnswer, ...]]] = field(default_factory=list)
    rewinds: list[tuple[int, dict[str, Any], RewindAnswer]] = field(default_factory=list)
    next_step: int = 1
    number: int = 0

    def drop(self, to_step: int) -> None:
        self.standing = {step: item for step, item in self.standing.items() if step < to_step}


class History:
    """Plays operations on an engine and checks after each."""

    def __init__(self, policy: dict[str, Any], engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self.policy = policy
        self.ledger = Ledger()
        self.trace: list[Any] = []

    async def play(self, operations: list[Any]) -> None:
        await self._begin()
        for operation in operations:
            note(repr(operation))
            await getattr(self, f"_{type(operation).__name__.lower()}")(operation)
            await self.engine.assert_memory_equals_store()
            self.trace.append(await facts_of(self.engine))
            if (await self.engine.record()).status.is_terminal:
                await self._check_end()
                await self._begin()
        await self._compare()

    async def _begin(self) -> None:
        while True:
            try:
                await self.engine.begin(**self.policy)
                break
            except Unavailable:
                continue
        self.ledger = Ledger(number=self.ledger.number)

    # --- operations

    async def _step(self, operation: Step) -> None:
        first = self.ledger.next_step
        calls = []
        for offset, act in enumerate(operation.acts):
            self.ledger.number += 1
            calls.append(act.call(first + offset, self.ledger.number))
        answers = await self._settled(first, tuple(calls))
        if answers is None:
            return
        if any(answer.status is StepStatus.IN_DOUBT for answer in answers):  # its last write was lost
            await self._take_back(first)
            return
        self.ledger.sent.append((first, tuple(calls), answers))
        self.trace.append(answers)
        statuses = {answer.status for answer in answers}
        if statuses == {StepStatus.SUCCESS}:
            for offset, each in enumerate(calls):
                self.ledger.standing[first + offset] = (first, each)
            self.ledger.next_step = answers[0].next_step_id
            assert self.ledger.next_step == first + len(calls)
            return
        event("a decision")
        assert {answer.next_step_id for answer in answers} == {answers[0].next_step_id}
        assert len({answer.decision for answer in answers}) == 1
        self._went_to(answers[0].next_step_id)
        await self._compare()

    async def _settled(self, first: int, calls: tuple[StepCall, ...]) -> tuple[StepAnswer, ...] | None:
        """Send until there is an answer; None if the step had to be taken back."""
        for _ in range(10):
            answers = await outcome_of(self.engine.group(first, *calls))
            if isinstance(answers, Unavailable):
                event("unavailable")
                continue
            if isinstance(answers, EngineError):
                assert answers.reason in ("STEP_EXECUTING", "STEP_IN_DOUBT"), answers
                await self._take_back(first)
                return None
            assert isinstance(answers, tuple)
            return answers
        raise AssertionError("the database stays away")

    async def _take_back(self, first: int) -> None:
        event("taken back after a failed write")
        await self._rewound(first, accept_irreversible=True)
        await self._compare()

    async def _rewound(self, to_step: int, **fields: Any) -> RewindAnswer | EngineError:
        for _ in range(10):
            answer = await outcome_of(self.engine.rewind(to_step, **fields))
            if not isinstance(answer, Unavailable):
                assert isinstance(answer, RewindAnswer | EngineError)
                return answer
        raise AssertionError("the database stays away")

    def _went_to(self, next_step: int) -> None:
        self.ledger.drop(next_step)
        self.ledger.next_step = next_step

    async def _rewind(self, operation: Rewind) -> None:
        engine, ledger = self.engine, self.ledger
        to_step = 1 + round(operation.share * (ledger.next_step - 1))
        broken = self._an_effect_behind(to_step) if operation.breaks else None
        if broken is not None:
            engine.tools.break_undo(broken)
        ledger.number += 1
        fields = {"request_id": f"w{ledger.number}", "accept_irreversible": operation.accept}
        running = None
        if operation.while_running:
            ledger.number += 1
            engine.tools.next("book", hang(Gate()))
            stopped = call("book", {"effect": f"effect-{ledger.number}"}, f"r{ledger.number}")
            running = asyncio.create_task(outcome_of(engine.group(ledger.next_step, stopped)))
            await idle()
            event("a step was running")
        answer = await self._rewound(to_step, **fields)
        if running is not None:
            answers = await running
            if isinstance(answers, tuple):
                ledger.sent.append((ledger.next_step, (stopped,), answers))
                if isinstance(answer, RewindAnswer):
                    assert answers[0].generation == answer.generation
                    assert answers[0].next_step_id == answer.next_step_id
        if isinstance(answer, RewindAnswer) and answer.rollback_incomplete:
            event("held")
            assert broken is not None
            refused = await outcome_of(engine.step(ledger.next_step, "note"))
            assert refused.reason == "ROLLBACK_INCOMPLETE"
            engine.tools.break_undo(broken, times=0)
            held, answer = answer, await self._rewound(to_step, accept_irreversible=operation.accept)
            assert isinstance(answer, RewindAnswer)
            assert not answer.rollback_incomplete
            assert held.next_step_id == answer.next_step_id
            ledger.sent = [
                (first, calls, answers)
                for first, calls, answers in ledger.sent
                if not any(item.rollback_incomplete for item in answers)
            ]
        elif broken is not None:
            engine.tools.break_undo(broken, times=0)
        if isinstance(answer, EngineError):
            assert answer.reason == "STEP_IN_DOUBT"
            return
        assert answer.status is TransactionStatus.ACTIVE
        self.trace.append(answer)
        ledger.rewinds.append((to_step, fields, answer))
        self._went_to(answer.next_step_id)
        await self._compare()

    def _an_effect_behind(self, to_step: int) -> str | None:
        for step in sorted(self.ledger.standing, reverse=True):
            _, standing = self.ledger.standing[step]
            if step >= to_step and standing.tool_name in ("book", "wire"):
                return f"effect-{standing.request_id.removeprefix('r')}"
        return None

    async def _again(self, operation: Again) -> None:
        ledger, engine = self.ledger, self.engine
        known = [*ledger.sent, *ledger.rewinds]
        if not known:
            return
        item = known[round(operation.share * (len(known) - 1))]
        ran, undone, before = engine.tools.count(), len(engine.tools.undone), await engine.record()
        if isinstance(item[2], RewindAnswer):
            to_step, fields, answer = item
            assert await self._rewound(to_step, **fields) == answer  # type: ignore[arg-type]
        else:
            first, calls, answers = item
            again = await outcome_of(engine.group(first, *calls))  # type: ignore[arg-type]
            if isinstance(again, Unavailable):
                return
            assert all(same_answer(one, two) for one, two in zip(answers, again, strict=True))
            for one, two in zip(answers, again, strict=True):
                assert two.replayed
                stands = self.ledger.standing.get(first)  # type: ignore[call-overload]
                if two.status is StepStatus.SUCCESS and not one.rewound:
                    in_force = stands is not None and stands[1].request_id == calls[0].request_id  # type: ignore[index, union-attr]
                    assert in_force or two.rewound or len(calls) > 1  # type: ignore[arg-type]
        assert (engine.tools.count(), len(engine.tools.undone)) == (ran, undone)
        assert await engine.record() == before

    async def _restart(self, operation: Restart) -> None:
        self.engine.restart()

    async def _doubt(self, operation: Doubt) -> None:
        engine, ledger = self.engine, self.ledger
        ledger.number += 1
        engine.tools.next(operation.tool, *[raise_error(OutcomeUnknown("no answer"))] * 4)
        doubtful = call(operation.tool, {"effect": f"effect-{ledger.number}"}, f"r{ledger.number}")
        answers = await self._settled(ledger.next_step, (doubtful,))
        engine.tools.forget_next(operation.tool)
        if answers is None:
            return
        assert answers[0].status is StepStatus.IN_DOUBT
        await engine.assert_memory_equals_store()
        refused = await outcome_of(engine.rewind(ledger.next_step))
        assert refused.reason == "STEP_IN_DOUBT"
        answer = await self._rewound(ledger.next_step, accept_irreversible=True)
        assert isinstance(answer, RewindAnswer)
        self._went_to(answer.next_step_id)
        await self._compare()

    async def _fault(self, operation: Fault) -> None:
        memory = self.engine.memory
        memory.fail_write(memory.write_count + operation.after, applied=operation.applied)

    async def _end(self, operation: End) -> None:
        ledger = self.ledger
        ledger.number += 1
        for _ in range(10):
            if operation.commit:
                answer = await outcome_of(self.engine.commit(f"c{ledger.number}"))
            else:
                answer = await outcome_of(self.engine.rollback(request_id=f"x{ledger.number}"))
                ledger.standing.clear()
            if not isinstance(answer, Unavailable):
                break
        assert not isinstance(answer, EngineError), answer

    # --- what is held

    async def _check_end(self) -> None:
        engine = self.engine
        if (await engine.record()).status is TransactionStatus.COMMITTED:
            assert len(await engine.live_attempts()) == len(self.ledger.standing)
            return
        assert await engine.staged() == []
        assert await engine.live_attempts() == []
        assert self._compensated_effects() == set()

    def _compensated_effects(self) -> set[str]:
        """Effects in force, of this transaction's calls that registered an undo."""
        numbers = {
            each.request_id.removeprefix("r") for _, calls, _ in self.ledger.sent for each in calls
        } | {each.request_id.removeprefix("r") for _, each in self.ledger.standing.values()}
        booked = {
            f"effect-{item.arguments['effect'].removeprefix('effect-')}"
            for item in self.engine.tools.calls
            if item.tool_name in ("book", "wire")
            and isinstance(item.arguments, dict)
            and "effect" in item.arguments
        }
        return {
            effect
            for effect in self.engine.tools.effects
            if effect in booked and effect.removeprefix("effect-") in numbers
        }

    async def _compare(self) -> None:
        """I6: what stands equals a transaction that only ever ran the steps that stand."""
        record = await self.engine.record()
        if record.status.is_terminal:
            return
        assert record.next_step_id == self.ledger.next_step
        reference = Engine()
        for key in KEYS:
            entry = await self.engine.store.read_committed(key)
            if entry.version:
                reference.memory.database.committed[key] = (entry.value, entry.version)
        await reference.begin()
        groups: dict[int, list[StepCall]] = {}
        for step in sorted(self.ledger.standing):
            first, each = self.ledger.standing[step]
            groups.setdefault(first, []).append(each)
        for first in sorted(groups):
            answers = await reference.group(first, *groups[first])
            assert {answer.status for answer in answers} == {StepStatus.SUCCESS}
        assert await facts_of(self.engine) == await facts_of(reference)
        standing = {
            f"effect-{each.request_id.removeprefix('r')}"
            for _, each in self.ledger.standing.values()
            if each.tool_name in ("book", "wire")
        }
        assert self._compensated_effects() == standing


async def facts_of(engine: Engine) -> dict[str, Any]:
    transaction = await engine.rebuilt()
    aggregate = aggregate_of(transaction)
    return {
        "state": await engine.state(*KEYS),
        "graph": aggregate.graph,
        "steps": {step: (item[1], item[2], item[3], item[4]) for step, item in aggregate.steps.items()},
        "outputs": [
            (item.step_id, item.arguments, item.resolved_arguments, item.output, item.edges)
            for item in await engine.live_attempts()
            if item.state is not AttemptState.SUPERSEDED
        ],
        # Which member of a group staged first is chance; they leave in step order.
        "staged": [
            (effect.step_id, effect.channel, effect.payload)
            for effect in sorted(
                await engine.store.list_effects(engine.transaction_id, frozenset()),
                key=lambda effect: (effect.step_id, effect.sequence),
            )
        ],
        "context": [
            (entry.step_id, entry.tool_name, entry.raw_context) for entry in (await engine.view()).context
        ],
        # Which member of a group registered first is chance too. What is undone belongs to an attempt that was lost.
        "undo": sorted(
            (undo.step_id, undo.undo_name, undo.arguments)
            for undo in transaction.undo.values()
            if undo.state is not UndoState.DONE
        ),
        "next": transaction.record.next_step_id,
        "group": transaction.record.open_group,
        "pending": transaction.record.pending_rewind,
    }


@settings(max_examples=120)
@given(_policies, st.lists(_operations, min_size=4, max_size=20))
def test_a_history_leaves_what_its_surviving_steps_alone_would_leave(
    policy: dict[str, Any], operations: list[Any]
) -> None:
    run_in_virtual_time(History(policy).play(operations))


@settings(max_examples=80)
@given(_policies, st.lists(_weighted((3, _operations), (1, _faults)), min_size=4, max_size=20))
def test_a_history_over_a_failing_database_does_so_too(policy: dict[str, Any], operations: list[Any]) -> None:
    run_in_virtual_time(History(policy).play(operations))


@settings(max_examples=8)
@given(_policies, st.lists(_operations, min_size=4, max_size=12))
def test_a_history_is_the_same_over_sqlite_as_over_memory(
    policy: dict[str, Any], operations: list[Any]
) -> None:
    async def both() -> None:
        in_memory = History(policy)
        await in_memory.play(operations)
        with TemporaryDirectory() as folder:
            async with sqlite_engine(Path(folder)) as engine:
                on_disk = History(policy, engine)
                await on_disk.play(operations)
        assert on_disk.trace == in_memory.trace
        assert engine.tools.effects == in_memory.engine.tools.effects

    run_in_virtual_time(both())
