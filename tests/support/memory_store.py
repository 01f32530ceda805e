"""The engine's TransactionStore in memory, faithful to the port's docstrings, with faults on order.

Writes are applied one at a time in the order of the calls, each whole or not at all, in a task of
its own: a caller that goes away does not undo its write. What a database's constraints would refuse
(two events of one number, two writes of one step and number) is an AssertionError here.

Faults, all by the number of the write counted from 1 (:attr:`MemoryStore.write_count`)::

    store.fail_write(3, applied=False)   StoreUnavailable, nothing written
    store.fail_write(3, applied=True)    written, and StoreUnavailable all the same
    store.refuse_commits_with("kv/a")    CommitRefused at each publication, until told otherwise
    gate = store.hold_write(3)           the 3rd write waits, before it is applied
    store.fail_reads("load")             StoreUnavailable from these methods
    store.kill()                         nothing is applied or answered any more: the server died
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.support.memory_graphs import MemoryGraphs

from agenttx_server.engine.ports import (
    ApprovalPage,
    AttemptPage,
    CommitRefused,
    CommittedPage,
    CompensationPage,
    DuplicateRequestId,
    EffectPage,
    ExtraOperation,
    ExtraRows,
    ExtraRowsRefused,
    StaleRevision,
    StateView,
    StepRemoval,
    StoredJournal,
    StoredTransaction,
    StoreUnavailable,
    TransactionFilter,
    TransactionPage,
    WriteReceipt,
    WriteSet,
)
from agenttx_server.engine.records import (
    ApprovalRecord,
    ApprovalState,
    AttemptRecord,
    AttemptState,
    CommitCheck,
    CommitCheckKind,
    CommittedEntry,
    EffectRecord,
    EffectState,
    EventRecord,
    Isolation,
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
from agenttx_server.engine.write_order import sub_step_of
from agenttx_server.graphs.ports import GraphRecord

__all__ = ["Gate", "MemoryDatabase", "MemoryStore", "with_extra"]

T = TypeVar("T")
_EVENT_BYTES = 1 << 20
_TOUCHED_KEYS = 1000


_TO_BE_SEEN_TO = (UndoState.FAILED, UndoState.LATE, UndoState.AWAITING_AGENT)


class Gate:
    """Where something waits until a test lets it go on: ``await gate.reached``, then ``gate.open()``."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    async def reached(self) -> None:
        """Return once something waits here."""
        await self._reached.wait()

    @property
    def is_reached(self) -> bool:
        """Whether something waits here or has waited."""
        return self._reached.is_set()

    def open(self) -> None:
        """Let what waits, and what comes later, go on."""
        self._open.set()

    async def wait(self) -> None:
        """Wait here."""
        self._reached.set()
        await self._open.wait()


@dataclass(frozen=True, slots=True)
class _Write:
    """A state write with the base version that the store gave it."""

    write: StateWrite
    base_version: int


@dataclass(slots=True)
class _Stored:
    """Everything kept of one transaction; values are frozen, so a copy is shallow."""

    record: TransactionRecord
    attempts: dict[tuple[int, int], AttemptRecord] = field(default_factory=dict)
    rewinds: list[tuple[int, int]] = field(default_factory=list)
    reads: list[StateRead] = field(default_factory=list)
    writes: dict[tuple[int, int], _Write] = field(default_factory=dict)
    checks: list[CommitCheck] = field(default_factory=list)
    effects: dict[str, EffectRecord] = field(default_factory=dict)
    undo: dict[int, UndoRecord] = field(default_factory=dict)
    approvals: dict[int, ApprovalRecord] = field(default_factory=dict)
    events: list[EventRecord] = field(default_factory=list)
    sub_steps: dict[tuple[int, int, int], AttemptRecord] = field(default_factory=dict)

    def copy(self) -> _Stored:
        return _Stored(
            self.record,
            dict(self.attempts),
            list(self.rewinds),
            list(self.reads),
            dict(self.writes),
            list(self.checks),
            dict(self.effects),
            dict(self.undo),
            dict(self.approvals),
            list(self.events),
            dict(self.sub_steps),
        )

    def is_rewound(self, attempt: AttemptRecord) -> bool:
        return any(
            generation >= attempt.generation and to_step <= attempt.step_id
            for generation, to_step in self.rewinds
        )

    def own_value(self, key: str, before_step: int) -> tuple[bool, str | None]:
        newest = max(
            (at for at, row in self.writes.items() if row.write.key == key and at[0] < before_step),
            default=None,
        )
        return (False, None) if newest is None else (True, self.writes[newest].write.value)

    def ordered_attempts(self) -> list[AttemptRecord]:
        return [self.attempts[at] for at in sorted(self.attempts)]

    def live_sub_steps(self, step_id: int | None = None) -> list[AttemptRecord]:
        newest = {
            at[:2]: attempt
            for at, attempt in sorted(self.sub_steps.items())
            if step_id in (None, at[0]) and not self.is_rewound(attempt)
        }
        return [attempt for attempt in newest.values() if attempt.state is not AttemptState.SUPERSEDED]


