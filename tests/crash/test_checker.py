"""The checker finds what it is there to find: a run without a crash, and its traces falsified in one place after another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.crash.agent import Agent
from tests.crash.fleet import Fleet, open_fleet
from tests.crash.invariants import check
from tests.crash.run import wait_delivered
from tests.crash.scratch import scratch_directory
from tests.crash.told import Told
from tests.crash.world import World

Lines = list[dict[str, Any]]


@dataclass
class Traces:
    """What a run left behind, to be falsified."""

    fleet: Fleet
    told: list[Told]

    async def check(self) -> list[str]:
        return (await check(self.fleet, World(self.fleet.world_log), self.told)).all

    def falsify_world(self, change: Callable[[Lines], Lines]) -> None:
        lines = [json.loads(text) for text in self.fleet.world_log.read_text().splitlines()]
        self.fleet.world_log.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))

    def committed(self) -> list[Told]:
        return [told for told in self.told if told.status == "COMMITTED" and told.live]


@pytest.fixture
async def traces() -> AsyncIterator[Traces]:
    with scratch_directory() as directory:
        async with open_fleet(directory) as fleet:
            assert await fleet.wait_serving(await fleet.start())
            world = World(fleet.world_log)
            agents = [Agent(f"a{number}", "checker", fleet, world) for number in range(6)]
            for _ in range(2):
                await asyncio.gather(*(agent.run_one(asyncio.Event()) for agent in agents))
            await asyncio.gather(*(agent.end_all() for agent in agents))
            await wait_delivered(fleet)
            yield Traces(fleet, [told for agent in agents for told in agent.told])


async def test_every_falsified_trace_is_found(traces: Traces):
    assert await traces.check() == []

    # An effect of an irreversible tool once more.
    world = traces.fleet.world_log.read_text()
    sends = {
        entry
        for told in traces.told
        for entry, call in told.calls.items()
        if call.tool == "crash.send" and f'"{entry}"' in world
    }
    traces.falsify_world(lambda lines: lines + [line for line in lines if line["entry"] in sends][:1])
    assert any("I10" in line for line in await traces.check())
    traces.fleet.world_log.write_text(world)

    # No undo happened.
    traces.falsify_world(lambda lines: [line for line in lines if line["what"] != "undo"])
    assert any("I2" in line and "stands" in line for line in await traces.check())
    traces.fleet.world_log.write_text(world)

    # Every undo came last, after the steps that were run again.
    traces.falsify_world(lambda lines: sorted(lines, key=lambda line: line["what"] == "undo"))
    assert any("I5" in line and "later step" in line for line in await traces.check())
    traces.fleet.world_log.write_text(world)

    # An undo was recorded, and run again by the next process.
    traces.falsify_world(
        lambda lines: lines + [line | {"pid": 1} for line in lines if line["what"] == "undo"][:1]
    )
    assert any("I5" in line for line in await traces.check())
    traces.fleet.world_log.write_text(world)

    # An effect happened in a transaction that nobody began.
    traces.falsify_world(lambda lines: [*lines, lines[0] | {"transaction": "another"}])
    assert any("nobody was told of" in line for line in await traces.check())
    traces.fleet.world_log.write_text(world)

    # What went out is missing, is another thing, is in another order.
    outbox = traces.fleet.outbox_file.read_text()
    lines = outbox.splitlines(keepends=True)
    traces.fleet.outbox_file.write_text("".join(lines[:-1]))
    assert any("I4" in line and "delivered" in line for line in await traces.check())
    traces.fleet.outbox_file.write_text(
        outbox + lines[0].replace('"idempotency_key":"', '"idempotency_key":"x')
    )
    assert any("two keys" in line for line in await traces.check())
    traces.fleet.outbox_file.write_text("".join(reversed(lines)))
    assert any("went out as" in line for line in await traces.check())
    traces.fleet.outbox_file.write_text(outbox)

    # A step was acknowledged that is not there; one is there that was not.
    told = traces.committed()[0]
    told.live.append(replace(told.live[-1], number=len(told.live) + 1))
    assert any("I1" in line and "acknowledged" in line for line in await traces.check())
    told.live[:] = told.live[:-2]
    assert any("never acknowledged" in line for line in await traces.check())


async def test_a_shared_counter_that_lost_an_increment_is_found(traces: Traces):
    counted = [told for told in traces.committed() if told.counters()]
    traces.told.remove(counted[0])

    assert any("I8" in line for line in await traces.check())
