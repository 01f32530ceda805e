"""One transaction in memory: its head, live steps, dependency graph and owed undo.

A cache of what SQL holds (I7): :meth:`Transaction.rebuild` makes the same from a stored
transaction. Only the coordinator changes one, under the transaction's lock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from agenttx_server.engine import json_values
from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.ports import StoredTransaction
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    EffectClass,
    KeptEffect,
    MicrosecondsUtc,
    StateRead,
    StateWrite,
    TransactionRecord,
    UndoRecord,
    UndoState,
)
from agenttx_server.engine.rollback_controller import Counters, Pivot

__all__ = ["LiveStep", "Transaction", "touched_conflict"]

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


class Transaction:
    """The aggregate. ``steps`` are the live ones by step id; ``undo`` is what is owed, by sequence."""

    __slots__ = (
        "_cached_characters",
        "_irreversible",
        "attempt_counts",
        "graph",
        "record",
        "request_ids",
        "steps",
        "undo",
    )

    def __init__(self, record: TransactionRecord) -> None:
        self.record = record
        self.graph = DependencyGraph()
        self.steps: dict[int, LiveStep] = {}
        self.undo: dict[int, UndoRecord] = {}
        self.attempt_counts: dict[int, int] = {}
        self.request_ids: set[str] = set()
        self._cached_characters = 0
        self._irreversible: list[int] = []  # live steps of IRREVERSIBLE tools, in order

    @classmethod
    def rebuild(cls, stored: StoredTransaction) -> Transaction:
        """Make the aggregate from what SQL holds."""
        transaction = cls(stored.transaction)
        transaction.undo = {undo.sequence: undo for undo in stored.undo}
        transaction.attempt_counts = dict(stored.attempt_counts)
        transaction.request_ids = set(stored.request_ids)
        if stored.transaction.pending_rewind is not None:  # used, and not answered for good yet
            transaction.request_ids.update(
                key.request_id for key in stored.transaction.pending_rewind.requests
            )
        settled_before = stored.transaction.next_step_id
        for attempt in stored.attempts:
            transaction._keep(attempt)
            completed = attempt.state is AttemptState.COMPLETED and attempt.step_id < settled_before
            transaction.graph.restore(
                attempt.step_id,
                arguments=_arguments_for_graph(attempt),
                edges=attempt.edges,
                output=(
                    json_values.load(attempt.output)
                    if completed and attempt.output is not None
                    else json_values.MISSING
                ),
            )
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
            ),
        )

    def finish_attempt(self, attempt: AttemptRecord) -> None:
        """Note the state and the output of the step's live attempt."""
        self._keep(attempt)

    def settle_outputs(self, attempts: Iterable[AttemptRecord]) -> None:
        """Make the outputs of a settled group visible to later steps' links."""
        for attempt in attempts:
            if attempt.output is not None:
                self.graph.record_output(attempt.step_id, json_values.load(attempt.output))

    def rewind(self, to_step: int) -> None:
        """Forget the live steps from ``to_step`` on; what they owed has been undone."""
        self.graph.rewind(to_step)
        for step_id in self._steps_from(to_step):
            output = self.steps.pop(step_id).output
            if output is not None:
                self._cached_characters -= len(output)
        while self._irreversible and self._irreversible[-1] >= to_step:
            self._irreversible.pop()
        for sequence in [number for number, undo in self.undo.items() if undo.step_id >= to_step]:
            del self.undo[sequence]

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
        """The last completed IRREVERSIBLE step without registered undo."""
        if not self._irreversible:
            return None
        covered = {undo.step_id for undo in self.undo.values()}
        for step in reversed(self._irreversible):
            live = self.steps[step]
            if live.state is AttemptState.COMPLETED and step not in covered:
                return Pivot(step_id=step, tool_name=live.tool_name)
        return None

    def kept_effects(self, to_step: int) -> tuple[KeptEffect, ...]:
        """Effects of steps >= ``to_step`` that no registered undo takes back, by step."""
        covered = {undo.step_id for undo in self.undo.values()}
        kept = []
        for step in self._steps_from(to_step):
            live = self.steps[step]
            if step in covered or live.state not in _KEPT_REASONS:
                continue
            if live.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE):
                kept.append(
                    KeptEffect(
                        step, live.attempt, live.tool_name, live.effect_class, _KEPT_REASONS[live.state]
                    )
                )
        return tuple(kept)

    def owed_undo(self, to_step: int) -> list[UndoRecord]:
        """Undo actions of steps >= ``to_step`` that are not done, newest first."""
        return [
            undo
            for _, undo in sorted(self.undo.items(), reverse=True)
            if undo.step_id >= to_step and undo.state is not UndoState.DONE
        ]

    def failed_undo(self) -> list[UndoRecord]:
        """Undo actions that failed and hold a rewind, newest first."""
        return [undo for _, undo in sorted(self.undo.items(), reverse=True) if undo.state is UndoState.FAILED]

    def executing_steps(self) -> list[int]:
        """Steps of the open group whose attempt has no outcome yet."""
        return self._open_steps(AttemptState.EXECUTING)

    def in_doubt_steps(self) -> list[int]:
        """Steps of the open group whose outcome is unknown."""
        return self._open_steps(AttemptState.IN_DOUBT)

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
