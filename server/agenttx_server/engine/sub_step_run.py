"""Runs the tool of one sub-step: as a step's, but of its own number, and without a turn at the transaction.

What is written carries the number of the sub-step; the step that made it gets its intent row
with the first write. It ends durable: succeeded, or failed and undone, or in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agenttx_server.engine import failure_text
from agenttx_server.engine.frozen import changed, replace
from agenttx_server.engine.group_run import GroupRun, Member, Outcome
from agenttx_server.engine.kept_effects import also_kept, kept_by_cancelling
from agenttx_server.engine.ports import SubStepCall
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    KeptEffect,
    SubStepPlace,
    ToolDescription,
    TransactionStatus,
)
from agenttx_server.engine.state_overlay import StateOverlay
from agenttx_server.engine.transaction_writer import Rows

if TYPE_CHECKING:
    from agenttx_server.engine.step_journal import StepJournal

__all__ = ["SubMember", "SubStepRun", "as_sub_step"]


@dataclass(slots=True)
class SubMember(Member):
    """A sub-step on its way: the ``ordinal``-th call of ``scope``; ``inner_scope`` is that of calls made inside it."""

    scope: str = ""
    ordinal: int = 0
    inner_scope: str = ""
    adopted: SubStepPlace | None = None


class SubStepRun(GroupRun):
    """One execution of a sub-step of ``parent``'s member."""

    def __init__(self, parent: GroupRun, owner: Member, member: SubMember, overlay: StateOverlay) -> None:
        super().__init__(
            parent._services,
            parent._writer,
            parent._tasks,
            parent.transaction,
            [member],
            [],
            parent._lease,
            size=parent.size,
            sub_steps=parent._sub_steps,
            held_under=parent.held_under,
        )
        self.first = parent.first
        self.member = member
        self._unfinished = 1
        self._parent = parent
        self._owner = owner
        self._overlay = overlay

    async def execute(self) -> AttemptRecord:
        """Run the call to its outcome and make that durable. Raises what the store raises."""
        member = self.member
        if member.refused is None and member.tool is None:
            member.tool = await self._find_tool(member)
            if member.tool is None:
                member.refused = self._no_tool(member)
        self._ask_gate(member)
        self.transaction.note_sub_step(self.record_of(member))
        await self._run_member(member)
        rows = Rows()
        self._parent.add_intent(self._owner, rows)
        self.add_rows(member, rows)
        record = self.record_of(member)
        rows.sub_steps.append(record)
        await self._write(rows, kept_effects=self._kept())
        return record

    def _ask_gate(self, member: SubMember) -> None:
        """Refuse a call that needs approval, now that its tool is known; one that goes on is asked about as it runs."""
        if member.refused is not None or member.tool is None or member.function is not None:
            return
        if member.effect_possible:
            return
        if self._gate.needs_approval(member.tool, member.parsed):
            member.refused = self._approval_missing(member)
        else:
            member.passed = member.tool

    def _is_approved(self, member: Member) -> bool:
        return False  # an approval is of a step; one of the step that makes the call is not for this

    def _approval_missing(self, member: Member) -> failure_text.StepFailure:
        return failure_text.needs_step_of_its_own(member.call.tool_name)

    @property
    def is_irreversible(self) -> bool:
        """Whether only a person stops it."""
        return self.member.effect_class is EffectClass.IRREVERSIBLE

    def record_of(self, member: Member, response: str | None = None) -> AttemptRecord:
        """Return the sub-step's row as it stands."""
        assert isinstance(member, SubMember)
        record = super().record_of(member, response)
        return as_sub_step(record, member)

    def add_intent(self, member: Member, rows: Rows) -> None:
        """Add the sub-step's intent, behind that of its step."""
        self._parent.add_intent(self._owner, rows)
        if member.written_ahead:
            return
        member.written_ahead = True
        rows.sub_steps.append(self.record_of(member))
        rows.event(
            EventType.STEP_STARTED,
            member.step_id,
            member.attempt,
            member.sub_step,
            tool_name=member.call.tool_name,
            effect_class=member.effect_class,
        )

    async def _write_ahead(self, member: Member) -> None:
        if member.written_ahead:
            return
        rows = Rows()
        self.add_intent(member, rows)
        await self._write(rows)

    async def _write(self, rows: Rows, **head: Any) -> None:
        await self._writer.write(
            self.transaction,
            rows,
            open_group=(self.first, self.size),
            status=TransactionStatus.EXECUTING,
            has_sub_steps=True,
            **head,
        )

    def _may_wait(self, member: Member) -> bool:
        return member.function is not None

    def _sees_before(self, member: Member) -> int:
        return self._parent._sees_before(self._owner)

    def _context_of_sub_step(self, member: Member) -> dict[str, Any]:
        return {"sub_step": member.sub_step, "beneath": self._overlay}

    def _journal_of(self, member: Member) -> StepJournal:
        assert self._owner.journal is not None
        return self._owner.journal

    def _begin_calls(self, member: Member) -> None:
        self._journal_of(member).begin_run(self.member.inner_scope)

    async def _make_sub_step(self, member: Member, call: SubStepCall) -> str:
        return await self._journal_of(member).step(
            call if call.scope else replace(call, scope=self.member.inner_scope)
        )

    async def _run_once(self, member: Member, tool: ToolDescription) -> Outcome:
        outcome = await super()._run_once(member, tool)
        if outcome.state is AttemptState.WAITING:
            outcome = Outcome(AttemptState.SUPERSEDED)  # it is started again when its step is
        ruled = await self._journal_of(member).end_inner(self.member.inner_scope, outcome.state)
        return outcome if ruled is None else Outcome(ruled[0], failure=ruled[1])

    async def _idempotency_key(self, member: Member, tool: ToolDescription) -> str:
        """Return the key: the last attempt's where the same call is repeated and nothing was undone."""
        if member.attempt > 1 and tool.effect_class is not EffectClass.COMPENSATABLE:
            attempts = await self._services.store.list_sub_step_attempts(
                self.transaction.record.transaction_id, member.step_id, member.sub_step
            )
            last = next((earlier for earlier in reversed(attempts) if earlier.idempotency_key), None)
            if (
                last is not None
                and last.tool_name == member.call.tool_name
                and last.arguments == member.arguments
                and not last.undo_registered
            ):
                return last.idempotency_key
        return self._services.ids.new_id()

    def _kept(self) -> tuple[KeptEffect, ...]:
        """The effects kept so far, and that of this call if it may have happened though it was cancelled."""
        has_failed = self.member.state is AttemptState.FAILED
        return also_kept(
            self.transaction.record.kept_effects, kept_by_cancelling(self.member) if has_failed else ()
        )

    def failure(self) -> failure_text.StepFailure:
        """Return why the sub-step failed, as its step's failure if that lets it through."""
        failure = self.member.failure
        assert failure is not None
        return failure_text.StepFailure(failure.hint, failure.raw_error, self.member.sub_step)


def as_sub_step(record: AttemptRecord, member: SubMember) -> AttemptRecord:
    """Return the row of a sub-step, made from one of its step's kind."""
    return changed(
        record,
        {
            "sub_step": member.sub_step,
            "scope": member.scope,
            "ordinal": member.ordinal,
            "adopted": member.adopted,
            "failed_sub_step": 0,
            "resolved_arguments": None,
        },
    )
