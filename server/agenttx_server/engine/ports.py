"""What the engine needs of the outer layers, as protocols they implement.

``TransactionStore`` is durable memory, ``ToolRunner`` runs tools, ``EffectSink`` takes
effects out, ``Clock`` and ``IdSource`` are time, ids and randomness. Errors that cross a
port are the ones named here or in :mod:`.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import (
    AttemptRecord,
    CommitCheck,
    CommittedEntry,
    EffectRecord,
    EffectState,
    EventRecord,
    HintCategory,
    MicrosecondsUtc,
    RecordedResponse,
    StateRead,
    StateWrite,
    ToolDescription,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
)

__all__ = [
    "ArgumentsRefused",
    "AttemptPage",
    "Clock",
    "CommitRefused",
    "CommittedPage",
    "ContextClosed",
    "DuplicateRequestId",
    "EffectSink",
    "IdSource",
    "OutcomeUnknown",
    "StaleRevision",
    "StateView",
    "StoreUnavailable",
    "StoredTransaction",
    "ToolContext",
    "ToolFailure",
    "ToolRunner",
    "TransactionFilter",
    "TransactionPage",
    "TransactionStore",
    "UndoContext",
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


class CommitRefused(Exception):
    """Validation at commit failed; nothing of the write set was written.

    ``key`` is the state key (``namespace/key``) that broke it and ``description`` one line.
    """

    def __init__(self, key: str, description: str) -> None:
        super().__init__(description)
        self.key = key
        self.description = description


@dataclass(frozen=True, slots=True)
class WriteSet:
    """One atomic write to one transaction, guarded by its revision.

    Applied in this order: guard and head row (``expected_revision`` 0 inserts it); if
    ``rewind_from`` is set, removal of all state writes, reads, checks, STAGED effects and
    undo rows that are DONE or PENDING-and-dropped of steps >= it, and a row in ``rewinds``
    under the *previous* generation, which marks every attempt of those steps begun until
    then as rewound; then upserts of ``attempts`` (by step and attempt), ``undo`` (by
    sequence) and ``effects`` (by effect_id), inserts of the rest; then, if ``publish``,
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
    events: Sequence[EventRecord] = ()
    responses: Sequence[RecordedResponse] = ()
    publish: bool = False


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
    ever used in this transaction, by steps (rewound ones too) and by other calls.
    """

    transaction: TransactionRecord
    attempts: Sequence[AttemptRecord]
    undo: Sequence[UndoRecord]
    attempt_counts: Mapping[int, int]
    group_reads: Sequence[StateRead] = ()
    group_writes: Sequence[StateWrite] = ()
    request_ids: Sequence[str] = ()


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
    newest first; transactions that have none are left out of either.
    """

    transactions: Sequence[TransactionRecord]
    next_cursor: str
    effects: Mapping[TransactionId, Mapping[EffectState, int]] = field(default_factory=dict)
    undo_failed: Mapping[TransactionId, Sequence[UndoRecord]] = field(default_factory=dict)


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


class TransactionStore(Protocol):
    """Durable memory of transactions. Every method may raise :class:`StoreUnavailable`."""

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        """Apply one write set atomically; return once it is durable.

        Sets of one transaction are applied in the order of the calls. Raises
        StaleRevision, DuplicateRequestId, CommitRefused, StoreUnavailable.
        """

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
    ) -> AttemptPage:
        """Return a page of the history. Raises ValueError for a cursor it did not give."""

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

    async def count_open(self, principal: str) -> int:
        """Return how many transactions of a principal (empty: of all) have not ended."""

    async def check(self) -> None:
        """Prove that the database answers; raise StoreUnavailable otherwise."""


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
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str:
        """The attempt's key, the same over retries and crashes."""

    @property
    def fence(self) -> int:
        """A number that grows with each takeover, for systems that can check it."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, 0 or less once it passed."""

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

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        """Stage an effect for delivery after commit; return its id."""

    async def touch(self, key: str, *, writes: bool) -> None:
        """Say which outside thing the tool is about to read, or to change; call it before it does.

        Of two members of a group that touch one key, one of them writing, the higher step
        fails with category conflict, whatever finished first. Keys are paths, ``file/a/b``:
        touching one touches all beneath it. Nothing is locked and nothing is published.
        """


@dataclass(frozen=True, slots=True)
class UndoContext:
    """What an undo action is told: whose effect it takes back and the key it always gets."""

    transaction_id: TransactionId
    agent_id: str
    step_id: int
    attempt: int
    idempotency_key: str


class ToolRunner(Protocol):
    """Runs tools and undo actions by name."""

    def describe(self, name: str) -> ToolDescription | None:
        """Return a tool's description, None if there is no such tool."""

    def describe_all(self) -> Sequence[ToolDescription]:
        """Return all tools by name."""

    async def run(self, name: str, arguments: Any, context: ToolContext) -> Any:
        """Run a tool on parsed arguments; return a JSON-able value; raise what the tool raises.

        Raises ArgumentsRefused before the tool is called. Cancelling this coroutine asks the
        tool to stop; it ends only when the tool's code has ended.
        """

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        """Run an undo action; it must be idempotent. Raises what the action raises."""

    async def transaction_ended(self, transaction_id: TransactionId) -> None:
        """Let go of what was kept for undoing this transaction (backups, claims)."""


class EffectSink(Protocol):
    """Takes an effect out into the world, at least once, under a stable key."""

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Deliver one effect; returning means that it is safely delivered. Raises on failure."""


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
