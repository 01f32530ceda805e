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

# gRPC's core writes to stderr in a form of its own, and reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import structlog

from agenttx_server.api.health_monitor import follow_database
from agenttx_server.api.interceptors.call import CallClass, call_facts
from agenttx_server.api.server import AddressRefused, ApiServer, ApiSettings, open_api_server
from agenttx_server.engine import hints
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.records import Policy, RejectedCalls
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.logging_setup import configure_logging
from agenttx_server.settings import Settings
from agenttx_server.sinks import JsonLinesSink
from agenttx_server.store import DatabaseRefused, StoreSettings, open_store
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tools import ToolDefinitionError, ToolLoadError, ToolRegistry, load_tools
from agenttx_server.tools.builtin import FsSettings, builtin_tools

__all__ = ["CannotStart", "Server", "open_server", "run", "serve"]

EXIT_CANNOT_START = 78  # EX_CONFIG of sysexits.h
PRIVATE_DIRECTORY = 0o700
# How long a thread keeps the interpreter while others wait for it. The loop waits for the threads of the
# database and of blocking tools, and each turn it gets back late is every caller's latency.
SWITCH_INTERVAL_SECONDS = 0.001
GC_YOUNG_OBJECTS = 50_000
GC_YOUNG_ROUNDS = 20


class CannotStart(Exception):
    """What was asked for can't be served; the message is one line for whoever started the server."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that serves."""

    api: ApiServer
    coordinator: TransactionCoordinator

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
        with asyncio.Runner(debug=False, loop_factory=_loop_factory()) as runner:
            runner.run(serve(settings))
    except CannotStart as refused:
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
    async with open_server(settings) as server:
        _calm_garbage_collector()
        log = structlog.get_logger()
        log.info("serving", address=server.address, data_dir=str(settings.data_dir))
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
            hints.RuleFileError,
        ) as refused:
            raise CannotStart(str(refused)) from refused
        yield server


async def _start(settings: Settings, stack: AsyncExitStack) -> Server:
    clean = hints.clean
    if settings.hint_rules_file is not None:
        clean = hints.load_cleaner(settings.hint_rules_file).clean
    _make_directories(settings)
    tools = _tools(settings)
    clock = SystemClock()
    store = await stack.enter_async_context(
        open_store(settings.database_url, StoreSettings(synchronous=settings.sqlite_synchronous))
    )
    sink = JsonLinesSink(settings.outbox_file)
    stack.callback(sink.close)
    coordinator = TransactionCoordinator(
        EngineServices(
            store=store,
            tools=tools,
            sink=sink,
            clock=clock,
            ids=SystemIds(),
            clean=clean,
            limits=_limits(settings),
            settings=_engine_settings(settings),
        )
    )
    api = await stack.enter_async_context(open_api_server(coordinator, _api_settings(settings)))
    monitor = asyncio.create_task(follow_database(api.health, store.check, clock.sleep))
    stack.callback(monitor.cancel)
    api.health.set_serving(True)
    return Server(api, coordinator)


def _tools(settings: Settings) -> ToolRegistry:
    own = [tool for name in settings.tools for tool in load_tools(name)]
    files = FsSettings(root=settings.fs_root, backup_directory=settings.data_dir / "backups")
    try:
        return ToolRegistry([*builtin_tools(files), *own], blocking_threads=settings.tool_threads)
    except ValueError as error:
        raise CannotStart(str(error)) from error


def _make_directories(settings: Settings) -> None:
    for directory in (settings.data_dir, settings.fs_root, settings.outbox_file.parent):
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"can't make the directory {directory}: {error.strerror}") from error


def _limits(settings: Settings) -> Limits:
    return Limits(
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
        cached_transactions=settings.cached_transactions,
    )


def _api_settings(settings: Settings) -> ApiSettings:
    return ApiSettings(
        address=settings.address,
        bounds={
            CallClass.STEP: settings.max_concurrent_steps,
            CallClass.CHANGE: settings.max_concurrent_changes,
            CallClass.READ: settings.max_concurrent_reads,
            CallClass.STREAM: settings.max_concurrent_streams,
        },
        unix_socket_mode=settings.unix_socket_mode,
        max_message_bytes=settings.max_message_bytes,
        struct_output_bytes=settings.max_struct_output_bytes,
        call_limit_seconds=settings.call_limit_seconds,
        lame_duck_seconds=settings.lame_duck_seconds,
        drain_timeout_seconds=settings.drain_timeout_seconds,
        reflection=settings.reflection,
    )