@dataclass(slots=True)
class MemoryDatabase:
    """What outlives a server: hand it to the next :class:`MemoryStore`."""

    transactions: dict[TransactionId, _Stored] = field(default_factory=dict)
    responses: dict[tuple[str, str], RecordedResponse] = field(default_factory=dict)
    committed: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    commit_version: int = 0
    graphs: dict[tuple[str, str], GraphRecord] = field(default_factory=dict)
    leases: dict[ServerId, int] = field(default_factory=dict)
    stop_requests: dict[TransactionId, StopRequest] = field(default_factory=dict)
    unrecovered: dict[TransactionId, str] = field(default_factory=dict)
    # By table and key; which columns are its key is told by MemoryStore(extra_tables=...).
    extra: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=dict)
    # Told of rows of outer layers once they are written.
    on_extra: list[Callable[[Sequence[ExtraRows]], None]] = field(default_factory=list, compare=False)

    def tell(self, rows: Sequence[ExtraRows]) -> None:
        for told in self.on_extra:
            told(rows)

    def version(self, key: str) -> int:
        return self.committed.get(key, (None, 0))[1]

    def is_alive(self, server_id: ServerId, now: int) -> bool:
        return self.leases.get(server_id, 0) > now


class MemoryStore(MemoryGraphs):
    """One server's connection to a :class:`MemoryDatabase`; implements ports.TransactionStore.

    ``on_write`` is called with the number and the write set of each write as it is applied.
    ``written`` keeps the applied write sets. ``is_shared`` is that other stores may have the same
    database at the same time, as several servers on one PostgreSQL. ``extra_tables`` are those of layers above
    the engine, with the places of the columns that are their key.
    """

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        on_write: Callable[[int, WriteSet], None] | None = None,
        *,
        is_shared: bool = False,
        extra_tables: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.is_shared = is_shared
        self._extra_tables = dict(extra_tables or {})
        self.database = database or MemoryDatabase()
        self.written: list[WriteSet] = []
        self.write_count = 0
        self._on_write = on_write
        self._turn = asyncio.Lock()
        self._faults: dict[int, bool] = {}
        self._held: dict[int, Gate] = {}
        self._failing_reads: Mapping[str, int] = {}
        self._refused_key: str | None = None
        self._dead = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- faults -------------------------------------------------------------------------

    def fail_write(self, number: int, *, applied: bool) -> None:
        """Have the write of that number raise StoreUnavailable; ``applied`` tells whether it is made."""
        self._faults[number] = applied

    def fail_next_write(self, *, applied: bool) -> None:
        """Have the next write raise StoreUnavailable."""
        self.fail_write(self.write_count + 1, applied=applied)

    def hold_write(self, number: int) -> Gate:
        """Have the write of that number wait before it is applied, and those behind it."""
        return self._held.setdefault(number, Gate())

    def hold_next_write(self) -> Gate:
        """Have the next write wait."""
        return self.hold_write(self.write_count + 1)

    def fail_reads(self, *methods: str, after: int = 0) -> None:
        """Have these methods raise StoreUnavailable, after so many more calls; none: all work again."""
        self._failing_reads = dict.fromkeys(methods, after)

    def refuse_commits_with(self, key: str | None) -> None:
        """Have publications fail on a key; None lets them through again."""
        self._refused_key = key

    def kill(self) -> None:
        """Let nothing reach the database and no call return any more."""
        self._dead = True

    # --- writing ------------------------------------------------------------------------

    async def write(self, write_set: WriteSet) -> WriteReceipt:
        task = asyncio.get_running_loop().create_task(self._in_turn(write_set))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._dead:
                task.cancel()  # with its caller the last one has gone who knew of it
            raise

    def submit(self, write_set: WriteSet) -> asyncio.Future[WriteReceipt]:
        return asyncio.ensure_future(self.write(write_set))

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _in_turn(self, write_set: WriteSet) -> WriteReceipt:
        async with self._turn:
            self.write_count += 1
            number = self.write_count
            if number in self._held:
                await self._held.pop(number).wait()
            await self._alive()
            applied = self._faults.pop(number, None)
            if applied is False:
                raise StoreUnavailable(f"write {number} failed, as told")
            receipt = self._apply(write_set)
            self.written.append(write_set)
            if self._on_write is not None:
                self._on_write(number, write_set)
            if applied is True:
                raise StoreUnavailable(f"write {number} was made, and failed as told")
            await asyncio.sleep(0)  # durable a little later than it is visible
            await self._alive()
            return receipt

    async def _alive(self) -> None:
        if self._dead:
            await asyncio.get_running_loop().create_future()

    def _apply(self, write_set: WriteSet) -> WriteReceipt:
        database = self.database
        record = write_set.transaction
        transaction_id = record.transaction_id
        known = database.transactions.get(transaction_id)
        actual = known.record.revision if known is not None else 0
        if actual != write_set.expected_revision:
            raise StaleRevision(f"at revision {actual}, not {write_set.expected_revision}")
        for response in write_set.responses:
            if (response.scope, response.request_id) in database.responses:
                raise DuplicateRequestId(response.request_id)
        if known is None:
            stored = _Stored(record)
        else:
            stored = known.copy()
            before = known.record
            stored.record = replace(
                record,
                principal=before.principal,
                agent_id=before.agent_id,
                created_at=before.created_at,
                commit_version=before.commit_version,
                idle_timeout_us=before.idle_timeout_us,
                deadline_at=before.deadline_at,
            )
            if write_set.rewind_from is not None:
                _drop(stored, write_set.rewind_from, before.generation)
        for removal in write_set.removals:
            _remove_step(stored, removal)
        _insert(database, stored, write_set)
        extra = with_extra(self.database.extra, write_set.extra, self._extra_tables)
        receipt, published = WriteReceipt(), None
        if write_set.publish:
            receipt, published = self._publish(stored)
        # Nothing was refused: from here on all of it is made.
        if published is not None:
            database.committed = published
            database.commit_version = receipt.commit_version
        database.transactions[transaction_id] = stored
        database.extra = extra
        if write_set.extra:
            database.tell(write_set.extra)
        for response in write_set.responses:
            database.responses[(response.scope, response.request_id)] = response
        return receipt

    def _publish(self, stored: _Stored) -> tuple[WriteReceipt, dict[str, tuple[str | None, int]]]:
        database = self.database
        if self._refused_key is not None:
            raise CommitRefused(self._refused_key, f"{self._refused_key} was refused, as told")
        for key in sorted({row.write.key for row in stored.writes.values()}):
            bases = {row.base_version for row in stored.writes.values() if row.write.key == key}
            if bases != {database.version(key)}:
                raise CommitRefused(
                    key, f"{key} was changed by another commit after this transaction used it"
                )
        if stored.record.isolation is Isolation.SERIALIZABLE:
            self._validate_reads(stored)
        version = database.commit_version + 1
        committed = dict(database.committed)
        keys = {row.write.key for row in stored.writes.values()}
        for at in sorted(stored.writes):
            write = stored.writes[at].write
            committed[write.key] = (write.value, version)
        for check in sorted(stored.checks, key=lambda item: (item.step_id, item.sequence)):
            if check.kind is CommitCheckKind.EXISTS:
                broken = committed.get(check.key, (None, 0))[0] is None
            else:
                broken = any(
                    value is not None and key.startswith(check.key) for key, (value, _) in committed.items()
                )
            if broken:
                raise CommitRefused(check.key, check.error)
        staged = [effect for effect in stored.effects.values() if effect.state is EffectState.STAGED]
        for effect in staged:
            stored.effects[effect.effect_id] = replace(effect, state=EffectState.READY)
        stored.record = replace(stored.record, commit_version=version)
        return WriteReceipt(version, len(keys), len(staged)), committed

    def _validate_reads(self, stored: _Stored) -> None:
        database = self.database
        read_keys = {read.key for read in stored.reads if not read.is_prefix}
        known = read_keys | {row.write.key for row in stored.writes.values()}
        by_key = sorted(stored.reads, key=lambda item: item.key)
        for read in by_key:
            if not read.is_prefix and read.version != database.version(read.key):
                raise CommitRefused(
                    read.key, f"{read.key} was changed by another commit after this transaction read it"
                )
        for key, (value, version) in sorted(database.committed.items()):
            scans = [read for read in by_key if read.is_prefix and key.startswith(read.key)]
            changed = any(version > scan.version for scan in scans if scan.version)
            appeared = any(not scan.version for scan in scans) and value is not None and key not in known
            if changed or appeared:
                raise CommitRefused(
                    key, f"{key} was changed by another commit after this transaction scanned its prefix"
                )

    # --- reading ------------------------------------------------------------------------

    async def _read(self, method: str) -> None:
        await asyncio.sleep(0)
        await self._alive()
        left = self._failing_reads.get(method)
        if left is None:
            return
        if left > 0:
            self._failing_reads = {**self._failing_reads, method: left - 1}
            return
        raise StoreUnavailable(f"{method} failed, as told")

    async def load(self, transaction_id: TransactionId) -> StoredTransaction | None:
        await self._read("load")
        stored = self.database.transactions.get(transaction_id)
        if stored is None:
            return None
        newest: dict[int, AttemptRecord] = {}
        counts: dict[int, int] = {}
        for attempt in stored.ordered_attempts():
            counts[attempt.step_id] = counts.get(attempt.step_id, 0) + 1
            if not stored.is_rewound(attempt):
                newest[attempt.step_id] = attempt
        group = stored.record.open_group
        in_group = range(group[0], group[0] + group[1]) if group is not None else range(0)
        request_ids = {attempt.request_id for attempt in stored.attempts.values() if attempt.request_id}
        request_ids |= {request for scope, request in self.database.responses if scope == transaction_id}
        return StoredTransaction(
            transaction=stored.record,
            attempts=[newest[step] for step in sorted(newest)],
            undo=[stored.undo[sequence] for sequence in sorted(stored.undo)],
            attempt_counts=counts,
            group_reads=[read for read in stored.reads if read.step_id in in_group],
            group_writes=[stored.writes[at].write for at in sorted(stored.writes) if at[0] in in_group],
            request_ids=sorted(request_ids),
            approvals=[
                approval
                for _, approval in sorted(stored.approvals.items())
                if approval.step_id >= stored.record.next_step_id
                and approval.state in (ApprovalState.PENDING, ApprovalState.APPROVED)
            ],
            sub_steps=stored.live_sub_steps(),
            sub_step_counts=dict(Counter(at[:2] for at in stored.sub_steps)),
        )

    async def load_journal(self, transaction_id: TransactionId, step_id: int) -> StoredJournal:
        await self._read("load_journal")
        stored = self.database.transactions.get(transaction_id)
        made = stored.live_sub_steps(step_id) if stored is not None else []
        if stored is None or not made:
            return StoredJournal(())
        return StoredJournal(
            made, [stored.writes[at].write for at in sorted(stored.writes) if at[0] == step_id]
        )

    async def list_sub_step_attempts(
        self, transaction_id: TransactionId, step_id: int, sub_step: int
    ) -> Sequence[AttemptRecord]:
        await self._read("list_sub_step_attempts")
        stored = self.database.transactions.get(transaction_id)
        made = sorted(stored.sub_steps.items()) if stored is not None else []
        return [attempt for at, attempt in made if at[:2] == (step_id, sub_step)]

    async def load_touched(
        self, transaction_id: TransactionId, first: int, last: int
    ) -> tuple[Sequence[StateRead], Sequence[StateWrite]]:
        await self._read("load_touched")
        stored = self.database.transactions[transaction_id]
        reads = [read for read in stored.reads if first <= read.step_id <= last]
        return (
            sorted(reads, key=lambda read: (read.step_id, read.key, read.is_prefix, read.version)),
            [
                replace(stored.writes[at].write, value=None)
                for at in sorted(stored.writes)
                if first <= at[0] <= last
            ],
        )

    async def load_record(self, transaction_id: TransactionId) -> TransactionRecord | None:
        await self._read("load_record")
        stored = self.database.transactions.get(transaction_id)
        return None if stored is None else stored.record

    async def find_attempt(
        self, transaction_id: TransactionId, request_id: str
    ) -> tuple[AttemptRecord, bool] | None:
        await self._read("find_attempt")
        stored = self.database.transactions.get(transaction_id)
        if stored is None or not request_id:
            return None
        found = [attempt for attempt in stored.attempts.values() if attempt.request_id == request_id]
        if not found:
            return None
        attempt = max(found, key=lambda item: (item.generation, item.attempt))
        return attempt, stored.is_rewound(attempt)

    async def find_response(self, scope: str, request_id: str) -> RecordedResponse | None:
        await self._read("find_response")
        return self.database.responses.get((scope, request_id))

    async def read_state(self, transaction_id: TransactionId, key: str, before_step: int) -> StateView:
        await self._read("read_state")
        return self._view(transaction_id, key, before_step)

    def _view(self, transaction_id: TransactionId, key: str, before_step: int) -> StateView:
        stored = self.database.transactions.get(transaction_id)
        own, value = stored.own_value(key, before_step) if stored is not None else (False, None)
        committed, version = self.database.committed.get(key, (None, 0))
        return StateView(value if own else committed, own, version)

    async def scan_state(
        self, transaction_id: TransactionId, prefix: str, before_step: int, after: str, limit: int
    ) -> Sequence[tuple[str, StateView]]:
        await self._read("scan_state")
        stored = self.database.transactions.get(transaction_id)
        keys = set(self.database.committed)
        if stored is not None:
            keys |= {row.write.key for row in stored.writes.values()}
        views = (
            (key, self._view(transaction_id, key, before_step))
            for key in sorted(keys)
            if key.startswith(prefix) and key > after
        )
        return [(key, view) for key, view in views if view.value is not None][:limit]

    async def read_committed(self, key: str) -> CommittedEntry:
        await self._read("read_committed")
        value, version = self.database.committed.get(key, (None, 0))
        return CommittedEntry(key, value, version)

    async def scan_committed(self, prefix: str, cursor: str, limit: int, byte_limit: int) -> CommittedPage:
        await self._read("scan_committed")
        after = _decode("state", cursor)[0] if cursor else ""
        entries = [
            CommittedEntry(key, value, version)
            for key, (value, version) in sorted(self.database.committed.items())
            if value is not None and key.startswith(prefix) and (not cursor or key > after)
        ]
        page = _page(entries, limit, byte_limit, lambda entry: len(entry.key) + len(entry.value or ""))
        more = len(page) < len(entries)
        return CommittedPage(page, _encode("state", page[-1].key) if more else "")

    async def list_transactions(self, which: TransactionFilter, cursor: str, limit: int) -> TransactionPage:
        await self._read("list_transactions")
        position = tuple(_decode("transactions", cursor)) if cursor else None
        found = sorted(
            (
                stored.record
                for stored in self.database.transactions.values()
                if _matches(stored.record, which)
            ),
            key=lambda record: (record.created_at, record.transaction_id),
            reverse=True,
        )
        if position is not None:
            found = [item for item in found if (item.created_at, item.transaction_id) < position]
        page = found[:limit]
        more = len(page) < len(found)
        cursor = _encode("transactions", page[-1].created_at, page[-1].transaction_id) if more else ""
        stored = {record.transaction_id: self.database.transactions[record.transaction_id] for record in page}
        effects = {
            transaction_id: dict(Counter(EffectState(effect.state) for effect in item.effects.values()))
            for transaction_id, item in stored.items()
            if item.effects
        }
        failed = {
            transaction_id: [
                undo for _, undo in sorted(item.undo.items(), reverse=True) if undo.state is UndoState.FAILED
            ]
            for transaction_id, item in stored.items()
        }
        unrecovered = {key: text for key, text in self.database.unrecovered.items() if key in stored}
        return TransactionPage(
            page, cursor, effects, {key: undo for key, undo in failed.items() if undo}, unrecovered
        )

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
        await self._read("list_attempts")
        position = tuple(_decode("attempts", cursor)) if cursor else (0, 0, 0)
        stored = self.database.transactions.get(transaction_id)
        listed = stored.ordered_attempts() if stored is not None else []
        if stored is not None and include_sub_steps:
            listed += stored.sub_steps.values()
            listed.sort(key=lambda item: (item.step_id, item.sub_step, item.attempt))
        found = [
            attempt
            for attempt in listed
            if (attempt.step_id, attempt.sub_step, attempt.attempt) > position
            and (step_id is None or attempt.step_id == step_id)
            and (include_rewound or (stored is not None and not stored.is_rewound(attempt)))
        ]
        page = _page(found, limit, byte_limit, lambda item: len(item.arguments) + len(item.output or ""))
        more = len(page) < len(found)
        return AttemptPage(
            page,
            [stored is not None and stored.is_rewound(attempt) for attempt in page],
            _encode("attempts", page[-1].step_id, page[-1].sub_step, page[-1].attempt) if more else "",
        )

    async def list_events(
        self, transaction_id: TransactionId, from_sequence: int, limit: int
    ) -> Sequence[EventRecord]:
        await self._read("list_events")
        stored = self.database.transactions.get(transaction_id)
        events = [event for event in (stored.events if stored else ()) if event.sequence >= from_sequence]
        return _page(events, limit, _EVENT_BYTES, lambda event: len(event.payload))

    async def load_context(
        self, transaction_id: TransactionId, byte_limit: int
    ) -> tuple[Sequence[tuple[int, str, str]], bool]:
        await self._read("load_context")
        stored = self.database.transactions.get(transaction_id)
        if stored is None:
            return [], False
        live: dict[int, AttemptRecord] = {}
        for attempt in stored.ordered_attempts():
            if not stored.is_rewound(attempt):
                live[attempt.step_id] = attempt
        entries = [
            (step, live[step].tool_name, live[step].raw_context)
            for step in sorted(live)
            if live[step].raw_context
        ]
        kept: list[tuple[int, str, str]] = []
        left = byte_limit
        for step, tool_name, text in reversed(entries):
            left -= len(text.encode())
            if left < 0:
                break
            kept.append((step, tool_name, text))
        return kept[::-1], len(kept) < len(entries)

    async def load_output(self, transaction_id: TransactionId, step_id: int, attempt: int) -> str | None:
        await self._read("load_output")
        stored = self.database.transactions.get(transaction_id)
        found = stored.attempts.get((step_id, attempt)) if stored is not None else None
        return None if found is None else found.output

    async def list_effects(
        self, transaction_id: TransactionId, states: frozenset[str]
    ) -> Sequence[EffectRecord]:
        await self._read("list_effects")
        stored = self.database.transactions.get(transaction_id)
        effects = stored.effects.values() if stored is not None else ()
        return sorted(
            (effect for effect in effects if not states or effect.state in states),
            key=lambda effect: (effect.sequence, effect.effect_id),
        )

    async def count_touched(
        self, transaction_id: TransactionId, from_step: int
    ) -> tuple[int, Sequence[str], int]:
        await self._read("count_touched")
        stored = self.database.transactions.get(transaction_id)
        if stored is None:
            return 0, [], 0
        rows = [row.write for at, row in stored.writes.items() if at[0] >= from_step]
        staged = sum(
            effect.state is EffectState.STAGED and effect.step_id >= from_step
            for effect in stored.effects.values()
        )
        return len(rows), sorted({row.key for row in rows})[:_TOUCHED_KEYS], staged

    async def rows_by_step(self, transaction_id: TransactionId, from_step: int) -> Sequence[tuple[int, int]]:
        await self._read("rows_by_step")
        stored = self.database.transactions.get(transaction_id)
        if stored is None:
            return []
        found = Counter(at[0] for at in stored.writes) + Counter(read.step_id for read in stored.reads)
        return sorted((step, rows) for step, rows in found.items() if step >= from_step)

    async def first_use(self, transaction_id: TransactionId, key: str) -> int | None:
        await self._read("first_use")
        stored = self.database.transactions[transaction_id]
        steps = [row.write.step_id for row in stored.writes.values() if row.write.key == key]
        steps += [
            read.step_id
            for read in stored.reads
            if (key.startswith(read.key) if read.is_prefix else key == read.key)
        ]
        steps += [
            check.step_id
            for check in stored.checks
            if (key == check.key if check.kind is CommitCheckKind.EXISTS else key.startswith(check.key))
        ]
        return min(steps, default=None)

    async def count_open(self, principal: str) -> int:
        await self._read("count_open")
        return sum(
            not stored.record.status.is_terminal and principal in ("", stored.record.principal)
            for stored in self.database.transactions.values()
        )

    async def commit_version(self) -> int:
        await self._read("commit_version")
        return self.database.commit_version

    async def load_revision(self, transaction_id: TransactionId) -> int:
        await self._read("load_revision")
        stored = self.database.transactions.get(transaction_id)
        return 0 if stored is None else stored.record.revision

    async def list_compensations(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[UndoState],
        cursor: str,
        limit: int,
    ) -> CompensationPage:
        await self._read("list_compensations")
        found = [
            ((stored.record.created_at, stored.record.transaction_id, -undo.sequence), stored.record, undo)
            for stored in self._of(principal, transaction_id)
            for undo in stored.undo.values()
            if undo.state in states
        ]
        found.sort(key=lambda item: item[0])
        if cursor:
            position = tuple(_decode("compensations", cursor))
            found = [item for item in found if item[0] > position]
        page = found[:limit]
        more = len(page) < len(found)
        return CompensationPage(
            [(record, undo) for _, record, undo in page],
            _encode("compensations", *page[-1][0]) if more else "",
        )

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
        await self._read("list_effects_page")
        found = [
            (
                (stored.record.created_at, stored.record.transaction_id, effect.sequence, effect.effect_id),
                stored.record,
                effect,
            )
            for stored in self._of(principal, transaction_id)
            for effect in stored.effects.values()
            if (not states or effect.state in states) and channel in ("", effect.channel)
        ]
        found.sort(key=lambda item: item[0])
        if cursor:
            position = tuple(_decode("effects", cursor))
            found = [item for item in found if item[0] > position]
        page = _page(found, limit, byte_limit, lambda item: len(item[2].payload))
        more = len(page) < len(found)
        return EffectPage(
            [(record, effect) for _, record, effect in page], _encode("effects", *page[-1][0]) if more else ""
        )

    async def load_approval(self, transaction_id: TransactionId, sequence: int) -> ApprovalRecord | None:
        await self._read("load_approval")
        stored = self.database.transactions.get(transaction_id)
        return None if stored is None else stored.approvals.get(sequence)

    async def list_approvals(
        self,
        principal: str,
        transaction_id: TransactionId | None,
        states: frozenset[ApprovalState],
        cursor: str,
        limit: int,
        byte_limit: int,
    ) -> ApprovalPage:
        await self._read("list_approvals")
        numbers = {key: number for number, key in enumerate(self.database.transactions, start=1)}
        found = [
            (
                (approval.requested_at, numbers[stored.record.transaction_id], approval.sequence),
                stored.record,
                approval,
            )
            for stored in self._of(principal, transaction_id)
            for approval in stored.approvals.values()
            if approval.state in states
        ]
        found.sort(key=lambda item: item[0])
        if cursor:
            position = tuple(_decode("approvals", cursor))
            found = [item for item in found if item[0] > position]
        page = _page(found, limit, byte_limit, lambda item: len(item[2].arguments))
        more = len(page) < len(found)
        return ApprovalPage(
            [(record, approval) for _, record, approval in page],
            _encode("approvals", *page[-1][0]) if more else "",
        )

    def _of(self, principal: str, transaction_id: TransactionId | None) -> list[_Stored]:
        return [
            stored
            for key, stored in self.database.transactions.items()
            if transaction_id in (None, key) and principal in ("", stored.record.principal)
        ]

    # --- servers, leases, takeover --------------------------------------------------------

    async def register_server(self, server_id: ServerId, lease_seconds: float, now: MicrosecondsUtc) -> None:
        await self._read("register_server")
        if not self.is_shared:
            self.database.leases.clear()
        self.database.leases[server_id] = now + int(lease_seconds * 1_000_000)

    async def renew_lease(self, server_id: ServerId, lease_seconds: float, now: MicrosecondsUtc) -> bool:
        await self._read("renew_lease")
        if not self.database.is_alive(server_id, now):
            return False
        self.database.leases[server_id] = now + int(lease_seconds * 1_000_000)
        return True

    async def retire_server(self, server_id: ServerId) -> None:
        await self._read("retire_server")
        self.database.leases.pop(server_id, None)
        for stored in self.database.transactions.values():
            record = stored.record
            if record.owner == server_id and record.status is TransactionStatus.ACTIVE:
                stored.record = record = replace(record, owner=ServerId(""))
            if record.outbox_owner == server_id:
                stored.record = replace(record, outbox_owner=ServerId(""))

    async def is_alive(self, server_id: ServerId, now: MicrosecondsUtc) -> bool:
        await self._read("is_alive")
        return self.database.is_alive(server_id, now)

    async def list_servers(self, now: MicrosecondsUtc) -> Sequence[ServerId]:
        await self._read("list_servers")
        return sorted(
            server_id for server_id in self.database.leases if self.database.is_alive(server_id, now)
        )

    async def claim_orphans(
        self, server_id: ServerId, now: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        await self._read("claim_orphans")
        orphans = sorted(
            (
                stored
                for stored in self.database.transactions.values()
                if stored.record.owner and not self.database.is_alive(stored.record.owner, now)
            ),
            key=lambda stored: (stored.record.created_at, stored.record.transaction_id),
        )[:limit]
        for stored in orphans:
            record = stored.record
            stored.record = replace(record, owner=server_id, revision=record.revision + 1)
        return [stored.record.transaction_id for stored in orphans]

    async def list_unsettled_of(
        self, server_id: ServerId, updated_before: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        await self._read("list_unsettled_of")
        found = sorted(
            (stored.record.updated_at, stored.record.transaction_id)
            for stored in self.database.transactions.values()
            if stored.record.owner == server_id
            and stored.record.status is not TransactionStatus.ACTIVE
            and stored.record.updated_at < updated_before
        )
        return [transaction_id for _, transaction_id in found][:limit]

    async def request_stop(self, request: StopRequest) -> None:
        await self._read("request_stop")
        self.database.stop_requests[request.transaction_id] = request

    async def take_stop_requests(self, server_id: ServerId) -> Sequence[StopRequest]:
        await self._read("take_stop_requests")
        mine = [
            request
            for request in self.database.stop_requests.values()
            if self.database.transactions[request.transaction_id].record.owner == server_id
        ]
        for request in mine:
            del self.database.stop_requests[request.transaction_id]
        return mine

    async def note_unrecovered(self, transaction_id: TransactionId, reason: str) -> None:
        await self._read("note_unrecovered")
        if reason:
            self.database.unrecovered[transaction_id] = reason
        else:
            self.database.unrecovered.pop(transaction_id, None)

    async def load_recovery_problem(self, transaction_id: TransactionId) -> str:
        await self._read("load_recovery_problem")
        return self.database.unrecovered.get(transaction_id, "")

    # --- the outbox, the reaper, retention ------------------------------------------------

    async def claim_outbox(
        self, server_id: ServerId, now: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        await self._read("claim_outbox")
        due = sorted(
            (
                stored
                for stored in self.database.transactions.values()
                if stored.record.outbox_due_at is not None
                and stored.record.outbox_due_at <= now
                and not self.database.is_alive(stored.record.outbox_owner, now)
            ),
            key=lambda stored: (stored.record.outbox_due_at or 0, stored.record.transaction_id),
        )[:limit]
        for stored in due:
            stored.record = replace(stored.record, outbox_owner=server_id)
        return [stored.record.transaction_id for stored in due]

    async def list_outbox_of(
        self, server_id: ServerId, due_by: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        await self._read("list_outbox_of")
        found = sorted(
            (stored.record.outbox_due_at, stored.record.transaction_id)
            for stored in self.database.transactions.values()
            if stored.record.outbox_due_at is not None
            and stored.record.outbox_due_at <= due_by
            and stored.record.outbox_owner == server_id
        )
        return [transaction_id for _, transaction_id in found][:limit]

    async def next_outbox_due(self) -> MicrosecondsUtc | None:
        await self._read("next_outbox_due")
        return min(
            (
                stored.record.outbox_due_at
                for stored in self.database.transactions.values()
                if stored.record.outbox_due_at is not None and not stored.record.outbox_owner
            ),
            default=None,
        )

    async def list_expired(
        self, now: MicrosecondsUtc, serving_since: MicrosecondsUtc, limit: int
    ) -> Sequence[TransactionId]:
        await self._read("list_expired")
        return [
            record.transaction_id
            for stored in self.database.transactions.values()
            for record in (stored.record,)
            if not record.status.is_terminal
            and (
                (record.deadline_at is not None and record.deadline_at <= now)
                or (
                    bool(record.idle_timeout_us)
                    and _is_quiet(stored)
                    and max(record.updated_at, serving_since) + (record.idle_timeout_us or 0) <= now
                )
            )
        ][:limit]

    async def purge_ended(self, ended_before: MicrosecondsUtc, limit: int) -> int:
        await self._read("purge_ended")
        purged = [
            transaction_id
            for transaction_id, stored in self.database.transactions.items()
            if stored.record.ended_at is not None
            and stored.record.ended_at < ended_before
            and not any(
                effect.state in (EffectState.READY, EffectState.DEAD) for effect in stored.effects.values()
            )
            and not any(undo.state in _TO_BE_SEEN_TO for undo in stored.undo.values())
        ][:limit]
        for transaction_id in purged:
            record = self.database.transactions.pop(transaction_id).record
            self.database.responses.pop((f"principal:{record.principal}", record.begin_request_id), None)
            self.database.unrecovered.pop(transaction_id, None)
            self.database.stop_requests.pop(transaction_id, None)
            scopes = (transaction_id, f"commit:{transaction_id}")
            for at in [at for at in self.database.responses if at[0] in scopes]:
                del self.database.responses[at]
        return len(purged)

    async def check(self) -> None:
        await self._read("check")


# --- the parts ----------------------------------------------------------------------------


def _is_quiet(stored: _Stored) -> bool:
    status = stored.record.status
    asked = any(approval.state is ApprovalState.PENDING for approval in stored.approvals.values())
    return status is TransactionStatus.ACTIVE or (status is TransactionStatus.AWAITING_APPROVAL and not asked)


def _drop(stored: _Stored, from_step: int, generation: int) -> None:
    """Take away what a rewind takes away, and mark the attempts as rewound."""
    if (generation, from_step) not in stored.rewinds:
        stored.rewinds.append((generation, from_step))
    stored.writes = {at: row for at, row in stored.writes.items() if at[0] < from_step}
    stored.reads = [read for read in stored.reads if read.step_id < from_step]
    stored.checks = [check for check in stored.checks if check.step_id < from_step]
    stored.effects = {
        effect_id: effect
        for effect_id, effect in stored.effects.items()
        if effect.step_id < from_step or effect.state is not EffectState.STAGED
    }
    stored.undo = {
        sequence: undo
        for sequence, undo in stored.undo.items()
        if undo.step_id < from_step or undo.state not in (UndoState.DONE, UndoState.PENDING) or undo.late
    }


def with_extra(
    tables: Mapping[str, dict[tuple[Any, ...], tuple[Any, ...]]],
    rows: Sequence[ExtraRows],
    keys: Mapping[str, Sequence[int]],
) -> dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]:
    """Return tables of outer layers as rows leave them; ``keys`` are the places of their key columns.

    Raises ExtraRowsRefused; nothing is changed then.
    """
    extra = {table: dict(held) for table, held in tables.items()}
    order = list(ExtraOperation)[::-1]  # what is required, deletions, upserts, inserts
    for item in sorted(rows, key=lambda item: order.index(item.operation)):
        places = keys[item.table]
        table = extra.setdefault(item.table, {})
        for row in item.rows:
            if item.operation is ExtraOperation.DELETE:
                table.pop(tuple(row), None)
                continue
            if item.operation is ExtraOperation.UNCHANGED:
                if not any(tuple(row) == held[:-1] for held in table.values()):
                    raise ExtraRowsRefused(f"a row of {item.table} has changed")
                continue
            if item.operation is ExtraOperation.REQUIRE:
                if tuple(row) not in table:
                    raise ExtraRowsRefused(f"a row of {item.table} is not there")
                continue
            key = tuple(row[place] for place in places)
            if item.operation is ExtraOperation.INSERT and key in table:
                raise ExtraRowsRefused(f"a row of {item.table} exists already")
            table[key] = tuple(row)
    return extra


def _remove_step(stored: _Stored, removal: StepRemoval) -> None:
    """Take away what one step, or one of its sub-steps, left."""

    def goes(step_id: int, sub_step: int) -> bool:
        return step_id == removal.step_id and removal.sub_step in (None, sub_step)

    stored.writes = {at: row for at, row in stored.writes.items() if not goes(at[0], sub_step_of(at[1]))}
    stored.reads = [read for read in stored.reads if not goes(read.step_id, read.sub_step)]
    stored.checks = [check for check in stored.checks if not goes(check.step_id, sub_step_of(check.sequence))]
    stored.effects = {
        effect_id: effect
        for effect_id, effect in stored.effects.items()
        if effect.state is not EffectState.STAGED or not goes(effect.step_id, effect.sub_step)
    }
    stored.undo = {
        sequence: undo
        for sequence, undo in stored.undo.items()
        if undo.late
        or undo.state not in (UndoState.DONE, UndoState.PENDING)
        or not goes(undo.step_id, undo.sub_step)
    }


def _insert(database: MemoryDatabase, stored: _Stored, write_set: WriteSet) -> None:
    for attempt in write_set.attempts:
        stored.attempts[(attempt.step_id, attempt.attempt)] = attempt
    for attempt in write_set.sub_steps:
        stored.sub_steps[(attempt.step_id, attempt.sub_step, attempt.attempt)] = attempt
    for undo in write_set.undo:
        stored.undo[undo.sequence] = undo
    for approval in write_set.approvals:
        stored.approvals[approval.sequence] = approval
    for effect in write_set.effects:
        stored.effects[effect.effect_id] = effect
    for read in write_set.state_reads:
        if read not in stored.reads:
            stored.reads.append(read)
    for write in write_set.state_writes:
        at = (write.step_id, write.sequence)
        assert at not in stored.writes, f"two state writes {at}"
        seen = [read.version for read in stored.reads if read.key == write.key and not read.is_prefix]
        stored.writes[at] = _Write(write, max(seen) if seen else database.version(write.key))
    for check in write_set.checks:
        assert all(
            (check.step_id, check.sequence) != (known.step_id, known.sequence) for known in stored.checks
        ), f"two checks {check.step_id, check.sequence}"
        stored.checks.append(check)
    for event in write_set.events:
        assert event.sequence == len(stored.events) + 1, f"event {event.sequence} after {len(stored.events)}"
        stored.events.append(event)
    assert stored.record.event_sequence == len(stored.events), "the head counts other events"


def _matches(record: TransactionRecord, which: TransactionFilter) -> bool:
    return (
        which.principal in ("", record.principal)
        and (not which.statuses or record.status in which.statuses)
        and which.agent_id in ("", record.agent_id)
        and set(which.metadata) <= set(record.metadata)
        and (which.created_from is None or record.created_at >= which.created_from)
        and (which.created_to is None or record.created_at < which.created_to)
    )


def _page(items: Iterable[T], limit: int, byte_limit: int, size: Callable[[T], int]) -> list[T]:
    """The first items, cut by number and by bytes, at least one."""
    page: list[T] = []
    left = byte_limit
    for item in items:
        left -= size(item)
        if len(page) >= limit or (page and left < 0):
            break
        page.append(item)
    return page


def _encode(kind: str, *position: int | str) -> str:
    return base64.urlsafe_b64encode(json.dumps([kind, *position]).encode()).decode()


def _decode(kind: str, cursor: str) -> list[Any]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except ValueError:
        raise ValueError("the cursor was not given out by this store") from None
    if not isinstance(values, list) or not values or values[0] != kind:
        raise ValueError("the cursor was not given out by this listing")
    return values[1:]
