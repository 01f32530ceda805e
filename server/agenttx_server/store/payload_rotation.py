"""Stored values brought under the active key, or made plain, while servers go on; and how many there are under each.

A table is gone through by its key in pages. The rows of a page that are to be changed are read, sealed anew, and written if they still are what was
read: a row that a server wrote meanwhile is sealed with that server's key, and looked at again in the next pass. So it
can be stopped at any moment and begun again, and ends when a pass finds nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    case,
    delete,
    event,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError

from agenttx_server.engine.ports import StoredValueDamaged, StoreUnavailable
from agenttx_server.store import schema
from agenttx_server.store.administration import administered
from agenttx_server.store.database import database_file, reader_engine
from agenttx_server.store.payload_admission import REGISTER, check_keys, new_key, registered_keys
from agenttx_server.store.payload_codec import HOLDS_NOTHING, SEALED, PayloadCodec
from agenttx_server.store.payload_columns import PAYLOADS, TRANSACTION
from agenttx_server.store.payload_keys import PayloadKeys
from agenttx_server.store.payload_queries import (
    bound_name,
    identity_columns,
    metadata_token,
    opened_value,
    sealed_value,
)
from agenttx_server.store.postgres_address import PostgresAddress, is_postgresql
from agenttx_server.store.prepared_query import STREAMED
from agenttx_server.store.record_codec import parse_json
from agenttx_server.store.settings import PostgresSettings, StoreSettings
from agenttx_server.store.storage_errors import DatabaseRefused, engine_error

__all__ = ["KeyUse", "Rotated", "count_by_key", "rotate"]

_KEYS_A_PAGE: Final = 1_000
_ROWS_A_BATCH: Final = 100
_BYTES_A_BATCH: Final = 4 << 20
_MOST_PASSES: Final = 5
_MOST_TRIES: Final = 20
_MOST_DAMAGED: Final = 100
# A server's writer waits for the same lock: it gets as long as a batch took.
_LONGEST_PAUSE_SECONDS: Final = 0.25

transactions, metadata = schema.transactions, schema.transaction_metadata


@dataclass(frozen=True, slots=True)
class KeyUse:
    """How many values there are under a key; ``key`` None: plain. ``is_known``: the file has the key."""

    key: str | None
    values: int
    is_known: bool


@dataclass(frozen=True, slots=True)
class Rotated:
    """What was done: values sealed anew, those that could not be opened (the first of them, by place), and keys that hold nothing any more.

    ``is_whole`` is that the last pass found nothing left to do. ``kept_for`` are keys that hold nothing, and that servers that began before the
    active key came may use still.
    """

    values: int
    damaged: Sequence[str]
    is_whole: bool
    forgotten: Sequence[str] = ()
    kept_for: Sequence[str] = ()


def rotate(
    database_url: str,
    keys: PayloadKeys,
    *,
    on_batch: Callable[[str, int], None] = lambda table, values: None,
    keys_a_page: int = _KEYS_A_PAGE,
    rows_a_batch: int = _ROWS_A_BATCH,
) -> Rotated:
    """Seal all values with the active key that are not; make them plain where none is active.

    ``on_batch`` is told of each batch that is durable. Raises DatabaseRefused: the database can't be reached, is of another version
    and being served, or holds values of keys that are not there.
    """
    codec = PayloadCodec(keys)
    with _opened(database_url) as (reading, writing):
        registered = registered_keys(reading)
        reading.rollback()
        check_keys(registered, keys, codec)
        row = new_key(registered, codec)
        if row is not None:
            _written(writing, partial(REGISTER.run, writing, **row))
        work = _Rotation(codec, reading, writing, on_batch, keys_a_page, rows_a_batch)
        total = 0
        for _ in range(_MOST_PASSES):
            changed = work.all_tables()
            total += changed
            if not changed:
                break
        whole = not changed and not work.damaged
        forgotten, kept = _forget(reading, writing, keys.active) if whole else ((), ())
        _empty_log(writing)
        return Rotated(total, work.damaged, whole, forgotten, kept)


def count_by_key(database_url: str, keys: PayloadKeys) -> list[KeyUse]:
    """Count the values under each key, the active one first, and the plain ones last; reads the whole database."""
    with _opened(database_url) as (reading, _):
        names = sorted({*registered_keys(reading), *keys.keys}, key=lambda name: (name != keys.active, name))
        counts: dict[str | None, int] = dict.fromkeys([*names, "", None], 0)
        for table in _tables():
            columns = [table.c[name] for name in PAYLOADS[table.name]]
            asked = [(name, column) for column in columns for name in (*names, "", None)]
            query = select(*(func.sum(case((_is_under(column, name), 1), else_=0)) for name, column in asked))
            (found,) = _all(reading, query.select_from(table))
            for (name, _), value in zip(asked, found, strict=True):
                counts[name] += int(value or 0)
    others = counts.pop("") - sum(count for name, count in counts.items() if name is not None)
    uses = [KeyUse(name, count, name is None or name in keys.keys) for name, count in counts.items()]
    return [*uses, KeyUse("(unknown)", others, False)] if others else uses


def _is_under(column: ColumnElement[str], name: str | None) -> ColumnElement[bool]:
    """Whether a value is sealed with a key; "": with any, None: plain."""
    if name is None:
        return and_(func.substr(column, 1, len(SEALED)) != SEALED, column.not_in(sorted(HOLDS_NOTHING)))
    head = f"{SEALED}{name}:" if name else SEALED
    return func.substr(column, 1, len(head)) == head


def _tables() -> list[Table]:
    return [schema.METADATA.tables[name] for name in sorted(PAYLOADS)]


# --- a pass -------------------------------------------------------------------------------------------


class _Rotation:
    def __init__(
        self,
        codec: PayloadCodec,
        reading: Connection,
        writing: Connection,
        on_batch: Callable[[str, int], None],
        keys_a_page: int,
        rows_a_batch: int,
    ) -> None:
        self.damaged: list[str] = []
        self._codec = codec
        self._reading = reading
        self._writing = writing
        self._on_batch = on_batch
        self._keys_a_page = keys_a_page
        self._rows_a_batch = rows_a_batch
        active = codec.keys.active
        self._head = "" if active is None else f"{SEALED}{active}:"

    def all_tables(self) -> int:
        """Go through everything once; return how many values were changed."""
        self.damaged.clear()
        # Tokens first: they are made of what their transaction's head says, under whichever key.
        return self._metadata() + sum(self._table(table) for table in _tables())

    def _table(self, table: Table) -> int:
        key = list(table.primary_key)
        columns = [table.c[name] for name in PAYLOADS[table.name]]
        wanted = or_(*(self._is_to_change(column) for column in columns))
        identity = [
            _transaction_id(table) if name == TRANSACTION else table.c[name]
            for name in identity_columns(table)
        ]
        query: Select[Any] = select(*key, *identity, *columns).where(wanted).order_by(*key)
        changed = 0
        for page in self._pages(key):
            rest = page
            while rows := self._batch(query.where(rest), len(columns)):
                changed += self._write(table, rows, len(identity))
                rest = and_(page, tuple_(*key) > tuple_(*rows[-1][: len(key)]))
        return changed

    def _pages(self, key: Sequence[ColumnElement[Any]]) -> Iterator[ColumnElement[bool]]:
        """Yield conditions, each of so many rows by their key."""
        behind: Sequence[Any] | None = None
        while True:
            query = select(*key).order_by(*key)
            if behind is not None:
                query = query.where(tuple_(*key) > tuple_(*behind))
            last = _all(self._reading, query.offset(self._keys_a_page - 1).limit(1))
            after = true() if behind is None else tuple_(*key) > tuple_(*behind)
            if not last:
                yield after
                return
            behind = tuple(last[0])
            yield and_(after, tuple_(*key) <= tuple_(*behind))

    def _batch(self, query: Any, payloads: int) -> list[Sequence[Any]]:
        """Return the first rows of a query, up to a number and to about so many bytes."""
        rows: list[Sequence[Any]] = []
        left = _BYTES_A_BATCH
        with self._reading.execute(query.limit(self._rows_a_batch), execution_options=STREAMED) as found:
            for row in found:
                rows.append(tuple(row))
                left -= sum(len(text) for text in row[-payloads:] if text is not None)
                if left < 0:
                    break
        self._reading.rollback()
        return rows

    def _write(self, table: Table, rows: Sequence[Sequence[Any]], width: int) -> int:
        key = [column.name for column in table.primary_key]
        names = PAYLOADS[table.name]
        changes = []
        for row in rows:
            identity = row[len(key) : len(key) + width]
            given = dict(zip(names, row[len(key) + width :], strict=True))
            stored = {name: self._anew(table.name, name, identity, text) for name, text in given.items()}
            changed = {name: text for name, text in stored.items() if text != given[name]}
            if changed:
                unchanged = [table.c[name] == given[name] for name in changed]
                here = [table.c[name] == value for name, value in zip(key, row, strict=False)]
                changes.append(
                    (identity, update(table).where(*here, *unchanged).values(**changed), len(changed))
                )
        # In the order in which servers touch rows, or two of them could wait for each other.
        changes.sort(key=lambda change: tuple(map(str, change[0])))

        def work() -> int:
            return sum(int(self._writing.execute(change).rowcount) * count for _, change, count in changes)

        return self._paced(table.name, work) if changes else 0

    def _anew(self, table: str, column: str, identity: Sequence[Any], text: str | None) -> str | None:
        if text is None or (text.startswith(self._head) if self._head else not text.startswith(SEALED)):
            return text
        name = bound_name(table, column)
        try:
            return sealed_value(self._codec, name, identity, opened_value(self._codec, name, identity, text))
        except StoredValueDamaged as damaged:
            if len(self.damaged) < _MOST_DAMAGED:
                self.damaged.append(str(damaged))
            return text

    def _is_to_change(self, column: ColumnElement[str]) -> ColumnElement[bool]:
        if not self._head:
            return func.substr(column, 1, len(SEALED)) == SEALED
        return and_(
            func.substr(column, 1, len(self._head)) != self._head, column.not_in(sorted(HOLDS_NOTHING))
        )

    # --- what transactions are found by -----------------------------------------------------------------

    def _metadata(self) -> int:
        changed = 0
        for page in self._pages([metadata.c.transaction_number]):
            numbers = select(metadata.c.transaction_number).where(page, self._is_other_token()).distinct()
            for (number,) in _all(self._reading, numbers):
                changed += self._paced(metadata.name, partial(self._tokens_of, number))
        return changed

    def _is_other_token(self) -> ColumnElement[bool]:
        if not self._head:
            return func.substr(metadata.c.name, 1, len(SEALED)) == SEALED
        return func.substr(metadata.c.name, 1, len(self._head)) != self._head

    def _tokens_of(self, number: int) -> int:
        """Write a transaction's entries anew. They never change; it may have been removed."""
        head = select(transactions.c.transaction_id, transactions.c.details).where(
            transactions.c.number == number
        )
        row = self._writing.execute(head.with_for_update()).first()
        if row is None:
            return 0
        try:
            details = opened_value(self._codec, bound_name("transactions", "details"), [row[0]], row[1])
        except StoredValueDamaged:
            return 0  # the head is told of where its own table is gone through
        entries = parse_json(details)["metadata"]
        self._writing.execute(delete(metadata).where(metadata.c.transaction_number == number))
        made = sorted({metadata_token(self._codec, name, value) for name, value in entries})
        for name, value in made:
            self._writing.execute(insert(metadata).values(transaction_number=number, name=name, value=value))
        return len(made)

    def _paced(self, table: str, work: Callable[[], int]) -> int:
        began = time.monotonic()
        changed: int = _written(self._writing, work)
        if changed:
            self._on_batch(table, changed)
        time.sleep(min(time.monotonic() - began, _LONGEST_PAUSE_SECONDS))
        return changed


