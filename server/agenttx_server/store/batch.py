"""A batch of write sets inside one database transaction (group commit).

Sets are applied in *rounds*: the first of each transaction, then the second of each, so
that sets of one transaction take effect in order. Within a round each table is written by
one statement. Sets of one transaction that can't be told apart from one are first merged.

The guards of a round are one UPDATE, which fails unless all held; publications
are validated after it. Nearly always all sets pass. If one does not, the database
transaction is rolled back and the batch applied again *carefully*: each round reads the
revisions first and leaves stale sets out, and each publication has a savepoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from agenttx_server.engine.ports import CommitRefused, ExtraOperation, StaleRevision, WriteReceipt
from agenttx_server.engine.records import TransactionId
from agenttx_server.store import audit_table
from agenttx_server.store.batch_connection import BatchConnection, RowStatement, SomeSetRefused
from agenttx_server.store.publication import Receipts, publish_all, publish_unless_refused
from agenttx_server.store.write_set_encoding import EncodedWriteSet

__all__ = ["Outcome", "Outcomes", "SomeSetRefused", "apply_batch", "apply_batch_carefully"]

Outcome = WriteReceipt | StaleRevision | CommitRefused
Outcomes = Callable[[], list[Outcome]]
"""Gives one outcome a set, in order, once the batch is committed."""
_EMPTY_RECEIPT = WriteReceipt()


def apply_batch(connection: BatchConnection, batch: Sequence[EncodedWriteSet]) -> Outcomes:
    """Apply sets inside the connection's transaction, all or none; their outcomes are receipts.

    What was sent is not waited for. Raises SomeSetRefused and what the database raises, or COMMIT does; then the
    caller must roll back.
    """
    merged, last_numbers = _merge(batch)
    published: list[tuple[Sequence[int], Receipts]] = []
    for numbers in _rounds(merged):
        _apply_round(connection, [merged[number] for number in numbers])
        publishing = [number for number in numbers if merged[number].publish]
        if len(publishing) == 1:
            published.append((publishing, publish_unless_refused(connection, merged[publishing[0]])))
        elif publishing:
            receipts = publish_all(connection, [merged[number] for number in publishing])
            if isinstance(receipts, CommitRefused):
                raise SomeSetRefused
            published.append((publishing, receipts))
    audit_table.append(connection, [deed for item in batch for deed in item.deeds])

    def outcomes() -> list[Outcome]:
        found: list[Outcome] = [_EMPTY_RECEIPT] * len(batch)
        for numbers, receipts in published:
            for number, receipt in zip(numbers, receipts(), strict=True):
                found[last_numbers[number]] = receipt
        return found

    return outcomes


def apply_batch_carefully(connection: BatchConnection, batch: Sequence[EncodedWriteSet]) -> Outcomes:
    """Apply those sets that are not refused.

    Behind a refused set the later ones of its transaction are stale. Raises SomeSetRefused where
    another server began one of these transactions at the same moment: the next try finds it begun.
    """
    outcomes: list[Outcome] = [StaleRevision("a write before this one was refused") for _ in batch]
    refused: set[TransactionId] = set()
    for numbers in _rounds(batch):
        known = _revisions(connection, [batch[number].transaction_id for number in numbers])
        going = []
        for number in numbers:
            item = batch[number]
            if item.transaction_id in refused:
                continue
            if known.get(item.transaction_id, 0) == item.expected_revision:
                going.append(number)
            else:
                refused.add(item.transaction_id)
                outcomes[number] = StaleRevision(
                    f"transaction {item.transaction_id} is at revision "
                    f"{known.get(item.transaction_id, 0)}, not {item.expected_revision}"
                )
        together = [number for number in going if not batch[number].publish]
        _apply_round(connection, [batch[number] for number in together])
        for number in together:
            outcomes[number] = _EMPTY_RECEIPT
        for number in going:
            if batch[number].publish:
                outcomes[number] = outcome = _publish_in_savepoint(connection, batch[number])
                if isinstance(outcome, CommitRefused):
                    refused.add(batch[number].transaction_id)
    applied = zip(batch, outcomes, strict=True)
    audit_table.append(
        connection,
        [deed for item, outcome in applied if isinstance(outcome, WriteReceipt) for deed in item.deeds],
    )
    return lambda: outcomes


class _Refused(Exception):
    """Leaves a savepoint, taking back what was done in it."""

    def __init__(self, refusal: CommitRefused) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def _publish_in_savepoint(connection: BatchConnection, item: EncodedWriteSet) -> Outcome:
    try:
        with connection.savepoint():
            _apply_round(connection, [item])
            receipts = publish_all(connection, [item])
            if isinstance(receipts, CommitRefused):
                raise _Refused(receipts)
    except _Refused as refused:
        return refused.refusal
    return receipts()[0]


def _merge(batch: Sequence[EncodedWriteSet]) -> tuple[list[EncodedWriteSet], list[int]]:
    """Merge what may be merged; return the sets and, for each, the number of the last one in it."""
    merged: list[EncodedWriteSet] = []
    last_numbers: list[int] = []
    newest: dict[TransactionId, int] = {}
    for number, item in enumerate(batch):
        index = newest.get(item.transaction_id)
        if index is not None and merged[index].may_be_followed_by(item):
            merged[index] = merged[index].followed_by(item)
            last_numbers[index] = number
        else:
            newest[item.transaction_id] = len(merged)
            merged.append(item)
            last_numbers.append(number)
    return merged, last_numbers


def _rounds(batch: Sequence[EncodedWriteSet]) -> list[list[int]]:
    """Return the sets' numbers by round, each round in order of transaction id."""
    rounds: list[list[int]] = []
    seen: dict[TransactionId, int] = {}
    for number, item in enumerate(batch):
        depth = seen.get(item.transaction_id, 0)
        seen[item.transaction_id] = depth + 1
        if depth == len(rounds):
            rounds.append([])
        rounds[depth].append(number)
    for numbers in rounds:
        numbers.sort(key=lambda number: batch[number].transaction_id)
    return rounds


