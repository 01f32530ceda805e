"""What a rewind costs by what it takes back, and what others notice of a large one.

Each case is a transaction of so many steps with so many writes a step, rewound by one call; before each rewind durable steps of
another transaction are measured, which are what it is compared with. During the large ones an agent with a transaction of
its own goes on sending steps: its longest wait is what the rewind kept others from.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass

from benchmarks import tools
from benchmarks.agents import Agent, crew, run
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Table,
    Target,
    progress,
    ratios,
    run_topic,
    summary,
)
from benchmarks.servers import scratch_directory, server

USUAL_STEPS = 15
LARGE = 10_000


@dataclass(frozen=True)
class Case:
    """A rewind: so many steps go of so many, with so many writes each; and the most it may take, if that is said."""

    steps: int
    writes_a_step: int
    kept: int = 0
    most_ms: float | None = None

    @property
    def writes(self) -> int:
        return (self.steps - self.kept) * self.writes_a_step

    @property
    def name(self) -> str:
        if self.kept:
            return f"{self.steps - self.kept:,} of {self.steps:,} steps"
        return f"{self.writes:,} writes in {self.steps:,} steps"


FULL = (
    Case(10, 1),
    Case(100, 1),
    Case(200, 1, kept=10, most_ms=5),
    Case(1_000, 1),
    Case(50, 100, most_ms=20),
    Case(5_000, 1, most_ms=40),
    Case(100, 100),
    Case(1_000, 100),
)
QUICK = (Case(10, 1), Case(200, 1, kept=10, most_ms=5), Case(50, 100, most_ms=20), Case(100, 100))
TINY = (Case(4, 1, kept=1, most_ms=5), Case(2, 3))


async def _grow(agent: Agent, case: Case) -> None:
    await agent.begin()
    for step in range(case.steps):
        if case.writes_a_step == 1:
            await agent.step("stream")
        else:
            arguments = f'{{"first":{step * case.writes_a_step},"count":{case.writes_a_step}}}'
            await agent.step("stream", "bench.put_many", arguments)
    await agent.close()


async def _longest_wait(other: Agent, over: asyncio.Event) -> float:
    """Return the longest that a step of another transaction took until the rewind is over."""
    longest = 0.0
    while not over.is_set():
        longest = max(longest, await other.step())
    return longest


async def _measure(address: str, budget: Budget) -> Findings:
    cases = budget.pick(FULL, QUICK, TINY)
    milliseconds: dict[Case, list[float]] = {}
    usual: dict[Case, list[float]] = {}
    waits: dict[Case, list[float]] = {}
    async with crew(address, budget.repetitions + 1) as agents:
        *growing, other = agents.agents
        for case in cases:
            progress(case.name)
            await asyncio.gather(*(_grow(agent, case) for agent in growing))
            for agent in growing:
                usual.setdefault(case, []).append(
                    statistics.median([await other.step() for _ in range(USUAL_STEPS)]) * 1000
                )
                over = asyncio.Event()
                is_large = case.writes >= LARGE or budget.name == "tiny"
                waiting = asyncio.create_task(_longest_wait(other, over)) if is_large else None
                milliseconds.setdefault(case, []).append(await agent.rewind(case.kept + 1) * 1000)
                over.set()
                if waiting is not None:
                    waits.setdefault(case, []).append(await waiting * 1000)
    return _findings(milliseconds, usual, waits)


def _findings(
    milliseconds: dict[Case, list[float]], usual: dict[Case, list[float]], waits: dict[Case, list[float]]
) -> Findings:
    found = Findings(
        "rewinds",
        "Rewinds",
        "One call takes back so many writes. The baseline is a durable step of another transaction, measured right before each; "
        "for the large ones the longest that such a step waited meanwhile.",
        tables=[
            Table(
                "What a rewind takes",
                (
                    "taken back",
                    "writes",
                    "ms",
                    "of a durable step",
                    "µs a write",
                    "longest wait of another's step, ms",
                ),
                [
                    [
                        case.name,
                        case.writes,
                        summary(taken),
                        ratios(taken, usual[case]),
                        summary(one * 1000 / case.writes for one in taken),
                        summary(waits[case]) if case in waits else None,
                    ]
                    for case, taken in milliseconds.items()
                ],
            )
        ],
        plots=[
            Plot(
                "rewinds",
                "A rewind by the writes it takes back",
                "writes",
                "ms",
                [
                    Series.of(
                        name,
                        {
                            case.writes: summary(taken)
                            for case, taken in milliseconds.items()
                            if (case.writes_a_step == 1) is is_single
                        },
                    )
                    for name, is_single in (("a write a step", True), ("100 writes a step", False))
                ],
                log_y=True,
            )
        ],
        targets=[
            Target(f"rewind of {case.name}", summary(taken), case.most_ms, unit="ms")
            for case, taken in milliseconds.items()
            if case.most_ms is not None
        ],
    )
    many = sorted(waits, key=lambda case: case.writes)
    if len(many) > 1:
        small, large = many[0], many[-1]
        growth = ratios(
            [one / large.writes for one in milliseconds[large]],
            [one / small.writes for one in milliseconds[small]],
        )
        found.targets.append(
            Target(f"rewind of {large.writes:,} writes, a write, of one of {small.writes:,}", growth, 1.5)
        )
    if many:
        found.targets.append(
            Target(
                f"longest wait of another's step during a rewind of {many[-1].writes:,} writes",
                summary(waits[many[-1]]),
                50,
                unit="ms",
            )
        )
    return found


def measure(budget: Budget) -> Findings:
    """Measure rewinds."""
    with scratch_directory() as directory, server("agenttx", directory, tools=tools.SERVED) as address:
        return run(_measure(address, budget))


if __name__ == "__main__":
    run_topic(__doc__, measure)
