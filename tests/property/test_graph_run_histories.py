"""Random graphs, run one node at a time, side by side, drained, and killed at any write: one state, one history."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.graph_definitions import goto, send
from tests.support.graph_runs import Call, GraphRuns, Inner, embedding, inner
from tests.support.virtual_time import run_in_virtual_time

from agenttx_server.engine.json_values import JsonValue, canonical, load
from agenttx_server.engine.ports import ToolFailure
from agenttx_server.graphs.definition import CachePolicy, Channel, GraphPolicy, ToolBinding
from agenttx_server.graphs.runs.ports import RunFilter
from agenttx_server.graphs.runs.records import LIVE, CommitPolicy, Durability, RunRecord, RunStatus

CHANNELS = (
    Channel("value", reducer="add"),
    Channel("log", reducer="append"),
    Channel("route", reducer="any_value"),
)
INVOCATIONS = 60


@dataclass(frozen=True)
class Plan:
    """A graph as the notation's text, and what its nodes do."""

    text: str
    nodes: tuple[str, ...]
    commands: tuple[tuple[str, tuple[JsonValue, ...]], ...]
    asks: tuple[str, ...]
    books: tuple[str, ...]
    label: str
    embeds: tuple[tuple[str, str], ...] = ()


INSIDE = {
    "chain": "START->x, x->y",
    "asks": "START->x, START->ask, [x, ask]|>y",
    "books": "START->x, START->book, x->y, book->y",
    "asks twice": "START->ask, START->ask2, ask->x, ask2->y",
    "nests": "START->x, START->deeper, deeper->y",
    "handles": "START->bad, START->ask, bad->y, x",
    "counts": "START->count, START->count2, START->count3, count->y, count3->y",
}
"""Shapes of embedded graphs, by what is special in them."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Graphs without cycles: fan-out, joins, routers, commands with Sends; nodes that ask, tools with effects."""
    count = draw(st.integers(2, 6))
    names = tuple("abcdef"[:count])
    parts = [
        f"START->{name}"
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    ]
    commands: list[tuple[str, tuple[JsonValue, ...]]] = []
    free = []
    for index, name in enumerate(names[:-1]):
        later = names[index + 1 :]
        some = st.lists(st.sampled_from(later), min_size=1, max_size=3, unique=True)
        match draw(st.sampled_from(["edges", "edges", "router", "commands", "none"])):
            case "edges":
                parts += [f"{name}->{target}" for target in draw(some)]
                free.append(name)
            case "router":
                parts.append(
                    f"{name}?->{{x: {draw(st.sampled_from(later))}, y: {draw(st.sampled_from([*later, 'END']))}}}"
                )
            case "commands":
                targets = draw(some)
                parts.append(f"{name}=>[{','.join(targets)}]")
                sends = draw(st.lists(st.tuples(st.sampled_from(targets), st.integers(0, 9)), max_size=2))
                going = (
                    *targets[: draw(st.integers(0, len(targets)))],
                    *(send(node, arg) for node, arg in sends),
                )
                commands.append((name, going))
            case _:
                free.append(name)
    if len(free) > 1 and draw(st.booleans()):
        members = draw(st.lists(st.sampled_from(free), min_size=2, max_size=2, unique=True))
        later_than = max(names.index(member) for member in members)
        target = draw(st.sampled_from(names[later_than + 1 :]))
        parts.append(f"[{','.join(members)}]|{draw(st.sampled_from(['SKIP', 'ANY', '']))}>{target}")
    plain = [name for name in names if name not in dict(commands)]
    asks = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    books = draw(st.lists(st.sampled_from(plain), max_size=2, unique=True)) if plain else []
    asks = [name for name in asks if name not in books]
    free_for_graphs = [name for name in plain if name not in asks and name not in books]
    holds = (
        draw(st.lists(st.sampled_from(free_for_graphs), max_size=2, unique=True)) if free_for_graphs else []
    )
    embeds = [(name, draw(st.sampled_from(sorted(INSIDE)))) for name in holds]
    return Plan(
        ", ".join(parts),
        names,
        tuple(commands),
        tuple(asks),
        tuple(books),
        draw(st.sampled_from("xy")),
        tuple(embeds),
    )


