"""A server that runs graphs whose functions are in workers: real gRPC for these, a real database.

async with graph_server(address) as server:
    server.add(builder)
    async with running_worker(server.address, graphs=[builder]):
        outcome = await server.start("support", {"value": 0}, thread="t")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.engine_harness import RecordingSink

from agenttx.graph import GraphBuilder
from agenttx_server.api.interceptors.call import CallClass
from agenttx_server.api.message_conversion.graph_definitions import definition_from
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.api.server import ApiSettings, open_api_server
from agenttx_server.api.tool_service import WorkerAccess
from agenttx_server.engine import hints
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.graphs.catalog import KnownGraphs
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.compiler import compile_graph
from agenttx_server.graphs.library import GraphLibrary
from agenttx_server.graphs.reducers import ReducerRegistry
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.records import EventRecord
from agenttx_server.graphs.runs.requests import (
    Amendment,
    ResumeRequest,
    RetryRequest,
    RunOutcome,
    StartRequest,
)
from agenttx_server.graphs.runs.rolled_back import RolledBackRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.listen_address import ListenAddress
from agenttx_server.live_servers import LiveServers
from agenttx_server.store import open_store
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tools import ToolRegistry, load_tools
from agenttx_server.tools.hosted_functions import HostedFunctions
from agenttx_server.tools.hosted_tools import HostedTools
from agenttx_server.tools.remote_workers import RemoteWorkers, WorkerSettings
from agenttx_server.tools.tools_offered_before import ToolsOfferedBefore

__all__ = ["GraphServer", "graph_server"]


class Catalog:
    """The graphs that were added, by name."""

    def __init__(self) -> None:
        self.graphs: dict[str, CompiledGraph] = {}

    async def load(self, owner: str, name: str, version: str) -> CompiledGraph | None:
        return self.graphs.get(name)


class GraphServer:
    """The server. ``workers`` is its hub, ``runs`` its coordinator of runs."""

    def __init__(
        self, store: Any, workers: RemoteWorkers, runs: RunCoordinator, catalog: Catalog, address: str
    ) -> None:
        self.store = store
        self._catalog = catalog
        self.workers = workers
        self.runs = runs
        self.address = address

    def add(self, builder: GraphBuilder) -> None:
        """Have a graph, as if it was registered; those that it embeds are added before."""
        reader = RequestReader()
        made = definition_from(builder.definition(), reader, "definition")
        reader.check()
        known = KnownGraphs({name: (graph,) for name, graph in self._catalog.graphs.items()})
        compilation = compile_graph(made, known)
        assert compilation.graph is not None, compilation.findings
        self._catalog.graphs[builder.name] = compilation.graph

    async def start(
        self, graph: str, given: Mapping[str, Any] | None = None, thread: str = "t"
    ) -> RunOutcome:
        """Start a run and wait for the end of its invocation."""
        return await self.runs.start(StartRequest(graph, "", thread, given))

    async def resume(self, value: Any, thread: str = "t", update: Any = None) -> RunOutcome:
        """Answer the one question that is pending, and wait."""
        return await self.runs.resume(
            ResumeRequest(thread, value, has_value=True, amendment=Amendment(update))
        )

    async def retry(self, thread: str = "t") -> RunOutcome:
        """Go on, and wait."""
        return await self.runs.retry(RetryRequest(thread))

    async def events(self, run_id: str) -> list[EventRecord]:
        """The journal of a run."""
        return list(await self.store.runs.list_events(run_id, 0, 10_000))


@asynccontextmanager
async def graph_server(
    database: str, *, tools: Collection[str] = (), silence_seconds: float = 15.0, launch_wait: float = 5.0
) -> AsyncIterator[GraphServer]:
    """Serve until the block is left. ``tools`` are modules as `--tools` names them."""
    async with AsyncExitStack() as stack:
        own = ToolRegistry([tool for name in tools for tool in load_tools(name)])
        workers = RemoteWorkers(WorkerSettings(silence_limit_seconds=silence_seconds))
        store = await stack.enter_async_context(open_store(database))
        ids, clock = SystemIds(), SystemClock()
        services = EngineServices(
            store=store,
            tools=HostedTools(own, workers),
            sink=RecordingSink(),
            clock=clock,
            ids=ids,
            clean=hints.clean,
            server_id=ServerId(ids.new_id()),
            limits=Limits(),
            settings=EngineSettings(),
            run_owner=RolledBackRuns(store.runs),
        )
        coordinator = TransactionCoordinator(services)
        catalog = Catalog()
        parts = RunParts(
            store.runs,
            EngineTransactions(coordinator),
            HostedFunctions(workers, launch_wait_seconds=launch_wait),
            clock,
        )
        runs = RunCoordinator(parts, catalog, ids, lambda: services.server_id)
        servers = LiveServers(lambda: coordinator.server_id)
        access = WorkerAccess(
            lambda tenant: workers, servers, ToolsOfferedBefore(store, clock).note, clock.now, 1 << 20
        )
        bounds = dict.fromkeys(CallClass, 64)
        api = await stack.enter_async_context(
            open_api_server(
                coordinator,
                ApiSettings(ListenAddress.parse("127.0.0.1:0"), bounds),
                access,
                GraphLibrary(store, clock, ReducerRegistry()),
            )
        )
        stack.push_async_callback(coordinator.stop)
        await coordinator.start()
        yield GraphServer(store, workers, runs, catalog, str(api.address))
        assert await runs.stop(30.0) == 0
