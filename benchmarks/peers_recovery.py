"""The tasks of an agent that meets failures, as LangGraph and DBOS do them: each step retried and recorded, then the task begun anew.

Both record each step that was done and retry one that fails, three times as the agent alone does; neither undoes a step, nor knows
by which earlier step it failed. So a task that fails is begun anew as a new thread or workflow, twice at most, and avoids then
what the error named. The tools, the world and what is counted are those of ``agent_recovery``; AgentTx stands beside them.

Needs the extra ``peers``. On SQLite, in the caller's process; AgentTx is a server process and a worker.
"""

from __future__ import annotations

import contextlib
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypedDict

from agenttx.worker import ToolFailure
from benchmarks.agent_recovery import (
    COUNTS,
    MOST_RESTARTS,
    SCENARIOS,
    TRIES_OF_A_STEP,
    WORDS,
    Run,
    Task,
    World,
    judged,
    run_over_server,
    the_same,
)
from benchmarks.agents import run
from benchmarks.measuring import Budget, Findings, Table, progress, run_topic, summary, versions
from benchmarks.servers import scratch_directory, server

Attempt = Callable[[World, Callable[[], str], bool], Awaitable[set[str]]]
"""Does the whole task once; returns the effects it knows of, raises what ended it."""


def _act(world: World, new_key: Callable[[], str], step: int, account: str, careful: bool) -> tuple[str, str]:
    """Do a step of the world's task; return the account that is known then and the effect, '' for none."""
    name, arguments = world.task.call(step, careful=careful)
    if name == "bench.find_account":
        return world.find_account(**arguments)["account_id"], ""
    if name == "bench.charge":
        return account, world.charge(new_key(), **arguments, account_id=account)["booking"]
    return account, world.act(new_key(), **arguments)["booking"]


def _joined(known: list[str], more: list[str]) -> list[str]:
    return known + more


@contextlib.asynccontextmanager
async def _langgraph(directory: Path) -> AsyncIterator[Attempt]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import RetryPolicy

    class State(TypedDict):
        account: str
        known: Annotated[list[str], _joined]

    retries = RetryPolicy(
        initial_interval=0.0, jitter=False, max_attempts=TRIES_OF_A_STEP, retry_on=(ToolFailure,)
    )
    async with AsyncSqliteSaver.from_conn_string(str(directory / "langgraph.db")) as saver:

        async def attempt(world: World, new_key: Callable[[], str], careful: bool) -> set[str]:
            def node(step: int) -> Callable[[State], Awaitable[dict[str, Any]]]:
                async def act(state: State) -> dict[str, Any]:
                    account, effect = _act(world, new_key, step, state["account"], careful)
                    return {"account": account, "known": [effect] if effect else []}

                return act

            builder = StateGraph(State)
            steps = range(1, world.task.steps + 1)
            for step in steps:
                builder.add_node(f"step-{step}", node(step), retry_policy=retries)
                builder.add_edge(START if step == 1 else f"step-{step - 1}", f"step-{step}")
            builder.add_edge(f"step-{steps[-1]}", END)
            config: Any = {
                "configurable": {"thread_id": str(uuid.uuid4())},
                "recursion_limit": len(steps) + 5,
            }
            graph = builder.compile(checkpointer=saver)
            done = await graph.ainvoke({"account": "acct-1", "known": []}, config, durability="sync")
            return set(done["known"])

        yield attempt


@contextlib.asynccontextmanager
async def _dbos(directory: Path) -> AsyncIterator[Attempt]:
    from dbos import DBOS

    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": f"sqlite:///{directory / 'dbos.db'}",
            "log_level": "CRITICAL",
            "run_admin_server": False,
        }
    )
    under_way: dict[str, tuple[World, Callable[[], str], bool]] = {}

    @DBOS.step(retries_allowed=True, max_attempts=TRIES_OF_A_STEP, interval_seconds=0.0)
    async def act(task: str, step: int, account: str) -> tuple[str, str]:
        world, new_key, careful = under_way[task]
        return _act(world, new_key, step, account, careful)

    @DBOS.workflow()
    async def whole(task: str, steps: int) -> list[str]:
        account, known = "acct-1", []
        for step in range(1, steps + 1):
            account, effect = await act(task, step, account)
            known.append(effect)
        return [effect for effect in known if effect]

    async def attempt(world: World, new_key: Callable[[], str], careful: bool) -> set[str]:
        task = str(uuid.uuid4())
        under_way[task] = world, new_key, careful
        return set(await whole(task, world.task.steps))

    DBOS.launch()
    try:
        yield attempt
    finally:
        DBOS.destroy()


SYSTEMS = {"LangGraph": _langgraph, "DBOS": _dbos}


async def _run(attempt: Attempt, task: Task) -> Run:
    """Do a task, beginning anew where it fails; then give it up."""
    world, started, told, careful = World(task), perf_counter(), "", False
    keys = (f"effect-{number}" for number in count(1))
    for _ in range(1 + MOST_RESTARTS):
        try:
            known = await attempt(world, keys.__next__, careful)
        except Exception as error:  # each system has its own for a step that failed for good
            # DBOS says that the tries were used up, and has what went wrong in a list.
            told += traceback.format_exc() + "\n".join(map(str, getattr(error, "errors", ())))
            careful = careful or "J. Meyer" in told
        else:
            return judged(world, known, told, started)
    return judged(world, None, told, started)


async def _peers(directory: Path, tasks: list[Task], repetitions: int) -> dict[tuple[Task, str], list[Run]]:
    found: dict[tuple[Task, str], list[Run]] = {}
    for name, system in SYSTEMS.items():
        async with system(directory) as attempt:
            for task in tasks:
                progress(f"{name}: {task.scenario}, {task.steps} steps")
                found[task, name] = [await _run(attempt, task) for _ in range(repetitions)]
    return found


def measure(budget: Budget) -> Findings:
    """Have the peers do the tasks, and AgentTx."""
    sizes = budget.pick((8, 64), (8,), (8,))
    tasks = [Task(scenario, steps) for scenario in SCENARIOS for steps in sizes]
    with scratch_directory() as directory, server("agenttx", directory) as address:
        found = run(_peers(directory, tasks, budget.repetitions))
        for task in tasks:
            found[task, "AgentTx"] = [run_over_server(task, address) for _ in range(budget.repetitions)]
    rows = [
        [
            WORDS[task.scenario],
            task.steps,
            name,
            *(the_same(found[task, name], count) for count in COUNTS),
            summary(one.seconds * 1000 for one in found[task, name]),
        ]
        for task in tasks
        for name in (*SYSTEMS, "AgentTx")
    ]
    return Findings(
        "peers_recovery",
        "The same failures over LangGraph and DBOS",
        "The tasks of the agent that meets failures, each step recorded and retried three times by LangGraph or DBOS, and the task begun anew where "
        "that does not help. Neither undoes what was done, so their effects are those of the agent alone. On SQLite. Versions: "
        + ", ".join(f"{name} {number}" for name, number in versions("langgraph", "dbos").items())
        + ".",
        tables=[
            Table(
                "What it costs and what it leaves",
                ("trouble", "steps", "over", *(count.replace("_", " ") for count in COUNTS), "ms"),
                rows,
                note="LangGraph and DBOS and the tools run in the caller's process, AgentTx is a server process and a worker.",
            )
        ],
    )


if __name__ == "__main__":
    run_topic(__doc__, measure)
