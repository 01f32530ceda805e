"""What it costs to begin and to commit: whole cycles, and the commit of 10 to 50,000 keys.

- a cycle: begin and commit, with nothing between and with one step, beside as many calls of the echo;
- a commit: a transaction of so many keys becomes everybody's; beside a raw insert of as many rows by the driver.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import limits, tools
from benchmarks.agents import Agent, Crew, crew, run, window
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Summary,
    Table,
    progress,
    ratios,
    run_topic,
    summary,
)
from benchmarks.servers import scratch_directory, server

KEYS_A_STEP = 1_000
KEY_BYTES = 24
"""Of a key and its small value."""
SMALL = '{"id":"c-1","name":"a customer","total":1}'
CYCLES = {"begin, commit": 0, "begin, a step, commit": 1}


async def _cycle(agent: Agent, steps: int) -> float:
    before = time.perf_counter()
    await agent.begin()
    for _ in range(steps):
        # A key of its own: of two that wrote the same one the later commit is refused.
        await agent.step(arguments=f'{{"key":"{agent.transaction_id}","value":{SMALL}}}')
    await agent.commit()
    return time.perf_counter() - before


async def _echoed(agent: Agent, steps: int) -> float:
    return sum([await agent.step() for _ in range(2 + steps)])


async def _commit_of(agent: Agent, keys: int) -> float:
    await agent.begin()
    for first in range(0, keys, KEYS_A_STEP):
        count = min(KEYS_A_STEP, keys - first)
        await agent.step("unary", "bench.put_many", f'{{"first":{first},"count":{count}}}')
    return await agent.commit()


async def _cycles(own: Crew, echo: Crew, budget: Budget) -> Table:
    found: dict[tuple[str, int, str], list[float]] = {}
    for round_ in range(budget.repetitions + 1):
        for concurrency in budget.pick((1, 16, 64), (1, 64), (1,)):
            for name, steps in CYCLES.items():
                for who, agents, call in (("own", own, _cycle), ("echo", echo, _echoed)):
                    callers = [
                        lambda agent=agent, call=call, steps=steps: call(agent, steps)  # type: ignore[misc]
                        for agent in agents.agents[:concurrency]
                    ]
                    one = await window(callers, budget.seconds)
                    if round_:  # the first one warms up
                        found.setdefault((name, concurrency, who), []).append(one.per_second)
    return Table(
        "Whole transactions",
        ("what", "callers", "a second", "as many echoes a second", "of the echoes"),
        [
            [
                name,
                concurrency,
                summary(rates),
                summary(found[name, concurrency, "echo"]),
                ratios(rates, found[name, concurrency, "echo"]),
            ]
            for (name, concurrency, who), rates in found.items()
            if who == "own"
        ],
    )


async def _measure(directory: Path, own: str, echo: str, budget: Budget) -> Findings:
    sizes = budget.pick((10, 100, 1_000, 10_000, 50_000), (10, 1_000, 10_000), (3, 6))
    commits: dict[int, list[float]] = {}
    raw: dict[int, list[float]] = {}
    async with crew(own, 64) as agents, crew(echo, 64, echo=True) as echoes:
        progress("cycles of begin and commit")
        cycles = await _cycles(agents, echoes, budget)
        with limits.sqlite_inserts(directory, KEY_BYTES) as insert:
            for keys in sizes:
                progress(f"commits of {keys:,} keys")
                for _ in range(budget.repetitions):
                    commits.setdefault(keys, []).append(await _commit_of(agents.agents[0], keys) * 1000)
                    before = time.perf_counter()
                    insert(keys)
                    raw.setdefault(keys, []).append((time.perf_counter() - before) * 1000)
    by_keys: dict[int, Summary] = {keys: summary(taken) for keys, taken in commits.items()}
    return Findings(
        "publications",
        "Begin and commit",
        "Transactions begun and committed, beside as many calls of the echo; and the commit of a transaction by its keys, beside "
        "as many rows of as many bytes inserted by the driver and committed.",
        tables=[
            cycles,
            Table(
                "The commit by its keys",
                ("keys", "ms", "ms of a raw insert", "of a raw insert", "µs a key"),
                [
                    [
                        keys,
                        by_keys[keys],
                        summary(raw[keys]),
                        ratios(taken, raw[keys]),
                        summary(one * 1000 / keys for one in taken),
                    ]
                    for keys, taken in commits.items()
                ],
            ),
        ],
        plots=[
            Plot(
                "commits",
                "A commit by its keys",
                "keys",
                "ms",
                [
                    Series.of("commit", by_keys),
                    Series.of("raw insert", {keys: summary(taken) for keys, taken in raw.items()}),
                ],
                log_y=True,
            )
        ],
    )


def measure(budget: Budget) -> Findings:
    """Measure cycles and commits."""
    with (
        scratch_directory() as directory,
        server("agenttx", directory, tools=tools.SERVED) as own,
        server("echo", directory) as echo,
    ):
        return run(_measure(directory, own, echo, budget))


if __name__ == "__main__":
    run_topic(__doc__, measure)
