"""What the engine needs of the outer layers, as protocols they implement.

``TransactionStore`` is durable memory, ``ToolRunner`` runs tools, ``EffectSink`` takes
effects out, ``Clock`` and ``IdSource`` are time, ids and randomness. Errors that cross a
port are the ones named here or in :mod:`.errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    CommitCheck,
    CommittedEntry,
    EffectRecord,
    EffectState,
    EventRecord,
    Hint,
    HintCategory,
    MicrosecondsUtc,
    RecordedResponse,
    ServerId,
    StateRead,
    StateWrite,
    StopRequest,
    ToolDescription,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoState,
)

__all__ = [
    "AdoptedStep",
    "ApprovalPage",
    "ApprovalPolicy",
    "ArgumentsRefused",
    "AttemptPage",
    "Clock",
    "CommitRefused",
    "CommittedPage",
    "CompensationPage",
    "ContextClosed",
    "DeliveryFailed",
    "DuplicateRequestId",
    "EffectPage",
    "EffectSink",
    "ExtraOperation",
    "ExtraRows",
    "ExtraRowsRefused",
    "ExtraValue",
    "IdSource",
    "NotCalled",
    "OutcomeUnknown",
    "ReportedFailure",
    "RunnerLost",
    "StaleRevision",
    "StateView",
    "StepFunction",
    "StepRemoval",
    "StepWaits",
    "StoreUnavailable",
    "StoredJournal",
    "StoredTransaction",
    "StoredValueDamaged",
    "SubStepCall",
    "SubStepFailed",
    "ToolContext",
    "ToolFailure",
    "ToolProgress",
    "ToolRunner",
    "TransactionFilter",
    "TransactionPage",
    "TransactionStore",
    "UndoContext",
    "UndoUnavailable",
    "WriteReceipt",
    "WriteSet",
]


# --- the store ---------------------------------------------------------------------------


class StaleRevision(Exception):
    """The transaction row was not at the expected revision: another writer was first. Nothing was written."""


class DuplicateRequestId(Exception):
    """A recorded response or attempt with this request_id exists already. Nothing was written."""


class StoreUnavailable(Exception):
    """The database did not answer; whether the write was made is unknown."""


class StoredValueDamaged(Exception):
    """A value that was stored sealed can't be opened: it was changed outside the server, or its key is not the one.

    ``str()`` names the value by its table, column and row, for the log, and holds nothing of it.
    """


class CommitRefused(Exception):
    """Validation at commit failed; nothing of the write set was written.

    ``key`` is the state key (``namespace/key``) that broke it and ``description`` one line.
    """

    def __init__(self, key: str, description: str) -> None:
        super().__init__(description)
        self.key = key
        self.description = description


class ExtraRowsRefused(Exception):
    """A row of an outer layer that was to be inserted exists already, or one that is required isn't there.

    Nothing of the set was written.
    """


ExtraValue: TypeAlias = str | int | None


class ExtraOperation(StrEnum):
    """What is done with rows of an outer layer; DELETE and REQUIRE are given the columns of the table's key alone.

    REQUIRE changes nothing: rows with these keys must be there, and stay until the set is durable. Where one isn't
    the whole set is refused (ExtraRowsRefused), as by an INSERT of a row that is there. UNCHANGED is the same for rows
    that must be as they are given, in all columns but the last.
    """

    INSERT = "INSERT"
    UPSERT = "UPSERT"
    DELETE = "DELETE"
    REQUIRE = "REQUIRE"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class ExtraRows:
    """Rows of a layer above the engine that are written with a write set; the engine looks at none of it.

    ``table`` is one that the store was told of; ``rows`` have a value for each of its columns, in their order, the
    first one never None. Of one set what a table must have is looked for first, then come its deletions, then upserts,
    then inserts.
    """

    table: str
    operation: ExtraOperation
    rows: Sequence[Sequence[ExtraValue]]


@dataclass(frozen=True, slots=True)
class StepRemoval:
    """What one step, or one of its sub-steps, left behind and loses: see :class:`WriteSet`.

    ``sub_step`` None is the whole step, its sub-steps included.
    """

    step_id: int
    sub_step: int | None = None


@dataclass(frozen=True, slots=True)
class WriteSet:
    """One atomic write to one transaction, guarded by its revision.

    Applied in this order: guard and head row (``expected_revision`` 0 inserts it); if
    ``rewind_from`` is set, removal of all state writes, reads, checks, STAGED effects and
    undo rows that are DONE or PENDING and not ``late`` of steps >= it, and a row in ``rewinds``
    under the *previous* generation, which marks every attempt of those steps begun until
    then as rewound; the same of single steps and sub-steps, without such a row, for each of ``removals``; then
    upserts of ``attempts`` (by step and attempt), ``sub_steps`` (by step, sub-step and attempt), ``undo`` and
    ``approvals`` (by sequence) and ``effects`` (by effect_id), inserts of the rest; then ``extra``; then, if ``publish``,
    validation of written keys and checks and publication to committed state, and all
    STAGED effects become READY.

    ``state_writes`` get their base version from the database at this moment: the
    version that this transaction last read of the key (surviving reads, those of this set
    included), else the committed one now (0: absent).
    """

    transaction: TransactionRecord
    expected_revision: int
    rewind_from: int | None = None
    attempts: Sequence[AttemptRecord] = ()
    state_reads: Sequence[StateRead] = ()
    state_writes: Sequence[StateWrite] = ()
    checks: Sequence[CommitCheck] = ()
    effects: Sequence[EffectRecord] = ()
    undo: Sequence[UndoRecord] = ()
    approvals: Sequence[ApprovalRecord] = ()
    events: Sequence[EventRecord] = ()
    responses: Sequence[RecordedResponse] = ()
    publish: bool = False
    sub_steps: Sequence[AttemptRecord] = ()
    removals: Sequence[StepRemoval] = ()
    extra: Sequence[ExtraRows] = ()


@dataclass(frozen=True, slots=True)
class WriteReceipt:
    """What the store found out while writing: for a publication its version and size.

    The store also sets ``commit_version`` of the transaction's row at a publication.
    """

    commit_version: int = 0
    keys_published: int = 0
    effects_ready: int = 0


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """Everything an open transaction is rebuilt from: its head, live attempts, undo and touched keys.

    ``attempts`` are the live ones (not rewound), the newest of each step, in step order, with outputs.
    ``undo`` are all rows not yet dropped, by sequence. ``attempt_counts`` maps a step to the
    number of attempts ever made. ``group_reads``/``group_writes`` are the keys touched by
    the steps of the open group, empty when there is none. ``request_ids`` are all that were
    ever used in this transaction, by steps (rewound ones too) and by other calls. ``approvals`` are those
    that are PENDING or APPROVED, of steps from ``next_step_id`` on, by sequence. ``sub_steps`` are the live ones, the
    newest attempt of each, by step and sub-step; ``sub_step_counts`` maps both to the number of attempts ever made.
    """

    transaction: TransactionRecord
    attempts: Sequence[AttemptRecord]
    undo: Sequence[UndoRecord]
    attempt_counts: Mapping[int, int]
    group_reads: Sequence[StateRead] = ()
    group_writes: Sequence[StateWrite] = ()
    request_ids: Sequence[str] = ()
    approvals: Sequence[ApprovalRecord] = ()
    sub_steps: Sequence[AttemptRecord] = ()
    sub_step_counts: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """The live sub-steps of one step, the newest attempt of each, by sub-step, and all that they wrote, in order."""

    sub_steps: Sequence[AttemptRecord]
    writes: Sequence[StateWrite] = ()


@dataclass(frozen=True, slots=True)
class StateView:
    """A key as one step sees it: ``value`` None means absent; ``own`` that the transaction wrote it.

    ``committed_version`` is the version in committed state now (0: never written).
    """

    value: str | None
    own: bool
    committed_version: int


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Which transactions to list; empty fields do not restrict. Times are inclusive, from <= t < to."""

    principal: str = ""
    statuses: frozenset[TransactionStatus] = frozenset()
    agent_id: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    created_from: MicrosecondsUtc | None = None
    created_to: MicrosecondsUtc | None = None


