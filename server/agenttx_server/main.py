"""The composition root: every part of a server, made here and nowhere else.

``run`` is a server's life as a process, ``serve`` the same within an event loop, and
``open_server`` its parts without signals, as tests and embedders use it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

# gRPC's core writes to stderr in a form of its own, and reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import structlog

from agenttx_server import failpoints
from agenttx_server.access.authenticator import Authenticator
from agenttx_server.access.certificate_rules import CertificateRules, load_certificate_rules
from agenttx_server.access.tenant_rules import TenantRules, load_tenant_rules
from agenttx_server.access.token_verifier import TokenVerifier
from agenttx_server.api.certificate_files import CertificateFiles
from agenttx_server.api.graph_run_servicer import GraphRunning
from agenttx_server.api.health_monitor import follow_database
from agenttx_server.api.interceptors import Authentication
from agenttx_server.api.interceptors.call import CallClass, call_facts
from agenttx_server.api.pipeline_servicer import PipelineRunning
from agenttx_server.api.server import AddressRefused, ApiServer, ApiSettings, open_api_server
from agenttx_server.api.step_rates import StepRates
from agenttx_server.api.tool_service import WorkerAccess
from agenttx_server.engine import hints
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.engine.ports import EffectSink, StoreUnavailable, ToolRunner
from agenttx_server.engine.records import Policy, RejectedCalls, ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.engine.visibility import DEFAULT_TENANT
from agenttx_server.failpoint_ports import with_failpoints
from agenttx_server.file_keeping import FileKeeping
from agenttx_server.graphs.library import GraphLibrary, RegisteredGraphs
from agenttx_server.graphs.reducers import ReducerLoadError, ReducerRegistry, load_reducers
from agenttx_server.graphs.runs.broken_threads import BrokenThreads
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.event_following import JournalPoll
from agenttx_server.graphs.runs.event_reading import EventReading
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.live_notices import LiveNotices
from agenttx_server.graphs.runs.node_cache import purging
from agenttx_server.graphs.runs.old_runs import OldRuns
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.run_life import RunLife
from agenttx_server.graphs.runs.run_reading import RunReading
from agenttx_server.graphs.runs.run_stops import RunStops
from agenttx_server.graphs.runs.thread_reading import ThreadReading
from agenttx_server.graphs.runs.waiting_runs import WaitingRuns
from agenttx_server.http_hosts import HostPattern, parse_networks
from agenttx_server.http_secrets import Secrets, load_secrets
from agenttx_server.lineage.validation import KnowsTool
from agenttx_server.listen_address import ListenAddress, MetricsAddressRefused
from agenttx_server.live_servers import LiveServers
from agenttx_server.logging_setup import configure_logging
from agenttx_server.pipelines.library import PipelineLibrary
from agenttx_server.pipelines.lineage_reading import LineageReading
from agenttx_server.pipelines.run_coordinator import PipelineRuns
from agenttx_server.pipelines.run_life import PipelineLife
from agenttx_server.pipelines.run_reading import PipelineRunReading
from agenttx_server.pipelines.step_recording import StepRecording
from agenttx_server.settings import Settings
from agenttx_server.sinks import ChannelRouter, JsonLinesSink
from agenttx_server.store import (
    DatabaseRefused,
    PayloadKeys,
    PostgresSettings,
    SqlTransactionStore,
    StoreSettings,
    load_payload_keys,
    open_store,
)
from agenttx_server.stored_quotas import StoredQuotas
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tenants import Tenants
from agenttx_server.tool_secrets import ToolSecrets, load_tool_secrets
from agenttx_server.tools import AnyTool, ToolDefinitionError, ToolLoadError, ToolRegistry, load_tools
from agenttx_server.tools.approval_rules import load_approval_rules
from agenttx_server.tools.builtin import builtin_tools
from agenttx_server.tools.entry_points import installed_names, load_entry_points
from agenttx_server.tools.hosted_functions import HostedFunctions
from agenttx_server.tools.remote_workers import RemoteWorkers, WorkerSettings
from agenttx_server.tools.returning_undo import ReturningUndo
from agenttx_server.tools.tool_sources import ToolSource, tools_of
from agenttx_server.tools.tools_offered_before import ToolsOfferedBefore
from agenttx_server.webhook_targets import ALL_OTHERS
from agenttx_server.worker_processes import EXIT_CANNOT_START, shared_address, supervise, worker_number

if TYPE_CHECKING:
    from agenttx_server.access.jwt_verifier import JwtVerifier
    from agenttx_server.telemetry.server_metrics import ServerMetrics
    from agenttx_server.telemetry.server_tracing import ServerTracing
    from agenttx_server.tools.mcp_client.mounted_servers import MountedServers

__all__ = ["CannotStart", "Server", "open_server", "run", "serve"]

PRIVATE_DIRECTORY = 0o700
# How long a thread keeps the interpreter while others wait for it. The loop waits for the threads of the
# database and of blocking tools, and each turn it gets back late is every caller's latency.
SWITCH_INTERVAL_SECONDS = 0.001
GC_YOUNG_OBJECTS = 50_000
GC_YOUNG_ROUNDS = 20
MCP_START_SECONDS = 10.0
"""How long a start waits for MCP servers that are slow; it goes on without them, and they come later."""


class CannotStart(Exception):
    """What was asked for can't be served; the message is one line for whoever started the server."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that serves."""

    api: ApiServer
    coordinator: TransactionCoordinator
    metrics_address: ListenAddress | None = None

    @property
    def address(self) -> str:
        """Where it listens, with its real port: what a client connects to."""
        return str(self.api.address)

    async def drain(self) -> int:
        """Stop in order; return how many steps were still running when the time was up."""
        return await self.api.drain()


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the process's exit code. Errors at start are one line on stderr."""
    configure_logging(settings.log_format, settings.log_level, call_facts)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        _check_transport(settings)
        if settings.workers > 1 and shared_address() is None:
            return supervise(settings.address, settings.workers)
        with asyncio.Runner(debug=False, loop_factory=_loop_factory()) as runner:
            runner.run(serve(settings))
    except (CannotStart, AddressRefused) as refused:
        sys.stderr.write(f"agenttx: {refused}\n")
        return EXIT_CANNOT_START
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(settings: Settings) -> None:
    """Serve until the process is told to stop, then drain. Told twice, it exits at once.

    Raises:
        CannotStart: nothing was served.
    """
    told_to_stop = _stop_signal()
    if shared_address() is not None:
        _stop_with_parent(told_to_stop)
    async with open_server(settings) as server:
        _calm_garbage_collector()
        log = structlog.get_logger()
        told = {} if server.metrics_address is None else {"metrics": str(server.metrics_address)}
        log.info("serving", address=server.address, data_dir=str(settings.data_dir), **told)
        await told_to_stop.wait()
        log.info("draining")
        running = await server.drain()
    log.info("stopped")
    if running:
        # Their tools can't be stopped. Left alone they keep their EXECUTING rows and are settled after the next
        # start; the loop's own end would cancel them, which counts as an outcome.
        with suppress(OSError, ValueError):  # nobody may read the log any more
            sys.stderr.flush()
        os._exit(0)


