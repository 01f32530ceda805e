"""The same linear task over this server, LangGraph and DBOS: durable steps a second, measured in turns.

The task is 20 steps, each of which stores a text of 300 bytes and is durable before the next one begins. 1, 16 and 64
callers do whole tasks at the same time, its beginning and its end included. Each system has a process of its own and a new
database; LangGraph and DBOS run in it, AgentTx is called from it over gRPC: its server is a further process.

AgentTx is called in both ways that its SDK has: over a stream of the transaction (``tx.stream()``, which is what its pages advise for a
run of small steps; each step waits for the answer to the one before, so nothing is sent ahead), and with a call a step (``tx.step()``).

LangGraph's savers are asked for durability "sync". On SQLite its saver leaves ``synchronous`` at NORMAL, which is not on disk when it
returns; so it is measured as it comes and with FULL, which is what the two others have.

Needs the extra ``peers``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from benchmarks.agents import run
from benchmarks.databases import LEFT_OUT, new_database, postgresql_server
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Table,
    Target,
    budget_of,
    print_findings,
    progress,
    ratios,
    summary,
    topic_parser,
    versions,
)
from benchmarks.processor_time import seconds_of_system
from benchmarks.servers import REPOSITORY, scratch_directory, server

STEPS = 20
PAYLOAD_BYTES = 300
WARM_UP_CALLERS = 4
ANSWER_SECONDS = 120.0
DISTRIBUTIONS = ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "dbos")
OURS = "AgentTx"
OURS_BY_CALLS = "AgentTx, a call a step"
SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
BOUNDS = {
    (SQLITE, "LangGraph"): {1: 1.1, 16: 2.4, 64: 3.0},
    (SQLITE, "DBOS"): {1: 1.8, 16: 4.5, 64: 6.0},
    (POSTGRESQL, "LangGraph"): {16: 3.0, 64: 4.0},
    (POSTGRESQL, "DBOS"): {16: 3.0, 64: 4.0},
}
"""How many times the peer's steps a second were aimed at, by callers."""


Task = Callable[[int], Awaitable[None]]
"""Does the whole task once, for the caller of a number."""


def _payload(step: int) -> str:
    return f"step {step}: ".ljust(PAYLOAD_BYTES, "x")


@contextlib.asynccontextmanager
async def _agenttx(database: str, directory: Path, *, streams: bool) -> AsyncIterator[Task]:
    import agenttx

    settings = {} if database == SQLITE else {"database_url": database, "fs_adopt": "true"}
    with server("agenttx", directory, **settings) as address:
        async with agenttx.AsyncClient(address) as client:

            async def task(number: int) -> None:
                async with (
                    client.transaction(agent_id=f"agent-{number}") as transaction,
                    transaction.stream() if streams else contextlib.nullcontext(transaction) as steps,
                ):
                    for step in range(STEPS):
                        await steps.step(
                            "kv.put", key=f"{number}/{step}/{uuid.uuid4()}", value=_payload(step)
                        )

            yield task


@contextlib.asynccontextmanager
async def _langgraph(database: str, directory: Path, synchronous: str = "") -> AsyncIterator[Task]:
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        payload: str

    def node(step: int) -> Callable[[State], Awaitable[dict[str, str]]]:
        async def run(state: State) -> dict[str, str]:
            return {"payload": _payload(step)}

        return run

    builder = StateGraph(State)
    for step in range(STEPS):
        builder.add_node(f"step-{step}", node(step))
        builder.add_edge(START if step == 0 else f"step-{step - 1}", f"step-{step}")
    builder.add_edge(f"step-{STEPS - 1}", END)
    async with contextlib.AsyncExitStack() as stack:
        if database == SQLITE:
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            path = str(directory / "langgraph.db")
            saver: Any = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
            await saver.setup()
            if synchronous:
                await saver.conn.execute(f"PRAGMA synchronous = {synchronous}")
        else:
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
            from psycopg.rows import dict_row
            from psycopg_pool import AsyncConnectionPool

            options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
            pool: Any = AsyncConnectionPool(database, min_size=1, max_size=16, kwargs=options, open=False)
            saver = AsyncPostgresSaver(await stack.enter_async_context(pool))
            await saver.setup()
        graph = builder.compile(checkpointer=saver)

        async def task(number: int) -> None:
            config: Any = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": STEPS + 5}
            await graph.ainvoke({"payload": ""}, config, durability="sync")

        yield task


