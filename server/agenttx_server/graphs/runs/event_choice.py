"""Which events of a journal somebody wants to see."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from agenttx_server.engine.frozen import dataclass
from agenttx_server.graphs.runs.records import EventRecord

__all__ = ["ENDS_INVOCATION", "HAS_STATE", "EventChoice", "EventMode"]

ENDS_INVOCATION: Final = frozenset(
    {"run.completed", "run.failed", "run.cancelled", "run.interrupted", "run.drained"}
)
"""One of these ends each invocation."""

HAS_STATE: Final = frozenset({"checkpoint.saved", "checkpoint.restored"})
"""These are told with the state of their checkpoint in mode VALUES."""

_OF_RUN = ENDS_INVOCATION | {"run.started"}
_NUMBERS = re.compile(r"#[^/]*")


class EventMode(StrEnum):
    """What is seen of a run."""

    VALUES = "VALUES"
    UPDATES = "UPDATES"
    MESSAGES = "MESSAGES"
    DEBUG = "DEBUG"
    INTERRUPTS = "INTERRUPTS"
    CUSTOM = "CUSTOM"


_KINDS: Final = {
    EventMode.VALUES: _OF_RUN | HAS_STATE | {"rollback.decided"},
    # What was undone is no update any more: who adds updates up has to know.
    EventMode.UPDATES: _OF_RUN | {"state.updated", "rollback.decided"},
    EventMode.MESSAGES: frozenset({"message.delta"}),
    EventMode.INTERRUPTS: _OF_RUN | {"interrupt.emitted", "interrupt.resumed", "interrupt.withdrawn"},
    EventMode.CUSTOM: frozenset({"custom"}),
}


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Empty fields restrict nothing. ``kinds`` stand in place of those of ``modes``; neither is everything.

    A namespace is taken exactly, or by the names of its nodes alone ("outer/inner").
    """

    kinds: frozenset[str] = frozenset()
    modes: frozenset[EventMode] = frozenset()
    root_run_id: str = ""
    thread_id: str = ""
    graph: str = ""
    node: str = ""
    namespace: str = ""

    @property
    def with_states(self) -> bool:
        """Whether checkpoints are told with their states."""
        return EventMode.VALUES in self.modes

    def takes(self, event: EventRecord) -> bool:
        """Whether an event is wanted."""
        return (
            self._takes_kind(event.kind)
            and self.root_run_id in ("", event.root_run_id)
            and self.thread_id in ("", event.thread_id)
            and self.graph in ("", event.graph)
            and self.node in ("", event.node)
            and self.namespace in ("", event.namespace, _NUMBERS.sub("", event.namespace))
        )

    def _takes_kind(self, kind: str) -> bool:
        if self.kinds:
            return kind in self.kinds
        if not self.modes or EventMode.DEBUG in self.modes:
            return True
        return any(kind in _KINDS[mode] for mode in self.modes)
