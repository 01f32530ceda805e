"""What length costs: a step at each position of one transaction of 20,000, and the database's bytes a step.

Every step stores about 300 bytes under a key of its own. At each position steps of the long transaction and of a short one, at
position 20, are measured in turns.
"""

from __future__ import annotations

import sqlite3
import statistics
from contextlib import closing
from pathlib import Path

from benchmarks.agents import crew, run
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Summary,
    Table,
    Target,
    progress,
    ratios,
    run_topic,
    summary,
)
from benchmarks.servers import scratch_directory, server

NEAR = 20
VALUE_BYTES = 300


def step_arguments(step: int) -> str:
    """Return a kv.put of about 300 bytes under a key of its own."""
    return f'{{"key":"k{step}","value":"{"x" * VALUE_BYTES}"}}'


def database_bytes(path: Path) -> int:
    """Return the bytes that a file of SQLite would have, were its log empty."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        (pages,), (free,), (size,) = (
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


async def _measure(directory: Path, address: str, budget: Budget) -> Findings:
    positions = budget.pick((NEAR, 200, 2_000, 20_000), (NEAR, 2_000), (NEAR, 60))
    steps = budget.pick(40, 20, 3)
    database = directory / "agenttx" / "agenttx.db"
    near: dict[int, list[float]] = {}
    far: dict[int, list[float]] = {}
    grown: list[list[object]] = []
    bytes_a_step: Summary = {}
    async with crew(address, 1) as agents:
        (long,) = agents.agents
        short = type(long)(long.stub)
        for position in positions:
            progress(f"to step {position:,}")
            first, before = long.next_step, database_bytes(database)
            await long.grow_to(position - steps * budget.repetitions // 2 - 1, step_arguments)
            made = long.next_step - first
            if made > 1_000 or position == positions[-1]:
                bytes_a_step = summary([(database_bytes(database) - before) / max(made, 1)])
                grown.append(
                    [
                        f"{first:,} … {long.next_step - 1:,}",
                        bytes_a_step,
                        bytes_a_step["median"] / VALUE_BYTES,
                    ]
                )
            for _ in range(budget.repetitions):
                await short.begin()
                await short.grow_to(NEAR - steps // 2 - 1, step_arguments)
                waits: tuple[list[float], list[float]] = ([], [])
                for _ in range(steps):
                    for agent, found in zip((short, long), waits, strict=True):
                        found.append(await agent.step("stream", arguments=step_arguments(agent.next_step)))
                await short.close()
                near.setdefault(position, []).append(statistics.median(waits[0]) * 1000)
                far.setdefault(position, []).append(statistics.median(waits[1]) * 1000)
    times = {position: ratios(far[position], near[position]) for position in positions}
    return Findings(
        "transaction_length",
        "Length of a transaction",
        f"One transaction grows by `kv.put` of {VALUE_BYTES} bytes on a stream. Around each position its steps and those of a transaction at step {NEAR} "
        "are measured in turns.",
        tables=[
            Table(
                "A step by its position",
                ("position", "ms", f"ms at step {NEAR}", f"of step {NEAR}"),
                [
                    [position, summary(far[position]), summary(near[position]), times[position]]
                    for position in positions
                ],
            ),
            Table(
                f"Bytes of the database a step of {VALUE_BYTES} bytes, indexes and all",
                ("steps", "bytes a step", "of the value's"),
                grown,
                note="Of the long transaction. Measured once, for it is the same each time.",
            ),
        ],
        plots=[
            Plot(
                "length",
                "One agent's step by its position in the transaction",
                "position",
                "ms",
                [
                    Series.of("the long transaction", {at: summary(far[at]) for at in positions}),
                    Series.of(f"at step {NEAR}, in turns", {at: summary(near[at]) for at in positions}),
                ],
            )
        ],
        targets=[
            Target(f"a step at {positions[-1]:,}, of one at {NEAR}", times[positions[-1]], 1.15),
            Target(f"database bytes a step of {VALUE_BYTES} bytes", bytes_a_step, 2048, unit="bytes"),
        ],
    )


def measure(budget: Budget) -> Findings:
    """Measure the price of length."""
    with scratch_directory() as directory, server("agenttx", directory) as address:
        return run(_measure(directory, address, budget))


if __name__ == "__main__":
    run_topic(__doc__, measure)
