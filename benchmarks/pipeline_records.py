"""What a record costs: many roots through a diamond of five actions, the first tenth against the last; and queries.

The whole runner on SQLite, durable, in one process: each root is a transaction of its own. The tool answers at once.
One root in the middle fails at its last action, each time that it is tried: it alone is rolled back.
"A subtree" is a root with 1,000 records under it, whose descendants are asked for in one page. Times are those of the
clock and of the processor, of all threads: the second is what a record costs, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agenttx_server import main as server_main
from agenttx_server.engine import hints
from agenttx_server.engine.limits import Limits
from agenttx_server.engine.records import ServerId
from agenttx_server.engine.services import EngineServices, EngineSettings
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.lineage.document import read_document
from agenttx_server.lineage.yaml_text import read_yaml
from agenttx_server.pipelines.records import PipelineRunStatus
from agenttx_server.pipelines.run_coordinator import PipelineRuns, Progress, Row
from agenttx_server.sinks import JsonLinesSink
from agenttx_server.store import SqlTransactionStore, StoreSettings, open_store
from agenttx_server.store.database import reader_engine
from agenttx_server.store.record_reading import DESCENDANTS
from agenttx_server.system_ports import SystemClock, SystemIds
from agenttx_server.tools import ToolFailure, ToolRegistry, tool
from benchmarks import measuring

DIAMOND = """
pipeline: diamond
actions:
  - {name: validate, tool: bench.echo, args: {n: "${source.n}"}}
  - {name: seo, tool: bench.echo, dependencies: [validate], args: {n: "${validate.n}"}}
  - {name: level, tool: bench.echo, dependencies: [validate], args: {n: "${validate.n}"}}
  - {name: similar, tool: bench.echo, dependencies: [validate], args: {n: "${validate.n}"}}
  - {name: score, tool: bench.score, dependencies: [seo, level, similar], args: {n: "${seo.n}"}, on_failure: rollback}
"""
SUBTREE = """
pipeline: subtree
actions:
  - {name: chunk, tool: bench.chunk, args: {count: "${source.count}"}}
  - {name: process, tool: bench.echo, dependencies: [chunk], args: {n: "${chunk.n}"}}
"""
RECORDS_PER_ROOT = 6


@tool("bench.echo", effects="read_only")
async def echo(n: int) -> dict[str, int]:
    """Answer at once."""
    return {"n": n}


@tool("bench.score", effects="read_only")
async def score(n: int) -> dict[str, int]:
    """Answer at once; fail for a bad root."""
    if n < 0:
        raise ToolFailure("invalid_value", f"n is {n}, below 0", ["n"])
    return {"n": n}


@tool("bench.chunk", effects="read_only")
async def chunk(count: int) -> list[dict[str, int]]:
    """So many rows."""
    return [{"n": n} for n in range(count)]


async def measure(roots: int, queries: int) -> dict[str, Any]:
    """Run both pipelines on a new database."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "agenttx.db"
        async with open_store(f"sqlite:///{database}") as store:
            ids, clock = SystemIds(), SystemClock()
            sink = JsonLinesSink(Path(folder) / "effects.jsonl")
            services = EngineServices(
                store=store,
                tools=ToolRegistry([echo, score, chunk]),
                sink=sink,
                clock=clock,
                ids=ids,
                clean=hints.clean,
                server_id=ServerId(ids.new_id()),
                limits=Limits(),
                settings=EngineSettings(),
            )
            coordinator = TransactionCoordinator(services)
            await coordinator.start()
            runs = PipelineRuns(coordinator, store, store.pipelines, clock, ids)
            results = await diamond(runs, roots)
            results["queries"] = await subtree(runs, store, database, queries)
            await coordinator.stop()
            sink.close()
            return results