def _calm_garbage_collector() -> None:
    # What was imported stays for good: frozen, it is never walked again. Open transactions are
    # many small objects without cycles, which the default threshold of 700 has walked over
    # and over: a third of a step's time (docs/benchmarks.md).
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_YOUNG_ROUNDS, GC_YOUNG_ROUNDS)


def _stop_signal() -> asyncio.Event:
    told_to_stop = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if told_to_stop.is_set():
            os._exit(128 + number)
        told_to_stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return told_to_stop


def _stop_with_parent(told_to_stop: asyncio.Event) -> None:
    """Drain when the process that started this one is gone: the pipe between them ends."""

    def look() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin)
            told_to_stop.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, look)


@asynccontextmanager
async def open_server(settings: Settings) -> AsyncIterator[Server]:
    """Make a server and have it serve until the context is left. Drain it before.

    Raises:
        CannotStart: one line says why; nothing is left open.
    """
    async with AsyncExitStack() as stack:
        try:
            server = await _start(settings, stack)
        except (
            AddressRefused,
            DatabaseRefused,
            ToolDefinitionError,
            ToolLoadError,
            failpoints.BadFailpoints,
            FileRefused,
            ReducerLoadError,
            MetricsAddressRefused,
        ) as refused:
            raise CannotStart(str(refused)) from refused
        yield server


