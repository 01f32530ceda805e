"""What a batch needs of the writer's connection, whatever the database.

Statements are given by each database's own module, under one set of names. On a database that
is reached over a wire what is executed is only sent, COMMIT with it: its outcome is known once something is
asked for, at the latest at :meth:`BatchConnection.commit`. So what a batch rests on (guards, :meth:`BatchConnection.require_none`)
is found out by the database itself, which passes over everything behind a statement that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, SupportsInt

from agenttx_server.audit.chain import Head
from agenttx_server.engine.ports import ExtraOperation
from agenttx_server.store.prepared_query import WriteCalls

if TYPE_CHECKING:
    from agenttx_server.store.payload_codec import PayloadCodec

__all__ = [
    "AuditTail",
    "BatchConnection",
    "BatchStatements",
    "NotCommitted",
    "RowStatement",
    "SomeSetRefused",
    "TryAgain",
]


class SomeSetRefused(Exception):
    """A set of the batch is stale or may not be published; the caller rolls back and goes on carefully."""


class TryAgain(Exception):
    """Nothing was written, and the same batch may well succeed if it is tried again.

    Its transaction was taken back (a deadlock, a lock not given in time), or with
    ``connection_lost`` the connection ended before COMMIT was sent. ``str()`` says what happened.
    """

    def __init__(self, reason: str, *, connection_lost: bool = False) -> None:
        super().__init__(reason)
        self.connection_lost = connection_lost


class NotCommitted(Exception):
    """A statement before COMMIT failed, so nothing was written. ``why`` is what that statement raises."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


@dataclass(slots=True)
class AuditTail:
    """The head of its chain of the audit trail as a connection wrote it last, so that it need not be read, and waited for.

    ``is_sure``: nothing that the connection did since was taken back. ``is_shared``: others write to the chain too, so that what
    is remembered is worth nothing.
    """

    head: Head | None = None
    is_sure: bool = False
    is_shared: bool = False


class RowStatement(Protocol):
    """A statement over rows of a given width, whose values are given one behind the other."""

    def execute(self, connection: Any, values: Sequence[Any], expected: int | None = None) -> SupportsInt:
        """Run; return the number of rows changed. Another number than ``expected`` is SomeSetRefused, by then or at COMMIT, which then does not take place."""

    def query(self, connection: Any, values: Sequence[Any]) -> Any:
        """Return the one row of a query over rows."""


@dataclass(frozen=True, slots=True)
class BatchStatements:
    """The statements by what they do; texts take one parameter, the transaction's id or what their comment says.

    ``insert_rows`` are by table, in the order in which they run; ``extra_rows``, by table and operation, run behind
    them. ``remove_steps`` take [transaction, step, first and last sequence, first and last sub-step]. ``lock_publication`` has all publications,
    of other servers too, wait until this transaction has ended; it is empty where they do so anyway. ``lock_audit`` does so with
    who writes to the same chain of the audit trail, whose head (chain, sequence, hash) ``audit_head`` reads then.
    ``payloads`` opens what is read; None where values are plain. ``publish_state`` and ``record_commit_versions`` take [transaction, how far its version is below the counter's].
    """

    guarded_insert: RowStatement
    guarded_update: RowStatement
    read_revisions: RowStatement
    record_rewinds: RowStatement
    remove_rewound: Sequence[RowStatement]
    remove_steps: Sequence[RowStatement]
    insert_rows: Mapping[str, RowStatement]
    lock_publication: str
    advance_commit_version: str  # by how many
    survey_publications: RowStatement
    publish_state: RowStatement
    publish_effects: RowStatement
    record_commit_versions: RowStatement
    find_moved_base: str
    find_changed_read: str
    find_changed_prefix: str
    find_broken_check: str
    lock_audit: str
    audit_head: str
    audit_behind: str  # finds an entry of a chain behind a sequence
    extra_rows: Mapping[tuple[str, ExtraOperation], RowStatement]
    payloads: PayloadCodec | None = None


class BatchConnection(WriteCalls, Protocol):
    """One connection of the writer's; transactions are begun and ended by hand."""

    @property
    def audit_tail(self) -> AuditTail | None:
        """What is remembered of the audit trail; None where its head is read without waiting."""

    @property
    def statements(self) -> BatchStatements:
        """The SQL of this connection's database."""

    def begin(self) -> None:
        """Begin a write transaction."""

    def settle(self) -> None:
        """Wait for what was sent. Raises SomeSetRefused, TryAgain and what the database raises."""

    def commit(self) -> None:
        """Make the transaction durable. Raises NotCommitted; after any other error its outcome is unknown."""

    def rollback(self) -> None:
        """Take the transaction back, if there is one."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Take back what is done inside, and only that, if an exception leaves it."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> SupportsInt:
        """Run a statement and return how many rows it changed."""

    def require_none(self, query: str, parameters: Sequence[Any]) -> None:
        """Ask that a query finds no row: else SomeSetRefused, by then or at COMMIT, which then does not take place."""

    def ask(self, statement: str, parameters: Sequence[Any]) -> Callable[[], Any]:
        """Run a query; what is returned gives its first row, once everything before is settled."""

    def first(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Return a query's first row, None if it has none."""

    def close(self) -> None:
        """Close; an open transaction is taken back."""