def _graph(name: str, shape: str, pauses: dict[str, float]) -> Inner:
    """An embedded graph; what its nodes write tells what they saw."""

    def node(own: str) -> Any:
        async def work(call: Call) -> Any:
            await asyncio.sleep(pauses.get({"x": "f", "count2": "d", "count3": "c"}.get(own, "e"), 0))
            said = call.interrupt(f"{name}.{own}") if own.startswith("ask") else ""
            given = call.arg if call.has_arg else ""
            given = given["node"] if isinstance(given, dict) else given
            if own == "bad":
                raise ToolFailure("invalid_value", "never")
            if own.startswith("count"):
                said = f" {await _counted(call, name)}"
            return {"value": 1, "log": [f"{name}.{own}{given}:{call.state['value']}{said}"]}

        return work

    nodes: dict[str, Any] = {}
    embeds: list[Inner] = []
    if shape == "books":
        effect = {"effect": f"{name}.book", "output": {"value": 1, "log": [f"{name}.book"]}}
        nodes["book"] = {"binding": ToolBinding("book", effect)}
    if shape == "nests":
        embeds.append(_graph(f"{name}-deeper", "asks", pauses))
        nodes["deeper"] = embedding(f"{name}-deeper")
    if shape == "handles":
        nodes["bad"] = {"error_handler": "x"}
    own = {part.strip("[] ") for part in re.split(r"->|\|>|,", INSIDE[shape])} - {"START", "deeper", "book"}
    functions = {node_name: node(node_name) for node_name in sorted(own)}
    return inner(name, INSIDE[shape], functions, nodes=nodes, embeds=embeds, channels=CHANNELS)


async def _counted(call: Call, name: str) -> int:
    """Count one on in the store, where siblings count too."""
    assert call.context is not None
    # Of this run alone: one on another thread counts anew.
    key = f"kv/{name}-{call.context.transaction_id}"
    found: Any = load(await call.context.step("lookup", canonical({"get": [key]})))
    number = int(found["read"][key] or 0) + 1
    await asyncio.sleep(0.5)
    await call.context.step("note", canonical({"put": {key: number}}))
    return number


def _server(plan: Plan, pauses: dict[str, float], *, cached: bool = False) -> GraphRuns:
    """Run a plan's graph; with ``cached`` nodes that are functions keep what they gave, by all that they see."""

    def node(name: str) -> Any:
        async def work(call: Call) -> Any:
            await asyncio.sleep(pauses.get(name, 0))
            said = call.interrupt(name) if name in plan.asks else ""
            told = f"{name}{call.arg if call.has_arg else ''}:{call.state['value']}{said}"
            update = {"value": 1 + plan.nodes.index(name), "log": [told]}
            targets = dict(plan.commands).get(name)
            return update if targets is None else goto(*targets, update=update)  # type: ignore[arg-type]

        return work

    tools = {
        name: {"binding": ToolBinding("book", {"effect": name, "output": {"value": 1, "log": [name]}})}
        for name in plan.books
    }
    graphs = {name: embedding(f"in-{name}") for name, _ in plan.embeds}
    functions = {name: node(name) for name in plan.nodes if name not in tools and name not in graphs}
    by_all = {"cache": CachePolicy(tuple(channel.name for channel in CHANNELS))}
    caches = {name: dict(by_all) for name in functions} if cached else {}
    return GraphRuns(
        plan.text,
        functions,
        channels=CHANNELS,
        nodes=tools | graphs | caches,
        policy=GraphPolicy(allow_unreachable=True),
        embeds=[_graph(f"in-{name}", shape, pauses) for name, shape in plan.embeds],
    )


async def _history(
    plan: Plan,
    *,
    pauses: dict[str, float],
    cap: int,
    kill_at: int = 0,
    drains: bool = False,
    durability: Durability | None = None,
    commit: CommitPolicy | None = None,
) -> Any:
    """Run to the end, answering what is asked; return how that ended, and what is durable of it."""
    runs = _server(plan, pauses)
    if kill_at:
        first = len(runs.engine.memory.written) + kill_at

        def kill(made: int, write_set: Any) -> None:
            if made == first:
                runs.engine.memory.kill()

        runs.engine.memory._on_write = kill
    given: dict[str, Any] = {"value": 0, "log": [], "route": plan.label}
    options: dict[str, Any] = {"max_concurrency": cap, "durability": durability, "commit": commit}
    work = asyncio.ensure_future(runs.start(given, **options))
    for _ in range(INVOCATIONS):
        if drains:
            await asyncio.sleep(0)
            await runs.runs.drain("run-000001")
        await asyncio.wait({work}, timeout=1000)
        if not work.done():
            await runs.crash()
            work.cancel()
            await runs.recover()
        run = await runs.store.load_run("run-000001")
        if run is None:
            work = asyncio.ensure_future(runs.start(given, **options))
            continue
        if run.status is RunStatus.COMPLETED or _is_stuck(run):
            break
        work = asyncio.ensure_future(_go_on(runs, run))
    else:
        raise AssertionError("it never ended")
    outcome = await runs.runs.stored_outcome(run)
    durable = await _durable(runs, run)
    inside = {}
    for child in (await runs.store.list_runs(RunFilter(include_children=True), "", 1000)).runs:
        if child.run_id != run.run_id:
            kept = await runs.store.list_embedded("t", child.namespace, None, 1000)
            boundaries = [(item.number, item.parent, item.superstep, item.state, item.work) for item in kept]
            inside[child.namespace] = (child.run_id, child.status, await _durable(runs, child), boundaries)
    return (
        run.status,
        run.error and run.error.reason,
        outcome.state,
        sorted(runs.engine.tools.effects),
        durable,
        inside,
    )