def _check_transport(settings: Settings) -> None:
    if problem := settings.transport_problem:
        raise CannotStart(problem)


async def _start(settings: Settings, stack: AsyncExitStack) -> Server:
    _check_transport(settings)
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""), os.environ.get(failpoints.SEED_VARIABLE, ""))
    clean = hints.clean
    if settings.hint_rules_file is not None:
        clean = hints.load_cleaner(settings.hint_rules_file).clean
    reducers = _reducers(settings)
    _make_directories(settings)
    files = _files(settings)
    own_tools = _tools(settings, files)
    returning_undo = ReturningUndo()
    mounted = await _mounted(settings, stack, own_tools, returning_undo)

    def new_hub() -> RemoteWorkers:
        return RemoteWorkers(
            WorkerSettings(
                silence_limit_seconds=settings.worker_silence_seconds,
                undo_wait_seconds=settings.undo_timeout_seconds / 2,
            ),
            taken=[tool.name for tool in own_tools.describe_all()],
            knows_own_undo=lambda name: (
                own_tools.has_undo(name) or (mounted is not None and mounted.owns(name))
            ),
            channels=settings.worker_channels,
            on_undo_offered=returning_undo.offered,
            is_mounted=mounted.owns if mounted is not None else lambda name: False,
        )

    rules = load_tenant_rules(settings.tenants_file) if settings.tenants_file is not None else TenantRules()
    secrets = _tool_secrets(settings)
    sinks = _sinks(settings, stack)
    clock = SystemClock()
    store = await stack.enter_async_context(
        open_store(
            settings.database_url,
            StoreSettings(
                synchronous=settings.sqlite_synchronous,
                postgres=PostgresSettings(writers=settings.postgres_writers),
            ),
            payload_keys=_payload_keys(settings),
        )
    )
    if files is not None:
        await _attach(files, store, settings)
    offered_before = ToolsOfferedBefore(store, clock)
    tenants = Tenants(own_tools, mounted, rules, new_hub, sinks, secrets, offered_before)
    workers, own = tenants.workers, tenants.ports_of(DEFAULT_TENANT)
    metrics = _metrics(settings, own.tools, clock)
    ids = SystemIds()
    quotas = await _quotas(settings, rules, store, clock)
    rates = _rates(settings, rules, clock, quotas)
    services = EngineServices(
        store=store,
        tools=own.tools,
        sink=own.sink,
        clock=clock,
        ids=ids,
        clean=clean,
        server_id=ServerId(ids.new_id()),
        limits=_limits(settings),
        settings=_engine_settings(settings),
        approval_policy=(
            load_approval_rules(settings.approvals_file) if settings.approvals_file is not None else None
        ),
        run_owner=RolledBackRuns(store.runs),
        observer=None if metrics is None else metrics.changes,
        recorder=StepRecording(store, store.lineage, clock.now),
        of_tenant=tenants.ports_of,
        open_per_tenant=(lambda tenant: rules.of(tenant).max_open_transactions)
        if rules.limit_anything
        else None,
        check_stored=_nothing_limited if quotas is None else quotas.check,
        step_turn=_nothing_limited if rates is None else rates.turn,
    )
    functions = tenants.functions_of(DEFAULT_TENANT)
    tracing = await _tracing(settings, stack, services)
    if tracing is not None:
        services, functions = tracing.services, tracing.around_functions(functions)
    coordinator = TransactionCoordinator(with_failpoints(services) if failpoints.is_armed() else services)
    servers = LiveServers(lambda: coordinator.server_id)
    access = WorkerAccess(tenants.hub_of, servers, offered_before.note, clock.now, settings.max_output_bytes)
    graphs = GraphLibrary(store, clock, reducers)
    runs = _runs(store, coordinator, graphs, services, functions, tenants)
    pipelines = _pipelines(settings, store, coordinator, services)
    authentication = Authentication(await _authenticator(settings, TokenVerifier(store, clock), clock))
    api = await stack.enter_async_context(
        open_api_server(
            coordinator if tracing is None else tracing.around(coordinator),
            _api_settings(settings, rules, rates, quotas),
            access,
            graphs,
            runs,
            pipelines,
            authentication,
            None if tracing is None else tracing.tracer,
            store,
        )
    )
    stack.push_async_callback(coordinator.stop)
    stack.push_async_callback(runs.life.stop)
    stack.push_async_callback(pipelines.life.stop)
    try:
        await coordinator.start()
        # After the transactions: a run goes on in what was settled.
        await runs.life.start(settings.lease_seconds / 3)
        await pipelines.life.start(settings.lease_seconds / 3)
        if files is not None:
            await files.let_go_of_ended()
    except StoreUnavailable as error:
        raise CannotStart(f"the database did not answer: {error}") from error
    monitor = asyncio.create_task(follow_database(api.health, store.check, clock.sleep))
    stack.callback(monitor.cancel)
    # A third of a lease: a server that ended is forgotten when its lease is, and a new one met soon.
    following = asyncio.create_task(servers.follow(store, clock, settings.lease_seconds / 3))
    stack.callback(following.cancel)
    noting = asyncio.create_task(offered_before.keep(tenants.offered))
    stack.callback(noting.cancel)
    shedding = asyncio.create_task(
        api.admission.shedding.follow(clock, lambda: store.statistics.writing.queued)
    )
    stack.callback(shedding.cancel)
    rechecking = asyncio.create_task(authentication.recheck_streams(clock))
    stack.callback(rechecking.cancel)
    if quotas is not None:
        counting = asyncio.create_task(quotas.follow())
        stack.callback(counting.cancel)
    undo_again = asyncio.create_task(returning_undo.run(store, coordinator))
    stack.callback(undo_again.cancel)
    metrics_address = settings.metrics_address(worker_number())
    if metrics is not None and metrics_address is not None:
        serving = metrics.serve(metrics_address, api, coordinator, store, servers, own_tools, workers, quotas)
        metrics_address = await stack.enter_async_context(serving)
    api.health.set_serving(True)
    return Server(api, coordinator, metrics_address)


