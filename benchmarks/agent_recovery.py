"""A scripted agent that meets failures: retrying and restarting by itself, and over this server.

A task of N steps acts on a world outside. Three kinds of trouble, for 8, 16, 32 and 64 steps:

- ``silent_root_cause``: step N/4 finds the wrong account and nothing complains; step 3N/4 fails on it;
- ``transient``: step N/2 loses its connection twice, each time after it had its effect;
- ``unrecoverable``: step 3N/4 is refused whatever the agent does.

The *naive* agent is told each error as a traceback, tries the step up to three times, then begins the task anew, twice
at most; beginning anew it avoids a mistake that an error named. The agent over the server sends each step, and goes on
where the answer says; it is told one hint a failure. Tools, world and mistakes are the same.

Counted are tool calls, undo calls, the tokens of what the agent is told of failures (four characters each), and what is
wrong in the world at the end: ``duplicate`` effects (the same step's more than once), ``leaked`` ones (left by a task that
was given up) and ``orphaned`` ones (unknown to the task that was finished). Counts are the same in every run.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import agenttx
from agenttx.integrations.in_process_worker import InProcessWorker
from agenttx.worker import AnyTool, ToolCallContext, ToolFailure, UndoContext, tool
from benchmarks.measuring import Budget, Findings, Table, Target, progress, run_topic, summary
from benchmarks.servers import scratch_directory, server

SCENARIOS = ("silent_root_cause", "transient", "unrecoverable")
SIZES = (8, 16, 32, 64)
WORDS = {
    "silent_root_cause": "step N/4 is silently wrong, step 3N/4 fails on it",
    "transient": "step N/2 fails twice, each time after its effect",
    "unrecoverable": "step 3N/4 is refused whatever is done",
}
COUNTS = ("tool_calls", "undo_calls", "feedback_tokens", "duplicate", "leaked", "orphaned", "wrong_effects")
TRIES_OF_A_STEP = 3
MOST_RESTARTS = 2
CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Task:
    """What is to be done, and the trouble on the way."""

    scenario: str
    steps: int

    def call(self, step: int, *, careful: bool) -> tuple[str, dict[str, Any]]:
        """Return a step's tool and its arguments but for the account; ``careful`` is that a mistake was named."""
        if self.scenario == "silent_root_cause" and step == self.steps // 4:
            return "bench.find_account", {"query": "exactly J. Meyer" if careful else "J. Meyer"}
        if step == self.steps * 3 // 4:
            return "bench.charge", {"position": step}
        return "bench.act", {"position": step}

    @property
    def account_step(self) -> int:
        """The step that finds the account to charge, 0 where it is known."""
        return self.steps // 4 if self.scenario == "silent_root_cause" else 0


@dataclass
class World:
    """What is outside: effects by key, each of a position in the task. Nothing in it knows of transactions."""

    task: Task
    effects: dict[str, int] = field(default_factory=dict)
    tool_calls: int = 0
    undo_calls: int = 0
    losses: int = 0

    def find_account(self, query: str) -> dict[str, Any]:
        self.tool_calls += 1
        return {"account_id": "acct-7" if query.startswith("exactly") else "acct-3"}

    def act(self, key: str, position: int) -> dict[str, Any]:
        self.tool_calls += 1
        self.effects[key] = position
        if self.task.scenario == "transient" and position == self.task.steps // 2 and self.losses < 2:
            self.losses += 1
            raise ToolFailure("connection", "the connection was lost after the request was sent")
        return {"booking": key}

    def charge(self, key: str, position: int, account_id: str) -> dict[str, Any]:
        self.tool_calls += 1
        if self.task.scenario == "unrecoverable":
            raise ToolFailure("permission_denied", "this merchant may not charge anybody")
        if account_id == "acct-3":
            raise ToolFailure(
                "invalid_value", f"account {account_id} belongs to another J. Meyer", ("account_id",)
            )
        self.effects[key] = position
        return {"booking": key}

    def take_back(self, key: str) -> None:
        self.undo_calls += 1
        self.effects.pop(key, None)