@contextlib.asynccontextmanager
async def _dbos(database: str, directory: Path) -> AsyncIterator[Task]:
    from dbos import DBOS

    url = f"sqlite:///{directory / 'dbos.db'}" if database == SQLITE else database
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
        }
    )

    @DBOS.step()
    async def store(step: int) -> str:
        return _payload(step)

    @DBOS.workflow()
    async def linear() -> None:
        for step in range(STEPS):
            await store(step)

    DBOS.launch()
    try:

        async def task(number: int) -> None:
            await linear()

        yield task
    finally:
        DBOS.destroy()


SYSTEMS: dict[str, Callable[[str, Path], contextlib.AbstractAsyncContextManager[Task]]] = {
    OURS: functools.partial(_agenttx, streams=True),
    OURS_BY_CALLS: functools.partial(_agenttx, streams=False),
    "LangGraph": _langgraph,
    "LangGraph, FULL": functools.partial(_langgraph, synchronous="FULL"),
    "DBOS": _dbos,
}
ON = {
    SQLITE: tuple(SYSTEMS),
    POSTGRESQL: (OURS, OURS_BY_CALLS, "LangGraph", "DBOS"),
}


# --- in the process of a system -------------------------------------------------------------------


async def _rate(task: Task, callers: int, tasks: int) -> float:
    """Return the steps a second of so many callers that do so many whole tasks each, one behind the other."""

    async def caller(number: int) -> None:
        for _ in range(tasks):
            await task(number)

    started = time.perf_counter()
    await asyncio.gather(*map(caller, range(callers)))
    return callers * tasks * STEPS / (time.perf_counter() - started)


async def _answer(system: str, database: str) -> None:
    """Measure as the lines of standard input ask ("callers tasks"); each answer is a line."""
    with scratch_directory() as directory:
        async with SYSTEMS[system](database, directory) as task:
            await _rate(task, WARM_UP_CALLERS, 1)
            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                callers, tasks = map(int, line.split())
                print(json.dumps(await _rate(task, callers, tasks)), flush=True)


# --- over all of them -----------------------------------------------------------------------------


@dataclass
class _System:
    """A system that runs in a process of its own. ``database`` is the name of its PostgreSQL database, if it has one."""

    process: subprocess.Popen[str]
    log: Path
    database: str

    def read(self) -> str:
        """Return its next line."""
        import select

        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline().strip() if ready else ""
        if not line:
            raise RuntimeError(f"no answer of a system: {self.log.read_text()[-2000:]}")
        return line

    def measure(self, callers: int, tasks: int) -> tuple[float, float]:
        """Return the steps a second of so many callers with so many tasks each, and milliseconds of processor time a step."""
        assert self.process.stdin is not None
        before = seconds_of_system(self.process.pid, self.database)
        print(callers, tasks, file=self.process.stdin, flush=True)
        rate = float(json.loads(self.read()))
        used = seconds_of_system(self.process.pid, self.database) - before
        return rate, used * 1000 / (callers * tasks * STEPS)


