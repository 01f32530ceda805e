"""What each part of a server knows of itself, as metrics."""

from __future__ import annotations

from agenttx_server.api.server import ApiServer
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.live_servers import LiveServers
from agenttx_server.store import SqlTransactionStore
from agenttx_server.stored_quotas import StoredQuotas
from agenttx_server.telemetry import metric_families as families
from agenttx_server.telemetry.exposition import Source, Values
from agenttx_server.telemetry.loop_lag import LoopLag
from agenttx_server.telemetry.release import release
from agenttx_server.tools import ToolRegistry
from agenttx_server.tools.remote_workers import RemoteWorkers

__all__ = ["of_api", "of_engine", "of_loop", "of_quotas", "of_store", "of_tools"]


def of_api(api: ApiServer) -> Source:
    """Return the source of calls: how many, how long, how many at once."""

    def read(values: Values) -> None:
        values.number(families.BUILD_INFO, 1, release())
        values.number(families.SERVING, api.health.is_serving)
        for (method, code), seconds in api.metrics.by_method_and_code.items():
            values.histogram(families.RPC_DURATION, seconds.read(), method, code.name)
        for method, active in api.metrics.active.items():
            values.number(families.RPCS_ACTIVE, active, method)
        shedding = api.admission.shedding
        values.number(families.NEW_WORK_REFUSED, shedding.share)
        for kind, count in shedding.refused.items():
            values.number(families.WORK_REFUSED, count, kind)
        values.number(families.STEPS_IN_HAND, shedding.in_hand)
        values.number(families.CALLS_WAITING, shedding.calls_waiting)
        values.number(families.STEPS_IN_HAND_LIMIT, shedding.limit)
        values.number(families.STEP_STAY, shedding.stay_seconds)
        values.number(families.STEP_STAY_TARGET, shedding.target_seconds)
        if api.certificate is not None:
            values.number(families.CERTIFICATE_EXPIRY, api.certificate.expires_at.timestamp())
        for call_class, (active, limit) in api.admission.load.items():
            values.number(families.CALLS_IN_CLASS, active, call_class)
            values.number(families.CALLS_IN_CLASS_LIMIT, limit, call_class)

    return read


def of_engine(coordinator: TransactionCoordinator, servers: LiveServers) -> Source:
    """Return the source of what the engine is at: its cache, its lease, its tasks."""

    def read(values: Values) -> None:
        activity = coordinator.activity
        lease = activity.lease
        values.number(families.CACHE_LOOKUPS, activity.cache_hits, "hit")
        values.number(families.CACHE_LOOKUPS, activity.cache_misses, "miss")
        values.number(families.CACHED_TRANSACTIONS, activity.cached_transactions)
        values.number(families.ENGINE_TASKS, activity.tasks)
        values.number(families.DELIVERIES_ACTIVE, activity.deliveries)
        if lease.seconds_left is not None:
            values.number(families.LEASE_SECONDS_LEFT, lease.seconds_left)
        for result, count in (("renewed", lease.renewed), ("failed", lease.failed), ("lost", lease.lost)):
            values.number(families.LEASE_RENEWALS, count, result)
        values.number(families.SERVERS, len(servers.listed))

    return read


def of_store(store: SqlTransactionStore) -> Source:
    """Return the source of group commit and of what waits for the database."""

    def read(values: Values) -> None:
        statistics = store.statistics
        writing = statistics.writing
        values.histogram(families.COMMIT_BATCH_SETS, writing.batch_sets)
        values.histogram(families.COMMIT_BATCH_DURATION, writing.batch_seconds)
        values.number(families.WRITES_UNAVAILABLE, writing.sets_unavailable)
        values.number(families.QUEUE_DEPTH, writing.queued, "commit")
        values.number(families.QUEUE_DEPTH, statistics.reads_waiting, "read")

    return read


def of_tools(own: ToolRegistry, workers: RemoteWorkers) -> Source:
    """Return the source of workers, and of what waits for one or for a thread."""

    def read(values: Values) -> None:
        load = workers.load
        values.number(families.WORKERS, load.connections)
        values.number(families.WORKER_CALLS, load.running)
        values.number(families.QUEUE_DEPTH, load.waiting, "worker")
        values.number(families.QUEUE_DEPTH, own.waiting_for_threads, "tool_thread")

    return read


def of_quotas(quotas: StoredQuotas) -> Source:
    """Return the source of what tenants store; tenants that nobody named in the rules share a label."""

    def read(values: Values) -> None:
        others = 0
        for tenant, size in quotas.by_tenant.items():
            if tenant in quotas.named_tenants:
                values.number(families.STORED_BYTES, size, tenant)
            else:
                others += size
        values.number(families.STORED_BYTES, others, "(others)")

    return read


def of_loop(lag: LoopLag) -> Source:
    """Return the source of the event loop's lag."""

    def read(values: Values) -> None:
        values.histogram(families.LOOP_LAG, lag.seconds.read())

    return read
