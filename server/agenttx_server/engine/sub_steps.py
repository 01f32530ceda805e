"""What journals of running steps share: undo in the middle of a step, and the rows that say so."""

from __future__ import annotations

from collections.abc import Sequence

from agenttx_server.engine import json_values
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.group_run import GroupRun, Member
from agenttx_server.engine.kept_effects import also_kept
from agenttx_server.engine.late_tools import GivenUp, LateTools
from agenttx_server.engine.ports import StepRemoval, SubStepCall
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    KeptEffect,
    SubStepPlace,
    ToolDescription,
    TransactionStatus,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.requests import StepCall
from agenttx_server.engine.saga import Saga
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.step_journal import StepJournal
from agenttx_server.engine.sub_step_run import SubStepRun
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows, TransactionWriter

__all__ = ["SubSteps", "undo_of"]


def undo_of(transaction: Transaction, attempt: AttemptRecord) -> list[UndoRecord]:
    """Return the undo actions that an attempt registered, newest first, late ones left out."""
    at = attempt.step_id, attempt.sub_step, attempt.attempt
    return [
        undo
        for _, undo in sorted(transaction.undo.items(), reverse=True)
        if (undo.step_id, undo.sub_step, undo.attempt) == at and not undo.late
    ]


class SubSteps:
    """Makes journals, and does for them what is not about one call."""

    def __init__(
        self, services: EngineServices, writer: TransactionWriter, saga: Saga, late: LateTools
    ) -> None:
        self._services = services
        self._writer = writer
        self._saga = saga
        self._late = late

    def journal(self, run: GroupRun, member: Member) -> StepJournal:
        """Return the journal of a member that begins to run."""
        return StepJournal(self, run, member)

    def call(self, call: SubStepCall, arguments: str) -> StepCall:
        """Return a call as the run of a tool knows it."""
        return StepCall(call.tool_name, arguments, timeout_us=call.timeout_us)

    def describe(self, owner: str, call: SubStepCall) -> ToolDescription | None:
        """Return an owner's tool that a call is of; a function is one that is started again."""
        if call.function is None:
            return self._services.tools_of(owner).describe(call.tool_name)
        return ToolDescription(call.tool_name, "", "{}", EffectClass.TRANSACTIONAL, restartable=True)

    async def is_same_step(self, transaction: Transaction, member: Member) -> bool:
        """Whether a member is the call for which its step's sub-steps were made."""
        attempts = await attempts_of_step(
            self._services.store, transaction.record.transaction_id, member.step_id
        )
        earlier = [attempt for attempt in attempts if attempt.attempt < member.attempt] or attempts
        if not earlier:
            return True
        last = earlier[-1]
        return last.tool_name == member.call.tool_name and (
            (last.resolved_arguments or last.arguments) == (member.resolved_text or member.arguments)
        )

    async def adopt(self, run: GroupRun, member: Member) -> list[AttemptRecord]:
        """Have a step take over the calls that another one made; they are its own from now on, durably."""
        origin = member.adopts
        if origin is None:
            return []
        transaction = run.transaction
        record = transaction.record
        stored = await self._services.store.load_journal(origin.transaction_id, origin.step_id)
        taken = []
        for entry in stored.sub_steps:
            if entry.state not in (AttemptState.COMPLETED, AttemptState.EXECUTING):
                continue
            place = entry.adopted or SubStepPlace(origin.transaction_id, origin.step_id, entry.sub_step)
            edges = [replace(edge, to_step=member.step_id) for edge in entry.edges]
            taken.append(
                replace(
                    entry,
                    step_id=member.step_id,
                    group_first=run.first,
                    group_size=run.size,
                    epoch=record.epoch,
                    generation=record.generation,
                    adopted=place,
                    # Of another transaction the steps are others.
                    edges=tuple(edges) if origin.transaction_id == record.transaction_id else (),
                )
            )
        if taken:
            rows = Rows(sub_steps=taken)
            run.add_intent(member, rows)
            await self._writer.write(
                transaction,
                rows,
                has_sub_steps=True,
                open_group=run.steps,
                status=TransactionStatus.EXECUTING,
            )
            for entry in taken:
                transaction.sub_step_counts[(entry.step_id, entry.sub_step)] = entry.attempt
        return taken

    async def undo(self, transaction: Transaction, attempt: AttemptRecord) -> bool:
        """Run the undo of one sub-step; return whether all of it is done."""
        attempt = _origin_of(transaction, attempt) or attempt
        owed = [
            undo
            for undo in undo_of(transaction, attempt)
            if undo.state in (UndoState.PENDING, UndoState.FAILED)
        ]
        outcomes = await self._saga.run(transaction, owed)
        return all(undo.state is UndoState.DONE for undo in outcomes)

    async def forget(
        self, run: GroupRun, member: Member, entries: Sequence[AttemptRecord]
    ) -> list[AttemptRecord]:
        """Make it durable that sub-steps count no more, their undo having run; return them so."""
        transaction = run.transaction
        rows = Rows()
        run.add_intent(member, rows)
        now = self._services.clock.now()
        kept = [effect for entry in entries for effect in _kept(transaction, entry)]
        origins = [origin for entry in entries if (origin := _origin_of(transaction, entry)) is not None]
        superseded = [
            replace(entry, state=AttemptState.SUPERSEDED, ended_at=entry.ended_at or now)
            for entry in [*entries, *origins]
        ]
        for record in superseded:
            rows.sub_steps.append(record)
            rows.removals.append(StepRemoval(record.step_id, record.sub_step))
            rows.event(
                EventType.STEP_SUPERSEDED,
                record.step_id,
                record.attempt,
                record.sub_step,
                tool_name=record.tool_name,
            )
        await self._writer.write(
            transaction, rows, kept_effects=also_kept(transaction.record.kept_effects, kept)
        )
        for origin in origins:
            transaction.forget_sub_step(origin.step_id, origin.sub_step)
        return superseded[: len(entries)]

    def rebuild_node(
        self, transaction: Transaction, member: Member, entries: Sequence[AttemptRecord]
    ) -> None:
        """Have the graph know of a running step what its arguments and these sub-steps say, and no more."""
        graph = transaction.graph
        graph.discard(member.step_id)
        arguments = json_values.load(member.resolved_text or "null")
        graph.restore(member.step_id, arguments=arguments, edges=member.edges)
        transaction.extend_graph(entries)

    async def owe_late_undo(self, transaction: Transaction, run: SubStepRun, record: AttemptRecord) -> None:
        """Owe the undo of a failed call once more if its tool still runs, for when that has ended."""
        tool = run.member.outlived
        if tool is None or tool.done():
            return
        copies = transaction.owe_once_more(reversed(undo_of(transaction, record)))
        if copies:
            await self._writer.write(transaction, Rows(undo=copies))
            self._late.await_tool(transaction.record, tool, GivenUp(record, copies, is_owed=True))

    def await_tool(self, transaction: Transaction, run: SubStepRun, record: AttemptRecord) -> None:
        """See to what the tool of a call in doubt does that still runs."""
        tool = run.member.outlived
        if tool is not None and not tool.done():
            self._late.await_tool(transaction.record, tool, GivenUp(record, undo_of(transaction, record)))


def _origin_of(transaction: Transaction, entry: AttemptRecord) -> AttemptRecord | None:
    """Return the call that was adopted as this one, if it was made in the same transaction and stands there."""
    place = entry.adopted
    if place is None or place.transaction_id != transaction.record.transaction_id:
        return None
    return replace(entry, step_id=place.step_id, sub_step=place.sub_step, adopted=None)


def _kept(transaction: Transaction, entry: AttemptRecord) -> list[KeptEffect]:
    if entry.effect_class is not EffectClass.IDEMPOTENT or undo_of(transaction, entry):
        return []
    if entry.state not in (AttemptState.COMPLETED, AttemptState.EXECUTING):
        return []
    reason = "its step did not ask for it when it was run again, and it has no registered undo"
    return [
        KeptEffect(
            entry.step_id, entry.attempt, entry.tool_name, EffectClass.IDEMPOTENT, reason, entry.sub_step
        )
    ]
