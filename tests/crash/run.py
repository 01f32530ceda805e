"""One run: agents at work, servers killed under them and started again, and then everything checked.

`python -m tests.crash --help` says what can be chosen. Servers die at random instants, also while they still recover, and at
failpoints (agenttx_server.failpoints); agents go on all the while. The tools are in the servers, or in workers, which then
die too (crew), beside the servers or in their place. Beside deaths there may be other faults (faults).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.agent import Agent
from tests.crash.crew import SILENCE_SECONDS, Crew, WorkerKiller, open_crew
from tests.crash.databases import Database
from tests.crash.faults import FAULTS, FaultMaker
from tests.crash.fleet import Fleet, Life, open_fleet
from tests.crash.invariants import Findings, check
from tests.crash.told import Told
from tests.crash.world import World

from agenttx_server import failpoints

__all__ = ["POINTS", "Options", "Report", "run", "wait_delivered"]

# Where recovery alone passes, or next to alone, a server has to have died for it, and died there.
_OF_RECOVERY = {
    "tool.after:compensatable": ("write.before:superseded", "write.after:superseded"),
    "tool.after:irreversible": ("write.before:doubt", "write.after:doubt"),
    "tool.after:idempotent": ("write.before:other", "write.after:other"),
    "deliver.after": ("write.before:delivery", "write.after:delivery"),
}
_BROUGHT_ABOUT_BY = {name: (cause,) for cause, names in _OF_RECOVERY.items() for name in names}
POINTS = tuple(
    name
    for cause in failpoints.NAMES
    if cause not in _BROUGHT_ABOUT_BY
    for name in (cause, *_OF_RECOVERY.get(cause, ()))
)
"""All failpoints, in an order in which each is come by soon."""

# A failpoint that is not come by is given up after this long, and the server killed all the same.
_POINT_SECONDS = 15.0
_MOST_WAITS = 5
_DELIVERY_SECONDS = 60.0
_LOOKS_PAUSE_SECONDS = 0.05
_LEASE_SECONDS = 2


@dataclass(frozen=True)
class Options:
    """What to run. ``kills`` and ``steps`` are the least of each; ``points`` are hit one after the other, then at random.

    ``kills`` are of servers; 0 kills none. With ``workers`` the tools are in so many, of which ``worker_kills`` are killed.
    ``faults`` says how many of each kind are made (faults.FAULTS).
    """

    seed: str
    kills: int = 20
    steps: int = 0
    agents: int = 24
    servers: int = 1
    database: str = "sqlite"
    points: tuple[str, ...] = ()
    point_share: float = 0.5
    longest_life: float = 0.6
    workers: int = 0
    worker_kills: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def acts_late(self) -> bool:
        """Whether a tool may act when it has been given up."""
        return bool(self.workers or self.faults.get("freezes"))

    @property
    def command(self) -> str:
        """What runs the same again."""
        return (
            f'make test-crash CRASH_ARGS="--seed {self.seed} --kills {self.kills} --steps {self.steps} '
            f"--agents {self.agents} --servers {self.servers} --database {self.database}"
            + (f" --workers {self.workers} --worker-kills {self.worker_kills}" if self.workers else "")
            + "".join(f" --{kind.replace('_', '-')} {times}" for kind, times in self.faults.items() if times)
            + '"'
        )


@dataclass
class Report:
    """What a run did and found."""

    options: Options
    findings: Findings = field(default_factory=Findings)
    kills: int = 0
    died_at: Counter[str] = field(default_factory=Counter)
    missed: set[str] = field(default_factory=set)
    waits: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    workers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    seconds: float = 0.0

    def table(self) -> str:
        """Return the summary, a line a figure."""
        findings = self.findings
        recoveries = sorted(self.recoveries) or [0.0]
        rows: list[tuple[str, object]] = [
            ("kills", self.kills),
            ("  at failpoints", sum(self.died_at.values())),
            ("  failpoints died at", f"{len(self.died_at)} of {len(failpoints.NAMES)}"),
            *self._rows_of_workers(),
            *(
                (kind.replace("_", " "), self.faults[kind])
                for kind in FAULTS
                if self.options.faults.get(kind)
            ),
            ("transactions", sum(self.transactions.values())),
            *((f"  {name}", count) for name, count in sorted(self.transactions.items())),
            ("steps answered", self.steps),
            ("effects outside", findings.counts["effects"]),
            ("undo actions", findings.counts["undo actions"]),
            ("effects delivered", findings.counts["deliveries"]),
            ("  and delivered again", findings.counts["deliveries repeated"]),
            ("in doubt, resolved", sum(self.words[name] for name in _RESOLUTIONS)),
            ("commit conflicts", self.words["conflict"]),
            *([("late effects refused", self.refused)] if self.options.acts_late else []),
            ("answers repeated", findings.counts["answers repeated"]),
            ("start to serving, median", f"{statistics.median(recoveries):.2f} s"),
            ("start to serving, longest", f"{recoveries[-1]:.2f} s"),
            ("lost", len(findings.lost)),
            ("doubled", len(findings.doubled)),
            ("undelivered", len(findings.undelivered)),
            ("other breaches", len(findings.other)),
            ("seconds", f"{self.seconds:.0f}"),
        ]
        return "\n".join(f"{name:<28}{value:>10}" for name, value in rows)

    def _rows_of_workers(self) -> list[tuple[str, object]]:
        if not self.options.workers:
            return []
        return [
            ("workers killed", self.workers["killed"]),
            ("workers stopped, going on", self.workers["stopped"]),
        ]


_RESOLUTIONS = ("STEP_RESOLUTION_SUCCEEDED", "STEP_RESOLUTION_FAILED", "STEP_RESOLUTION_RETRY")


async def run(options: Options, directory: Path, database: Database | None = None) -> Report:
    """Run, and return what was found. Raises AssertionError where an agent was told what may not be."""
    report = Report(options)
    database = database or Database()
    began = time.monotonic()
    async with (
        open_fleet(
            directory,
            database_url=database.address,
            servers=options.servers,
            acts_late=options.acts_late,
            data_directory=None if database.address or database.disk is None else database.disk.path,
            lease_seconds=_LEASE_SECONDS,
            fs_adopt=True,
            effect_retry_base_seconds=0.2,
            **_with_workers(options),
        ) as fleet,
        open_crew(fleet, options.workers) as crew,
    ):
        world = World(fleet.world_log, refuses_late=fleet.acts_late)
        agents = [Agent(f"a{number}", options.seed, fleet, world) for number in range(options.agents)]
        killer = _Killer(options, fleet, report)
        faults = FaultMaker(options.seed, options.faults, _LEASE_SECONDS, fleet, database, killer)
        async with _at_work(agents, killer), _dying(crew, options, report, faults) as others:
            while not (
                all(task.done() for task in others)
                and killer.is_done(sum(told.steps for agent in agents for told in agent.told))
            ):
                await killer.kill_one()
        await killer.all_serve()
        await asyncio.gather(*(agent.end_all() for agent in agents))
        told = [told for agent in agents for told in agent.told]
        await wait_delivered(fleet)
        await killer.restart_in_order()
        report.findings = await check(fleet, world, told)
        report.refused = world.refused
        report.faults = faults.done
        _sum_up(report, told, fleet)
    report.seconds = time.monotonic() - began
    return report


def _with_workers(options: Options) -> dict[str, Any]:
    return {"has_workers": True, "worker_silence_seconds": SILENCE_SECONDS} if options.workers else {}


def _sum_up(report: Report, transactions: Sequence[Told], fleet: Fleet) -> None:
    for told in transactions:
        report.steps += told.steps
        report.transactions[told.status] += 1
        report.words += told.words
    report.recoveries = [life.served_after for life in fleet.lives if life.served_after is not None]


@asynccontextmanager
async def _at_work(agents: Sequence[Agent], killer: _Killer) -> AsyncIterator[None]:
    """Have agents work until the block is left, and then end what they are at; the first surprise is raised."""
    leaving = asyncio.Event()

    async def work(agent: Agent) -> None:
        while not leaving.is_set():
            await agent.run_one(leaving)

    await killer.all_serve()
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(work(agent))
        yield
        leaving.set()
        await killer.all_serve()


@asynccontextmanager
async def _dying(
    crew: Crew, options: Options, report: Report, faults: FaultMaker
) -> AsyncIterator[Sequence[asyncio.Task[None]]]:
    """Have workers die, if there are any, and faults made; give the tasks that end when there were enough."""
    killer = WorkerKiller(options.seed, options.worker_kills, crew, report.workers)
    async with asyncio.TaskGroup() as group:
        yield [group.create_task(killer.work()), group.create_task(faults.work())]


class _Killer:
    """Starts servers, each with how it is to die, and sees that it does."""

    def __init__(self, options: Options, fleet: Fleet, report: Report) -> None:
        self._options = options
        self._fleet = fleet
        self._report = report
        self._chance = random.Random(f"{options.seed} killer")
        self._points = list(options.points)
        self._lives: dict[int, Life] = {}
        self._armed: dict[int, str] = {}
        self._starts = asyncio.Lock()

    def serving(self) -> Collection[Life]:
        """The servers that serve now."""
        return [life for life in self._lives.values() if life.served_after and not life.ended.is_set()]

    @asynccontextmanager
    async def none_starts(self) -> AsyncIterator[None]:
        """Wait until no server is starting, and have none started or killed until the block is left."""
        async with self._starts:
            for life in self._lives.values():
                if life.served_after is None:
                    await self._fleet.wait_serving(life)
            yield

    def is_done(self, steps: int) -> bool:
        """Whether there were kills and steps enough."""
        enough = self._report.kills >= self._options.kills and steps >= self._options.steps
        return enough and self._report.died_at.keys() | self._report.missed >= set(self._options.points)

    async def all_serve(self) -> None:
        """Return once every server serves, none of them armed."""
        for index in range(self._fleet.servers):
            if self._armed.pop(index, None) is not None:
                await self._fleet.kill(self._lives.pop(index))
            if index not in self._lives or self._lives[index].ended.is_set():
                self._lives[index] = await self._fleet.start(index)
        for life in self._lives.values():
            if life.served_after is None and not await self._fleet.wait_serving(life):
                raise AssertionError(
                    f"server {life.index} ended by itself:\n{self._fleet.log_text()[-4000:]}"
                )

    async def restart_in_order(self) -> None:
        """Stop every server as one stops a server, and start them again."""
        for life in self._lives.values():
            await self._fleet.terminate(life)
        await self.all_serve()

    async def kill_one(self) -> None:
        """Let one server live for a while and die; start it again, with the next death before it. Or let it live on."""
        if not self._options.kills:
            await asyncio.sleep(self._options.longest_life)
            return
        async with self._starts:
            await self._kill_one()

    async def _kill_one(self) -> None:
        index = self._chance.randrange(self._fleet.servers)
        life = self._lives[index]
        point = self._armed.pop(index, "")
        if point:
            await self._die_at(life, point)
        else:
            await self._die_by_chance(life)
        self._report.kills += 1
        armed, seed = self._next_point()
        self._lives[index] = life = await self._fleet.start(index, armed, seed)
        if armed:
            self._armed[index] = armed
        # Now and then not even the start is over.
        if armed or self._chance.random() > 0.2:
            await self._fleet.wait_serving(life)

    async def _die_by_chance(self, life: Life) -> None:
        if life.served_after is None:
            waiting = asyncio.create_task(self._fleet.wait_serving(life))
            await asyncio.sleep(self._chance.random() * self._options.longest_life)
            await self._fleet.kill(life)
            await waiting
            return
        await asyncio.sleep(self._chance.random() * self._options.longest_life)
        if life.ended.is_set():
            raise AssertionError(f"a server ended by itself:\n{self._fleet.log_text()[-4000:]}")
        await self._fleet.kill(life)

    async def _die_at(self, life: Life, point: str) -> None:
        name = point.partition("=")[0]
        try:
            async with asyncio.timeout(_POINT_SECONDS):
                await life.ended.wait()
        except TimeoutError:
            await self._fleet.kill(life)
            self._report.waits[name] += 1
            if name in self._options.points and name not in self._report.died_at:
                if self._report.waits[name] < _MOST_WAITS:
                    self._points += [*_BROUGHT_ABOUT_BY.get(name, ()), name]
                else:
                    self._report.missed.add(name)
        else:
            self._report.died_at[name] += 1

    def _next_point(self) -> tuple[str, str]:
        if self._points:
            name = self._points.pop(0)
            return f"{name}=kill@{self._chance.randint(1, 3) if name in _COMMON else 1}", ""
        if self._chance.random() >= self._options.point_share:
            return "", ""
        name = self._chance.choice(_COMMON)
        if self._chance.random() < 0.5:
            return f"{name}=kill@{self._chance.randint(1, 5)}", ""
        return f"{name}=kill%0.2", f"{self._options.seed}-{self._report.kills}"


# Points come by often enough that waiting for them is worth it.
_COMMON = [
    name
    for name in failpoints.NAMES
    if not name.endswith((":other", ":rewind_held", ":doubt", ":superseded"))
]


async def wait_delivered(fleet: Fleet) -> None:
    """Wait until nothing is left to be delivered."""
    from agenttx.v1 import transaction_pb2 as pb

    route = random.Random(0)
    async with asyncio.timeout(_DELIVERY_SECONDS):
        while True:
            waiting: Any = await fleet.call(
                "ListEffects", pb.ListEffectsRequest(states=[pb.EFFECT_STATE_READY], page_size=1), route
            )
            if not waiting.effects:
                return
            await asyncio.sleep(_LOOKS_PAUSE_SECONDS)