@contextlib.contextmanager
def _process(system: str, database: str, log: Path) -> Iterator[_System]:
    command = [sys.executable, "-m", "benchmarks.peers", "--one", system, "--database", database]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            name = database.rpartition("/")[2].partition("?")[0]
            yield _System(process, log, "" if database == SQLITE else name)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(ANSWER_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # its server too, which else would outlive a failed run
            process.wait()


def _compare(
    budget: Budget, postgresql: str | None, directory: Path
) -> dict[tuple[str, int, str], list[tuple[float, float]]]:
    """Return steps a second and processor time a step, in ms, by database, callers and system."""
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as stack:
        systems: dict[tuple[str, str], _System] = {}
        for database in (SQLITE, POSTGRESQL) if postgresql else (SQLITE,):
            for name in ON[database]:
                url = (
                    stack.enter_context(new_database(postgresql))
                    if database != SQLITE and postgresql
                    else SQLITE
                )
                log = directory / f"{name}-{database}.log"
                systems[database, name] = stack.enter_context(_process(name, url, log))
        for system in systems.values():
            assert system.read() == "ready"
        for round_ in range(budget.repetitions):
            progress(f"round {round_ + 1} of {budget.repetitions}")
            for callers, tasks in budget.pick({1: 10, 16: 2, 64: 1}, {1: 5, 16: 1}, {1: 1}).items():
                for (database, name), system in systems.items():
                    found.setdefault((database, callers, name), []).append(system.measure(callers, tasks))
    return found


def measure(budget: Budget) -> Findings:
    """Compare with the peers."""
    with scratch_directory() as directory, postgresql_server(start=budget.name != "tiny") as postgresql:
        measured = _compare(budget, postgresql, directory)
    found = {cell: [rate for rate, _ in windows] for cell, windows in measured.items()}
    rows, targets = [], []
    for (database, callers, name), rates in found.items():
        times = ratios(found[database, callers, OURS], rates)
        used = summary(milliseconds for _, milliseconds in measured[database, callers, name])
        rows.append([database, callers, name, summary(rates), times if name != OURS else None, used])
        bound = BOUNDS.get((database, name), {}).get(callers)
        if bound is not None:
            figure = f"steps/s of {name}'s on {database}, callers: {callers}"
            targets.append(Target(figure, times, bound, at_least=True))
    return Findings(
        "peers",
        "Beside LangGraph and DBOS",
        f"The same task of {STEPS} steps of {PAYLOAD_BYTES} bytes, each durable before the next: over AgentTx (gRPC, a server process; its steps "
        "on a stream of the transaction, each sent when the one before is answered, or each a call of its own), "
        'LangGraph (its asynchronous savers, `durability="sync"`) and DBOS, both in the caller\'s process, without a network. '
        "LangGraph's SQLite saver leaves `synchronous` at NORMAL, which is not on disk when it returns; with FULL it is as durable as the others. "
        "Versions: "
        + ", ".join(f"{name} {number}" for name, number in versions(*DISTRIBUTIONS).items())
        + ".",
        tables=[
            Table(
                "Durable steps a second",
                ("database", "callers", "system", "steps/s", "AgentTx's of it", "processor, ms a step"),
                sorted(rows, key=lambda row: (row[0] != SQLITE, row[1])),
                note="Processor time is that of all its processes: the caller's, the server's, and the backends of PostgreSQL.",
            )
        ],
        plots=[
            Plot(
                f"peers-{database.lower()}",
                f"Durable steps a second on {database}",
                "callers",
                "steps/s",
                [
                    Series.of(
                        name,
                        {
                            callers: summary(rates)
                            for (on, callers, of), rates in found.items()
                            if (on, of) == (database, name)
                        },
                    )
                    for name in ON[database]
                ],
            )
            for database in dict.fromkeys(on for on, _, _ in found)
        ],
        targets=targets,
        left_out=[] if postgresql else [LEFT_OUT],
    )


def main() -> None:
    parser = topic_parser(__doc__)
    parser.add_argument(
        "--one", choices=tuple(SYSTEMS), help="be one system and measure as standard input asks"
    )
    parser.add_argument("--database", default=SQLITE, help="for --one: SQLite or a postgresql:// address")
    given = parser.parse_args()
    if given.one:
        run(_answer(given.one, given.database))
    else:
        print_findings(measure, budget_of(given))


if __name__ == "__main__":
    main()