@dataclass(frozen=True, slots=True)
class TransactionPage:
    """Newest first; ``next_cursor`` is empty on the last page.

    ``effects`` counts each one's effects by state, ``undo_failed`` holds the undo actions that failed,
    newest first, late ones too; transactions that have none are left out of either. ``unrecovered`` says
    of those that could not be recovered why.
    """

    transactions: Sequence[TransactionRecord]
    next_cursor: str
    effects: Mapping[TransactionId, Mapping[EffectState, int]] = field(default_factory=dict)
    undo_failed: Mapping[TransactionId, Sequence[UndoRecord]] = field(default_factory=dict)
    unrecovered: Mapping[TransactionId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptPage:
    """Attempts in order of step and attempt; ``rewound`` runs parallel to ``attempts``."""

    attempts: Sequence[AttemptRecord]
    rewound: Sequence[bool]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class CommittedPage:
    """Present keys of committed state in key order."""

    entries: Sequence[CommittedEntry]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class CompensationPage:
    """Undo actions with the head of the transaction of each; oldest transaction first, newest undo first."""

    undo: Sequence[tuple[TransactionRecord, UndoRecord]]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class ApprovalPage:
    """Approvals with the head of the transaction of each, the one asked for first first."""

    approvals: Sequence[tuple[TransactionRecord, ApprovalRecord]]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class EffectPage:
    """Effects with the head of the transaction of each; oldest transaction first, then in staging order."""

    effects: Sequence[tuple[TransactionRecord, EffectRecord]]
    next_cursor: str


class TransactionStore(Protocol):
    """Durable memory of transactions. Every method may raise :class:`StoreUnavailable`.

    Where several servers share a database (:attr:`is_shared`) leases are counted in the database's
    time and ``now`` is ignored for them; else ``now``, the engine's clock, is the time.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other servers may serve this database at the same time."""

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        """Apply one write set atomically; return once it is durable.

        Sets of one transaction are applied in the order of the calls. Raises
        StaleRevision, DuplicateRequestId, ExtraRowsRefused, CommitRefused, StoreUnavailable.
        """

    def submit(self, write_set: WriteSet) -> asyncio.Future[WriteReceipt]:
        """Have a write set written as :meth:`write` does; return the future of its receipt. Cancelling that cancels nothing."""

    async def load(self, transaction_id: TransactionId) -> StoredTransaction | None:
        """Return all that the aggregate is rebuilt from, or None if there is no such transaction."""

    async def load_record(self, transaction_id: TransactionId) -> TransactionRecord | None:
        """Return the head row alone."""

    async def find_attempt(
        self, transaction_id: TransactionId, request_id: str
    ) -> tuple[AttemptRecord, bool] | None:
        """Return the newest attempt made for a request_id and whether it was rewound."""

    async def find_response(self, scope: str, request_id: str) -> RecordedResponse | None:
        """Return the recorded answer of a changing call other than a step."""

    async def read_state(self, transaction_id: TransactionId, key: str, before_step: int) -> StateView:
        """Return a key as seen by a step: own writes of steps < ``before_step``, else committed."""

    async def scan_state(
        self, transaction_id: TransactionId, prefix: str, before_step: int, after: str, limit: int
    ) -> Sequence[tuple[str, StateView]]:
        """Return present keys with a prefix, in key order after ``after``, as seen by a step."""

    async def read_committed(self, key: str) -> CommittedEntry:
        """Return a key of committed state; version 0 and value None when it was never written."""

    async def scan_committed(self, prefix: str, cursor: str, limit: int, byte_limit: int) -> CommittedPage:
        """Return a page of committed keys with a prefix."""

    async def list_transactions(self, which: TransactionFilter, cursor: str, limit: int) -> TransactionPage:
        """Return a page of transactions, newest first. Raises ValueError for a cursor it did not give."""

    async def list_attempts(
        self,
        transaction_id: TransactionId,
        cursor: str,
        limit: int,
        byte_limit: int,
        step_id: int | None = None,
        include_rewound: bool = True,
        include_sub_steps: bool = False,
    ) -> AttemptPage:
        """Return a page of the history. Raises ValueError for a cursor it did not give.

        Sub-steps stand behind all attempts of their step, in their order.
        """

    async def load_journal(self, transaction_id: TransactionId, step_id: int) -> StoredJournal:
        """Return the live sub-steps of a step, with outputs, and their writes."""

    async def list_sub_step_attempts(
        self, transaction_id: TransactionId, step_id: int, sub_step: int
    ) -> Sequence[AttemptRecord]:
        """Return all attempts of one sub-step, rewound ones too, oldest first."""

    async def load_touched(
        self, transaction_id: TransactionId, first: int, last: int
    ) -> tuple[Sequence[StateRead], Sequence[StateWrite]]:
        """Return what steps first … last read and wrote, in order of steps; of the writes the keys alone."""

    async def list_events(
        self, transaction_id: TransactionId, from_sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        """Return events from a sequence on, in order, at most ``limit`` and about 1 MiB."""

    async def load_context(
        self, transaction_id: TransactionId, byte_limit: int
    ) -> tuple[Sequence[tuple[int, str, str]], bool]:
        """Return (step, tool name, raw_context) of live attempts with a context, in step order.

        The newest ``byte_limit`` bytes of raw_context; the flag says that older ones were left out.
        """

    async def load_output(self, transaction_id: TransactionId, step_id: int, attempt: int) -> str | None:
        """Return an attempt's output as canonical JSON."""

    async def list_effects(
        self, transaction_id: TransactionId, states: frozenset[str]
    ) -> Sequence[EffectRecord]:
        """Return a transaction's effects in the given states, in staging order; empty set: all."""

    async def count_touched(
        self, transaction_id: TransactionId, from_step: int
    ) -> tuple[int, Sequence[str], int]:
        """Return for steps >= ``from_step``: state rows, up to 1,000 keys in order, staged effects (dry run)."""

    async def rows_by_step(self, transaction_id: TransactionId, from_step: int) -> Sequence[tuple[int, int]]:
        """Return the steps >= ``from_step`` with state reads or writes, ascending, and how many rows each has."""

    async def first_use(self, transaction_id: TransactionId, key: str) -> int | None:
        """Return the first step in force that read, wrote, scanned or checked a key, None if none did."""

    async def count_open(self, principal: str) -> int:
        """Return how many transactions of a principal (empty: of all) have not ended."""

    async def commit_version(self) -> int:
        """Return the version of the newest publication (0: none)."""

    async def load_revision(self, transaction_id: TransactionId) -> int:
        """Return a transaction's revision, 0 if there is no such transaction."""

    async def list_compensations(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[UndoState],
        cursor: str,
        limit: int,
    ) -> CompensationPage:
        """Return a page of undo actions in these states. Raises ValueError for a cursor it did not give."""

    async def list_effects_page(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[EffectState],
        channel: str,
        cursor: str,
        limit: int,
        byte_limit: int,
    ) -> EffectPage:
        """Return a page of effects; empty states and channel: all. Raises ValueError for a cursor it did not give."""

    async def load_approval(self, transaction_id: TransactionId, sequence: int) -> ApprovalRecord | None:
        """Return an approval in whatever state, None if the transaction has none of that number."""

    async def list_approvals(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[ApprovalState],
        cursor: str,
        limit: int,
        byte_limit: int,
    ) -> ApprovalPage:
        """Return a page of approvals in these states. Raises ValueError for a cursor it did not give."""

    # --- servers, leases, takeover --------------------------------------------------------

    async def register_server(self, server_id: ServerId, lease_seconds: float, now: MicrosecondsUtc) -> None:
        """Have a server hold a lease from now on. On a database that isn't shared every other server is dead."""

    async def renew_lease(self, server_id: ServerId, lease_seconds: float, now: MicrosecondsUtc) -> bool:
        """Prolong a lease; False, and nothing changed, if it had ended: the server must take a new id."""

    async def retire_server(self, server_id: ServerId) -> None:
        """End a lease in order: the server owns no ACTIVE transaction and delivers no effects any more.

        Transactions with unsettled work stay marked as its own; without a lease they are orphans at once.
        """

    async def is_alive(self, server_id: ServerId, now: MicrosecondsUtc) -> bool:
        """Return whether a server holds a lease."""

    async def list_servers(self, now: MicrosecondsUtc) -> Sequence[ServerId]:
        """Return the servers that hold a lease, in order of their ids."""

    async def claim_orphans(
        self, server_id: ServerId, now: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        """Take over transactions whose owner has no lease, oldest first; return them.

        Atomically: ``owner`` becomes ``server_id`` and ``revision`` grows by one, which fences whoever
        still holds the transaction. Two servers never get the same one (SKIP LOCKED).
        """

    async def list_unsettled_of(
        self, server_id: ServerId, updated_before: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        """Return transactions that a server owns, that are not ACTIVE, and were last written to before a time."""

    async def request_stop(self, request: StopRequest) -> None:
        """Leave word for the server that owns a transaction, in place of an earlier word for it."""

    async def take_stop_requests(self, server_id: ServerId) -> Sequence[StopRequest]:
        """Return and remove what was left for transactions that a server owns."""

    async def note_unrecovered(self, transaction_id: TransactionId, reason: str) -> None:
        """Keep why a transaction can't be recovered, so that listings show it; empty: it was recovered."""

    async def load_recovery_problem(self, transaction_id: TransactionId) -> str:
        """Return why a transaction can't be recovered, empty if it can."""

    # --- the outbox, the reaper, retention ------------------------------------------------

    async def claim_outbox(
        self, server_id: ServerId, now: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        """Take transactions whose ``outbox_due_at`` is not after ``now`` and whose ``outbox_owner`` is none or
        has no lease, earliest due first; return them.

        Sets ``outbox_owner`` and nothing else: the revision does not grow.
        """

    async def next_outbox_due(self) -> MicrosecondsUtc | None:
        """Return the earliest ``outbox_due_at`` of transactions that nobody delivers now, None if none waits."""

    async def list_outbox_of(
        self, server_id: ServerId, due_by: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        """Return transactions that a server delivers, or should, and that were due by a time, earliest due first."""

    async def list_expired(
        self, now: MicrosecondsUtc, serving_since: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        """Return open transactions past their deadline, and quiet ones that are idle, at most ``limit``.

        Quiet: ACTIVE, or AWAITING_APPROVAL without a PENDING approval. Idle: ``idle_timeout_us`` is above 0
        and that long has passed since ``updated_at`` and since ``serving_since``.
        """

    async def purge_ended(self, ended_before: MicrosecondsUtc, limit: int) -> int:
        """Delete up to ``limit`` transactions that ended before a time, with all their rows; return how many.

        Kept: those with READY or DEAD effects and with FAILED or LATE undo. Committed state stays.
        """

    async def check(self) -> None:
        """Prove that the database answers and takes writes; raise StoreUnavailable otherwise."""


# --- tools -------------------------------------------------------------------------------


class ToolFailure(Exception):
    """A tool's structured error: it bypasses the hint rules.

    ``category`` is one of the hint categories, ``keys`` the offending fields.
    """

    def __init__(self, category: HintCategory | str, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.category = category
        self.message = message
        self.keys = tuple(keys)


class ArgumentsRefused(ToolFailure):
    """Arguments that the tool's schema refuses; the tool was never called."""


class NotCalled(ToolFailure):
    """The tool's code was not reached, by nobody's fault: no worker that has it was there, or all were busy."""


class RunnerLost(ToolFailure):
    """Whoever ran the tool is gone in the middle of it, and the tool has no effects outside."""


class ReportedFailure(Exception):
    """An error that was raised in another process; ``raw_error`` is its text, traceback included."""

    def __init__(self, raw_error: str) -> None:
        super().__init__(raw_error)
        self.raw_error = raw_error


class UndoUnavailable(Exception):
    """The undo action can't be run now, as nobody who has it is there; it was not tried."""


class SubStepFailed(ToolFailure):
    """A sub-step failed and was undone. Raised in the step that asked for it; let through, it is the step's failure."""

    def __init__(self, sub_step: int, hint: Hint) -> None:
        super().__init__(hint.category, hint.text, hint.keys)
        self.sub_step = sub_step
        self.hint = hint


StepFunction: TypeAlias = Callable[[Any, "ToolContext"], Awaitable[Any]]
"""Code of a layer above the engine that is run as a step or a sub-step: parsed arguments and a context in, a JSON-able
value out."""


@dataclass(frozen=True, slots=True)
class SubStepCall:
    """A call that a step's code makes: ``arguments`` is JSON text; ``timeout_us`` None is the tool's own.

    With ``function`` that is called, and ``tool_name`` only names it: it must do all that it does outside in
    sub-steps of its own. Calls of one ``scope`` are told apart by their order; branches that run side by side
    take a scope each. ``inner_scope`` is that of the calls made inside; None: one of its own, by its place.
    ``ordinal`` says which call of its scope it is, from 1, where that isn't the order: a failed one that is made again.
    """

    tool_name: str
    arguments: str
    timeout_us: int | None = None
    scope: str = ""
    inner_scope: str | None = None
    function: StepFunction | None = None
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class AdoptedStep:
    """A step that was withdrawn, of this transaction or of one before it, whose calls another one takes over."""

    transaction_id: TransactionId
    step_id: int


class StepWaits(Exception):
    """A member of a held group stops here: it is started again when what it waits for has come.

    ``payload`` is for the group's owner.
    """

    def __init__(self, payload: object = None) -> None:
        super().__init__("the step waits")
        self.payload = payload


class OutcomeUnknown(Exception):
    """The tool can't tell whether its effect happened."""


class ContextClosed(Exception):
    """The attempt's deadline passed or it was superseded: nothing more can be stored, staged or registered."""


class ToolContext(Protocol):
    """What a running tool may use; the engine implements it, one a call.

    Keys are ``namespace/key``. Values are canonical JSON text. After the deadline every
    method raises :class:`ContextClosed`.
    """

    @property
    def transaction_id(self) -> TransactionId: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def step_id(self) -> int: ...
    @property
    def sub_step(self) -> int:
        """The sub-step, from 1; 0 for the step itself."""

    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str:
        """The attempt's key, the same over retries and crashes."""

    @property
    def fence(self) -> int:
        """A number that grows with each takeover, for systems that can check it."""

    @property
    def metadata(self) -> str:
        """What the call says of itself beside its arguments, as a JSON object; empty for nothing."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, 0 or less once it passed."""

    def check_begin(self) -> None:
        """Raise StoreUnavailable if the call may not begin any more, another server having taken its work over.

        The engine looks before it hands a call on; whoever keeps it waiting looks again, right before it leaves.
        """

    async def get(self, key: str) -> str | None:
        """Read a key: own writes first, then committed state."""

    async def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[tuple[str, str]]:
        """Read present keys with a prefix, in key order."""

    async def put(self, key: str, value: str) -> None:
        """Write a key; visible to later steps once this step succeeded."""

    async def delete(self, key: str) -> None:
        """Remove a key (no error if it is absent)."""

    async def require_exists(self, key: str, error: str) -> None:
        """Have the commit check again that a key exists; ``error`` is reported if not."""

    async def require_none(self, prefix: str, error: str) -> None:
        """Have the commit check again that no key has a prefix."""

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        """Register an undo action, durable when this returns; call it before the effect."""

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        """Replace the arguments of the undo action of this name that was registered last; durable when it returns."""

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        """Stage an effect for delivery after commit; return its id."""

    async def touch(self, key: str, *, writes: bool) -> None:
        """Say which outside thing the tool is about to read, or to change; call it before it does.

        Of two members of a group that touch one key, one of them writing, the higher step
        fails with category conflict, whatever finished first. Keys are paths, ``file/a/b``:
        touching one touches all beneath it. Nothing is locked and nothing is published.
        """

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        """Call a tool as a sub-step of this step; return its output. ``arguments`` and output are JSON text.

        Durable when it returns: where this step is started again, the same call is answered from the journal.
        Raises SubStepFailed, its undo having run; ContextClosed where this step can't go on.
        """


def _may_begin() -> None:
    """Nobody may have taken the work over."""


@dataclass(frozen=True, slots=True)
class UndoContext:
    """What an undo action is told: whose effect it takes back and the key it always gets.

    ``check_begin`` is as :meth:`ToolContext.check_begin`; it and the ``owner`` of the transaction are told to nobody.
    """

    transaction_id: TransactionId
    agent_id: str
    step_id: int
    attempt: int
    idempotency_key: str
    check_begin: Callable[[], None] = field(default=_may_begin, compare=False, repr=False)
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far a tool says it has come: part done from 0 to 1, None where it can't tell, and one line."""

    fraction: float | None
    message: str


class ToolRunner(Protocol):
    """Runs tools and undo actions by name."""

    def describe(self, name: str) -> ToolDescription | None:
        """Return a tool's description, None if there is no such tool."""

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return all tools by name."""

    async def find(self, name: str, wait_seconds: float) -> ToolDescription | None:
        """Return a tool's description; wait for who offers it if nobody did so far."""

    async def was_offered(self, name: str) -> bool:
        """Whether a tool that nobody offers here now was offered lately, or is by who is connected to another server."""

    def check_arguments(self, name: str, arguments: Any) -> None:
        """Raise ArgumentsRefused if it is known here that a tool refuses arguments; they are left as they are."""

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool on parsed arguments; return a JSON-able value; raise what the tool raises.

        Raises ArgumentsRefused before the tool is called, and NotCalled where it can't be. Cancelling this coroutine asks the
        tool to stop; it ends only when the tool's code has ended.
        """

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool that is described as prompt, here and now; return and raise as :meth:`run` does.

        Raises RuntimeError if it waits for something after all. What it did is in the context, and may be thrown away.
        """

    def progress(self, transaction_id: TransactionId, step_id: int, sub_step: int) -> ToolProgress | None:
        """Return what a step's tool, which runs through this server, last said of how far it is; None if nothing."""

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action; it must be idempotent. Raises what the action raises, or UndoUnavailable."""

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        """Let go of what was kept for undoing this transaction (backups, claims)."""


class ApprovalPolicy(Protocol):
    """Says which calls a person is asked about, beside those of tools that always need it."""

    def why(self, tool_name: str, arguments: Any) -> str:
        """Return in one line why a call needs approval, empty if it does not. ``arguments`` are left as they are.

        Pure, and never raises: a rule that can't be judged is a reason to ask.
        """


class DeliveryFailed(Exception):
    """An effect could not be delivered, and the sink knows more about when it could.

    ``permanent`` is that trying again is pointless; ``retry_after_seconds`` the least time that the
    receiver asks to be left alone for, None if it doesn't say.
    """

    def __init__(
        self, message: str, *, permanent: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent
        self.retry_after_seconds = retry_after_seconds


class EffectSink(Protocol):
    """Takes an effect out into the world, at least once, under a stable key."""

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Deliver one effect; returning means that it is safely delivered.

        ``effect.attempts`` counts this delivery, and those before it whose end a crash may have
        hidden. Raises DeliveryFailed, or anything else, on failure: it is then tried again later.
        """


class Clock(Protocol):
    """Time. ``now`` is wall time, ``monotonic`` seconds for durations."""

    def now(self) -> MicrosecondsUtc: ...
    def monotonic(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class IdSource(Protocol):
    """New ids (UUIDv7, ordered by time of making) and randomness for jitter."""

    def new_id(self) -> str: ...
    def random(self) -> float:
        """Return a number in [0, 1)."""
