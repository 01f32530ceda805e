"""An attempt at a step, and the state that it read and wrote."""

from __future__ import annotations

from enum import StrEnum

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records.decisions import Edge, Hint
from agenttx_server.engine.records.identities import MicrosecondsUtc, TransactionId
from agenttx_server.engine.records.tools import EffectClass

__all__ = [
    "AttemptRecord",
    "AttemptState",
    "CommitCheck",
    "CommitCheckKind",
    "CommittedEntry",
    "StateRead",
    "StateWrite",
    "StepResolution",
    "SubStepPlace",
]


class AttemptState(StrEnum):
    """How far one execution of a step got.

    SUPERSEDED: its server died, or its settlement was lost, and nothing of it counts any more; the
    step is run again as a newer attempt. WAITING and WITHDRAWN are of members of held groups alone: one
    stopped to wait for something outside, and one was taken back unfinished when its group was closed early.
    """

    EXECUTING = "EXECUTING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    SUPERSEDED = "SUPERSEDED"
    WAITING = "WAITING"
    WITHDRAWN = "WITHDRAWN"


@dataclass(frozen=True, slots=True)
class SubStepPlace:
    """A sub-step of some transaction's step."""

    transaction_id: TransactionId
    step_id: int
    sub_step: int


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One execution of a step, as kept for ever in the history.

    ``arguments`` is the JSON as sent (canonical where it parsed), ``resolved_arguments``
    the canonical text after references, ``output`` canonical JSON. ``fingerprint`` is the
    identity of the request that a reused request_id is compared with. ``response`` is the
    recorded answer without its output, set when the answer is final. ``undo_registered``
    tells whether the attempt ever registered undo: without, a repeat keeps its key.
    ``resolved_arguments`` is None where it equals ``arguments``. ``tries`` counts the calls of the
    tool: 0 where the step failed before it, more than 1 after repeats in place. ``reported`` is that the agent
    ran it itself and told of it. ``approval_rejected``
    is that it failed because a person said no.

    With ``sub_step`` above 0 it is a sub-step of ``step_id``: the ``ordinal``-th call, from 1, of ``scope`` (the
    path of ordinals of the calls that it was made in; empty in the step's own code). ``adopted`` is where the
    call was made, if its step took it over. ``failed_sub_step`` is the sub-step whose failure was the step's own.
    ``restartable`` is that its tool is started again from its first line after a crash; ``emits_records`` that each
    item of its output's ``records`` is a record.
    """

    step_id: int
    attempt: int
    group_first: int
    group_size: int
    epoch: int
    generation: int
    request_id: str
    fingerprint: str
    tool_name: str
    effect_class: EffectClass | None
    state: AttemptState
    arguments: str
    started_at: MicrosecondsUtc
    idempotency_key: str = ""
    resolved_arguments: str | None = None
    output: str | None = None
    raw_context: str = ""
    hint: Hint | None = None
    raw_error: str = ""
    tries: int = 0
    undo_registered: bool = False
    edges: tuple[Edge, ...] = ()
    response: str | None = None
    ended_at: MicrosecondsUtc | None = None
    reported: bool = False
    approval_rejected: bool = False
    sub_step: int = 0
    scope: str = ""
    ordinal: int = 0
    adopted: SubStepPlace | None = None
    failed_sub_step: int = 0
    restartable: bool = False
    emits_records: bool = False


@dataclass(frozen=True, slots=True)
class StateWrite:
    """An uncommitted write; ``value`` None deletes. Its base version is set by the store.

    ``sequence`` orders the writes of a step and tells which of its sub-steps made one; see :mod:`.write_order`.
    """

    step_id: int
    sequence: int
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class StateRead:
    """A read of committed state: the version seen (0: absent), or a prefix that was scanned."""

    step_id: int
    key: str
    version: int
    is_prefix: bool = False
    sub_step: int = 0


class CommitCheckKind(StrEnum):
    """What a commit asserts again about state as it will be published."""

    EXISTS = "EXISTS"
    NONE_WITH_PREFIX = "NONE_WITH_PREFIX"


@dataclass(frozen=True, slots=True)
class CommitCheck:
    """An assertion of a step that is checked again inside the commit; ``error`` says what broke."""

    step_id: int
    sequence: int
    kind: CommitCheckKind
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """A key of committed state. ``value`` is canonical JSON, None when the key is absent."""

    key: str
    value: str | None
    version: int


class StepResolution(StrEnum):
    """What a person said of a step in doubt: its effect happened, it did not, or the call may be repeated."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    RETRY = "RETRY"
