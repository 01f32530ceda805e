"""The same linear task over this server, LangGraph and DBOS: durable steps a second, measured in turns.

The task is 20 steps, each of which stores a text of 300 bytes and is durable before the next one begins. 1, 16 and 64
callers have a task under way each, and begin another one when it has ended. Each measurement is a process of its
own with a new database; LangGraph and DBOS run in it, AgentTx is called from it over gRPC: its server is a further process.

Needs the extra ``bench-peers``. PostgreSQL, with ``fsync = on``, is measured where an address is given, by a user who may create databases::

    python -m benchmarks.peers --postgresql postgresql://USER@HOST/NAME
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

from benchmarks import measuring
from benchmarks.servers import REPOSITORY, scratch_directory, server

STEPS = 20
PAYLOAD_BYTES = 300
CALLERS = (1, 16, 64)
MEASURE_SECONDS = 300
PEERS = ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "dbos")
Work = Callable[[int], Awaitable[None]]


def _payload(step: int) -> str:
    return f"step {step}: ".ljust(PAYLOAD_BYTES, "x")


@contextlib.asynccontextmanager
async def _agenttx(database: str, directory: Path) -> AsyncIterator[Work]:
    import agenttx

    settings = (
        {}
        if database == "sqlite"
        else {"database_url": database.replace("postgresql://", "postgresql+psycopg://")}
    )
    with server("agenttx", directory, **settings) as address:
        async with agenttx.AsyncClient(address) as client:

            async def task(number: int) -> None:
                async with client.transaction(agent_id=f"agent-{number}") as transaction:
                    for step in range(STEPS):
                        await transaction.step(
                            "kv.put", key=f"{number}/{step}/{uuid.uuid4()}", value=_payload(step)
                        )

            yield task


@contextlib.asynccontextmanager
async def _langgraph(database: str, directory: Path) -> AsyncIterator[Work]:
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
        if database == "sqlite":
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            path = str(directory / "langgraph.db")
            saver: Any = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
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
async def _dbos(database: str, directory: Path) -> AsyncIterator[Work]:
    from dbos import DBOS

    url = f"sqlite:///{directory / 'dbos.db'}" if database == "sqlite" else database
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": url,
            "log_level": "ERROR",
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


SYSTEMS = {"agenttx": _agenttx, "langgraph": _langgraph, "dbos": _dbos}


async def _measure(system: str, database: str, callers: int, seconds: float) -> float:
    """Return the steps a second of one system, from when each caller has done a task."""
    with scratch_directory() as directory:
        async with SYSTEMS[system](database, directory) as task:
            await asyncio.gather(*(task(number) for number in range(callers)))
            started, done = time.perf_counter(), 0

            async def caller(number: int) -> None:
                nonlocal done
                while time.perf_counter() - started < seconds:
                    await task(number)
                    done += 1

            await asyncio.gather(*map(caller, range(callers)))
            return done * STEPS / (time.perf_counter() - started)


def _in_process_of_its_own(system: str, database: str, callers: int, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.peers", "--one", system, "--database", database]
    command += ["--callers", str(callers), "--seconds", str(seconds)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=MEASURE_SECONDS,
        check=False,
        env=os.environ | {"LANGSMITH_TRACING": "false"},
    )
    if done.returncode:
        raise RuntimeError(f"{system} on {database.partition(':')[0]}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


@contextlib.contextmanager
def _new_database(address: str) -> Any:
    """Yield the address of a new database on a PostgreSQL server, "sqlite" for none."""
    if not address:
        yield "sqlite"
        return
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    name = f"bench_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            before = str(conninfo_to_dict(address)["dbname"])
            yield address.replace(f"/{before}", f"/{name}", 1)
        finally:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _compare(address: str, callers: int, seconds: float, repetitions: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for _ in range(repetitions):
        for system in SYSTEMS:
            with _new_database(address) as database:
                found[system].append(_in_process_of_its_own(system, database, callers, seconds))
    ratios = {
        f"agenttx_to_{system}": measuring.summary(
            [ours / theirs for ours, theirs in zip(found["agenttx"], found[system], strict=True)]
        )
        for system in SYSTEMS
        if system != "agenttx"
    }
    return {"steps_per_second": {name: measuring.summary(each) for name, each in found.items()}} | ratios


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--callers", type=int, nargs="+", default=list(CALLERS))
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--postgresql", default="", help="postgresql:// address; its user creates databases")
    parser.add_argument(
        "--one", choices=tuple(SYSTEMS), help="measure one system here and print its steps a second"
    )
    parser.add_argument("--database", default="sqlite", help="for --one: sqlite or a postgresql:// address")
    arguments = parser.parse_args()
    if arguments.one:
        print(
            asyncio.run(_measure(arguments.one, arguments.database, arguments.callers[0], arguments.seconds))
        )
        return
    seconds, repetitions = (1.0, 2) if arguments.quick else (arguments.seconds, arguments.repetitions)
    databases = {"SQLite": ""} | ({"PostgreSQL": arguments.postgresql} if arguments.postgresql else {})
    results: dict[str, Any] = {"versions": {name: version(name) for name in PEERS}}
    for name, address in databases.items():
        for callers in arguments.callers:
            results[f"{name}, {callers}"] = _compare(address, callers, seconds, repetitions)
    measuring.report("peers", results)


if __name__ == "__main__":
    main()
