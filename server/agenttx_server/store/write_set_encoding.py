"""A write set as rows of plain values, made before it is queued.

The rows are made by the caller's thread and not by the writer's: the interpreter runs one
of the two at a time anyway, and the writer then holds the interpreter lock as little as
can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from agenttx_server.audit.chain import Deed
from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.ports import ExtraOperation, ExtraRows, StepRemoval, WriteSet
from agenttx_server.engine.records import Isolation, TransactionId, TransactionRecord
from agenttx_server.engine.write_order import sub_step_span
from agenttx_server.store import rows
from agenttx_server.store.audit_deeds import deeds_of_write_set
from agenttx_server.store.keys import prefix_end, request_key
from agenttx_server.store.record_codec import RecordCodec, canonical_json

__all__ = ["EncodedWriteSet", "encode_write_set"]

_GREATEST = (1 << 63) - 1
# Every step has rows of these: what is in them is bounded, so they are not measured.
_SHORT = frozenset({"events"})


@dataclass(frozen=True, slots=True)
class EncodedWriteSet:
    """The rows of one write set: for each table its values, row behind row.

    ``rewind`` is None where nothing is rewound. ``size`` is the length of the texts that may be long.
    """

    transaction_id: TransactionId
    expected_revision: int
    revision: int
    head: Sequence[Any]
    rewind: Sequence[Any] | None
    tables: Sequence[tuple[str, Sequence[Any]]]
    publish: bool
    serializable: bool
    size: int
    removals: Sequence[Any] = ()
    extra: Sequence[tuple[str, ExtraOperation, Sequence[Any]]] = ()
    deeds: Sequence[Deed] = ()

    def may_be_followed_by(self, later: EncodedWriteSet) -> bool:
        """Tell whether this set and the next of its transaction have the effect of one.

        Not if a rewind, a removal or a publication parts them, nor if the later reads could give this
        one's writes a newer base, nor if both have rows of an outer layer, whose order counts.
        """
        return (
            later.expected_revision == self.revision
            and not self.publish
            and not later.publish
            and later.rewind is None
            and not later.removals
            and not (self.extra and later.extra)
            and not (_has(self, "state_writes") and _has(later, "state_reads"))
        )

    def followed_by(self, later: EncodedWriteSet) -> EncodedWriteSet:
        """Return this set and the next of its transaction as one."""
        return replace(
            self,
            revision=later.revision,
            head=later.head,
            tables=(*self.tables, *later.tables),
            extra=self.extra or later.extra,
            deeds=(*self.deeds, *later.deeds),
            size=self.size + later.size,
        )


def _has(item: EncodedWriteSet, table: str) -> bool:
    return any(name == table for name, _ in item.tables)


def encode_write_set(write_set: WriteSet) -> EncodedWriteSet:
    """Return the rows of a write set."""
    record = write_set.transaction
    transaction_id = record.transaction_id
    tables = list(_tables(write_set))
    extra = [(item.table, item.operation, _extra_values(item)) for item in write_set.extra if item.rows]
    head = _head_row(record)
    rewind = None
    if write_set.rewind_from is not None:
        rewind = (transaction_id, write_set.rewind_from, record.updated_at)
    return EncodedWriteSet(
        transaction_id=transaction_id,
        expected_revision=write_set.expected_revision,
        revision=record.revision,
        head=head,
        rewind=rewind,
        tables=tables,
        publish=write_set.publish,
        serializable=record.isolation is Isolation.SERIALIZABLE,
        size=sum([_text_length(values) for table, values in tables if table not in _SHORT])
        + sum([_text_length(values) for _, _, values in extra]),
        removals=[value for removal in write_set.removals for value in (transaction_id, *_removed(removal))],
        extra=extra,
        deeds=deeds_of_write_set(write_set),
    )


def _removed(removal: StepRemoval) -> tuple[int, int, int, int, int]:
    """Return the step, the first and last sequence of its writes that go, and the first and last sub-step."""
    if removal.sub_step is None:
        return removal.step_id, 0, _GREATEST, 0, _GREATEST
    first, last = sub_step_span(removal.sub_step)
    return removal.step_id, first, last, removal.sub_step, removal.sub_step


def _extra_values(item: ExtraRows) -> list[Any]:
    return [value for row in item.rows for value in row]


def _text_length(values: Sequence[Any]) -> int:
    return sum([len(value) for value in values if type(value) is str])


def _tables(write_set: WriteSet) -> Iterator[tuple[str, list[Any]]]:
    # A step has rows for three of these tables, and this is every step's path.
    record = write_set.transaction
    if record.metadata and not write_set.expected_revision:
        yield "transaction_metadata", [x for pair in record.metadata for x in (record.transaction_id, *pair)]
    if write_set.attempts:
        yield "attempts", _attempt_values(write_set)
    if write_set.sub_steps:
        yield "sub_steps", _values(write_set, rows.SUB_STEP, write_set.sub_steps)
    if write_set.state_reads:
        yield "state_reads", _state_read_values(write_set)
    if write_set.state_writes:
        yield "state_writes", _values(write_set, rows.STATE_WRITE, write_set.state_writes)
    if write_set.checks:
        yield "commit_checks", _check_values(write_set)
    if write_set.effects:
        yield "effects", _values(write_set, rows.EFFECT, write_set.effects)
    if write_set.undo:
        yield "undo_actions", _values(write_set, rows.UNDO, write_set.undo)
    if write_set.approvals:
        yield "approvals", _values(write_set, rows.APPROVAL, write_set.approvals)
    if write_set.events:
        yield "events", _values(write_set, rows.EVENT, write_set.events)
    if write_set.responses:
        yield (
            "recorded_responses",
            [value for item in write_set.responses for value in rows.RESPONSE.row(item)],
        )


def _values(write_set: WriteSet, codec: RecordCodec[Any], records: Sequence[Any]) -> list[Any]:
    values: list[Any] = []
    for record in records:
        values.append(write_set.transaction.transaction_id)
        values += codec.row(record)
    return values


def _head_row(record: TransactionRecord) -> list[Any]:
    row = rows.TRANSACTION.row(record)
    # The schema's order: is_open stands behind status.
    row.insert(rows.TRANSACTION.columns.index("status") + 1, 0 if record.status.is_terminal else 1)
    return row


def _attempt_values(write_set: WriteSet) -> list[Any]:
    values: list[Any] = []
    for attempt in write_set.attempts:
        step_id, number, *rest = rows.ATTEMPT.row(attempt)
        values += (
            write_set.transaction.transaction_id,
            step_id,
            number,
            request_key(attempt.request_id),
            *rest,
        )
    return values


def _state_read_values(write_set: WriteSet) -> list[Any]:
    values: list[Any] = []
    for read in write_set.state_reads:
        end = prefix_end(read.key) if read.is_prefix else None
        values += (write_set.transaction.transaction_id, *rows.STATE_READ.row(read), end or "")
    return values


def _check_values(write_set: WriteSet) -> list[Any]:
    values: list[Any] = []
    for check in write_set.checks:
        values += (
            write_set.transaction.transaction_id,
            check.step_id,
            check.sequence,
            check.kind.value,
            check.key,
            prefix_end(check.key) or "",
            canonical_json(check.error),
        )
    return values
