"""Plays one history: everything that happens in it follows from its seed."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.checks import Breach, check_answers, check_history, same_answers
from tests.simulation.client import Client, Notebook
from tests.simulation.loop import Runaway, SimulatedLoop
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.servers import Cluster
from tests.simulation.settling import settle_all
from tests.simulation.tools import acts_outside
from tests.simulation.world import World
from tests.support.virtual_time import Deadlock

__all__ = ["Outcome", "play", "quiet"]

_MOST_CALLBACKS = 400_000
_HISTORIES_A_COLLECTION = 100
_played = 0
_LOGGER = logging.getLogger("agenttx_server")


@dataclass(frozen=True)
class Outcome:
    """What came of a history: ``failure`` is empty if all invariants held."""

    plan: Plan
    world: World
    failure: str
    callbacks: int
    seconds: float


class _Complaints(logging.Handler):
    """Keeps what the engine calls an error: none of the faults should surprise it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        self.found.append(text)


_COMPLAINTS = _Complaints()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep quiet about what is left of servers that died, and don't spend the time on collecting it."""
    warnings.simplefilter("ignore", RuntimeWarning)
    level, propagate, hook = _LOGGER.level, _LOGGER.propagate, sys.unraisablehook
    _LOGGER.setLevel(logging.ERROR)
    _LOGGER.propagate = False
    _LOGGER.addHandler(_COMPLAINTS)
    sys.unraisablehook = lambda _: None
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.enable()
        gc.unfreeze()
        sys.unraisablehook = hook
        _LOGGER.removeHandler(_COMPLAINTS)
        _LOGGER.propagate = propagate
        _LOGGER.setLevel(level)


def play(seed: int, plan: Plan | None = None) -> Outcome:
    """Play a history and hold it against the invariants; within :func:`quiet`."""
    plan = plan or draw_plan(seed)
    world = World()
    _COMPLAINTS.found.clear()
    loop = SimulatedLoop(Random(f"order {plan.seed}"), plan.disorder, _MOST_CALLBACKS)
    world.time = loop.time
    failure = ""
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_main(plan, world, loop))
        if _COMPLAINTS.found:
            failure = "the engine logged an error:\n" + _COMPLAINTS.found[0]
    except (Breach, Deadlock, Runaway) as error:
        failure = f"{type(error).__name__}: {error}"
    except Exception:
        failure = traceback.format_exc()
    finally:
        asyncio.set_event_loop(None)
        loop._ready.clear()
        loop.close()
        _count_and_collect()
    return Outcome(plan, world, failure, loop.callbacks, loop.time())


def _count_and_collect() -> None:
    """Collect what histories leave behind, but not after each."""
    global _played
    _played += 1
    if _played % _HISTORIES_A_COLLECTION == 0:
        gc.collect()


async def _main(plan: Plan, world: World, loop: SimulatedLoop) -> None:
    cluster = Cluster(plan, world, loop)
    cluster.start()
    notebook = Notebook()
    clients = [
        Client(number, cluster, notebook, Random(f"client {plan.seed} {number}"))
        for number in range(plan.clients)
    ]
    await _all(client.play(plan.operations) for client in clients)
    cluster.clear_up()
    operator = Client(9, cluster, notebook, Random(f"operator {plan.seed}"))
    await settle_all(cluster, operator)
    check_history(cluster, notebook)
    await _replay(cluster, operator, notebook)
    await cluster.stop()


async def _all(work: Any) -> None:
    """Run side by side; the first failure ends it."""
    async with asyncio.TaskGroup() as group:
        for item in work:
            group.create_task(item)


async def _replay(cluster: Cluster, operator: Client, notebook: Notebook) -> None:
    """Every final answer is recorded: it comes again, and nothing is run for it (I3)."""
    world = cluster.world
    answered = list(check_answers(notebook.begins + notebook.sent))
    if cluster.plan.seed % 4:  # each of them costs as much as the first time
        answered = operator.random.sample(answered, min(3, len(answered)))
    before = _acts(world)
    for sent, answer in answered:
        again = await operator.settled(sent)
        if not same_answers(answer, again):
            raise Breach(f"{sent.method} {sent.name} was answered\n  {answer}\nand is answered\n  {again}")
    if _acts(world) != before:
        raise Breach("a repeated request had an effect")


def _acts(world: World) -> int:
    """How often the world was acted on. A server that is behind may run what acts on state alone, in vain."""
    return sum(
        entry.kind in ("undo", "deliver") or (entry.kind == "run" and acts_outside(entry.text))
        for entry in world.log
    )
