"""A slow disk: how much of their rate durable steps keep when every COMMIT takes 2 ms longer.

Two servers alike, one of which waits 2 ms in the thread that commits, before each COMMIT; 1, 16 and 64 transactions in turns.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks.agents import Crew, crew, run
from benchmarks.databases import LEFT_OUT, new_database, postgresql_server
from benchmarks.measuring import Budget, Findings, Table, Target, progress, ratios, run_topic, summary
from benchmarks.servers import scratch_directory, server

SLOW_SECONDS = 0.002
MANY = 64
# Armed in both, so that what arming costs is in both.
FAILPOINTS = {"as it is": "commit.before=sleep:0", "slow": f"commit.before=sleep:{SLOW_SECONDS}"}


async def _measure(directory: Path, postgresql: str | None, budget: Budget) -> Findings:
    concurrencies = budget.pick((1, 16, MANY), (1, MANY), (2,))
    found: dict[tuple[str, int, str], list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        crews: dict[tuple[str, str], Crew] = {}
        for database in ("SQLite", "PostgreSQL") if postgresql else ("SQLite",):
            for name, failpoints in FAILPOINTS.items():
                settings = {"failpoints": failpoints}
                if database != "SQLite":
                    assert postgresql is not None
                    url = stack.enter_context(new_database(postgresql))
                    settings |= {"database_url": url, "fs_adopt": "true"}
                address = stack.enter_context(server("agenttx", directory / database / name, **settings))
                crews[database, name] = await stack.enter_async_context(crew(address, max(concurrencies)))
        for round_ in range(budget.repetitions + 1):
            progress(f"round {round_} of {budget.repetitions}" if round_ else "warming up")
            for concurrency in concurrencies:
                for (database, name), agents in crews.items():
                    one = await agents.window(concurrency, budget.seconds * 2)
                    if round_:
                        found.setdefault((database, concurrency, name), []).append(one.per_second)
    rows, targets = [], []
    for database, concurrency, name in found:
        if name == "slow":
            usual, slow = found[database, concurrency, "as it is"], found[database, concurrency, "slow"]
            kept = ratios(slow, usual)
            rows.append([database, concurrency, summary(usual), summary(slow), kept])
            if concurrency == MANY:
                figure = f"2 ms added to every COMMIT, {MANY} transactions, {database}: rate kept"
                targets.append(Target(figure, kept, 0.9, at_least=True))
    return Findings(
        "slow_disk",
        "A slow disk",
        "The same `kv.put` steps over ExecuteStep with 2 ms added to every COMMIT, beside a server without, in turns.",
        tables=[
            Table(
                "2 ms added to every COMMIT",
                ("database", "transactions", "steps/s", "steps/s, slow", "rate kept"),
                rows,
            )
        ],
        targets=targets,
        left_out=[] if postgresql else [LEFT_OUT],
    )


def measure(budget: Budget) -> Findings:
    """Measure with a slow disk and without."""
    with scratch_directory() as directory, postgresql_server(start=budget.name != "tiny") as postgresql:
        return run(_measure(directory, postgresql, budget))


if __name__ == "__main__":
    run_topic(__doc__, measure)
