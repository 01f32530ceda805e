"""What a long thread costs: storage grows with what changes, and each superstep writes as much as the one before."""

from __future__ import annotations

from typing import Any

from tests.support.graph_definitions import APP
from tests.support.graph_runs import Call, GraphRuns
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
