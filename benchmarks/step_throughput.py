"""Durable steps a second, and how long one takes, against a bare echo of the same kind, measured in turns.

Each of N transactions sends its next step when the last is answered, unary or on a stream of its own (ExecuteSteps).
The echo gets such messages from the same client. The client runs in this process, the servers in processes of their own.

- READ_ONLY and COMPENSATABLE: a tool in the server that returns its argument; the latter registers an undo first, which is
  durable before the tool goes on;
- TRANSACTIONAL: ``kv.put`` of a key and a small object;
- worker-hosted: the READ_ONLY one in a worker's process.

    python -m benchmarks.step_throughput [--database SQLite …] [--shape unary …] [--concurrency 1 64 …] [--tool TRANSACTIONAL …]
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import limits, tools
from benchmarks.agents import RPC, SHAPES, Crew, Window, crew, run
from benchmarks.databases import LEFT_OUT, new_database, postgresql_server
from benchmarks.measuring import (
    Budget,
    Findings,
    Plot,
    Series,
    Summary,
    Table,
    Target,
    budget_of,
    percentile,
    print_findings,
    progress,
    ratios,
    summary,
    topic_parser,
)
from benchmarks.servers import scratch_directory, server

VALUE = '{"value":1}'
KINDS: dict[str, tuple[str, str | None]] = {
    "READ_ONLY": ("bench.builtin", VALUE),
    "TRANSACTIONAL": ("kv.put", None),
    "COMPENSATABLE": ("bench.compensatable", VALUE),
    "worker-hosted": ("bench.hosted", VALUE),
}
"""Tool and arguments of each kind of step; None is a small object under a new key."""
DATABASES = {"SQLite": 1, "PostgreSQL": 1, "PostgreSQL, 2 processes": 2}
"""The server's processes."""
ECHO = "echo"
MANY = 64
Cell = tuple[str, str, str, int]
"""Database, kind, shape and concurrency."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured."""

    databases: tuple[str, ...] = tuple(DATABASES)
    kinds: tuple[str, ...] = tuple(KINDS)
    shapes: tuple[str, ...] = SHAPES
    concurrencies: tuple[int, ...] = (1, 16, 64, 256)


@dataclass
class Measured:
    """The windows of each cell, and the raw commits between them, a list a round."""

    windows: dict[Cell, list[Window]] = field(default_factory=dict)
    commits: list[list[float]] = field(default_factory=list)

    def rates(self, cell: Cell) -> list[float]:
        return [window.per_second for window in self.windows[cell]]

    def milliseconds(self, cell: Cell, share: float) -> list[float]:
        return [window.milliseconds(share) for window in self.windows[cell]]


@contextlib.asynccontextmanager
async def _serving(directory: Path, name: str, postgresql: str | None, asked: Asked) -> AsyncIterator[Crew]:
    """Run a server over one of the databases, with a worker, and yield agents of it."""
    settings = {"tools": tools.SERVED}
    with contextlib.ExitStack() as stack:
        if postgresql:
            database = stack.enter_context(new_database(postgresql))
            settings |= {"database_url": database, "fs_adopt": "true", "workers": str(DATABASES[name])}
        address = stack.enter_context(server("agenttx", directory / name.replace(", ", "-"), **settings))
        if "worker-hosted" in asked.kinds:
            stack.enter_context(tools.workers(address, "hosted", 1))
            await tools.until_offered(address, "bench.hosted")
        async with crew(address, max(asked.concurrencies)) as agents:
            yield agents


async def _measure(directory: Path, postgresql: str | None, asked: Asked, budget: Budget) -> Measured:
    found = Measured()
    async with contextlib.AsyncExitStack() as stack:
        echo = stack.enter_context(server("echo", directory))
        insert = stack.enter_context(limits.sqlite_inserts(directory))
        crews = {ECHO: await stack.enter_async_context(crew(echo, max(asked.concurrencies), echo=True))}
        for name in asked.databases:
            progress(f"starting a server on {name}")
            address = postgresql if name != "SQLite" else None
            crews[name] = await stack.enter_async_context(_serving(directory, name, address, asked))
        for round_ in range(budget.repetitions + 1):
            progress(f"round {round_} of {budget.repetitions}" if round_ else "warming up")
            seconds = budget.seconds if round_ else budget.seconds / 4
            commits = limits.seconds_a_commit(insert, 1, seconds)
            if round_:
                found.commits.append(commits)
            for shape in asked.shapes:
                for concurrency in asked.concurrencies:
                    for name, agents in crews.items():
                        for kind in (ECHO,) if name == ECHO else asked.kinds:
                            tool, arguments = KINDS.get(kind, KINDS["TRANSACTIONAL"])
                            one = await agents.window(concurrency, seconds, shape, tool, arguments)
                            if round_:  # the first one warms up
                                found.windows.setdefault((name, kind, shape, concurrency), []).append(one)
    return found


def _rows(found: Measured, cells: Iterable[Cell]) -> list[list[Any]]:
    return [
        [
            kind,
            RPC[shape],
            concurrency,
            summary(found.rates(cell)),
            ratios(found.rates(cell), found.rates((ECHO, ECHO, shape, concurrency))),
            summary(found.milliseconds(cell, 0.5)),
            summary(found.milliseconds(cell, 0.99)),
        ]
        for cell in cells
        for _, kind, shape, concurrency in [cell]
    ]