@dataclass
class Run:
    """How one task went."""

    finished: bool
    tool_calls: int
    undo_calls: int
    feedback_tokens: int
    duplicate: int
    leaked: int
    orphaned: int
    seconds: float

    @property
    def wrong_effects(self) -> int:
        """Effects that should not be there, each counted once."""
        return self.leaked + self.orphaned


def judged(world: World, known: set[str] | None, told: str, started: float) -> Run:
    """Say how it went; ``known`` are the effects that the finished task knows, None where it was given up."""
    by_position = Counter(world.effects.values())
    return Run(
        finished=known is not None,
        tool_calls=world.tool_calls,
        undo_calls=world.undo_calls,
        feedback_tokens=len(told) // CHARACTERS_A_TOKEN,
        duplicate=sum(number - 1 for number in by_position.values()),
        leaked=len(world.effects) if known is None else 0,
        orphaned=0 if known is None else len(world.effects.keys() - known),
        seconds=time.perf_counter() - started,
    )


# --- the naive agent ------------------------------------------------------------------------


def run_naively(task: Task) -> Run:
    """Retry, then begin anew, then give up."""
    world, started, told = World(task), time.perf_counter(), ""
    keys = (f"effect-{number}" for number in count(1))
    careful = False
    for _ in range(1 + MOST_RESTARTS):
        known, errors = _attempt_all(task, world, keys.__next__, careful=careful)
        told += errors
        if known is not None:
            return judged(world, known, told, started)
        careful = careful or "account_id" in errors
    return judged(world, None, told, started)


def _attempt_all(
    task: Task, world: World, new_key: Callable[[], str], *, careful: bool
) -> tuple[set[str] | None, str]:
    known: set[str] = set()
    told, account = "", "acct-1"
    for step in range(1, task.steps + 1):
        name, arguments = task.call(step, careful=careful)
        for _ in range(TRIES_OF_A_STEP):
            try:
                if name == "bench.find_account":
                    account = world.find_account(**arguments)["account_id"]
                elif name == "bench.charge":
                    known.add(world.charge(new_key(), **arguments, account_id=account)["booking"])
                else:
                    known.add(world.act(new_key(), **arguments)["booking"])
                break
            except ToolFailure as failure:
                told += f"{name}({json.dumps(arguments)})\n{traceback.format_exc()}keys: {failure.keys}\n"
        else:
            return None, told
    return known, told


# --- the agent over the server ----------------------------------------------------------------


def tools_of(world: World) -> list[AnyTool]:
    """Return the world's tools, each effect with what takes it back."""

    @tool("bench.find_account", effects="read_only")
    async def find_account(query: str) -> dict[str, Any]:
        """Find an account."""
        return world.find_account(query)

    @tool("bench.act", effects="compensatable")
    async def act(ctx: ToolCallContext, position: int) -> dict[str, Any]:
        """Do something outside."""
        await ctx.register_undo("bench.take_back", key=ctx.idempotency_key)
        return world.act(ctx.idempotency_key, position)

    @tool("bench.charge", effects="compensatable")
    async def charge(ctx: ToolCallContext, position: int, account_id: str) -> dict[str, Any]:
        """Charge an account."""
        await ctx.register_undo("bench.take_back_charge", key=ctx.idempotency_key)
        return world.charge(ctx.idempotency_key, position, account_id)

    @act.undo("bench.take_back")
    async def take_back(ctx: UndoContext, key: str) -> None:
        world.take_back(key)

    @charge.undo("bench.take_back_charge")
    async def take_back_charge(ctx: UndoContext, key: str) -> None:
        world.take_back(key)

    return [find_account, act, charge]