def _metrics(settings: Settings, tools: ToolRunner, clock: SystemClock) -> ServerMetrics | None:
    if not settings.metrics_listen:
        return None
    # Only now: most servers serve none.
    from agenttx_server.telemetry.server_metrics import ServerMetrics

    return ServerMetrics(tools, clock)


async def _tracing(
    settings: Settings, stack: AsyncExitStack, services: EngineServices
) -> ServerTracing | None:
    if not settings.otlp_endpoint:
        return None
    # Only now: most servers trace nothing, and the library is an extra.
    try:
        from agenttx_server.telemetry.server_tracing import ServerTracing
    except ImportError as error:
        raise CannotStart(
            f"--otlp-endpoint needs the extra otel: pip install 'agenttx[server,otel]' ({error})"
        ) from error
    return await stack.enter_async_context(
        ServerTracing.to(settings.otlp_protocol, settings.otlp_endpoint, settings.trace_sampling, services)
    )


def _runs(
    store: SqlTransactionStore,
    coordinator: TransactionCoordinator,
    graphs: GraphLibrary,
    services: EngineServices,
    functions: HostedFunctions,
    tenants: Tenants,
) -> GraphRunning:
    clock = services.clock
    notices = LiveNotices()
    transactions = EngineTransactions(coordinator, services.check_stored)
    parts = RunParts(
        store.runs, transactions, functions, clock, notices, tenants.functions_of, services.step_turn
    )
    catalog = RegisteredGraphs(graphs)
    runs = RunCoordinator(parts, catalog, services.ids, lambda: coordinator.server_id)
    stops = RunStops(runs, store.runs, clock)
    waiting = WaitingRuns(store.runs, runs.rewinds, clock)
    old_runs = OldRuns(store.runs, clock, services.settings.retention_seconds)
    purges = (purging(store.runs, clock), old_runs.purge)
    life = RunLife(runs, stops, waiting, JournalPoll(store.runs, clock), purges, clock)
    reading = RunReading(store.runs, runs)
    threads = ThreadReading(store.runs, catalog, reading)
    events = EventReading(store.runs, clock, reading, notices)
    broken = BrokenThreads(store.runs, catalog)
    return GraphRunning(runs, reading, threads, events, life, broken)


