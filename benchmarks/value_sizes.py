"""What the size of a value costs: a durable step that stores 1 byte to 1 MB, and one that reads it, beside an echo of the same bytes."""

from __future__ import annotations

import statistics

from benchmarks.agents import Crew, crew, run
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Table,
    progress,
    ratios,
    run_topic,
    summary,
)
from benchmarks.servers import scratch_directory, server

MIB = 1 << 20
MOST_BYTES = 1_000_000
MOST_IN_A_ROUND = 4_000_000
"""Bytes sent in a round of one size; it is at least two steps."""


async def _median_ms(agents: Crew, steps: int, tool: str, arguments: str) -> float:
    (agent,) = agents.agents
    return statistics.median([await agent.step("unary", tool, arguments) for _ in range(steps)]) * 1000


async def _measure(own: str, echo: str, budget: Budget) -> Findings:
    sizes = budget.pick(
        (1, 100, 1_000, 10_000, 100_000, MOST_BYTES), (1, 1_000, 100_000, MOST_BYTES), (1, 2_000)
    )
    most_steps = budget.pick(30, 10, 2)
    found: dict[tuple[str, int], list[float]] = {}
    async with crew(own, 1) as agents, crew(echo, 1, echo=True) as echoes:
        for size in sizes:
            progress(f"{size:,} bytes")
            steps = min(most_steps, max(MOST_IN_A_ROUND // size, 2))
            put = f'{{"key":"k","value":"{"x" * size}"}}'
            for round_ in range(budget.repetitions + 1):
                await agents.agents[0].begin()
                one = {
                    "put": await _median_ms(agents, steps, "kv.put", put),
                    "get": await _median_ms(agents, steps, "kv.get", '{"key":"k"}'),
                    "echo": await _median_ms(echoes, steps, "kv.put", put),
                }
                if round_:
                    for name, milliseconds in one.items():
                        found.setdefault((name, size), []).append(milliseconds)
    return Findings(
        "value_sizes",
        "Size of a value",
        "A step that stores a value (`kv.put`, answered with it, durable) and one that reads it (`kv.get`), by its size; the baseline is an "
        "echo that is sent the same bytes. A 1 MB value is sent, stored thrice (arguments, output, state) and sent back.",
        tables=[
            Table(
                "A step by the bytes of its value",
                ("bytes", "put, ms", "get, ms", "echo, ms", "put of the echo", "put of 1 byte's"),
                [
                    [
                        size,
                        summary(found["put", size]),
                        summary(found["get", size]),
                        summary(found["echo", size]),
                        ratios(found["put", size], found["echo", size]),
                        summary(
                            one / statistics.median(found["put", sizes[0]]) for one in found["put", size]
                        ),
                    ]
                    for size in sizes
                ],
            )
        ],
        plots=[
            Plot(
                "values",
                "A step by the bytes of its value",
                "bytes",
                "ms",
                [
                    Series.of(name, {size: summary(found[name, size]) for size in sizes})
                    for name in ("put", "get", "echo")
                ],
                log_y=True,
            )
        ],
    )


def measure(budget: Budget) -> Findings:
    """Measure steps by the size of their values."""
    # The largest value and its key are just over the default.
    allowed = {"max_arguments_bytes": str(2 * MIB), "max_message_bytes": str(16 * MIB)}
    with (
        scratch_directory() as directory,
        server("agenttx", directory, **allowed) as own,
        server("echo", directory) as echo,
    ):
        return run(_measure(own, echo, budget))


if __name__ == "__main__":
    run_topic(__doc__, measure)
