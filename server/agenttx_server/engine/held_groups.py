"""Held groups, for the layer that owns runs: groups whose members fail, wait and are run again as that layer says.

A turn has the transaction's lock: what is done in one is in one order, and nobody else moves the transaction.
It may end while the group is open; the next one, here or on another server, finds what is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agenttx_server.engine import failure_text, limits, refusals
from agenttx_server.engine.attempt_history import attempts_of_step
from agenttx_server.engine.errors import EngineError, FieldViolation, InvalidRequest, PreconditionFailed
from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.engine.held_run import (
    HeldMember,
    HeldRun,
    MemberOutcome,
    RowsFor,
    held_status,
)
from agenttx_server.engine.kept_effects import also_kept
from agenttx_server.engine.owned_tasks import OwnedTasks
from agenttx_server.engine.ports import ExtraRows, StepRemoval, TransactionStore, WriteReceipt
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    EventType,
    HeldState,
    KeptEffect,
    OnUndoFailure,
    PendingRewind,
    RewindPurpose,
    ServerId,
    TransactionRecord,
    TransactionStatus,
    UndoState,
)
from agenttx_server.engine.requests import CommitAnswer, RewindAnswer, RewindRequest, RollbackRequest
from agenttx_server.engine.rewinding import RewindResult
from agenttx_server.engine.standing_members import StandingMembers, uses_by_step
from agenttx_server.engine.transaction import LiveStep, Transaction
from agenttx_server.engine.transaction_cache import CacheEntry
from agenttx_server.engine.transaction_writer import Rows

if TYPE_CHECKING:
    from agenttx_server.engine.held_parts import HeldParts
    from agenttx_server.engine.services import EngineServices

__all__ = ["Closed", "Conflicted", "HeldTurn", "can_be_group"]

_DONE = (AttemptState.COMPLETED, AttemptState.WITHDRAWN)


@dataclass(frozen=True, slots=True)
class Closed:
    """The group is closed: ``withdrawn`` are the members that were not finished; ``answer`` is the commit's, if one was made."""

    withdrawn: tuple[int, ...] = ()
    answer: CommitAnswer | None = None


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Members that touched what a lower one did were undone: they are to be run again, in this order, one by one.

    ``failed`` could not be undone and stand as failed. ``held`` is how the rewind of the group stands that an undo
    action holds which failed.
    """

    losers: tuple[int, ...]
    failed: tuple[int, ...] = ()
    held: RewindResult | None = None


class HeldTurn:
    """One turn at a run's transaction. Raises what the store raises; the turn is over then."""

    def __init__(
        self, parts: HeldParts, entry: CacheEntry, transaction: Transaction, held_under: ServerId
    ) -> None:
        self._parts = parts
        self._entry = entry
        self._transaction = transaction
        self._held_under = held_under
        self._members: dict[int, HeldMember] = {}
        self._run: HeldRun | None = None
        self._started: HeldRun | None = None
        self._tasks: OwnedTasks = parts.tasks
        self._running: set[asyncio.Task[MemberOutcome]] = set()
        self._sent: asyncio.Future[WriteReceipt] | None = None
        if self.is_open:
            self._start(*self._group)

    # --- what stands ------------------------------------------------------------------------

    @property
    def record(self) -> TransactionRecord:
        """The transaction's head."""
        return self._transaction.record

    @property
    def is_open(self) -> bool:
        """Whether a held group is open."""
        return self.record.open_group is not None and self.record.held is not None

    @property
    def steps(self) -> range:
        """The steps of the open group; empty if none is."""
        first, size = self._group if self.is_open else (self.record.next_step_id, 0)
        return range(first, first + size)

    def member(self, step_id: int) -> LiveStep | None:
        """Return how a member stands; None: it has not run, or is to be run again."""
        return self._transaction.steps.get(step_id)

    async def attempt(self, step_id: int) -> AttemptRecord | None:
        """Return a member's attempt in full."""
        live = self._transaction.steps.get(step_id)
        if live is None:
            return None
        attempts = await attempts_of_step(self._parts.services.store, self.record.transaction_id, step_id)
        return next((item for item in attempts if item.attempt == live.attempt), None)

    # --- the group --------------------------------------------------------------------------

    async def open(self, members: Sequence[HeldMember], extra: Sequence[ExtraRows] = ()) -> int:
        """Open a group as the transaction's next steps; return the first. Durable, with rows of the owner."""
        if self.is_open or self.record.status.is_terminal or self.record.pending_rewind is not None:
            raise RuntimeError("no group can be opened now")
        first, size = self.record.next_step_id, len(members)
        self._check_members(self.record.principal, first, members, size)
        await self._write(
            Rows(extra=list(extra)),
            open_group=(first, size),
            held=HeldState(),
            status=TransactionStatus.ACTIVE,
        )
        self._members = dict(enumerate(members, start=first))
        self._start(first, size)
        return first

    async def extend(self, members: Sequence[HeldMember], extra: Sequence[ExtraRows] = ()) -> int:
        """Add members to the open group, behind those that it has; return the first. Nothing may run meanwhile."""
        first, size = self._group
        if not self.is_open or self._running or (self._run is not None and self._run.kept):
            raise RuntimeError("the group can't be extended now")
        added = first + size
        self._check_members(self.record.principal, added, members, size + len(members))
        await self._write(Rows(extra=list(extra)), open_group=(first, size + len(members)))
        self._members |= dict(enumerate(members, start=added))
        self._start(first, size + len(members))
        return added

    def give(self, step_id: int, member: HeldMember) -> None:
        """Say, in a later turn, what a member of the open group is."""
        self._check_member(step_id)
        self._members[step_id] = member

    async def run(
        self,
        step_id: int,
        extra: RowsFor = lambda outcome: (),
        *,
        keeps: Callable[[], bool] = lambda: False,
    ) -> MemberOutcome:
        """Run a member that has not succeeded, once; several may run side by side.

        Its outcome is durable when this returns, with the rows that ``extra`` gives for it. Where ``keeps`` says so,
        asked behind ``extra``, a success that nothing was written ahead for is left to the next write of the turn,
        without those rows: it is lost if the turn ends before. One that has failed is undone first, as by
        :meth:`undo_failed`, which raises what that raises.
        """
        self._check_member(step_id)
        run = self._run
        live = self.member(step_id)
        if run is None or (live is not None and live.state in (*_DONE, AttemptState.IN_DOUBT)):
            raise RuntimeError(f"step {step_id} can't be run now")
        if any(task.get_name() == f"held {step_id}" for task in self._running):
            raise RuntimeError(f"step {step_id} runs already")
        losers = (self.record.held or HeldState()).losers
        if step_id in losers and any(lower < step_id and not self._is_done(lower) for lower in losers):
            raise RuntimeError(f"step {step_id} is run again after lower ones that lost too")
        await self.undo_failed(step_id)
        run.rows_for[step_id] = extra
        run.keeps[step_id] = keeps
        task = self._tasks.spawn(
            self._parts.steps.guarded(run, run.run_step(step_id, self._members[step_id]))
        )
        task.set_name(f"held {step_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def undo_failed(self, step_id: int) -> None:
        """Undo what a member's failed attempt did itself, before the member is run again; nothing for any other.

        Its calls stand: the next attempt is answered from them. So does what may be repeated (IDEMPOTENT). Raises
        PreconditionFailed (ROLLBACK_INCOMPLETE) where undo failed: the member stays failed until that is settled.
        """
        live = self.member(step_id)
        if (
            live is None
            or live.state is not AttemptState.FAILED
            or live.effect_class is EffectClass.IDEMPOTENT
        ):
            return
        if not await self._undo_step(step_id, calls=False):
            raise PreconditionFailed(
                f"what step {step_id} did before it failed could not be undone, so it isn't run again",
                reason="ROLLBACK_INCOMPLETE",
                metadata={"step_id": str(step_id), "tool_name": live.tool_name},
            )

    def cancel(self, step_id: int, why: str) -> None:
        """Stop a member that runs; its :meth:`run` returns how that was settled."""
        if self._run is not None:
            self._run.cancel_step(step_id, why)

    async def let_go(self, step_id: int, extra: Sequence[ExtraRows] = ()) -> bool:
        """Run the undo of a failed member, which then counts as ended; False if undo failed and holds the group."""
        self._check_member(step_id)
        live = self.member(step_id)
        if live is None or live.state is not AttemptState.FAILED:
            raise RuntimeError(f"step {step_id} has not failed")
        if not await self._undo_step(step_id):
            await self._hold(f"member {step_id} could not be undone")
            return False
        held = self.record.held or HeldState()
        rows = Rows(extra=list(extra), removals=[StepRemoval(step_id)])
        await self._supersede_calls(step_id, rows)
        await self._write(rows, held=replace(held, let_go=(*held.let_go, step_id)))
        return True

    async def give_up(self, step_id: int, *, leave_out: bool) -> bool:
        """Undo a member that has succeeded, whose result isn't wanted; False if undo failed and holds the group.

        It is to be run again, as if it had not run; with ``leave_out`` it counts as ended. Raises
        PreconditionFailed (IRREVERSIBLE_STEP) where it did what nothing takes back.
        """
        self._check_member(step_id)
        live = self.member(step_id)
        held = self.record.held or HeldState()
        if live is None or live.state is not AttemptState.COMPLETED:
            raise RuntimeError(f"step {step_id} has not succeeded")
        if self._is_final_step(step_id):
            raise PreconditionFailed(
                f"step {step_id} can't be undone, so its result stays",
                reason="IRREVERSIBLE_STEP",
                metadata={"step_id": str(step_id), "tool_name": live.tool_name},
            )
        if leave_out:
            held = replace(held, let_go=(*held.let_go, step_id))
        return (await self._undo_losers([step_id], [], held, early=False, behind=False)).held is None

    async def settle_conflicts(self) -> tuple[int, ...]:
        """Undo members that touched what a lower one did, before the group is closed early; return them.

        Of failed ones, too, nothing that they did themselves is left. Raises PreconditionFailed (ROLLBACK_INCOMPLETE) where undo failed, and holds the group.
        """
        verdict = await self._judge(early=True)
        if verdict is not None and verdict.held is not None:
            reason = "ROLLBACK_INCOMPLETE"
            raise PreconditionFailed("an undo action failed, and holds the run", reason=reason)
        let_go = (self.record.held or HeldState()).let_go
        for step in self.steps:
            if step not in let_go:
                await self.undo_failed(step)
        return () if verdict is None else (*verdict.losers, *verdict.failed)

    async def hand_over(self, run_id: str, extra: Sequence[ExtraRows] = ()) -> None:
        """Make the transaction another run's, with rows of the owner; an open group is closed early with it.

        Members that conflict are to be settled before (:meth:`settle_conflicts`). The turn is over then. Raises
        PreconditionFailed (TRANSACTION_ENDED).
        """
        refusals.check_not_ended(self.record)
        if not self.is_open:
            await self._write(Rows(extra=list(extra)), run_id=run_id)
        elif not isinstance(await self.close(extra, early=True, run_id=run_id), Closed):
            raise RuntimeError("a member could not be undone")

    @property
    def store(self) -> TransactionStore:
        """Where the transaction is kept."""
        return self._parts.services.store

    def takes(self, members: Sequence[HeldMember]) -> bool:
        """Whether these can be the group behind the open one."""
        return can_be_group(self._parts.services, self.record.principal, self.steps.stop, members)

    async def close(
        self,
        extra: Sequence[ExtraRows] = (),
        *,
        early: bool = False,
        commit: bool = False,
        opens: Sequence[HeldMember] = (),
        run_id: str = "",
        waits: bool = True,
    ) -> Closed | Conflicted:
        """Close the group: its steps are settled, and the next ones may follow. One commit, unless members conflict.

        ``early`` withdraws members that have not succeeded: their calls stand, for a later step to adopt.
        ``commit`` commits the transaction with it. ``opens``, which :meth:`takes` takes, is opened as the next group.
        Without ``waits`` that may be durable later, as :meth:`settled` says: unless the next group could read of
        the store what is written. Each later write of the transaction waits for it, what is written ahead too.
        """
        steps = list(self.steps)
        unfinished = [step for step in steps if not self._is_done(step)]
        if self._run is None or (unfinished and not early):
            raise RuntimeError(f"steps {unfinished} are not finished")
        verdict = await self._judge(early=early)
        if verdict is not None and (not early or verdict.held is not None):
            return verdict
        lost = list(verdict.losers) if verdict is not None else []
        rows = self._kept_rows()
        for step in unfinished:
            live = self.member(step)
            if live is None:
                continue
            attempt = await self.attempt(step)
            if attempt is not None:
                withdrawn = replace(attempt, state=AttemptState.WITHDRAWN, ended_at=self._now())
                rows.attempts.append(withdrawn)
                self._transaction.finish_attempt(withdrawn)
        following = steps[-1] + 1
        rows.extra += extra
        ended = await self._completed(steps)
        head: dict[str, Any] = {
            "next_step_id": following,
            "furthest_step": max(self.record.furthest_step, following - 1),
            "open_group": (following, len(opens)) if opens else None,
            "held": HeldState() if opens else None,
            **({"run_id": run_id} if run_id else {}),
        }
        self._run = None
        if commit:
            answer = await self._parts.commits.commit_run(self._transaction, rows, **head)
            return Closed(tuple(sorted({*unfinished, *lost})), answer)
        head["status"] = TransactionStatus.ACTIVE
        if waits or not opens or rows.writes or rows.undo or self._transaction.write_failure is not None:
            await self._write(rows, **head)
        else:
            self._send(rows, head)
        self._transaction.settle_outputs(ended)
        if opens:
            self._members = dict(enumerate(opens, start=following))
            self._start(following, len(opens))
        return Closed(tuple(sorted({*unfinished, *lost})))

    async def settled(self) -> None:
        """Return once what was closed last is durable. Raises what the store raised for it."""
        if self._sent is not None:
            await asyncio.wait({self._sent})
            self._sent = None
            if self._transaction.write_failure is not None:
                raise self._transaction.write_failure

    def _send(self, rows: Rows, head: dict[str, Any]) -> None:
        writer, transaction = self._parts.writer, self._transaction
        self._sent = writer.queue(transaction, rows, head)
        self._sent.add_done_callback(lambda write: writer.ended(transaction, rows, write) and None)

    async def decide(self) -> RewindResult:
        """Have the rollback controller decide on the lowest failed member, and make its rewind, to the start of a group."""
        held = self.record.held or HeldState()
        ordered = [attempt for step in self.steps if (attempt := await self.attempt(step)) is not None]
        if self._run is None or not any(
            item.state is AttemptState.FAILED and item.step_id not in held.let_go for item in ordered
        ):
            raise RuntimeError("no member has failed")
        run, self._run = self._run, None
        return await self._parts.settlement.decide(
            self._transaction,
            run,
            ordered,
            self._kept_rows(run, dropped=True),
            frozenset(held.let_go),
            (),
            whole_groups=True,
        )

    # --- the transaction ----------------------------------------------------------------------

    async def write(self, extra: Sequence[ExtraRows]) -> None:
        """Write rows of the owner, and what was kept for the next write, guarded by the transaction's revision."""
        rows = self._kept_rows()
        rows.extra += extra
        await self._write(rows)

    async def rewind(
        self, to_step: int, reason: str = "", *, accept_irreversible: bool = False, dry_run: bool = False
    ) -> RewindAnswer:
        """Rewind to just before a step, as asked for by the run."""
        request = RewindRequest(
            self.record.transaction_id,
            to_step,
            reason,
            dry_run=dry_run,
            accept_irreversible=accept_irreversible,
        )
        if not dry_run:
            self._run = None
        return await self._parts.rewinds.rewind(self._transaction, request, "Rewind")

    async def roll_back(self, reason: str = "", *, accept_irreversible: bool = False) -> RewindAnswer:
        """Compensate everything and end the transaction."""
        self._run = None
        request = RollbackRequest(
            self.record.transaction_id, reason=reason, accept_irreversible=accept_irreversible
        )
        return await self._parts.rewinds.roll_back(self._transaction, request)

    async def commit(self, extra: Sequence[ExtraRows] = ()) -> CommitAnswer:
        """Commit the transaction, with rows of the owner in the same SQL commit. Raises CommitConflict."""
        if self.is_open:
            raise RuntimeError("a group is open")
        return await self._parts.commits.commit_run(self._transaction, Rows(extra=list(extra)))

    async def end(self) -> None:
        """Stop what runs and wait until it is durable; for whoever made the turn."""
        if self._run is not None:
            for task in list(self._running):
                self._run.cancel_step(int(task.get_name().removeprefix("held ")), "its run ended the turn")
        if self._running:
            await asyncio.wait(set(self._running))
        if self._sent is not None:
            await asyncio.wait({self._sent})
        # What was left to a later write of the turn, and none came, isn't durable, and memory has it as completed.
        is_ahead = self._started is not None and bool(self._started.kept)
        if is_ahead or self._transaction.write_failure is not None:
            self._entry.transaction = None

    # --- conflicts ----------------------------------------------------------------------------

    async def _judge(self, *, early: bool) -> Conflicted | None:
        """Undo members that touched what a lower one did, unless they ran after it on purpose; None if there are none."""
        steps = list(self.steps)
        if len(steps) == 1:
            return None
        held = self.record.held or HeldState()
        reads, writes = await self._parts.services.store.load_touched(
            self.record.transaction_id, steps[0], steps[-1]
        )
        kept = self._run.kept if self._run is not None else {}
        used = uses_by_step(
            [*reads, *(read for rows in kept.values() for read in rows.reads)],
            [*writes, *(write for rows in kept.values() for write in rows.writes)],
        )
        standing = StandingMembers()
        losers: list[int] = []
        failed: list[tuple[int, str, int]] = []
        for step in steps:
            live = self.member(step)
            use = used.get(step)
            if use is None or live is None or live.state is not AttemptState.COMPLETED:
                continue
            clash = None if step in held.losers else standing.clash(use)
            if clash is None:
                standing.add(step, use)
            elif self._is_final_step(step):
                failed.append((step, clash[1], clash[0]))
            else:
                losers.append(step)
        if not losers and not failed:
            return None
        if not early or losers or failed:
            return await self._undo_losers(losers, failed, held, early=early)
        return None

    async def _undo_losers(
        self,
        losers: list[int],
        failed: list[tuple[int, str, int]],
        held: HeldState,
        *,
        early: bool,
        behind: bool = True,
    ) -> Conflicted:
        await self._flush_kept()
        rows = Rows()
        kept: list[KeptEffect] = []
        for step in reversed(losers):
            if not await self._undo_step(step):
                result = await self._hold(f"member {step}, which lost a conflict, could not be undone")
                return Conflicted((), (), result)
        ran_behind = set(held.losers)
        for step in losers:
            attempt = await self.attempt(step)
            live = self.member(step)
            kept += [effect for effect in self._transaction.kept_effects(step) if effect.step_id == step]
            state = AttemptState.WITHDRAWN if early else AttemptState.SUPERSEDED
            if attempt is not None and live is not None:
                rows.attempts.append(replace(attempt, state=state, ended_at=self._now()))
                rows.event(EventType.STEP_SUPERSEDED, step, attempt.attempt, tool_name=attempt.tool_name)
            rows.removals.append(StepRemoval(step))
            await self._supersede_calls(step, rows)
            self._transaction.forget_step(step)
            if behind:
                ran_behind = {other for other in ran_behind if other < step} | {step}
        for step, key, lower in failed:
            attempt = await self.attempt(step)
            if attempt is not None:
                failure = failure_text.sibling_conflict(key, lower)
                lost = replace(attempt, state=AttemptState.FAILED, output=None, hint=failure.hint)
                rows.attempts.append(lost)
                self._transaction.finish_attempt(lost)
        record = self.record
        await self._write(
            rows,
            held=replace(held, losers=tuple(sorted(ran_behind))),
            kept_effects=also_kept(record.kept_effects, kept),
        )
        return Conflicted(tuple(losers), tuple(step for step, _, _ in failed))

    def _is_final_step(self, step_id: int) -> bool:
        """Whether a member did what nothing takes back."""
        pivot = self._transaction.pivot()
        if pivot is None or pivot.step_id < step_id:
            return False
        made = self._transaction.sub_steps.get(step_id, {}).values()
        live = self.member(step_id)
        classes = [item.effect_class for item in made] + ([live.effect_class] if live is not None else [])
        return EffectClass.IRREVERSIBLE in classes

    # --- parts --------------------------------------------------------------------------------

    @property
    def _group(self) -> tuple[int, int]:
        return self.record.open_group or (self.record.next_step_id, 1)

    def _start(self, first: int, size: int) -> None:
        self._run = self._started = run = self._parts.new_run(
            self._transaction, first, size, self._held_under
        )
        run.rows_for, run.kept, run.keeps, run.given = {}, {}, {}, {}
        run.ended, run.writing = [], None
        self._entry.running = run

    def _now(self) -> Any:
        return self._parts.services.clock.now()

    def _check_member(self, step_id: int) -> None:
        if not self.is_open or step_id not in self.steps:
            raise RuntimeError(f"step {step_id} is not of the open group")

    def _is_done(self, step_id: int) -> bool:
        live = self.member(step_id)
        held = self.record.held or HeldState()
        return step_id in held.let_go or (live is not None and live.state is AttemptState.COMPLETED)

    def _check_members(self, owner: str, first: int, members: Sequence[HeldMember], size: int) -> None:
        check_members(self._parts.services, owner, first, members, size)

    async def _write(self, rows: Rows, **head: Any) -> None:
        if self.is_open and "status" not in head:
            head["status"] = held_status(self._transaction)
        await self._parts.writer.write(self._transaction, rows, **head)

    def _kept_rows(self, run: HeldRun | None = None, *, dropped: bool = False) -> Rows:
        """Take what was kept for the group's end; what is dropped was never durable and isn't needed."""
        run = run or self._run
        rows = Rows()
        for step in sorted(run.kept) if run is not None else ():
            kept = run.kept[step] if run is not None else Rows()
            if dropped:
                continue
            rows.attempts += kept.attempts
            rows.reads += kept.reads
            rows.writes += kept.writes
            rows.checks += kept.checks
            rows.undo += kept.undo
            rows.events += kept.events
            rows.extra += kept.extra
        if run is not None:
            run.kept = {}
        return rows

    async def _flush_kept(self) -> None:
        rows = self._kept_rows()
        if rows.attempts:
            await self._write(rows)

    async def _completed(self, steps: Sequence[int]) -> list[AttemptRecord]:
        """Return the members that succeeded, with outputs."""
        ran = {member.step_id: member for member in self._run.members} if self._run is not None else {}
        found = []
        for step in steps:
            live = self.member(step)
            if live is None or live.state is not AttemptState.COMPLETED:
                continue
            member = ran.get(step)
            attempt: AttemptRecord | None
            if member is not None and self._run is not None and member.attempt == live.attempt:
                attempt = self._run.record_of(member)
            else:
                attempt = await self.attempt(step)
            if attempt is not None:
                found.append(attempt)
        return found

    async def _undo_step(self, step_id: int, *, calls: bool = True) -> bool:
        """Run the undo of one member, with ``calls`` theirs too, newest first; return whether all of it is done."""
        owed = [
            undo
            for _, undo in sorted(self._transaction.undo.items(), reverse=True)
            if undo.step_id == step_id
            and (calls or not undo.sub_step)
            and not undo.late
            and undo.state in (UndoState.PENDING, UndoState.FAILED)
        ]
        outcomes = await self._parts.saga.run(self._transaction, owed)
        holds = self.record.policy.on_undo_failure is OnUndoFailure.HOLD
        return not holds or all(undo.state is UndoState.DONE for undo in outcomes)

    async def _supersede_calls(self, step_id: int, rows: Rows) -> None:
        stored = await self._parts.services.store.load_journal(self.record.transaction_id, step_id)
        rows.sub_steps += [
            replace(item, state=AttemptState.SUPERSEDED, ended_at=item.ended_at or self._now())
            for item in stored.sub_steps
        ]
        for item in stored.sub_steps:
            self._transaction.forget_sub_step(step_id, item.sub_step)

    async def _hold(self, reason: str) -> RewindResult:
        """Take the group back, held by undo that failed: a person has to see to it."""
        first, _ = self._group
        self._run = None
        pending = PendingRewind(
            purpose=RewindPurpose.RECOVERY,
            to_step=first,
            final_status=TransactionStatus.ACTIVE,
            started_at=self._now(),
            reason=reason,
            kept_effects=self._transaction.kept_effects(first),
        )
        return await self._parts.rewinder.begin(self._transaction, pending, Rows())


def check_members(
    services: EngineServices, owner: str, first: int, members: Sequence[HeldMember], size: int
) -> None:
    """Refuse members from step ``first`` on of a group that has ``size`` with them. Raises InvalidRequest, LimitExceeded."""
    limits.check_step_number(first, len(members), services.limits)
    if not members:
        raise InvalidRequest((FieldViolation("members", "is empty"),))
    for index, member in enumerate(members):
        tool = services.tools_of(owner).describe(member.name) if member.function is None else None
        if size > 1 and tool is not None and _is_final(tool.effect_class, tool.undo_names):
            problem = f"'{tool.name}' can't be undone; it is a group of its own"
            raise InvalidRequest((FieldViolation(f"members[{index}]", problem),))


def can_be_group(services: EngineServices, owner: str, first: int, members: Sequence[HeldMember]) -> bool:
    """Whether these can be a group whose first member is step ``first``."""
    try:
        check_members(services, owner, first, members, len(members))
    except EngineError:
        return False
    return True


def _is_final(effect_class: EffectClass, undo_names: Sequence[str]) -> bool:
    return effect_class is EffectClass.IRREVERSIBLE and not undo_names
