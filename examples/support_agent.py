"""A support agent as a graph: it finds the customer's order, asks a person before it refunds, and tells the customer.

    agenttx serve &
    python examples/support_agent.py

This process hosts the graph's nodes and the tools that they call. Every call is a step: a run that waits for the person's
answer for days, or whose process is killed in the middle, refunds once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import agenttx
from agenttx import END, START, BlockingNodeContext, Command, GraphBuilder
from agenttx.worker import ToolCallContext, UndoContext, Worker, tool

ORDERS: dict[str, dict[str, Any]] = {"ada": {"order": "o-7", "cents": 4200, "late_days": 9}}
REFUNDS: dict[str, int] = {}
"""What the payment service has: refunds by their keys."""


@tool("support.find_order", effects="read_only")
def find_order(customer: str) -> dict[str, Any]:
    """Find a customer's last order."""
    return ORDERS[customer]


@tool("support.refund", effects="compensatable")
async def refund(ctx: ToolCallContext, order: str, cents: int) -> dict[str, Any]:
    """Pay back an order."""
    await ctx.register_undo("support.take_back", key=ctx.idempotency_key)
    REFUNDS[ctx.idempotency_key] = cents
    return {"order": order, "refunded_cents": cents}


@refund.undo("support.take_back")
def take_back(ctx: UndoContext, key: str) -> None:
    """Take a refund back."""
    REFUNDS.pop(key, None)


@tool("support.write", effects="transactional")
async def write(ctx: ToolCallContext, customer: str, text: str) -> None:
    """Write to the customer, once the run has completed."""
    await ctx.stage_effect("mail", {"to": customer, "text": text})


def look(state: Mapping[str, Any], ctx: BlockingNodeContext) -> dict[str, Any]:
    """Find the order."""
    return {"order": ctx.step("support.find_order", {"customer": state["customer"]})}


def is_late(state: Mapping[str, Any]) -> str:
    """Decide whether the order is a case for a refund; a model may do that."""
    return "refund" if state["order"]["late_days"] > 7 else "answer"


def pay(state: Mapping[str, Any], ctx: BlockingNodeContext) -> Command:
    """Ask a person, then refund."""
    order = state["order"]
    if not ctx.interrupt({"refund": order["order"], "cents": order["cents"]}):
        return Command(update={"log": ["refund refused"]}, goto="answer")
    paid = ctx.step("support.refund", {"order": order["order"], "cents": order["cents"]})
    return Command(update={"log": [f"refunded {paid['refunded_cents']}"]}, goto="answer")


def answer(state: Mapping[str, Any], ctx: BlockingNodeContext) -> dict[str, Any]:
    """Tell the customer."""
    text = "; ".join(state["log"]) or "your order is on its way"
    ctx.step("support.write", {"customer": state["customer"], "text": text})
    return {"log": ["answered"]}


TOOLS = [find_order, refund, write]
SUPPORT = (
    GraphBuilder("support", "Answers a customer; a person decides on refunds.")
    .channel("customer", type="string")
    .channel("order", type="object")
    .channel("log", reducer="append", default=[])
    .node("look", look, retry=3)
    .node("pay", pay, destinations=["answer"])
    .node("answer", answer)
    .edge(START, "look")
    .conditional("look", is_late, {"refund": "pay", "answer": "answer"})
    .edge("answer", END)
)


def main() -> None:
    """Register the graph, and host its nodes and their tools until the process is told to stop."""
    with agenttx.Client() as client:
        registered = client.graphs.register(SUPPORT, host=False)
    print(f"hosting graph {registered.graph.name}, version {registered.graph.version[:9]}")
    Worker(tools=TOOLS, graphs=[SUPPORT]).run()


if __name__ == "__main__":
    main()
