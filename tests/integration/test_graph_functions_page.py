"""The page about functions as nodes, and the support agent: what they show runs as it is told."""

import re
from pathlib import Path
from typing import Any

from examples import support_agent
from tests.support.graph_server import graph_server
from tests.support.running_worker import running_worker

from agenttx.worker import tool
from agenttx_server.graphs.runs.records import RunStatus

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "graphs" / "functions.md").read_text()


@tool("orders.find", effects="read_only")
def find(customer: str) -> dict[str, str]:
    """Find an order."""
    return {"order": f"o-{customer}"}


async def test_the_graph_of_the_page_asks_and_tells(tmp_path: Path):
    shown: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], shown)
    async with graph_server(f"sqlite:///{tmp_path / 'agenttx.db'}") as server:
        server.add(shown["support"])
        async with running_worker(server.address, tools=[find], graphs=[shown["support"]]):
            asked = await server.start("support", {"customer": "c"})
            assert asked.interrupts[0].payload == '{"refund":"o-c"}'
            done = await server.resume({"approved": True})

    assert done.state["log"] == ["refunded o-c", "told c"]


async def test_the_test_of_the_page_passes():
    shown: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(blocks[0] + blocks[-1], shown)

    await shown["test_the_agent_asks_before_it_refunds"]()


async def test_the_support_agent_refunds_once_a_person_allowed_it(tmp_path: Path):
    support_agent.REFUNDS.clear()
    graph = support_agent.SUPPORT
    async with graph_server(f"sqlite:///{tmp_path / 'agenttx.db'}") as server:
        server.add(graph)
        async with running_worker(server.address, tools=support_agent.TOOLS, graphs=[graph]):
            asked = await server.start("support", {"customer": "ada"}, "allowed")
            assert asked.run.status is RunStatus.INTERRUPTED
            assert support_agent.REFUNDS == {}
            done = await server.resume(True, "allowed")
            await server.start("support", {"customer": "ada"}, "refused")
            refused = await server.resume(False, "refused")

    assert done.run.status is RunStatus.COMPLETED
    assert done.state["log"] == ["refunded 4100", "answered"]
    assert list(support_agent.REFUNDS.values()) == [4100]
    assert refused.state["log"] == ["refund refused", "answered"]
