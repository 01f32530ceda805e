"""What is kept of a run: itself, and each row that it was given. Frozen."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from agenttx_server.engine.frozen import dataclass

__all__ = [
    "ActionCounts",
    "InputPage",
    "InputRecord",
    "InputState",
    "PipelineRunPage",
    "PipelineRunRecord",
    "PipelineRunStatus",
    "PipelineVersionPage",
    "PipelineVersionRecord",
    "StopRecord",
]


class PipelineRunStatus(StrEnum):
    """How a run stands. INTERRUPTED: it can be resumed; all others but RUNNING are final."""

    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing happens to it any more."""
        return self not in (PipelineRunStatus.RUNNING, PipelineRunStatus.INTERRUPTED)


class InputState(StrEnum):
    """How a row stands: COMMITTED is through, FAILED has been rolled back."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """What an action did, counted by inputs: of one root, or of a run."""

    action: str
    processed: int = 0
    skipped: int = 0
    filtered: int = 0
    dropped: int = 0
    failed: int = 0
    blocked: int = 0

    def plus(self, other: ActionCounts) -> ActionCounts:
        """Both together."""
        return ActionCounts(
            self.action,
            self.processed + other.processed,
            self.skipped + other.skipped,
            self.filtered + other.filtered,
            self.dropped + other.dropped,
            self.failed + other.failed,
            self.blocked + other.blocked,
        )


@dataclass(frozen=True, slots=True)
class PipelineRunRecord:
    """A run.

    Attributes:
        definition: the pipeline's document as canonical JSON.
        version: the hash of it.
        input_count: the rows that it was given.
        committed: how many were committed, once it has ended.
        failed: how many were rolled back, once it has ended.
    """

    run_id: str
    principal: str
    pipeline: str
    status: PipelineRunStatus
    created_at: int
    updated_at: int
    input_count: int = 0
    definition: str = ""
    reason: str = ""
    counts: tuple[ActionCounts, ...] = ()
    version: str = ""
    committed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A row of a run.

    Attributes:
        place: its place among the rows, from 0.
        row: canonical JSON of it.
        occurrence: how many identical rows are before it.
        transaction_id: the transaction that carries it; empty before there is one.
        reason: why it FAILED.
        counts: what each action did with it, where it was COMMITTED; of a run in one transaction on its first row.
    """

    run_id: str
    place: int
    state: InputState
    transaction_id: str
    row: str
    relative_path: str = ""
    occurrence: int = 0
    reason: str = ""
    counts: tuple[ActionCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class InputPage:
    """Some rows and the cursor behind them, empty at the end."""

    inputs: Sequence[InputRecord]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class PipelineRunPage:
    """Some runs and the cursor behind them, empty at the end."""

    runs: Sequence[PipelineRunRecord]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class StopRecord:
    """A run is to begin no further row."""

    run_id: str
    reason: str
    requested_at: int


@dataclass(frozen=True, slots=True)
class PipelineVersionRecord:
    """A registered version. ``definition`` is its document as canonical JSON, ``version`` the hash of that."""

    name: str
    version: str
    sequence: int
    registered_at: int
    description: str = ""
    action_count: int = 0
    definition: str = ""


@dataclass(frozen=True, slots=True)
class PipelineVersionPage:
    """Some versions and the cursor behind them, empty at the end."""

    versions: Sequence[PipelineVersionRecord]
    next_cursor: str