async def _durable(runs: GraphRuns, run: RunRecord) -> list[Any]:
    """What the journal has of a run, but for when, and how often, it was gone on with."""
    events = await runs.events(run.run_id)
    assert [event.offset for event in events] == list(range(len(events)))
    return [
        (event.kind, event.superstep, event.node, event.task_id, _lasting(event.payload))
        for event in events
        if not event.kind.startswith(("run.", "interrupt."))
        and event.kind not in ("checkpoint.restored", "node.started")
    ]


def _is_stuck(run: RunRecord) -> bool:
    return run.error is not None and run.error.reason != "RECURSION_LIMIT"


async def _go_on(runs: GraphRuns, run: RunRecord) -> Any:
    assert run.status not in LIVE
    pending = await runs.pending()
    if pending:
        return await runs.resume("t", **{item.interrupt_id: "!" for item in pending})
    return await runs.retry()


def _lasting(payload: str) -> str:
    """A payload without times, and without how often a node was started until it had its answers."""
    kept: Any = load(payload)
    return canonical({key: value for key, value in kept.items() if key not in ("duration_ms", "attempt")})


@settings(max_examples=40)
@given(plans(), st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)), st.integers(1, 40))
def test_a_graph_ends_the_same_whatever_the_timing_and_wherever_a_server_is_killed(
    plan: Plan, pauses: dict[str, float], kill_at: int
) -> None:
    async def scenario() -> None:
        sequential = await _history(plan, pauses={}, cap=1)
        assert await _history(plan, pauses=pauses, cap=16) == sequential
        assert await _history(plan, pauses=pauses, cap=2, kill_at=kill_at) == sequential
        assert await _history(plan, pauses={}, cap=16, drains=True) == sequential

    run_in_virtual_time(scenario())


def _but_for_checkpoints(history: Any) -> Any:
    """A history without what the journal says of checkpoints."""
    status, reason, state, effects, durable, inside = history
    return (
        status,
        reason,
        state,
        effects,
        [event for event in durable if event[0] != "checkpoint.saved"],
        inside,
    )


@settings(max_examples=10)
@given(plans(), st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)), st.integers(1, 40))
def test_a_graph_ends_the_same_however_durable_its_boundaries_are_and_wherever_a_server_is_killed(
    plan: Plan, pauses: dict[str, float], kill_at: int
) -> None:
    async def scenario() -> None:
        sync = _but_for_checkpoints(await _history(plan, pauses={}, cap=1))
        for durability in (Durability.EXIT, Durability.ASYNC):
            for kill in (0, kill_at):
                other = await _history(plan, pauses=pauses, cap=2, kill_at=kill, durability=durability)
                assert _but_for_checkpoints(other) == sync, (durability, kill)

    run_in_virtual_time(scenario())


@settings(max_examples=10)
@given(plans(), st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)), st.integers(1, 40))
def test_a_run_that_commits_as_it_waits_ends_the_same_wherever_a_server_is_killed(
    plan: Plan, pauses: dict[str, float], kill_at: int
) -> None:
    async def scenario() -> None:
        at = CommitPolicy.INTERRUPT
        sequential = await _history(plan, pauses={}, cap=1, commit=at)
        assert await _history(plan, pauses=pauses, cap=2, kill_at=kill_at, commit=at) == sequential

    run_in_virtual_time(scenario())


@settings(max_examples=20)
@given(plans(), st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)))
def test_a_run_that_takes_what_another_was_given_ends_as_it_would_have(
    plan: Plan, pauses: dict[str, float]
) -> None:
    async def to_its_end(runs: GraphRuns, thread: str) -> tuple[RunStatus, Any]:
        outcome = await runs.start({"value": 0, "log": [], "route": plan.label}, thread)
        while outcome.run.status is RunStatus.INTERRUPTED:
            answers = {item.interrupt_id: "!" for item in await runs.pending(thread)}
            outcome = await runs.resume(thread, **answers)
        return outcome.run.status, outcome.state

    async def scenario() -> None:
        plain = await to_its_end(_server(plan, pauses), "t")
        runs = _server(plan, pauses, cached=True)
        assert await to_its_end(runs, "first") == plain
        runs.calls.clear()
        assert await to_its_end(runs, "second") == plain
        if plain[0] is RunStatus.COMPLETED:
            own = {name for name in runs.calls if "." not in name}
            assert own <= set(plan.asks), "only those that ask are called again"

    run_in_virtual_time(scenario())
