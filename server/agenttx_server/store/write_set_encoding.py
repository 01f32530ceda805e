"""A write set as rows of JSON, made before it is queued.

The rows are made by the caller's thread and not by the writer's: the interpreter runs one
of the two at a time anyway, and the writer then holds the interpreter lock as little as
can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agenttx_server.engine.ports import WriteSet
from agenttx_server.engine.records import Isolation, TransactionId, TransactionRecord
from agenttx_server.store import rows
from agenttx_server.store.keys import prefix_end
from agenttx_server.store.record_codec import canonical_json

__all__ = ["EncodedWriteSet", "encode_write_set"]


@dataclass(frozen=True, slots=True)
class EncodedWriteSet:
    """The rows of one write set: for each table the elements of a JSON array, without its brackets.

    ``size`` is their length in bytes. ``rewind`` is None where nothing is rewound.
    """

    transaction_id: TransactionId
    expected_revision: int
    revision: int
    head: bytes
    rewind: bytes | None
    tables: Sequence[tuple[str, bytes]]
    publish: bool
    serializable: bool
    size: int


def _elements(table_rows: Iterable[Sequence[Any]]) -> bytes:
    return orjson.dumps(list(table_rows))[1:-1]


def encode_write_set(write_set: WriteSet) -> EncodedWriteSet:
    """Return the rows of a write set. Raises TypeError for a text that is no Unicode (a lone surrogate)."""
    record = write_set.transaction
    transaction_id = record.transaction_id
    head = _head_row(record)
    tables: list[tuple[str, bytes]] = []

    def add(table: str, table_rows: Iterable[Sequence[Any]]) -> None:
        tables.append((table, _elements(table_rows)))

    if write_set.expected_revision:
        head.append(write_set.expected_revision)
    elif record.metadata:
        add("transaction_metadata", ([transaction_id, *pair] for pair in record.metadata))
    if write_set.attempts:
        add("attempts", ([transaction_id, *rows.ATTEMPT.row(item)] for item in write_set.attempts))
    if write_set.state_reads:
        add("state_reads", _state_read_rows(write_set))
    if write_set.state_writes:
        add(
            "state_writes", ([transaction_id, *rows.STATE_WRITE.row(item)] for item in write_set.state_writes)
        )
    if write_set.checks:
        add("commit_checks", _check_rows(write_set))
    if write_set.effects:
        add("effects", ([transaction_id, *rows.EFFECT.row(item)] for item in write_set.effects))
    if write_set.undo:
        add("undo_actions", ([transaction_id, *rows.UNDO.row(item)] for item in write_set.undo))
    if write_set.events:
        add("events", ([transaction_id, *rows.EVENT.row(item)] for item in write_set.events))
    if write_set.responses:
        add("recorded_responses", (rows.RESPONSE.row(item) for item in write_set.responses))
    head_json = orjson.dumps(head)
    rewind = None
    if write_set.rewind_from is not None:
        rewind = orjson.dumps(
            [transaction_id, write_set.expected_revision, write_set.rewind_from, record.updated_at]
        )
    return EncodedWriteSet(
        transaction_id=transaction_id,
        expected_revision=write_set.expected_revision,
        revision=record.revision,
        head=head_json,
        rewind=rewind,
        tables=tables,
        publish=write_set.publish,
        serializable=record.isolation is Isolation.SERIALIZABLE,
        size=len(head_json) + sum([len(elements) for _, elements in tables]),
    )


def _head_row(record: TransactionRecord) -> list[Any]:
    row = rows.TRANSACTION.row(record)
    # The schema's order: is_open stands behind status.
    row.insert(rows.TRANSACTION.columns.index("status") + 1, 0 if record.status.is_terminal else 1)
    return row


def _state_read_rows(write_set: WriteSet) -> Iterable[Sequence[Any]]:
    for read in write_set.state_reads:
        end = prefix_end(read.key) if read.is_prefix else None
        yield [write_set.transaction.transaction_id, *rows.STATE_READ.row(read), end or ""]


def _check_rows(write_set: WriteSet) -> Iterable[Sequence[Any]]:
    for check in write_set.checks:
        yield [
            write_set.transaction.transaction_id,
            check.step_id,
            check.sequence,
            check.kind,
            check.key,
            prefix_end(check.key) or "",
            canonical_json(check.error),
        ]