def _pipelines(
    settings: Settings,
    store: SqlTransactionStore,
    coordinator: TransactionCoordinator,
    services: EngineServices,
) -> PipelineRunning:
    clock = services.clock
    runs = PipelineRuns(
        coordinator, store, store.pipelines, clock, services.ids, step_turn=services.step_turn
    )

    def knows_tools_of(owner: str) -> KnowsTool:
        return lambda name: any(tool.name == name for tool in coordinator.describe_tools(owner))

    return PipelineRunning(
        PipelineLibrary(store.pipelines, clock, knows_tools_of),
        PipelineLife(
            runs,
            store.pipelines,
            clock,
            is_shared=store.is_shared,
            retention_seconds=settings.lineage_retention_seconds,
        ),
        PipelineRunReading(store.pipelines),
        LineageReading(store.pipelines),
    )


async def _mounted(
    settings: Settings, stack: AsyncExitStack, own_tools: ToolRegistry, returning_undo: ReturningUndo
) -> MountedServers | None:
    servers = settings.mcp_servers
    if not servers:
        return None
    for server in servers:
        own = next((t.name for t in own_tools.describe_all() if t.name.startswith(f"{server.name}.")), None)
        if own is not None:
            raise CannotStart(
                f"--mcp {server.name}=…: the server has a tool {own!r} itself; name the MCP server otherwise"
            )
    # Only now: most servers mount none, and the library is an extra.
    try:
        from agenttx_server.tools.mcp_client.mounted_servers import McpRulesRefused, MountedServers
    except ImportError as error:
        raise CannotStart(
            f"--mcp needs the extra mcp: pip install 'agenttx[server,mcp]' ({error})"
        ) from error
    mounted = MountedServers(
        servers,
        undo_wait_seconds=settings.undo_timeout_seconds / 2,
        on_undo_offered=returning_undo.offered,
    )
    stack.push_async_callback(mounted.stop)
    try:
        await mounted.start(MCP_START_SECONDS)
    except McpRulesRefused as refused:
        raise CannotStart(f"the rules for MCP servers don't fit: {refused}") from refused
    return mounted


def _sinks(settings: Settings, stack: AsyncExitStack) -> Callable[[RemoteWorkers], EffectSink]:
    """Return what makes the sink of a tenant: its workers' channels, and the server's own targets."""
    file = JsonLinesSink(settings.outbox_file)
    stack.callback(file.close)
    targets = settings.webhooks_by_channel
    if not targets:
        return lambda workers: ChannelRouter({}, file, workers)
    # Only now: most servers need no HTTP client.
    from agenttx_server.sinks.webhook import WebhookClient, WebhookSink

    client = WebhookClient(settings.webhook_timeout_seconds, settings.max_concurrent_deliveries)
    stack.push_async_callback(client.close)
    by_channel: dict[str, EffectSink] = {
        channel: WebhookSink(client, target) for channel, target in targets.items()
    }
    others = by_channel.pop(ALL_OTHERS, file)
    return lambda workers: ChannelRouter(by_channel, others, workers)


def _files(settings: Settings) -> FileKeeping | None:
    if not settings.fs_tools:
        return None
    try:
        return FileKeeping(settings.fs_root, settings.fs_backup_dir)
    except ValueError as error:
        raise CannotStart(str(error)) from error


async def _attach(files: FileKeeping, store: SqlTransactionStore, settings: Settings) -> None:
    try:
        await files.attach(store, adopt=settings.fs_adopt)
    except ValueError as error:
        raise CannotStart(str(error)) from error
    except StoreUnavailable as error:
        raise CannotStart(f"the database did not answer: {error}") from error


def _tools(settings: Settings, files: FileKeeping | None) -> ToolRegistry:
    builtin = builtin_tools(files.tools if files is not None else None)
    sources = [
        ToolSource("the built-in ones", [*builtin, *_http_tools(settings)]),
        *(ToolSource(f"--tools {name!r}", load_tools(name)) for name in settings.tools),
        *load_entry_points(settings.entry_point_tools),
    ]
    if not settings.entry_point_tools and (left_out := installed_names()):
        structlog.get_logger().info("installed tools are not served", entry_points=left_out)
    try:
        return ToolRegistry(tools_of(sources), blocking_threads=settings.tool_threads)
    except ValueError as error:
        raise CannotStart(str(error)) from error


