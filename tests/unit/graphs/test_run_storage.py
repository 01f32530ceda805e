"""What a long thread costs: storage grows with what changes, and each superstep writes as much as the one before."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.graph_definitions import APP, SUM
from tests.support.graph_runs import Call, GraphRuns, adds
from tests.support.virtual_time import virtual_time

from agenttx_server.engine.records import TransactionId
from agenttx_server.graphs.definition import Channel, ConditionalEdge, ExpressionRouter, Route

SUPERSTEPS = 500
MOST_BYTES = 5_000_000


def _size(runs: GraphRuns) -> int:
    """Bytes of what is kept of threads and runs."""
    return sum(
        len(str(value))
        for table in runs.database.extra.values()
        for row in table.values()
        for value in row
        if value is not None
    )


@virtual_time
async def test_c16_500_supersteps_that_append_1_kb_beside_200_kb_stay_under_5_mb() -> None:
    sizes = []

    async def append(call: Call) -> Any:
        sizes.append(_size(runs) if len(call.state["log"]) % 100 == 0 else 0)
        return {"log": ["x" * 1000], "count": len(call.state["log"]) + 1}

    router = ExpressionRouter(f"state.count < {SUPERSTEPS}")
    again = (Route("true", "a"), Route("false", "__end__"))
    runs = GraphRuns(
        "START->a",
        {"a": append},
        channels=(*APP, Channel("constant"), Channel("count")),
        conditional=(ConditionalEdge("a", router, again),),
    )
    given = {"constant": "c" * 200_000, "log": [], "count": 0}
    outcome = await runs.start(given, recursion_limit=SUPERSTEPS, max_total_steps=SUPERSTEPS)
    assert outcome.run.status.value == "COMPLETED", outcome.run.error
    assert len(outcome.state["log"]) == SUPERSTEPS  # type: ignore[arg-type]
    attempts = 0
    cursor = ""
    while True:
        page = await runs.engine.store.list_attempts(
            TransactionId(outcome.run.transaction_id), cursor, 100, 1 << 24
        )
        attempts += sum(len(item.arguments) + len(item.output or "") for item in page.attempts)
        cursor = page.next_cursor
        if not cursor:
            break
    assert _size(runs) + attempts < MOST_BYTES
    # Lists are written whole now and then: between the measures there is no more than one.
    grown = [later - earlier for earlier, later in zip(sizes[0::100], sizes[100::100], strict=False)]
    assert max(grown) < 1_000_000, grown


@virtual_time
async def test_results_that_are_there_together_are_one_write_and_others_do_not_wait_for_a_sibling() -> None:
    late = asyncio.Event()
    written: list[set[str]] = []

    async def waits(call: Call) -> Any:
        await late.wait()
        return {"value": 1}

    names = [f"n{number}" for number in range(20)]
    runs = GraphRuns(
        ", ".join(f"START->{name}" for name in [*names, "late"]),
        {**dict.fromkeys(names, adds(1)), "late": waits},
        channels=SUM,
    )
    before = runs.engine.memory.write_count
    work = asyncio.ensure_future(runs.start({"value": 0}, max_concurrency=30))
    await asyncio.wait({work}, timeout=0.01)
    for write_set in runs.engine.memory.written[before:]:
        written.append({str(attempt.tool_name) for attempt in write_set.attempts})
    assert written == [set(), set(names)], "the start, and what ended together, though one has not"
    late.set()
    outcome = await work
    assert outcome.state == {"value": 21}
    assert runs.engine.memory.write_count == before + 3, "the last result is in the boundary's"


@virtual_time
async def test_a_superstep_whose_results_are_there_together_is_one_write() -> None:
    names = [f"n{number}" for number in range(100)]
    runs = GraphRuns(
        ", ".join(f"START->{name}" for name in names), dict.fromkeys(names, adds(1)), channels=SUM
    )
    outcome = await runs.start({"value": 0}, max_concurrency=100)
    assert outcome.state == {"value": 100}
    assert runs.engine.memory.write_count == 2
    attempts = runs.engine.memory.written[-1].attempts
    assert [attempt.step_id for attempt in attempts] == list(range(1, 101))
