"""Why something failed and where it goes back to: hints, dependencies, policies, decisions."""

from __future__ import annotations

from dataclasses import field
from decimal import Decimal
from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records.tools import KeptEffect

__all__ = [
    "Constraint",
    "CrashPolicy",
    "Decision",
    "DependencyKind",
    "Edge",
    "Hint",
    "HintCategory",
    "Isolation",
    "OnConflict",
    "OnUndoFailure",
    "PassedOverRung",
    "PathElement",
    "PathSource",
    "Policy",
    "RejectedCalls",
    "Strategy",
]


class HintCategory(StrEnum):
    """What kind of mistake a failed step was; the closed list of Clean Hints."""

    FOREIGN_KEY_VIOLATION = "foreign_key_violation"
    UNIQUE_VIOLATION = "unique_violation"
    NOT_NULL_VIOLATION = "not_null_violation"
    CHECK_VIOLATION = "check_violation"
    MISSING_SCHEMA_OBJECT = "missing_schema_object"
    MISSING_RECORD = "missing_record"
    MISSING_ARGUMENT = "missing_argument"
    MISSING_KEY = "missing_key"
    NULL_REFERENCE = "null_reference"
    INVALID_VALUE = "invalid_value"
    INVALID_JSON = "invalid_json"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    AUTHENTICATION = "authentication"
    RATE_LIMITED = "rate_limited"
    HTTP_CLIENT_ERROR = "http_client_error"
    HTTP_SERVER_ERROR = "http_server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    UNKNOWN_TOOL = "unknown_tool"
    UNRESOLVED_REFERENCE = "unresolved_reference"
    CONFLICT = "conflict"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CANCELLED = "cancelled"
    ASSERTION = "assertion"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Hint:
    """One true line about a failure, for the agent.

    ``text`` begins with ``Hint: `` and is one line of at most 240 characters. ``keys`` are
    the offending columns, fields or arguments, most telling first; empty when the error
    names none. ``rule`` is the rule that read the error, None for the fallback line.
    """

    text: str
    category: HintCategory
    rule: str | None = None
    keys: tuple[str, ...] = ()


class DependencyKind(StrEnum):
    """Whether an edge was written as a reference or found by equal values."""

    EXPLICIT = "EXPLICIT"
    IMPLICIT = "IMPLICIT"


class Strategy(StrEnum):
    """What the rollback controller (or a caller) decided."""

    NONE = "NONE"
    LOCAL_BACKTRACK = "LOCAL_BACKTRACK"
    DEPENDENCY_JUMP = "DEPENDENCY_JUMP"
    GLOBAL_RESET = "GLOBAL_RESET"
    MANUAL = "MANUAL"
    ABORT = "ABORT"


class Isolation(StrEnum):
    """What a commit validates besides the keys it wrote."""

    READ_COMMITTED = "READ_COMMITTED"
    SERIALIZABLE = "SERIALIZABLE"


class CrashPolicy(StrEnum):
    """What becomes of an open transaction after its server died."""

    RESUME = "RESUME"
    ABORT = "ABORT"


class OnConflict(StrEnum):
    """What a commit conflict does: end the transaction or rewind it."""

    ABORT = "ABORT"
    REWIND = "REWIND"


class OnUndoFailure(StrEnum):
    """Whether a failed undo holds the rewind (default) or lets it go on."""

    HOLD = "HOLD"
    CONTINUE = "CONTINUE"


class RejectedCalls(StrEnum):
    """Where a step that failed before its tool was called goes back to."""

    BACKTRACK = "BACKTRACK"
    RETRY_STEP = "RETRY_STEP"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rollback policy in force for one transaction."""

    max_local_depth: int = 2
    max_global_resets: int = 1
    replay_budget_factor: Decimal = Decimal("2.0")
    on_conflict: OnConflict = OnConflict.ABORT
    on_undo_failure: OnUndoFailure = OnUndoFailure.HOLD
    rejected_calls: RejectedCalls = RejectedCalls.BACKTRACK


@dataclass(frozen=True, slots=True)
class Constraint:
    """A hint that the agent must heed from now on; kept over rewinds and resets."""

    text: str
    category: HintCategory
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """Step ``to_step`` consumed, under ``target_key``, what ``from_step`` gave under ``source_key``.

    ``to_sub_step`` is the sub-step that did, 0 for the step itself.
    """

    from_step: int
    to_step: int
    source_key: str
    target_key: str
    kind: DependencyKind
    to_sub_step: int = 0


class PathSource(StrEnum):
    """How a root-cause walk came to a stop of its path."""

    ERROR_KEY = "ERROR_KEY"
    EXPLICIT_EDGE = "EXPLICIT_EDGE"
    IMPLICIT_EDGE = "IMPLICIT_EDGE"
    PASS_THROUGH = "PASS_THROUGH"


@dataclass(frozen=True, slots=True)
class PathElement:
    """One stop of a root-cause walk: the value stood in ``step_id`` under ``key``.

    ``source`` tells how the walk came there and plays no part in equality.
    """

    step_id: int
    key: str
    source: PathSource = field(default=PathSource.ERROR_KEY, compare=False)


@dataclass(frozen=True, slots=True)
class PassedOverRung:
    """A strategy that was considered before the one chosen, and why it was not taken."""

    strategy: Strategy
    target_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the controller decided on a failure, with its reasons.

    ``target_step`` is where the agent resumes (1 for a reset, 0 for an abort);
    ``error_keys`` are the hint's, ``error_key`` the one that was traced;
    ``cost``, ``budget_*`` count replayed steps; ``path`` leads from the failed step
    to the root, empty when no key was traced.
    """

    strategy: Strategy
    failed_step: int
    target_step: int
    failure_number: int
    cost: int
    budget_total: int
    budget_spent_before: int
    error_keys: tuple[str, ...] = ()
    error_key: str | None = None
    path: tuple[PathElement, ...] = ()
    passed_over: tuple[PassedOverRung, ...] = ()
    abort_reason: str = ""
    kept_effects: tuple[KeptEffect, ...] = ()