def _reducers(settings: Settings) -> ReducerRegistry:
    loaded = dict.fromkeys(reducer for name in settings.reducers for reducer in load_reducers(name))
    try:
        return ReducerRegistry(loaded)
    except ValueError as error:
        raise CannotStart(str(error)) from error


def _http_tools(settings: Settings) -> list[AnyTool]:
    if not settings.http_allow:
        return []
    # Only now: most servers need no HTTP client.
    from agenttx_server.tools.http import HttpClient, HttpLimits, HttpTools

    limits = HttpLimits(
        allowed=tuple(map(HostPattern.parse, settings.http_allow)),
        private_networks=parse_networks(settings.http_private_networks),
        timeout_seconds=settings.http_timeout_seconds,
        response_bytes=settings.http_max_response_bytes,
        redirects=settings.http_max_redirects,
        ca_file=settings.http_ca_file,
    )
    honouring_keys = tuple(map(HostPattern.parse, settings.http_idempotent_hosts))
    try:
        secrets = load_secrets(settings.http_secrets_file) if settings.http_secrets_file else Secrets()
        return HttpTools(HttpClient(limits, secrets), secrets, honouring_keys).tools()
    except ValueError as error:
        raise CannotStart(str(error)) from error


def _tool_secrets(settings: Settings) -> ToolSecrets:
    file = settings.tool_secrets_file
    return ToolSecrets() if file is None else load_tool_secrets(file)


def _payload_keys(settings: Settings) -> PayloadKeys | None:
    file = settings.encryption_keys_file
    return None if file is None else load_payload_keys(file)


def _make_directories(settings: Settings) -> None:
    files = (settings.fs_root,) if settings.fs_tools else ()
    for directory in (settings.data_dir, *files, settings.outbox_file.parent):
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"can't make the directory {directory}: {error.strerror}") from error


def _limits(settings: Settings) -> Limits:
    return Limits(
        open_transactions=settings.max_open_transactions,
        open_per_principal=settings.max_open_per_principal,
        agent_id_bytes=settings.max_agent_id_bytes,
        metadata_entries=settings.max_metadata_entries,
        metadata_value_bytes=settings.max_metadata_value_bytes,
        tool_name_bytes=settings.max_tool_name_bytes,
        arguments_bytes=settings.max_arguments_bytes,
        raw_context_bytes=settings.max_raw_context_bytes,
        output_bytes=settings.max_output_bytes,
        struct_output_bytes=settings.max_struct_output_bytes,
        constraints=settings.max_constraints,
        steps_per_transaction=settings.max_steps_per_transaction,
        group_size=settings.max_group_size,
        context_bytes=settings.max_context_bytes,
        group_output_bytes=settings.max_group_output_bytes,
        default_policy=Policy(
            max_local_depth=settings.max_local_depth,
            max_global_resets=settings.max_global_resets,
            replay_budget_factor=settings.replay_budget_factor,
            rejected_calls=RejectedCalls(settings.rejected_calls),
        ),
    )


def _engine_settings(settings: Settings) -> EngineSettings:
    return EngineSettings(
        step_timeout_seconds=settings.step_timeout_seconds,
        stop_grace_seconds=settings.stop_grace_seconds,
        compensation_retries=settings.compensation_retries,
        compensation_timeout_seconds=settings.undo_timeout_seconds,
        dispatch_wait_seconds=settings.dispatch_wait_seconds,
        effect_retry_base_seconds=settings.effect_retry_base_seconds,
        effect_retry_max_seconds=settings.effect_retry_max_seconds,
        effect_max_attempts=settings.effect_max_attempts,
        max_concurrent_deliveries=settings.max_concurrent_deliveries,
        cached_transactions=settings.cached_transactions,
        lease_seconds=settings.lease_seconds,
        recovery_wait_seconds=settings.recovery_wait_seconds,
        idle_timeout_seconds=settings.idle_timeout_seconds,
        retention_seconds=settings.retention_seconds,
        reap_interval_seconds=settings.reap_interval_seconds,
    )


def _certificate(settings: Settings) -> CertificateFiles | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return CertificateFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


