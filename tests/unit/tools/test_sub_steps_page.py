"""The page about sub-steps holds: its tool runs as it says, and again from its journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agenttx.testing import run_tool
from agenttx.worker import SubStepFailed, ToolCallContext, ToolFailure, tool
from agenttx_server.tools import load_tools

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sub-steps.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
BOOKED: list[str] = []


@tool("hotels.book", effects="compensatable")
async def book_room(ctx: ToolCallContext, city: str) -> dict[str, Any]:
    """Book."""
    await ctx.register_undo("hotels.cancel", city=city)
    BOOKED.append(city)
    await ctx.store.put("room", city)
    return {"room": city}


@book_room.undo("hotels.cancel")
async def cancel_room(city: str) -> None:
    """Cancel."""
    BOOKED.remove(city)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The first example's tool."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"sub_steps_page_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(EXAMPLES[0])
    (found,) = load_tools(name)
    return found


async def test_the_tool_makes_its_calls_and_is_answered_from_its_journal(plan: Any) -> None:
    BOOKED.clear()
    stand_ins = {"hotels.book": book_room, "flights.book": lambda arguments: {"id": 7}}
    run = await run_tool(plan, {"city": "Oslo"}, steps=stand_ins)
    assert run.result == {"room": {"room": "Oslo"}, "flight": {"id": 7}}
    assert [step.tool_name for step in run.steps] == ["hotels.book", "flights.book"]
    assert (run.state, BOOKED) == ({"kv/room": "Oslo"}, ["Oslo"])
    again = await run_tool(plan, {"city": "Oslo"}, journal=run.steps)
    assert (again.result, BOOKED) == (run.result, ["Oslo"])
    await run.run_undo()
    assert BOOKED == []


async def test_a_call_that_fails_is_told_and_made_again(plan: Any) -> None:
    def full(arguments: Any) -> Any:
        raise ToolFailure("conflict", "no seats", ["city"])

    stand_ins = {"hotels.book": lambda arguments: 1, "flights.book": full}
    run = await run_tool(plan, {"city": "Oslo"}, steps=stand_ins)
    assert run.result == {"room": 1, "flight": None, "why": "Hint: no seats"}
    assert run.steps[1].error is not None
    assert (run.steps[1].error.sub_step, run.steps[1].error.keys) == (2, ("city",))
    again = await run_tool(
        plan, {"city": "Oslo"}, steps={"flights.book": lambda arguments: 2}, journal=run.steps
    )
    assert again.result == {"room": 1, "flight": 2}


async def test_a_tool_that_is_not_given_is_unknown() -> None:
    @tool("asks", effects="read_only")
    async def asks(ctx: ToolCallContext) -> None:
        await ctx.step("nobody", {})

    with pytest.raises(SubStepFailed, match="there is no tool 'nobody'"):
        await run_tool(asks)


def test_every_example_is_one_of_these() -> None:
    assert len(EXAMPLES) == 2
