"""A tool that is written against agenttx.worker runs in the server too: what it raises and catches is the engine's."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_tool_context import FakeTransaction

from agenttx import worker
from agenttx.tools import hint_category
from agenttx_server import tools
from agenttx_server.engine import ports, records
from agenttx_server.tools import ToolRegistry


async def _run(tool: Any, transaction: FakeTransaction | None = None, *, closed: bool = False) -> Any:
    context = (transaction or FakeTransaction()).context()
    context.closed = closed
    return await ToolRegistry([tool]).run(tool.name, {}, context)


def test_there_is_one_decorator_and_one_set_of_names():
    assert tools.tool is worker.tool
    assert tools.ToolFailure is worker.ToolFailure
    assert tools.ToolCallContext is worker.ToolCallContext


def test_the_hint_categories_are_the_engines():
    assert [*hint_category.HintCategory] == [*records.HintCategory]


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (worker.ToolFailure("conflict", "taken", ("a",)), ports.ToolFailure),
        (worker.ArgumentsRefused("missing_argument", "missing", ("a",)), ports.ArgumentsRefused),
        (worker.OutcomeUnknown("?"), ports.OutcomeUnknown),
        (worker.ContextClosed("over"), ports.ContextClosed),
    ],
)
@pytest.mark.parametrize("blocking", [False, True])
async def test_what_a_tool_raises_is_what_the_engine_knows(
    raised: Exception, seen: type[Exception], blocking: bool
):
    @worker.tool("test.tool", effects="read_only")
    async def fail() -> None:
        raise raised

    @worker.tool("test.tool", effects="read_only")
    def fail_blocking() -> None:
        raise raised

    with pytest.raises(seen) as caught:
        await _run(fail_blocking if blocking else fail)

    assert isinstance(caught.value, type(raised))
    assert str(caught.value) == str(raised)
    if isinstance(raised, worker.ToolFailure):
        assert isinstance(caught.value, ports.ToolFailure)
        assert (caught.value.category, caught.value.keys) == (raised.category, ("a",))


async def test_what_the_engine_refuses_is_what_a_tool_catches():
    caught: list[str] = []

    @worker.tool("test.tool", effects="transactional")
    async def write(ctx: worker.ToolCallContext) -> None:
        try:
            await ctx.store.put("a", 1)
        except worker.ContextClosed as closed:
            caught.append(str(closed))

    await _run(write, closed=True)

    assert caught == ["the deadline passed"]


async def test_a_failure_of_the_engines_context_is_a_tools_failure():
    class Refusing(FakeTransaction):
        def context(self) -> Any:
            context: Any = super().context()

            async def put(key: str, value: str) -> None:
                raise ports.ToolFailure("resource_exhausted", "too large", ("value",))

            context.put = put
            return context

    @worker.tool("test.tool", effects="transactional")
    async def write(ctx: worker.ToolCallContext) -> list[str]:
        try:
            await ctx.store.put("a", 1)
        except worker.ToolFailure as failure:
            return [failure.category, *failure.keys]
        return []

    assert await _run(write, Refusing()) == ["resource_exhausted", "value"]