async def _authenticator(settings: Settings, tokens: TokenVerifier, clock: SystemClock) -> Authenticator:
    certificates = None
    if settings.tls_client_ca is not None:
        file = settings.certificates_file
        certificates = CertificateRules() if file is None else load_certificate_rules(file)
    return Authenticator(
        tokens,
        allows_anonymous=settings.allows_anonymous,
        certificates=certificates,
        jwts=await _jwts(settings, clock),
    )


async def _jwts(settings: Settings, clock: SystemClock) -> JwtVerifier | None:
    if not settings.jwt_issuer:
        return None
    # Only now: most servers know no issuer.
    from agenttx_server.access.jwt_keys import JwtKeys, JwtKeysRefused, loader_of
    from agenttx_server.access.jwt_verifier import JwtRules, JwtVerifier

    keys = JwtKeys(loader_of(settings.jwt_keys), clock)
    try:
        await keys.start()
    except JwtKeysRefused as refused:
        raise CannotStart(f"--jwt-keys: {refused}") from refused
    rules = JwtRules(
        settings.jwt_issuer,
        settings.jwt_audience,
        settings.jwt_algorithms,
        settings.jwt_roles_claim,
        settings.jwt_tenant_claim,
    )
    return JwtVerifier(rules, keys, clock)


def _tenant_bounds(rules: TenantRules) -> Callable[[str], Mapping[CallClass, int]]:
    def bounds(tenant: str) -> Mapping[CallClass, int]:
        rule = rules.of(tenant)
        return {
            CallClass.STEP: rule.max_concurrent_steps,
            CallClass.STREAM: rule.max_concurrent_streams,
            CallClass.WORKER: rule.max_workers,
        }

    return bounds


def _nothing_limited(owner: str) -> None:
    return None


async def _quotas(
    settings: Settings, rules: TenantRules, store: SqlTransactionStore, clock: SystemClock
) -> StoredQuotas | None:
    of_principal = settings.max_stored_bytes_per_principal
    if not of_principal and not rules.limit_bytes:
        return None
    quotas = StoredQuotas(
        of_principal, lambda tenant: rules.of(tenant).max_stored_bytes, store, clock, rules.names
    )
    try:
        await quotas.learn()
    except StoreUnavailable as error:
        raise CannotStart(f"the database did not answer: {error}") from error
    return quotas


def _rates(
    settings: Settings, rules: TenantRules, clock: SystemClock, quotas: StoredQuotas | None
) -> StepRates | None:
    of_principal = settings.max_steps_per_second_per_principal
    if not of_principal and not rules.limit_anything and quotas is None:
        return None
    return StepRates(
        of_principal,
        lambda tenant: rules.of(tenant).max_steps_per_second,
        clock.monotonic,
        clock.sleep,
        _nothing_limited if quotas is None else quotas.check,
    )


def _api_settings(
    settings: Settings, rules: TenantRules, rates: StepRates | None, quotas: StoredQuotas | None
) -> ApiSettings:
    shared = shared_address()
    return ApiSettings(
        address=shared or settings.address,
        shares_port=shared is not None,
        bounds={
            CallClass.STEP: settings.max_concurrent_steps,
            CallClass.CHANGE: settings.max_concurrent_changes,
            CallClass.READ: settings.max_concurrent_reads,
            CallClass.STREAM: settings.max_concurrent_streams,
            CallClass.WORKER: settings.max_workers,
        },
        principal_bounds={
            CallClass.STEP: settings.max_concurrent_steps_per_principal,
            CallClass.STREAM: settings.max_concurrent_streams_per_principal,
            CallClass.WORKER: settings.max_workers_per_principal,
        },
        tenant_bounds=_tenant_bounds(rules) if rules.limit_anything else None,
        rates=rates,
        check_stored=None if quotas is None else quotas.check,
        unix_socket_mode=settings.unix_socket_mode,
        max_message_bytes=settings.max_message_bytes,
        struct_output_bytes=settings.max_struct_output_bytes,
        call_limit_seconds=settings.call_limit_seconds,
        lame_duck_seconds=settings.lame_duck_seconds,
        stream_stall_seconds=settings.stream_stall_seconds,
        overload_lag_seconds=settings.overload_lag_seconds,
        overload_queued=settings.overload_queued,
        drain_timeout_seconds=settings.drain_timeout_seconds,
        reflection=settings.serves_reflection,
        certificate=_certificate(settings),
    )
