"""What the server tells of pipelines and their runs, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = [
    "ActionCounts",
    "PipelineRow",
    "PipelineRowEnded",
    "PipelineRun",
    "PipelineRunStatus",
    "PipelineSource",
    "PipelineValidation",
    "PipelineVersion",
    "PipelineViolation",
    "RegisteredPipeline",
]


class PipelineRunStatus(StrEnum):
    """How a run stands. RUNNING is under way; an INTERRUPTED one is resumed; the others have ended."""

    UNSPECIFIED = "UNSPECIFIED"
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_FAILURES = "COMPLETED_WITH_FAILURES"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing happens to the run any more."""
        return self not in (
            PipelineRunStatus.UNSPECIFIED,
            PipelineRunStatus.RUNNING,
            PipelineRunStatus.INTERRUPTED,
        )


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A row to ingest, where it is of an input file.

    Attributes:
        value: The row, a JSON object.
        relative_path: The file, for actions that take all records of one.
    """

    value: Mapping[str, Any]
    relative_path: str = ""


@dataclass(frozen=True, slots=True)
class PipelineViolation:
    """Something found in a pipeline.

    Attributes:
        code: What kind of thing, in capitals.
        where: `pipeline`, or `action NAME` with the clause.
        message: What is wrong, and how to mend it.
        is_warning: Whether the pipeline may run nevertheless.
    """

    code: str
    where: str
    message: str
    is_warning: bool


@dataclass(frozen=True, slots=True)
class PipelineValidation:
    """What was found in a pipeline.

    Attributes:
        valid: Whether it could run.
        violations: Everything found, errors first.
        version: What it would be registered as; empty if it can't be.
        name: Its name.
        order: Its actions in an order in which they could run.
    """

    valid: bool
    violations: tuple[PipelineViolation, ...]
    version: str
    name: str
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PipelineVersion:
    """A registered version. `version` is the hash of its content."""

    name: str
    version: str
    description: str
    actions: int
    registered_at: datetime


@dataclass(frozen=True, slots=True)
class RegisteredPipeline:
    """The answer to a registration. `violations` are warnings; `existed`: the content was registered before."""

    pipeline: PipelineVersion
    violations: tuple[PipelineViolation, ...]
    existed: bool


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """A registered version with its document."""

    pipeline: PipelineVersion
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """What an action did, counted by inputs.

    Attributes:
        action: The action.
        processed: Its tool answered.
        skipped: Its guard skipped them.
        filtered: Its guard, or one above, filtered them.
        dropped: No output was of them.
        failed: Its tool failed.
        blocked: They had failed above.
    """

    action: str
    processed: int
    skipped: int
    filtered: int
    dropped: int
    failed: int
    blocked: int


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """How far a run is.

    Attributes:
        run_id: Its id.
        pipeline: The pipeline's name.
        version: The version of its content.
        status: How it stands.
        cancel_requested: Whether it was asked to end early.
        rows: Rows that it was given.
        rows_committed: Rows that are through.
        rows_failed: Rows that were rolled back.
        rows_running: Rows that are under way.
        reason: Why it stands so, of the first few rows.
        counts: What each action did; complete once it has ended.
        created_at: When it was received.
        updated_at: When its status changed last.
    """

    run_id: str
    pipeline: str
    version: str
    status: PipelineRunStatus
    cancel_requested: bool
    rows: int
    rows_committed: int
    rows_failed: int
    rows_running: int
    reason: str
    counts: tuple[ActionCounts, ...]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PipelineRowEnded:
    """A row that has ended; of a run in one transaction: all of them.

    Attributes:
        run_id: The run.
        place: Its place among the rows, from 0.
        transaction_id: Its transaction.
        committed: Whether it was committed; else it was rolled back.
        reason: Why it was rolled back.
        counts: What each action did with it.
    """

    run_id: str
    place: int
    transaction_id: str
    committed: bool
    reason: str
    counts: tuple[ActionCounts, ...]
