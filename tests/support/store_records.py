"""Records and write sets for the store's tests: a driver of one transaction, and random records.

:class:`Driver` keeps a transaction's head as the engine would and writes whole steps::

    driver = Driver(store)
    await driver.begin()
    await driver.step(writes={"kv/a": "1"}, reads={"kv/b": 0})
    await driver.rewind(1)
    receipt = await driver.commit()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from agenttx_server.engine.ports import TransactionStore, WriteReceipt, WriteSet
from agenttx_server.engine.records import (
    AttemptRecord,
    AttemptState,
    CommitCheck,
    CrashPolicy,
    EffectClass,
    EffectRecord,
    EventRecord,
    EventType,
    Isolation,
    MicrosecondsUtc,
    Policy,
    RecordedResponse,
    StateRead,
    StateWrite,
    TransactionId,
    TransactionRecord,
    TransactionStatus,
    UndoRecord,
)

__all__ = ["Driver", "attempt", "effect", "head", "records_of", "undo"]

Record = TypeVar("Record")
NOW = MicrosecondsUtc(1_700_000_000_000_000)


def head(transaction_id: str = "t-1", **fields: Any) -> TransactionRecord:
    """A new transaction's head."""
    values: dict[str, Any] = {
        "transaction_id": TransactionId(transaction_id),
        "principal": "alice",
        "agent_id": "agent-1",
        "metadata": (),
        "policy": Policy(),
        "isolation": Isolation.READ_COMMITTED,
        "crash_policy": CrashPolicy.RESUME,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return TransactionRecord(**{**values, **fields})


def attempt(step_id: int, number: int = 1, **fields: Any) -> AttemptRecord:
    """A completed attempt."""
    values: dict[str, Any] = {
        "group_first": step_id,
        "group_size": 1,
        "epoch": 1,
        "generation": 1,
        "request_id": f"r-{step_id}-{number}",
        "fingerprint": "f",
        "tool_name": "kv.put",
        "effect_class": EffectClass.TRANSACTIONAL,
        "state": AttemptState.COMPLETED,
        "arguments": "{}",
        "started_at": NOW,
        "output": f'{{"step":{step_id}}}',
    }
    return AttemptRecord(step_id, number, **{**values, **fields})


def effect(effect_id: str, step_id: int = 1, sequence: int = 1, **fields: Any) -> EffectRecord:
    """A staged effect."""
    values: dict[str, Any] = {"channel": "mail", "payload": "{}", "idempotency_key": f"key-{effect_id}"}
    return EffectRecord(effect_id, step_id, 1, sequence, staged_at=NOW, **{**values, **fields})


def undo(sequence: int, step_id: int = 1, **fields: Any) -> UndoRecord:
    """A pending undo action."""
    values: dict[str, Any] = {"tool_name": "pay", "undo_name": "refund", "arguments": "{}"}
    return UndoRecord(
        sequence, step_id, 1, idempotency_key=f"u-{sequence}", registered_at=NOW, **{**values, **fields}
    )


class Driver:
    """Writes one transaction's sets in order, as the engine would."""

    def __init__(self, store: TransactionStore, transaction_id: str = "t-1", **fields: Any) -> None:
        self.store = store
        self.record = head(transaction_id, **fields)
        self._attempts: dict[int, int] = {}

    @property
    def id(self) -> TransactionId:
        return self.record.transaction_id

    async def begin(self) -> Driver:
        """Write the head."""
        await self.store.write(WriteSet(self.record, 0))
        return self

    def next_set(self, rows: Mapping[str, Any] | None = None, **fields: Any) -> WriteSet:
        """A set on top of the last one made; the head moves on at once."""
        rows = dict(rows or {})
        event = EventRecord(
            self.record.event_sequence + 1, EventType.STEP_COMPLETED, self.record.generation, NOW
        )
        before = self.record.revision
        self.record = dataclasses.replace(
            self.record,
            revision=before + 1,
            event_sequence=event.sequence,
            updated_at=MicrosecondsUtc(self.record.updated_at + 1),
            **fields,
        )
        return WriteSet(self.record, before, events=[event], **rows)

    async def write(self, rows: Mapping[str, Any] | None = None, **fields: Any) -> WriteReceipt:
        """Write rows; ``fields`` change the head."""
        return await self.store.write(self.next_set(rows, **fields))

    def step_set(
        self,
        writes: Mapping[str, str | None] | Sequence[tuple[str, str | None]] = (),
        reads: Mapping[str, int] | None = None,
        prefixes: Sequence[str] = (),
        checks: Sequence[CommitCheck] = (),
        effects: Sequence[EffectRecord] = (),
        undo: Sequence[UndoRecord] = (),
        responses: Sequence[RecordedResponse] = (),
        **fields: Any,
    ) -> WriteSet:
        """The set of a completed step; ``fields`` are the attempt's."""
        step = self.record.next_step_id
        number = self._attempts[step] = self._attempts.get(step, 0) + 1
        pairs = list(writes.items()) if isinstance(writes, Mapping) else list(writes)
        rows = {
            "attempts": [attempt(step, number, generation=self.record.generation, **fields)],
            "state_reads": [
                *(StateRead(step, key, version) for key, version in (reads or {}).items()),
                *(StateRead(step, prefix, 0, is_prefix=True) for prefix in prefixes),
            ],
            "state_writes": [
                StateWrite(step, index, key, value) for index, (key, value) in enumerate(pairs, start=1)
            ],
            "checks": checks,
            "effects": effects,
            "undo": undo,
            "responses": responses,
        }
        return self.next_set(rows, next_step_id=step + 1)

    async def step(self, *arguments: Any, **named: Any) -> WriteReceipt:
        """Write a completed step."""
        return await self.store.write(self.step_set(*arguments, **named))

    def rewind_set(self, to_step: int, **rows: Any) -> WriteSet:
        """The set of a rewind in one commit."""
        return dataclasses.replace(
            self.next_set(rows, next_step_id=to_step, generation=self.record.generation + 1),
            rewind_from=to_step,
        )

    async def rewind(self, to_step: int, **rows: Any) -> WriteReceipt:
        """Rewind in one commit."""
        return await self.store.write(self.rewind_set(to_step, **rows))

    def commit_set(self) -> WriteSet:
        """The set that publishes."""
        fields = {"status": TransactionStatus.COMMITTED, "ended_at": MicrosecondsUtc(NOW + 1_000)}
        return dataclasses.replace(self.next_set(**fields), publish=True)

    async def commit(self) -> WriteReceipt:
        """Publish."""
        return await self.store.write(self.commit_set())


# --- random records -----------------------------------------------------------------------------

# What a column can hold on every database: any Unicode but U+0000 and surrogates.
column_text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
# What JSON can: U+0000 too.
json_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
decimals = st.decimals(allow_nan=False, allow_infinity=False)


def records_of(
    record_type: type[Record], text: st.SearchStrategy[str] = column_text
) -> st.SearchStrategy[Record]:
    """Records of a class with random fields, defaults and not, nested ones too."""
    hints = get_type_hints(record_type)
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in dataclasses.fields(record_type):  # type: ignore[arg-type]
        values = _values_of(hints[field.name], text)
        if field.default is not dataclasses.MISSING:
            values = st.just(field.default) | values
        fields[field.name] = values
    return st.builds(record_type, **fields)


def _values_of(hint: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if isinstance(hint, NewType):
        return _values_of(hint.__supertype__, text)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return st.one_of(
            *(st.none() if item is NoneType else _values_of(item, text) for item in get_args(hint))
        )
    if origin is tuple:
        arguments = get_args(hint)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return st.lists(_values_of(arguments[0], text), max_size=3).map(tuple)
        return st.tuples(*(_values_of(item, text) for item in arguments))
    simple = {str: text, int: integers, bool: st.booleans(), Decimal: decimals}
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    return records_of(hint, json_text)
