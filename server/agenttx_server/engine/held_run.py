"""Runs the members of a held group one by one, each when its owner asks; its outcome is then durable.

Outcomes that are there at the same time are one write: those of one turn of the event loop, and, where writes of a
transaction wait for one another, those that come while the one before is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agenttx_server.engine import failure_text, json_values
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.group_run import GroupRun, Member
from agenttx_server.engine.ports import AdoptedStep, ExtraRows, StepFunction
from agenttx_server.engine.records import (
    AttemptState,
    DependencyKind,
    Edge,
    EffectClass,
    HeldState,
    Hint,
    ToolDescription,
    TransactionStatus,
)
from agenttx_server.engine.requests import StepCall
from agenttx_server.engine.transaction import Transaction
from agenttx_server.engine.transaction_writer import Rows

__all__ = ["HeldEdge", "HeldMember", "HeldRun", "MemberOutcome", "RowsFor", "held_status"]


@dataclass(frozen=True, slots=True)
class HeldEdge:
    """What a member took, under ``target_key``, of what step ``from_step`` gave under ``source_key``."""

    from_step: int
    source_key: str
    target_key: str


@dataclass(frozen=True, slots=True)
class HeldMember:
    """One member of a held group: a call of the tool ``name``, or of ``function``, which ``name`` then only names.

    ``arguments`` is JSON text, taken as it is; ``edges`` are all of its dependencies. ``timeout_us`` None is
    the tool's own. ``adopts`` is the withdrawn step whose calls it takes over. ``learned`` gives, once its code has
    ended, the dependencies that it turned out to have, in place of ``edges``. ``metadata`` is what the tool is told
    beside its arguments, as a JSON object, empty for nothing; it is kept nowhere.
    """

    name: str
    arguments: str = "{}"
    edges: tuple[HeldEdge, ...] = ()
    function: StepFunction | None = None
    timeout_us: int | None = None
    adopts: AdoptedStep | None = None
    learned: Callable[[], Sequence[HeldEdge]] | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class MemberOutcome:
    """How one run of a member ended.

    ``state`` is COMPLETED (``output`` is JSON text), FAILED (``hint``; ``failed_sub_step`` if it was one's),
    WAITING (``payload`` is what its code raised StepWaits with) or IN_DOUBT. ``only_read``: it and all that it called changed
    nothing, inside or outside.
    """

    step_id: int
    attempt: int
    state: AttemptState
    output: str | None = None
    hint: Hint | None = None
    failed_sub_step: int = 0
    payload: object = None
    only_read: bool = False


RowsFor = Callable[[MemberOutcome], Sequence[ExtraRows]]


def held_status(transaction: Transaction) -> TransactionStatus:
    """Return the status that a transaction has while a held group is open."""
    if transaction.is_executing:
        return TransactionStatus.EXECUTING
    return TransactionStatus.IN_DOUBT if transaction.in_doubt_steps() else TransactionStatus.ACTIVE


@dataclass(slots=True)
class _Ended:
    """What is to be written of a member that has ended. ``may_be_kept`` is that it can wait for the group's end."""

    step_id: int
    rows: Rows
    extra: Sequence[ExtraRows]
    may_be_kept: bool


class HeldRun(GroupRun):
    """The runs of an open held group's members within one turn. Made by the turn."""

    rows_for: dict[int, RowsFor]
    kept: dict[int, Rows]
    keeps: dict[int, Callable[[], bool]]
    given: dict[int, HeldMember]
    ended: list[_Ended]
    writing: asyncio.Task[None] | None

    async def run_step(self, step_id: int, given: HeldMember) -> MemberOutcome:
        """Run a member once more; its outcome is durable when this returns, unless it is kept for the close."""
        member = self._held_member(step_id, given)
        self.members = [item for item in self.members if item.step_id != step_id] + [member]
        self.given[step_id] = given
        if given.function is None and member.refused is None:
            member.tool = await self._find_tool(member)
        self._prepare_held(member, given)
        self._unfinished += 2  # no outcome is left for a settlement
        await self._run_member(member)
        self._unfinished -= 1
        return self._outcome_of(member)

    def _held_member(self, step_id: int, given: HeldMember) -> Member:
        text = given.arguments or "{}"
        member = Member(
            step_id,
            StepCall(given.name, text, timeout_us=given.timeout_us, metadata=given.metadata),
            "",
            text,
            function=given.function,
            adopts=given.adopts,
        )
        try:
            member.parsed = json_values.parse(text)
            member.arguments = json_values.canonical(member.parsed)
        except json_values.ValueRefused as refused:
            member.refused = failure_text.refused_arguments(refused, text)
        member.resolved, member.resolved_text = member.parsed, member.arguments
        return member

    def _prepare_held(self, member: Member, given: HeldMember) -> None:
        transaction, step_id = self.transaction, member.step_id
        member.started_at = self._services.clock.now()
        member.attempt = transaction.attempt_counts.get(step_id, 0) + 1
        member.edges = self._edges(step_id, given.edges)
        if given.function is not None:
            member.tool = ToolDescription(given.name, "", "{}", EffectClass.TRANSACTIONAL, restartable=True)
        elif member.refused is None:
            if member.tool is None:
                member.refused = self._no_tool(member)
            elif self._gate.needs_approval(member.tool, member.parsed):
                member.refused = self._approval_missing(member)
            else:
                member.passed = member.tool
        transaction.graph.discard(step_id)
        transaction.graph.restore(step_id, arguments=member.parsed, edges=member.edges)
        transaction.begin_attempt(
            step_id,
            member.attempt,
            request_id="",
            tool_name=given.name,
            effect_class=member.effect_class,
            group=(self.first, self.size),
            started_at=member.started_at,
        )
        if step_id in transaction.sub_steps:
            self._journal_of(member)

    def _edges(self, step_id: int, edges: Sequence[HeldEdge]) -> tuple[Edge, ...]:
        steps = self.transaction.steps
        return tuple(
            sorted(
                Edge(edge.from_step, step_id, edge.source_key, edge.target_key, DependencyKind.EXPLICIT)
                for edge in edges
                if edge.from_step in steps and edge.from_step < self.first
            )
        )

    def _learn_edges(self, member: Member) -> None:
        """Take what a member's code turned out to depend on, before anybody decides on how it ended."""
        given = self.given[member.step_id]
        edges = member.edges if given.learned is None else self._edges(member.step_id, given.learned())
        if edges == member.edges:
            return
        member.edges = edges
        graph = self.transaction.graph
        graph.discard(member.step_id)
        graph.restore(member.step_id, arguments=member.parsed, edges=edges)

    def _approval_missing(self, member: Member) -> failure_text.StepFailure:
        return failure_text.needs_step_of_its_own(member.call.tool_name)

    def _may_wait(self, member: Member) -> bool:
        return True

    def _sees_before(self, member: Member) -> int:
        held = self.transaction.record.held or HeldState()
        return member.step_id if member.step_id in held.losers else self.first

    async def _make_durable(self, member: Member) -> None:
        self._learn_edges(member)
        outcome = self._outcome_of(member)
        rows = Rows()
        self.add_rows(member, rows)
        record = self.record_of(member)
        rows.attempts.append(record)
        extra = self.rows_for[member.step_id](outcome)
        self.transaction.finish_attempt(record)
        member.durable = True
        may_be_kept = member.state is AttemptState.COMPLETED and not rows.staged and not member.written_ahead
        if may_be_kept and not self.ended and self.keeps[member.step_id]():
            self.kept[member.step_id] = rows
            return
        self.ended.append(_Ended(member.step_id, rows, extra, may_be_kept))
        if self.writing is None:
            self.writing = self._tasks.spawn(self._write_ended())
        await asyncio.shield(self.writing)

    async def _write_ended(self) -> None:
        """Write what has ended, with what ends meanwhile; or keep it for the group's end, if that comes next."""
        before = self.transaction.last_write
        if before is not None and not before.done():
            await asyncio.wait((before,))
        self.writing, ended, self.ended = None, self.ended, []
        if all(item.may_be_kept for item in ended) and self.keeps[ended[-1].step_id]():
            self.kept |= {item.step_id: item.rows for item in ended}
            return
        rows = Rows()
        for item in ended:
            rows.take(item.rows)
            rows.extra += item.extra
        await self._writer.write(
            self.transaction, rows, open_group=(self.first, self.size), status=held_status(self.transaction)
        )

    def _outcome_of(self, member: Member) -> MemberOutcome:
        failure = member.failure
        return MemberOutcome(
            member.step_id,
            member.attempt,
            member.state,
            member.output,
            failure.hint if failure else None,
            failure.sub_step if failure else 0,
            member.waits.payload if member.waits is not None else None,
            _only_read(member),
        )


def _only_read(member: Member) -> bool:
    """Whether a member and its sub-steps changed nothing, in any run of its code that the journal knows of."""
    context = member.context
    acts = member.function is None and member.effect_class is not EffectClass.READ_ONLY
    if acts or (context is not None and (context.writes or context.effects)):
        return False
    return member.journal is None or member.journal.only_read