def _findings(found: Measured, asked: Asked) -> Findings:
    columns = ("step", "RPC", "transactions", "steps/s", "of the echo", "p50 ms", "p99 ms")
    made = Findings(
        "step_throughput",
        "Durable steps",
        "Each of N transactions sends its next step when the last one is answered, which is when it is on disk. The echo is the "
        "same server with its whole interceptor chain and an empty handler, called by the same client in turns.",
    )
    for name in (ECHO, *asked.databases):
        cells = [cell for cell in found.windows if cell[0] == name]
        cells.sort(
            key=lambda cell: (tuple(KINDS).index(cell[1]) if cell[1] in KINDS else -1, cell[2] != "unary")
        )
        made.tables.append(
            Table("The echo beside them" if name == ECHO else name, columns, _rows(found, cells))
        )
    for shape in asked.shapes:
        made.plots.append(_plot_of_kinds(found, asked, shape))
        made.plots.append(_plot_of_databases(found, asked, shape))
    made.targets += _targets(found)
    return made


def _rates(found: Measured, asked: Asked, name: str, kind: str, shape: str) -> dict[int, Summary]:
    return {
        concurrency: summary(found.rates((name, kind, shape, concurrency)))
        for concurrency in asked.concurrencies
    }


def _plot_of_kinds(found: Measured, asked: Asked, shape: str) -> Plot:
    name = asked.databases[0]
    series = [Series.of(ECHO, _rates(found, asked, ECHO, ECHO, shape))]
    series += [Series.of(kind, _rates(found, asked, name, kind, shape)) for kind in asked.kinds]
    return Plot(
        f"steps-{shape}",
        f"Steps a second, {RPC[shape]}, {name}",
        "transactions",
        "steps/s",
        series,
        log_y=True,
    )


def _plot_of_databases(found: Measured, asked: Asked, shape: str) -> Plot:
    kind = "TRANSACTIONAL" if "TRANSACTIONAL" in asked.kinds else asked.kinds[0]
    series = [Series.of(name, _rates(found, asked, name, kind, shape)) for name in asked.databases]
    return Plot(
        f"databases-{shape}", f"{kind} steps a second, {RPC[shape]}", "transactions", "steps/s", series
    )


def _targets(found: Measured) -> list[Target]:
    targets = []
    for shape, bound in (("unary", 0.5), ("stream", 0.45)):
        cell: Cell = ("SQLite", "TRANSACTIONAL", shape, MANY)
        if cell in found.windows:
            of_echo = ratios(found.rates(cell), found.rates((ECHO, ECHO, shape, MANY)))
            targets.append(
                Target(
                    f"{RPC[shape]}, {MANY} transactions, of the echo's rate", of_echo, bound, at_least=True
                )
            )
    alone: Cell = ("SQLite", "TRANSACTIONAL", "unary", 1)
    if alone in found.windows:
        above = [
            (step - echo) / (percentile(commits, 0.5) * 1000)
            for step, echo, commits in zip(
                found.milliseconds(alone, 0.5),
                found.milliseconds((ECHO, ECHO, "unary", 1), 0.5),
                found.commits,
                strict=True,
            )
        ]
        targets.append(
            Target(
                "one agent alone: p50 above the echo's, in durable commits of the same bytes",
                summary(above),
                1.5,
            )
        )
    for concurrency in (1, 16):
        inside, hosted = (("SQLite", kind, "unary", concurrency) for kind in ("READ_ONLY", "worker-hosted"))
        if inside in found.windows and hosted in found.windows:
            times = ratios(found.rates(inside), found.rates(hosted))
            targets.append(
                Target(
                    f"a step in a worker costs, of one in the server, {concurrency} transactions", times, 2.5
                )
            )
    return targets


def measure(budget: Budget, asked: Asked | None = None) -> Findings:
    """Measure steps."""
    asked = asked or Asked(concurrencies=budget.pick((1, 16, 64, 256), (1, 64), (1, 2)))
    with scratch_directory() as directory, contextlib.ExitStack() as stack:
        wants = any(name != "SQLite" for name in asked.databases)
        postgresql = stack.enter_context(postgresql_server(start=budget.name != "tiny")) if wants else None
        left_out = []
        if wants and not postgresql:
            left_out.append(LEFT_OUT)
            asked = Asked(("SQLite",), asked.kinds, asked.shapes, asked.concurrencies)
        found = _findings(run(_measure(directory, postgresql, asked, budget)), asked)
        found.left_out += left_out
        return found


def main() -> None:
    parser = topic_parser(__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--database", choices=tuple(DATABASES), nargs="+", default=list(DATABASES))
    parser.add_argument("--tool", choices=tuple(KINDS), nargs="+", default=list(KINDS))
    given = parser.parse_args()
    budget = budget_of(given)
    concurrencies = given.concurrency or budget.pick((1, 16, 64, 256), (1, 64), (1, 2))
    asked = Asked(tuple(given.database), tuple(given.tool), tuple(given.shape), tuple(concurrencies))
    print_findings(functools.partial(measure, asked=asked), budget)


if __name__ == "__main__":
    main()
