"""What the engine did, counted as it becomes durable (:class:`.change_observer.ChangeObserver`).

Counts are plain numbers of the event loop's thread: a step costs one look-up and one addition into a histogram.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from agenttx_server.engine.records import (
    AttemptRecord,
    EventType,
    HintCategory,
    PendingRewind,
    TransactionRecord,
)
from agenttx_server.engine.transaction_writer import Rows
from agenttx_server.histogram import Histogram, latency_bounds
from agenttx_server.telemetry import metric_families as families
from agenttx_server.telemetry.bounded_labels import OTHER, BoundedLabels
from agenttx_server.telemetry.exposition import Values

__all__ = ["ChangeMetrics"]

_LOGGER = logging.getLogger(__name__)

MOST_TOOLS = 200
MOST_CHANNELS = 50
STEP_SECONDS = latency_bounds()
REWIND_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
REWIND_STEPS = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0, 100.0, 1000.0)
TRANSACTION_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
NO_CLASS = "none"

_STEP_OUTCOMES = {
    EventType.STEP_COMPLETED: "completed",
    EventType.STEP_FAILED: "failed",
    EventType.STEP_IN_DOUBT: "in_doubt",
    EventType.STEP_CANCELLED: "cancelled",
    EventType.STEP_SUPERSEDED: "superseded",
}
_UNDO_OUTCOMES = {
    EventType.UNDO_COMPLETED: "done",
    EventType.UNDO_FAILED: "failed",
    EventType.UNDO_RESOLVED: "resolved",
    EventType.LATE_EFFECT_REPORTED: "late_effect",
}
_EFFECT_OUTCOMES = {
    EventType.EFFECT_DELIVERED: "delivered",
    EventType.EFFECT_FAILED: "failed",
    EventType.EFFECT_DEAD: "dead",
    EventType.EFFECT_REQUEUED: "requeued",
    EventType.EFFECT_DISCARDED: "discarded",
}
_APPROVAL_OUTCOMES = {
    EventType.STEP_AWAITING_APPROVAL: "asked",
    EventType.STEP_APPROVED: "approved",
    EventType.STEP_REJECTED: "rejected",
    EventType.APPROVAL_WITHDRAWN: "withdrawn",
}
_ENDS = frozenset(
    {
        EventType.TRANSACTION_COMMITTED,
        EventType.TRANSACTION_ROLLED_BACK,
        EventType.TRANSACTION_FAILED,
    }
)
_CATEGORIES = frozenset(HintCategory)


class ChangeMetrics:
    """Counts changes, by labels that nobody can make grow. ``is_tool`` says whether this server offers a tool."""

    def __init__(self, is_tool: Callable[[str], bool]) -> None:
        self._tools = BoundedLabels(MOST_TOOLS, is_tool)
        self._channels = BoundedLabels(MOST_CHANNELS)
        self._steps: dict[tuple[str, str, str], Histogram] = {}
        self._sub_steps: dict[tuple[str, str, str], Histogram] = {}
        self._hints: Counter[str] = Counter()
        self._undo: Counter[tuple[str, str]] = Counter()
        self._effects: Counter[tuple[str, str]] = Counter()
        self._approvals: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._rewinds: dict[tuple[str, str], Histogram] = {}
        self._rewound_steps: dict[str, Histogram] = {}
        self._ended: dict[str, Histogram] = {}
        self._begun = self._conflicts = self._held = 0

    # --- the port ---------------------------------------------------------------------------

    def change_written(self, record: TransactionRecord, rows: Rows) -> None:
        try:
            for kind, step_id, attempt, sub_step, payload in rows.events:
                outcome = _STEP_OUTCOMES.get(kind)
                if outcome is not None:
                    made = _attempt(rows, step_id, attempt, sub_step)
                    self._count_step(outcome, made, payload, is_sub_step=bool(sub_step))
                else:
                    self._count_other(kind, record, payload)
        except Exception:  # what was written stands, whatever becomes of its counting
            _LOGGER.exception("a change could not be counted")

    def rewound(self, before: TransactionRecord, after: TransactionRecord, rewind: PendingRewind) -> None:
        try:
            decision = rewind.decision
            if decision is not None:
                self._decisions[rewind.strategy.value] += 1
            cost = max(before.next_step_id - rewind.to_step, 0) if decision is None else decision.cost
            key = (rewind.purpose.value, rewind.strategy.value)
            seconds = self._rewinds.get(key)
            if seconds is None:
                seconds = self._rewinds[key] = Histogram(REWIND_SECONDS)
                self._rewound_steps.setdefault(rewind.strategy.value, Histogram(REWIND_STEPS))
            seconds.observe(max(after.updated_at - rewind.started_at, 0) / 1_000_000)
            self._rewound_steps[rewind.strategy.value].observe(cost)
        except Exception:
            _LOGGER.exception("a rewind could not be counted")

    def _count_step(
        self, outcome: str, made: AttemptRecord | None, payload: dict[str, Any], *, is_sub_step: bool
    ) -> None:
        # Of a step that the agent ran itself the name is the agent's, and no tool's of this server.
        tool = OTHER if made is None or made.reported else self._tools.of(made.tool_name)
        effect_class = NO_CLASS if made is None or made.effect_class is None else made.effect_class.value
        counted = self._sub_steps if is_sub_step else self._steps
        key = (tool, effect_class, outcome)
        seconds = counted.get(key)
        if seconds is None:
            seconds = counted[key] = Histogram(STEP_SECONDS)
        if made is None or made.ended_at is None:
            seconds.observe(0.0)
        else:
            seconds.observe(max(made.ended_at - made.started_at, 0) / 1_000_000)
        category = payload.get("category")
        if category:
            self._hints[category if category in _CATEGORIES else OTHER] += 1

    def _count_other(self, kind: EventType, record: TransactionRecord, payload: dict[str, Any]) -> None:
        if kind is EventType.TRANSACTION_BEGUN:
            self._begun += 1
        elif kind in _ENDS:
            status = record.status.value
            seconds = self._ended.setdefault(status, Histogram(TRANSACTION_SECONDS))
            seconds.observe(max((record.ended_at or record.updated_at) - record.created_at, 0) / 1_000_000)
        elif kind in _EFFECT_OUTCOMES:
            self._effects[self._channels.of(payload["channel"]), _EFFECT_OUTCOMES[kind]] += 1
        elif kind in _UNDO_OUTCOMES:
            self._undo[self._tools.of(payload["tool_name"]), _UNDO_OUTCOMES[kind]] += 1
        elif kind in _APPROVAL_OUTCOMES:
            self._approvals[_APPROVAL_OUTCOMES[kind]] += 1
        elif kind is EventType.COMMIT_CONFLICT:
            self._conflicts += 1
        elif kind is EventType.ROLLBACK_HELD:
            self._held += 1

    # --- what was counted -------------------------------------------------------------------

    def read(self, values: Values) -> None:
        """Write what was counted; a source of :class:`.exposition.Exposition`."""
        values.number(families.TRANSACTIONS_BEGUN, self._begun)
        values.number(families.COMMIT_CONFLICTS, self._conflicts)
        values.number(families.REWINDS_HELD, self._held)
        for status, ended in self._ended.items():
            values.histogram(families.TRANSACTION_DURATION, ended.read(), status)
        for steps, seconds in self._steps.items():
            values.histogram(families.STEP_DURATION, seconds.read(), *steps)
        for sub_steps, seconds in self._sub_steps.items():
            values.histogram(families.SUB_STEP_DURATION, seconds.read(), *sub_steps)
        for rewind, seconds in self._rewinds.items():
            values.histogram(families.REWIND_DURATION, seconds.read(), *rewind)
        for strategy, steps_back in self._rewound_steps.items():
            values.histogram(families.REWIND_STEPS, steps_back.read(), strategy)
        for family, counts in (
            (families.HINTS, self._hints),
            (families.DECISIONS, self._decisions),
            (families.APPROVALS, self._approvals),
        ):
            for label, count in counts.items():
                values.number(family, count, label)
        for undo, count in self._undo.items():
            values.number(families.COMPENSATIONS, count, *undo)
        for effect, count in self._effects.items():
            values.number(families.EFFECTS, count, *effect)


def _attempt(rows: Rows, step_id: int, attempt: int, sub_step: int) -> AttemptRecord | None:
    for made in rows.sub_steps if sub_step else rows.attempts:
        if made.step_id == step_id and made.attempt == attempt and made.sub_step == sub_step:
            return made
    return None
