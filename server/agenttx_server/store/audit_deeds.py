"""What of a write belongs in the audit trail: told from the events that the write carries anyway.

So nothing that has an event can be done past the trail, and the engine, the graph runtime and the pipelines know nothing of it.
Steps are not deeds: they are in the journal of their transaction, which itself is begun, committed, rewound and ended here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from agenttx_server.audit.actor import current_actor
from agenttx_server.audit.chain import Deed
from agenttx_server.engine.ports import ExtraRows, WriteSet
from agenttx_server.engine.records import EventType
from agenttx_server.store.record_codec import canonical_json

__all__ = ["deeds_of_extra", "deeds_of_write_set"]

_OF_EVENTS: Final[Mapping[EventType, str]] = {
    EventType.TRANSACTION_BEGUN: "transaction.begin",
    EventType.TRANSACTION_COMMITTED: "transaction.commit",
    EventType.TRANSACTION_REWOUND: "transaction.rewind",
    EventType.TRANSACTION_ROLLED_BACK: "transaction.abort",
    EventType.TRANSACTION_FAILED: "transaction.fail",
    EventType.COMMIT_CONFLICT: "transaction.conflict",
    EventType.ROLLBACK_HELD: "transaction.rewind_held",
    EventType.STEP_CANCELLED: "step.cancel",
    EventType.STEP_RESOLVED: "step.settle",
    EventType.STEP_APPROVED: "step.approve",
    EventType.STEP_REJECTED: "step.reject",
    EventType.UNDO_RESOLVED: "undo.settle",
    EventType.EFFECT_REQUEUED: "effect.requeue",
    EventType.EFFECT_DISCARDED: "effect.discard",
}
_OF_RUN_EVENTS: Final[Mapping[str, str]] = {
    "run.started": "run.start",
    "run.completed": "run.complete",
    "run.failed": "run.fail",
    "run.cancelled": "run.cancel",
    "run.interrupted": "run.interrupt",
    "run.drained": "run.drain",
}
# Of an event's payload: ids, numbers and names of fixed choices. Reasons and comments are words of people and
# of models, in which anything may stand; they are in the journals.
_TOLD: Final = (
    "approval_id",
    "channel",
    "compensations_run",
    "decided_by",
    "effect_id",
    "graph",
    "resolution",
    "steps_committed",
    "strategy",
    "to_step",
    "trigger",
    "version",
)


def deeds_of_write_set(write_set: WriteSet) -> Sequence[Deed]:
    """Return the deeds of a write set; nearly every step's has none."""
    record = write_set.transaction
    deeds = [
        Deed(
            event.occurred_at,
            current_actor(),
            record.principal,
            _OF_EVENTS[event.type],
            record.transaction_id,
            _detail(
                event.payload,
                {"step": event.step_id, "attempt": event.attempt, "generation": event.generation},
            ),
        )
        for event in write_set.events
        if event.type in _OF_EVENTS
    ]
    if write_set.extra:
        deeds += deeds_of_extra(write_set.extra, record.principal)
    return deeds


def deeds_of_extra(rows: Iterable[ExtraRows], owner: str) -> Sequence[Deed]:
    """Return the deeds of rows of graph runs. What runs inside a node is part of its run."""
    deeds = []
    for item in rows:
        if item.table == "graph_events":
            for row in item.rows:
                run_id, _, kind, occurred_at, thread_id, _, _, namespace, *_, payload = row
                if kind in _OF_RUN_EVENTS and not namespace:
                    deeds.append(
                        Deed(
                            int(str(occurred_at)),
                            current_actor(),
                            owner,
                            _OF_RUN_EVENTS[str(kind)],
                            str(run_id),
                            _detail(str(payload), {"thread": thread_id}),
                        )
                    )
    return deeds


def _detail(payload: str, more: Mapping[str, Any]) -> str:
    told = orjson.loads(payload)
    kept = {name: told[name] for name in _TOLD if isinstance(told.get(name), (str, int)) and told[name] != ""}
    return canonical_json(kept | {name: value for name, value in more.items() if value})
