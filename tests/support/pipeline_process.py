"""A server's life with runs of one pipeline over one database, as a process that tests kill.

Run as ``python -m tests.support.pipeline_process DATABASE_URL ROWS [RUN_ID]``: receives ROWS rows, prints the run's id and
carries it; with a RUN_ID it goes on with that. Ends by printing the status.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.support.engine_harness import RecordingSink
from tests.support.pipeline_flows import plan_of

from agenttx_server.engine import hints
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.pipelines.run_coordinator import PipelineRuns, Row
from agenttx_server.store import SqlTransactionStore, open_store
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tools import ToolRegistry, load_tools

PIPELINE = """
pipeline: killed
actions:
  - {name: validate, tool: pipe.keep, args: {n: "${source.n}"}}
  - {name: chunk, tool: pipe.chunk, dependencies: [validate], args: {n: "${validate.n}"}}
  - {name: level, tool: pipe.keep, dependencies: [validate], args: {n: "${validate.n}"},
     guard: {condition: "validate.n != 1", on_false: skip}}
  - {name: booked, tool: pipe.book, dependencies: [chunk], args: {n: "${chunk.n}"}}
  - {name: merge, tool: pipe.keep, dependencies: [booked, level], args: {n: "${chunk.n}"}}
  - {name: total, tool: pipe.total, dependencies: [merge], reduce: {by: root}}
"""

BARRIER = """
pipeline: barred
actions:
  - {name: chunk, tool: pipe.chunk, args: {n: "${source.n}"}}
  - {name: all, tool: pipe.keep_all, dependencies: [chunk], granularity: FILE}
  - {name: booked, tool: pipe.book, dependencies: [all], args: {n: "${chunk.n}"}}
"""


@asynccontextmanager
async def pipeline_runs(
    database_url: str,
    max_concurrency: int = 4,
    step_turn: Callable[[str], Awaitable[None] | None] = lambda owner: None,
) -> AsyncIterator[tuple[PipelineRuns, SqlTransactionStore]]:
    """A server's parts, with the tools of pipeline_tools."""
    async with open_store(database_url) as store:
        ids, clock = SystemIds(), SystemClock()
        services = EngineServices(
            store=store,
            tools=ToolRegistry(load_tools("tests.support.pipeline_tools")),
            sink=RecordingSink(),
            clock=clock,
            ids=ids,
            clean=hints.clean,
            server_id=ServerId(ids.new_id()),
            limits=Limits(),
            settings=EngineSettings(),
        )
        coordinator = TransactionCoordinator(services)
        await coordinator.start()
        try:
            yield (
                PipelineRuns(
                    coordinator,
                    store,
                    store.pipelines,
                    clock,
                    ids,
                    max_concurrency=max_concurrency,
                    step_turn=step_turn,
                ),
                store,
            )
        finally:
            await coordinator.stop()


async def live(database_url: str, rows: int, run_id: str) -> None:
    """Carry a run."""
    async with pipeline_runs(database_url) as (runs, _):
        if not run_id:
            definition = plan_of(BARRIER if os.environ.get("PIPELINE_BARRIER") else PIPELINE).definition
            run_id = (await runs.receive("", definition, [Row({"n": n}) for n in range(rows)])).run_id
        print(run_id, flush=True)
        print((await runs.carry(run_id)).status.value, flush=True)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], int(sys.argv[2]), "".join(sys.argv[3:])))
