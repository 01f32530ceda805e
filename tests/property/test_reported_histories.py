"""Histories in which the agent runs some steps itself and the server others, against a model of both worlds.

Whatever is reported, executed, rewound, acknowledged, refused by the agent, repeated or cut off by a crash: undo happens in
one order over both kinds, none happens after a later step, each is done once, and what stands is what a
transaction has that only ever ran the steps that stand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from tests.property.test_engine_histories import facts_of
from tests.support.engine_harness import Engine, outcome_of, same_answer
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.records import EffectClass, OnUndoFailure, TransactionStatus, UndoRecord, UndoState
from agenttx_server.engine.requests import CompensationState, StepAnswer, StepStatus


@dataclass(frozen=True)
class Report:
    """The agent runs a tool, with so many effects that it can undo, and reports it."""

    effects: int
    refers: bool
    effect_class: EffectClass


@dataclass(frozen=True)
class Book:
    """The server runs a tool with an effect that it can undo."""


@dataclass(frozen=True)
class Put:
    """The server runs a tool that writes state."""

    key: str


@dataclass(frozen=True)
class Fail:
    """A step fails: one that the agent reports, perhaps with an effect left over, or one of the server's."""

    reported: bool
    effects: int


@dataclass(frozen=True)
class Rewind:
    """Somebody goes back, to this share of the way."""

    share: float


@dataclass(frozen=True)
class Restart:
    """The server dies, or another one takes over."""

    crash: bool


@dataclass(frozen=True)
class Again:
    """An earlier request is sent once more."""

    share: float


_OPERATIONS = st.one_of(
    st.builds(
        Report,
        effects=st.integers(1, 2),
        refers=st.booleans(),
        effect_class=st.sampled_from(
            [EffectClass.COMPENSATABLE, EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE]
        ),
    ),
    st.builds(Report, effects=st.just(0), refers=st.booleans(), effect_class=st.just(EffectClass.READ_ONLY)),
    st.builds(Book),
    st.builds(Put, st.sampled_from(["kv/a", "kv/b"])),
    st.builds(Fail, reported=st.booleans(), effects=st.integers(0, 1)),
    st.builds(Rewind, st.floats(0, 1)),
    st.builds(Restart, st.booleans()),
    st.builds(Again, st.floats(0, 1)),
)
_POLICIES = st.fixed_dictionaries(
    {
        "max_local_depth": st.integers(0, 3),
        "max_global_resets": st.integers(0, 3),
        "on_undo_failure": st.sampled_from(list(OnUndoFailure)),
    }
)
# How the agent answers, one after another: it did it, it could not, or the server dies before it hears.
_ANSWERS = st.lists(st.sampled_from(["done", "done", "done", "failed", "crash"]), min_size=1, max_size=6)


@dataclass(frozen=True)
class _Sent:
    """A step that was sent: how, and the undo that it registered, by number."""

    step_id: int
    tool_name: str
    arguments: Any
    request_id: str
    told: dict[str, Any] = field(default_factory=dict)