def run_over_server(task: Task, address: str) -> Run:
    """Send each step, and go on where the answer says."""
    world, told = World(task), ""
    with InProcessWorker(tools_of(world), address), agenttx.Client(address) as client:
        started = time.perf_counter()
        transaction = client.transaction(agent_id="benchmark").begin()
        bookings: dict[int, str] = {}
        while not transaction.ended and transaction.next_step_id <= task.steps:
            step = transaction.next_step_id
            careful = any("account_id" in line or "J. Meyer" in line for line in transaction.constraints)
            name, arguments = task.call(step, careful=careful)
            if name == "bench.charge":
                root = task.account_step
                arguments["account_id"] = f"${{steps.{root}.account_id}}" if root else "acct-1"
            outcome = transaction.try_step(name, **arguments)
            if outcome.succeeded:
                bookings[step] = outcome.output.get("booking", "")
                continue
            told += f"{outcome.hint}\n"
            bookings = {kept: key for kept, key in bookings.items() if kept < transaction.next_step_id}
        if transaction.ended:
            return judged(world, None, told, started)
        transaction.commit()
        return judged(world, set(bookings.values()), told, started)


def _runs(address: str, budget: Budget) -> dict[tuple[str, int], list[tuple[Run, Run]]]:
    found: dict[tuple[str, int], list[tuple[Run, Run]]] = {}
    for scenario in SCENARIOS:
        for steps in budget.pick(SIZES, SIZES[:2], SIZES[:1]):
            progress(f"{scenario}, {steps} steps")
            for _ in range(budget.repetitions):
                task = Task(scenario, steps)
                found.setdefault((scenario, steps), []).append(
                    (run_naively(task), run_over_server(task, address))
                )
    return found


def the_same(runs: Iterable[Run], count: str) -> int:
    """Return a count that every repetition agrees about."""
    (value,) = {int(getattr(run, count)) for run in runs}
    return value


def measure(budget: Budget) -> Findings:
    """Have both agents do the tasks."""
    with scratch_directory() as scratch, server("agenttx", scratch) as address:
        found = _runs(address, budget)
    counts: list[list[Any]] = []
    times: list[list[Any]] = []
    targets: list[Target] = []
    for (scenario, steps), pairs in found.items():
        agents = {"alone": [naive for naive, _ in pairs], "over AgentTx": [own for _, own in pairs]}
        for who, runs in agents.items():
            counts.append([WORDS[scenario], steps, who, *(the_same(runs, count) for count in COUNTS)])
        alone, own = ([run.seconds * 1000 for run in runs] for runs in agents.values())
        calls = the_same(agents["over AgentTx"], "tool_calls")
        times.append(
            [WORDS[scenario], steps, summary(alone), summary(own), summary(one / calls for one in own)]
        )
        if scenario == SCENARIOS[0]:
            most = steps * 3 // 4 + steps - steps // 4 + 1
            wrong = the_same(agents["over AgentTx"], "wrong_effects")
            figure = f"silent root cause, {steps} steps"
            targets.append(Target(f"{figure}: tool calls", summary([calls]), most, unit="calls"))
            targets.append(Target(f"{figure}: wrong effects", summary([wrong]), 0, unit="effects"))
    return Findings(
        "agent_recovery",
        "An agent that meets failures",
        "A scripted agent does a task of N steps that act on a world outside, once alone (it is told tracebacks, tries a step three times, "
        "then begins anew, twice at most) and once over this server, which tells it one hint a failure and where to go on. Counts are the same "
        "in every run. Wrong effects are those left by a task that was given up (leaked), or that the finished task knows nothing of (orphaned); "
        "duplicate ones are a step's more than once.",
        tables=[
            Table(
                "What it costs and what it leaves",
                ("trouble", "steps", "agent", *(count.replace("_", " ") for count in COUNTS)),
                counts,
            ),
            Table(
                "Wall time",
                ("trouble", "steps", "alone, ms", "over AgentTx, ms", "ms a tool call"),
                times,
                note="The agent alone acts in its own process, without a server, a network or a disk; over AgentTx every call is durable and "
                "its tool runs in a worker.",
            ),
        ],
        targets=targets,
    )


if __name__ == "__main__":
    run_topic(__doc__, measure)