async def diamond(runs: PipelineRuns, roots: int) -> dict[str, Any]:
    """The time of each root's end, by tenths."""
    definition = read_document(read_yaml(DIAMOND)).definition
    received = await runs.receive("", definition, rows(roots))
    ended: list[float] = []
    used: list[float] = []
    memory: list[int] = []

    def note(_: Progress) -> None:
        ended.append(time.perf_counter())
        used.append(time.process_time())
        if len(ended) in (roots // 10, roots):
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    began, used_before = time.perf_counter(), time.process_time()
    done = await runs.carry(received.run_id, note)
    assert done.status is PipelineRunStatus.COMPLETED_WITH_FAILURES
    assert (done.committed, done.failed) == (roots - 1, 1)
    tenth = roots // 10

    def tenths(at: list[float], start: float) -> dict[str, int]:
        first, last = at[tenth - 1] - start, at[-1] - at[-tenth - 1]
        return {
            "first tenth": round(first / tenth / RECORDS_PER_ROOT * 1e6),
            "last tenth": round(last / tenth / RECORDS_PER_ROOT * 1e6),
        }

    return {
        "records": roots * RECORDS_PER_ROOT,
        "records_per_second": round(roots * RECORDS_PER_ROOT / (ended[-1] - began)),
        "microseconds_a_record": tenths(ended, began),
        "processor_microseconds_a_record": tenths(used, used_before),
        "peak_memory_kilobytes": dict(zip(("after a tenth", "at the end"), memory, strict=True)),
    }


def rows(count: int) -> Iterator[Row]:
    """Rows that all differ; the one in the middle is bad."""
    return (Row({"n": -n if n == count // 2 else n}) for n in range(count))


async def subtree(
    runs: PipelineRuns, store: SqlTransactionStore, database: Path, queries: int
) -> dict[str, Any]:
    """Queries over a root with 1,000 records under it."""
    definition = read_document(read_yaml(SUBTREE)).definition
    received = await runs.receive("", definition, [Row({"count": 500})])
    await runs.carry(received.run_id)
    (root,) = (await store.lineage.list_records(received.run_id, "source", "", 1)).records
    leaf = (await store.lineage.list_records(received.run_id, "process", "", 1)).records[0]
    found = await store.lineage.list_descendants(root.record.target_id, "", 2000)
    assert len(found.records) == 1000
    asks: dict[str, Callable[[], Any]] = {
        "descendants of 1,000 records, milliseconds": lambda: store.lineage.list_descendants(
            root.record.target_id, "", 2000
        ),
        "a page of 100 of them, milliseconds": lambda: store.lineage.list_descendants(
            root.record.target_id, "", 100
        ),
        "ancestors of a leaf, milliseconds": lambda: store.lineage.list_ancestors(
            leaf.record.target_id, "", 100
        ),
    }
    measured = {name: await median_milliseconds(ask, queries) for name, ask in asks.items()}

    engine = reader_engine(database, StoreSettings())
    with engine.connect() as connection:
        by_hand = DESCENDANTS.on_sqlite.call(
            connection.dialect,
            {"target_id": root.record.target_id, "after": "", "limit": 2001, "transaction_id": ""},
        )

        async def statement() -> None:
            assert len(connection.exec_driver_sql(*by_hand).all()) == 1000

        measured["the statement alone, milliseconds"] = await median_milliseconds(statement, queries)
    engine.dispose()
    return measured


async def median_milliseconds(ask: Callable[[], Any], times: int) -> dict[str, float]:
    """Ask so often."""
    taken, used = [], []
    for _ in range(times):
        began, used_before = time.perf_counter(), time.process_time()
        await ask()
        taken.append(time.perf_counter() - began)
        used.append(time.process_time() - used_before)
    return {
        "clock": round(statistics.median(taken) * 1000, 2),
        "processor": round(statistics.median(used) * 1000, 2),
    }


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--roots", type=int, default=17_000, help="roots; each makes 6 records")
    arguments = parser.parse_args()
    server_main._calm_garbage_collector()
    roots = 200 if arguments.quick else arguments.roots
    measuring.report("pipeline_records", asyncio.run(measure(roots, 20 if arguments.quick else 200)))


if __name__ == "__main__":
    main()
