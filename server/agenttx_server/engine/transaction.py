"""One transaction in memory: its head, live steps, dependency graph and owed undo.

A cache of what SQL holds (I7): :meth:`Transaction.rebuild` makes the same from a stored
transaction. Only the coordinator changes one, under the transaction's lock.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agenttx_server.engine import json_values
from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.frozen import replace
from agenttx_server.engine.ports import StoredTransaction, WriteReceipt
from agenttx_server.engine.records import (
    ApprovalRecord,
    AttemptRecord,
    AttemptState,
    EffectClass,
    KeptEffect,
    MicrosecondsUtc,
    OnUndoFailure,
    RewindPurpose,
    StateRead,
    StateWrite,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoResolution,
    UndoState,
)
from agenttx_server.engine.rollback_controller import Counters, Pivot

__all__ = ["LiveStep", "LiveSubStep", "Transaction", "accepted_effect", "touched_conflict"]

# Outputs kept in memory, so that most references need no read. Above these an output is
# read from the store when a reference asks for it.
CACHED_OUTPUT_CHARACTERS = 16 * 1024
CACHED_OUTPUTS_CHARACTERS = 256 * 1024


@dataclass(slots=True)
class LiveStep:
    """The newest attempt of a step that was not rewound, as far as decisions need it."""

    attempt: int
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState
    group_first: int
    group_size: int
    output: str | None
    request_id: str
    started_at: MicrosecondsUtc
    reported: bool = False


@dataclass(slots=True)
class LiveSubStep:
    """The newest attempt of a sub-step that counts."""

    attempt: int
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState
    started_at: MicrosecondsUtc


class Transaction:
    """The aggregate. ``steps`` are the live ones by step id; ``undo`` are the rows kept, by sequence.

    ``approvals`` are those that steps not settled yet wait for, may use or have used, by sequence.
    ``sub_steps`` are the live ones by step and number, also of a step that has no live attempt because it is
    to be run again; ``sub_step_counts`` are attempts ever made by step and number.
    """

    __slots__ = (
        "_cached_characters",
        "_executing",
        "_irreversible",
        "approvals",
        "attempt_counts",
        "graph",
        "last_write",
        "most_state_rows",
        "owes_late",
        "record",
        "request_ids",
        "steps",
        "sub_step_counts",
        "sub_steps",
        "undo",
        "write_failure",
    )

    def __init__(self, record: TransactionRecord) -> None:
        self.record = record
        self.graph = DependencyGraph()
        self.steps: dict[int, LiveStep] = {}
        self.undo: dict[int, UndoRecord] = {}
        self.approvals: dict[int, ApprovalRecord] = {}
        self.sub_steps: dict[int, dict[int, LiveSubStep]] = {}
        self.sub_step_counts: dict[tuple[int, int], int] = {}
        self.attempt_counts: dict[int, int] = {}
        self.request_ids: set[str] = set()
        # Whether undo of a late effect is owed: some server has to see to it, whatever the status.
        self.owes_late = False
        # Why memory may be ahead of SQL: nothing more is written from it.
        self.write_failure: Exception | None = None
        self.last_write: asyncio.Future[WriteReceipt] | asyncio.Future[None] | None = None
        # No more state rows than these are in SQL; None is unknown.
        self.most_state_rows: int | None = 0
        self._cached_characters = 0
        self._irreversible: list[int] = []  # live steps of IRREVERSIBLE tools, in order
        self._executing: set[int] = set()  # live steps without an outcome

    @classmethod
    def rebuild(cls, stored: StoredTransaction) -> Transaction:
        """Make the aggregate from what SQL holds."""
        transaction = cls(stored.transaction)
        transaction.most_state_rows = None
        transaction.undo = {undo.sequence: undo for undo in stored.undo}
        transaction.owes_late = any(undo.state is UndoState.LATE for undo in stored.undo)
        transaction.attempt_counts = dict(stored.attempt_counts)
        transaction.request_ids = set(stored.request_ids)
        if stored.transaction.pending_rewind is not None:  # used, and not answered for good yet
            transaction.request_ids.update(
                key.request_id for key in stored.transaction.pending_rewind.requests
            )
        settled_before = stored.transaction.next_step_id
        transaction.sub_step_counts = dict(stored.sub_step_counts)
        made: dict[int, list[AttemptRecord]] = {}
        for sub_step in stored.sub_steps:
            transaction.note_sub_step(sub_step)
            made.setdefault(sub_step.step_id, []).append(sub_step)
        for attempt in stored.attempts:
            if attempt.state is AttemptState.SUPERSEDED:
                continue
            transaction._keep(attempt)
            transaction.graph.restore(
                attempt.step_id, arguments=_arguments_for_graph(attempt), edges=attempt.edges
            )
            transaction.extend_graph(made.get(attempt.step_id, ()))
            completed = attempt.state is AttemptState.COMPLETED and attempt.step_id < settled_before
            if completed and attempt.output is not None:
                transaction.graph.record_output(attempt.step_id, json_values.load(attempt.output))
        for approval in stored.approvals:
            transaction.note_approval(approval)
        return transaction

    def begin_attempt(
        self,
        step_id: int,
        attempt: int,
        *,
        request_id: str,
        tool_name: str,
        effect_class: EffectClass | None,
        group: tuple[int, int],
        started_at: MicrosecondsUtc,
        reported: bool = False,
    ) -> None:
        """Take a new attempt in as the step's live one, executing; ``group`` is (first step, size)."""
        self.attempt_counts[step_id] = attempt
        if request_id:
            self.request_ids.add(request_id)
        self._enter(
            step_id,
            LiveStep(
                attempt,
                tool_name,
                effect_class,
                AttemptState.EXECUTING,
                group[0],
                group[1],
                None,
                request_id,
                started_at,
                reported,
            ),
        )

    def complete_attempt(self, attempt: AttemptRecord) -> None:
        """Take a new attempt in as the step's live one that is over: :meth:`begin_attempt` and the end in one."""
        self.attempt_counts[attempt.step_id] = attempt.attempt
        if attempt.request_id:
            self.request_ids.add(attempt.request_id)
        self._keep(attempt)

    def finish_attempt(self, attempt: AttemptRecord) -> None:
        """Note the state and the output of the step's live attempt."""
        self._keep(attempt)

    def note_sub_step(self, attempt: AttemptRecord) -> None:
        """Take a sub-step in as it stands now."""
        # What was adopted had its effect where it was made.
        effect_class = None if attempt.adopted is not None else attempt.effect_class
        self.sub_steps.setdefault(attempt.step_id, {})[attempt.sub_step] = LiveSubStep(
            attempt.attempt, attempt.tool_name, effect_class, attempt.state, attempt.started_at
        )

    def forget_sub_step(self, step_id: int, sub_step: int) -> None:
        """Forget a sub-step of which nothing counts any more; what was undone for it is owed no more."""
        made = self.sub_steps.get(step_id, {})
        made.pop(sub_step, None)
        if not made:
            self.sub_steps.pop(step_id, None)
        self._drop_undo(lambda undo: (undo.step_id, undo.sub_step) == (step_id, sub_step))

    def extend_graph(self, sub_steps: Iterable[AttemptRecord]) -> None:
        """Count completed sub-steps as parts of their step in the graph; the step's output is not recorded yet."""
        for attempt in sub_steps:
            if attempt.state is AttemptState.COMPLETED and attempt.step_id in self.steps:
                self.graph.extend(
                    attempt.step_id,
                    arguments=_arguments_for_graph(attempt),
                    edges=attempt.edges,
                    output=json_values.load(attempt.output or "null"),
                )

    def forget_step(self, step_id: int) -> None:
        """Forget a step and its sub-steps, what they did having been undone: it is to be run again."""
        if step_id in self.steps:
            self.supersede(step_id)
        self.sub_steps.pop(step_id, None)
        self._drop_undo(lambda undo: undo.step_id == step_id)

    def _drop_undo(self, is_dropped: Callable[[UndoRecord], bool]) -> None:
        dropped = (UndoState.DONE, UndoState.PENDING)
        self.undo = {
            sequence: undo
            for sequence, undo in self.undo.items()
            if undo.late or undo.state not in dropped or not is_dropped(undo)
        }

    def live(self, attempt: AttemptRecord) -> LiveStep | LiveSubStep | None:
        """Return what stands for an attempt's step or sub-step now."""
        return self._live_at(attempt.step_id, attempt.sub_step)

    def supersede(self, step_id: int) -> None:
        """Forget a step's attempt, of which nothing counts: the step is to be run again."""
        self.graph.discard(step_id)
        live = self.steps.pop(step_id)
        self._executing.discard(step_id)
        if live.output is not None:
            self._cached_characters -= len(live.output)
        if step_id in self._irreversible:
            self._irreversible.remove(step_id)

    def settle_outputs(self, attempts: Iterable[AttemptRecord]) -> None:
        """Make the outputs of a settled group visible to later steps' links, and forget what approved it."""
        if self.approvals:
            following = self.record.next_step_id
            self.approvals = {
                sequence: approval
                for sequence, approval in self.approvals.items()
                if approval.step_id >= following
            }
        for attempt in attempts:
            if attempt.output is not None:
                self.graph.record_output(attempt.step_id, json_values.load(attempt.output))

    def rewind(self, to_step: int) -> None:
        """Forget the live steps from ``to_step`` on; what they owed has been undone.

        Undo that failed, that a person settled, or that a late effect asked for stays: somebody may
        still want it.
        """
        self.graph.rewind(to_step)
        for step_id in self._steps_from(to_step):
            output = self.steps.pop(step_id).output
            self._executing.discard(step_id)
            if output is not None:
                self._cached_characters -= len(output)
        while self._irreversible and self._irreversible[-1] >= to_step:
            self._irreversible.pop()
        if self.approvals:
            self.approvals = {
                sequence: approval
                for sequence, approval in self.approvals.items()
                if approval.step_id < to_step
            }
        for step_id in [step for step in self.sub_steps if step >= to_step]:
            del self.sub_steps[step_id]
        self._drop_undo(lambda undo: undo.step_id >= to_step)

    def _steps_from(self, to_step: int) -> list[int]:
        # Groups enter in order, so walking back from the newest costs what is removed.
        found = []
        for step_id in reversed(self.steps):
            if step_id >= to_step:
                found.append(step_id)
            elif (
                self.steps[step_id].group_first < to_step
                and step_id + self.steps[step_id].group_size <= to_step
            ):
                break
        return sorted(found)

    def _enter(self, step_id: int, live: LiveStep) -> None:
        previous = self.steps.get(step_id)
        if previous is not None and previous.output is not None:
            self._cached_characters -= len(previous.output)
        self.steps[step_id] = live
        if live.state is AttemptState.EXECUTING:
            self._executing.add(step_id)
        else:
            self._executing.discard(step_id)
        is_pivot = live.effect_class is EffectClass.IRREVERSIBLE
        was_pivot = previous is not None and previous.effect_class is EffectClass.IRREVERSIBLE
        if is_pivot and not was_pivot:
            insort(self._irreversible, step_id)
        elif was_pivot and not is_pivot:
            self._irreversible.remove(step_id)

    def _keep(self, attempt: AttemptRecord) -> None:
        live = LiveStep(
            attempt.attempt,
            attempt.tool_name,
            attempt.effect_class,
            attempt.state,
            attempt.group_first,
            attempt.group_size,
            None,
            attempt.request_id,
            attempt.started_at,
            attempt.reported,
        )
        self._enter(attempt.step_id, live)
        output = attempt.output
        if output is not None and len(output) <= CACHED_OUTPUT_CHARACTERS:
            together = self._cached_characters + len(output)
            if together <= CACHED_OUTPUTS_CHARACTERS:
                live.output, self._cached_characters = output, together

    # --- what decisions ask -------------------------------------------------------------

    def counters(self) -> Counters:
        """The controller's counters as the head holds them."""
        record = self.record
        return Counters(
            failures=dict(record.failures),
            jumps=dict(record.jumps),
            budget_spent=record.budget_spent,
            global_resets=record.global_resets,
            furthest_step=record.furthest_step,
        )

    def group_starts_before(self, step_id: int) -> list[int]:
        """First steps of the live groups before a step, ascending."""
        return sorted({live.group_first for step, live in self.steps.items() if step < step_id})

    def pivot(self) -> Pivot | None:
        """The last completed IRREVERSIBLE step, or step with such a sub-step, without registered undo."""
        if not self._irreversible and not self.sub_steps:
            return None
        covered = self._covered()
        found = [
            (step, live.tool_name)
            for step, made in self.sub_steps.items()
            for sub_step, live in made.items()
            if live.effect_class is EffectClass.IRREVERSIBLE
            and live.state is AttemptState.COMPLETED
            and (step, sub_step, live.attempt) not in covered
        ]
        for step in reversed(self._irreversible):
            whole = self.steps[step]
            if whole.state is AttemptState.COMPLETED and (step, 0, whole.attempt) not in covered:
                found.append((step, whole.tool_name))
                break
        if not found:
            return None
        step, tool_name = max(found)
        return Pivot(step_id=step, tool_name=tool_name)

    def _covered(self) -> set[tuple[int, int, int]]:
        """Attempts that registered undo. An older attempt's row says nothing about the step's newest."""
        return {(undo.step_id, undo.sub_step, undo.attempt) for undo in self.undo.values() if undo.undo_name}

    def kept_effects(self, to_step: int) -> tuple[KeptEffect, ...]:
        """Effects of steps >= ``to_step`` that no undo takes back, by step.

        Those that registered none, and those whose undo failed and that a person let stay.
        """
        covered = self._covered()
        accepted: dict[tuple[int, int, int], list[UndoRecord]] = {}
        for _, undo in sorted(self.undo.items()):
            if undo.resolution is UndoResolution.KEPT:
                accepted.setdefault((undo.step_id, undo.sub_step, undo.attempt), []).append(undo)
        kept: list[KeptEffect] = []
        for step, sub_step, live in self._whole_from(to_step):
            key = (step, sub_step, live.attempt)
            if live.effect_class is not None:
                kept += [accepted_effect(undo, live.effect_class) for undo in accepted.get(key, ())]
            if key in covered or live.state not in _KEPT_REASONS:
                continue
            if live.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE):
                kept.append(
                    KeptEffect(
                        step,
                        live.attempt,
                        live.tool_name,
                        live.effect_class,
                        _KEPT_REASONS[live.state],
                        sub_step,
                    )
                )
        return tuple(kept)

    def _whole_from(self, to_step: int) -> list[tuple[int, int, LiveStep | LiveSubStep]]:
        """Live steps >= ``to_step`` and their sub-steps, in order."""
        found: list[tuple[int, int, LiveStep | LiveSubStep]] = [
            (step, 0, self.steps[step]) for step in self._steps_from(to_step)
        ]
        found += [
            (step, sub_step, live)
            for step, made in self.sub_steps.items()
            if step >= to_step
            for sub_step, live in made.items()
        ]
        return sorted(found, key=lambda item: item[:2]) if self.sub_steps else found

    def note_undo(self, undo: UndoRecord) -> None:
        """Take in an undo action as it now stands."""
        self.undo[undo.sequence] = undo
        if undo.late:
            self.owes_late = any(other.state is UndoState.LATE for other in self.undo.values())

    def note_approval(self, approval: ApprovalRecord) -> None:
        """Take in an approval as it now stands; one that no attempt in force can use any more is forgotten."""
        live = self.steps.get(approval.step_id)
        is_used = bool(approval.used_attempt) and live is not None and live.attempt == approval.used_attempt
        if approval.is_live or is_used:
            self.approvals[approval.sequence] = approval
        else:
            self.approvals.pop(approval.sequence, None)

    def live_approvals(self, from_step: int = 1) -> list[ApprovalRecord]:
        """Approvals of steps >= ``from_step`` that are waited for, or were given and not used, by sequence."""
        return [
            approval
            for _, approval in sorted(self.approvals.items())
            if approval.is_live and approval.step_id >= from_step
        ]

    def live_approval(self, step_id: int) -> ApprovalRecord | None:
        """The approval that a step waits for or may use; a step has one at most."""
        return next((item for item in self.live_approvals(step_id) if item.step_id == step_id), None)

    def used_approval(self, step_id: int, attempt: int) -> ApprovalRecord | None:
        """The approval under which an attempt was begun."""
        return next(
            (
                approval
                for approval in self.approvals.values()
                if (approval.step_id, approval.used_attempt) == (step_id, attempt)
            ),
            None,
        )

    def owe_once_more(self, undo: Iterable[UndoRecord]) -> list[UndoRecord]:
        """Return copies of undo actions that are owed for the end of a tool which still runs, taken in already."""
        copies = [
            replace(row, sequence=self.record.undo_sequence + number, state=UndoState.LATE, late=True)
            for number, row in enumerate(undo, start=1)
        ]
        if copies:
            self.undo.update({row.sequence: row for row in copies})
            self.owes_late = True
            self.record = replace(self.record, undo_sequence=copies[-1].sequence)
        return copies

    def owed_undo(self, to_step: int) -> list[UndoRecord]:
        """Undo actions that a rewind to ``to_step`` has to run, or the agent for it, newest first.

        Not those that failed and that a rewind was completed over (policy CONTINUE): forward steps
        may have run since, so only a person has them run again.
        """
        owed = {UndoState.PENDING, UndoState.AWAITING_AGENT} | self._holding_states()
        return self._undo_of(to_step, owed)

    def awaited_undo(self, to_step: int = 1) -> list[UndoRecord]:
        """Undo actions of steps >= ``to_step`` that the agent has to do now, newest first."""
        return self._undo_of(to_step, {UndoState.AWAITING_AGENT})

    def failed_undo(self, to_step: int = 1) -> list[UndoRecord]:
        """Undo actions of steps >= ``to_step`` that failed and hold a rewind, newest first."""
        return self._undo_of(to_step, self._holding_states())

    def skipped_undo(self, to_step: int) -> list[UndoRecord]:
        """Undo actions of live steps >= ``to_step`` that failed and hold nothing (policy CONTINUE), newest first."""
        if self._holding_states():
            return []
        return [
            undo
            for undo in self._undo_of(to_step, {UndoState.FAILED})
            if (live := self._live_at(undo.step_id, undo.sub_step)) and live.attempt == undo.attempt
        ]

    def _live_at(self, step_id: int, sub_step: int) -> LiveStep | LiveSubStep | None:
        if sub_step:
            return self.sub_steps.get(step_id, {}).get(sub_step)
        return self.steps.get(step_id)

    def unsettled_undo(self) -> list[UndoRecord]:
        """Undo actions that somebody or a server still has to see to, whatever the status, newest first."""
        return [
            undo
            for _, undo in sorted(self.undo.items(), reverse=True)
            if undo.state in (UndoState.FAILED, UndoState.LATE)
        ]

    def late_undo(self) -> list[UndoRecord]:
        """Undo actions that are owed because of a late effect, newest first."""
        return [undo for undo in self.unsettled_undo() if undo.state is UndoState.LATE]

    def _undo_of(self, to_step: int, states: set[UndoState]) -> list[UndoRecord]:
        return [
            undo
            for _, undo in sorted(self.undo.items(), reverse=True)
            if undo.step_id >= to_step and not undo.late and undo.state in states
        ]

    def _holding_states(self) -> set[UndoState]:
        holds = self.record.policy.on_undo_failure is OnUndoFailure.HOLD
        return {UndoState.FAILED} if holds else set()

    @property
    def is_executing(self) -> bool:
        """Whether a step of the open group has no outcome yet. Asked at every outcome of a group of thousands."""
        first, size = self.record.open_group or (0, 0)
        return any(first <= step < first + size for step in self._executing)

    def executing_steps(self) -> list[int]:
        """Steps of the open group whose attempt has no outcome yet."""
        return self._open_steps(AttemptState.EXECUTING)

    def in_doubt_steps(self) -> list[int]:
        """Steps of the open group whose outcome is unknown."""
        return self._open_steps(AttemptState.IN_DOUBT)

    def unsettled_doubts(self) -> list[int]:
        """Steps in doubt that a person has still to speak of.

        Also while undo that failed in a recovery holds the transaction: nobody asked for that
        rewind, so nobody gave the word with which it could pass them.
        """
        pending = self.record.pending_rewind
        if self.record.status is TransactionStatus.IN_DOUBT:
            return self.in_doubt_steps()
        if pending is not None and pending.purpose is RewindPurpose.RECOVERY:
            return self.in_doubt_steps()
        return []

    def awaiting_steps(self) -> list[int]:
        """Steps of the open group that wait for approval, or were approved and not sent again."""
        return self._open_steps(AttemptState.AWAITING_APPROVAL)

    def _open_steps(self, state: AttemptState) -> list[int]:
        first, size = self.record.open_group or (0, 0)
        return [
            step
            for step in range(first, first + size)
            if (live := self.steps.get(step)) and live.state is state
        ]


