"""Every metric there is: its name, kind, labels and meaning. The documentation's table is this list.

Names and labels are what dashboards and alert rules are written against: a change here is told in the changelog.
Labels are bounded: closed lists, names of the server's own methods, and tools and channels through
:class:`.bounded_labels.BoundedLabels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ALL_FAMILIES", "Family", "Kind"]


class Kind(StrEnum):
    """How a metric is to be read."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric under one name. Counters' names end in ``_total``; units are in the names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help_: str, *labels: str) -> Family:
    return Family(name, Kind.COUNTER, help_, labels)


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(name, Kind.GAUGE, help_, labels)


def _histogram(name: str, help_: str, *labels: str) -> Family:
    return Family(name, Kind.HISTOGRAM, help_, labels)


# --- the server ------------------------------------------------------------------------------
BUILD_INFO = _gauge("agenttx_build_info", "Always 1; the version is its label.", "version")
SERVING = _gauge("agenttx_serving", "1 while calls are served, as the health service says; 0 while not.")
LOOP_LAG = _histogram(
    "agenttx_event_loop_lag_seconds",
    "How late the event loop woke a timer that was due: what every call waits beside its own work.",
)
QUEUE_DEPTH = _gauge(
    "agenttx_queue_depth",
    "What waits: write sets for a commit, reads for a reader thread, calls for a worker, blocking tools for a thread.",
    "queue",
)

# --- calls -----------------------------------------------------------------------------------
RPC_DURATION = _histogram(
    "agenttx_rpc_duration_seconds",
    "Calls by method and status code, and how long they took; a stream counts when it ends.",
    "method",
    "code",
)
RPCS_ACTIVE = _gauge("agenttx_rpcs_active", "Calls being served, open streams among them.", "method")
CALLS_IN_CLASS = _gauge(
    "agenttx_calls_in_class", "Calls being served of each class that has a bound.", "call_class"
)
CALLS_IN_CLASS_LIMIT = _gauge(
    "agenttx_calls_in_class_limit", "As many calls of the class as are served at once.", "call_class"
)

NEW_WORK_REFUSED = _gauge(
    "agenttx_new_work_refused_share",
    "Share of the steps, transactions and runs that came lately that was refused because the server is behind, 0 to 1.",
)
WORK_REFUSED = _counter(
    "agenttx_work_refused_total",
    "Steps (kind step), and transactions and runs (beginning), refused because the server is behind.",
    "kind",
)
STEPS_IN_HAND = _gauge(
    "agenttx_steps_in_hand",
    "Steps and beginnings that the server works at; those whose tools run are left out.",
)
CALLS_WAITING = _gauge(
    "agenttx_calls_waiting", "Calls that have come to gRPC and that the server has not come to yet."
)
STEPS_IN_HAND_LIMIT = _gauge(
    "agenttx_steps_in_hand_limit",
    "As many as a server that is behind takes in hand at once; 0 while it is not behind.",
)
STEP_STAY = _gauge(
    "agenttx_step_stay_seconds",
    "How long steps are in the server's hands, the time of their tools left out: of those ended within a tenth of a second, "
    "the median.",
)
STEP_STAY_TARGET = _gauge("agenttx_step_stay_target_seconds", "Beyond it a server is behind.")

# --- what the engine did ---------------------------------------------------------------------
TRANSACTIONS_BEGUN = _counter("agenttx_transactions_begun_total", "Transactions begun by this server.")
TRANSACTION_DURATION = _histogram(
    "agenttx_transaction_duration_seconds",
    "Transactions that this server ended, by how they ended, and how long they were open.",
    "status",
)
COMMIT_CONFLICTS = _counter(
    "agenttx_commit_conflicts_total", "Commits refused because of what another transaction had committed."
)
STEP_DURATION = _histogram(
    "agenttx_step_duration_seconds",
    "Attempts of steps by tool, its effect class and outcome, and how long they took, waiting for a worker or a person "
    "included. The tool is other where this server does not offer it, or the agent ran the step itself.",
    "tool",
    "effect_class",
    "outcome",
)
SUB_STEP_DURATION = _histogram(
    "agenttx_sub_step_duration_seconds",
    "The same of calls that steps made.",
    "tool",
    "effect_class",
    "outcome",
)
HINTS = _counter(
    "agenttx_hints_total", "Failures that agents were given a hint about, by category.", "category"
)
DECISIONS = _counter(
    "agenttx_decisions_total", "Decisions on failed steps that were carried out, by strategy.", "strategy"
)
REWIND_DURATION = _histogram(
    "agenttx_rewind_duration_seconds",
    "Rewinds and aborts by why they were made and by strategy, and how long they took, the undo and all waiting included.",
    "purpose",
    "strategy",
)
REWIND_STEPS = _histogram(
    "agenttx_rewind_steps",
    "What rewinds cost: steps that were taken back and are to be run again.",
    "strategy",
)
REWINDS_HELD = _counter(
    "agenttx_rewinds_held_total",
    "Times that a rewind was held by undo that failed or that is the agent's to do.",
)
COMPENSATIONS = _counter(
    "agenttx_compensations_total",
    "Undo actions by the tool whose effect they take back: done, failed after all tries, or resolved by a person; and "
    "late effects that were reported.",
    "tool",
    "outcome",
)
EFFECTS = _counter(
    "agenttx_effects_total",
    "What became of staged effects, by channel: delivered, failed (and tried again), dead, requeued, discarded.",
    "channel",
    "outcome",
)
APPROVALS = _counter(
    "agenttx_approvals_total", "Approvals asked for, given, refused and withdrawn.", "outcome"
)