def _transaction_id(table: Table) -> ColumnElement[str]:
    found = select(transactions.c.transaction_id).where(transactions.c.number == table.c[TRANSACTION])
    return found.correlate(table).scalar_subquery()


# --- keys that hold nothing -----------------------------------------------------------------------------


def _forget(
    reading: Connection, writing: Connection, active: str | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Forget the other keys, unless a server may use one still: one that began before the active key came."""
    known = schema.encryption_keys
    rows = {row[0]: row[1] for row in _all(reading, select(known.c.key_id, known.c.registered_at))}
    others = sorted(set(rows) - {active})
    began = select(func.min(schema.servers.c.registered_at)).where(
        schema.servers.c.lease_until > time.time_ns() // 1_000
    )
    oldest = reading.scalar(began)
    reading.rollback()
    if others and oldest is not None and (active is None or oldest < rows[active]):
        return (), others
    for name in others:
        gone = delete(known).where(known.c.key_id == name)
        _written(writing, partial(writing.execute, gone))
    return others, ()


# --- connections ----------------------------------------------------------------------------------------


@contextmanager
def _opened(database_url: str) -> Iterator[tuple[Connection, Connection]]:
    """Give a connection that reads and one that writes."""
    writer = administered(database_url)
    if is_postgresql(database_url):
        reader = PostgresAddress.parse(database_url, PostgresSettings()).engine()
    else:
        reader = reader_engine(database_file(database_url), StoreSettings())
        event.listen(writer, "connect", _erase_what_is_replaced)
    try:
        with reader.connect() as reading, writer.connect() as writing:
            yield reading, writing
    except DBAPIError as error:
        why = " ".join(str(error.orig).split())
        raise DatabaseRefused(f"the database can't be read or written: {why}") from error
    finally:
        reader.dispose()
        writer.dispose()


def _erase_what_is_replaced(connection: sqlite3.Connection, record: object) -> None:
    # Else what was plain would stay in the file until its page is used again.
    connection.execute("PRAGMA secure_delete = ON")


def _all(reading: Connection, query: Select[Any]) -> Sequence[Sequence[Any]]:
    """Return a query's rows. No transaction is left open, which would keep PostgreSQL from clearing up."""
    try:
        return reading.execute(query).all()
    finally:
        reading.rollback()


def _written(writing: Connection, work: Callable[[], Any]) -> Any:
    """Do something in a write transaction, again where a server was in the way."""
    for tries_left in reversed(range(_MOST_TRIES)):
        try:
            with writing.begin():
                return work()
        except DBAPIError as error:
            if not tries_left or not isinstance(engine_error(error), StoreUnavailable):
                raise
            time.sleep(_LONGEST_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def _empty_log(writing: Connection) -> None:
    """Have SQLite's log hold nothing of what was before, unless somebody reads from it."""
    if writing.dialect.name == "sqlite":
        writing.rollback()
        driver = writing.connection.driver_connection
        assert driver is not None
        driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
