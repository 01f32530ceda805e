"""The sub-steps of one running step: answered from the journal where they were made before, else made now.

A step's code asks for calls one after the other, or side by side. The i-th call of a scope is
the i-th entry: if that stands completed for the same tool and arguments it is the answer, so that code which
is started again goes through what it has done without doing it again. Where it asks for something
else, that entry and those behind it are undone first, and it goes on live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from agenttx_server.engine import failure_text, json_values
from agenttx_server.engine.failure_text import StepFailure
from agenttx_server.engine.group_run import GroupRun, Member
from agenttx_server.engine.limits import utf8_size
from agenttx_server.engine.ports import ContextClosed, SubStepCall, SubStepFailed, ToolFailure
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    HintCategory,
    OnUndoFailure,
    StateRead,
    StateWrite,
)
from agenttx_server.engine.sibling_calls import Clash, SiblingCalls, around
from agenttx_server.engine.state_overlay import StateOverlay
from agenttx_server.engine.sub_step_run import SubMember, SubStepRun
from agenttx_server.engine.touches import read_of_state
from agenttx_server.engine.write_order import sub_step_of

if TYPE_CHECKING:
    from agenttx_server.engine.sub_steps import SubSteps

__all__ = ["StepJournal"]

_Place = tuple[str, int]
_Ruling = tuple[AttemptState, StepFailure]


class StepJournal:
    """The calls of one member of a running group. One run of its code at a time uses it."""

    def __init__(self, parts: SubSteps, run: GroupRun, member: Member) -> None:
        self._parts = parts
        self._run = run
        self._member = member
        self._overlay = StateOverlay()
        self._entries: dict[_Place, AttemptRecord] = {}
        self._numbers: dict[_Place, int] = {}
        self._writes: dict[int, list[tuple[str, str | None]]] = {}
        self._asked: dict[str, int] = {}
        self._failures: dict[int, StepFailure] = {}
        self._running: dict[int, tuple[SubStepRun, asyncio.Task[AttemptRecord]]] = {}
        self._in_order = asyncio.Lock()
        self._is_loaded = False
        self._closed = ""
        self._stuck: _Ruling | None = None
        self._siblings = SiblingCalls()
        # By scope, the calls in it that wrote: each answer takes in what was written inside it.
        self._writers: dict[str, dict[int, None]] = {}

    # --- for the step that runs -------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Whether the step can't go on, whatever its code does."""
        return self._stuck is not None

    @property
    def only_read(self) -> bool:
        """Whether all sub-steps, of this run and of those before it, were of tools that read only."""
        return self._is_loaded and all(
            entry.effect_class is EffectClass.READ_ONLY for entry in self._entries.values()
        )

    def failure_of(self, sub_step: int) -> StepFailure | None:
        """Return why a sub-step failed in this run, None if it did not."""
        return self._failures.get(sub_step)

    def begin_run(self, scope: str = "") -> None:
        """Count the calls of a scope, and of those inside it, from 1 again: their code begins anew."""
        self._asked = {known: count for known, count in self._asked.items() if not known.startswith(scope)}
        self._siblings.forget(scope)
        if not scope:
            self._closed = ""
            self._overlay = StateOverlay()
            if self._member.context is not None:
                self._overlay = self._member.context.take_overlay()

    async def step(self, call: SubStepCall) -> str:
        """Make a call and return its output, or return what it gave before. Raises as ports.ToolContext.step does."""
        asked = self._asked.get(call.scope, 0)
        ordinal = asked + 1 if call.ordinal is None else call.ordinal
        self._asked[call.scope] = max(asked, ordinal)
        place = call.scope, ordinal
        self._check_open()
        if self._member.context is not None:
            self._overlay = self._member.context.take_overlay()
        async with self._in_order:  # calls that come together are numbered as they were asked
            await self._load()
            self._check_open()
            member = self._prepared(call, place)
            known = self._entries.get(place)
            if known is not None and not _is_same(known, member):
                await self._take_back(self._from(place))
                known = None
            self._check_open()
            if known is not None and known.state is AttemptState.COMPLETED:
                overlay = self._overlay_of(call.scope)
                # Also what the calls wrote that were made inside it: its code isn't run again to ask for them.
                for sub_step in (known.sub_step, *self._writers.get(member.inner_scope, ())):
                    self._overlay.begin_sub_step(sub_step)
                    overlay.take_sub_step(sub_step, self._writes.get(sub_step, ()))
                return known.output or "null"
            task, run = self._begin(member, known)
        return await self._answer(run, task)

    async def settle(self, state: AttemptState) -> _Ruling | None:
        """End what still runs; return what becomes of the step where that isn't what its code made of it.

        Calls that were made before and not in this run are undone if the step has completed. Raises what the
        store raises.
        """
        self._closed = "the step has ended"
        await self._end(list(self._running.values()))
        if self._stuck is None and state is AttemptState.COMPLETED:
            async with self._in_order:
                await self._load()
                await self._take_back(
                    [
                        entry
                        for (scope, ordinal), entry in self._entries.items()
                        if ordinal > self._asked.get(scope, 0) and not self._is_inside_completed(scope)
                    ]
                )
        return self._stuck

    async def end_inner(self, scope: str, state: AttemptState) -> _Ruling | None:
        """End calls that still run inside one that has ended; return what becomes of it instead, if anything."""
        await self._end([item for item in self._running.values() if item[0].member.scope.startswith(scope)])
        if self._stuck is not None:
            return AttemptState.SUPERSEDED, self._stuck[1]
        return None

    @property
    def running_members(self) -> list[SubMember]:
        """The calls that have no durable outcome."""
        return [run.member for run, _ in self._running.values()]

    # --- calls side by side -------------------------------------------------------------------

    def keep_apart(self, scopes: Sequence[str]) -> None:
        """Have calls of these scopes, which lie in one around them, see nothing of what the others write."""
        self._siblings.keep_apart(scopes, self._around(scopes[0]))

    def see_below(self, scope: str, lower: Sequence[str]) -> None:
        """Have calls of a scope that begins anew see what those of the lower ones wrote, and come behind them."""
        self._siblings.see_below(scope, lower, self._around(scope))
        for place in [place for place in self._numbers if place[0].startswith(scope)]:
            if place not in self._entries:
                del self._numbers[place]  # by its number what it writes would come before what it saw

    def together(self, scopes: Sequence[str]) -> None:
        """Have what was written in these scopes be seen by whatever is called next."""
        self._siblings.together(scopes, self._around(scopes[0]))

    async def is_answered(self, scope: str, ordinal: int) -> bool:
        """Whether a call would be answered from the journal, if it is asked for as before."""
        async with self._in_order:
            await self._load()
            known = self._entries.get((scope, ordinal))
        return known is not None and known.state is AttemptState.COMPLETED

    async def clashes(self, scopes: Sequence[str], behind: Collection[int]) -> list[Clash]:
        """Return which of the scopes lose against lower ones; ``behind`` are those that began anew behind them."""
        async with self._in_order:
            await self._load()
            places = {scope: place for place, scope in enumerate(scopes)}
            calls: dict[int, list[int]] = {place: [] for place in places.values()}
            for entry in self._entries.values():
                place = next((places[scope] for scope in around(entry.scope) if scope in places), None)
                if place is not None and entry.state is AttemptState.COMPLETED:
                    calls[place].append(entry.sub_step)
            await self._load_uses([call for made in calls.values() for call in made])
            return self._siblings.clashes(calls, behind)

    def is_final(self, scope: str) -> bool:
        """Whether nothing takes back what was called in a scope."""
        return any(_is_final(entry) for entry in self._inside(scope))

    async def take_back(self, scopes: Sequence[str]) -> None:
        """Undo all that was called in these scopes, so that nothing of it counts."""
        async with self._in_order:
            await self._take_back([entry for scope in scopes for entry in self._inside(scope)])
        self._check_open()

    def _overlay_of(self, scope: str) -> StateOverlay:
        return self._siblings.overlay(scope) or self._overlay

    def _around(self, scope: str) -> StateOverlay:
        """What is seen around a scope that is kept apart."""
        return self._overlay_of(scope.rstrip("/"))

    async def _load_uses(self, calls: Collection[int]) -> None:
        """Read what calls used that were made before the step was started again."""
        if all(self._siblings.knows(call) for call in calls):
            return
        step_id = self._member.step_id
        transaction_id = self._run.transaction.record.transaction_id
        reads, writes = await self._run._services.store.load_touched(transaction_id, step_id, step_id)
        used: dict[int, tuple[list[StateRead], list[StateWrite]]] = {call: ([], []) for call in calls}
        for read in reads:
            if read.sub_step in used:
                used[read.sub_step][0].append(read_of_state(read))
        for write in writes:
            if (call := sub_step_of(write.sequence)) in used:
                used[call][1].append(write)
        for call, (read_by, written_by) in used.items():
            if not self._siblings.knows(call):
                self._siblings.note(call, read_by, written_by)

    # --- one call -----------------------------------------------------------------------------

    def _prepared(self, call: SubStepCall, place: _Place) -> SubMember:
        """Return the call as it would be made; what is wrong with its arguments is a failure of it."""
        services = self._run._services
        parsed: json_values.JsonValue = None
        refused = None
        text = call.arguments or "{}"
        if utf8_size(call.tool_name) > services.limits.tool_name_bytes or not call.tool_name:
            raise ToolFailure(HintCategory.UNKNOWN_TOOL, "the name of the tool is empty or too long")
        if utf8_size(text) > services.limits.arguments_bytes:
            raise ToolFailure(
                HintCategory.RESOURCE_EXHAUSTED,
                f"the arguments are larger than the limit of {services.limits.arguments_bytes} bytes",
            )
        try:
            parsed = json_values.parse(text)
            text = json_values.canonical(parsed)
        except json_values.ValueRefused as error:
            refused = failure_text.refused_arguments(error, text)
        scope, ordinal = place
        member = SubMember(
            step_id=self._member.step_id,
            call=self._parts.call(call, text),
            fingerprint="",
            arguments=text,
            parsed=parsed,
            refused=refused,
            resolved=parsed,
            resolved_text=text,
            scope=scope,
            ordinal=ordinal,
            function=call.function,
        )
        inner = call.inner_scope
        member.inner_scope = f"{scope}{ordinal}/" if inner is None else inner
        member.tool = self._parts.describe(self._run.transaction.record.principal, call)
        return member

    def _begin(
        self, member: SubMember, known: AttemptRecord | None
    ) -> tuple[asyncio.Task[AttemptRecord], SubStepRun]:
        run = self._run
        transaction = run.transaction
        place = member.scope, member.ordinal
        member.sub_step = self._number(place)
        at = member.step_id, member.sub_step
        member.started_at = run._services.clock.now()
        if known is not None and known.state is AttemptState.EXECUTING:
            self._go_on_with(member, known)
        else:
            member.attempt = transaction.sub_step_counts.get(at, 0) + 1
            transaction.sub_step_counts[at] = member.attempt
            if member.refused is None:
                member.edges = transaction.graph.links(*at, member.parsed, before_step=run.first)
        self._overlay.begin_sub_step(member.sub_step)
        sub_run = SubStepRun(run, self._member, member, self._overlay_of(member.scope))
        task = run._tasks.spawn(self._carry_out(sub_run))
        self._running[member.sub_step] = sub_run, task
        return task, sub_run

    def _go_on_with(self, member: SubMember, known: AttemptRecord) -> None:
        """Run a call to its end that a crash cut off: it is the same attempt, under the same key."""
        member.attempt = known.attempt
        member.started_at = known.started_at
        member.idempotency_key = known.idempotency_key
        member.edges = known.edges
        member.tries = known.tries
        member.written_ahead = True
        member.effect_possible = True
        member.adopted = known.adopted
        if known.adopted is not None:  # the row is another step's
            member.written_ahead = False

    async def _carry_out(self, run: SubStepRun) -> AttemptRecord:
        record = await run.execute()
        self._note(record)
        member = run.member
        if record.state is AttemptState.COMPLETED:
            context = member.context
            written = [] if context is None else context.writes
            self._writes[record.sub_step] = [(write.key, write.value) for write in written]
            self._note_writer(record)
            self._overlay_of(member.scope).take_sub_step(record.sub_step, self._writes[record.sub_step])
            used = [] if context is None else [*context.reads, *context.touches]
            self._siblings.note(record.sub_step, [read_of_state(read) for read in used], written)
            self._run.transaction.extend_graph([record])
        elif record.state is AttemptState.IN_DOUBT:
            why = failure_text.sub_step_in_doubt(record.step_id, record.sub_step, record.tool_name)
            self._stuck = AttemptState.IN_DOUBT, why
            self._parts.await_tool(self._run.transaction, run, record)
        else:
            if record.state is AttemptState.FAILED:
                self._failures[record.sub_step] = run.failure()
            await self._undo_failed(run, record)
        return record

    async def _undo_failed(self, run: SubStepRun, record: AttemptRecord) -> None:
        """Take back what a failed call did, and the calls made inside it unless it is to be started again."""
        if run.member.function is None and not record.restartable:
            await self._take_back(self._inside(run.member.inner_scope))
        transaction = self._run.transaction
        if not await self._parts.undo(transaction, record) and self._holds:
            self._get_stuck_on(record)
        await self._parts.owe_late_undo(transaction, run, record)

    async def _answer(self, run: SubStepRun, task: asyncio.Task[AttemptRecord]) -> str:
        try:
            record = await asyncio.shield(task)
        except asyncio.CancelledError:
            # The step's code no longer waits. What can't be undone is let go on; the step waits for it.
            if not run.is_irreversible:
                run.cancel_step(run.member.step_id, "its step no longer waits for it")
            raise
        finally:
            if task.done():
                self._running.pop(run.member.sub_step, None)
        self._check_open()
        if record.state is AttemptState.COMPLETED:
            return record.output or "null"
        if run.member.waits is not None:
            raise run.member.waits
        failure = self._failures.get(record.sub_step)
        if failure is None:
            raise ContextClosed("the step can't go on")
        raise SubStepFailed(record.sub_step, failure.hint)

    async def _end(self, running: Sequence[tuple[SubStepRun, asyncio.Task[AttemptRecord]]]) -> None:
        for run, task in running:
            if not task.done() and not run.is_irreversible:
                run.cancel_step(run.member.step_id, "its step has ended")
        for run, task in running:
            await asyncio.wait((task,))
            self._running.pop(run.member.sub_step, None)
            task.result()

    # --- entries ------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Read what was made before, once; nothing where nothing was."""
        if self._is_loaded:
            return
        transaction = self._run.transaction
        step_id = self._member.step_id
        if step_id not in transaction.sub_steps and self._member.adopts is not None:
            for record in await self._parts.adopt(self._run, self._member):
                self._note(record)
                transaction.extend_graph([record])
        elif step_id in transaction.sub_steps:
            stored = await self._run._services.store.load_journal(transaction.record.transaction_id, step_id)
            for write in stored.writes:
                if number := sub_step_of(write.sequence):
                    self._writes.setdefault(number, []).append((write.key, write.value))
            for record in stored.sub_steps:
                self._note(record)
                self._note_writer(record)
            self._is_loaded = True
            if not await self._parts.is_same_step(transaction, self._member):
                await self._take_back(list(self._entries.values()))
        self._is_loaded = True

    def _note(self, record: AttemptRecord) -> None:
        place = record.scope, record.ordinal
        self._numbers[place] = record.sub_step
        transaction = self._run.transaction
        if record.state is AttemptState.SUPERSEDED:
            self._entries.pop(place, None)
            transaction.forget_sub_step(record.step_id, record.sub_step)
        else:
            self._entries[place] = record
            transaction.note_sub_step(record)

    def _note_writer(self, record: AttemptRecord) -> None:
        if self._writes.get(record.sub_step):
            for scope in around(record.scope):
                self._writers.setdefault(scope, {})[record.sub_step] = None

    def _number(self, place: _Place) -> int:
        """Return the number of a call: what it had before in this journal, else the next one."""
        known = self._numbers.get(place)
        if known is None:
            known = max(self._numbers.values(), default=0) + 1
            most = self._run._services.limits.sub_steps_per_step
            if known > most:
                raise ToolFailure(
                    HintCategory.RESOURCE_EXHAUSTED, f"a step makes at most {most} calls. Use several steps."
                )
            self._numbers[place] = known
        return known

    def _from(self, place: _Place) -> list[AttemptRecord]:
        """The entry at a place, those behind it in its scope, and what was made inside them."""
        scope, ordinal = place
        found = [
            entry for (known, number), entry in self._entries.items() if known == scope and number >= ordinal
        ]
        inner = {f"{scope}{entry.ordinal}/" for entry in found}
        return found + [entry for prefix in inner for entry in self._inside(prefix)]

    def _inside(self, scope: str) -> list[AttemptRecord]:
        return [entry for (known, _), entry in self._entries.items() if known.startswith(scope)]

    def _is_inside_completed(self, scope: str) -> bool:
        """Whether a scope is inside a call that stands completed, whose own code was not run again."""
        return any(
            entry.state is AttemptState.COMPLETED
            and scope.startswith(f"{outer}{ordinal}/")
            and ordinal <= self._asked.get(outer, 0)
            for (outer, ordinal), entry in self._entries.items()
        )

    async def _take_back(self, entries: Iterable[AttemptRecord]) -> None:
        """Undo calls, the newest first, so that nothing of them counts; stop the step where one can't be."""
        ordered = sorted(entries, key=lambda entry: entry.sub_step, reverse=True)
        if not ordered:
            return
        transaction = self._run.transaction
        here = transaction.record.transaction_id
        for entry in ordered:
            if entry.adopted is not None and entry.adopted.transaction_id != here:
                continue  # committed: it stands
            if _is_final(entry):
                why = failure_text.diverged(entry.step_id, entry.sub_step, entry.tool_name)
                self._stuck = AttemptState.FAILED, why
                return
        # Guarded by the revision: a server that is behind would undo what runs on another one.
        await self._run._write_ahead(self._member)
        for entry in ordered:
            if not await self._parts.undo(transaction, entry) and self._holds:
                self._get_stuck_on(entry)
                return
        superseded = await self._parts.forget(self._run, self._member, ordered)
        for record in superseded:
            self._writes.pop(record.sub_step, None)
            self._siblings.forget_call(record.sub_step)
            for scope in around(record.scope):
                self._writers.get(scope, {}).pop(record.sub_step, None)
            self._note(record)
        left = sorted(self._entries.values(), key=lambda entry: entry.sub_step)
        self._parts.rebuild_node(transaction, self._member, left)

    @property
    def _holds(self) -> bool:
        return self._run.transaction.record.policy.on_undo_failure is OnUndoFailure.HOLD

    def _get_stuck_on(self, entry: AttemptRecord) -> None:
        why = failure_text.sub_step_not_undone(entry.step_id, entry.sub_step, entry.tool_name)
        self._stuck = AttemptState.FAILED, why

    def _check_open(self) -> None:
        if self._stuck is not None:
            raise ContextClosed("the step can't go on: " + self._stuck[1].hint.text.removeprefix("Hint: "))
        if self._closed:
            raise ContextClosed(self._closed)


def _is_same(known: AttemptRecord, member: SubMember) -> bool:
    return known.tool_name == member.call.tool_name and known.arguments == member.arguments


def _is_final(entry: AttemptRecord) -> bool:
    """Whether nothing takes a call's effect back."""
    return (
        entry.effect_class is EffectClass.IRREVERSIBLE
        and entry.state in (AttemptState.COMPLETED, AttemptState.IN_DOUBT)
        and not entry.undo_registered
    )
