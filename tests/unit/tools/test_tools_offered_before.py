"""Which tools count as offered before, and what a database that does not answer does to that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.support.engine_harness import FakeClock
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.tools.tools_offered_before import (
    NOTE_SECONDS,
    REMEMBERED_SECONDS,
    RENEWAL_SECONDS,
    ToolsOfferedBefore,
)


class Kept:
    """A store that several servers share."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, str], MicrosecondsUtc] = {}
        self.writes: list[list[str]] = []
        self.is_down = self.hangs = False

    async def note_offered_tools(
        self, tenant: str, names: Sequence[str], now: MicrosecondsUtc, forget_before: MicrosecondsUtc
    ) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            raise StoreUnavailable("it is down")
        self.writes.append(list(names))
        self.at = {key: at for key, at in self.at.items() if at >= forget_before}
        self.at.update({(tenant, name): now for name in names})

    async def when_tool_was_offered(self, tenant: str, name: str) -> MicrosecondsUtc | None:
        if self.is_down:
            raise StoreUnavailable("it is down")
        return self.at.get((tenant, name))


@virtual_time
async def test_another_server_knows_of_it_until_it_has_not_been_offered_for_long() -> None:
    kept, clock = Kept(), FakeClock()
    mine, others = ToolsOfferedBefore(kept, clock), ToolsOfferedBefore(kept, clock)
    await mine.note("acme", ["t"])
    assert await others.was_offered("acme", "t")
    assert not await others.was_offered("acme", "u")
    assert not await others.was_offered("other", "t")
    await clock.sleep(REMEMBERED_SECONDS - 1)
    assert await others.was_offered("acme", "t")
    await clock.sleep(2)
    assert not await others.was_offered("acme", "t")


@virtual_time
async def test_a_worker_that_comes_and_goes_is_written_down_once_in_a_while() -> None:
    kept, clock = Kept(), FakeClock()
    tools = ToolsOfferedBefore(kept, clock)
    for _ in range(3):
        await tools.note("acme", ["t"])
    await tools.note("acme", ["t", "u"])
    assert kept.writes == [["t"], ["u"]]
    await clock.sleep(RENEWAL_SECONDS)
    await tools.note("acme", ["t"])
    assert kept.writes == [["t"], ["u"], ["t"]]


@virtual_time
async def test_what_is_offered_for_days_stays_known() -> None:
    kept, clock = Kept(), FakeClock()
    tools = ToolsOfferedBefore(kept, clock)
    await tools.note("acme", ["t", "ended"])
    keeping = asyncio.create_task(tools.keep(lambda: [("acme", ["t"])]))
    await clock.sleep(2.5 * REMEMBERED_SECONDS)
    keeping.cancel()
    assert await tools.was_offered("acme", "t")
    assert not await tools.was_offered("acme", "ended")


@virtual_time
async def test_a_database_that_does_not_answer_holds_up_no_worker_for_long() -> None:
    kept, clock = Kept(), FakeClock()
    tools = ToolsOfferedBefore(kept, clock)
    kept.is_down = True
    await tools.note("acme", ["t"])
    assert not await tools.was_offered("acme", "t")
    kept.is_down, kept.hangs = False, True
    before = asyncio.get_running_loop().time()
    await tools.note("acme", ["t"])
    assert asyncio.get_running_loop().time() - before == NOTE_SECONDS
    kept.hangs = False
    await tools.note("acme", ["t"])  # what failed is tried again
    assert await tools.was_offered("acme", "t")
