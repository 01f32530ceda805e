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
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

# gRPC's core writes to stderr in a form of its own, and reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import structlog

from agenttx_server import failpoints
from agenttx_server.access.tenant_rules import TenantRules, load_tenant_rules
from agenttx_server.access.token_verifier import TokenVerifier
from agenttx_server.api.health_monitor import follow_database
from agenttx_server.api.interceptors import Authentication
from agenttx_server.api.interceptors.call import call_facts
from agenttx_server.api.server import AddressRefused, ApiServer, open_api_server
from agenttx_server.api.tool_service import WorkerAccess
from agenttx_server.composition.bounds import (
    api_settings,
    engine_settings,
    limits_of,
    nothing_limited,
    quotas_of,
    rates_of,
)
from agenttx_server.composition.callers import authenticator_of
from agenttx_server.composition.cannot_start import CannotStart
from agenttx_server.composition.effect_sinks import sinks_of
from agenttx_server.composition.observation import metrics_of, tracing_of, written
from agenttx_server.composition.own_tools import (
    attach,
    files_of,
    make_directories,
    mounted_servers,
    reducers_of,
    registry_of,
    tool_secrets,
)
from agenttx_server.composition.running import graph_running, pipeline_running
from agenttx_server.engine import hints
from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.engine.visibility import DEFAULT_TENANT
from agenttx_server.failpoint_ports import with_failpoints
from agenttx_server.graphs.library import GraphLibrary
from agenttx_server.graphs.reducers import ReducerLoadError
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.listen_address import ListenAddress, MetricsAddressRefused
from agenttx_server.live_servers import LiveServers
from agenttx_server.logging_setup import configure_logging
from agenttx_server.pipelines.step_recording import StepRecording
from agenttx_server.settings import Settings
from agenttx_server.store import (
    DatabaseRefused,
    PayloadKeys,
    PostgresSettings,
    StoreSettings,
    load_payload_keys,
    open_store,
)
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tenants import Tenants
from agenttx_server.tools import ToolDefinitionError, ToolLoadError
from agenttx_server.tools.approval_rules import load_approval_rules
from agenttx_server.tools.hosted_functions import HostedFunctions
from agenttx_server.tools.remote_workers import RemoteWorkers, WorkerSettings
from agenttx_server.tools.returning_undo import ReturningUndo
from agenttx_server.tools.tools_offered_before import ToolsOfferedBefore
from agenttx_server.worker_processes import EXIT_CANNOT_START, shared_address, supervise, worker_number

__all__ = ["CannotStart", "Server", "open_server", "run", "serve"]

# How long a thread keeps the interpreter while others wait for it. The loop waits for the threads of the
# database and of blocking tools, and each turn it gets back late is every caller's latency.
SWITCH_INTERVAL_SECONDS = 0.001
GC_YOUNG_OBJECTS = 50_000
GC_YOUNG_ROUNDS = 20


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
    reducers = reducers_of(settings)
    make_directories(settings)
    files = files_of(settings)
    own_tools = registry_of(settings, files)
    returning_undo = ReturningUndo()
    mounted = await mounted_servers(settings, stack, own_tools, returning_undo)

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
    secrets = tool_secrets(settings)
    sinks = sinks_of(settings, stack)
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
        await attach(files, store, settings)
    offered_before = ToolsOfferedBefore(store, clock)
    tenants = Tenants(own_tools, mounted, rules, new_hub, sinks, secrets, offered_before)
    workers, own = tenants.workers, tenants.ports_of(DEFAULT_TENANT)
    metrics = metrics_of(settings, own.tools, clock)
    ids = SystemIds()
    quotas = await quotas_of(settings, rules, store, clock)
    rates = rates_of(settings, rules, clock)
    services = EngineServices(
        store=store,
        tools=own.tools,
        sink=own.sink,
        clock=clock,
        ids=ids,
        clean=clean,
        server_id=ServerId(ids.new_id()),
        limits=limits_of(settings),
        settings=engine_settings(settings),
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
        check_stored=nothing_limited if quotas is None else quotas.check,
        step_turn=nothing_limited if rates is None else rates.turn,
    )
    functions_of: Callable[[str], HostedFunctions] = tenants.functions_of
    tracing = await tracing_of(settings, stack, services)
    if tracing is not None:
        services, functions_of = tracing.services, tracing.around_functions(functions_of)
    coordinator = TransactionCoordinator(with_failpoints(services) if failpoints.is_armed() else services)
    servers = LiveServers(lambda: coordinator.server_id)
    access = WorkerAccess(tenants.hub_of, servers, offered_before.note, clock.now, settings.max_output_bytes)
    graphs = GraphLibrary(store, clock, reducers, services.check_stored)
    runs = graph_running(store, coordinator, graphs, services, functions_of)
    pipelines = pipeline_running(settings, store, coordinator, services)
    authentication = Authentication(await authenticator_of(settings, TokenVerifier(store, clock), clock))
    api = await stack.enter_async_context(
        open_api_server(
            coordinator if tracing is None else tracing.around(coordinator),
            api_settings(settings, rules, rates, quotas),
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
    shedding = asyncio.create_task(api.admission.shedding.follow(clock, partial(written, store)))
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


def _payload_keys(settings: Settings) -> PayloadKeys | None:
    file = settings.encryption_keys_file
    return None if file is None else load_payload_keys(file)
