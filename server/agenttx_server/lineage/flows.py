"""What an action gave for each of its inputs, also where that is no record, and what a later action takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from agenttx_server.engine.frozen import dataclass
from agenttx_server.lineage.records import Record

__all__ = ["Descent", "Flow", "FlowState", "Input", "Meeting", "Several"]


class FlowState(StrEnum):
    """LIVE goes on; FILTERED is gone, and from all below; DROPPED is null where branches meet; FAILED blocks."""

    LIVE = "live"
    FILTERED = "filtered"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Descent of records that were merged: whatever they came of, they agree."""

    of: tuple[Descent, ...]


@dataclass(frozen=True, slots=True)
class Several:
    """Descent of records that were grouped: it came of each."""

    of: tuple[Descent, ...]


Descent: TypeAlias = "Record | Meeting | Several"


@dataclass(frozen=True, slots=True)
class Flow:
    """One result of ``action``.

    Attributes:
        origins: the records that it stands for: the action's own record, or where it made none, its inputs.
        descent: the same with how they came together.
        content: what a reader below sees.
        blocked_by: where it FAILED: the action that did.
    """

    action: str
    state: FlowState
    origins: tuple[Record, ...]
    descent: Descent
    content: Mapping[str, Any]
    blocked_by: str = ""

    @property
    def record(self) -> Record | None:
        """The action's own record; None where it made none."""
        first = self.origins[0]
        return first if first.action == self.action else None


@dataclass(frozen=True, slots=True)
class Input:
    """What an action takes at once: a record, or records of several branches merged.

    Attributes:
        contributors: the records it is made of, the primary parent first.
        origins: all records that its flows stand for: contributors, and inputs that came to nothing on a branch.
        lineage: of them together, in order, without the action's own.
        state: LIVE: the action may be called; else what becomes of it without.
        is_merge: whether it is of several dependencies.
        blocked_by: where it FAILED: the action that did.
    """

    contributors: tuple[Record, ...]
    origins: tuple[Record, ...]
    descent: Descent
    content: Mapping[str, Any]
    lineage: tuple[str, ...]
    state: FlowState = FlowState.LIVE
    is_merge: bool = False
    blocked_by: str = ""

    @property
    def primary(self) -> Record:
        """The parent of what comes of it."""
        return self.contributors[0]