class History:
    """Plays operations and keeps the model: which steps stand, and what the world is like."""

    def __init__(self, policy: dict[str, Any], answers: Sequence[str]) -> None:
        self.engine = Engine()
        self.policy = policy
        self.answers = answers
        self.number = 0
        self.asked = 0

    async def play(self, operations: Sequence[Any]) -> None:
        await self._begin()
        for operation in operations:
            note(repr(operation))
            await getattr(self, f"_{type(operation).__name__.lower()}")(operation)
            await self._check()

    async def _begin(self) -> None:
        await self.engine.begin(**self.policy)
        self.standing: dict[int, _Sent] = {}
        self.sent: list[tuple[_Sent, StepAnswer]] = []
        self.next_step, self.registered = 1, 0
        self.world: set[str] = set()  # effects that stand of the agent's own
        self.left: set[str] = set()  # of those that it could not undo, and that a rewind was completed over
        self.numbers: dict[str, int] = {}  # of each effect the place of its undo in the order
        self.undone_before = len(self.engine.tools.undone)

    # --- operations

    async def _report(self, operation: Report) -> None:
        self.number += 1
        effects = [f"agent-{self.number}-{index}" for index in range(operation.effects)]
        given: dict[str, Any] = {"number": self.number}
        if operation.refers and self.standing:
            given["of"] = f"${{steps.{max(self.standing)}}}"
        told = {
            "output": {"id": self.number},
            "effect_class": operation.effect_class,
            "undo": [("cancel", {"effect": effect}) for effect in effects],
        }
        self._cause(effects)
        await self._send(_Sent(self.next_step, "crm.create", given, f"r{self.number}", told))

    async def _book(self, operation: Book) -> None:
        self.number += 1
        effect = f"server-{self.number}"
        self.registered += 1
        self.numbers[effect] = self.registered
        await self._send(_Sent(self.next_step, "book", {"effect": effect}, f"r{self.number}"))

    async def _put(self, operation: Put) -> None:
        self.number += 1
        await self._send(
            _Sent(self.next_step, "note", {"put": {operation.key: self.number}}, f"r{self.number}")
        )

    async def _fail(self, operation: Fail) -> None:
        self.number += 1
        if not operation.reported:
            await self._send(_Sent(self.next_step, "note", {"fail": "no"}, f"r{self.number}"))
            return
        effects = [f"agent-{self.number}-{index}" for index in range(operation.effects)]
        told = {
            "error": "no such thing",
            "effect_class": EffectClass.COMPENSATABLE,
            "undo": [("cancel", {"effect": effect}) for effect in effects],
        }
        self._cause(effects)
        await self._send(_Sent(self.next_step, "crm.create", {}, f"r{self.number}", told))

    async def _rewind(self, operation: Rewind) -> None:
        self.number += 1
        to_step = 1 + round(operation.share * (self.next_step - 1))
        answer = await self.engine.rewind(to_step, request_id=f"w{self.number}")
        await self._went_to(to_step, held=answer.rollback_incomplete)
        assert (await self.engine.rewind(to_step, request_id=f"w{self.number}")).next_step_id == to_step

    async def _restart(self, operation: Restart) -> None:
        if operation.crash:
            await self.engine.crash()
        else:
            self.engine.restart()

    async def _again(self, operation: Again) -> None:
        if not self.sent:
            return
        sent, first = self.sent[round(operation.share * (len(self.sent) - 1))]
        before, ran = await self.engine.record(), self.engine.tools.count()
        answer = await self._ask(sent)
        assert isinstance(answer, StepAnswer)
        assert answer.replayed
        assert same_answer(first, answer)
        assert (await self.engine.record(), self.engine.tools.count()) == (before, ran)

    # --- their parts

    def _cause(self, effects: Sequence[str]) -> None:
        for effect in effects:
            self.registered += 1
            self.numbers[effect] = self.registered
            self.world.add(effect)

    async def _ask(self, sent: _Sent) -> StepAnswer | EngineError:
        ask = self.engine.report if sent.told else self.engine.step
        answer = await outcome_of(
            ask(sent.step_id, sent.tool_name, sent.arguments, sent.request_id, **sent.told)
        )
        assert isinstance(answer, StepAnswer | EngineError)
        return answer

    async def _send(self, sent: _Sent) -> None:
        answer = await self._ask(sent)
        assert isinstance(answer, StepAnswer)
        if answer.status is StepStatus.SUCCESS:
            self.standing[sent.step_id] = sent
            self.sent.append((sent, answer))
            self.next_step = sent.step_id + 1
            return
        ends = answer.status is StepStatus.FAILED
        event("an abort" if ends else "a decision")
        await self._went_to(1 if ends else answer.next_step_id, held=answer.rollback_incomplete)
        final = await self._ask(sent)
        assert isinstance(final, StepAnswer)
        assert (final.replayed, final.rollback_incomplete, final.pending_undo) == (True, False, ())
        self.sent.append((sent, final))
        assert ((await self.engine.record()).status is TransactionStatus.FAILED) is ends
        if ends:
            await self._check()
            await self._begin()

    async def _went_to(self, step_id: int, *, held: bool) -> None:
        """Do the agent's part of the rewind; drop what is gone."""
        order = self._undone_here()
        if held:
            event("the agent is asked")
            order += await self._undo_as_agent()
        numbers = [self.numbers[effect] for effect in order]
        assert numbers == sorted(numbers, reverse=True), order
        assert len(set(numbers)) == len(numbers)
        self.standing = {step: sent for step, sent in self.standing.items() if step < step_id}
        self.next_step = step_id

    def _undone_here(self) -> list[str]:
        fresh = self.engine.tools.undone[self.undone_before :]
        self.undone_before += len(fresh)
        return [undone.effect for undone in fresh]

    async def _awaited(self) -> list[UndoRecord]:
        page = await self.engine.coordinator.list_compensations(
            "anonymous", self.engine.transaction_id, frozenset({CompensationState.AWAITING_AGENT}), "", 1000
        )
        return [undo for _, undo, _ in page.undo]

    async def _undo_as_agent(self) -> list[str]:
        """Acknowledge until nothing is awaited, then settle what could not be done; return what was tried, in order."""
        order, failed = [], []
        while awaited := await self._awaited():
            refused = await outcome_of(self.engine.step(self.next_step, "note"))
            assert refused.reason == "ROLLBACK_INCOMPLETE"
            if len(awaited) > 1:
                assert (await outcome_of(self.engine.acknowledge(awaited[1].sequence))).reason == (
                    "COMPENSATION_OUT_OF_ORDER"
                )
            undo = awaited[0]
            effect = json.loads(undo.arguments)["effect"]
            self.asked += 1
            word = self.answers[self.asked % len(self.answers)]
            if word == "crash":
                await self.engine.crash()
            order.append(effect)
            error = "no answer" if word == "failed" else ""
            if error:
                failed.append((undo.sequence, effect))
            else:
                self.world.remove(effect)
            self.number += 1
            key = f"k{self.number}"
            answer = await self.engine.acknowledge(undo.sequence, error, key)
            order += self._undone_here()
            assert answer.state == ("FAILED" if error else "DONE")
            assert await self.engine.acknowledge(undo.sequence, error, key) == answer
            await self.engine.assert_memory_equals_store()
        for sequence, effect in failed:
            await self._settle(sequence, effect)
        assert (await self.engine.record()).pending_rewind is None
        return order

    async def _settle(self, sequence: int, effect: str) -> None:
        if self.policy["on_undo_failure"] is OnUndoFailure.CONTINUE:
            event("completed over a no")
            self.left.add(effect)
            return
        event("held by a no")
        if sequence % 2:
            assert (await self.engine.retry_undo(sequence)).state is CompensationState.AWAITING_AGENT
            self.world.remove(effect)
            await self.engine.acknowledge(sequence)
        else:
            self.world.remove(effect)
            await self.engine.resolve_undo(sequence)

    # --- what is held

    async def _check(self) -> None:
        engine = self.engine
        await engine.assert_memory_equals_store()
        standing = {
            arguments["effect"]
            for sent in self.standing.values()
            for _, arguments in sent.told.get("undo", ())
        }
        assert self.world == standing | self.left
        booked = {sent.arguments["effect"] for sent in self.standing.values() if sent.tool_name == "book"}
        assert {effect for effect in engine.tools.effects if effect in self.numbers} == booked
        if (await engine.record()).status.is_terminal:
            return
        assert (await engine.record()).next_step_id == self.next_step
        reference = Engine()
        await reference.begin()
        for step in sorted(self.standing):
            sent = self.standing[step]
            ask = reference.report if sent.told else reference.step
            answer = await ask(sent.step_id, sent.tool_name, sent.arguments, sent.request_id, **sent.told)
            assert answer.status is StepStatus.SUCCESS
        expected, found = await facts_of(reference), await facts_of(engine)
        for facts in (expected, found):
            facts.pop("undo")
        assert found == expected
        assert await self._registered(engine) == await self._registered(reference)

    async def _registered(self, engine: Engine) -> list[tuple[int, str, str]]:
        undo = (await engine.rebuilt()).undo
        return [
            (row.step_id, row.undo_name, row.arguments)
            for _, row in sorted(undo.items())
            if row.state is UndoState.PENDING
        ]


@settings(max_examples=150)
@given(_POLICIES, _ANSWERS, st.lists(_OPERATIONS, min_size=4, max_size=18))
def test_reported_and_executed_steps_are_undone_as_one_history(
    policy: dict[str, Any], answers: list[str], operations: list[Any]
) -> None:
    run_in_virtual_time(History(policy, answers).play(operations))
