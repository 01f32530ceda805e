"""What runs graphs and pipelines."""

from __future__ import annotations

from collections.abc import Callable

from agenttx_server.api.graph_run_servicer import GraphRunning
from agenttx_server.api.pipeline_servicer import PipelineRunning
from agenttx_server.engine.services import EngineServices
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.engine.visibility import DEFAULT_TENANT
from agenttx_server.graphs.library import GraphLibrary, RegisteredGraphs
from agenttx_server.graphs.runs.broken_threads import BrokenThreads
from agenttx_server.graphs.runs.engine_transactions import EngineTransactions
from agenttx_server.graphs.runs.event_following import JournalPoll
from agenttx_server.graphs.runs.event_reading import EventReading
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.live_notices import LiveNotices
from agenttx_server.graphs.runs.node_cache import purging
from agenttx_server.graphs.runs.old_runs import OldRuns
from agenttx_server.graphs.runs.run_coordinator import RunCoordinator
from agenttx_server.graphs.runs.run_life import RunLife
from agenttx_server.graphs.runs.run_reading import RunReading
from agenttx_server.graphs.runs.run_stops import RunStops
from agenttx_server.graphs.runs.thread_reading import ThreadReading
from agenttx_server.graphs.runs.waiting_runs import WaitingRuns
from agenttx_server.lineage.validation import KnowsTool
from agenttx_server.pipelines.library import PipelineLibrary
from agenttx_server.pipelines.lineage_reading import LineageReading
from agenttx_server.pipelines.run_coordinator import PipelineRuns
from agenttx_server.pipelines.run_life import PipelineLife
from agenttx_server.pipelines.run_reading import PipelineRunReading
from agenttx_server.settings import Settings
from agenttx_server.store import SqlTransactionStore
from agenttx_server.tools.hosted_functions import HostedFunctions

__all__ = ["graph_running", "pipeline_running"]


def graph_running(
    store: SqlTransactionStore,
    coordinator: TransactionCoordinator,
    graphs: GraphLibrary,
    services: EngineServices,
    functions_of: Callable[[str], HostedFunctions],
) -> GraphRunning:
    """Return what runs graphs, with the functions of each tenant; reads their runs, and takes up those of servers that are gone."""
    clock = services.clock
    notices = LiveNotices()
    transactions = EngineTransactions(coordinator, services.check_stored)
    parts = RunParts(
        store.runs,
        transactions,
        functions_of(DEFAULT_TENANT),
        clock,
        notices,
        functions_of,
        services.step_turn,
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


def pipeline_running(
    settings: Settings,
    store: SqlTransactionStore,
    coordinator: TransactionCoordinator,
    services: EngineServices,
) -> PipelineRunning:
    """Return what runs pipelines and reads their records."""
    clock = services.clock
    runs = PipelineRuns(
        coordinator,
        store,
        store.pipelines,
        clock,
        services.ids,
        step_turn=services.step_turn,
        check_stored=services.check_stored,
    )

    def knows_tools_of(owner: str) -> KnowsTool:
        return lambda name: any(tool.name == name for tool in coordinator.describe_tools(owner))

    return PipelineRunning(
        PipelineLibrary(store.pipelines, clock, knows_tools_of, services.check_stored),
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
