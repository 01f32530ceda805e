"""Failing undo, retried, resolved and rewound over in any order: none is forgotten, none is done twice.

Whatever happens, an effect that stands is of a live step, or listed as failed, or a person answered for
it (I5); a rewind that is held lets no step run, so that no undo runs after a later forward step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.engine_harness import Engine, outcome_of
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.errors import EngineError, PreconditionFailed
from agenttx_server.engine.records import OnUndoFailure, TransactionStatus, UndoResolution, UndoState
from agenttx_server.engine.requests import StepStatus

# How many calls of its undo fail, of three tries each.
failing = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 7, 1000])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.lists(failing, min_size=0, max_size=2)),
        st.tuples(st.just("fail"), st.lists(failing, min_size=0, max_size=1)),
        st.tuples(st.just("rewind"), st.integers(1, 6)),
        st.tuples(st.just("retry"), st.integers(0, 5)),
        st.tuples(st.just("resolve"), st.integers(0, 5)),
        st.tuples(st.just("mend"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("abort"), st.just(0)),
    ),
    max_size=14,
)


@dataclass
class History:
    """A transaction, and what is known of its effects without asking the engine."""

    policy: OnUndoFailure
    engine: Engine = field(default_factory=Engine)
    resolved: set[str] = field(default_factory=set)
    effects: int = 0

    async def run(self, asked: list[tuple[str, object]]) -> None:
        await self.engine.begin(
            on_undo_failure=self.policy, max_global_resets=16, replay_budget_factor=1000.0
        )
        for name, what in asked:
            await getattr(self, name)(what)
            await self.check()

    # --- what is asked ----------------------------------------------------------------------

    async def step(self, failures: list[int], *, fail: bool = False) -> None:
        names = []
        for times in failures:
            self.effects += 1
            names.append(f"e{self.effects}")
            self.engine.tools.break_undo(names[-1], times)
        record = await self.engine.record()
        was_held = record.pending_rewind is not None
        arguments = {"effect": names} | ({"fail": "no"} if fail else {})
        calls = self.engine.tools.count()
        outcome = await outcome_of(self.engine.step(record.next_step_id, "book", arguments))
        if record.status.is_terminal or was_held:
            assert isinstance(outcome, PreconditionFailed)
            assert self.engine.tools.count() == calls
        elif not fail:
            assert outcome.status is StepStatus.SUCCESS

    async def fail(self, failures: list[int]) -> None:
        await self.step(failures, fail=True)

    async def rewind(self, to_step: int) -> None:
        await outcome_of(self.engine.rewind(min(to_step, (await self.engine.record()).next_step_id)))

    async def retry(self, number: int) -> None:
        failed = (await self.engine.view()).undo_failed
        if failed:
            await self.engine.retry_undo(failed[number % len(failed)].sequence)

    async def resolve(self, number: int) -> None:
        failed = (await self.engine.view()).undo_failed
        if failed:
            undo = failed[number % len(failed)]
            kept = (await self.engine.record()).kept_effects
            await self.engine.resolve_undo(undo.sequence, list(UndoResolution)[number % 2])
            self.resolved.add(undo.arguments)
            if (await self.engine.record()).pending_rewind is None and number % 2:
                assert len((await self.engine.record()).kept_effects) > len(kept)

    async def mend(self, _: int) -> None:
        for number in range(1, self.effects + 1):
            self.engine.tools.break_undo(f"e{number}", 0)

    async def crash(self, _: int) -> None:
        await self.engine.crash()

    async def abort(self, _: int) -> None:
        outcome = await outcome_of(self.engine.rollback())
        assert isinstance(outcome, EngineError) or outcome.status in (
            TransactionStatus.ROLLED_BACK,
            TransactionStatus.FAILED,
            TransactionStatus.ROLLING_BACK,
        )

    # --- what holds at any time ---------------------------------------------------------------

    async def check(self) -> None:
        engine = self.engine
        await engine.assert_memory_equals_store()
        stored = await engine.rebuilt()
        failed = {undo.arguments for undo in stored.undo.values() if undo.state is UndoState.FAILED}
        live = {
            undo.arguments
            for undo in stored.undo.values()
            if undo.state is UndoState.PENDING and undo.step_id in stored.steps
        }
        standing = {f'{{"effect":"{effect}"}}' for effect in engine.tools.effects}
        assert standing == live | failed | self.resolved
        assert all(count == 1 for count in Counter(engine.tools.undo_order).values())
        pending = stored.record.pending_rewind
        if self.policy is OnUndoFailure.HOLD:
            assert (pending is not None) == bool(failed)
        else:
            assert pending is None
            assert stored.record.undo_was_skipped or not failed
        assert pending is None or pending.held
        over = stored.record.status.is_terminal and not failed
        assert engine.tools.ended == ([engine.transaction_id] if over else [])


@settings(max_examples=150, deadline=None)
@given(operations, st.sampled_from(list(OnUndoFailure)))
def test_no_effect_is_forgotten_and_none_is_undone_twice(
    asked: list[tuple[str, object]], policy: OnUndoFailure
) -> None:
    run_in_virtual_time(_run(asked, policy))


async def _run(asked: list[tuple[str, object]], policy: OnUndoFailure) -> None:
    await History(policy).run(asked)
