"""Durable memory: what is written in one go, what is read, and the errors that tell what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Protocol, TypeAlias

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
    MicrosecondsUtc,
    RecordedResponse,
    ServerId,
    StateRead,
    StateWrite,
    StopRequest,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
    UndoState,
)

__all__ = [
    "ApprovalPage",
    "AttemptPage",
    "CommitRefused",
    "CommittedPage",
    "CompensationPage",
    "DuplicateRequestId",
    "EffectPage",
    "ExtraOperation",
    "ExtraRows",
    "ExtraRowsRefused",
    "ExtraValue",
    "StaleRevision",
    "StateView",
    "StepRemoval",
    "StoreUnavailable",
    "StoredJournal",
    "StoredTransaction",
    "StoredValueDamaged",
    "TransactionFilter",
    "TransactionPage",
    "TransactionStore",
    "WriteReceipt",
    "WriteSet",
]


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