def _revisions(connection: BatchConnection, transaction_ids: Sequence[TransactionId]) -> dict[str, int]:
    (found,) = connection.statements.read_revisions.query(connection, transaction_ids)
    return dict(orjson.loads(found))


def _apply_round(connection: BatchConnection, items: Sequence[EncodedWriteSet]) -> None:
    """Apply sets of different transactions. Raises SomeSetRefused, by now or later, if a guard did not hold."""
    sql = connection.statements
    rewinds = [value for item in items if item.rewind is not None for value in item.rewind]
    if rewinds:
        sql.record_rewinds.execute(connection, rewinds)
    _write_heads(connection, sql.guarded_insert, [item for item in items if item.expected_revision == 0])
    _write_heads(connection, sql.guarded_update, [item for item in items if item.expected_revision != 0])
    if rewinds:
        for statement in sql.remove_rewound:
            statement.execute(connection, rewinds)
    removals = [value for item in items for value in item.removals]
    if removals:
        for statement in sql.remove_steps:
            statement.execute(connection, removals)
    by_table: dict[str, list[Any]] = {}
    for item in items:
        for table, values in item.tables:
            by_table.setdefault(table, []).extend(values)
    for table, statement in sql.insert_rows.items():
        if table in by_table:
            statement.execute(connection, by_table[table])
    _write_extra(connection, items)


def _write_extra(connection: BatchConnection, items: Sequence[EncodedWriteSet]) -> None:
    if not any(item.extra for item in items):
        return
    rows: dict[tuple[str, ExtraOperation], list[Any]] = {}
    for item in items:
        for table, operation, values in item.extra:
            rows.setdefault((table, operation), []).extend(values)
    # In one order, whatever the sets: of two servers none waits for the other. Deletions come first.
    for key, statement in connection.statements.extra_rows.items():
        if key in rows:
            statement.execute(connection, rows.pop(key))
    if rows:
        raise ValueError(f"the store was not told of the tables {sorted(table for table, _ in rows)}")


def _write_heads(
    connection: BatchConnection, statement: RowStatement, items: Sequence[EncodedWriteSet]
) -> None:
    if items:
        heads = [value for item in items for value in (*item.head, item.expected_revision)]
        statement.execute(connection, heads, len(items))