_KEPT_REASONS = {
    AttemptState.COMPLETED: "completed and has no registered undo",
    AttemptState.IN_DOUBT: "its outcome is unknown and it has no registered undo",
    AttemptState.EXECUTING: "was cancelled while it ran; its outcome is unknown and it has no registered undo",
}


def accepted_effect(undo: UndoRecord, effect_class: EffectClass) -> KeptEffect:
    """Name an effect whose undo failed, or was not done by its agent, and that a person let stay."""
    failed = "failed" if undo.state is UndoState.FAILED or undo.attempts else "was not done"
    what = f"its undo '{undo.undo_name}' {failed}" if undo.undo_name else "it was a late effect without undo"
    reason = f"{what} and it was accepted that the effect stays"
    return KeptEffect(undo.step_id, undo.attempt, undo.tool_name, effect_class, reason, undo.sub_step)


def _arguments_for_graph(attempt: AttemptRecord) -> json_values.JsonValue:
    text = attempt.resolved_arguments if attempt.resolved_arguments is not None else attempt.arguments
    try:
        return json_values.parse(text)
    except json_values.ValueRefused:
        return None  # arguments that were refused link to nothing


def touched_conflict(
    reads: Iterable[StateRead],
    writes: Iterable[StateWrite],
    other_reads: Iterable[StateRead],
    other_writes: Iterable[StateWrite],
) -> str | None:
    """Return a key that one side wrote and the other read or wrote, None if there is none."""
    mine_written = {write.key for write in writes}
    other_written = {write.key for write in other_writes}
    clashes = mine_written & other_written
    for readers, written in ((reads, other_written), (other_reads, mine_written)):
        for read in readers:
            if read.is_prefix:
                clashes |= {key for key in written if key.startswith(read.key)}
            elif read.key in written:
                clashes.add(read.key)
    return min(clashes) if clashes else None
