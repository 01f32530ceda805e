"""The tables, as SQLAlchemy Core knows them; the migrations create the same.

Types are portable: JSON is canonical TEXT (a JSON type would refuse U+0000 and rewrite
numbers), times are UTC microseconds in BIGINT. Keys compare by code point on every
database (``KEY_TEXT``), because ranges over prefixes rely on it.

Everything that belongs to a transaction is keyed by ``transaction_number``, a small integer
that stands for the transaction's id inside the database, and tables are kept in order of
insertion with as few and as small indexes as will do. What a group commit costs is the
pages it dirties, for its rows belong to as many transactions as there are steps in it: 64 steps
dirty 50 to 300, by the length of their transactions (benchmarks/store_writes.py), and three times
as many where the 36-byte ids are the keys and rows are clustered by them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, PrimaryKeyConstraint, Table, Text, text

__all__ = [
    "APPROVALS_PENDING",
    "EFFECTS_WAITING",
    "ENGINE_TABLES",
    "FIXED_AT_BEGIN",
    "HEAD_REVISION",
    "KEY_TEXT",
    "METADATA",
    "UNDO_IN_QUESTION",
    "approvals",
    "attempts",
    "commit_checks",
    "committed_state",
    "counters",
    "database_facts",
    "effects",
    "encryption_keys",
    "events",
    "recorded_responses",
    "recovery_problems",
    "rewinds",
    "servers",
    "state_reads",
    "state_writes",
    "stop_requests",
    "sub_steps",
    "transaction_metadata",
    "transactions",
    "undo_actions",
]

# The newest migration; a test holds it equal to the head of migrations/versions.
HEAD_REVISION = "0023"

METADATA = MetaData()
KEY_TEXT = Text().with_variant(Text(collation="C"), "postgresql")


def _key(name: str) -> Column[str]:
    return Column(name, KEY_TEXT, nullable=False)


def _text(name: str, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _integer(name: str, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


# An alias of the rowid on SQLite.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")

transactions = Table(
    "transactions",
    METADATA,
    Column("number", _NUMBER, primary_key=True),
    _key("transaction_id"),
    _text("principal"),
    _text("agent_id"),
    _text("status"),
    _integer("is_open"),
    _integer("revision"),
    _integer("next_step_id"),
    _integer("generation"),
    _integer("created_at"),
    _integer("updated_at"),
    _integer("ended_at", nullable=True),
    _integer("commit_version"),
    _integer("idle_timeout_us", nullable=True),
    _integer("deadline_at", nullable=True),
    _text("owner"),
    _text("outbox_owner"),
    _integer("outbox_due_at", nullable=True),
    _text("details"),
)
# What a write over an existing head leaves as it is: settled at begin, or by publication.
FIXED_AT_BEGIN = frozenset(
    {
        "transaction_id",
        "principal",
        "agent_id",
        "created_at",
        "commit_version",
        "idle_timeout_us",
        "deadline_at",
    }
)
Index("ux_transactions_id", transactions.c.transaction_id, unique=True)
Index("ix_transactions_created", transactions.c.created_at, transactions.c.transaction_id)
Index(
    "ix_transactions_principal",
    transactions.c.principal,
    transactions.c.created_at,
    transactions.c.transaction_id,
)
# ``is_open`` leads although it is always 1: with two equal columns it is the planner's first choice.
Index(
    "ix_transactions_open",
    transactions.c.is_open,
    transactions.c.principal,
    transactions.c.created_at,
    transactions.c.transaction_id,
    sqlite_where=text("is_open = 1"),
    postgresql_where=text("is_open = 1"),
)

# Few rows each: what a step that has its whole effect in its commit writes touches none of them.
Index(
    "ix_transactions_owner",
    transactions.c.owner,
    sqlite_where=text("owner <> ''"),
    postgresql_where=text("owner <> ''"),
)
Index(
    "ix_transactions_outbox",
    transactions.c.outbox_due_at,
    sqlite_where=text("outbox_due_at IS NOT NULL"),
    postgresql_where=text("outbox_due_at IS NOT NULL"),
)
Index(
    "ix_transactions_ended",
    transactions.c.ended_at,
    sqlite_where=text("ended_at IS NOT NULL"),
    postgresql_where=text("ended_at IS NOT NULL"),
)

# Servers and how long each may be taken to be alive: ``lease_until`` is in the database's time
# where several servers share it.
servers = Table(
    "servers",
    METADATA,
    _text("server_id"),
    _integer("lease_until"),
    _integer("registered_at"),
    PrimaryKeyConstraint("server_id"),
)

# Words to the server that owns a transaction, and what could not be recovered: written beside the
# revision guard, so they are no part of the head.
stop_requests = Table(
    "stop_requests",
    METADATA,
    _integer("transaction_number"),
    _text("kind"),
    _integer("step_id"),
    _text("why"),
    PrimaryKeyConstraint("transaction_number"),
)
recovery_problems = Table(
    "recovery_problems",
    METADATA,
    _integer("transaction_number"),
    _text("reason"),
    PrimaryKeyConstraint("transaction_number"),
)

# For the filter of ListTransactions alone; the record reads its metadata from ``details``.
transaction_metadata = Table(
    "transaction_metadata",
    METADATA,
    _integer("transaction_number"),
    _text("name"),
    _text("value"),
    PrimaryKeyConstraint("transaction_number", "name", "value"),
    sqlite_with_rowid=False,
)

# Edges, hint and what is never searched are in ``details``; ``raw_context`` is a JSON string, NULL
# where there is none. ``request_key`` is a hash of the request_id, NULL for an empty one.
attempts = Table(
    "attempts",
    METADATA,
    _integer("transaction_number"),
    _integer("step_id"),
    _integer("attempt"),
    _integer("request_key", nullable=True),
    _integer("generation"),
    _text("request_id"),
    _text("state"),
    _text("tool_name"),
    _text("resolved_arguments", nullable=True),
    _text("output", nullable=True),
    _text("response", nullable=True),
    _text("raw_context", nullable=True),
    _text("details"),
    PrimaryKeyConstraint("transaction_number", "step_id", "attempt"),
)
# Not unique: recovery may run a request as a further attempt.
Index(
    "ix_attempts_request",
    attempts.c.transaction_number,
    attempts.c.request_key,
    sqlite_where=text("request_key IS NOT NULL"),
    postgresql_where=text("request_key IS NOT NULL"),
)

# The calls that steps made: attempts of their own, found by the step that made them. Rewinds cover them as they do
# their step.
sub_steps = Table(
    "sub_steps",
    METADATA,
    _integer("transaction_number"),
    _integer("step_id"),
    _integer("sub_step"),
    _integer("attempt"),
    _integer("generation"),
    _text("state"),
    _text("tool_name"),
    _text("output", nullable=True),
    _text("details"),
    PrimaryKeyConstraint("transaction_number", "step_id", "sub_step", "attempt"),
)

# Attempts are never touched by a rewind: one is rewound iff a row here covers its
# generation and step.
rewinds = Table(
    "rewinds",
    METADATA,
    _integer("transaction_number"),
    _integer("generation"),
    _integer("to_step"),
    _integer("rewound_at"),
    PrimaryKeyConstraint("transaction_number", "generation", "to_step"),
    sqlite_with_rowid=False,
)

state_writes = Table(
    "state_writes",
    METADATA,
    _integer("transaction_number"),
    _integer("step_id"),
    _integer("sequence"),
    _key("key"),
    _text("value", nullable=True),
    _integer("base_version"),
    PrimaryKeyConstraint("transaction_number", "step_id", "sequence"),
)
Index(
    "ix_state_writes_key",
    state_writes.c.transaction_number,
    state_writes.c.key,
    state_writes.c.step_id,
    state_writes.c.sequence,
)

# A step that saw two versions of a key has two rows, and a serializable commit then fails on
# the older; the last one read is the greatest. ``key_end``, here and in commit_checks, is the
# first key behind a prefix, '' if there is none.
state_reads = Table(
    "state_reads",
    METADATA,
    _integer("transaction_number"),
    _integer("step_id"),
    _key("key"),
    _integer("is_prefix"),
    _integer("version"),
    _integer("sub_step"),
    _key("key_end"),
)
Index("ix_state_reads_step", state_reads.c.transaction_number, state_reads.c.step_id)
Index(
    "ix_state_reads_key",
    state_reads.c.transaction_number,
    state_reads.c.key,
    state_reads.c.is_prefix,
    state_reads.c.version,
)

# ``error`` is a JSON string.
commit_checks = Table(
    "commit_checks",
    METADATA,
    _integer("transaction_number"),
    _integer("step_id"),
    _integer("sequence"),
    _text("kind"),
    _key("key"),
    _key("key_end"),
    _text("error"),
    PrimaryKeyConstraint("transaction_number", "step_id", "sequence"),
)

effects = Table(
    "effects",
    METADATA,
    _integer("transaction_number"),
    _text("effect_id"),
    _integer("step_id"),
    _integer("sequence"),
    _text("channel"),
    _text("state"),
    _text("payload"),
    _integer("sub_step"),
    _text("details"),
    PrimaryKeyConstraint("transaction_number", "effect_id"),
)
Index("ix_effects_step", effects.c.transaction_number, effects.c.step_id, effects.c.sequence)
# For the listings of what needs somebody, here and of undo: few rows each, and none that a step
# writes. A query that is to use one says its condition word for word.
EFFECTS_WAITING = "state IN ('DEAD', 'READY')"
Index(
    "ix_effects_waiting",
    effects.c.transaction_number,
    effects.c.sequence,
    sqlite_where=text(EFFECTS_WAITING),
    postgresql_where=text(EFFECTS_WAITING),
)

undo_actions = Table(
    "undo_actions",
    METADATA,
    _integer("transaction_number"),
    _integer("sequence"),
    _integer("step_id"),
    _text("state"),
    _integer("late"),
    _text("arguments"),
    _integer("sub_step"),
    _text("details"),
    PrimaryKeyConstraint("transaction_number", "sequence"),
)
Index("ix_undo_actions_step", undo_actions.c.transaction_number, undo_actions.c.step_id)
UNDO_IN_QUESTION = "state IN ('AWAITING_AGENT', 'FAILED', 'LATE', 'RESOLVED')"
Index(
    "ix_undo_actions_in_question",
    undo_actions.c.transaction_number,
    undo_actions.c.sequence,
    sqlite_where=text(UNDO_IN_QUESTION),
    postgresql_where=text(UNDO_IN_QUESTION),
)

# Asked rarely, and by people: the listings over all transactions are what the indexes are for.
approvals = Table(
    "approvals",
    METADATA,
    _integer("transaction_number"),
    _integer("sequence"),
    _integer("step_id"),
    _text("state"),
    _integer("requested_at"),
    _text("arguments"),
    _text("details"),
    PrimaryKeyConstraint("transaction_number", "sequence"),
)
Index(
    "ix_approvals_requested",
    approvals.c.requested_at,
    approvals.c.transaction_number,
    approvals.c.sequence,
)
APPROVALS_PENDING = "state = 'PENDING'"
Index(
    "ix_approvals_pending",
    approvals.c.requested_at,
    approvals.c.transaction_number,
    approvals.c.sequence,
    sqlite_where=text(APPROVALS_PENDING),
    postgresql_where=text(APPROVALS_PENDING),
)

events = Table(
    "events",
    METADATA,
    _integer("transaction_number"),
    _integer("sequence"),
    _text("type"),
    _integer("generation"),
    _integer("occurred_at"),
    _integer("step_id"),
    _integer("attempt"),
    _text("payload"),
    _integer("sub_step"),
    PrimaryKeyConstraint("transaction_number", "sequence"),
)

recorded_responses = Table(
    "recorded_responses",
    METADATA,
    _text("scope"),
    _text("request_id"),
    _text("method"),
    _text("fingerprint"),
    _text("response"),
    PrimaryKeyConstraint("scope", "request_id"),
)

# A row with value NULL is a tombstone: its version still tells that the key was changed.
committed_state = Table(
    "committed_state",
    METADATA,
    _key("key"),
    _text("value", nullable=True),
    _integer("version"),
    PrimaryKeyConstraint("key"),
)

counters = Table("counters", METADATA, _text("name"), _integer("value"), PrimaryKeyConstraint("name"))

database_facts = Table(
    "database_facts", METADATA, _text("name"), _text("value"), PrimaryKeyConstraint("name")
)

# The keys that payloads were sealed with (payload_keys): ``check_value`` is a known text sealed with each.
encryption_keys = Table(
    "encryption_keys",
    METADATA,
    _text("key_id"),
    _text("check_value"),
    _integer("registered_at"),
    PrimaryKeyConstraint("key_id"),
)

# The engine's own: a broken key of any other one is told to the layer that gave the row.
ENGINE_TABLES = frozenset(METADATA.tables)
