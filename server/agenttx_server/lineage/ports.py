"""What is kept of records, and what the store has to answer about them. Implemented by store/record_store.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.ports import ExtraRows
from agenttx_server.lineage.ledger import Batch
from agenttx_server.lineage.records import Record, RecordEdge, RecordEvent

__all__ = [
    "EventPage",
    "KeptBatch",
    "KeptEvent",
    "KeptRecord",
    "RecordChange",
    "RecordCommit",
    "RecordPage",
    "RecordStore",
]


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record with where it was made.

    Attributes:
        run_id: the run; of a plain transaction its id.
        pipeline: the pipeline's name.
        transaction_id: the transaction that committed it, or is about to.
        step_id: the step whose output it is; 0 for what no step made.
        sequence: its place among the records of its action in the run: they are listed in this order.
    """

    record: Record
    run_id: str
    pipeline: str
    transaction_id: str
    step_id: int
    sequence: int


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """An event with where it happened.

    ``attempt`` tells what became of one input in attempts that were rewound from what became of it at last.
    """

    event: RecordEvent
    run_id: str
    transaction_id: str
    step_id: int
    attempt: int
    occurred_at: int
    is_rewound: bool = False


@dataclass(frozen=True, slots=True)
class RecordCommit:
    """A transaction whose records count from now on: it goes with the transaction's own commit.

    ``principal`` is whose it is, "" where nobody is told apart; ``pipeline`` is empty for a plain transaction,
    whose ``run_id`` is its own id.
    """

    transaction_id: str
    run_id: str
    pipeline: str
    committed_at: int
    principal: str = ""


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """What a step makes: ``batch`` of the dataflow with the fields that are the same in all of it."""

    batch: Batch
    run_id: str
    pipeline: str
    transaction_id: str
    step_id: int
    first_sequence: int
    attempt: int
    occurred_at: int


@dataclass(frozen=True, slots=True)
class RecordChange:
    """What is written together. ``rewound``: records that are gone, whose events stay and are flagged."""

    batches: Sequence[KeptBatch] = ()
    commits: Sequence[RecordCommit] = ()
    rewound: Sequence[KeptRecord] = ()
    rewound_edges: Sequence[RecordEdge] = ()
    rewound_events: Sequence[KeptEvent] = ()


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some records and the cursor behind them, empty at the end."""

    records: Sequence[KeptRecord]
    next_cursor: str


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events and the cursor behind them, empty at the end."""

    events: Sequence[KeptEvent]
    next_cursor: str


class RecordStore(Protocol):
    """Records, edges and events. Reads see records of committed transactions, and of ``transaction_id`` if one is named.

    All reads raise StoreUnavailable; those with a cursor ValueError for one that was not given out.
    """

    def rows(self, change: RecordChange) -> Sequence[ExtraRows]:
        """Return a change as rows that a write set carries."""
        ...

    async def get_record(self, target_id: str, transaction_id: str = "") -> KeptRecord | None:
        """Find a record."""
        ...

    async def list_records(
        self, run_id: str, action: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """List an action's records in a run, in their order; of all actions, one after the other, where none is named."""
        ...

    async def list_siblings(
        self, parent_target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """List the records that have this parent."""
        ...

    async def list_by_root(
        self, root_target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """List all records of a root."""
        ...

    async def list_by_source(
        self, principal: str, source_guid: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """List all records, of any run that a principal sees, that came of rows with this content."""
        ...

    async def list_descendants(
        self, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """List what came of a record, through merges, groups and aggregation too."""
        ...

    async def list_ancestors(
        self, target_id: str, cursor: str, limit: int, transaction_id: str = ""
    ) -> RecordPage:
        """List what a record came of, through merges, groups and aggregation too."""
        ...

    async def edges_of(self, target_ids: Sequence[str]) -> Sequence[RecordEdge]:
        """The edges from these records to what they came of."""
        ...

    async def events_of(self, transaction_id: str) -> Sequence[KeptEvent]:
        """All events of a transaction, rewound ones too, whether it was committed or not."""
        ...

    async def list_events(
        self, cursor: str, limit: int, *, input_id: str = "", transaction_id: str = ""
    ) -> EventPage:
        """List what became of a record, or all events of a transaction: rewound ones too, by input, action and attempt."""
        ...

    async def owner_of(self, transaction_id: str) -> str | None:
        """Whose the records of a committed transaction are; None where it has none."""
        ...

    async def purge_transaction(self, committed_before: int) -> bool:
        """Remove what plain transactions kept that committed before then, some at a time; False if there is none."""
        ...

    async def count_records(self, run_id: str) -> Mapping[str, int]:
        """How many records of a run count, by action."""
        ...

    async def records_of(self, transaction_id: str) -> Sequence[KeptRecord]:
        """All records of a transaction, whether it was committed or not."""
        ...
