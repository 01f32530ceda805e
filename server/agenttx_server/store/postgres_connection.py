"""The writer's connection to PostgreSQL: what is executed is sent at once and answered together.

psycopg makes the connection; batches go through its wrapper of libpq (``psycopg.pq``) in pipeline
mode, as prepared statements with text parameters: for eight statements 60 µs of processor time
against 460 µs by cursors (docs/decisions/0007-postgresql-store.md). A batch waits once, for all its statements
and COMMIT behind them: where one fails the server passes over what is behind it, so nothing is committed. Several
publications, which have to be looked at first, are waited for before.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import lookup
from sqlalchemy.dialects.postgresql.asyncpg import dialect as numbered_dialect

from agenttx_server.engine.ports import DuplicateRequestId, ExtraRowsRefused, StoreUnavailable
from agenttx_server.store.batch_connection import (
    AuditTail,
    BatchStatements,
    NotCommitted,
    SomeSetRefused,
    TryAgain,
)
from agenttx_server.store.postgres_row_statements import GUARD_FAILED, encoded, guard
from agenttx_server.store.postgres_statements import STATEMENTS
from agenttx_server.store.prepared_query import PreparedQuery
from agenttx_server.store.schema import ENGINE_TABLES

__all__ = ["Answer", "PostgresConnection"]

# Compiles Core to the parameters of the wire ($1, $2 …); the driver of this name is not used.
_NUMBERED = numbered_dialect()  # type: ignore[no-untyped-call]

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_TAKEN_BACK = {
    "40001": "another server's transaction was in the way",
    "40P01": "a deadlock with another server was broken",
    "55P03": "another server held a lock for too long",
}
_CONNECTION_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
# Classes that mean a mistake in this program: data, a constraint, a statement, something too large.
_MISTAKES = ("22", "23", "42", "54")

# Of a batch of one write set this is about half: the server is at it while the other half is written down.
_FIRST_PART = 5

_DECODERS: dict[int, Any] = {16: lambda text: text == b"t", 20: int, 21: int, 23: int}


class Answer:
    """What a statement that was sent has done; asked for it, it waits for all that was sent."""

    __slots__ = ("_connection", "changed", "guards", "prepares", "rows")

    def __init__(self, connection: PostgresConnection, *, guards: bool = False, prepares: str = "") -> None:
        self._connection = connection
        self.guards = guards
        self.prepares = prepares
        self.changed: int | None = None
        self.rows: list[tuple[Any, ...]] = []

    def take(self, result: pq.abc.PGresult) -> None:
        """Note what the database answered."""
        self.changed = result.command_tuples or 0
        if result.ntuples:
            decoders = [_DECODERS.get(result.ftype(column), bytes.decode) for column in range(result.nfields)]
            self.rows = [
                tuple(
                    [
                        None if (value := result.get_value(row, column)) is None else decode(value)
                        for column, decode in enumerate(decoders)
                    ]
                )
                for row in range(result.ntuples)
            ]

    def __int__(self) -> int:
        self._connection.settle()
        assert self.changed is not None
        return self.changed


class PostgresConnection:
    """One connection (batch_connection.BatchConnection).

    Raises SomeSetRefused, TryAgain, StoreUnavailable, DuplicateRequestId, ExtraRowsRefused, and psycopg.Error for
    mistakes in the program; ``commit`` raises them inside NotCommitted.
    ``silence_seconds`` is how long the server may say nothing before the connection is taken for lost.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        silence_seconds: float,
        statements: BatchStatements = STATEMENTS,
    ) -> None:
        self.statements = statements
        self.audit_tail = AuditTail()
        self._driver = connection
        self._wire = connection.pgconn
        self._silence_ms = int(silence_seconds * 1000)
        self._prepared: dict[str, bytes] = {}
        self._guards: dict[str, str] = {}
        self._numbers = itertools.count()
        self._sent: list[Answer] = []
        self._wire.enter_pipeline_mode()
        self._wire.nonblocking = 1
        self._readable = select.poll()
        self._readable.register(self._wire.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._wire.socket, select.POLLIN | select.POLLOUT)

    # --- transactions ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction."""
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")

    def commit(self) -> None:
        """Make the transaction durable, with all that was sent before and not waited for."""
        try:
            self._check_alive()
            commit = self.execute("COMMIT")
        except TryAgain as lost:
            raise NotCommitted(lost) from lost
        # Lost from here on, it may have taken effect.
        failed = self._take_answers()
        if failed is None:
            return
        error = _error_of(*failed)
        if failed[0] is commit or (isinstance(error, TryAgain) and error.connection_lost):
            raise error
        raise NotCommitted(error) from error  # the server has passed over COMMIT

    def rollback(self) -> None:
        """Take the transaction back, if there is one."""
        self.audit_tail.is_sure = False
        self._settle_quietly()
        if self._wire.transaction_status != pq.TransactionStatus.IDLE:
            self.execute("ROLLBACK")
            self.settle()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Take back what is done inside, and only that, if an exception leaves it."""
        self.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._settle_quietly()
            self.execute("ROLLBACK TO part")
            self.execute("RELEASE part")
            raise
        self.execute("RELEASE part")

    # --- statements ------------------------------------------------------------------------------

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Answer:
        """Send a statement."""
        return self.send(statement, [encoded(value) for value in parameters])

    def first(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Return a query's first row, None if it has none."""
        return self.first_of(statement, [encoded(value) for value in parameters])

    def first_of(self, statement: str, parameters: Sequence[bytes | None]) -> Any:
        """Return the first row of a query whose parameters are encoded, None if it has none."""
        answer = self.send(statement, parameters)
        self.settle()
        return answer.rows[0] if answer.rows else None

    def rows(self, query: PreparedQuery, **values: Any) -> Sequence[Sequence[Any]]:
        """Return all rows of a query written as Core (prepared_query.WriteCalls)."""
        found, payloads = self._run(query, values).rows, self.statements.payloads
        return found if payloads is None else query.opened(payloads, found, values)

    def change(self, query: PreparedQuery, **values: Any) -> int:
        """Run a statement written as Core and return how many rows it changed."""
        return int(self._run(query, values))

    def _run(self, query: PreparedQuery, values: dict[str, Any]) -> Answer:
        payloads = self.statements.payloads
        text, parameters = (
            query.call(_NUMBERED, values)
            if payloads is None
            else query.sealed_call(payloads, _NUMBERED, values)
        )
        # Not prepared by name: what has a list of values in it has many texts.
        sent = [encoded(value) for value in parameters]
        answer = self._ask(Answer(self), self._wire.send_query_params, text.encode(), sent)
        self.settle()
        return answer

    def require_none(self, query: str, parameters: Sequence[Any]) -> None:
        """Ask that a query finds no row: else SomeSetRefused, once it is settled."""
        text = self._guards.get(query)
        if text is None:
            text = self._guards[query] = f"SELECT {guard('0')} FROM ({query}) AS found"  # noqa: S608
        self.send(text, [encoded(value) for value in parameters], guards=True)

    def ask(self, statement: str, parameters: Sequence[Any]) -> Callable[[], Any]:
        """Send a query; what is returned gives its first row."""
        answer = self.execute(statement, parameters)

        def first() -> Any:
            self.settle()
            return answer.rows[0] if answer.rows else None

        return first

    def send(self, text: str, parameters: Sequence[bytes | None], *, guards: bool = False) -> Answer:
        """Send a statement with encoded parameters; it is prepared the first time."""
        name = self._prepared.get(text)
        if name is None:
            name = self._prepared[text] = b"s%d" % next(self._numbers)
            self._ask(Answer(self, prepares=text), self._wire.send_prepare, name, text.encode())
        return self._ask(Answer(self, guards=guards), self._wire.send_query_prepared, name, parameters)

    def _ask(self, answer: Answer, call: Callable[..., None], *arguments: Any) -> Answer:
        try:
            call(*arguments)
        except psycopg.OperationalError as error:
            raise _lost(str(error)) from error
        self._sent.append(answer)
        if len(self._sent) == _FIRST_PART:
            self._send_part()
        return answer

    def _send_part(self) -> None:
        """Let the server begin with what was made so far, while the rest is; what can't be sent at once waits."""
        try:
            self._wire.flush()
        except psycopg.OperationalError as error:
            raise _lost(str(error)) from error

    # --- answers ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait for what was sent."""
        if self._sent and (failed := self._take_answers()) is not None:
            raise _error_of(*failed)

    def _take_answers(self) -> tuple[Answer, pq.abc.PGresult] | None:
        """Wait for what was sent; return the statement that failed, if one did, with what the server says."""
        sent, self._sent = self._sent, []
        failed: tuple[Answer, pq.abc.PGresult] | None = None
        for answer, result in zip(sent, self._results(), strict=False):
            if result.status in _DONE:
                answer.take(result)
                continue
            if answer.prepares:
                self._prepared.pop(answer.prepares, None)
            # What comes behind a failure was passed over (PIPELINE_ABORTED).
            if failed is None:
                failed = answer, result
        return failed

    def _check_alive(self) -> None:
        """Raise TryAgain if the server has ended the connection, as it may while nothing is asked of it."""
        while self._readable.poll(0):
            try:
                self._wire.consume_input()
            except psycopg.OperationalError as error:
                raise _lost(str(error)) from error
            if self._wire.status == pq.ConnStatus.BAD:
                raise _lost("the connection has ended")

    def _settle_quietly(self) -> None:
        """Wait for what was sent whatever it says, so that something else can be sent."""
        with suppress(Exception):
            self.settle()
        if self._wire.status == pq.ConnStatus.BAD:
            raise _lost("the connection has ended")

    def _results(self) -> list[pq.abc.PGresult]:
        """Return one result for each of the statements sent."""
        results: list[pq.abc.PGresult] = []
        try:
            self._wire.pipeline_sync()
            self._flush()
            while True:
                while self._wire.is_busy():
                    self._wait(self._readable)
                    self._wire.consume_input()
                result = self._wire.get_result()
                if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
                    return results
                if self._wire.status == pq.ConnStatus.BAD:
                    raise _lost("the connection has ended" if result is None else _message_of(result))
                # None is the end of one statement's results.
                if result is not None:
                    results.append(result)
        except psycopg.OperationalError as error:
            raise _lost(str(error)) from error

    def _flush(self) -> None:
        while self._wire.flush():
            # The server may want to be rid of answers before it takes more.
            self._wait(self._either)
            self._wire.consume_input()

    def _wait(self, poll: select.poll) -> None:
        if not poll.poll(self._silence_ms):
            raise _lost(f"the database said nothing for {self._silence_ms / 1000:g} s")

    def close(self) -> None:
        """Close; an open transaction is taken back."""
        self._driver.close()


_DONE = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK})


def _lost(reason: str) -> TryAgain:
    return TryAgain(" ".join(reason.split()), connection_lost=True)


def _message_of(result: pq.abc.PGresult) -> str:
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return " ".join(message.decode(errors="replace").split())


def _error_of(answer: Answer, result: pq.abc.PGresult) -> Exception:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if answer.guards and state == GUARD_FAILED:
        return SomeSetRefused()
    message = _message_of(result)
    if state in _TAKEN_BACK:
        return TryAgain(f"{_TAKEN_BACK[state]} ({message})")
    if state in _CONNECTION_ENDED or state.startswith("08"):
        return _lost(message)
    if state == "23505":
        table = (result.error_field(pq.DiagnosticField.TABLE_NAME) or b"").decode()
        if table == "recorded_responses":
            return DuplicateRequestId("an answer is recorded under this request_id")
        if table and table not in ENGINE_TABLES:
            return ExtraRowsRefused(f"a row of {table} exists already, or one that must be there doesn't")
    if state.startswith(_MISTAKES):
        try:
            return lookup(state)(message)
        except KeyError:
            return psycopg.DatabaseError(message)
    return StoreUnavailable(f"the database did not answer: {message}")