# --- what stands open in the database, over all servers ---------------------------------------
DATABASE_SAMPLE_AGE = _gauge(
    "agenttx_database_sample_age_seconds",
    "How old the counts below are, those of everything that stands open in the database.",
)
TRANSACTIONS_OPEN = _gauge("agenttx_transactions_open", "Open transactions by status.", "status")
TRANSACTIONS_OLDEST = _gauge(
    "agenttx_transactions_oldest_seconds",
    "Time since the last write to the open transaction that was written to longest ago, by status; 0 if there is none.",
    "status",
)
TRANSACTIONS_HELD = _gauge(
    "agenttx_transactions_held",
    "Transactions whose rewind waits for undo that failed or that is the agent's.",
)
TRANSACTIONS_UNRECOVERED = _gauge(
    "agenttx_transactions_unrecovered", "Transactions that recovery after a crash could not settle."
)
UNDO_WAITING = _gauge("agenttx_undo_waiting", "Undo actions that somebody has to see to, by state.", "state")
EFFECTS_WAITING = _gauge(
    "agenttx_effects_waiting",
    "Effects of committed transactions that are to be delivered, or were given up.",
    "state",
)
EFFECTS_OLDEST = _gauge(
    "agenttx_effects_oldest_seconds",
    "Time since the commit of the oldest of them; 0 if there is none.",
    "state",
)
APPROVALS_PENDING = _gauge("agenttx_approvals_pending", "Steps that wait for a person's decision.")
APPROVALS_OLDEST = _gauge(
    "agenttx_approvals_oldest_seconds", "Time since the oldest of them was asked for; 0 if there is none."
)

STORED_BYTES = _gauge(
    "agenttx_stored_bytes",
    "Bytes stored, by tenant: those that have a rule in tenants_file, and all others together. There where a quota of bytes is set.",
    "tenant",
)

# --- writing, leases, workers ------------------------------------------------------------------
COMMIT_BATCH_SETS = _histogram(
    "agenttx_commit_batch_sets", "Write sets that were made durable together, a set a step or other change."
)
COMMIT_BATCH_DURATION = _histogram(
    "agenttx_commit_batch_duration_seconds", "Time from the beginning of such a batch until it was durable."
)
WRITES_UNAVAILABLE = _counter(
    "agenttx_writes_unavailable_total",
    "Write sets that the database did not take, or whose outcome is unknown.",
)
CACHE_LOOKUPS = _counter(
    "agenttx_transaction_cache_lookups_total",
    "Uses of a transaction, by whether it was in memory (hit) or had to be read (miss).",
    "result",
)
CACHED_TRANSACTIONS = _gauge("agenttx_cached_transactions", "Open transactions in memory.")
ENGINE_TASKS = _gauge(
    "agenttx_engine_tasks",
    "Work under way that runs to its end whoever waits: changes, tools, undo, deliveries.",
)
DELIVERIES_ACTIVE = _gauge("agenttx_deliveries_active", "Transactions whose effects are being delivered.")
LEASE_SECONDS_LEFT = _gauge(
    "agenttx_lease_seconds_left",
    "Time until this server's lease ends unless it is renewed; absent where the database is this server's alone.",
)
LEASE_RENEWALS = _counter(
    "agenttx_lease_renewals_total",
    "Renewals of the lease: renewed, failed (the database did not answer), lost (it had ended).",
    "result",
)
SERVERS = _gauge("agenttx_servers", "Servers that share the database, this one included, as far as it knows.")
WORKERS = _gauge("agenttx_workers", "Workers connected to this server.")
WORKER_CALLS = _gauge("agenttx_worker_calls", "Calls that workers run for this server.")
CERTIFICATE_EXPIRY = _gauge(
    "agenttx_certificate_expiry_timestamp_seconds",
    "When the TLS certificate that is served ends, in seconds since 1970; absent without TLS.",
)

ALL_FAMILIES: tuple[Family, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Family)
)
